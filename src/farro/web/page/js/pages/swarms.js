/* Swarms: the picture that follows from their queues, how each component does, what was asked of them. */
import { get, path, post } from "../api.js";
import { fit, graph } from "../graph.js";
import { icon } from "../icons.js";
import { ask, toast } from "../overlay.js";
import { button, command, empty, failure, facts, loading, moment, panel, state } from "../parts.js";
import { h } from "../view.js";
import { between, count, duration, many, sentence } from "../words.js";

const STATES = { new: "pending", creating: "starting", provisioning: "starting", ready: "ready", healthy: "ready", starting: "starting", running: "running", failed: "failed", stopping: "stopping", stopped: "stopped", removing: "stopping", removed: "stopped" };
const mark = (name) => STATES[String(name).toLowerCase()] || "unknown";
const HEALTH = { Healthy: "ok", Degraded: "warning", Unknown: "unknown" };
const REFRESH_MS = 2000;

export function swarms(ctx, route) {
  const page = { swarms: null, chosen: route.args[0] || null, plan: null, configured: {}, commands: [], role: null, error: null, missing: null };
  const aborted = new AbortController();
  const reload = ctx.paced(async () => {
    try {
      page.swarms = (await get("/api/swarms", aborted.signal)).swarms;
      const there = page.swarms.some((one) => one.id === page.chosen);
      if (page.chosen && !there) page.missing = page.chosen;
      if (!there) page.chosen = page.swarms.length ? page.swarms[0].id : null;
      if (page.chosen) {
        const [plan, told] = await Promise.all([get(path("swarms", page.chosen, "plan"), aborted.signal).catch(() => null), get(path("swarms", page.chosen, "commands"), aborted.signal)]);
        page.plan = plan && plan.plan;
        page.configured = (plan && plan.configured) || {};
        page.commands = [...told.commands].reverse();
      }
      page.error = null;
    } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  }, 400);
  reload();
  const timer = setInterval(() => { if (!document.hidden) reload(); }, REFRESH_MS); // swarms do not speak through the store's changes
  const current = () => (page.swarms || []).find((one) => one.id === page.chosen) || null;
  const choose = (id) => { Object.assign(page, { chosen: id, plan: null, configured: {}, commands: [], role: null, missing: null }); ctx.go(`#/swarm/${encodeURIComponent(id)}`, { replace: true }); reload(); ctx.redraw(); };

  async function send(verb) {
    const swarm = current();
    const told = {
      start: ["Start", "Its components are enabled as the work flows: producers first, then what reads from them.", false],
      stop: ["Stop", "Its components are disabled; their processes and queues stay.", false],
      remove: ["Remove", "Its components are ended and its queues are deleted.", true],
    }[verb];
    await ask({ title: `${told[0]} the swarm ${swarm.id}?`, text: told[1], yes: told[0], danger: told[2], send: () => asked(path("swarms", swarm.id, verb), {}, told[0]) });
  }
  /* What it runs with now: its plan, and what was configured since. Only what differs from that is sent: the rest may
     have been changed by others meanwhile. */
  async function configure(component) {
    const swarm = page.chosen;
    const bee = page.plan && page.plan.bees.find((one) => one.role === component.role);
    const known = { ...(bee && bee.config), ...page.configured[component.instance] };
    const send = async ({ enabled, config: text }) => {
      let config;
      try { config = JSON.parse(text.trim() || "{}"); } catch (error) { return { config: `This is no JSON: ${error.message}` }; }
      if (config === null || typeof config !== "object" || Array.isArray(config)) return { config: "A config is an object: names and values in braces." };
      const changed = Object.entries(config).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(known[name]));
      const body = { swarm };
      if (enabled !== component.enabled) body.enabled = enabled;
      if (changed.length) body.config = Object.fromEntries(changed);
      if (!("enabled" in body) && !changed.length) return { "": "Nothing differs from what it runs with." };
      return asked(path("components", component.role, component.instance, "config"), body, "Config");
    };
    await ask({
      title: `Configure ${component.instance}`, yes: "Send", broad: true, send,
      fields: [{ name: "enabled", label: "Enabled", kind: "check", value: component.enabled }, { name: "config", label: "Config", kind: "code", value: JSON.stringify(known, null, 2), hint: "What it runs with now, as JSON. Only what you change is sent; what you take out stays as it is." }],
    });
  }
  async function asked(address, body, word) {
    try { const answer = await post(address, body); toast("ok", `${word}: asked, ${answer.correlationId.slice(0, 8)}`); reload(); return null; } catch (error) { return { "": error.message }; }
  }

  return {
    title: () => (page.chosen ? `${page.chosen} · Swarms` : "Swarms"),
    heading: () => "Swarms",
    actions: () => {
      const swarm = current();
      if (!swarm || ctx.readOnly()) return null;
      const how = String(swarm.state).toLowerCase();
      return [
        ["ready", "stopped", "failed"].includes(how) ? button("Start", () => send("start"), { sign: "play", kind: "primary", key: "start" }) : null,
        ["running", "starting", "failed"].includes(how) ? button("Stop", () => send("stop"), { sign: "stop", key: "stop" }) : null,
        !["running", "removing", "removed"].includes(how) ? button("Remove", () => send("remove"), { kind: "danger", sign: "close", key: "remove" }) : null,
      ];
    },
    heard(kind) { if (["hello", "gap"].includes(kind)) reload(); },
    stop: () => { aborted.abort(); clearInterval(timer); reload.stop(); },
    view() {
      if (page.error && !page.swarms) return page.error.code === "swarms_missing" ? h("section.panel", empty("No swarms here", page.error.message)) : failure(page.error, reload);
      if (!page.swarms) return loading("Reading the swarms");
      const gone = page.missing ? h("p.error", { role: "alert" }, `There is no swarm ${page.missing} here${page.chosen ? `; this is ${page.chosen}` : ""}.`) : null;
      if (!page.swarms.length) return h("section.panel", gone, empty("No swarm yet", "farro's own services run as one; your own programs as others.", "farro up --detach", "farro swarm create demo"));
      const swarm = current();
      return h("div.stack", gone,
        page.swarms.length > 1 ? h("nav.row.wrap", { "aria-label": "Swarms" }, page.swarms.map((one) => h("button.button", { key: one.id, type: "button", "aria-pressed": String(one.id === page.chosen), on: { click: () => choose(one.id) } }, h("span.state", { "data-state": mark(one.state) }, icon(mark(one.state), 14)), one.id))) : null,
        swarm ? detail(swarm) : null);
    },
  };

  function detail(swarm) {
    const totals = swarm.totals || {};
    const dead = (swarm.queues || []).filter((queue) => queue.deadLetters > 0);
    return [
      dead.length ? h("div.notice", { "data-state": "failed" }, icon("alert"), h("div.grow.stack.tight", h("p", `Dead letters: ${dead.map((queue) => `${count(queue.deadLetters)} of ${String(queue.name).split(".").pop()}`).join(", ")}. No component could work them.`), command(`farro swarm dead ${swarm.id}`))) : null,
      swarm.reason || (swarm.warnings || []).length ? h("div.notice", { "data-state": swarm.health === "Healthy" ? "queued" : "warning" }, icon("alert"), h("div.grow.stack.tight", swarm.reason ? h("p", swarm.reason) : null, (swarm.warnings || []).map((one) => h("p.soft", one)))) : null,
      panel(swarm.id, { actions: [state(HEALTH[swarm.health] || "unknown", { text: swarm.health }), state(mark(swarm.state), { chip: true, text: sentence(String(swarm.state)) })], note: `${totals.running ?? 0} of ${totals.desired ?? swarm.components.length} run` , flush: true },
        topology(swarm),
        h("div.strip", facts([
          ["Staleness", swarm.max_staleness_s === null || swarm.max_staleness_s === undefined ? "nobody has spoken yet" : h("span.num", { class: swarm.max_staleness_s > 30 ? "late" : "" }, duration(swarm.max_staleness_s))],
          ["Controller", h("span.row", h("span.mono", swarm.controller.instance || "–"), swarm.controller.alive ? h("span.quiet", "alive") : state("dead", { text: "not running" }))],
          ["Took", Object.entries(swarm.durations || {}).map(([name, value]) => `${name} ${duration(value)}`).join(", ")],
          ["Failures", Object.entries(swarm.failures || {}).map(([name, value]) => `${name} ×${value}`).join(", ")],
          ["Changed", moment(swarm.changed_at)],
        ]))),
      h("div.two.uneven", components(swarm), ledger()),
      (swarm.recent_errors || []).length ? panel("Recent errors", { flush: true }, h("table.table", h("tbody", swarm.recent_errors.map((one, i) => h("tr", { key: i }, h("td", moment(one.at)), h("td", one.instance || one.role || ""), h("td", one.reason || "")))))) : null,
    ];
  }

  /* Bees are joined where one writes what another reads. */
  function topology(swarm) {
    const bees = page.plan ? page.plan.bees : [...new Map(swarm.components.map((one) => [one.role, { role: one.role, work: {} }])).values()];
    const depth = new Map((swarm.queues || []).map((queue) => [String(queue.name).split(".").pop(), queue]));
    const wants = (bee, side) => (bee.work && (bee.work[side] || bee.work[`${side}puts`])) || [];
    const list = (value) => (Array.isArray(value) ? value : [value]).filter(Boolean);
    const edges = bees.flatMap((from) => list(wants(from, "out")).flatMap((name) => bees.filter((to) => list(wants(to, "in")).includes(name)).map((to) => ({ from: from.role, to: to.role, name }))));
    const members = (role) => swarm.components.filter((one) => one.role === role);
    return graph({
      label: `Topology of ${swarm.id}`, nodes: bees.map((bee) => ({ id: bee.role, bee })), edges, chosen: page.role,
      choose: (role) => { page.role = page.role === role ? null : role; ctx.redraw(); },
      size: { width: 168, height: 66, gapX: 94, gapY: 20 },
      edge: ({ name }) => {
        const queue = depth.get(name);
        const waits = queue ? queue.ready + (queue.taken || 0) : null;
        return { kind: members(bees[0].role).length && waits ? "flows" : "", text: waits === null ? fit(name, 16) : `${fit(name, 12)} · ${count(waits)}`, state: queue && queue.deadLetters ? "failed" : null };
      },
      node: ({ id }) => {
        const own = members(id);
        const how = own.length ? worst(own) : "pending";
        const tps = own.filter(counts).reduce((sum, one) => sum + one.tps, 0);
        const stale = Math.max(...own.map((one) => one.staleness_s || 0), 0);
        return {
          state: how, label: `${id}: ${many(own.length, "instance")}, ${how}, ${tps.toFixed(1)} items a second`,
          parts: [
            h("g", { transform: "translate(11 10)", class: "sign" }, icon(how, 14)),
            h("text.name", { x: 32, y: 21.5 }, fit(id, 18)),
            h("text.figure", { x: 12, y: 43 }, own.some(counts) ? `${rate(tps)}/s` : sentence(own[0] ? own[0].state : "new")),
            h("text.what", { x: 12, y: 57 }, `${own.length} ×${stale ? ` · heard ${duration(stale)} ago` : ""}`),
          ],
        };
      },
    });
  }

  function components(swarm) {
    const list = swarm.components.filter((one) => !page.role || one.role === page.role);
    return panel("Components", { flush: true, note: page.role ? `of ${page.role}` : many(list.length, "instance") }, h("div.scroll.tall", { tabindex: 0, role: "region", "aria-label": "Components" }, h("table.table",
      h("thead", h("tr", ["Instance", "State"].map((name) => h("th", { scope: "col" }, name)), h("th.right", { scope: "col" }, "Items/s"), h("th.right", { scope: "col" }, "Heard"), h("th.right", { scope: "col" }, "Starts"), h("th", { scope: "col" }, h("span.unseen", "Actions")))),
      h("tbody", list.map((one) => h("tr", { key: one.instance },
        h("td", h("span.mono", one.instance), one.failure ? h("p.small.late", one.failure) : null),
        h("td", state(mark(one.state), { text: sentence(String(one.state)) })),
        h("td.right.num", counts(one) ? rate(one.tps) : "–"),
        h("td.right.num", { class: one.staleness_s > 30 ? "late" : "" }, one.staleness_s === null || one.staleness_s === undefined ? "–" : `${duration(one.staleness_s)} ago`),
        h("td.right.num", one.starts),
        h("td.right", ctx.readOnly() ? null : button("Configure", () => configure(one), { kind: "ghost", "aria-label": `Configure ${one.instance}` }))))))));
  }

  function ledger() {
    return panel("Commands", { flush: true, note: many(page.commands.length, "command") }, page.commands.length ? h("div.scroll.tall", { tabindex: 0, role: "region", "aria-label": "Commands" }, h("table.table.ledger",
      h("thead", h("tr", ["When", "Signal", "To", "Result"].map((name) => h("th", { scope: "col" }, name)), h("th.right", { scope: "col" }, "Took"))),
      h("tbody", page.commands.slice(0, 200).map((one) => h("tr", { key: one.correlation_id },
        h("td", moment(one.begun_at)), h("td.mono", { title: `correlation ${one.correlation_id}\nidempotency ${one.idempotency_key}` }, one.signal), h("td.mono.small", one.scope.instance || one.scope.swarmId || ""),
        h("td", one.result === null ? state("running", { text: "Under way" }) : state(one.result === "success" ? "ok" : "failed", { text: one.result === "success" ? one.state || "Done" : one.code || "Failed" }), one.message ? h("p.small.late", one.message) : null),
        h("td.right.num", one.ended_at ? duration(between(one.begun_at, one.ended_at)) : "–")))))) : h("div.empty", h("p", "Nothing was asked of it yet."), command(`farro swarm status ${page.chosen}`)));
  }
}

const ORDER = ["failed", "warning", "stopping", "starting", "pending", "stopped", "ready", "running"];
const worst = (own) => own.map((one) => mark(one.state)).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))[0];
const counts = (one) => one.enabled && one.tps !== null && one.tps !== undefined; // one that stopped says what it did last
const rate = (value) => (value >= 100 ? count(value) : value.toFixed(1));
