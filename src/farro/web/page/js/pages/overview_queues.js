/* The overview's table of queues: a row for each role that has jobs or workers. */
import { query } from "../api.js";
import { sparkline } from "../charts.js";
import { count, duration, plural, stateName } from "../format.js";
import { icon, stateIcon } from "../icons.js";
import { pauseQueue, resumeQueue } from "../job_actions.js";
import { h } from "../view.js";
import { button, panel, pauseText, stateLabel, table } from "../widgets.js";

const ENDED_STATES = ["succeeded", "failed", "stale", "killed"];
const ACTIVE_FIELDS = ["queued", "delayed", "waiting", "in_progress", "workers", "paused", ...ENDED_STATES];
const SHORTEST_FULL_BAR = 20; // jobs; fewer must not look like many

export function queuesPanel(context, queues, stats, series) {
  const isActive = (queue) => ACTIVE_FIELDS.some((field) => queue[field]);
  const active = queues.filter(isActive);
  const idle = queues.filter((queue) => !isActive(queue));
  const columns = [
    ...["Role", "Queued", "Running", "Ended", "Over time"],
    { text: "p95", right: true },
    { text: "Workers", right: true },
    context.readOnly() ? null : { text: "Actions", hidden: true },
  ];
  const statsOf = new Map(stats ? stats.stats.map((line) => [line.role, line]) : []);
  const deepest = Math.max(...queues.map(depth), SHORTEST_FULL_BAR);
  const row = (queue) =>
    queueRow(context, queue, { stats: statsOf.get(queue.role), series: series && series.roles[queue.role], deepest });
  const nothing = h("tr", h("td.quiet", { colspan: 8 }, "No role has jobs or workers."));
  const rows = active.length ? active.map(row) : nothing;
  const inUse = plural(active.length, "role");
  return panel(
    "Queues",
    { flush: true, note: idle.length ? `${inUse} in use, ${idle.length} idle` : inUse, class: "lanes" },
    h("div.scroll", table(columns, rows, { "aria-label": "Queues per role" })),
    idle.length ? h("p.idle.small.quiet", "Idle: ", idle.map((queue) => queue.role).join(", ")) : null,
  );
}

const depth = (queue) => queue.queued + queue.delayed + queue.waiting;
const boardAddress = (role, status) => `#/board${query({ role, status })}`;

function queueRow(context, queue, { stats, series, deepest }) {
  return h(
    "tr",
    { key: queue.role },
    roleCell(queue),
    depthCell(queue, deepest),
    h("td", runningLink(queue)),
    h("td", h("div.row.ends", ENDED_STATES.map((status) => endedLink(queue, status)))),
    h("td", series ? endedOverTime(queue.role, series) : h("span.quiet", "–")),
    h("td.right.num", stats ? duration(stats.latency_p95_s) : "–"),
    h("td.right.num", queue.workers ? `${queue.busy}/${queue.workers}` : h("span.quiet", "none")),
    context.readOnly() ? null : h("td.right", pauseButton(context, queue)),
  );
}

function roleCell({ role, paused }) {
  const pause =
    paused &&
    h(
      "p.paused.small",
      stateLabel("paused", { text: "Paused", size: 12 }),
      h("span.quiet", " ", pauseText(paused)),
    );
  return h("th", { scope: "row" }, h("a", { href: boardAddress(role) }, role), pause);
}

function depthCell(queue, deepest) {
  const share = (value) => `${Math.max((value / deepest) * 100, value ? 1.5 : 0)}%`;
  const later = [
    queue.delayed && `${count(queue.delayed)} delayed`,
    queue.waiting && `${count(queue.waiting)} waiting`,
  ].filter(Boolean);
  const bar = h(
    "span.bar",
    { "aria-hidden": "true" },
    h("i", { "data-state": "queued", style: { width: share(queue.queued) } }),
    h("i", { "data-state": "waiting", style: { width: share(queue.waiting + queue.delayed) } }),
  );
  const isNearCap = queue.cap && queue.queued > queue.cap / 2;
  const link = { href: boardAddress(queue.role, "queued"), "aria-label": `${queue.queued} queued` };
  return h(
    "td.depth",
    h(
      "div.row",
      h("a.num.figure", link, count(queue.queued)),
      depth(queue) ? bar : null,
      later.length ? h("span.small.quiet", later.join(", ")) : null,
      isNearCap ? h("span.small.late", `cap ${queue.cap}`) : null,
    ),
  );
}

function runningLink({ role, in_progress: running }) {
  return h(
    "a.state.num",
    { href: boardAddress(role, "in_progress"), "data-state": running ? "in_progress" : "none" },
    stateIcon("in_progress", 14, running),
    count(running),
    h("span.unseen", "running"),
  );
}

function endedLink(queue, status) {
  const number = queue[status];
  if (!number && status !== "succeeded") return null;
  const properties = {
    key: status,
    href: boardAddress(queue.role, status),
    "data-state": number ? status : "none",
    title: `${number} ${stateName(status).toLowerCase()}`,
  };
  return h("a.state.num", properties, icon(status, 14), count(number), h("span.unseen", stateName(status)));
}

function endedOverTime(role, { succeeded, failed, killed }) {
  const ended = succeeded.map((value, index) => value + failed[index] + killed[index]);
  return sparkline(ended, `Ended jobs of ${role} over the time shown`);
}

function pauseButton(context, { role, paused }) {
  const after = (pause) => context.setQueuePause(role, pause);
  const label = `${paused ? "Resume" : "Pause"} the queue of ${role}`;
  if (paused) {
    return button("Resume", () => resumeQueue(role, { after }), { kind: "ghost", icon: "play", "aria-label": label });
  }
  return button("Pause", () => pauseQueue(role, { after }), { kind: "ghost", icon: "pause", "aria-label": label });
}
