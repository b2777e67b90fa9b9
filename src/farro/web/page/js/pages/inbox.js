/* The inbox: questions that wait for a person, what there is to judge by, and the answer. */
import { get, path, post } from "../api.js";
import { ask, toast } from "../dialogs.js";
import { diff } from "../diff.js";
import { markdown } from "../markdown.js";
import { h } from "../view.js";
import { button, emptyNote, errorNote, jobLink, loadingNote, taskAddress, timeAgo } from "../widgets.js";
import { accountNotices } from "./account_notices.js";

const DONE = { approve: "Approved", refuse: "Refused", edit: "Saved" };

export class InboxPage {
  constructor(context, route) {
    this.context = context;
    this.questions = null;
    this.accounts = []; // paused ones that need a person
    this.selectedId = route.args[0] || null;
    this.diffs = new Map(); // job id → diff; "" where there is none, or while it is read
    this.error = null;
    this.aborted = new AbortController();
    this.load = context.loader(() => this.loadQuestions(), {
      onError: (error) => {
        if (!error.unreachable) this.error = error;
      },
    });
    this.keys = {
      j: { text: "Next", run: () => this.move(1) },
      k: { text: "Previous", run: () => this.move(-1) },
      a: { text: "Approve", run: () => this.answer("approve") },
      r: { text: "Refuse", run: () => this.answer("refuse") },
      e: { text: "Edit the result", run: () => this.answer("edit") },
    };
    this.load();
  }

  title() {
    return "Inbox";
  }

  stop() {
    this.aborted.abort();
    this.load.stop();
  }

  onEvent(kind, data) {
    const concernsManager = (job) => job.role === "Manager" || job.was_role === "Manager";
    if (["hello", "gap", "ready"].includes(kind)) this.load();
    else if (kind === "changes" && (this.accounts.length || data.jobs.some(concernsManager))) this.load();
  }

  /* Data */

  async loadQuestions() {
    const { waiting, accounts } = await get("/api/inbox", this.aborted.signal);
    Object.assign(this, { questions: waiting, accounts });
    this.error = null;
    if (!this.selected()) this.selectFirst();
    this.loadDiff();
  }

  selected() {
    return (this.questions || []).find((question) => question.job_id === this.selectedId) || null;
  }

  selectFirst() {
    this.selectedId = this.questions.length ? this.questions[0].job_id : null;
  }

  /* The change that the question is about. The question is shown without it where it cannot be read. */
  async loadDiff() {
    const question = this.selected();
    if (!question || !question.task || this.diffs.has(question.job_id)) return;
    this.diffs.set(question.job_id, "");
    try {
      const task = await get(path("tasks", question.task), this.aborted.signal);
      const job = task.jobs.find((other) => other.job_id === question.job_id);
      if (job) this.diffs.set(question.job_id, job.diff);
    } catch {
      return;
    }
    this.context.redraw();
  }

  select(id) {
    this.selectedId = id;
    this.context.go(`#/inbox/${encodeURIComponent(id)}`, { replace: true });
    this.loadDiff();
    this.context.redraw();
  }

  move(step) {
    const list = this.questions || [];
    const index = list.findIndex((question) => question.job_id === this.selectedId);
    const next = list[Math.min(Math.max(index + step, 0), list.length - 1)];
    if (next) this.select(next.job_id);
  }

  forgetAccount(name) {
    this.accounts = this.accounts.filter(({ account }) => account !== name);
    this.context.redraw();
  }

  /* Answering */

  async answer(verb) {
    const question = this.selected();
    if (!question || (verb === "edit" && question.permission)) return;
    await ask({
      ...answerDialog(verb, question),
      text: question.title || question.question,
      submit: (values) => this.send(verb, question, values),
    });
  }

  async send(verb, question, { note, text }) {
    const body = {};
    if (note) body.note = note;
    if (verb === "edit") body.text = text;
    try {
      await post(path("inbox", question.job_id, verb), body);
    } catch (error) {
      return { "": error.message };
    }
    toast("ok", DONE[verb]);
    this.questions = this.questions.filter((other) => other.job_id !== question.job_id);
    this.selectFirst();
    this.load();
    this.context.redraw();
    return null;
  }

  /* View */

  view() {
    if (this.error) return errorNote(this.error, this.load);
    if (!this.questions) return loadingNote("Reading the inbox");
    const accounts = accountNotices(this.context, this.accounts, (name) => this.forgetAccount(name));
    if (!this.questions.length) {
      if (accounts) return accounts;
      const text = "A workflow step with the role human brings its job here. The same list on the command line:";
      return h("section.panel", emptyNote("Nothing waits for you", text, "farro inbox"));
    }
    const question = this.selected();
    return h("div.stack", accounts, h("div.split", this.list(), question ? this.detail(question) : null));
  }

  list() {
    const item = (question) => {
      const properties = {
        type: "button",
        "aria-current": question.job_id === this.selectedId ? "true" : null,
        on: { click: () => this.select(question.job_id) },
      };
      const origin = h("span.clip", question.task || question.role || "");
      return h(
        "li",
        { key: question.job_id },
        h(
          "button",
          properties,
          h("span.strong.clip", question.title || question.question),
          h("span.small.quiet.row", origin, h("span.end", timeAgo(question.since))),
        ),
      );
    };
    return h("nav.panel.list", { "aria-label": "Waiting" }, h("ul", this.questions.map(item)));
  }

  detail(question) {
    return h(
      "article.panel",
      { "aria-label": question.title || question.question },
      h(
        "header.answer",
        h("div.grow", h("h2", question.title || "A question"), h("p.soft.small", question.question)),
        this.context.readOnly() ? null : this.answerButtons(question),
      ),
      h("div.body.stack", this.origin(question), this.result(question), this.change(question)),
    );
  }

  answerButtons({ permission }) {
    const approve = { kind: "primary", icon: "succeeded", title: "Approve (a)" };
    const refuse = { kind: "danger", icon: "close", title: "Refuse (r)" };
    return [
      button("Approve", () => this.answer("approve"), approve),
      button("Refuse", () => this.answer("refuse"), refuse),
      permission ? null : button("Edit", () => this.answer("edit"), { title: "Edit (e)" }),
    ];
  }

  origin({ role, task, job_id: id, permission }) {
    return h(
      "p.small.quiet.row",
      role ? `${role} ${permission ? "asks, and waits" : "worked last"}` : "",
      task ? h("a", { href: taskAddress(task) }, task) : null,
      jobLink(id),
    );
  }

  result({ result, permission }) {
    if (permission) return null;
    return result ? markdown(result) : h("p.quiet", "There is no result text.");
  }

  change({ job_id: id, result }) {
    const text = this.diffs.get(id);
    if (!text || result.includes("```diff")) return null; // the result shows the change itself
    return h("section.stack.tight", { "aria-label": "Changes" }, h("h3.small.quiet", "Changes"), diff(text));
  }
}

function answerDialog(verb, question) {
  const note = { name: "note", label: "Note", kind: "area", hint: "Kept with the job." };
  if (verb === "approve") return { title: "Approve?", yes: "Approve", fields: [note] };
  if (verb === "refuse") {
    const reason = { ...note, required: true, hint: "What must change. It is given to the role that worked last." };
    return { title: "Refuse?", yes: "Refuse", danger: true, fields: [reason] };
  }
  const text = { name: "text", label: "Result", kind: "code", value: question.result, required: true };
  return { title: "Edit the result", yes: "Save and go on", broad: true, fields: [text, note] };
}
