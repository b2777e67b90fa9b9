/* Small charts in SVG: stacked bars, lines, a spark. Each says its figures in words too, for who does not see it. */
import { h } from "./view.js";
import { coarse, count, duration, shortClock } from "./words.js";

const nice = (top) => {
  if (top <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= top);
};

/* Durations break at other numbers than counts do. */
const SPANS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800];
const niceSpan = (top) => SPANS.find((span) => span >= top) || nice(top);

const spanTick = (value) => (value >= 60 && value % 60 === 0 ? coarse(value) : duration(value));

const WIDTH = 600;
const HEIGHT = 150;
const PAD = { left: 44, right: 6, top: 8, bottom: 20 };
const inner = { w: WIDTH - PAD.left - PAD.right, h: HEIGHT - PAD.top - PAD.bottom };

function frame(top, told, start, end, size) {
  const ticks = [0, 0.5, 1];
  const times = [0, 0.25, 0.5, 0.75, 1];
  const from = Date.parse(start);
  const to = Date.parse(end);
  const height = size.h;
  return [
    ticks.map((part) => {
      const y = PAD.top + height * (1 - part);
      return h("g", { key: `y${part}` },
        h("line.grid", { x1: PAD.left, x2: WIDTH - PAD.right, y1: y, y2: y, class: part === 0 ? "base" : "" }),
        h("text.tick", { x: PAD.left - 7, y: y + 3.5, "text-anchor": "end" }, part === 0 ? "0" : told(top * part)));
    }),
    times.map((part) => h("text.tick", { key: `x${part}`, x: PAD.left + inner.w * part, y: PAD.top + height + 15, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" },
      part === 1 ? "now" : shortClock(from + (to - from) * part))),
  ];
}

function svg(label, children, extra = {}) {
  return h("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, ...extra }, children);
}

/* What lies under the pointer is told beside it by a native title: works with CSP, keyboard-free figures are in the table. */
const hover = (index, total, text) => {
  const w = inner.w / total;
  return h("rect.hover", { key: `h${index}`, x: PAD.left + index * w, y: PAD.top, width: w, height: inner.h }, h("title", text));
};

/* layers: [{name, values, state}] stacked from the bottom. */
export function bars({ label, layers, start, end, stepS }) {
  const points = layers[0].values.length;
  const sums = Array.from({ length: points }, (_, i) => layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0));
  const top = Math.max(nice(Math.max(...sums, 0)), 4);
  const w = inner.w / points;
  const from = Date.parse(start);
  const drawn = layers.map((layer, index) => {
    let d = "";
    layer.values.forEach((value, i) => {
      if (!value) return;
      const below = layers.slice(0, index).reduce((sum, other) => sum + (other.values[i] || 0), 0);
      const y1 = PAD.top + inner.h * (1 - below / top);
      const height = Math.max((inner.h * value) / top, 1.5);
      const x = PAD.left + i * w + Math.min(1, w * 0.12);
      d += `M${x.toFixed(1)} ${y1.toFixed(1)}v${(-height).toFixed(1)}h${Math.max(w - Math.min(2, w * 0.24), 0.8).toFixed(1)}v${height.toFixed(1)}z`;
    });
    return h("path.fill", { key: layer.name, d, "data-state": layer.state, class: index % 2 ? "hatched" : "" });
  });
  const told = layers.map((layer) => `${layer.values.reduce((sum, value) => sum + (value || 0), 0)} ${layer.name}`).join(", ");
  return svg(`${label}: ${told}`, [
    frame(top, count, start, end, inner), drawn,
    sums.map((sum, i) => hover(i, points, `${shortClock(from + i * stepS * 1000)}: ${layers.map((layer) => `${layer.values[i] || 0} ${layer.name}`).join(", ")}`)),
  ]);
}

/* series: [{name, values (null: nothing there), mark}] */
export function lines({ label, series, start, end, stepS }) {
  const points = series[0].values.length;
  const top = niceSpan(Math.max(...series.flatMap((one) => one.values.map((value) => value || 0)), 0.01));
  const x = (i) => PAD.left + ((i + 0.5) * inner.w) / points;
  const y = (value) => PAD.top + inner.h * (1 - value / top);
  const from = Date.parse(start);
  const drawn = series.map((one) => {
    let d = "";
    let open = false;
    const dots = [];
    one.values.forEach((value, i) => {
      if (value === null || value === undefined) { open = false; return; }
      const alone = !open && (i === points - 1 || one.values[i + 1] === null || one.values[i + 1] === undefined);
      if (alone) dots.push(h("circle.dot", { key: i, cx: x(i).toFixed(1), cy: y(value).toFixed(1), r: 2 }));
      d += `${open ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      open = true;
    });
    return h("g", { key: one.name, class: `line-${one.mark}` }, h("path.line", { d }), dots);
  });
  const last = series.map((one) => `${one.name} ${duration([...one.values].reverse().find((value) => value !== null && value !== undefined))}`).join(", ");
  return svg(`${label}, last: ${last}`, [
    frame(top, spanTick, start, end, inner), drawn,
    Array.from({ length: points }, (_, i) => hover(i, points, `${shortClock(from + i * stepS * 1000)}: ${series.map((one) => `${one.name} ${duration(one.values[i])}`).join(", ")}`)),
  ]);
}

/* One row's course, without axes. */
export function spark(values, { width = 96, height = 20, label = "" } = {}) {
  const top = Math.max(...values, 1);
  const w = width / values.length;
  const d = values.map((value, i) => (value ? `M${(i * w).toFixed(1)} ${height}v${(-Math.max((height * value) / top, 1.5)).toFixed(1)}h${Math.max(w - 0.8, 0.6).toFixed(1)}V${height}z` : "")).join("");
  return h("svg.spark", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, h("path", { d: `M0 ${height - 0.5}h${width}`, class: "base" }), h("path", { d, class: "fill" }));
}

/* Areas over a time, stacked, for the scrubber. layers: [{name, state, values}] */
export function areas({ label, layers, points, height = 96 }) {
  const n = points.length;
  if (n < 2) return null;
  const sums = points.map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0));
  const top = Math.max(...sums, 1);
  const x = (i) => (i * WIDTH) / (n - 1);
  const y = (value) => height - 2 - ((height - 8) * value) / top;
  let below = points.map(() => 0);
  const drawn = layers.filter((layer) => layer.values.some(Boolean)).map((layer) => {
    const above = below.map((value, i) => value + layer.values[i]);
    const d = `M${above.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}L${below.map((value, i) => [i, value]).reverse().map(([i, value]) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}Z`;
    below = above;
    return h("path.area", { key: layer.name, d, "data-state": layer.state });
  });
  return h("svg.areas", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, drawn);
}

export const legend = (items) => h("ul.legend", items.map(([name, mark, value]) => h("li", { key: name, class: `mark-${mark}`, "data-state": mark }, h("i"), name, value !== undefined && h("b.num", value))));
