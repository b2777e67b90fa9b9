/* The tabs of a job beside its output: result, prompt, files, audit. */
import { withoutColours } from "../ansi.js";
import { path } from "../api.js";
import { bytes, clock, duration } from "../format.js";
import { icon } from "../icons.js";
import { markdown } from "../markdown.js";
import { h } from "../view.js";
import { loadingNote, segments, stateLabel, table } from "../widgets.js";

export const LARGEST_SHOWN_FILE = 1024 * 1024; // bytes
const MOST_STEPS = 100;
const MOST_FILES = 500;
const RESULT_VIEWS = [
  ["rendered", "Rendered"],
  ["source", "Source"],
];

/* page: the JobPage */
export function resultTab(page) {
  if (!page.result) return loadingNote();
  if (page.result.text) return resultText(page);
  const steps = (page.job.result && page.job.result.step_results) || [];
  if (steps.length) return h("div.stack", steps.slice(0, MOST_STEPS).map(stepResult));
  return h("p.quiet", page.job.terminal ? "It left no result." : "There is no result before the job ends.");
}

function resultText(page) {
  const { path: name, text } = page.result;
  const shown = page.showsSource ? "source" : "rendered";
  const choice = segments("How it is shown", RESULT_VIEWS, shown, (view) => page.showSource(view === "source"));
  return h(
    "div.stack",
    h("div.row", h("span.mono.quiet.small", name), h("div.end", choice)),
    page.showsSource ? codeBox(text) : markdown(text),
  );
}

const codeBox = (text, kind = "") => h("pre.code.box", { tabindex: 0, class: kind }, text);

function stepResult(step, index) {
  const state = step.success ? "succeeded" : "failed";
  return h(
    "div.stack.tight",
    { key: index },
    h(
      "div.row",
      stateLabel(state, { text: `Step ${step.id || step.step_number}` }),
      h("span.quiet.num", `exit ${step.exit_code ?? "–"}`),
      step.duration_s !== undefined ? h("span.quiet.num", duration(step.duration_s)) : null,
    ),
    step.error ? h("p.error", step.error) : null,
    step.stdout ? codeBox(withoutColours(step.stdout)) : null,
    step.stderr ? codeBox(withoutColours(step.stderr), "stderr") : null,
  );
}

export function promptTab({ prompt, narrative }) {
  const given = prompt || {};
  const text = narrative || [given.rubric, given.objective].find((value) => typeof value === "string");
  return h(
    "div.stack",
    text ? markdown(text) : null,
    h(
      "details",
      { open: !text },
      h("summary.small.quiet", "prompt.json"),
      codeBox(JSON.stringify(given, null, 2)),
    ),
  );
}

/* page: the JobPage */
export function filesTab(page) {
  const { files } = page.job;
  if (!files.length) return h("p.empty.quiet", "No files.");
  const item = (file) => {
    const properties = {
      type: "button",
      "aria-pressed": String(Boolean(page.file) && page.file.path === file.path),
      on: { click: () => page.openFile(file) },
    };
    return h(
      "li",
      { key: file.path },
      h(
        "button",
        properties,
        icon("file", 14),
        h("span.mono.clip", { title: file.path }, file.path),
        h("span.end.num.quiet.small", bytes(file.bytes)),
      ),
    );
  };
  return h(
    "div.files",
    h("ul", { "aria-label": "Files of this job" }, files.slice(0, MOST_FILES).map(item)),
    h("div.reader", page.file ? openedFile(page.id, page.file) : h("p.quiet", "Choose a file to read it.")),
  );
}

function openedFile(jobId, file) {
  const parts = file.path.split("/");
  const download = {
    href: `${path("jobs", jobId, "files", ...parts)}?download=true`,
    download: parts.at(-1),
  };
  return [
    h(
      "div.row",
      h("span.mono.clip.grow", file.path),
      h("a.button", download, icon("download", 14), "Download"),
    ),
    fileText(file),
  ];
}

function fileText({ path: name, text, bytes: size }) {
  if (text === undefined) return loadingNote();
  if (text === null) return h("p.quiet", size > LARGEST_SHOWN_FILE ? "Too large to show here." : "Not a text.");
  return h("pre.code", { tabindex: 0, "aria-label": name }, text);
}

export function auditTab(lines) {
  if (!lines.length) return h("p.quiet", "The audit log has no line about this job.");
  return h("div.scroll", table(["When", "Event", "Actor", "Codes"], lines.map(auditRow)));
}

function auditRow({ ts, event, actor, job_id: _, ...codes }, index) {
  const scalar = ([, value]) => value !== null && typeof value !== "object";
  const codesText = Object.entries(codes).filter(scalar).map(([name, value]) => `${name}=${value}`);
  return h(
    "tr",
    { key: index },
    h("td.num", { title: ts }, clock(ts)),
    h("td", event),
    h("td.mono", actor),
    h("td.mono.small.soft", codesText.join(" ")),
  );
}
