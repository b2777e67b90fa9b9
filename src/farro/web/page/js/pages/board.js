/* The board: a lane for each state, jobs as cards that move. A lane holds a page of cards, however many jobs there are;
 * its number comes from the counts. */
import { act, doToMany, possible } from "../acts.js";
import { get, query } from "../api.js";
import { icon } from "../icons.js";
import { newJob } from "../new_job.js";
import { button, failure, jobAddress, pausedWords, standing, state } from "../parts.js";
import { h } from "../view.js";
import { ago, coarse, count, many, said, shortId, since, tinyId } from "../words.js";

const LANES = ["queued", "in_progress", "stale", "failed", "succeeded", "killed"];
const PAGE = 25;
const MOST = 250; // cards of one lane; more is a search, not a board
const HINTS = {
  queued: "Nothing waits.", in_progress: "Nobody works.", stale: "No agent was lost.", failed: "Nothing failed.", succeeded: "Nothing has ended yet.", killed: "Nothing was killed.",
};
const still = matchMedia("(prefers-reduced-motion: reduce)");

export function board(ctx, route) {
  const filter = { text: route.query.get("text") || "", roles: route.query.getAll("role"), statuses: route.query.getAll("status"), tag: route.query.get("tag") || "" };
  const lanes = new Map(LANES.map((status) => [status, { status, jobs: null, next: null, total: null, error: null, wanted: PAGE }]));
  const picked = new Set();
  const fresh = new Map(); // job id → when it came into its lane
  const aborted = new AbortController();
  let stopped = false;
  let places = null;
  let lastPicked = null;

  async function load(lane) {
    const asked = JSON.stringify(filter);
    try {
      const told = await get(`/api/jobs${query({ status: lane.status, role: filter.roles, text: filter.text, tag: filter.tag, limit: lane.wanted, order: lane.status === "queued" ? "oldest" : "changed" })}`, aborted.signal);
      if (stopped || asked !== JSON.stringify(filter)) return;
      Object.assign(lane, { jobs: told.jobs, next: told.next, total: told.total, error: null });
    } catch (error) {
      if (error.name === "AbortError") return;
      ctx.failed(error);
      if (error.status !== 0) lane.error = error;
    }
    ctx.redraw();
  }
  const loads = new Map(LANES.map((status) => [status, ctx.paced(() => load(lanes.get(status)), 1000)]));
  const shownLanes = () => LANES.filter((status) => !filter.statuses.length || filter.statuses.includes(status));
  const all = () => { for (const status of shownLanes()) loads.get(status)(); };
  all();

  function refilter() {
    picked.clear();
    for (const lane of lanes.values()) { lane.wanted = PAGE; lane.total = null; }
    ctx.go(`#/board${query({ text: filter.text, role: filter.roles, status: filter.statuses, tag: filter.tag })}`, { replace: true });
    all();
    ctx.redraw();
  }
  let typing = 0;
  const typed = (event) => { filter.text = event.target.value; clearTimeout(typing); typing = setTimeout(refilter, 180); };

  /* The card moves at once; its lanes are read again after. */
  function moved(changes) {
    for (const { job_id: id, role, status, was } of changes) {
      if (filter.roles.length && !filter.roles.includes(role)) continue;
      for (const touched of new Set([status, was])) if (loads.has(touched) && shownLanes().includes(touched)) loads.get(touched)();
      for (const lane of lanes.values()) {
        if (lane.status === status || !lane.jobs) continue;
        const at = lane.jobs.findIndex((row) => row.job_id === id);
        if (at < 0) continue;
        const [row] = lane.jobs.splice(at, 1);
        const goal = lanes.get(status);
        if (goal && goal.jobs && !goal.jobs.some((one) => one.job_id === id)) {
          goal.jobs[status === "queued" ? "push" : "unshift"]({ ...row, status, role, updated_at: new Date().toISOString() });
          goal.jobs.length = Math.min(goal.jobs.length, MOST);
        }
      }
      fresh.set(id, Date.now());
      if (status === "gone") picked.delete(id);
    }
    if (fresh.size > 2000) for (const [id, at] of fresh) if (Date.now() - at > 2000) fresh.delete(id);
  }

  const rows = () => shownLanes().flatMap((status) => lanes.get(status).jobs || []);
  function pick(id, event) {
    const order = rows().map((row) => row.job_id);
    if (event && event.shiftKey && lastPicked && order.includes(lastPicked)) {
      const [from, to] = [order.indexOf(lastPicked), order.indexOf(id)].sort((a, b) => a - b);
      for (const one of order.slice(from, to + 1)) picked.add(one);
    } else if (picked.has(id)) picked.delete(id);
    else picked.add(id);
    lastPicked = id;
    ctx.redraw();
  }

  const cards = () => [...document.querySelectorAll(".card a.open")];
  function walk(step) {
    const list = cards();
    const at = list.indexOf(document.activeElement);
    (list[at < 0 ? 0 : Math.min(Math.max(at + step, 0), list.length - 1)])?.focus();
  }
  function across(step) {
    const columns = [...document.querySelectorAll(".lane")].map((lane) => [...lane.querySelectorAll(".card a.open")]);
    const at = columns.findIndex((column) => column.includes(document.activeElement));
    const row = at < 0 ? 0 : columns[at].indexOf(document.activeElement);
    for (let next = at + step; next >= 0 && next < columns.length; next += step) {
      if (columns[next].length) { columns[next][Math.min(row, columns[next].length - 1)].focus(); return; }
    }
  }
  const focused = () => document.activeElement?.closest?.(".card")?.dataset.job;

  if (route.query.get("find")) requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("input[type=search]")?.focus()));

  return {
    title: () => "Board",
    stop: () => { stopped = true; aborted.abort(); clearTimeout(typing); for (const one of loads.values()) one.stop(); },
    keys: {
      j: { told: "Next card", run: () => walk(1) }, k: { told: "Card before", run: () => walk(-1) },
      l: { told: "Lane to the right", run: () => across(1) }, h: { told: "Lane to the left", run: () => across(-1) },
      x: { told: "Select the card", run: () => focused() && pick(focused()) },
      K: { told: "Kill the selected", run: () => picked.size && bulk("kill") },
      R: { told: "Retry the selected", run: () => picked.size && bulk("retry") },
      n: { told: "New job", run: () => newJob(ctx) },
      Escape: { told: "Clear the selection", run: () => picked.clear() },
    },
    actions: () => !ctx.readOnly() && button("New job", () => newJob(ctx), { kind: "primary", sign: "plus", title: "New job (n)" }),
    heard(kind, data) {
      if (kind === "changes") moved(data.jobs);
      else if (["hello", "gap", "ready"].includes(kind)) all();
    },
    before() {
      if (still.matches) return;
      places = new Map([...document.querySelectorAll(".card")].map((card) => [card.dataset.job, card.getBoundingClientRect()]));
    },
    after() {
      if (!places || !places.size) return;
      for (const card of document.querySelectorAll(".card")) {
        const from = places.get(card.dataset.job);
        if (!from || !fresh.has(card.dataset.job)) continue;
        const to = card.getBoundingClientRect();
        const [dx, dy] = [from.left - to.left, from.top - to.top];
        if (Math.abs(dx) > 40) card.animate([{ transform: `translate(${dx}px, ${dy}px)`, zIndex: 5 }, { transform: "none" }], { duration: 260, easing: "cubic-bezier(.2,.8,.2,1)" });
      }
    },
    view() {
      const { queues } = ctx.shared;
      const roles = ctx.shared.info ? ctx.shared.info.roles : [];
      return h("div.board", { class: picked.size ? "picking" : "" }, tools(roles), bar(), h("div.columns", { style: { "--lanes": shownLanes().map((status) => (lanes.get(status).jobs && !lanes.get(status).jobs.length ? "minmax(7.75rem, 0.5fr)" : "minmax(10.5rem, 1fr)")).join(" ") } }, shownLanes().map((status) => column(lanes.get(status), queues))));
    },
  };

  async function bulk(name) {
    if (await doToMany(name, [...picked])) { picked.clear(); all(); }
    ctx.redraw();
  }

  function tools(roles) {
    const toggle = (status) => {
      filter.statuses = filter.statuses.includes(status) ? filter.statuses.filter((one) => one !== status) : [...filter.statuses, status];
      refilter();
    };
    return h("div.row.wrap.tools", { role: "search", "aria-label": "Filter jobs" },
      h("div.search", icon("search", 14), h("input.input", { type: "search", "aria-label": "Search jobs by id, name, title or error", placeholder: "Search", value: filter.text, on: { input: typed }, autocomplete: "off" }), h("kbd", { "aria-hidden": "true" }, "/")),
      h("select.input.narrow", { "aria-label": "Role", value: filter.roles[0] || "", on: { change: (event) => { filter.roles = event.target.value ? [event.target.value] : []; refilter(); } } },
        h("option", { value: "" }, "All roles"), roles.map((role) => h("option", { key: role, value: role }, role))),
      h("div.row.wrap", { role: "group", "aria-label": "States shown" }, LANES.map((status) => h("button.button.ghost", { key: status, type: "button", "aria-pressed": String(filter.statuses.includes(status)), on: { click: () => toggle(status) } }, h("span.state", { "data-state": status }, icon(status, 14)), said(status)))),
      filter.tag ? h("button.tag", { type: "button", title: "Remove this filter", on: { click: () => { filter.tag = ""; refilter(); } } }, `tag ${filter.tag} ×`) : null,
      filter.text || filter.roles.length || filter.statuses.length || filter.tag ? button("Clear", () => { Object.assign(filter, { text: "", roles: [], statuses: [], tag: "" }); refilter(); }, { kind: "ghost", sign: "close" }) : null);
  }

  function bar() {
    if (!picked.size) return null;
    const some = rows().filter((row) => picked.has(row.job_id));
    const acts = ctx.readOnly() ? [] : [...new Set(some.flatMap(possible))];
    return h("div.picked", { role: "region", "aria-label": "Selected jobs", key: "picked" },
      h("strong.num", `${picked.size} selected`),
      acts.map((name) => button(act(name).word, () => bulk(name), { key: name, kind: act(name).danger ? "danger" : "", sign: act(name).sign })),
      button("Clear", () => { picked.clear(); ctx.redraw(); }, { kind: "ghost", sign: "close" }));
  }

  function column(lane, queues) {
    const counted = queues ? queues.filter((queue) => !filter.roles.length || filter.roles.includes(queue.role)).reduce((sum, queue) => sum + queue[lane.status] + (lane.status === "queued" ? queue.delayed + queue.waiting : 0), 0) : null;
    const narrowed = filter.text || filter.tag;
    const number = narrowed ? (lane.jobs ? `${lane.jobs.length}${lane.next ? "+" : ""}` : "–") : count(counted ?? lane.total);
    const shown = lane.jobs || [];
    const chosen = shown.filter((row) => picked.has(row.job_id)).length;
    /* What the box says is what counts: by now the lane may hold other cards than when it was drawn. */
    const pickAll = (event) => { for (const row of lane.jobs || []) { if (event.target.checked) picked.add(row.job_id); else picked.delete(row.job_id); } ctx.redraw(); };
    return h("section.lane", { key: lane.status, "data-state": lane.status, "aria-labelledby": `lane-${lane.status}` },
      h("header", h("input", { type: "checkbox", "aria-label": `Select the shown jobs of ${said(lane.status)}`, checked: chosen > 0 && chosen === shown.length, indeterminate: chosen > 0 && chosen < shown.length, disabled: !shown.length, on: { change: pickAll } }), h("h2", { id: `lane-${lane.status}` }, state(lane.status)), h("span.num.quiet.end", { "data-count": lane.status }, number)),
      lane.status === "queued" ? halted(queues) : null,
      lane.error ? failure(lane.error, () => loads.get(lane.status)()) : null,
      lane.jobs === null ? h("p.none", { "aria-busy": "true" }, "Loading …") : lane.jobs.length ? h("ol", { "aria-label": `${said(lane.status)} jobs` }, lane.jobs.map(card)) : h("p.none", narrowed ? "No match." : HINTS[lane.status]),
      lane.next && lane.jobs && lane.jobs.length ? (lane.wanted < MOST ? button(`Show more`, () => { lane.wanted = Math.min(lane.wanted * 2, MOST); loads.get(lane.status)(); }, { kind: "ghost", "aria-label": `Show more of ${said(lane.status)}` }) : h("p.none", `The first ${MOST}. Search or filter for others.`)) : null);
  }

  function halted(queues) {
    const paused = (queues || []).filter((queue) => queue.paused && queue.queued + queue.delayed + queue.waiting && (!filter.roles.length || filter.roles.includes(queue.role)));
    return paused.length ? h("ul.halted.small", { "aria-label": "Paused queues" }, paused.map((queue) => h("li", { key: queue.role, title: `Paused ${pausedWords(queue.paused)}` }, state("paused", { text: `${queue.role} is paused`, size: 12 })))) : null;
  }

  function card(row) {
    const how = standing(row);
    const late = Date.now() - (fresh.get(row.job_id) || 0) < 1500;
    return h("li.card", { key: row.job_id, "data-job": row.job_id, class: `${picked.has(row.job_id) ? "chosen" : ""}${late ? " fresh" : ""}`, "data-state": how },
      h("div.row", h("a.open.clip", { href: jobAddress(row.job_id), title: row.title }, row.title || row.name || shortId(row.job_id)),
        h("input.end", { type: "checkbox", "aria-label": `Select ${row.title || row.job_id}`, checked: picked.has(row.job_id), on: { click: (event) => pick(row.job_id, event) } })),
      row.error && row.status !== "succeeded" ? h("p.why.small", { title: row.error.message }, row.error.message || row.error.category) : null,
      h("div.row.small.quiet.meta", h("span.mono.clip.id", { title: row.job_id }, row.name || tinyId(row.job_id)), filter.roles.length === 1 ? null : h("span.clip", row.role), row.attempt > 1 ? h("span.num", { title: `Attempt ${row.attempt}` }, `×${row.attempt}`) : null,
        row.priority && !["P2", "normal"].includes(row.priority) ? h("span.tag", row.priority) : null,
        (row.tags || []).slice(0, 2).map((tag) => h("span.tag", { key: tag }, tag)),
        h("span.end.num", timing(row, how))));
  }
}

const brief = (at) => h("time.num", { datetime: at, title: ago(at) }, coarse(Math.max(since(at), 0)));

function timing(row, how) {
  if (how === "waiting") return row.person ? state("waiting", { text: "you", size: 12 }) : state("waiting", { text: many(row.waits_for.length, "job"), size: 12 });
  if (how === "delayed") return state("delayed", { text: ago(row.not_before), size: 12 });
  if (row.status === "in_progress") return coarse(Math.max(since(row.updated_at), 0));
  return brief(row.status === "queued" ? row.enqueued_at : row.finalized_at || row.updated_at);
}
