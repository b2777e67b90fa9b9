/* The output of a job as it comes: one stream, kept by step, the newest at the foot. */
import { icon } from "./icons.js";
import { output, plain } from "./plain.js";
import { h } from "./view.js";

const MOST_LINES = 4000;
const RETRY_MS = 2000;

export function logs(id, step, redraw) {
  let source = null;
  let place = null; // the element that holds the lines; filled by hand, for speed
  let lines = []; // {step, stream, attempt, text, open}
  let waiting = [];
  let dropped = 0;
  let following = true;
  let over = false;
  let timer = 0;
  let attempt = null;
  let frame = 0;
  let chosen = step;
  let wrapped = true;

  function open() {
    clearTimeout(timer);
    if (source) source.close();
    lines = []; waiting = []; dropped = 0; over = false;
    if (place) place.replaceChildren();
    source = new EventSource(`/api/jobs/${encodeURIComponent(id)}/logs/stream?tail=1000`);
    source.addEventListener("output", (event) => take(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => { over = true; source.close(); take({ step: null, stream: "runner", text: `${JSON.parse(event.data).error.message || "the output cannot be read"}\n` }); redraw(); });
    source.addEventListener("end", () => { over = true; source.close(); redraw(); });
    source.onerror = () => { source.close(); if (!over) timer = setTimeout(open, RETRY_MS); };
    redraw();
  }

  function take(told) {
    const raw = told.text !== undefined ? told.text : decode(told.base64);
    if (told.attempt !== undefined && told.attempt !== null) attempt = told.attempt;
    const parts = output(raw).split("\n");
    const last = lines.at(-1);
    const goesOn = last && last.open && last.step === told.step && last.stream === told.stream && last.attempt === told.attempt;
    parts.forEach((text, i) => {
      const end = i === parts.length - 1;
      if (end && text === "") return;
      if (i === 0 && goesOn) { last.text += text; last.open = end; if (last.el) last.el.lastChild.data = plain(last.text.split("\r").at(-1)); return; }
      const made = { step: told.step, stream: told.stream, attempt: told.attempt, text, open: end };
      lines.push(made);
      waiting.push(made);
    });
    if (parts.length > 1 && goesOn && parts.at(-1) === "") lines.at(-1).open = false;
    if (!frame) frame = requestAnimationFrame(append);
  }

  const visible = (line) => chosen === null || chosen === undefined || line.step === chosen;

  function append() {
    frame = 0;
    if (!place) return;
    const first = !place.firstChild;
    const more = document.createDocumentFragment();
    for (const line of waiting) if (visible(line)) more.append(element(line));
    waiting = [];
    place.append(more);
    while (lines.length > MOST_LINES) { const gone = lines.shift(); gone.el?.remove(); dropped += 1; }
    if (following) place.scrollTop = place.scrollHeight;
    if (first) redraw();
  }

  function element(line) {
    const el = document.createElement("div");
    el.className = `line ${line.stream === "stderr" ? "stderr" : line.stream === "runner" ? "runner" : ""}`;
    const gutter = document.createElement("span");
    gutter.className = "gutter";
    gutter.textContent = plain(line.step ?? (line.stream === "runner" ? "·" : ""));
    if (line.stream === "stderr") gutter.title = "stderr";
    el.append(gutter, document.createTextNode(plain(line.text.split("\r").at(-1))));
    line.el = el;
    return el;
  }

  function fill(el) {
    place = el;
    el.addEventListener("scroll", () => {
      const low = el.scrollHeight - el.scrollTop - el.clientHeight < 24;
      if (low !== following) { following = low; redraw(); }
    }, { passive: true });
    refill();
  }
  function refill() {
    if (!place) return;
    place.replaceChildren(...lines.filter(visible).map(element));
    waiting = [];
    requestAnimationFrame(() => { if (following && place) place.scrollTop = place.scrollHeight; });
  }

  open();
  return {
    /* A new attempt began, or the stream had ended and the job goes on. */
    again(job) { if (over && !job.terminal && (attempt === null || job.attempt > attempt)) open(); },
    filter(next) { chosen = next; refill(); },
    follow() { following = true; if (place) place.scrollTop = place.scrollHeight; redraw(); },
    stop() { clearTimeout(timer); cancelAnimationFrame(frame); source?.close(); },
    view(job) {
      const any = lines.some(visible);
      const steps = [...new Set(lines.map((line) => line.step).filter(Boolean))];
      return h("div.logs",
        h("div.row.tools.small",
          over ? h("span.quiet", "Ended") : h("span.state", { "data-state": "in_progress" }, icon("in_progress", 12, { class: "spin" }), "Streaming"),
          h("span.quiet.num", `${lines.length}${dropped ? ` of ${lines.length + dropped}` : ""} lines`), chosen ? h("span.tag", `step ${chosen}`) : null,
          h("button.button.ghost.end", { type: "button", "aria-pressed": String(wrapped), on: { click: () => { wrapped = !wrapped; redraw(); } } }, "Wrap"),
          h("button.button.ghost", { type: "button", "aria-pressed": String(following), title: "Follow (f)", on: { click: () => { following = !following; if (following) this.follow(); redraw(); } } }, icon("down", 14), "Follow")),
        any ? null : h("p.empty.quiet", chosen ? `Step ${chosen} has said nothing${over ? "" : " yet"}.` : over ? "It said nothing." : job.status === "queued" ? "It has not begun." : "Nothing yet."),
        h("div.log.code", { key: "log", made: fill, role: "log", "aria-label": "Output", tabindex: 0, hidden: !any, class: `${wrapped ? "" : "unwrapped"}${steps.length < 2 ? " single" : ""}` }));
    },
  };
}

const decode = (text) => { try { return new TextDecoder("utf-8").decode(Uint8Array.from(atob(text || ""), (char) => char.charCodeAt(0))); } catch { return ""; } };
