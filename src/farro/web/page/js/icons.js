/* The icons, drawn on a grid of 16 × 16. A state has a shape of its own, so that colour is not the only difference. */
import { h } from "./view.js";

const outline = (...strokes) => ({ strokes, fills: [] });
const solid = (...fills) => ({ strokes: [], fills });

const CIRCLE = "M8 3a5 5 0 1 0 0 10 5 5 0 0 0 0-10z";
const DISC = "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11z";
const CHECK_MARK = "m2.95 3.7l.9.85-4.35 4.6-2.4-2.25.85-.9 1.5 1.4z";
const CROSS = "m-1.9 2.7l1.9 1.9 1.9-1.9.9.9-1.9 1.9 1.9 1.9-.9.9-1.9-1.9-1.9 1.9-.9-.9 1.9-1.9-1.9-1.9z";

const NAVIGATION = {
  overview: outline("M2.5 2.5h4.5v6h-4.5z", "M9 2.5h4.5v3.5h-4.5z", "M9 8h4.5v5.5h-4.5z", "M2.5 10.5h4.5v3h-4.5z"),
  board: outline("M2.5 2.5h3v11h-3z", "M7 2.5h3v7h-3z", "M11.5 2.5h2v9h-2z"),
  tasks: outline("M2.5 4l1 1 2-2", "M2.5 9l1 1 2-2", "M8 4.25h5.5", "M8 9.25h5.5", "M3 13.5h10.5"),
  inbox: outline("M2.5 9.5l2-6.5h7l2 6.5v4h-11z", "M2.5 9.5h3.5l.8 1.5h2.4l.8-1.5h3.5"),
  swarms: outline(
    "M8 2.25a1.75 1.75 0 1 0 0 3.5 1.75 1.75 0 0 0 0-3.5z",
    "M3.5 10.25a1.75 1.75 0 1 0 0 3.5 1.75 1.75 0 0 0 0-3.5z",
    "M12.5 10.25a1.75 1.75 0 1 0 0 3.5 1.75 1.75 0 0 0 0-3.5z",
    "M7 5.5l-2.6 4.9",
    "M9 5.5l2.6 4.9",
    "M5.25 12h5.5",
  ),
  history: outline("M2.75 8a5.25 5.25 0 1 1 1.6 3.77", "M2.5 12.75v-2.5h2.5", "M8 5v3.25l2.25 1.25"),
};

const TOOLS = {
  search: outline("M7 2.75a4.25 4.25 0 1 0 0 8.5 4.25 4.25 0 0 0 0-8.5z", "M10.25 10.25l3.25 3.25"),
  sun: outline(
    "M8 5.25a2.75 2.75 0 1 0 0 5.5 2.75 2.75 0 0 0 0-5.5z",
    "M8 1.5v1.25M8 13.25v1.25M1.5 8h1.25M13.25 8h1.25",
    "M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  ),
  moon: outline("M13.25 9.5a5.5 5.5 0 0 1-6.75-6.75 5.5 5.5 0 1 0 6.75 6.75z"),
  half: { fills: ["M8 2.5a5.5 5.5 0 1 0 0 11z"], strokes: ["M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11z"] },
  keyboard: outline("M1.75 4h12.5v8h-12.5z", "M4 6.5h.01M6.5 6.5h.01M9 6.5h.01M11.5 6.5h.01M5 9.5h6"),
  close: outline("M4 4l8 8M12 4l-8 8"),
  copy: outline("M5.5 5.5h7.5v7.5h-7.5z", "M3 10.5v-7.5h7.5"),
  retry: outline("M13.25 8a5.25 5.25 0 1 1-1.6-3.77", "M13.5 3.25v2.5h-2.5"),
  stop: outline("M4.5 4.5h7v7h-7z"),
  play: outline("M5 3.5l7 4.5-7 4.5z"),
  pause: outline("M5.5 3.5v9M10.5 3.5v9"),
  signOut: outline("M6.5 2.75h-4v10.5h4", "M6.25 8h7.25M10.75 5.25l2.75 2.75-2.75 2.75"),
  plus: outline("M8 3.5v9M3.5 8h9"),
  right: outline("M6.25 3.75l4.25 4.25-4.25 4.25"),
  down: outline("M3.75 6.25l4.25 4.25 4.25-4.25"),
  file: outline("M4 2.5h5l3 3v8h-8z", "M9 2.5v3h3"),
  download: outline("M8 2.5v7.5M5 7.25l3 3 3-3M3 13.25h10"),
  alert: outline("M8 2.5l6 11h-12z", "M8 6.5v3.25", "M8 11.75h.01"),
  flag: outline("M4 14v-11.5h7.5l-1.5 3 1.5 3h-7.5"),
};

const STATES = {
  queued: outline(CIRCLE),
  delayed: outline(CIRCLE, "M8 5.5v2.75l1.75 1"),
  waiting: outline(CIRCLE, "M6.75 6.25v3.5M9.25 6.25v3.5"),
  in_progress: { fills: ["M8 5a3 3 0 0 1 0 6z"], strokes: [CIRCLE] },
  succeeded: solid(DISC + CHECK_MARK),
  failed: solid(DISC + CROSS),
  stale: outline("M8 2.75l5.5 10h-11z", "M8 6.5v3", "M8 11.25h.01"),
  killed: outline(CIRCLE, "M4.5 11.5l7-7"),
  skipped: outline(CIRCLE, "M5.5 8h5"),
};

/* States of workers, swarms and notes that are drawn as one of the states of a job. */
const DRAWN_AS = {
  running: "in_progress",
  starting: "in_progress",
  busy: "in_progress",
  pending: "queued",
  idle: "queued",
  ok: "succeeded",
  ready: "succeeded",
  error: "failed",
  dead: "failed",
  warning: "stale",
  degraded: "stale",
  stopped: "killed",
  stopping: "waiting",
  paused: "waiting",
  unknown: "skipped",
  gone: "skipped",
};

const ICONS = { ...NAVIGATION, ...TOOLS, ...STATES };

const STROKE = {
  stroke: "currentColor",
  "stroke-width": 1.4,
  "stroke-linecap": "round",
  "stroke-linejoin": "round",
};

export function icon(name, size = 16, properties = {}) {
  const drawnAs = DRAWN_AS[name] || name;
  const { strokes, fills } = Object.hasOwn(ICONS, drawnAs) ? ICONS[drawnAs] : STATES.skipped;
  return h(
    "svg",
    {
      viewBox: "0 0 16 16",
      width: size,
      height: size,
      fill: "none",
      "aria-hidden": "true",
      focusable: "false",
      ...properties,
    },
    strokes.map((d) => h("path", { d, ...STROKE })),
    fills.map((d) => h("path", { d, fill: "currentColor", "fill-rule": "evenodd" })),
  );
}

/* The icon of a state. It turns while something happens. */
export const stateIcon = (state, size, moving) => icon(state, size, moving ? { class: "spin" } : {});

const LOGO = [
  "M16 2c3 2.7 3 6.1 0 8.8-3-2.7-3-6.1 0-8.8z",
  "M15 17.5c-4.3.2-7-1.9-7.3-5.8 4.3-.2 7 1.9 7.3 5.8z",
  "M17 17.5c4.3.2 7-1.9 7.3-5.8-4.3-.2-7 1.9-7.3 5.8z",
  "M15 25c-4.3.2-7-1.9-7.3-5.8 4.3-.2 7 1.9 7.3 5.8z",
  "M17 25c4.3.2 7-1.9 7.3-5.8-4.3-.2-7 1.9-7.3 5.8z",
  "M15.2 9.5h1.6v20.5h-1.6z",
];

export function logo(size = 20) {
  const properties = { viewBox: "0 0 32 32", width: size, height: size, fill: "currentColor", "aria-hidden": "true" };
  return h("svg", properties, LOGO.map((d) => h("path", { d })));
}
