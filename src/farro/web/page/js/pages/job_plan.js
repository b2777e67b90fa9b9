/* The plan of a job as a graph, and the details of one of its steps. */
import { duration, plural, stateName } from "../format.js";
import { clip, columnsOf, graph } from "../graph.js";
import { icon } from "../icons.js";
import { h } from "../view.js";
import { facts, stateLabel } from "../widgets.js";

const WIDE = { size: { width: 176, height: 46, gapX: 40, gapY: 12 }, nameLength: 19, commandLength: 25 };
const NARROW = { size: { width: 128, height: 46, gapX: 22, gapY: 12 }, nameLength: 13, commandLength: 17 };
const MOST_WIDE_COLUMNS = 4;
const SHELL = /^(\/bin\/)?(ba|da|z)?sh$/;

export function planGraph(plan, selected, select) {
  const edges = planEdges(plan.steps);
  const columns = Math.max(...columnsOf(plan.steps, edges).values()) + 1;
  const shape = columns > MOST_WIDE_COLUMNS ? NARROW : WIDE;
  return graph({
    label: `Plan with ${plural(plan.steps.length, "step")}`,
    nodes: plan.steps,
    edges,
    size: shape.size,
    selected,
    select,
    describeNode: (step) => describeStep(step, shape),
    describeEdge: ({ kind }) => ({ kind }),
  });
}

/* A plan without dependencies runs in the order of its list: then that order joins the steps. */
function planEdges(steps) {
  const ids = new Set(steps.map((step) => step.id));
  const edges = steps.flatMap((step) => {
    const source = step.input_from_step;
    const needs = (step.needs || []).filter((id) => ids.has(id) && id !== source);
    const pipe = source && ids.has(source) ? [{ from: source, to: step.id, kind: "pipe" }] : [];
    return [...needs.map((from) => ({ from, to: step.id })), ...pipe];
  });
  if (edges.length) return edges;
  return steps.slice(1).map((step, index) => ({ from: steps[index].id, to: step.id, kind: "listed" }));
}

function describeStep(step, { nameLength, commandLength }) {
  const command = stepCommand(step);
  return {
    state: step.state,
    label: `Step ${step.id}, ${stateName(step.state)}: ${command}`,
    parts: [
      h("g", { transform: "translate(10 8)", class: "sign" }, icon(step.state, 14)),
      h("text.name", { x: 30, y: 19 }, clip(step.id, nameLength)),
      h("text.what.typed", { x: 11, y: 36 }, clip(command || stateName(step.state), commandLength)),
      h("title", `${command} (${stateName(step.state)})`),
    ],
  };
}

/* The command line of a step. Of `sh -c SCRIPT` only the script: that is what its author wrote. */
function stepCommand({ tool, command, args }) {
  const list = args || [];
  const isScript = SHELL.test(command || "") && list[0] === "-c" && list.length === 2;
  if (isScript) return list[1];
  const prefix = tool && tool !== "unix" ? tool : null;
  return [prefix, command, ...list].filter((part) => part !== null && part !== undefined).join(" ");
}

/* run: the last run of the step in the history of the job, or null */
export function stepFacts(step, run) {
  return facts([
    ["Step", h("span.row", h("span.strong", step.id), stateLabel(step.state))],
    ["Command", h("code.code", stepCommand(step))],
    ["Needs", (step.needs || []).join(", ")],
    ["Input from", step.input_from_step],
    ["Exit code", run && run.exit_code !== null ? String(run.exit_code) : null],
    ["Took", run && run.duration_s !== null ? runDuration(run) : null],
    ["Error", run && run.error],
  ]);
}

function runDuration({ duration_s: seconds, tries, earlier }) {
  return `${duration(seconds)}${tries > 1 ? `, ${tries} tries` : ""}${earlier ? ", in an earlier attempt" : ""}`;
}
