/* The dashboard as a whole: which page is shown, what all pages share, and when the page is drawn. */
import { get } from "./api.js";
import { announce } from "./dialogs.js";
import { EventStream } from "./event_stream.js";
import { setServerTime } from "./format.js";
import { frame } from "./frame.js";
import { BoardPage } from "./pages/board.js";
import { HistoryPage } from "./pages/history.js";
import { InboxPage } from "./pages/inbox.js";
import { JobPage } from "./pages/job.js";
import { NotFoundPage } from "./pages/not_found.js";
import { OverviewPage } from "./pages/overview.js";
import { SwarmsPage } from "./pages/swarms.js";
import { TasksPage } from "./pages/tasks.js";
import { safeText } from "./safe_text.js";
import { listenToKeys } from "./shortcuts.js";
import { throttled } from "./throttle.js";
import { draw } from "./view.js";

/* First part of an address → page class, section that the navigation marks */
const PAGES = {
  "": [OverviewPage, "overview"],
  overview: [OverviewPage, "overview"],
  board: [BoardPage, "board"],
  job: [JobPage, "board"],
  jobs: [JobPage, "board"],
  tasks: [TasksPage, "tasks"],
  task: [TasksPage, "tasks"],
  inbox: [InboxPage, "inbox"],
  swarms: [SwarmsPage, "swarms"],
  swarm: [SwarmsPage, "swarms"],
  history: [HistoryPage, "history"],
};
const PAGES_WITH_ID = new Set([JobPage, TasksPage, InboxPage, SwarmsPage]);
const COUNTED = [
  ...["queued", "delayed", "waiting", "in_progress", "succeeded", "failed", "stale", "killed"],
  ...["workers", "busy"],
];
const LINK_IN_TITLE = { lost: " · no connection", silent: " · no answer" };
const CLOCK_MS = 1000;

/* What pages and the frame share. Only this module writes it. */
const shared = {
  info: null, // the answer of /api
  queues: null,
  total: null,
  waiting: null, // questions in the inbox
  firing: 0, // alerts
  link: "joining", // the state of the event stream
  trouble: null, // the error of a server that does not answer or refuses the session
};

let page = null;
let route = null;
let stream = null;
let frameRequest = 0;

/* "#/job/ID?tab=output" → { page: "job", args: ["ID"], query } */
function readRoute(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodePart);
  return { page: parts[0], args: parts.slice(1).filter(Boolean), query: new URLSearchParams(search) };
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/* Draw with the next frame of the browser, once however often it is called. */
function redraw() {
  if (!frameRequest) frameRequest = requestAnimationFrame(drawNow);
}

function drawNow() {
  frameRequest = 0;
  if (!page) return;
  const [, section = route.page] = knownPage(route) || [];
  const waiting = shared.waiting ? `(${shared.waiting}) ` : "";
  document.title = safeText(`${waiting}${page.title()} · farro${LINK_IN_TITLE[shared.link] || ""}`);
  if (page.beforeDraw) page.beforeDraw();
  draw(document.getElementById("app"), frame({ shared, section, page, stream, redraw }));
  if (page.afterDraw) page.afterDraw();
}

/* What a page may use of the whole. */
const context = {
  shared,
  redraw,
  readOnly: () => Boolean(shared.info && shared.info.read_only),

  /* Change the address. `replace` keeps the shown page and adds nothing to the browser's history. */
  go(hash, { replace = false } = {}) {
    if (!replace) {
      location.hash = hash;
      return;
    }
    window.history.replaceState(null, "", hash);
    route = readRoute(hash);
  },

  /* Return a throttled function that runs `work`, then redraws. onError(error): `work` failed, and was not aborted. */
  loader(work, { pauseMs, onError }) {
    return throttled(async () => {
      try {
        await work();
      } catch (error) {
        if (error.name === "AbortError") return;
        noteTrouble(error);
        onError(error);
      }
      redraw();
    }, pauseMs);
  },

  /* Show at once that a queue was paused ({ by, at, why }) or resumed (null), before the server tells every page. */
  setQueuePause(role, pause) {
    const queue = (shared.queues || []).find((other) => other.role === role);
    if (queue) queue.paused = pause;
    redraw();
  },
};

function noteTrouble(error) {
  if (error.unreachable || error.status === 401) shared.trouble = error;
}

const knownPage = ({ page: name }) => (Object.hasOwn(PAGES, name) ? PAGES[name] : null);

function showRoute() {
  const next = readRoute(location.hash);
  const [KnownPage] = knownPage(next) || [];
  if (KnownPage === JobPage && !next.args.length) {
    location.replace("#/board");
    return;
  }
  const fits = KnownPage && next.args.length <= (PAGES_WITH_ID.has(KnownPage) ? 1 : 0);
  if (page && page.stop) page.stop();
  route = next;
  page = fits ? new KnownPage(context, next) : new NotFoundPage();
  redraw();
  requestAnimationFrame(() => {
    window.scrollTo(0, 0);
    focusContent();
    announce(page.title());
  });
}

const focusContent = () => document.getElementById("main")?.focus({ preventScroll: true });

const sharedLoader = (work, pauseMs) => context.loader(work, { pauseMs, onError: () => {} });
const load = {
  info: sharedLoader(async () => {
    shared.info = await get("/api");
    setServerTime(shared.info.now);
    shared.trouble = null;
  }),
  queues: sharedLoader(async () => {
    const { queues, total } = await get("/api/queues");
    Object.assign(shared, { queues, total });
  }, 2000),
  inbox: sharedLoader(async () => {
    shared.waiting = (await get("/api/inbox")).waiting.length;
  }, 2000),
  alerts: sharedLoader(async () => {
    shared.firing = (await get("/api/alerts")).firing;
  }, 10_000),
};

function onEvent(kind, data) {
  if (["hello", "gap", "ready"].includes(kind)) {
    setServerTime(data.at);
    for (const loadOne of Object.values(load)) loadOne();
  } else if (kind === "counts") mergeCounts(data.queues);
  else if (kind === "workers") load.queues();
  else if (kind === "changes") onChanges(data.jobs);
  if (page && page.onEvent) page.onEvent(kind, data);
  redraw();
}

function onChanges(jobs) {
  if (jobs.some((job) => job.role === "Manager" || job.was_role === "Manager")) load.inbox();
  if (jobs.some((job) => job.status === "in_progress" || job.was === "in_progress")) load.queues();
  load.alerts();
}

function mergeCounts(queues) {
  const before = new Map((shared.queues || []).map((queue) => [queue.role, queue]));
  shared.queues = queues.map((queue) => ({ workers: 0, busy: 0, ...before.get(queue.role), ...queue }));
  const sums = COUNTED.map((field) => [field, shared.queues.reduce((sum, queue) => sum + (queue[field] || 0), 0)]);
  shared.total = { ...shared.total, role: "*", ...Object.fromEntries(sums) };
}

function onLink(state) {
  const isApart = (link) => link === "lost" || link === "silent";
  const wasApart = isApart(shared.link);
  shared.link = state;
  if (isApart(state) && !wasApart) announce("The server does not answer. Trying again.");
  if (state === "live") {
    shared.trouble = null;
    if (wasApart) announce("The server answers again.");
  }
  redraw();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address must keep naming the page
  document.getElementById("main")?.focus();
});
window.addEventListener("hashchange", showRoute);
listenToKeys(() => page, context);
showRoute();
stream = new EventStream(onEvent, onLink);
setInterval(() => {
  if (!document.hidden) redraw(); // ages such as "3s ago" move on
}, CLOCK_MS);
