/* History: the audit log scrubbed back in time, and the queues as they were. */
import { get, query } from "../api.js";
import { areas, legend } from "../charts.js";
import { icon } from "../icons.js";
import { button, empty, failure, jobLink, loading, panel, segments, state } from "../parts.js";
import { h } from "../view.js";
import { clock, count, many, now, said } from "../words.js";

const SHOWN = ["in_progress", "queued", "stale"];
const ENDED = ["succeeded", "failed", "killed"];
const SPANS = [["900", "15m"], ["3600", "1h"], ["86400", "24h"], ["604800", "7d"], ["all", "All"]];
const STEPS = 400;
const PLAY_MS = 250;

export function history(ctx, route) {
  const page = { range: null, series: null, at: route.query.get("at"), seen: null, lines: null, span: route.query.get("span") || "all", error: null, playing: 0 };
  const aborted = new AbortController();
  let asked = 0;

  const bounds = () => {
    const first = Date.parse(page.range.first);
    const last = Math.max(Date.parse(page.range.last), first + 1000);
    return page.span === "all" ? [first, last] : [Math.max(first, last - Number(page.span) * 1000), last];
  };
  const iso = (ms) => new Date(ms).toISOString();

  const begin = ctx.paced(async () => {
    try {
      page.range = await get("/api/history/range", aborted.signal);
      if (page.range.first) {
        const [from, to] = bounds();
        page.series = await get(`/api/history/series${query({ since: iso(from), until: iso(to), points: 200 })}`, aborted.signal);
        page.error = null;
        look();
      }
    } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  }, 3000);
  begin();

  const look = ctx.paced(async () => {
    const turn = (asked += 1);
    const at = page.at || page.range.last;
    try {
      const [seen, audit] = await Promise.all([get(`/api/history${query({ at, limit: 100 })}`, aborted.signal), get(`/api/audit${query({ until: at, limit: 40 })}`, aborted.signal)]);
      if (turn !== asked) return;
      page.seen = seen;
      page.lines = audit.lines;
    } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  }, 120);

  function move(ms) {
    const [from, to] = bounds();
    page.at = ms >= to ? null : iso(Math.max(ms, from));
    ctx.go(`#/history${query({ at: page.at, span: page.span === "all" ? null : page.span })}`, { replace: true });
    look();
    ctx.redraw();
  }
  const position = () => { const [from, to] = bounds(); return page.at ? (Date.parse(page.at) - from) / (to - from) : 1; };
  const step = (parts) => { const [from, to] = bounds(); move((page.at ? Date.parse(page.at) : to) + ((to - from) / STEPS) * parts); };
  function play() {
    if (page.playing) { clearInterval(page.playing); page.playing = 0; }
    else {
      if (!page.at) move(bounds()[0]);
      page.playing = setInterval(() => { step(2); if (!page.at) play(); }, PLAY_MS);
    }
    ctx.redraw();
  }
  const span = (value) => { page.span = value; page.series = null; begin(); ctx.redraw(); };
  const then = (what) => `${what} ${page.at ? "then" : "now"}`;
  const toEvent = (direction) => {
    const at = Date.parse(page.at || page.range.last);
    const times = (page.lines || []).map((line) => Date.parse(line.ts));
    const before = times.filter((time) => time < at);
    if (direction < 0 && before.length) move(Math.max(...before));
  };

  return {
    title: () => "History",
    keys: { " ": { told: "Play or pause", run: play }, ",": { told: "Back", run: () => step(-1) }, ".": { told: "Forward", run: () => step(1) }, "<": { told: "To the event before", run: () => toEvent(-1) }, End: { told: "Back to now", run: () => move(Infinity) } },
    actions: () => segments("Time shown", SPANS, page.span, span),
    heard(kind) { if (["hello", "gap", "changes", "ready"].includes(kind) && !page.at) begin(); },
    stop: () => { aborted.abort(); clearInterval(page.playing); begin.stop(); look.stop(); },
    view() {
      if (page.error && !page.seen) return failure(page.error, begin);
      if (!page.range) return loading("Reading the audit log");
      if (!page.range.first) return h("section.panel", empty("No history yet", "The audit log begins with the first job.", "farro enqueue -- true"));
      return h("div.stack", scrubber(), h("div.two.uneven", h("div.stack", queues(), jobs()), lines()));
    },
  };

  function scrubber() {
    const [from, to] = bounds();
    const points = page.series ? page.series.points : [];
    return panel("Queues over time", {
      note: page.at ? clock(page.at, true) : "now", class: "scrubber",
      actions: [legend(SHOWN.map((name) => [said(name), name])), button("", play, { sign: page.playing ? "waiting" : "play", kind: "icon", "aria-label": page.playing ? "Pause" : "Play from here", title: "Play (space)" }), page.at ? button("Now", () => move(Infinity), { sign: "right" }) : null],
    },
      h("div.track", points.length > 1 ? areas({ label: "Jobs queued and running over time", points, layers: SHOWN.map((name) => ({ name, state: name, values: points.map((point) => point[name]) })) }) : loading(),
        h("i.needle", { "aria-hidden": "true", style: { left: `${position() * 100}%` } }),
        h("input", { type: "range", min: 0, max: STEPS, step: 1, value: String(Math.round(position() * STEPS)), "aria-label": "Moment shown", "aria-valuetext": page.at ? clock(page.at, true) : "now", on: { input: (event) => move(from + ((to - from) * Number(event.target.value)) / STEPS) } })),
      h("div.row.small.quiet.num", h("span", clock(iso(from), true)), h("span.end", page.at || Date.parse(page.range.last) < now() - 60_000 ? clock(iso(to), true) : "now")));
  }

  function queues() {
    const seen = page.seen;
    if (!seen) return panel(then("Queues"), {}, loading());
    const roles = Object.entries(seen.queues).filter(([, counts]) => Object.values(counts).some(Boolean));
    const most = Math.max(...roles.map(([, counts]) => SHOWN.reduce((sum, name) => sum + (counts[name] || 0), 0)), 1);
    return panel(then("Queues"), { flush: true, note: seen.whole ? "" : `the log begins ${clock(seen.since, true)}` }, roles.length ? h("div.scroll", h("table.table",
      h("thead", h("tr", h("th", { scope: "col" }, "Role"), h("th", { scope: "col" }, h("span.unseen", "Share")), [...SHOWN, ...ENDED].map((name) => h("th.right", { scope: "col" }, said(name))))),
      h("tbody", roles.map(([role, counts]) => h("tr", { key: role }, h("th", { scope: "row" }, role),
        h("td.depth", h("span.bar", { "aria-hidden": "true" }, SHOWN.map((name) => h("i", { key: name, "data-state": name, style: { width: `${((counts[name] || 0) / most) * 100}%` } })))),
        [...SHOWN, ...ENDED].map((name) => h("td.right.num", { class: counts[name] ? "" : "quiet" }, count(counts[name] || 0)))))))) : h("p.empty.quiet", "No jobs yet at that time."));
  }

  function lines() {
    return panel(page.at ? "What had just happened" : "What happened last", { flush: true }, page.lines ? h("div.scroll.taller", { tabindex: 0, role: "region", "aria-label": "Audit log" }, h("table.table", h("tbody", page.lines.map((line, i) => h("tr", { key: `${line.ts}${line.job_id}${i}` }, h("td.num", h("button.plain", { type: "button", title: "Go to this moment", on: { click: () => move(Date.parse(line.ts)) } }, clock(line.ts))), h("td", h("span.strong", line.event)), h("td", line.job_id ? jobLink(line.job_id) : ""), h("td.mono.small.quiet.clip", line.actor || "")))))) : loading());
  }

  function jobs() {
    const seen = page.seen;
    if (!seen) return null;
    return panel(then("Jobs"), { flush: true, note: seen.more ? `the first ${seen.jobs.length}, ${many(seen.more, "other")}` : many(seen.jobs.length, "job") }, seen.jobs.length ? h("div.scroll.taller", { tabindex: 0, role: "region", "aria-label": "List of jobs" }, h("table.table",
      h("thead", h("tr", ["Job", "Role", "State", "Since", "Agent"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", seen.jobs.map((one) => h("tr", { key: one.job_id }, h("td", jobLink(one.job_id)), h("td", one.role), h("td", state(one.status)), h("td.num", one.since ? clock(one.since) : "–"), h("td.mono.small.soft", one.agent || "")))))) : h("p.empty.quiet.row", icon("history"), "Nothing was there at that time."));
  }
}
