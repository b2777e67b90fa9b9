/* One job: its state, what it was asked to do, what it did, and its output. */
import { get, getText, path } from "../api.js";
import { capitalize, plural, shortId, stateName } from "../format.js";
import { icon } from "../icons.js";
import { actOnJob, jobAction, possibleActions, resumeQueue, retryJob } from "../job_actions.js";
import { h } from "../view.js";
import { button, errorNote, jobAddress, jobState, loadingNote, panel, shellCommand, tabs } from "../widgets.js";
import { factsPanel, timelinePanel } from "./job_facts.js";
import { JobOutput } from "./job_output.js";
import { planGraph, stepFacts } from "./job_plan.js";
import { LARGEST_SHOWN_FILE, auditTab, filesTab, promptTab, resultTab } from "./job_tabs.js";

const TABS = [
  ["output", "Output"],
  ["result", "Result"],
  ["prompt", "Prompt"],
  ["files", "Files"],
  ["audit", "Audit"],
];
const FLUSH_TABS = new Set(["output", "files"]);
const RELOAD_PAUSE_MS = 700;
const REFRESH_MS = 2000;
const BUTTON_KINDS = { kill: "danger", retry: "primary", "force-complete": "ghost" };

export class JobPage {
  parent = ["#/board", "Board"];

  constructor(context, route) {
    const tab = route.query.get("tab");
    this.context = context;
    this.id = route.args[0];
    this.tab = TABS.some(([known]) => known === tab) ? tab : null; // null: chosen when the job is known
    this.step = route.query.get("step"); // the selected step of the plan
    this.job = null;
    this.history = null; // attempts and audit lines
    this.plan = null;
    this.explanation = null; // why the job does not run
    this.output = null; // a JobOutput
    this.result = null; // { path, text }
    this.showsSource = false; // of the result
    this.file = null; // the opened one, with its text: undefined while it loads, null where it is not text
    this.pausedAt = null;
    this.error = null;
    this.aborted = new AbortController();
    this.load = context.loader(() => this.loadJob(), {
      pauseMs: RELOAD_PAUSE_MS,
      onError: (error) => {
        if (!error.unreachable || !this.job) this.error = error;
      },
    });
    this.keys = this.shortcuts();
    this.timer = setInterval(() => this.refresh(), REFRESH_MS);
    this.load();
  }

  shortcuts() {
    const tabKeys = TABS.map(([tab, name], index) => [index + 1, { text: name, run: () => this.selectTab(tab) }]);
    return {
      e: { text: "Retry", run: () => this.can("retry") && this.act("retry") },
      K: { text: "Kill", run: () => this.can("kill") && this.act("kill") },
      f: { text: "Follow the output", run: () => this.output && this.output.follow() },
      "/": { text: "Search the output", run: () => this.searchOutput() },
      ...Object.fromEntries(tabKeys),
    };
  }

  title() {
    if (!this.job) return shortId(this.id);
    return `${this.job.title || shortId(this.job.job_id)} · ${stateName(jobState(this.job))}`;
  }

  heading() {
    if (!this.job) return shortId(this.id);
    return this.job.title || this.job.name || shortId(this.job.job_id);
  }

  stop() {
    this.aborted.abort();
    clearInterval(this.timer);
    this.load.stop();
    if (this.output) this.output.stop();
  }

  /* Data */

  address(...rest) {
    return path("jobs", this.id, ...rest);
  }

  async loadJob() {
    const { signal } = this.aborted;
    const noPlan = (error) => {
      if (error.status >= 400) return null;
      throw error;
    };
    const [job, history, plan] = await Promise.all([
      get(this.address(), signal),
      get(this.address("history"), signal),
      get(this.address("plan"), signal).catch(noPlan),
    ]);
    Object.assign(this, { job, history, plan, error: null });
    if (this.tab === null) this.tab = job.terminal && isAgentJob(job) ? "result" : "output";
    this.explanation = job.status === "succeeded" ? null : await get(this.address("explain"), signal).catch(() => null);
    if (this.tab === "result") this.loadResult();
    this.output ??= new JobOutput(job.job_id, this.step, this.context.redraw);
    this.output.onJobChanged(job);
  }

  /* No event says that a step began, nor reliably that a queue was resumed after a short pause: poll for these. */
  refresh() {
    if (!this.job || document.hidden) return;
    const isPaused = this.explanation && this.explanation.reason === "paused";
    if (this.job.status === "in_progress" || isPaused) this.load();
  }

  onEvent(kind, data) {
    if (["hello", "gap", "ready"].includes(kind)) this.load();
    else if (kind === "changes") {
      const id = this.job ? this.job.job_id : this.id;
      if (data.jobs.some((job) => job.job_id === id)) this.load();
    } else if (kind === "counts" && this.job) this.notePause(data.queues);
  }

  /* A paused queue changes none of its jobs: the counts tell. The time of the pause is compared, because the queue may
   * have been resumed and paused again between two counts. */
  notePause(queues) {
    const queue = queues.find((other) => other.role === this.job.role);
    if (!queue) return;
    const pausedAt = queue.paused ? queue.paused.at || "unknown" : "";
    if (pausedAt !== this.pausedAt) this.load();
    this.pausedAt = pausedAt;
  }

  async loadResult() {
    const named = (name) => this.job.files.find((file) => file.path === name);
    const file = named("result.md") || named("error.md");
    if (file) {
      try {
        this.result = { path: file.path, text: await this.readFile(file) };
      } catch (error) {
        if (error.name === "AbortError") return;
        this.result = { path: file.path, text: null };
      }
    } else this.result = { path: null, text: null };
    this.context.redraw();
  }

  readFile(file) {
    return getText(this.address("files", ...file.path.split("/")), this.aborted.signal);
  }

  async openFile(file) {
    const opened = { ...file, text: undefined };
    this.file = opened;
    this.context.redraw();
    try {
      opened.text = file.bytes > LARGEST_SHOWN_FILE ? null : await this.readFile(file);
    } catch (error) {
      if (error.name !== "AbortError") opened.text = error.message;
    }
    this.context.redraw();
  }

  /* What the user chooses */

  rememberChoice() {
    const step = this.step ? `&step=${encodeURIComponent(this.step)}` : "";
    this.context.go(`${jobAddress(this.id)}?tab=${this.tab}${step}`, { replace: true });
    this.context.redraw();
  }

  selectTab(tab) {
    this.tab = tab;
    if (tab === "result" && this.job) this.loadResult();
    this.rememberChoice();
  }

  /* Select a step of the plan, or none where it is selected already. */
  toggleStep(step) {
    this.step = this.step === step ? null : step;
    if (this.output) this.output.selectStep(this.step);
    if (this.step) this.tab = "output";
    this.rememberChoice();
  }

  showSource(isShown) {
    this.showsSource = isShown;
    this.context.redraw();
  }

  searchOutput() {
    this.selectTab("output");
    const focus = () => document.querySelector(".logs input[type=search]")?.focus();
    requestAnimationFrame(() => requestAnimationFrame(focus)); // the field is there after the next draw
  }

  /* Actions */

  possibleActions() {
    return this.job && !this.context.readOnly() ? possibleActions(this.job) : [];
  }

  can(name) {
    return this.possibleActions().includes(name);
  }

  act(name) {
    return name === "retry" ? this.retry(null) : actOnJob(name, this.job, { after: this.load });
  }

  retry(step) {
    return retryJob(this.job, step, { after: (retried) => this.context.go(jobAddress(retried.job_id)) });
  }

  actions() {
    return this.possibleActions().map((name) => {
      const { name: text, icon: sign } = jobAction(name);
      return button(text, () => this.act(name), { key: name, icon: sign, kind: BUTTON_KINDS[name] || "" });
    });
  }

  /* View */

  view() {
    const error = this.error ? errorNote(this.error, this.load) : null;
    if (!this.job) return error || loadingNote("Reading the job");
    return h(
      "div.job",
      h("div.stack", error, this.notice(), this.planPanel(), this.tabsPanel()),
      h(
        "aside.stack",
        { "aria-label": "Facts and timeline" },
        factsPanel(this.job),
        timelinePanel(this.job, this.history.attempts),
      ),
    );
  }

  /* The error of the job, or why it does not run. */
  notice() {
    const { error, damaged, terminal, status } = this.job;
    const waits = this.explanation && !terminal && status !== "in_progress";
    const reason = waits ? capitalize(this.explanation.message) : null;
    if (!error && !reason && !damaged) return null;
    const state = jobState(this.job);
    return h(
      "div.notice",
      { "data-state": state },
      icon(state),
      h(
        "div.grow.stack.tight",
        error ? h("p.strong.wrapped", error.message, h("span.tag.cause", error.category)) : null,
        damaged ? h("p", `Damaged: ${damaged}`) : null,
        reason && !(error && reason === error.message) ? h("p.soft", reason) : null,
        reason && this.explanation.fix ? this.remedy() : null,
      ),
    );
  }

  remedy() {
    const canResume = this.explanation.reason === "paused" && !this.context.readOnly();
    const resume = () => resumeQueue(this.job.role, { after: this.load });
    return h(
      "div.row.wrap",
      shellCommand(this.explanation.fix),
      canResume ? button("Resume the queue", resume, { icon: "play" }) : null,
    );
  }

  planPanel() {
    if (!this.plan || this.plan.steps.length < 2) return null;
    const { steps, added } = this.plan;
    const succeeded = steps.filter((step) => step.state === "succeeded").length;
    const addedText = added ? `, ${added} added while it ran` : "";
    const selected = steps.find((step) => step.id === this.step);
    return panel(
      "Plan",
      { flush: true, note: `${succeeded} of ${plural(steps.length, "step")} done${addedText}` },
      planGraph(this.plan, this.step, (step) => this.toggleStep(step)),
      selected ? this.selectedStep(selected) : null,
    );
  }

  selectedStep(step) {
    const runs = this.history.attempts.flatMap((attempt) => attempt.steps).filter((run) => run.id === step.id);
    const retry = button("Retry from here", () => this.retry(step.id), { icon: "retry" });
    return h(
      "div.chosen-step",
      stepFacts(step, runs.at(-1) || null),
      h(
        "div.row",
        this.context.readOnly() ? null : retry,
        button("All steps", () => this.toggleStep(step.id), { kind: "ghost", icon: "close" }),
      ),
    );
  }

  tabsPanel() {
    const options = TABS.map(([tab, name]) => [tab, name, tab === "files" ? this.job.files.length : null]);
    const body = {
      id: "tab-shown",
      role: "tabpanel",
      "aria-labelledby": `tab-${this.tab}`,
      class: FLUSH_TABS.has(this.tab) ? "flush" : "",
    };
    return h(
      "section.panel",
      tabs("About this job", options, this.tab, (tab) => this.selectTab(tab)),
      h("div.body", body, this.tabContent()),
    );
  }

  tabContent() {
    if (this.tab === "output") return this.outputTab();
    if (this.tab === "result") return resultTab(this);
    if (this.tab === "prompt") return promptTab(this.job);
    if (this.tab === "files") return filesTab(this);
    return auditTab(this.history.audit || []);
  }

  outputTab() {
    return this.output ? this.output.view(this.job, this.attemptsWithOutput()) : loadingNote();
  }

  attemptsWithOutput() {
    const roles = new Map(this.job.hops.map((hop) => [hop.attempt, hop.role]));
    return this.history.attempts
      .filter((attempt) => attempt.output)
      .map(({ number, started_at: at }) => ({ number, role: roles.get(number) || this.job.role, at }));
  }
}

/* An agent answers a prompt; other jobs run steps. */
function isAgentJob({ prompt }) {
  if (!prompt || prompt.steps) return false;
  return prompt.rubric !== undefined || prompt.objective !== undefined || prompt.role !== undefined;
}
