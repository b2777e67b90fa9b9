/* Tasks: the path of each task through its roles, what every role found, and the resulting change. */
import { get, path } from "../api.js";
import { diff } from "../diff.js";
import { clock, hopTarget, plural, stateName } from "../format.js";
import { icon, stateIcon } from "../icons.js";
import { markdown } from "../markdown.js";
import { h } from "../view.js";
import { emptyNote, errorNote, jobAddress, jobState, loadingNote, panel } from "../widgets.js";
import { stateLabel, taskAddress, timeAgo } from "../widgets.js";

const MANAGER = "Manager"; // the role that routes a task between the others

export class TasksPage {
  constructor(context, route) {
    this.context = context;
    this.tasks = null;
    this.selectedId = route.args[0] || null;
    this.task = null; // the selected one, with its jobs
    this.jobId = route.query.get("job"); // of its runs; null: the newest
    this.error = null;
    this.aborted = new AbortController();
    this.load = context.loader(() => this.loadTasks(), {
      pauseMs: 1500,
      onError: (error) => {
        if (!error.unreachable) this.error = error;
      },
    });
    this.keys = {
      j: { text: "Next task", run: () => this.move(1) },
      k: { text: "Previous task", run: () => this.move(-1) },
    };
    this.load();
  }

  title() {
    return this.task ? `${this.task.title || this.task.id} · Tasks` : "Tasks";
  }

  heading() {
    return "Tasks";
  }

  stop() {
    this.aborted.abort();
    this.load.stop();
  }

  onEvent(kind, data) {
    if (["hello", "gap", "ready"].includes(kind) || (kind === "changes" && data.jobs.length)) this.load();
  }

  async loadTasks() {
    this.tasks = (await get("/api/tasks", this.aborted.signal)).tasks;
    if (!this.selectedId && this.tasks.length) this.selectedId = mostInteresting(this.tasks).id;
    if (this.selectedId) this.task = await get(path("tasks", this.selectedId), this.aborted.signal);
    this.error = null;
  }

  select(id) {
    Object.assign(this, { selectedId: id, task: null, jobId: null });
    this.context.go(taskAddress(id), { replace: true });
    this.load();
    this.context.redraw();
  }

  move(step) {
    const list = this.tasks || [];
    const index = list.findIndex((task) => task.id === this.selectedId);
    const next = list[Math.min(Math.max(index + step, 0), list.length - 1)];
    if (next) this.select(next.id);
  }

  selectRun(jobId) {
    this.jobId = jobId;
    this.context.redraw();
  }

  view() {
    if (this.error && !this.tasks) return errorNote(this.error, this.load);
    if (!this.tasks) return loadingNote("Reading the tasks");
    if (!this.tasks.length) {
      const text = "A task is a file tasks/ID.json with the roles that it goes through. To see one at work:";
      return h("section.panel", emptyNote("No tasks yet", text, "farro demo"));
    }
    return h("div.split", this.list(), this.selectedTask());
  }

  list() {
    const item = (task) => {
      const properties = {
        type: "button",
        "aria-current": task.id === this.selectedId ? "true" : null,
        on: { click: () => this.select(task.id) },
      };
      const title = h("span.strong.clip", task.title || task.id);
      const note = task.problems.length ? plural(task.problems.length, "problem") : task.roles.join(" → ");
      return h(
        "li",
        { key: task.id },
        h(
          "button",
          properties,
          h("span.row", title, task.jobs.length ? stateSign(jobState(task.jobs[0])) : null),
          h("span.small.quiet.clip", note),
        ),
      );
    };
    return h("nav.panel.list", { "aria-label": "Tasks" }, h("ul", this.tasks.map(item)));
  }

  selectedTask() {
    if (!this.task) return this.error ? errorNote(this.error, this.load) : loadingNote();
    const { task } = this;
    const job = task.jobs.find((other) => other.job_id === this.jobId) || task.jobs[0] || null;
    return h(
      "article.stack",
      { "aria-label": task.title || task.id },
      this.summary(task, job),
      job ? hopsPanel(job) : notStarted(task),
      job && job.diff ? panel("Change", {}, diff(job.diff)) : null,
    );
  }

  summary(task, job) {
    const head = h(
      "header",
      h("h2", task.title || task.id),
      h("span.mono.small.quiet", task.id),
      job ? h("div.end", stateLabel(jobState(job), { chip: true })) : null,
    );
    const body = h(
      "div.body.stack",
      task.problems.map((problem) => h("p.error", problemText(problem))),
      task.description ? markdown(task.description) : null,
      stepList(task, job),
      task.jobs.length > 1 ? this.runs(task.jobs, job) : null,
    );
    return h("section.panel", head, body);
  }

  runs(jobs, shown) {
    const runButton = (job) => {
      const properties = {
        key: job.job_id,
        type: "button",
        "aria-pressed": String(job === shown),
        on: { click: () => this.selectRun(job.job_id) },
      };
      return h("button.button.ghost", properties, icon(jobState(job), 14), timeAgo(job.created_at));
    };
    return h("div.row.wrap.small", h("span.quiet", "Runs"), jobs.map(runButton));
  }
}

/* A task at work, else one that was started, else the first. */
function mostInteresting(tasks) {
  const running = tasks.find((task) => task.status === "in_progress");
  return running || tasks.find((task) => task.jobs.length) || tasks[0];
}

const stateSign = (state) =>
  h(
    "span.end",
    h("span.state", { "data-state": state }, icon(state, 14), h("span.unseen", stateName(state))),
  );

const problemText = (problem) => (typeof problem === "string" ? problem : `${problem.path}: ${problem.message}`);

const notStarted = (task) =>
  h("section.panel", emptyNote("It has not been started", "Give it to its first role:", `farro run task ${task.id}`));

/* The roles of a task in their order, each with its state. */
function stepList(task, job) {
  const ended = Boolean(job && job.terminal && job.status === "succeeded");
  const current = job && !ended ? (job.at_step ?? null) : null;
  const step = ({ role, rubric }, index) => {
    const state = stepState(job, index, { ended, current });
    return h(
      "li",
      { key: index, "data-state": state, "aria-current": index === current ? "step" : null },
      h("span.marker", stateIcon(state, 16, state === "in_progress")),
      h("div", h("span.strong", role), h("p.small.quiet", { title: rubric }, rubric || stateName(state))),
    );
  };
  return h("ol.stepper", { "aria-label": "Roles of this task" }, task.workflow.map(step));
}

function stepState(job, index, { ended, current }) {
  if (ended) return "succeeded";
  if (current === null || index > current) return "pending";
  if (index < current) return "succeeded";
  const isRouted = job.role === MANAGER && jobState(job) === "queued"; // between two roles
  return isRouted ? "in_progress" : jobState(job);
}

/* What happened to the job of a task, hop by hop. */
function hopsPanel(job) {
  const address = jobAddress(job.job_id);
  const options = {
    flush: true,
    note: plural(job.way.length, "hop"),
    actions: h("a", { href: address }, "Open the job"),
  };
  const lastResult = job.way.findLastIndex((hop) => hop.result && hop.role !== MANAGER);
  const hops = job.way.map((hop, index) => hopItem(hop, index, index === lastResult));
  const nothing = h("li.quiet", "No role has worked on it yet. ", h("a", { href: address }, "Why?"));
  return panel("Path through the roles", options, h("ol.way", hops.length ? hops : nothing));
}

function hopItem(hop, index, isOpen) {
  const byManager = hop.role === MANAGER;
  if (byManager && hop.note) return routingItem(hop, index);
  const target = hopTarget(hop.to);
  const state = hopState(hop, target);
  return h(
    "li",
    { key: index, "data-state": state },
    h(
      "div.row",
      h("span.marker", icon(state, 14)),
      h("span.strong", hop.role),
      h("span.soft", target.text),
      hop.verdict && !byManager ? verdictChip(hop.verdict) : null,
      h("time.end.num.small.quiet", { datetime: hop.at }, clock(hop.at)),
    ),
    hop.note ? h("p.small.soft", hop.note) : null,
    hop.result && !byManager
      ? h("details", { open: isOpen }, h("summary.small.quiet", "Its result"), markdown(hop.result))
      : null,
  );
}

function routingItem(hop, index) {
  return h(
    "li.small.quiet",
    { key: index },
    h(
      "div.row",
      h("span.marker", icon("right", 14)),
      h("span.grow", hop.note.split("\n")[0]),
      h("time.num", { datetime: hop.at }, clock(hop.at)),
    ),
  );
}

function hopState(hop, target) {
  if (hop.verdict === "changes_requested") return "failed";
  if (target.state) return target.state;
  return ["retried", "released"].includes(hop.reason) ? "queued" : "succeeded";
}

function verdictChip(verdict) {
  const state = verdict === "approve" ? "succeeded" : "failed";
  return stateLabel(state, { chip: true, text: stateName(verdict) });
}
