/* The overview: how much work there is, how fast it is done, which workers do it, and what needs attention. */
import { get, query } from "../api.js";
import { durationLines, legend, stackedBars } from "../charts.js";
import { count, duration, plural, roughDuration, stateName, usd } from "../format.js";
import { icon, stateIcon } from "../icons.js";
import { newJob } from "../new_job.js";
import { h } from "../view.js";
import { button, emptyNote, errorNote, jobLink, loadingNote, panel, scrollRegion } from "../widgets.js";
import { segments, stateLabel, table, timeAgo } from "../widgets.js";
import { accountNotices } from "./account_notices.js";
import { queuesPanel } from "./overview_queues.js";

const WINDOWS = [
  ["900", "15m"],
  ["3600", "1h"],
  ["21600", "6h"],
  ["86400", "24h"],
];
const REFRESH_MS = 15_000;
const SETTLED_MS = 5500; // longer than the server keeps an answer
const JOB_FIELDS = [
  ...["queued", "delayed", "waiting", "in_progress"],
  ...["succeeded", "failed", "stale", "killed"],
];
const ENDED_STATES = ["succeeded", "failed", "killed"];
const ACCOUNTS = "accounts"; // the alert that the notices of paused accounts replace
const MOST_WORKERS = 200; // in the list

export class OverviewPage {
  constructor(context, route) {
    this.context = context;
    this.window = route.query.get("window") || "3600"; // seconds
    this.data = { series: null, stats: null, workers: null, alerts: null, accounts: null, costs: null };
    this.error = null;
    this.aborted = new AbortController();
    this.keys = { n: { text: "New job", run: () => newJob(context) } };
    this.load = {
      series: this.loader("series", () => `/api/series${query({ window_s: this.window, points: 60 })}`, 3000),
      stats: this.loader("stats", () => `/api/stats${query({ since: `${this.window}s` })}`, 5000),
      workers: this.loader("workers", () => "/api/workers", 1500),
      alerts: this.loader("alerts", () => "/api/alerts", 5000),
      accounts: this.loader("accounts", () => "/api/accounts", 3000),
      costs: this.loader("costs", () => "/api/costs?by=role", 10_000),
    };
    this.timer = setInterval(() => this.refresh("series", "stats", "alerts", "accounts"), REFRESH_MS);
    this.settledTimer = null;
    this.loadAll();
  }

  title() {
    return "Overview";
  }

  stop() {
    this.aborted.abort();
    clearInterval(this.timer);
    clearTimeout(this.settledTimer);
    for (const load of Object.values(this.load)) load.stop();
  }

  /* Data */

  loader(name, address, pauseMs) {
    const work = async () => {
      this.data[name] = await get(address(), this.aborted.signal);
      this.error = null;
    };
    const onError = (error) => {
      if (!error.unreachable) this.error = error;
    };
    return this.context.loader(work, { pauseMs, onError });
  }

  refresh(...names) {
    for (const name of names) this.load[name]();
  }

  loadAll() {
    this.refresh(...Object.keys(this.load));
  }

  onEvent(kind) {
    if (["hello", "gap", "ready"].includes(kind)) this.loadAll();
    if (kind === "workers") this.load.workers();
    if (kind !== "changes") return;
    this.refresh("series", "stats", "workers", "accounts", "costs");
    // The server counts an ended job a moment later, and may answer from its cache: load once more after a quiet time.
    clearTimeout(this.settledTimer);
    this.settledTimer = setTimeout(() => this.refresh("series", "stats", "accounts"), SETTLED_MS);
  }

  selectWindow(seconds) {
    this.window = seconds;
    this.context.go(`#/overview?window=${seconds}`, { replace: true });
    this.refresh("series", "stats");
    this.context.redraw();
  }

  /* The server may answer from its cache for a moment, and then still has the account. */
  forgetAccount(name) {
    this.data.accounts = { accounts: this.data.accounts.accounts.filter(({ account }) => account !== name) };
    this.context.redraw();
  }

  /* View */

  actions() {
    return [
      segments("Time shown", WINDOWS, this.window, (seconds) => this.selectWindow(seconds)),
      this.context.readOnly()
        ? null
        : button("New job", () => newJob(this.context), { kind: "primary", icon: "plus", title: "New job (n)" }),
    ];
  }

  view() {
    const { queues, total } = this.context.shared;
    const { series, stats, workers, alerts, accounts, costs } = this.data;
    if (!queues) return this.error ? errorNote(this.error, () => this.loadAll()) : loadingNote("Reading the queues");
    const hasJobs = queues.some((queue) => JOB_FIELDS.some((field) => queue[field]));
    return h(
      "div.stack",
      firingAlerts(alerts),
      accounts && accountNotices(this.context, accounts.accounts, (name) => this.forgetAccount(name)),
      figures(total, stats, costs),
      hasJobs ? null : noJobs(),
      h("div.two", throughputPanel(series), latencyPanel(series)),
      queuesPanel(this.context, queues, stats, series),
      h("div.two", workersPanel(workers, total), h("div.stack", costsPanel(costs), alertsPanel(alerts))),
    );
  }
}

function noJobs() {
  const text = "Enqueue a command, or watch a whole task go through the roles.";
  return h("section.panel", emptyNote("No jobs yet", text, "farro enqueue -- make test", "farro demo"));
}

/* Figures */

function figures(total, stats, costs) {
  const all = stats ? stats.stats.find((line) => line.role === "*") || stats.stats[0] : null;
  const cost = costs && costs.total;
  const slots = total.workers ? `${total.busy} of ${plural(total.workers, "slot")} busy` : "no workers";
  const rate = all ? throughputText(all.throughput_per_min) : "–";
  const latency = all ? `p50 ${duration(all.latency_p50_s)}` : "";
  const failed = all ? plural(all.failed, "job") : "";
  const calls = cost ? plural(cost.calls, "call") : "";
  return h(
    "ul.figures",
    { "aria-label": "Figures" },
    figure("Running", count(total.in_progress), slots, "#/board?status=in_progress"),
    figure("Queued", count(total.queued), queuedNote(total, all), "#/board?status=queued"),
    figure("Throughput", rate, "jobs a minute", "#/history"),
    figure("Latency p95", all ? duration(all.latency_p95_s) : "–", latency, "#/history"),
    figure("Failed", failureText(all), failed, "#/board?status=failed"),
    figure("Cost today", cost ? usd(cost.usd) : "–", calls, "#/overview"),
  );
}

const figure = (name, value, note, address) =>
  h("li", h("a", { href: address }, h("span.name", name), h("span.value.num", value), h("span.note", note)));

function queuedNote({ delayed, waiting }, all) {
  if (all && all.oldest_queued_s) return `oldest ${duration(all.oldest_queued_s)}`;
  const later = delayed + waiting;
  if (!later) return "nothing waits";
  return `${count(later)} ${later === 1 ? "waits" : "wait"}`;
}

function throughputText(perMinute) {
  if (perMinute === null || perMinute === undefined) return "–";
  return perMinute >= 100 ? count(perMinute) : perMinute.toFixed(perMinute < 10 ? 1 : 0);
}

function failureText(all) {
  const rate = all ? all.failure_rate : null;
  if (rate === null || rate === undefined) return "–";
  return `${(rate * 100).toFixed(rate > 0 && rate < 0.1 ? 1 : 0)} %`;
}

/* Charts */

function throughputPanel(series) {
  if (!series) return panel("Throughput", {}, loadingNote());
  const values = series.roles["*"];
  const total = (state) => values[state].reduce((sum, value) => sum + (value || 0), 0);
  const step = series.step_s === 60 ? "minute" : roughDuration(series.step_s);
  const options = {
    note: `jobs per ${step}${series.bounded ? ", newest only" : ""}`,
    actions: values && legend(ENDED_STATES.map((state) => [stateName(state), state, total(state)])),
  };
  if (!values) return panel("Throughput", options, loadingNote());
  const layers = ENDED_STATES.map((state) => ({ name: state, state, values: values[state] }));
  const { start, end, step_s: stepS } = series;
  return panel("Throughput", options, stackedBars({ label: "Jobs that ended", layers, start, end, stepS }));
}

function latencyPanel(series) {
  const options = {
    note: "from enqueue to end",
    actions: legend([
      ["p95", "p95"],
      ["p50", "p50"],
    ]),
  };
  const values = series && series.roles["*"];
  if (!values) return panel("Latency", options, loadingNote());
  const chart = durationLines({
    label: "Latency",
    start: series.start,
    end: series.end,
    stepS: series.step_s,
    series: [
      { name: "p95", mark: "p95", values: values.latency_p95_s },
      { name: "p50", mark: "p50", values: values.latency_p50_s },
    ],
  });
  return panel("Latency", options, chart);
}

/* Workers */

function workersPanel(answer, total) {
  if (!answer) return panel("Workers", { flush: true }, loadingNote());
  const { workers } = answer;
  const busy = workers.filter((worker) => worker.job).length;
  const note = `${plural(workers.length, "slot")}, ${busy} busy`;
  if (!workers.length) return panel("Workers", { flush: true, note }, noWorkers(total));
  const rows = workers.slice(0, MOST_WORKERS).map(workerRow);
  const list = scrollRegion("Workers", "tall", table(["Slot", "Role", "Works on", "Lease since"], rows));
  return panel("Workers", { flush: true, note }, list);
}

function noWorkers(total) {
  const text =
    total && total.queued
      ? `${plural(total.queued, "job waits", "jobs wait")} for a worker.`
      : "Start the workers, the manager and the watchdog.";
  return emptyNote("No workers", text, "farro up --detach", "farro worker");
}

function workerRow(worker) {
  const state = !worker.alive ? "dead" : worker.job ? "in_progress" : "idle";
  const place = `${worker.id}${worker.host ? ` on ${worker.host}` : ""}${worker.pid ? `, pid ${worker.pid}` : ""}`;
  const idle = h("span.quiet", worker.alive ? "idle" : stateLabel("dead", { text: "lease lost" }));
  return h(
    "tr",
    { key: worker.id },
    h(
      "td",
      h(
        "span.row",
        h("span.unseen", worker.alive ? "" : "dead"),
        stateIcon(state, 14, worker.job),
        h("span.mono.clip.slot", { title: place }, worker.id),
      ),
    ),
    h("td", worker.role || h("span.quiet", "daemon")),
    h("td", worker.job ? jobLink(worker.job) : idle),
    h("td", timeAgo(worker.since)),
  );
}

/* Alerts */

const alertKey = ({ name, role }) => name + (role || "");

function firingAlerts(answer) {
  const firing = answer ? answer.alerts.filter((alert) => alert.firing && alert.name !== ACCOUNTS) : [];
  if (!firing.length) return null;
  const item = (alert) =>
    h(
      "div.alert",
      { key: alertKey(alert), role: "alert" },
      icon("alert"),
      h(
        "div.grow",
        h("strong", stateName(alert.name)),
        alert.role ? ` · ${alert.role}` : "",
        h("p.soft", alert.what),
      ),
      (alert.next || []).slice(0, 1).map((command) => h("code.mono.small", command)),
    );
  return h("section.firing", { "aria-label": "Alerts" }, firing.map(item));
}

function alertsPanel(answer) {
  if (!answer) return panel("Alerts", { flush: true }, loadingNote());
  const note = answer.firing ? `${answer.firing} firing` : "none firing";
  const item = (alert) =>
    h("li", { key: alertKey(alert) }, icon("succeeded", 14), h("span.clip", { title: alert.what }, alert.what));
  const quiet = answer.alerts.filter((alert) => !alert.firing);
  return panel("Alerts", { flush: true, note }, h("ul.rules", quiet.map(item)));
}

/* Cost */

function costsPanel(costs) {
  if (!costs) return panel("Cost today", {}, loadingNote());
  const { lines, total, budgets } = costs;
  const note = total.unknown_calls ? `${plural(total.unknown_calls, "call")} of unknown cost` : "";
  const highest = Math.max(...lines.map((line) => line.usd), 0.000001);
  const body = lines.length
    ? table(null, lines.map((line) => costRow(line, highest)), { class: "costs" })
    : h("p.empty.quiet", "No agent has called a provider today.");
  return panel("Cost today", { flush: true, note }, body, budgets.map(budgetNode));
}

function costRow(line, highest) {
  const bar = h("i", { "data-state": "queued", style: { width: `${(line.usd / highest) * 100}%` } });
  return h(
    "tr",
    { key: line.name },
    h("th", { scope: "row" }, line.name),
    h("td.depth", h("span.bar", { "aria-hidden": "true" }, bar)),
    h("td.right.num.quiet", plural(line.calls, "call")),
    h("td.right.num", usd(line.usd)),
  );
}

function budgetNode(budget) {
  const name = `Budget ${budget.budget}`;
  const left = budget.left_usd === null ? "unknown" : `${usd(budget.left_usd)} of ${usd(budget.limit_usd)}`;
  return h(
    "div.budget",
    { key: budget.key },
    h("div.row", h("span", name), h("span.end.num", `${left} left`)),
    h("meter", { min: 0, max: budget.limit_usd, value: budget.usd, "aria-label": name }),
  );
}
