/* The tables of a swarm: its components, and the commands that were sent to them. */
import { count, duration, plural, secondsBetween, sentence } from "../format.js";
import { h } from "../view.js";
import { button, panel, scrollRegion, shellCommand, stateLabel, table, timeAgo } from "../widgets.js";

export const STALE_S = 30; // silence that is marked
const MOST_COMMANDS = 200;

const STATES = {
  new: "pending",
  creating: "starting",
  provisioning: "starting",
  ready: "ready",
  healthy: "ready",
  starting: "starting",
  running: "running",
  failed: "failed",
  stopping: "stopping",
  stopped: "stopped",
  removing: "stopping",
  removed: "stopped",
};

/* The state of a swarm or a component, as the dashboard colours it. */
export const shownState = (state) => STATES[String(state).toLowerCase()] || "unknown";

export const isAbsent = (value) => value === null || value === undefined;

/* A component that stopped still reports the last rate of its work. */
export const hasRate = ({ enabled, tps }) => enabled && !isAbsent(tps);
export const rateText = (perSecond) => (perSecond >= 100 ? count(perSecond) : perSecond.toFixed(1));

/* page: the SwarmsPage */
export function componentsPanel(page, swarm) {
  const role = page.selectedRole;
  const components = swarm.components.filter((component) => !role || component.role === role);
  const columns = [
    ...["Instance", "State"],
    ...["Items/s", "Heard", "Starts"].map((text) => ({ text, right: true })),
    { text: "Actions", hidden: true },
  ];
  const rows = components.map((component) => componentRow(page, component));
  const note = role ? `of ${role}` : plural(components.length, "instance");
  return panel("Components", { flush: true, note }, scrollRegion("Components", "tall", table(columns, rows)));
}

function componentRow(page, component) {
  const { instance, state, failure, tps, staleness_s: silence, starts } = component;
  const configure = button("Configure", () => page.configure(component), {
    kind: "ghost",
    "aria-label": `Configure ${instance}`,
  });
  return h(
    "tr",
    { key: instance },
    h("td", h("span.mono", instance), failure ? h("p.small.late", failure) : null),
    h("td", stateLabel(shownState(state), { text: sentence(String(state)) })),
    h("td.right.num", hasRate(component) ? rateText(tps) : "–"),
    h(
      "td.right.num",
      { class: silence > STALE_S ? "late" : "" },
      isAbsent(silence) ? "–" : `${duration(silence)} ago`,
    ),
    h("td.right.num", starts),
    h("td.right", page.context.readOnly() ? null : configure),
  );
}

export function commandsPanel({ commands, selectedId }) {
  const options = { flush: true, note: plural(commands.length, "command") };
  if (!commands.length) {
    const nothing = h("p", "No command was sent to it yet.");
    return panel("Commands", options, h("div.empty", nothing, shellCommand(`farro swarm status ${selectedId}`)));
  }
  const columns = ["When", "Signal", "To", "Result", { text: "Took", right: true }];
  const rows = commands.slice(0, MOST_COMMANDS).map(commandRow);
  return panel("Commands", options, scrollRegion("Commands", "tall", table(columns, rows, { class: "ledger" })));
}

function commandRow(command) {
  const { correlation_id: id, idempotency_key: key, signal, scope, begun_at: begun, ended_at: ended } = command;
  return h(
    "tr",
    { key: id },
    h("td", timeAgo(begun)),
    h("td.mono", { title: `correlation ${id}\nidempotency ${key}` }, signal),
    h("td.mono.small", scope.instance || scope.swarmId || ""),
    h("td", commandResult(command), command.message ? h("p.small.late", command.message) : null),
    h("td.right.num", ended ? duration(secondsBetween(begun, ended)) : "–"),
  );
}

function commandResult({ result, state, code }) {
  if (result === null) return stateLabel("running", { text: "Under way" });
  if (result === "success") return stateLabel("ok", { text: state || "Done" });
  return stateLabel("failed", { text: code || "Failed" });
}
