/* Swarms: which component feeds which, the health of every component, and the commands that were sent to them. */
import { get, path, post } from "../api.js";
import { ask, toast } from "../dialogs.js";
import { count, duration, plural, sentence } from "../format.js";
import { icon } from "../icons.js";
import { h } from "../view.js";
import { button, emptyNote, errorNote, facts, loadingNote, panel, shellCommand } from "../widgets.js";
import { stateLabel, table, timeAgo } from "../widgets.js";
import { STALE_S, commandsPanel, componentsPanel, isAbsent, shownState } from "./swarm_tables.js";
import { topology } from "./swarm_topology.js";

const HEALTH_STATES = { Healthy: "ok", Degraded: "warning", Unknown: "unknown" };
const REFRESH_MS = 2000; // swarms send no events
const VERBS = {
  start: {
    name: "Start",
    text: "Its components are enabled in the order of the work: producers first, then what reads from them.",
  },
  stop: { name: "Stop", text: "Its components are disabled; their processes and queues stay." },
  remove: { name: "Remove", text: "Its components are ended and its queues are deleted.", danger: true },
};
const NOTHING_LOADED = { plan: null, configured: {}, commands: [] };

export class SwarmsPage {
  constructor(context, route) {
    this.context = context;
    this.swarms = null;
    this.selectedId = route.args[0] || null;
    this.missingId = null; // a swarm that was asked for and does not exist
    this.selectedRole = null; // of the components in the table; null: all
    Object.assign(this, NOTHING_LOADED);
    this.error = null;
    this.aborted = new AbortController();
    this.load = context.loader(() => this.loadSwarms(), {
      pauseMs: 400,
      onError: (error) => {
        if (!error.unreachable) this.error = error;
      },
    });
    this.timer = setInterval(() => {
      if (!document.hidden) this.load();
    }, REFRESH_MS);
    this.load();
  }

  title() {
    return this.selectedId ? `${this.selectedId} · Swarms` : "Swarms";
  }

  heading() {
    return "Swarms";
  }

  stop() {
    this.aborted.abort();
    clearInterval(this.timer);
    this.load.stop();
  }

  onEvent(kind) {
    if (["hello", "gap"].includes(kind)) this.load();
  }

  /* Data */

  async loadSwarms() {
    this.swarms = (await get("/api/swarms", this.aborted.signal)).swarms;
    if (!this.selected()) {
      if (this.selectedId) this.missingId = this.selectedId;
      this.selectedId = this.swarms.length ? this.swarms[0].id : null;
    }
    if (this.selectedId) await this.loadSelected(this.selectedId);
    this.error = null;
  }

  async loadSelected(id) {
    const { signal } = this.aborted;
    const [plan, commands] = await Promise.all([
      get(path("swarms", id, "plan"), signal).catch(() => null), // a swarm may have no plan
      get(path("swarms", id, "commands"), signal),
    ]);
    this.plan = plan && plan.plan;
    this.configured = (plan && plan.configured) || {};
    this.commands = [...commands.commands].reverse();
  }

  selected() {
    return (this.swarms || []).find((swarm) => swarm.id === this.selectedId) || null;
  }

  select(id) {
    Object.assign(this, NOTHING_LOADED, { selectedId: id, selectedRole: null, missingId: null });
    this.context.go(`#/swarm/${encodeURIComponent(id)}`, { replace: true });
    this.load();
    this.context.redraw();
  }

  selectRole(role) {
    this.selectedRole = this.selectedRole === role ? null : role;
    this.context.redraw();
  }

  /* Commands */

  async control(verb) {
    const { id } = this.selected();
    const { name, text, danger } = VERBS[verb];
    await ask({
      title: `${name} the swarm ${id}?`,
      text,
      yes: name,
      danger,
      submit: () => this.send(path("swarms", id, verb), {}, name),
    });
  }

  /* Edit what a component runs with: its plan, and what was configured since. */
  async configure(component) {
    const swarm = this.selectedId;
    try {
      await this.loadSelected(swarm); // a page that was just opened may not have it yet
    } catch (error) {
      this.error = error;
      this.context.redraw();
      return;
    }
    const planned = this.plan && this.plan.bees.find((bee) => bee.role === component.role);
    const current = { ...(planned && planned.config), ...this.configured[component.instance] };
    const hint = "What it runs with now, as JSON. Only what you change is sent; what you take out stays as it is.";
    await ask({
      title: `Configure ${component.instance}`,
      broad: true,
      fields: [
        { name: "enabled", label: "Enabled", kind: "check", value: component.enabled },
        { name: "config", label: "Config", kind: "code", value: JSON.stringify(current, null, 2), hint },
      ],
      yes: "Send",
      submit: (values) => this.sendConfig(swarm, component, current, values),
    });
  }

  /* Send only what differs: another user may have changed the rest meanwhile. */
  async sendConfig(swarm, component, current, { enabled, config: text }) {
    let config;
    try {
      config = JSON.parse(text.trim() || "{}");
    } catch (error) {
      return { config: `This is no JSON: ${error.message}` };
    }
    if (config === null || typeof config !== "object" || Array.isArray(config)) {
      return { config: "A config is an object: names and values in braces." };
    }
    const differs = ([name, value]) => JSON.stringify(value) !== JSON.stringify(current[name]);
    const changed = Object.entries(config).filter(differs);
    const body = { swarm };
    if (enabled !== component.enabled) body.enabled = enabled;
    if (changed.length) body.config = Object.fromEntries(changed);
    if (Object.keys(body).length === 1) return { "": "Nothing differs from what it runs with." };
    return this.send(path("components", component.role, component.instance, "config"), body, "Config");
  }

  async send(address, body, name) {
    try {
      const answer = await post(address, body);
      toast("ok", `${name}: sent, ${answer.correlationId.slice(0, 8)}`);
      this.load();
      return null;
    } catch (error) {
      return { "": error.message };
    }
  }

  /* View */

  actions() {
    const swarm = this.selected();
    if (!swarm || this.context.readOnly()) return null;
    const state = String(swarm.state).toLowerCase();
    const canStart = ["ready", "stopped", "failed"].includes(state);
    const canStop = ["running", "starting", "failed"].includes(state);
    const canRemove = !["running", "removing", "removed"].includes(state);
    const control = (verb, properties) =>
      button(VERBS[verb].name, () => this.control(verb), { key: verb, ...properties });
    return [
      canStart ? control("start", { icon: "play", kind: "primary" }) : null,
      canStop ? control("stop", { icon: "stop" }) : null,
      canRemove ? control("remove", { icon: "close", kind: "danger" }) : null,
    ];
  }

  view() {
    if (this.error && !this.swarms) {
      if (this.error.code !== "swarms_missing") return errorNote(this.error, this.load);
      return h("section.panel", emptyNote("No swarms here", this.error.message));
    }
    if (!this.swarms) return loadingNote("Reading the swarms");
    if (!this.swarms.length) return h("section.panel", this.missingNote(), noSwarms());
    const swarm = this.selected();
    return h(
      "div.stack",
      this.missingNote(),
      this.swarms.length > 1 ? this.choice() : null,
      swarm ? this.detail(swarm) : null,
    );
  }

  missingNote() {
    if (!this.missingId) return null;
    const shown = this.selectedId ? `; this is ${this.selectedId}` : "";
    return h("p.error", { role: "alert" }, `There is no swarm ${this.missingId} here${shown}.`);
  }

  choice() {
    const choose = ({ id, state }) => {
      const properties = {
        key: id,
        type: "button",
        "aria-pressed": String(id === this.selectedId),
        on: { click: () => this.select(id) },
      };
      const sign = h("span.state", { "data-state": shownState(state) }, icon(shownState(state), 14));
      return h("button.button", properties, sign, id);
    };
    return h("nav.row.wrap", { "aria-label": "Swarms" }, this.swarms.map(choose));
  }

  detail(swarm) {
    const { running = 0, desired = swarm.components.length } = swarm.totals || {};
    const options = {
      flush: true,
      note: `${running} of ${desired} run`,
      actions: [
        stateLabel(HEALTH_STATES[swarm.health] || "unknown", { text: swarm.health }),
        stateLabel(shownState(swarm.state), { chip: true, text: sentence(String(swarm.state)) }),
      ],
    };
    const graph = topology(swarm, this.plan, {
      selectedRole: this.selectedRole,
      selectRole: (role) => this.selectRole(role),
    });
    return [
      deadLettersNotice(swarm),
      warningsNotice(swarm),
      panel(swarm.id, options, graph, h("div.strip", facts(swarmFacts(swarm)))),
      h("div.two.uneven", componentsPanel(this, swarm), commandsPanel(this)),
      errorsPanel(swarm.recent_errors || []),
    ];
  }
}

function noSwarms() {
  const text = "A swarm runs your own programs as components.";
  return emptyNote("No swarm yet", text, "farro swarm create demo");
}

function deadLettersNotice({ id, queues }) {
  const dead = (queues || []).filter((queue) => queue.deadLetters > 0);
  if (!dead.length) return null;
  const list = dead.map((queue) => `${count(queue.deadLetters)} of ${String(queue.name).split(".").pop()}`).join(", ");
  return h(
    "div.notice",
    { "data-state": "failed" },
    icon("alert"),
    h(
      "div.grow.stack.tight",
      h("p", `Dead letters: ${list}. No component could process them.`),
      shellCommand(`farro swarm dead ${id}`),
    ),
  );
}

function warningsNotice({ reason, warnings, health }) {
  const list = warnings || [];
  if (!reason && !list.length) return null;
  return h(
    "div.notice",
    { "data-state": health === "Healthy" ? "queued" : "warning" },
    icon("alert"),
    h("div.grow.stack.tight", reason ? h("p", reason) : null, list.map((warning) => h("p.soft", warning))),
  );
}

function swarmFacts(swarm) {
  const silence = swarm.max_staleness_s;
  const { instance, alive } = swarm.controller;
  const liveness = alive ? h("span.quiet", "alive") : stateLabel("dead", { text: "not running" });
  const durations = Object.entries(swarm.durations || {}).map(([name, seconds]) => `${name} ${duration(seconds)}`);
  const failures = Object.entries(swarm.failures || {}).map(([name, times]) => `${name} ×${times}`);
  const staleness = isAbsent(silence)
    ? "no component has reported yet"
    : h("span.num", { class: silence > STALE_S ? "late" : "" }, duration(silence));
  return [
    ["Staleness", staleness],
    ["Controller", h("span.row", h("span.mono", instance || "–"), liveness)],
    ["Took", durations.join(", ")],
    ["Failures", failures.join(", ")],
    ["Changed", timeAgo(swarm.changed_at)],
  ];
}

function errorsPanel(errors) {
  if (!errors.length) return null;
  const row = ({ at, instance, role, reason }, index) =>
    h("tr", { key: index }, h("td", timeAgo(at)), h("td", instance || role || ""), h("td", reason || ""));
  return panel("Recent errors", { flush: true, note: plural(errors.length, "error") }, table(null, errors.map(row)));
}
