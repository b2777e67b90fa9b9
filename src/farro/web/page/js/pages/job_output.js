/* The output of a job while it runs and after: one attempt and those that follow it, with the newest line at the end.
 *
 * Earlier lines are loaded on demand; an output that is too long for a page can be saved. The lines are added to the
 * document by hand (job_output_lines.js), because comparing thousands of them at every draw would be too slow. */
import { get, path, query } from "../api.js";
import { toast } from "../dialogs.js";
import { watchdog } from "../event_stream.js";
import { ago, bytes, clock, count, plural, stateName } from "../format.js";
import { icon, stateIcon } from "../icons.js";
import { h } from "../view.js";
import { button, jobState } from "../widgets.js";
import { OutputLines } from "./job_output_lines.js";

const PAGE_LINES = 1000;
const MOST_LINES = 10_000; // in the document
const RETRY_MS = 2000;

export class JobOutput {
  constructor(jobId, step, redraw) {
    this.jobId = jobId;
    this.step = step; // show only this step; null: all
    this.redraw = redraw;
    this.lines = new OutputLines(MOST_LINES, redraw);
    this.source = null;
    this.retryTimer = null;
    this.watchdog = watchdog(() => this.reconnect());
    this.started = false; // the server sent the beginning
    this.ended = false; // the server sent the end
    this.attempt = null; // the attempt whose output arrives now
    this.selectedAttempt = null; // null: the last that has output, and those that follow it
    this.earlier = null; // what is before the loaded lines: { before, lines, bytes }
    this.loadingEarlier = false;
    this.wrapped = true;
    this.open();
  }

  stop() {
    this.close();
    this.lines.stop();
  }

  /* Connection */

  address(rest, parameters) {
    const filter = { attempt: this.selectedAttempt, step: this.step, ...parameters };
    return `${path("jobs", this.jobId, "logs")}${rest}${query(filter)}`;
  }

  open() {
    this.close();
    this.ended = false;
    this.source = new EventSource(this.address("/stream", { tail: PAGE_LINES }));
    const handlers = {
      begin: (data) => this.onBegin(data),
      output: (data) => this.onOutput(data),
      trouble: (data) => this.onTrouble(data),
      end: () => this.onEnd(),
      state: () => {},
      beat: () => {},
    };
    for (const [kind, handle] of Object.entries(handlers)) {
      this.source.addEventListener(kind, (event) => {
        this.watchdog.reset();
        handle(JSON.parse(event.data));
      });
    }
    this.source.onerror = () => this.reconnect();
    this.watchdog.reset();
    this.redraw();
  }

  close() {
    clearTimeout(this.retryTimer);
    this.watchdog.stop();
    if (!this.source) return;
    this.source.onerror = null;
    this.source.close();
    this.source = null;
  }

  reconnect() {
    this.close();
    if (!this.ended) this.retryTimer = setTimeout(() => this.open(), RETRY_MS);
  }

  restart() {
    this.lines.clear();
    this.earlier = null;
    this.started = false;
    this.lines.following = true;
    this.open();
  }

  /* What was shown stays until the new beginning is here. */
  onBegin({ attempt, earlier }) {
    this.lines.clear();
    this.started = true;
    this.attempt = attempt;
    this.earlier = earlier;
    this.redraw();
  }

  onOutput(chunk) {
    if (chunk.attempt !== undefined && chunk.attempt !== null) this.attempt = chunk.attempt;
    this.lines.add(chunk);
  }

  onTrouble({ error }) {
    this.onEnd();
    this.onOutput({ step: null, stream: "runner", text: `${error.message || "the output cannot be read"}\n` });
  }

  onEnd() {
    this.ended = true;
    this.close();
    this.redraw();
  }

  /* The stream had ended; connect again where a new attempt began. */
  onJobChanged(job) {
    if (this.ended && !job.terminal && (this.attempt === null || job.attempt > this.attempt)) this.open();
  }

  async loadEarlier() {
    if (!this.earlier || this.loadingEarlier) return;
    this.loadingEarlier = true;
    this.redraw();
    try {
      const parameters = { attempt: this.attempt, tail: PAGE_LINES, before: this.earlier.before };
      const answer = await get(this.address("", parameters));
      this.earlier = answer.earlier;
      this.lines.addBefore(answer.output.map((chunk) => ({ ...chunk, attempt: answer.attempt })));
    } catch (error) {
      toast("error", error.message);
    }
    this.loadingEarlier = false;
    this.redraw();
  }

  /* What the user chooses */

  selectStep(step) {
    this.step = step;
    this.restart();
  }

  selectAttempt(attempt) {
    this.selectedAttempt = attempt;
    this.restart();
  }

  follow() {
    this.lines.follow();
    this.redraw();
  }

  toggleFollow() {
    if (!this.lines.following) this.lines.follow();
    else this.lines.following = false;
    this.redraw();
  }

  toggleWrap() {
    this.wrapped = !this.wrapped;
    this.redraw();
  }

  search(text) {
    this.lines.search(text);
    this.redraw();
  }

  /* View */

  /* attempts: those that have output, the first first: [{ number, role, at }] */
  view(job, attempts) {
    const shown = this.lines.shownCount();
    const classes = [this.wrapped ? "" : "unwrapped", this.lines.stepCount() < 2 ? "single" : ""];
    const log = {
      key: "log",
      role: "log",
      "aria-label": "Output",
      tabindex: 0,
      hidden: !shown,
      class: classes.filter(Boolean).join(" "),
      onCreate: (element) => this.lines.showIn(element),
    };
    return h(
      "div.logs",
      this.toolbar(job, attempts, shown),
      this.earlier && this.lines.count ? this.earlierBar() : null,
      shown ? null : h("p.empty.quiet", this.emptyText(job)),
      h("div.log.code", log),
    );
  }

  toolbar(job, attempts, shown) {
    const { count: loaded, following } = this.lines;
    const download = {
      href: this.address("/whole", { attempt: this.attempt }),
      download: "",
      title: "The whole output",
    };
    const toggles = [
      button("Wrap", () => this.toggleWrap(), { kind: "ghost", "aria-pressed": String(this.wrapped) }),
      button("Follow", () => this.toggleFollow(), {
        kind: "ghost",
        icon: "down",
        "aria-pressed": String(following),
        title: "Follow (f)",
      }),
    ];
    return h(
      "div.row.wrap.tools.small",
      this.streamState(job),
      attempts.length > 1 ? this.attemptChoice(attempts) : null,
      this.started && (loaded || job.attempt)
        ? h("span.quiet.num", { "data-lines": "" }, this.countText(shown))
        : null,
      this.step ? h("span.tag", `step ${this.step}`) : null,
      this.searchField(),
      toggles,
      loaded ? h("a.button.ghost", download, icon("download", 14), "Save") : null,
    );
  }

  searchField() {
    const properties = {
      type: "search",
      "aria-label": "Search the output",
      placeholder: "Search the output",
      value: this.lines.searched,
      autocomplete: "off",
      on: { input: (event) => this.search(event.target.value) },
    };
    return h("div.search.end", icon("search", 14), h("input.input", properties));
  }

  attemptChoice(attempts) {
    const current = attempts.find((attempt) => attempt.number === this.attempt);
    const showsLast = this.selectedAttempt === null && this.attempt !== null;
    const last = showsLast ? `The last: ${this.attempt}, ${current ? current.role : ""}` : "The last";
    const option = ({ number, role, at }) => {
      const text = `Attempt ${number}, ${role}${at ? `, ${clock(at)}` : ""}`;
      return h("option", { key: number, value: String(number) }, text);
    };
    const properties = {
      "aria-label": "Attempt",
      value: String(this.selectedAttempt ?? ""),
      on: { change: (event) => this.selectAttempt(Number(event.target.value) || null) },
    };
    return h("select.input.narrow", properties, h("option", { value: "" }, last), attempts.map(option));
  }

  earlierBar() {
    const hasRoom = this.lines.count < MOST_LINES && !this.lines.dropped;
    const load = { kind: "ghost", disabled: this.loadingEarlier };
    const content = hasRoom
      ? button("Show earlier lines", () => this.loadEarlier(), load)
      : h("span.quiet", "More than a page holds. Save it to read the rest.");
    return h("div.earlier.small", content);
  }

  /* How many lines there are, and how many of them are loaded. */
  countText(shown) {
    const { count: loaded, dropped, searched } = this.lines;
    if (searched) return `${count(shown)} of ${plural(loaded, "line")} match`;
    if (!this.earlier && !dropped) return plural(loaded, "line");
    if (this.earlier && this.earlier.lines === null) {
      return `the last ${plural(loaded, "line")}, after ${bytes(this.earlier.bytes)}`;
    }
    const all = loaded + dropped + (this.earlier ? this.earlier.lines : 0);
    return `${loaded} of ${plural(all, "line")}`;
  }

  isStreaming(job) {
    return job.status === "in_progress" && (this.attempt === null || this.attempt === job.attempt);
  }

  /* Whether more may come. */
  streamState(job) {
    if (job.terminal) return h("span.quiet", "Ended");
    if (this.isStreaming(job)) return streamLabel("in_progress", "Streaming", true);
    const state = jobState(job);
    if (job.attempt) {
      const text = this.attempt === null ? stateName(state) : `Attempt ${this.attempt} has ended`;
      return h("span.quiet", text);
    }
    const waits = ["queued", "delayed", "waiting"].includes(state);
    return streamLabel(state, waits ? "Not begun" : stateName(state), false);
  }

  emptyText(job) {
    if (this.lines.searched && this.lines.count) return "No line has these words.";
    if (!this.started) return "Reading the output …";
    if (!job.attempt) return notBegunText(job);
    const streaming = this.isStreaming(job);
    if (this.step) {
      const ofAttempt = this.attempt === null ? "" : ` in attempt ${this.attempt}`;
      return `Step ${this.step} has no output${streaming ? " yet" : ofAttempt}.`;
    }
    return streaming ? "No output yet." : "No output.";
  }
}

const streamLabel = (state, text, moving) =>
  h("span.state", { "data-state": state }, stateIcon(state, 12, moving), text);

function notBegunText(job) {
  const state = jobState(job);
  if (state === "delayed") return `It has not begun. It may begin ${ago(job.not_before)}.`;
  if (state !== "waiting") return "It has not begun.";
  return `It has not begun. It waits for ${job.person ? "a person" : plural(job.waits_for.length, "other job")}.`;
}
