/* History: the queues and jobs as they were at any moment, read back from the audit log. */
import { get, query } from "../api.js";
import { legend, stackedAreas } from "../charts.js";
import { clock, count, now, plural, stateName } from "../format.js";
import { icon } from "../icons.js";
import { h } from "../view.js";
import { button, emptyNote, errorNote, jobLink, loadingNote, panel, scrollRegion } from "../widgets.js";
import { segments, stateLabel, table } from "../widgets.js";

const PRESENT_STATES = ["in_progress", "queued", "stale"];
const ENDED_STATES = ["succeeded", "failed", "killed"];
const SPANS = [
  ["900", "15m"],
  ["3600", "1h"],
  ["86400", "24h"],
  ["604800", "7d"],
  ["all", "All"],
];
const SLIDER_STEPS = 400;
const PLAY_MS = 250;

export class HistoryPage {
  constructor(context, route) {
    this.context = context;
    this.moment = route.query.get("at"); // null: now
    this.span = route.query.get("span") || "all"; // seconds
    this.range = null; // of the audit log: { first, last }
    this.series = null;
    this.snapshot = null; // queues and jobs at the moment
    this.auditLines = null; // the lines before it
    this.error = null;
    this.playTimer = null;
    this.snapshotsAsked = 0;
    this.aborted = new AbortController();
    const onError = (error) => {
      if (!error.unreachable) this.error = error;
    };
    this.load = context.loader(() => this.loadSeries(), { pauseMs: 3000, onError });
    this.loadMoment = context.loader(() => this.loadSnapshot(), { pauseMs: 120, onError });
    this.keys = {
      " ": { text: "Play or pause", run: () => this.togglePlay() },
      ",": { text: "Back", run: () => this.step(-1) },
      ".": { text: "Forward", run: () => this.step(1) },
      "<": { text: "To the event before", run: () => this.goToEventBefore() },
      End: { text: "Back to now", run: () => this.goTo(Infinity) },
    };
    this.load();
  }

  title() {
    return "History";
  }

  stop() {
    this.aborted.abort();
    clearInterval(this.playTimer);
    this.load.stop();
    this.loadMoment.stop();
  }

  onEvent(kind) {
    if (["hello", "gap", "changes", "ready"].includes(kind) && !this.moment) this.load();
  }

  /* Data */

  async loadSeries() {
    this.range = await get("/api/history/range", this.aborted.signal);
    if (!this.range.first) return;
    const [from, to] = this.bounds();
    const parameters = query({ since: toIso(from), until: toIso(to), points: 200 });
    this.series = await get(`/api/history/series${parameters}`, this.aborted.signal);
    this.error = null;
    this.loadMoment();
  }

  async loadSnapshot() {
    this.snapshotsAsked += 1;
    const turn = this.snapshotsAsked;
    const at = this.moment || this.range.last;
    const [snapshot, audit] = await Promise.all([
      get(`/api/history${query({ at, limit: 100 })}`, this.aborted.signal),
      get(`/api/audit${query({ until: at, limit: 40 })}`, this.aborted.signal),
    ]);
    if (turn !== this.snapshotsAsked) return; // an answer that came too late
    this.snapshot = snapshot;
    this.auditLines = audit.lines;
  }

  /* The shown span, in milliseconds: [from, to] */
  bounds() {
    const first = Date.parse(this.range.first);
    const last = Math.max(Date.parse(this.range.last), first + 1000);
    return this.span === "all" ? [first, last] : [Math.max(first, last - Number(this.span) * 1000), last];
  }

  /* Moving in time */

  goTo(milliseconds) {
    const [from, to] = this.bounds();
    this.moment = milliseconds >= to ? null : toIso(Math.max(milliseconds, from));
    const span = this.span === "all" ? null : this.span;
    this.context.go(`#/history${query({ at: this.moment, span })}`, { replace: true });
    this.loadMoment();
    this.context.redraw();
  }

  step(steps) {
    const [from, to] = this.bounds();
    const current = this.moment ? Date.parse(this.moment) : to;
    this.goTo(current + ((to - from) / SLIDER_STEPS) * steps);
  }

  goToEventBefore() {
    const current = Date.parse(this.moment || this.range.last);
    const before = (this.auditLines || []).map((line) => Date.parse(line.ts)).filter((time) => time < current);
    if (before.length) this.goTo(Math.max(...before));
  }

  togglePlay() {
    if (this.playTimer !== null) {
      clearInterval(this.playTimer);
      this.playTimer = null;
    } else {
      if (!this.moment) this.goTo(this.bounds()[0]);
      this.playTimer = setInterval(() => {
        this.step(2);
        if (!this.moment) this.togglePlay();
      }, PLAY_MS);
    }
    this.context.redraw();
  }

  selectSpan(span) {
    this.span = span;
    this.series = null;
    this.load();
    this.context.redraw();
  }

  /* View */

  actions() {
    return segments("Time shown", SPANS, this.span, (span) => this.selectSpan(span));
  }

  view() {
    if (this.error && !this.snapshot) return errorNote(this.error, this.load);
    if (!this.range) return loadingNote("Reading the audit log");
    if (!this.range.first) {
      const text = "The audit log begins with the first job.";
      return h("section.panel", emptyNote("No history yet", text, "farro enqueue -- true"));
    }
    return h(
      "div.stack",
      this.timeline(),
      h("div.two.uneven", h("div.stack", this.queuesPanel(), this.jobsPanel()), this.auditPanel()),
    );
  }

  /* "Queues now" or "Queues then" */
  titled(what) {
    return `${what} ${this.moment ? "then" : "now"}`;
  }

  timeline() {
    const [from, to] = this.bounds();
    const shown = this.moment ? clock(this.moment, true) : "now";
    const endsNow = !this.moment && Date.parse(this.range.last) >= now() - 60_000;
    const playing = this.playTimer !== null;
    const playButton = button("", () => this.togglePlay(), {
      icon: playing ? "waiting" : "play",
      kind: "icon",
      "aria-label": playing ? "Pause" : "Play from here",
      title: "Play (space)",
    });
    const actions = [
      legend(PRESENT_STATES.map((state) => [stateName(state), state])),
      playButton,
      this.moment ? button("Now", () => this.goTo(Infinity), { icon: "right" }) : null,
    ];
    return panel(
      "Queues over time",
      { note: shown, class: "scrubber", actions },
      h("div.track", this.areas(), this.slider(from, to, shown)),
      h(
        "div.row.small.quiet.num",
        h("span", clock(toIso(from), true)),
        h("span.end", endsNow ? "now" : clock(toIso(to), true)),
      ),
    );
  }

  areas() {
    const points = this.series ? this.series.points : [];
    if (points.length < 2) return loadingNote();
    const layers = PRESENT_STATES.map((state) => ({
      name: state,
      state,
      values: points.map((point) => point[state]),
    }));
    return stackedAreas({ label: "Jobs queued and running over time", layers });
  }

  slider(from, to, valueText) {
    const share = this.moment ? (Date.parse(this.moment) - from) / (to - from) : 1;
    const properties = {
      type: "range",
      min: 0,
      max: SLIDER_STEPS,
      step: 1,
      value: String(Math.round(share * SLIDER_STEPS)),
      "aria-label": "Moment shown",
      "aria-valuetext": valueText,
      on: { input: (event) => this.goTo(from + ((to - from) * Number(event.target.value)) / SLIDER_STEPS) },
    };
    return [
      h("i.needle", { "aria-hidden": "true", style: { left: `${share * 100}%` } }),
      h("input", properties),
    ];
  }

  queuesPanel() {
    const title = this.titled("Queues");
    if (!this.snapshot) return panel(title, {}, loadingNote());
    const { queues, whole, since } = this.snapshot;
    const roles = Object.entries(queues).filter(([, counts]) => Object.values(counts).some(Boolean));
    const note = whole ? "" : `the log begins ${clock(since, true)}`;
    if (!roles.length) return panel(title, { flush: true, note }, h("p.empty.quiet", "No jobs yet at that time."));
    const depth = (counts) => PRESENT_STATES.reduce((sum, state) => sum + (counts[state] || 0), 0);
    const deepest = Math.max(...roles.map(([, counts]) => depth(counts)), 1);
    const columns = [
      "Role",
      { text: "Share", hidden: true },
      ...[...PRESENT_STATES, ...ENDED_STATES].map((state) => ({ text: stateName(state), right: true })),
    ];
    const rows = roles.map(([role, counts]) => queueRow(role, counts, deepest));
    return panel(title, { flush: true, note }, h("div.scroll", table(columns, rows)));
  }

  jobsPanel() {
    if (!this.snapshot) return null;
    const { jobs, more } = this.snapshot;
    const title = this.titled("Jobs");
    const note = more ? `the first ${jobs.length}, ${plural(more, "other")}` : plural(jobs.length, "job");
    if (!jobs.length) {
      const nothing = h("p.empty.quiet.row", icon("history"), "No jobs at that time.");
      return panel(title, { flush: true, note }, nothing);
    }
    const columns = ["Job", "Role", "State", "Since", "Agent"];
    const list = scrollRegion("List of jobs", "taller", table(columns, jobs.map(jobRow)));
    return panel(title, { flush: true, note }, list);
  }

  auditPanel() {
    const title = this.moment ? "Events before this moment" : "Latest events";
    if (!this.auditLines) return panel(title, { flush: true }, loadingNote());
    const rows = this.auditLines.map((line, index) => this.auditRow(line, index));
    return panel(title, { flush: true }, scrollRegion("Audit log", "taller", table(null, rows)));
  }

  auditRow(line, index) {
    const onClick = () => this.goTo(Date.parse(line.ts));
    const time = h(
      "button.plain",
      { type: "button", title: "Go to this moment", on: { click: onClick } },
      clock(line.ts),
    );
    return h(
      "tr",
      { key: `${line.ts}${line.job_id}${index}` },
      h("td.num", time),
      h("td", h("span.strong", line.event)),
      h("td", line.job_id ? jobLink(line.job_id) : ""),
      h("td.mono.small.quiet.clip", line.actor || ""),
    );
  }
}

const toIso = (milliseconds) => new Date(milliseconds).toISOString();

function queueRow(role, counts, deepest) {
  const bar = (state) => {
    const width = `${((counts[state] || 0) / deepest) * 100}%`;
    return h("i", { key: state, "data-state": state, style: { width } });
  };
  return h(
    "tr",
    { key: role },
    h("th", { scope: "row" }, role),
    h("td.depth", h("span.bar", { "aria-hidden": "true" }, PRESENT_STATES.map(bar))),
    [...PRESENT_STATES, ...ENDED_STATES].map((state) =>
      h("td.right.num", { class: counts[state] ? "" : "quiet" }, count(counts[state] || 0)),
    ),
  );
}

function jobRow(job) {
  return h(
    "tr",
    { key: job.job_id },
    h("td", jobLink(job.job_id)),
    h("td", job.role),
    h("td", stateLabel(job.status)),
    h("td.num", job.since ? clock(job.since) : "–"),
    h("td.mono.small.soft", job.agent || ""),
  );
}
