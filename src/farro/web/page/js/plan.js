/* The picture of a plan, and what is known of one of its steps. */
import { fit, graph, levels } from "./graph.js";
import { icon } from "./icons.js";
import { facts, state } from "./parts.js";
import { h } from "./view.js";
import { duration, many, said } from "./words.js";

const shell = (step) => /^(\/bin\/)?(ba|da|z)?sh$/.test(step.command || "") && (step.args || [])[0] === "-c" && step.args.length === 2;

/* A shell's script is what somebody wrote; the shell around it is not. */
export const line = (step) => shell(step) ? step.args[1] : [step.tool && step.tool !== "unix" ? step.tool : null, step.command, ...(step.args || [])].filter((part) => part !== null && part !== undefined).join(" ");

const deep = (steps, edges) => Math.max(...levels(steps, edges).values()) + 1;

export function planGraph(plan, chosen, choose) {
  const known = new Set(plan.steps.map((step) => step.id));
  const edges = plan.steps.flatMap((step) => [
    ...(step.needs || []).filter((one) => known.has(one) && one !== step.input_from_step).map((from) => ({ from, to: step.id })),
    ...(step.input_from_step && known.has(step.input_from_step) ? [{ from: step.input_from_step, to: step.id, pipe: true }] : []),
  ]);
  // A plan without any dependency runs in the order of its list: that order is what connects it.
  const listed = edges.length === 0;
  if (listed) plan.steps.slice(1).forEach((step, i) => edges.push({ from: plan.steps[i].id, to: step.id, listed: true }));
  return graph({
    label: `Plan with ${many(plan.steps.length, "step")}`, nodes: plan.steps, edges, chosen, choose,
    size: deep(plan.steps, edges) > 4 ? { width: 128, height: 46, gapX: 22, gapY: 12 } : { width: 176, height: 46, gapX: 40, gapY: 12 },
    edge: (one) => ({ kind: one.pipe ? "pipe" : one.listed ? "listed" : "" }),
    node: (step) => ({
      state: step.state,
      label: `Step ${step.id}, ${said(step.state)}: ${line(step)}`,
      parts: [
        h("g", { transform: "translate(10 8)", class: "sign" }, icon(step.state, 14)),
        h("text.name", { x: 30, y: 19 }, fit(step.id, deep(plan.steps, edges) > 4 ? 13 : 19)),
        h("text.what.typed", { x: 11, y: 36 }, fit(line(step) || said(step.state), deep(plan.steps, edges) > 4 ? 17 : 25)),
        h("title", `${line(step)} (${said(step.state)})`),
      ],
    }),
  });
}

export function stepFacts(step, told) {
  return facts([
    ["Step", h("span.row", h("span.strong", step.id), state(step.state))],
    ["Command", h("code.code", line(step))],
    ["Needs", (step.needs || []).join(", ")],
    ["Input from", step.input_from_step],
    ["Exit code", told && told.exit_code !== null ? String(told.exit_code) : null],
    ["Took", told && told.duration_s !== null ? `${duration(told.duration_s)}${told.tries > 1 ? `, ${told.tries} tries` : ""}${told.earlier ? ", in an earlier attempt" : ""}` : null],
    ["Error", told && told.error],
  ]);
}
