/* The page as a whole: which page is shown, what all of them share, when it is drawn again. */
import { get } from "./api.js";
import { frame } from "./frame.js";
import { keys } from "./keys.js";
import { listen } from "./live.js";
import { say } from "./overlay.js";
import { board } from "./pages/board.js";
import { history } from "./pages/history.js";
import { inbox } from "./pages/inbox.js";
import { job } from "./pages/job.js";
import { nowhere } from "./pages/nowhere.js";
import { overview } from "./pages/overview.js";
import { swarms } from "./pages/swarms.js";
import { tasks } from "./pages/tasks.js";
import { plain } from "./plain.js";
import { draw } from "./view.js";
import { serverTime } from "./words.js";

const PAGES = { "": overview, overview, board, job, jobs: job, tasks, task: tasks, inbox, swarms, swarm: swarms, history };
const NAMING = new Set([job, tasks, inbox, swarms]); // those of which an address names one thing
const SECTION = { "": "overview", job: "board", jobs: "board", task: "tasks", swarm: "swarms" };
const RELOAD_MS = 1000;
const TICK_MS = 1000;

/* What pages and the frame share. Pages read it; only this module writes it. */
const shared = { info: null, queues: null, total: null, waiting: null, firing: 0, link: "joining", trouble: null, swarms: null };

let shown = null;
let route = null;
let drawn = 0;

/* "#/job/ID?tab=logs" → {page, args, query} */
export function readRoute(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { page: parts[0], args: parts.slice(1).filter(Boolean), query: new URLSearchParams(search) };
}

function redraw() {
  if (drawn) return;
  drawn = requestAnimationFrame(() => {
    drawn = 0;
    if (!shown) return;
    const title = shown.title();
    document.title = plain(`${shared.waiting ? `(${shared.waiting}) ` : ""}${title} · farro${{ lost: " · no connection", silent: " · no answer" }[shared.link] || ""}`);
    if (shown.before) shown.before();
    draw(document.getElementById("app"), frame({ shared, section: SECTION[route.page] || route.page || "overview", shown, live, redraw }));
    if (shown.after) shown.after();
  });
}

/* At most once a second, however many events arrive; at once after a quiet time. Never two at a time. */
export function paced(work, pause = RELOAD_MS) {
  let last = 0;
  let timer = 0;
  let busy = false;
  const run = async () => {
    timer = 0;
    busy = true;
    last = Date.now();
    try { await work(); } finally { busy = false; if (timer === -1) { timer = 0; call(); } }
  };
  const call = () => {
    if (busy) timer = -1;
    else if (!timer) timer = setTimeout(run, Math.max(0, last + pause - Date.now()));
  };
  call.stop = () => clearTimeout(timer);
  return call;
}

/* What a page may use of the whole. `load` keeps an answer's error for its view, and tells a lost server once. */
const context = {
  shared,
  redraw,
  paced,
  readOnly: () => Boolean(shared.info && shared.info.read_only),
  go(hash, { replace = false } = {}) {
    if (replace) window.history.replaceState(null, "", hash);
    else location.hash = hash;
    if (replace) route = readRoute(hash);
  },
  /* A queue was paused (told: by, at, why) or goes on (null): seen at once, before the server tells it to all. */
  queuePaused(role, told) {
    const queue = (shared.queues || []).find((one) => one.role === role);
    if (queue) queue.paused = told;
    redraw();
  },
  failed(error) {
    if (error.name === "AbortError") return;
    if (error.status === 0 || error.status === 401) { shared.trouble = error; redraw(); }
  },
};

function follow() {
  const next = readRoute(location.hash);
  const known = Object.hasOwn(PAGES, next.page) ? PAGES[next.page] : null;
  if (known === job && !next.args.length) { location.replace("#/board"); return; }
  const make = known && next.args.length <= (NAMING.has(known) ? 1 : 0) ? known : nowhere;
  if (shown && shown.stay && route && PAGES[route.page] === make && shown.stay(next)) { route = next; redraw(); return; }
  if (shown && shown.stop) shown.stop();
  route = next;
  shown = make(context, next);
  redraw();
  requestAnimationFrame(() => {
    window.scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
    say(shown.title());
  });
}

const refresh = {
  info: paced(async () => { try { shared.info = await get("/api"); serverTime(shared.info.now); shared.trouble = null; } catch (error) { context.failed(error); } redraw(); }),
  queues: paced(async () => { try { const told = await get("/api/queues"); shared.queues = told.queues; shared.total = told.total; } catch (error) { context.failed(error); } redraw(); }, 2000),
  inbox: paced(async () => { try { shared.waiting = (await get("/api/inbox")).waiting.length; } catch (error) { context.failed(error); } redraw(); }, 2000),
  alerts: paced(async () => { try { shared.firing = (await get("/api/alerts")).firing; } catch (error) { context.failed(error); } redraw(); }, 10_000),
};

function heard(kind, data) {
  if (kind === "hello" || kind === "gap" || kind === "ready") {
    if (data.at) serverTime(data.at);
    for (const one of Object.values(refresh)) one();
  } else if (kind === "counts") {
    const before = new Map((shared.queues || []).map((queue) => [queue.role, queue]));
    shared.queues = data.queues.map((queue) => ({ workers: 0, busy: 0, ...before.get(queue.role), ...queue }));
    shared.total = sum(shared.queues, shared.total);
  } else if (kind === "workers") refresh.queues();
  else if (kind === "changes") {
    if (data.jobs.some((one) => one.role === "Manager" || one.was_role === "Manager")) refresh.inbox();
    if (data.jobs.some((one) => one.status === "in_progress" || one.was === "in_progress")) refresh.queues();
    refresh.alerts();
  }
  if (shown && shown.heard) shown.heard(kind, data);
  redraw();
}

const sum = (queues, before) => {
  const total = { ...before, role: "*" };
  for (const field of ["queued", "delayed", "waiting", "in_progress", "succeeded", "failed", "stale", "killed", "workers", "busy"]) {
    total[field] = queues.reduce((all, queue) => all + (queue[field] || 0), 0);
  }
  return total;
};

function linked(state) {
  const before = shared.link;
  shared.link = state;
  const apart = (link) => link === "lost" || link === "silent";
  if (apart(state) && !apart(before)) say("The server does not answer. Trying again.");
  if (state === "live") { shared.trouble = null; if (apart(before)) say("The server answers again."); }
  redraw();
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main")?.focus(); });
window.addEventListener("hashchange", follow);
keys(() => shown, context);
follow();
const live = listen(heard, linked);
setInterval(() => { if (!document.hidden) redraw(); }, TICK_MS);
