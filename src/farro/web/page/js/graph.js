/* Draws what depends on what: nodes in columns, edges as curves. Used for plans and for swarms; what a node says is
 * told by the caller. */
import { h } from "./view.js";

/* nodes: [{id, level?}], edges: [{from, to, ...}] → columns by the longest way from a beginning. */
export function levels(nodes, edges) {
  const level = new Map(nodes.map((node) => [node.id, 0]));
  const goes = edges.filter((edge) => level.has(edge.from) && level.has(edge.to) && edge.from !== edge.to);
  for (let turn = 0; turn < nodes.length; turn += 1) { // a cycle stops growing after as many turns as there are nodes
    let moved = false;
    for (const { from, to } of goes) {
      if (level.get(to) < level.get(from) + 1 && level.get(from) + 1 < nodes.length) { level.set(to, level.get(from) + 1); moved = true; }
    }
    if (!moved) break;
  }
  return level;
}

export function layout(nodes, edges, { width = 176, height = 44, gapX = 48, gapY = 14 } = {}) {
  const level = levels(nodes, edges);
  const columns = [];
  for (const node of nodes) (columns[level.get(node.id)] ||= []).push(node);
  const filled = columns.filter(Boolean);
  const place = new Map();
  // Twice: each column ordered by where its sources stand, so that fewer edges cross.
  filled.forEach((column, x) => {
    if (x) {
      const middle = (node) => {
        const from = edges.filter((edge) => edge.to === node.id && place.has(edge.from)).map((edge) => place.get(edge.from).y);
        return from.length ? from.reduce((sum, y) => sum + y, 0) / from.length : Infinity;
      };
      const order = new Map(column.map((node, i) => [node, [middle(node), i]]));
      column.sort((a, b) => order.get(a)[0] - order.get(b)[0] || order.get(a)[1] - order.get(b)[1]);
    }
    column.forEach((node, y) => place.set(node.id, { x: x * (width + gapX), y: y * (height + gapY) }));
  });
  const tallest = Math.max(...filled.map((column) => column.length), 1);
  const whole = { w: filled.length * (width + gapX) - gapX, h: tallest * (height + gapY) - gapY };
  filled.forEach((column) => {
    const shift = (whole.h - (column.length * (height + gapY) - gapY)) / 2;
    column.forEach((node) => { place.get(node.id).y += shift; });
  });
  return { place, whole, size: { width, height } };
}

/* draw(node) → children of its group, in a box of width × height. */
export function graph({ label, nodes, edges, node, edge = () => ({}), size = {}, chosen = null, choose = null }) {
  const { place, whole, size: box } = layout(nodes, edges, size);
  const pad = 4;
  const w = Math.max(whole.w, 10) + pad * 2;
  const hgt = Math.max(whole.h, 10) + pad * 2;
  const curve = (one) => {
    const from = place.get(one.from);
    const to = place.get(one.to);
    const x1 = from.x + box.width + pad;
    const y1 = from.y + box.height / 2 + pad;
    const x2 = to.x + pad;
    const y2 = to.y + box.height / 2 + pad;
    if (x2 <= x1) { // back: around below
      const low = Math.max(y1, y2) + box.height;
      return { d: `M${x1} ${y1}C${x1 + 40} ${low} ${x2 - 40} ${low} ${x2} ${y2}`, mx: (x1 + x2) / 2, my: low - box.height / 4 };
    }
    const bend = Math.min((x2 - x1) / 2, 60);
    return { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, mx: (x1 + x2) / 2, my: (y1 + y2) / 2 };
  };
  return h("div.graph", { role: "region", "aria-label": label, tabindex: 0 },
    h("svg", { viewBox: `0 0 ${w} ${hgt}`, width: w, height: hgt, role: "group", "aria-label": label },
      edges.filter((one) => place.has(one.from) && place.has(one.to)).map((one) => {
        const { d, mx, my } = curve(one);
        const { kind = "", text = null, state = null } = edge(one);
        return h("g", { key: `e-${one.from}-${one.to}-${one.name || ""}`, class: `edge ${kind}`, "data-state": state }, h("path", { d }),
          text && h("text", { x: mx, y: my - 5, "text-anchor": "middle" }, text));
      }),
      nodes.map((one) => {
        const at = place.get(one.id);
        const { state, label: told, parts } = node(one, box);
        const press = choose && (() => choose(one.id));
        return h("g", {
          key: `n-${one.id}`, class: `node${chosen === one.id ? " chosen" : ""}`, "data-state": state, transform: `translate(${at.x + pad} ${at.y + pad})`,
          role: press ? "button" : "img", tabindex: press ? 0 : null, "aria-label": told, "aria-pressed": press ? String(chosen === one.id) : null,
          on: press ? { click: press, keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); press(); } } } : {},
        }, h("rect", { width: box.width, height: box.height, rx: 7 }), parts);
      })));
}

/* SVG text does not clip itself. */
export const fit = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
