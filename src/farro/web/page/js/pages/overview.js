/* The overview: how much, how fast, who works, what needs care. One job's story is on its own page. */
import { get, query } from "../api.js";
import { bars, legend, lines, spark } from "../charts.js";
import { switchQueue } from "../acts.js";
import { icon } from "../icons.js";
import { newJob } from "../new_job.js";
import { button, empty, failure, jobLink, loading, moment, panel, pausedWords, segments, state } from "../parts.js";
import { h } from "../view.js";
import { coarse, count, duration, many, said, usd } from "../words.js";

const WINDOWS = [["900", "15m"], ["3600", "1h"], ["21600", "6h"], ["86400", "24h"]];
const SETTLED_MS = 5500; // longer than the server keeps an answer
const ENDS = ["succeeded", "failed", "stale", "killed"];

export function overview(ctx, route) {
  const page = { window: route.query.get("window") || "3600", series: null, stats: null, workers: null, alerts: null, costs: null, error: null };
  const aborted = new AbortController();
  const keep = (name, make) => async () => {
    try { page[name] = await get(make(), aborted.signal); page.error = null; } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  };
  const load = {
    series: ctx.paced(keep("series", () => `/api/series${query({ window_s: page.window, points: 60 })}`), 3000),
    stats: ctx.paced(keep("stats", () => `/api/stats${query({ since: `${page.window}s` })}`), 5000),
    workers: ctx.paced(keep("workers", () => "/api/workers"), 1500),
    alerts: ctx.paced(keep("alerts", () => "/api/alerts"), 5000),
    costs: ctx.paced(keep("costs", () => "/api/costs?by=role"), 10_000),
  };
  const all = () => { for (const one of Object.values(load)) one(); };
  all();
  const timer = setInterval(() => { load.series(); load.stats(); load.alerts(); }, 15_000);
  /* What has just ended is counted a moment later, and an answer may be a few seconds old: so once more when it is quiet. */
  let quiet = 0;
  const again = () => { clearTimeout(quiet); quiet = setTimeout(() => { load.series(); load.stats(); }, SETTLED_MS); };
  const choose = (value) => { page.window = value; ctx.go(`#/overview?window=${value}`, { replace: true }); load.series(); load.stats(); ctx.redraw(); };

  return {
    title: () => "Overview",
    keys: { n: { told: "New job", run: () => newJob(ctx) } },
    actions: () => [segments("Time shown", WINDOWS, page.window, choose), !ctx.readOnly() && button("New job", () => newJob(ctx), { kind: "primary", sign: "plus", title: "New job (n)" })],
    heard(kind) {
      if (kind === "hello" || kind === "gap" || kind === "ready") all();
      if (kind === "changes") { load.series(); load.stats(); load.workers(); load.costs(); again(); }
      if (kind === "workers") load.workers();
    },
    stop: () => { aborted.abort(); clearInterval(timer); clearTimeout(quiet); },
    view() {
      const { queues, total } = ctx.shared;
      if (!queues) return page.error ? failure(page.error, all) : loading("Reading the queues");
      const nothing = !queues.some((queue) => ["queued", "delayed", "waiting", "in_progress", ...ENDS].some((field) => queue[field]));
      return h("div.stack",
        firing(page.alerts),
        figures(page, total),
        nothing ? h("section.panel", empty("No jobs yet", "Enqueue a command, or watch a whole task go through the roles.", "farro enqueue -- make test", "farro demo")) : null,
        h("div.two", throughput(page), latency(page)),
        lanes(queues, page, ctx),
        h("div.two", workers(page, total), h("div.stack", costs(page), alerts(page.alerts))));
    },
  };
}

const summed = (stats) => (stats ? stats.stats.find((line) => line.role === "*") || stats.stats[0] : null);

function figures(page, total) {
  const sum = summed(page.stats);
  const cost = page.costs && page.costs.total;
  const one = (name, value, note, address, mark) => h("li", h("a", { href: address, class: mark || "" }, h("span.name", name), h("span.value.num", value), h("span.note", note)));
  return h("ul.figures", { "aria-label": "Figures" },
    one("Running", count(total.in_progress), total.workers ? `${total.busy} of ${many(total.workers, "slot")} busy` : "no workers", "#/board?status=in_progress"),
    one("Queued", count(total.queued), sum && sum.oldest_queued_s ? `oldest ${duration(sum.oldest_queued_s)}` : total.delayed + total.waiting ? `${count(total.delayed + total.waiting)} ${total.delayed + total.waiting === 1 ? "waits" : "wait"}` : "nothing waits", "#/board?status=queued"),
    one("Throughput", sum ? rate(sum.throughput_per_min) : "–", "jobs a minute", "#/history"),
    one("Latency p95", sum ? duration(sum.latency_p95_s) : "–", sum ? `p50 ${duration(sum.latency_p50_s)}` : "", "#/history"),
    one("Failed", sum && sum.failure_rate !== null && sum.failure_rate !== undefined ? `${(sum.failure_rate * 100).toFixed(sum.failure_rate > 0 && sum.failure_rate < 0.1 ? 1 : 0)} %` : "–", sum ? many(sum.failed, "job") : "", "#/board?status=failed"),
    one("Cost today", cost ? usd(cost.usd) : "–", cost ? many(cost.calls, "call") : "", "#/overview"));
}
const rate = (value) => (value === null || value === undefined ? "–" : value >= 100 ? count(value) : value.toFixed(value < 10 ? 1 : 0));

function throughput(page) {
  const series = page.series;
  const own = series && series.roles["*"];
  const sum = (values) => values.reduce((all, value) => all + (value || 0), 0);
  return panel("Throughput", { note: series ? `jobs per ${series.step_s === 60 ? "minute" : coarse(series.step_s)}${series.bounded ? ", newest only" : ""}` : "", actions: own && legend([["Succeeded", "succeeded", sum(own.succeeded)], ["Failed", "failed", sum(own.failed)], ["Killed", "killed", sum(own.killed)]]) },
    own ? bars({ label: "Jobs that ended", start: series.start, end: series.end, stepS: series.step_s, layers: ["succeeded", "failed", "killed"].map((name) => ({ name, state: name, values: own[name] })) }) : loading());
}

function latency(page) {
  const series = page.series;
  const own = series && series.roles["*"];
  return panel("Latency", { note: "from enqueue to end", actions: legend([["p95", "p95"], ["p50", "p50"]]) },
    own ? lines({ label: "Latency", start: series.start, end: series.end, stepS: series.step_s, series: [{ name: "p95", mark: "p95", values: own.latency_p95_s }, { name: "p50", mark: "p50", values: own.latency_p50_s }] }) : loading());
}

function lanes(queues, page, ctx) {
  const byRole = new Map(page.stats ? page.stats.stats.map((line) => [line.role, line]) : []);
  const most = Math.max(...queues.map((queue) => queue.queued + queue.delayed + queue.waiting), 20);
  const active = (queue) => ["queued", "delayed", "waiting", "in_progress", "workers", "paused", ...ENDS].some((field) => queue[field]);
  const shown = queues.filter(active);
  const idle = queues.filter((queue) => !active(queue));
  return panel("Queues", { flush: true, note: idle.length ? `${many(shown.length, "role")} in use, ${idle.length} idle` : many(shown.length, "role"), class: "lanes" },
    h("div.scroll", h("table.table", { "aria-label": "Queues per role" },
      h("thead", h("tr", ["Role", "Queued", "Running", "Ended"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, "Course"), h("th.right", { scope: "col" }, "p95"), h("th.right", { scope: "col" }, "Workers"), ctx.readOnly() ? null : h("th", { scope: "col" }, h("span.unseen", "Actions")))),
      h("tbody", shown.map((queue) => lane(queue, byRole.get(queue.role), page.series && page.series.roles[queue.role], most, ctx)),
        shown.length ? null : h("tr", h("td.quiet", { colspan: 8 }, "No role has jobs or workers."))))),
    idle.length ? h("p.idle.small.quiet", "Idle: ", idle.map((queue) => queue.role).join(", ")) : null);
}

function lane(queue, stats, series, most, ctx) {
  const waits = [queue.delayed && `${count(queue.delayed)} delayed`, queue.waiting && `${count(queue.waiting)} waiting`].filter(Boolean).join(", ");
  const address = (status) => `#/board${query({ role: queue.role, status })}`;
  const share = (value) => `${Math.max((value / most) * 100, value ? 1.5 : 0)}%`;
  return h("tr", { key: queue.role },
    h("th.role", { scope: "row" }, h("a", { href: `#/board${query({ role: queue.role })}` }, queue.role), queue.paused ? h("p.paused.small", state("paused", { text: "Paused", size: 12 }), h("span.quiet", " ", pausedWords(queue.paused))) : null),
    h("td.depth", h("div.row",
      h("a.num.figure", { href: address("queued"), "aria-label": `${queue.queued} queued` }, count(queue.queued)),
      queue.queued + queue.waiting + queue.delayed ? h("span.bar", { "aria-hidden": "true" }, h("i", { "data-state": "queued", style: { width: share(queue.queued) } }), h("i", { "data-state": "waiting", style: { width: share(queue.waiting + queue.delayed) } })) : null,
      waits && h("span.small.quiet", waits), queue.cap && queue.queued > queue.cap / 2 ? h("span.small.late", `cap ${queue.cap}`) : null)),
    h("td", h("a.state.num", { href: address("in_progress"), "data-state": queue.in_progress ? "in_progress" : "none" }, icon("in_progress", 14, queue.in_progress ? { class: "spin" } : {}), count(queue.in_progress), h("span.unseen", "running"))),
    h("td", h("div.row.ends", ENDS.map((status) => (queue[status] || status === "succeeded" ? h("a.state.num", { key: status, href: address(status), "data-state": queue[status] ? status : "none", title: `${queue[status]} ${said(status).toLowerCase()}` }, icon(status, 14), count(queue[status]), h("span.unseen", said(status))) : null)))),
    h("td", series ? spark(series.succeeded.map((value, i) => value + series.failed[i] + series.killed[i]), { label: `Ended jobs of ${queue.role} over the time shown` }) : h("span.quiet", "–")),
    h("td.right.num", stats ? duration(stats.latency_p95_s) : "–"),
    h("td.right.num", queue.workers ? `${queue.busy}/${queue.workers}` : h("span.quiet", "none")),
    ctx.readOnly() ? null : h("td.right", button(queue.paused ? "Resume" : "Pause", () => switchQueue(queue.role, !queue.paused, { after: (told) => ctx.queuePaused(queue.role, told) }), { kind: "ghost", sign: queue.paused ? "play" : "pause", "aria-label": `${queue.paused ? "Resume" : "Pause"} the queue of ${queue.role}` })));
}

function workers(page, total) {
  const list = page.workers && page.workers.workers;
  return panel("Workers", { flush: true, note: list ? `${many(list.length, "slot")}, ${list.filter((one) => one.job).length} busy` : "" },
    !list ? loading() : list.length ? h("div.scroll.tall", { tabindex: 0, role: "region", "aria-label": "Workers" }, h("table.table",
      h("thead", h("tr", ["Slot", "Role", "Works on", "Lease since"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", list.slice(0, 200).map((one) => h("tr", { key: one.id },
        h("td", h("span.row", h("span.unseen", one.alive ? "" : "dead"), icon(one.alive ? (one.job ? "in_progress" : "idle") : "dead", 14, one.job ? { class: "spin" } : {}), h("span.mono.clip.slot", { title: `${one.id}${one.host ? ` on ${one.host}` : ""}${one.pid ? `, pid ${one.pid}` : ""}` }, one.id))),
        h("td", one.role || h("span.quiet", "keeper")),
        h("td", one.job ? jobLink(one.job) : h("span.quiet", one.alive ? "idle" : state("dead", { text: "lease lost" }))),
        h("td", moment(one.since)))))))
      : empty("Nobody works here", total && total.queued ? `${many(total.queued, "job waits", "jobs wait")} for a worker.` : "Start the workers, the manager and the watchdog.", "farro up --detach", "farro worker"));
}

function firing(told) {
  const list = told ? told.alerts.filter((one) => one.firing) : [];
  if (!list.length) return null;
  return h("section.firing", { "aria-label": "Alerts" }, list.map((one) => h("div.alert", { key: one.name + (one.role || ""), role: "alert" }, icon("alert"),
    h("div.grow", h("strong", said(one.name)), one.role ? ` · ${one.role}` : "", h("p.soft", one.what)), (one.next || []).slice(0, 1).map((next) => h("code.mono.small", next)))));
}

function alerts(told) {
  const quiet = told ? told.alerts.filter((one) => !one.firing) : [];
  return panel("Alerts", { flush: true, note: told ? (told.firing ? `${told.firing} firing` : "none firing") : "" },
    told ? h("ul.rules", quiet.map((one) => h("li", { key: one.name + (one.role || "") }, icon("succeeded", 14), h("span.clip", { title: one.what }, one.what)))) : loading());
}

function costs(page) {
  const told = page.costs;
  if (!told) return panel("Cost today", {}, loading());
  const most = Math.max(...told.lines.map((line) => line.usd), 0.000001);
  return panel("Cost today", { flush: true, note: told.total.unknown_calls ? `${many(told.total.unknown_calls, "call")} of unknown cost` : "" },
    told.lines.length ? h("table.table.costs", h("tbody", told.lines.map((line) => h("tr", { key: line.name }, h("th", { scope: "row" }, line.name), h("td.depth", h("span.bar", { "aria-hidden": "true" }, h("i", { "data-state": "queued", style: { width: `${(line.usd / most) * 100}%` } }))), h("td.right.num.quiet", many(line.calls, "call")), h("td.right.num", usd(line.usd))))))
      : h("p.empty.quiet", "No agent has called a provider today."),
    told.budgets.map((one) => h("div.budget", { key: one.key }, h("div.row", h("span", `Budget ${one.budget}`), h("span.end.num", one.left_usd === null ? "unknown left" : `${usd(one.left_usd)} of ${usd(one.limit_usd)} left`)),
      h("meter", { min: 0, max: one.limit_usd, value: one.usd, "aria-label": `Budget ${one.budget}` }))));
}
