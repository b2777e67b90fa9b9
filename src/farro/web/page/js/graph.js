/* Draw a graph: nodes in columns, edges as curves. Used for the steps of a plan and the components of a swarm. */
import { h } from "./view.js";

const PADDING = 4;
const DEFAULT_SIZE = { width: 176, height: 44, gapX: 48, gapY: 14 }; // of a node, and between nodes

/* SVG text does not clip itself. */
export const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/* The column of each node, by the longest path from a node without predecessors: Map of id → column. */
export function columnsOf(nodes, edges) {
  const column = new Map(nodes.map(({ id }) => [id, 0]));
  const known = edges.filter(({ from, to }) => column.has(from) && column.has(to) && from !== to);
  // In a cycle columns would grow for ever: stop after as many rounds as there are nodes.
  for (let round = 0; round < nodes.length; round += 1) {
    let moved = false;
    for (const { from, to } of known) {
      const next = column.get(from) + 1;
      if (column.get(to) < next && next < nodes.length) {
        column.set(to, next);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return column;
}

/* Positions of the nodes, by id, and the size of the whole. */
function arrange(nodes, edges, { width, height, gapX, gapY }) {
  const columnOf = columnsOf(nodes, edges);
  const byColumn = [];
  for (const node of nodes) (byColumn[columnOf.get(node.id)] ||= []).push(node);
  const columns = byColumn.filter(Boolean);
  const columnHeight = (column) => column.length * (height + gapY) - gapY;
  const wholeHeight = Math.max(...columns.map(columnHeight), height);
  const positions = new Map();
  columns.forEach((column, index) => {
    const top = (wholeHeight - columnHeight(column)) / 2;
    sortBySources(column, edges, positions).forEach((node, row) => {
      positions.set(node.id, { x: index * (width + gapX), row, y: top + row * (height + gapY) });
    });
  });
  return { positions, wholeWidth: columns.length * (width + gapX) - gapX, wholeHeight };
}

/* Order a column by the mean row of each node's sources, so that fewer edges cross. */
function sortBySources(column, edges, positions) {
  const meanRow = (node) => {
    const sources = edges.filter(({ from, to }) => to === node.id && positions.has(from));
    if (!sources.length) return Infinity;
    return sources.reduce((total, { from }) => total + positions.get(from).row, 0) / sources.length;
  };
  const means = new Map(column.map((node) => [node, meanRow(node)]));
  const difference = (one, other) => (means.get(one) === means.get(other) ? 0 : means.get(one) - means.get(other));
  return [...column].sort(difference); // stable: equal nodes keep their order
}

/* nodes: [{ id }], edges: [{ from, to, name? }]
 * describeNode(node) → { state, label, parts: children in a box of the given size }
 * describeEdge(edge) → { kind, text, state }
 * selected: the id of the selected node; select(id): the user pressed a node */
export function graph({ label, nodes, edges, describeNode, describeEdge, size, selected, select }) {
  const box = { ...DEFAULT_SIZE, ...size };
  const { positions, wholeWidth, wholeHeight } = arrange(nodes, edges, box);
  const width = Math.max(wholeWidth, 10) + PADDING * 2;
  const height = Math.max(wholeHeight, 10) + PADDING * 2;
  const drawnEdges = edges.filter(({ from, to }) => positions.has(from) && positions.has(to));
  const curveOf = ({ from, to }) => curve(positions.get(from), positions.get(to), box);
  return h(
    "div.graph",
    { role: "region", "aria-label": label, tabindex: 0 },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label },
      drawnEdges.map((edge) => edgeNode(edge, curveOf(edge), describeEdge(edge))),
      nodes.map((node) =>
        boxNode(node, positions.get(node.id), describeNode(node), { box, isSelected: selected === node.id, select }),
      ),
    ),
  );
}

/* A curve from the right side of one box to the left side of another, and the place for its text. */
function curve(from, to, { width, height }) {
  const x1 = from.x + width + PADDING;
  const y1 = from.y + height / 2 + PADDING;
  const x2 = to.x + PADDING;
  const y2 = to.y + height / 2 + PADDING;
  const textX = (x1 + x2) / 2;
  if (x2 <= x1) {
    // An edge that leads back passes below the boxes.
    const low = Math.max(y1, y2) + height;
    return { d: `M${x1} ${y1}C${x1 + 40} ${low} ${x2 - 40} ${low} ${x2} ${y2}`, textX, textY: low - height / 4 };
  }
  const bend = Math.min((x2 - x1) / 2, 60);
  return { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, textX, textY: (y1 + y2) / 2 };
}

function edgeNode({ from, to, name = "" }, { d, textX, textY }, { kind = "", text = null, state = null }) {
  return h(
    "g",
    { key: `e-${from}-${to}-${name}`, class: `edge ${kind}`, "data-state": state },
    h("path", { d }),
    text && h("text", { x: textX, y: textY - 5, "text-anchor": "middle" }, text),
  );
}

function boxNode({ id }, { x, y }, { state, label, parts }, { box, isSelected, select }) {
  const onKey = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    select(id);
  };
  const properties = {
    key: `n-${id}`,
    class: isSelected ? "node chosen" : "node",
    "data-state": state,
    transform: `translate(${x + PADDING} ${y + PADDING})`,
    role: "button",
    tabindex: 0,
    "aria-label": label,
    "aria-pressed": String(isSelected),
    on: { click: () => select(id), keydown: onKey },
  };
  return h("g", properties, h("rect", { width: box.width, height: box.height, rx: 7 }), parts);
}
