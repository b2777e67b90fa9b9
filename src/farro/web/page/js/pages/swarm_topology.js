/* The graph of a swarm: two roles are joined where one writes to a queue that the other reads. */
import { count, duration, plural, sentence } from "../format.js";
import { clip, graph } from "../graph.js";
import { icon } from "../icons.js";
import { h } from "../view.js";
import { hasRate, rateText, shownState } from "./swarm_tables.js";

const WORST_FIRST = ["failed", "warning", "stopping", "starting", "pending", "stopped", "ready", "running"];
const BOX = { width: 168, height: 66, gapX: 94, gapY: 20 };

/* Without a plan only the roles of the running components are known. */
export function topology(swarm, plan, { selectedRole, selectRole }) {
  const roles = [...new Set(swarm.components.map((component) => component.role))];
  const bees = plan ? plan.bees : roles.map((role) => ({ role, work: {} }));
  const queues = new Map((swarm.queues || []).map((queue) => [String(queue.name).split(".").pop(), queue]));
  return graph({
    label: `Topology of ${swarm.id}`,
    nodes: bees.map(({ role }) => ({ id: role })),
    edges: queueEdges(bees),
    size: BOX,
    selected: selectedRole,
    select: selectRole,
    describeNode: ({ id }) => describeRole(id, swarm.components.filter((component) => component.role === id)),
    describeEdge: ({ name }) => describeQueue(name, queues.get(name), swarm.components.length > 0),
  });
}

/* The names of the queues that a role reads ("in") or writes ("out"): one or several. */
function queueNames({ work }, side) {
  const names = (work && (work[side] || work[`${side}puts`])) || [];
  return (Array.isArray(names) ? names : [names]).filter(Boolean);
}

function queueEdges(bees) {
  const edges = [];
  for (const writer of bees) {
    for (const name of queueNames(writer, "out")) {
      const readers = bees.filter((bee) => queueNames(bee, "in").includes(name));
      edges.push(...readers.map((reader) => ({ from: writer.role, to: reader.role, name })));
    }
  }
  return edges;
}

function describeQueue(name, queue, hasComponents) {
  if (!queue) return { text: clip(name, 16) };
  const messages = queue.ready + (queue.taken || 0);
  return {
    kind: hasComponents && messages ? "flows" : "",
    text: `${clip(name, 12)} · ${count(messages)}`,
    state: queue.deadLetters ? "failed" : null,
  };
}

function describeRole(role, components) {
  const state = components.length ? worstState(components) : "pending";
  const counted = components.filter(hasRate);
  const rate = counted.reduce((sum, component) => sum + component.tps, 0);
  const silence = Math.max(...components.map((component) => component.staleness_s || 0), 0);
  const figure = counted.length ? `${rateText(rate)}/s` : sentence(components[0] ? components[0].state : "new");
  const detail = `${components.length} ×${silence ? ` · heard ${duration(silence)} ago` : ""}`;
  return {
    state,
    label: `${role}: ${plural(components.length, "instance")}, ${state}, ${rate.toFixed(1)} items a second`,
    parts: [
      h("g", { transform: "translate(11 10)", class: "sign" }, icon(state, 14)),
      h("text.name", { x: 32, y: 21.5 }, clip(role, 18)),
      h("text.figure", { x: 12, y: 43 }, figure),
      h("text.what", { x: 12, y: 57 }, detail),
    ],
  };
}

function worstState(components) {
  const states = components.map((component) => shownState(component.state));
  return states.sort((one, other) => WORST_FIRST.indexOf(one) - WORST_FIRST.indexOf(other))[0];
}
