/* Building blocks that several pages use: states, times, panels, tables, buttons, notes. */
import { toast } from "./dialogs.js";
import { ago, clock, shortId, stateName } from "./format.js";
import { icon, stateIcon } from "./icons.js";
import { h } from "./view.js";

const MOVING_STATES = new Set(["in_progress", "running", "starting", "stopping"]);

/* The state of a job, closer than its status: a queued job may be delayed, or waiting for a person or other jobs. */
export function jobState(job) {
  if (job.status !== "queued") return job.status;
  if (job.person || (job.waits_for && job.waits_for.length)) return "waiting";
  if (job.not_before && Date.parse(job.not_before) > Date.now()) return "delayed";
  return "queued";
}

export function stateLabel(state, { chip = false, text = null, size = 14 } = {}) {
  return h(
    "span.state",
    { class: chip ? "chip" : "", "data-state": state },
    stateIcon(state, size, MOVING_STATES.has(state)),
    text || stateName(state),
  );
}

export function timeAgo(moment) {
  if (!moment) return h("span.quiet", "–");
  return h("time.num", { datetime: moment, title: clock(moment, true) }, ago(moment));
}

/* When a queue was paused, by whom, and why. */
export function pauseText({ at, by, why }) {
  const when = at ? `${ago(at)} ` : "";
  return `${when}by ${by}${why ? `: ${why}` : ""}`;
}

export const jobAddress = (id) => `#/job/${encodeURIComponent(id)}`;
export const taskAddress = (id) => `#/task/${encodeURIComponent(id)}`;
export const jobLink = (id, text) => h("a.mono", { href: jobAddress(id), title: id }, text || shortId(id));

/* A titled box. options: { note, actions, flush: no padding, …properties of the section } */
export function panel(title, options, ...body) {
  const { note, actions, flush, ...properties } = options || {};
  const id = `p-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return h(
    "section.panel",
    { "aria-labelledby": id, ...properties },
    h("header", h("h2", { id }, title), note && h("span.note", note), actions && h("div.row.end", actions)),
    h("div.body", { class: flush ? "flush" : "" }, body),
  );
}

/* columns: texts, or { text, right, hidden: only for screen readers }; null without a head. rows: "tr" nodes. */
export function table(columns, rows, properties = {}) {
  return h(
    "table.table",
    properties,
    columns && h("thead", h("tr", columns.filter(Boolean).map(columnHead))),
    h("tbody", rows),
  );
}

function columnHead(column) {
  if (typeof column === "string") return h("th", { scope: "col" }, column);
  const { text, right, hidden } = column;
  return h("th", { scope: "col", class: right ? "right" : "" }, hidden ? h("span.unseen", text) : text);
}

/* A part of the page that scrolls by itself, also by the keyboard. */
export const scrollRegion = (label, size, content) =>
  h("div.scroll", { class: size, tabindex: 0, role: "region", "aria-label": label }, content);

export function button(text, onClick, { kind = "", icon: name = null, ...properties } = {}) {
  return h(
    "button.button",
    { type: "button", class: kind, on: { click: onClick }, ...properties },
    name && icon(name, 14),
    text,
  );
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("ok", "Copied");
  } catch {
    toast("warning", `Not copied: the browser refused. ${text}`);
  }
}

export function copyButton(text, label) {
  const properties = { kind: "ghost icon", icon: "copy", "aria-label": label || `Copy ${text}`, title: "Copy" };
  return button("", () => copyText(text), properties);
}

/* A command to type at a shell, with a button that copies it. */
export const shellCommand = (text) =>
  h("span.command", h("span.clip", { title: text }, text), copyButton(text, `Copy the command ${text}`));

export const emptyNote = (title, text, ...commands) =>
  h("div.empty", h("h3", title), text && h("p", text), commands.map(shellCommand));

export const loadingNote = (text = "Loading") => h("p.empty", { "aria-busy": "true" }, `${text} …`);

export function errorNote(error, retry) {
  return h(
    "div.stack.tight",
    h("p.error", { role: "alert" }, error.message),
    retry && h("div", button("Try again", retry, { icon: "retry" })),
  );
}

/* Buttons of which one is pressed. options: [[value, text]] */
export function segments(label, options, selected, select) {
  return h(
    "div.segments",
    { role: "group", "aria-label": label },
    options.map(([value, text]) =>
      h(
        "button",
        { key: value, type: "button", "aria-pressed": String(value === selected), on: { click: () => select(value) } },
        text,
      ),
    ),
  );
}

/* Tabs by the pattern of the ARIA practices: one stop in the tab order, arrow keys move between them.
 * options: [[value, text, count]] */
export function tabs(label, options, selected, select) {
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const index = options.findIndex(([value]) => value === selected);
    const [next] = options[(index + step + options.length) % options.length];
    select(next);
    requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
  };
  return h(
    "div.tabs",
    { role: "tablist", "aria-label": label, on: { keydown: onKey } },
    options.map(([value, text, number]) =>
      h(
        "button",
        {
          key: value,
          id: `tab-${value}`,
          type: "button",
          role: "tab",
          "aria-selected": String(value === selected),
          "aria-controls": "tab-shown",
          tabindex: value === selected ? 0 : -1,
          on: { click: () => select(value) },
        },
        text,
        number ? h("span.count.num", number) : null,
      ),
    ),
  );
}

/* A list of names and values: [[name, value]]. A name without a value is left out. */
export function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl.facts", present.map(([name, value]) => [h("dt", name), h("dd", value)]));
}
