/* Small charts in SVG. Each has its figures in its label too, for screen readers. */
import { count, duration, roughDuration, shortClock } from "./format.js";
import { h } from "./view.js";

const WIDTH = 600;
const HEIGHT = 150;
const PADDING = { left: 44, right: 6, top: 8, bottom: 20 };
const PLOT_WIDTH = WIDTH - PADDING.left - PADDING.right;
const PLOT_HEIGHT = HEIGHT - PADDING.top - PADDING.bottom;

/* Ends of the vertical axis: for counts times a power of ten, for durations in seconds. */
const COUNT_STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
const DURATION_STEPS = [
  ...[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30],
  ...[60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800],
];

function countAxis(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return COUNT_STEPS.map((step) => step * power).find((step) => step >= most);
}

const durationAxis = (most) => DURATION_STEPS.find((step) => step >= most) || countAxis(most);
const durationTick = (seconds) =>
  seconds >= 60 && seconds % 60 === 0 ? roughDuration(seconds) : duration(seconds);

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
const isAbsent = (value) => value === null || value === undefined;
const round = (number) => number.toFixed(1);

/* Bars, stacked from the bottom. layers: [{ name, state, values }] */
export function stackedBars({ label, layers, start, end, stepS }) {
  const points = layers[0].values.length;
  const totals = Array.from({ length: points }, (_, index) => sum(layers.map((layer) => layer.values[index])));
  const top = Math.max(countAxis(Math.max(...totals, 0)), 4);
  const paths = layers.map((layer, index) => {
    const d = layer.values.map((value, point) => {
      const below = sum(layers.slice(0, index).map((other) => other.values[point]));
      return value ? bar({ value, below, point, points, top }) : "";
    });
    return h("path.fill", { key: layer.name, d: d.join(""), "data-state": layer.state });
  });
  const figures = layers.map((layer) => `${sum(layer.values)} ${layer.name}`).join(", ");
  const textAt = (point) => layers.map((layer) => `${layer.values[point] || 0} ${layer.name}`).join(", ");
  return chart(`${label}: ${figures}`, [
    axes(top, count, start, end),
    paths,
    hoverAreas(points, start, stepS, textAt),
  ]);
}

function bar({ value, below, point, points, top }) {
  const slot = PLOT_WIDTH / points;
  const x = PADDING.left + point * slot + Math.min(1, slot * 0.12);
  const y = PADDING.top + PLOT_HEIGHT * (1 - below / top);
  const width = Math.max(slot - Math.min(2, slot * 0.24), 0.8);
  const height = Math.max((PLOT_HEIGHT * value) / top, 1.5);
  return `M${round(x)} ${round(y)}v${round(-height)}h${round(width)}v${round(height)}z`;
}

/* Lines of durations. series: [{ name, mark, values: seconds, or null where nothing was measured }] */
export function durationLines({ label, series, start, end, stepS }) {
  const points = series[0].values.length;
  const most = Math.max(...series.flatMap(({ values }) => values.map((value) => value || 0)), 0.01);
  const top = durationAxis(most);
  const last = series.map(({ name, values }) => `${name} ${duration(values.findLast((value) => !isAbsent(value)))}`);
  const textAt = (point) => series.map(({ name, values }) => `${name} ${duration(values[point])}`).join(", ");
  return chart(`${label}, last: ${last.join(", ")}`, [
    axes(top, durationTick, start, end),
    series.map(({ name, mark, values }) => h("g", { key: name, class: `line-${mark}` }, brokenLine(values, top))),
    hoverAreas(points, start, stepS, textAt),
  ]);
}

/* A line with gaps where values are absent. A value between two gaps is a dot. */
function brokenLine(values, top) {
  const x = (point) => round(PADDING.left + ((point + 0.5) * PLOT_WIDTH) / values.length);
  const y = (value) => round(PADDING.top + PLOT_HEIGHT * (1 - value / top));
  const dots = [];
  let d = "";
  values.forEach((value, point) => {
    if (isAbsent(value)) return;
    const begins = isAbsent(values[point - 1]);
    const isAlone = begins && isAbsent(values[point + 1]);
    if (isAlone) dots.push(h("circle.dot", { key: point, cx: x(point), cy: y(value), r: 2 }));
    d += `${begins ? "M" : "L"}${x(point)} ${y(value)}`;
  });
  return [h("path.line", { d }), dots];
}

function chart(label, children) {
  return h("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, children);
}

function axes(top, tickText, start, end) {
  const from = Date.parse(start);
  const to = Date.parse(end);
  const bottom = PADDING.top + PLOT_HEIGHT;
  const timeTick = (part) => {
    const anchor = { 0: "start", 1: "end" }[part] || "middle";
    const properties = {
      key: `x${part}`,
      x: PADDING.left + PLOT_WIDTH * part,
      y: bottom + 15,
      "text-anchor": anchor,
    };
    return h("text.tick", properties, part === 1 ? "now" : shortClock(from + (to - from) * part));
  };
  const valueTick = (part) => {
    const y = bottom - PLOT_HEIGHT * part;
    const line = { x1: PADDING.left, x2: WIDTH - PADDING.right, y1: y, y2: y, class: part === 0 ? "base" : "" };
    const text = { x: PADDING.left - 7, y: y + 3.5, "text-anchor": "end" };
    return h(
      "g",
      { key: `y${part}` },
      h("line.grid", line),
      h("text.tick", text, part === 0 ? "0" : tickText(top * part)),
    );
  };
  return [[0, 0.5, 1].map(valueTick), [0, 0.25, 0.5, 0.75, 1].map(timeTick)];
}

/* The figures of each point as a native tooltip, which needs no script. */
function hoverAreas(points, start, stepS, textAt) {
  const width = PLOT_WIDTH / points;
  const from = Date.parse(start);
  return Array.from({ length: points }, (_, point) => {
    const area = { key: `h${point}`, x: PADDING.left + point * width, y: PADDING.top, width, height: PLOT_HEIGHT };
    return h("rect.hover", area, h("title", `${shortClock(from + point * stepS * 1000)}: ${textAt(point)}`));
  });
}

/* Small bars without axes, for a row of a table. */
export function sparkline(values, label) {
  const width = 96;
  const height = 20;
  const top = Math.max(...values, 1);
  const slot = width / values.length;
  const d = values.map((value, point) => {
    if (!value) return "";
    const barHeight = Math.max((height * value) / top, 1.5);
    return `M${round(point * slot)} ${height}v${round(-barHeight)}h${round(Math.max(slot - 0.8, 0.6))}V${height}z`;
  });
  return h(
    "svg.spark",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    h("path", { d: `M0 ${height - 0.5}h${width}`, class: "base" }),
    h("path", { d: d.join(""), class: "fill" }),
  );
}

/* Areas over time, stacked from the bottom. layers: [{ name, state, values }] */
export function stackedAreas({ label, layers }) {
  const height = 96;
  const points = layers[0].values.length;
  const totals = layers[0].values.map((_, point) => sum(layers.map((layer) => layer.values[point])));
  const top = Math.max(...totals, 1);
  const position = (value, point) =>
    `${round((point * WIDTH) / (points - 1))} ${round(height - 2 - ((height - 8) * value) / top)}`;
  let below = totals.map(() => 0);
  const paths = layers
    .filter((layer) => layer.values.some(Boolean))
    .map((layer) => {
      const above = below.map((value, point) => value + layer.values[point]);
      const d = `M${above.map(position).join("L")}L${below.map(position).reverse().join("L")}Z`;
      below = above;
      return h("path.area", { key: layer.name, d, "data-state": layer.state });
    });
  const properties = {
    viewBox: `0 0 ${WIDTH} ${height}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  };
  return h("svg.areas", properties, paths);
}

/* items: [[name, mark, value]] */
export function legend(items) {
  return h(
    "ul.legend",
    items.map(([name, mark, value]) =>
      h(
        "li",
        { key: name, class: `mark-${mark}`, "data-state": mark },
        h("i"),
        name,
        value !== undefined && h("b.num", value),
      ),
    ),
  );
}
