/* Tasks: each one's way through its roles, what every role found, and the change that came of it. */
import { get, path } from "../api.js";
import { diff } from "../diff.js";
import { icon } from "../icons.js";
import { markdown } from "../markdown.js";
import { empty, failure, jobAddress, loading, moment, standing, state } from "../parts.js";
import { h } from "../view.js";
import { clock, many, said, whither } from "../words.js";

export function tasks(ctx, route) {
  const page = { tasks: null, chosen: route.args[0] || null, task: null, job: route.query.get("job"), error: null };
  const aborted = new AbortController();
  const reload = ctx.paced(async () => {
    try {
      page.tasks = (await get("/api/tasks", aborted.signal)).tasks;
      if (!page.chosen && page.tasks.length) page.chosen = (page.tasks.find((one) => one.status === "in_progress") || page.tasks.find((one) => one.jobs.length) || page.tasks[0]).id;
      if (page.chosen) page.task = await get(path("tasks", page.chosen), aborted.signal);
      page.error = null;
    } catch (error) { if (error.name === "AbortError") return; ctx.failed(error); if (error.status !== 0) page.error = error; }
    ctx.redraw();
  }, 1500);
  reload();
  const choose = (id) => { page.chosen = id; page.task = null; page.job = null; ctx.go(`#/task/${encodeURIComponent(id)}`, { replace: true }); reload(); ctx.redraw(); };
  const walk = (step) => { const list = page.tasks || []; const at = list.findIndex((one) => one.id === page.chosen); const next = list[Math.min(Math.max(at + step, 0), list.length - 1)]; if (next) choose(next.id); };

  return {
    title: () => (page.task ? `${page.task.title || page.task.id} · Tasks` : "Tasks"),
    heading: () => "Tasks",
    keys: { j: { told: "Next task", run: () => walk(1) }, k: { told: "Task before", run: () => walk(-1) } },
    heard(kind, data) { if (["hello", "gap", "ready"].includes(kind) || (kind === "changes" && data.jobs.length)) reload(); },
    stop: () => { aborted.abort(); reload.stop(); },
    view() {
      if (page.error && !page.tasks) return failure(page.error, reload);
      if (!page.tasks) return loading("Reading the tasks");
      if (!page.tasks.length) return h("section.panel", empty("No tasks yet", "A task is a file tasks/ID.json with the roles that it goes through. To see one at work:", "farro demo"));
      return h("div.split",
        h("nav.panel.list", { "aria-label": "Tasks" }, h("ul", page.tasks.map((one) => h("li", { key: one.id }, h("button", { type: "button", "aria-current": one.id === page.chosen ? "true" : null, on: { click: () => choose(one.id) } },
          h("span.row", h("span.strong.clip", one.title || one.id), one.jobs.length ? h("span.end", h("span.state", { "data-state": standing(one.jobs[0]) }, icon(standing(one.jobs[0]), 14), h("span.unseen", said(standing(one.jobs[0]))))) : null),
          h("span.small.quiet.clip", one.problems.length ? many(one.problems.length, "problem") : one.roles.join(" → "))))))),
        page.task ? detail(page.task) : page.error ? failure(page.error, reload) : loading());
    },
  };

  function detail(task) {
    const job = task.jobs.find((one) => one.job_id === page.job) || task.jobs[0] || null;
    return h("article.stack", { "aria-label": task.title || task.id },
      h("section.panel", h("header", h("h2", task.title || task.id), h("span.mono.small.quiet", task.id), job ? h("div.end", state(standing(job), { chip: true })) : null),
        h("div.body.stack",
          task.problems.map((one) => h("p.error", typeof one === "string" ? one : `${one.path}: ${one.message}`)),
          task.description ? markdown(task.description) : null, stepper(task, job),
          task.jobs.length > 1 ? h("div.row.wrap.small", h("span.quiet", "Runs"), task.jobs.map((one) => h("button.button.ghost", { key: one.job_id, type: "button", "aria-pressed": String(one === job), on: { click: () => { page.job = one.job_id; ctx.redraw(); } } }, icon(standing(one), 14), moment(one.created_at)))) : null)),
      job ? way(job) : h("section.panel", empty("It has not been started", "Give it to its first role:", `farro run task ${task.id}`)),
      job && job.diff ? h("section.panel", { "aria-labelledby": "p-change" }, h("header", h("h2", { id: "p-change" }, "Change")), h("div.body", diff(job.diff))) : null);
  }

  function stepper(task, job) {
    const at = job ? (job.at_step ?? null) : null;
    const ended = job && job.terminal && job.status === "succeeded";
    return h("ol.stepper", { "aria-label": "Roles of this task" }, task.workflow.map((step, i) => {
      const how = !job ? "pending" : ended ? "succeeded" : at === null ? "pending" : i < at ? "succeeded" : i === at ? (standing(job) === "queued" && job.role === "Manager" ? "in_progress" : standing(job)) : "pending";
      return h("li", { key: i, "data-state": how, "aria-current": i === at && !ended ? "step" : null }, h("span.knot", icon(how, 16, how === "in_progress" ? { class: "spin" } : {})), h("div", h("span.strong", step.role), h("p.small.quiet", { title: step.rubric }, step.rubric || said(how))));
    }));
  }

  function way(job) {
    const lastResult = job.way.findLastIndex((hop) => hop.result && hop.role !== "Manager");
    return h("section.panel", { "aria-labelledby": "p-way" }, h("header", h("h2", { id: "p-way" }, "Its way"), h("span.note", many(job.way.length, "hop")), h("div.end", h("a", { href: jobAddress(job.job_id) }, "Open the job"))),
      h("ol.way", job.way.map((hop, i) => {
        const goal = whither(hop.to);
        const how = hop.verdict === "changes_requested" ? "failed" : goal.state || (hop.reason === "retried" || hop.reason === "released" ? "queued" : "succeeded");
        if (hop.role === "Manager" && hop.note) return h("li.small.quiet", { key: i }, h("div.row", h("span.knot", icon("right", 14)), h("span.grow", hop.note.split("\n")[0]), h("time.num", { datetime: hop.at }, clock(hop.at))));
        return h("li", { key: i, "data-state": how }, h("div.row", h("span.knot", icon(how, 14)), h("span.strong", hop.role), h("span.soft", goal.words), hop.verdict && hop.role !== "Manager" ? h("span.state.chip", { "data-state": hop.verdict === "approve" ? "succeeded" : "failed" }, icon(hop.verdict === "approve" ? "succeeded" : "failed", 14), said(hop.verdict)) : null, h("time.end.num.small.quiet", { datetime: hop.at }, clock(hop.at))),
          hop.note ? h("p.small.soft", hop.note) : null,
          hop.result && hop.role !== "Manager" ? h("details", { open: i === lastResult }, h("summary.small.quiet", "What it found"), markdown(hop.result)) : null);
      }), job.way.length ? null : h("li.quiet", "Nobody has worked on it yet. ", h("a", { href: jobAddress(job.job_id) }, "Why?"))));
  }
}
