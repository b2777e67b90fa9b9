/* Parts that several pages show: states, moments, panels, empty places. What they contain is decided by the pages. */
import { icon } from "./icons.js";
import { toast } from "./overlay.js";
import { h } from "./view.js";
import { ago, clock, said, shortId } from "./words.js";

/* How a job stands, said more closely than its status: queued may mean delayed, or waiting for somebody. */
export function standing(row) {
  if (row.status !== "queued") return row.status;
  if (row.person || (row.waits_for && row.waits_for.length)) return "waiting";
  if (row.not_before && Date.parse(row.not_before) > Date.now()) return "delayed";
  return "queued";
}

export function state(name, { chip = false, text = null, size = 14 } = {}) {
  const moving = ["in_progress", "running", "starting", "stopping"].includes(name);
  return h("span.state", { class: chip ? "chip" : "", "data-state": name }, icon(name, size, moving ? { class: "spin" } : {}), text || said(name));
}

export const moment = (text) => (text ? h("time.num", { datetime: text, title: clock(text, true) }, ago(text)) : h("span.quiet", "–"));

/* A queue that gives out no job: since when, by whom, why. */
export const pausedWords = ({ at, by, why }) => `${at ? `${ago(at)} ` : ""}by ${by}${why ? `: ${why}` : ""}`;

export const jobAddress = (id) => `#/job/${encodeURIComponent(id)}`;
export const jobLink = (id, text) => h("a.mono", { href: jobAddress(id), title: id }, text || shortId(id));

export function panel(title, options, ...body) {
  const { note, actions, flush, id, ...others } = options || {};
  const heading = id || `p-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return h("section.panel", { "aria-labelledby": heading, ...others },
    h("header", h("h2", { id: heading }, title), note && h("span.note", note), actions && h("div.row.end", actions)),
    h("div.body", { class: flush ? "flush" : "" }, body));
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("ok", "Copied");
  } catch {
    toast("warning", `Not copied: the browser refused. ${text}`);
  }
}

export const copyButton = (text, label) =>
  h("button.button.ghost.icon", { type: "button", "aria-label": label || `Copy ${text}`, title: "Copy", on: { click: () => copy(text) } }, icon("copy", 14));

export const command = (text) => h("span.command", h("span.clip", { title: text }, text), copyButton(text, `Copy the command ${text}`));

export const empty = (title, told, ...commands) =>
  h("div.empty", h("h3", title), told && h("p", told), commands.filter(Boolean).map((one) => command(one)));

export const loading = (what = "Loading") => h("p.empty", { "aria-busy": "true" }, `${what} …`);

export const failure = (error, again) =>
  h("div.stack.tight", h("p.error", { role: "alert" }, error.message), again && h("div", h("button.button", { type: "button", on: { click: again } }, icon("retry", 14), "Try again")));

export function segments(label, options, chosen, choose) {
  return h("div.segments", { role: "group", "aria-label": label },
    options.map(([value, text]) => h("button", { key: value, type: "button", "aria-pressed": String(value === chosen), on: { click: () => choose(value) } }, text)));
}

/* Tabs by the pattern of the ARIA practices: one stop in the tab order, arrows move. */
export function tabs(label, options, chosen, choose) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = options.findIndex(([value]) => value === chosen);
    const next = options[(at + step + options.length) % options.length][0];
    choose(next);
    requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
  };
  return h("div.tabs", { role: "tablist", "aria-label": label, on: { keydown: move } },
    options.map(([value, text, number]) => h("button", {
      key: value, id: `tab-${value}`, type: "button", role: "tab", "aria-selected": String(value === chosen), "aria-controls": "tab-shown",
      tabindex: value === chosen ? 0 : -1, on: { click: () => choose(value) },
    }, text, number ? h("span.count.num", number) : null)));
}

export const facts = (pairs) => h("dl.facts", pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", name), h("dd", value)]));

export const button = (text, click, { kind = "", sign = null, ...others } = {}) =>
  h("button.button", { type: "button", class: kind, on: { click }, ...others }, sign && icon(sign, 14), text);
