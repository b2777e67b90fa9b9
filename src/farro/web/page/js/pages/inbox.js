/* The inbox: what waits for a person, with what there is to judge by, and the answer. */
import { get, path, post } from "../api.js";
import { markdown } from "../markdown.js";
import { ask, toast } from "../overlay.js";
import { button, empty, failure, jobLink, loading, moment } from "../parts.js";
import { h } from "../view.js";
import { diff } from "../diff.js";

export function inbox(ctx, route) {
  const page = { waiting: null, chosen: route.args[0] || null, diffs: new Map(), error: null };
  const aborted = new AbortController();
  const reload = ctx.paced(async () => {
    try {
      page.waiting = (await get("/api/inbox", aborted.signal)).waiting;
      page.error = null;
      if (!page.waiting.some((one) => one.job_id === page.chosen)) page.chosen = page.waiting.length ? page.waiting[0].job_id : null;
      readDiff();
    } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  });
  reload();

  async function readDiff() {
    const one = current();
    if (!one || !one.task || page.diffs.has(one.job_id)) return;
    page.diffs.set(one.job_id, "");
    try {
      const task = await get(path("tasks", one.task), aborted.signal);
      const own = task.jobs.find((row) => row.job_id === one.job_id);
      page.diffs.set(one.job_id, own ? own.diff : "");
    } catch { /* the question stands without it */ }
    ctx.redraw();
  }
  const current = () => (page.waiting || []).find((one) => one.job_id === page.chosen) || null;
  const choose = (id) => { page.chosen = id; ctx.go(`#/inbox/${encodeURIComponent(id)}`, { replace: true }); readDiff(); ctx.redraw(); };
  const walk = (step) => { const list = page.waiting || []; const at = list.findIndex((one) => one.job_id === page.chosen); const next = list[Math.min(Math.max(at + step, 0), list.length - 1)]; if (next) choose(next.job_id); };

  async function answer(verb) {
    const one = current();
    if (!one) return;
    const note = { name: "note", label: "Note", kind: "area", needed: verb === "refuse", hint: verb === "refuse" ? "What must change. It is given to the role that worked last." : "Kept with the job." };
    const asked = {
      approve: { title: "Approve?", yes: "Approve", fields: [note] },
      refuse: { title: "Refuse?", yes: "Refuse", danger: true, fields: [note] },
      edit: { title: "Edit the result", yes: "Save and go on", broad: true, fields: [{ name: "text", label: "Result", kind: "code", value: one.result, needed: true }, note] },
    }[verb];
    const send = async (said) => {
      const body = {};
      if (said.note) body.note = said.note;
      if (verb === "edit") body.text = said.text;
      try {
        await post(path("inbox", one.job_id, verb), body);
      } catch (error) { return { "": error.message }; }
      toast("ok", { approve: "Approved", refuse: "Refused", edit: "Saved" }[verb]);
      page.waiting = page.waiting.filter((other) => other.job_id !== one.job_id);
      page.chosen = page.waiting.length ? page.waiting[0].job_id : null;
      reload();
      ctx.redraw();
      return null;
    };
    await ask({ text: one.title || one.question, send, ...asked });
  }

  return {
    title: () => "Inbox",
    keys: { j: { told: "Next", run: () => walk(1) }, k: { told: "Before", run: () => walk(-1) }, a: { told: "Approve", run: () => answer("approve") }, r: { told: "Refuse", run: () => answer("refuse") }, e: { told: "Edit the result", run: () => answer("edit") } },
    heard(kind, data) { if (kind !== "changes" ? ["hello", "gap", "ready"].includes(kind) : data.jobs.some((one) => one.role === "Manager" || one.was_role === "Manager")) reload(); },
    stop: () => { aborted.abort(); reload.stop(); },
    view() {
      if (page.error) return failure(page.error, reload);
      if (!page.waiting) return loading("Reading the inbox");
      if (!page.waiting.length) return h("section.panel", empty("Nothing waits for you", "A workflow step with the role human brings its job here. The same list on the command line:", "farro inbox"));
      const one = current();
      return h("div.split",
        h("nav.panel.list", { "aria-label": "Waiting" }, h("ul", page.waiting.map((item) => h("li", { key: item.job_id }, h("button", { type: "button", "aria-current": item.job_id === page.chosen ? "true" : null, on: { click: () => choose(item.job_id) } },
          h("span.strong.clip", item.title || item.question), h("span.small.quiet.row", h("span.clip", item.task || item.role || ""), h("span.end", moment(item.since)))))))),
        one ? h("article.panel", { "aria-label": one.title || one.question },
          h("header.answer", h("div.grow", h("h2", one.title || "A question"), h("p.soft.small", one.question)),
            ctx.readOnly() ? null : [button("Approve", () => answer("approve"), { kind: "primary", sign: "succeeded", title: "Approve (a)" }), button("Refuse", () => answer("refuse"), { kind: "danger", sign: "close", title: "Refuse (r)" }), button("Edit", () => answer("edit"), { title: "Edit (e)" })]),
          h("div.body.stack", h("p.small.quiet.row", one.role ? `${one.role} worked last` : "", one.task ? h("a", { href: `#/task/${encodeURIComponent(one.task)}` }, one.task) : null, jobLink(one.job_id)),
            one.result ? markdown(one.result) : h("p.quiet", "It left no text."),
            page.diffs.get(one.job_id) && !one.result.includes("```diff") ? h("section.stack.tight", { "aria-label": "Changes" }, h("h3.small.quiet", "Changes"), diff(page.diffs.get(one.job_id))) : null)) : null);
    },
  };
}
