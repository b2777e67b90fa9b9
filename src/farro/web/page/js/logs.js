/* The output of a job as it comes: one stream of one attempt and its followers, the newest at the foot. What lies before
 * is fetched when it is asked for, and what is too long for a page can be saved. */
import { bare, coloured } from "./ansi.js";
import { get, path, query } from "./api.js";
import { icon } from "./icons.js";
import { pulse } from "./live.js";
import { toast } from "./overlay.js";
import { standing } from "./parts.js";
import { plain } from "./plain.js";
import { h } from "./view.js";
import { ago, bytes, clock, count, many, said } from "./words.js";

const PAGE_LINES = 1000;
const MOST_LINES = 10_000; // of what a page can hold
const RETRY_MS = 2000;

export function logs(id, step, redraw) {
  let source = null;
  let place = null; // the element that holds the lines; filled by hand, for speed
  let lines = []; // {step, stream, attempt, text, open, style, after}
  let waiting = [];
  let earlier = null; // what lies before: {before, lines, bytes}
  let fetching = false;
  let dropped = 0;
  let following = true;
  let over = false;
  let begun = false;
  let timer = 0;
  let frame = 0;
  let attempt = null; // whose output comes now
  let wanted = null; // the attempt that was chosen; null: the last that has output, and what follows it
  let chosen = step;
  let wrapped = true;
  let searched = "";
  const alive = pulse(() => again());

  const address = (rest, fields) => `${path("jobs", id, "logs")}${rest}${query({ attempt: wanted, step: chosen, ...fields })}`;

  function open() {
    close();
    over = false;
    source = new EventSource(address("/stream", { tail: PAGE_LINES }));
    const on = (kind, take) => source.addEventListener(kind, (event) => { alive.heard(); take(JSON.parse(event.data)); });
    on("begin", (told) => { clear(); begun = true; attempt = told.attempt; earlier = told.earlier; redraw(); });
    on("output", take);
    on("beat", () => {});
    on("state", () => {});
    on("trouble", (told) => { over = true; close(); take({ step: null, stream: "runner", text: `${told.error.message || "the output cannot be read"}\n` }); redraw(); });
    on("end", () => { over = true; close(); redraw(); });
    source.onerror = again;
    alive.heard();
    redraw();
  }
  function close() {
    clearTimeout(timer);
    alive.stop();
    if (source) { source.onerror = null; source.close(); source = null; }
  }
  function again() { close(); if (!over) timer = setTimeout(open, RETRY_MS); }
  /* What is seen stays until something newer is there. */
  function clear() {
    lines = []; waiting = []; earlier = null; dropped = 0;
    place?.replaceChildren();
  }
  function anew() { clear(); begun = false; following = true; open(); }

  /* `text` of one stream, behind `before`, as lines. */
  function split(told, before) {
    const raw = (told.text !== undefined ? told.text : decode(told.base64)).replace(/\r+\n/g, "\n");
    const parts = raw.split("\n");
    const made = [];
    parts.forEach((text, i) => {
      const end = i === parts.length - 1;
      if (end && text === "") return;
      made.push({ step: told.step, stream: told.stream, attempt: told.attempt, text, open: end, style: made.length ? null : before?.after, after: null });
    });
    return made;
  }
  function take(told) {
    if (told.attempt !== undefined && told.attempt !== null) attempt = told.attempt;
    const last = lines.findLast((line) => line.stream === told.stream && line.step === told.step && line.attempt === told.attempt);
    const goesOn = last && last.open && last === lines.at(-1);
    const made = split(told, last);
    if (goesOn && made.length) {
      const [first] = made.splice(0, 1);
      last.text += first.text;
      last.open = first.open;
      if (last.el) show(last, last.el.lastChild);
    }
    for (const line of made) { lines.push(line); waiting.push(line); }
    if (!frame) frame = requestAnimationFrame(append);
  }

  function append() {
    frame = 0;
    if (!place) return;
    const first = !place.firstChild;
    const more = document.createDocumentFragment();
    let before = lines[lines.length - waiting.length - 1] || null;
    for (const line of waiting) { more.append(...element(line, before)); before = line; }
    const grew = waiting.length > 0;
    waiting = [];
    place.append(more);
    while (lines.length > MOST_LINES) { const gone = lines.shift(); gone.el?.remove(); gone.head?.remove(); dropped += 1; }
    if (following) place.scrollTop = place.scrollHeight;
    if (first || grew) redraw();
  }

  async function fetchEarlier() {
    if (!earlier || fetching) return;
    fetching = true;
    redraw();
    try {
      const told = await get(address("", { attempt, tail: PAGE_LINES, before: earlier.before }));
      const more = told.output.flatMap((one) => split({ ...one, attempt: told.attempt }, null));
      earlier = told.earlier;
      lines = [...more, ...lines];
      const [height, top] = [place.scrollHeight, place.scrollTop];
      following = false;
      refill();
      place.scrollTop = place.scrollHeight - height + top;
    } catch (error) { toast("error", error.message); }
    fetching = false;
    redraw();
  }

  /* A line, with a heading before it where another attempt begins. */
  function element(line, before) {
    const el = document.createElement("div");
    el.className = `line ${line.stream === "stderr" ? "stderr" : line.stream === "runner" ? "runner" : ""}`;
    const gutter = document.createElement("span");
    gutter.className = "gutter";
    gutter.dataset.step = plain(line.step ?? "");
    if (line.stream === "stderr") gutter.title = "stderr";
    const text = document.createElement("span");
    text.className = "text";
    show(line, text, before);
    el.append(gutter, text);
    line.el = el;
    el.hidden = !matches(line);
    if (!before || before.attempt === line.attempt || line.attempt === undefined) return [el];
    line.head = document.createElement("div");
    line.head.className = "head-line";
    line.head.textContent = `Attempt ${line.attempt}`;
    return [line.head, el];
  }
  /* What a program wrote over itself with a carriage return is gone, as at a terminal. */
  function show(line, text, before = null) {
    const same = before && before.stream === line.stream && before.step === line.step && before.attempt === line.attempt;
    line.style ??= same ? before.after : {};
    const { parts, style } = coloured(line.text.split("\r").at(-1), line.style || {});
    line.after = style;
    text.replaceChildren(...parts.flatMap((part) => marked(part)));
  }
  function marked({ text, name }) {
    const pieces = searched ? around(plain(text), searched) : [[plain(text), false]];
    return pieces.map(([piece, hit]) => {
      if (!name && !hit) return document.createTextNode(piece);
      const el = document.createElement(hit ? "mark" : "span");
      if (name) el.className = name;
      el.append(document.createTextNode(piece));
      return el;
    });
  }
  const matches = (line) => !searched || plain(bare(line.text)).toLowerCase().includes(searched.toLowerCase());

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
    place.replaceChildren(...lines.flatMap((line, i) => element(line, lines[i - 1] || null)));
    waiting = [];
    requestAnimationFrame(() => { if (following && place) place.scrollTop = place.scrollHeight; });
  }
  function search(text) { searched = text; refill(); redraw(); }
  const follow = () => { following = true; if (place) place.scrollTop = place.scrollHeight; redraw(); };

  open();
  return {
    /* A new attempt began, or the stream had ended and the job goes on. */
    again(job) { if (over && !job.terminal && (attempt === null || job.attempt > attempt)) open(); },
    filter(next) { chosen = next; anew(); },
    follow,
    stop() { close(); cancelAnimationFrame(frame); },
    /* attempts: those that have output, [{number, role, at}], the first first. */
    view(job, attempts) {
      const shown = searched ? lines.filter(matches).length : lines.length;
      const steps = new Set(lines.map((line) => line.step).filter(Boolean));
      const several = attempts.length > 1;
      return h("div.logs",
        h("div.row.wrap.tools.small",
          sign(job, attempt),
          several ? h("select.input.narrow", { "aria-label": "Attempt", value: String(wanted ?? ""), on: { change: (event) => { wanted = Number(event.target.value) || null; anew(); } } },
            h("option", { value: "" }, wanted === null && attempt !== null ? `The last: ${attempt}, ${roleOf(attempts, attempt)}` : "The last"),
            attempts.map((one) => h("option", { key: one.number, value: String(one.number) }, `Attempt ${one.number}, ${one.role}${one.at ? `, ${clock(one.at)}` : ""}`))) : null,
          begun && (lines.length || job.attempt) ? h("span.quiet.num", { "data-lines": "" }, told(shown, lines.length, earlier, dropped, searched)) : null,
          chosen ? h("span.tag", `step ${chosen}`) : null,
          h("div.search.end", icon("search", 14), h("input.input", { type: "search", "aria-label": "Search the output", placeholder: "Search the output", value: searched, autocomplete: "off", on: { input: (event) => search(event.target.value) } })),
          h("button.button.ghost", { type: "button", "aria-pressed": String(wrapped), on: { click: () => { wrapped = !wrapped; redraw(); } } }, "Wrap"),
          h("button.button.ghost", { type: "button", "aria-pressed": String(following), title: "Follow (f)", on: { click: () => { if (following) { following = false; redraw(); } else follow(); } } }, icon("down", 14), "Follow"),
          lines.length ? h("a.button.ghost", { href: address("/whole", { attempt }), download: "", title: "All of it, as it was said" }, icon("download", 14), "Save") : null),
        earlier && lines.length ? h("div.earlier.small", lines.length < MOST_LINES && !dropped
          ? h("button.button.ghost", { type: "button", disabled: fetching, on: { click: fetchEarlier } }, `Show earlier lines`) : h("span.quiet", "More than a page holds. Save it to read the rest.")) : null,
        shown ? null : h("p.empty.quiet", nothing(job, { chosen, attempt, begun, searched: searched && lines.length })),
        h("div.log.code", { key: "log", made: fill, role: "log", "aria-label": "Output", tabindex: 0, hidden: !shown, class: `${wrapped ? "" : "unwrapped"}${steps.size < 2 ? " single" : ""}` }));
    },
  };
}

const roleOf = (attempts, number) => attempts.find((one) => one.number === number)?.role || "";

/* How many lines are there, and how many of them are here. */
function told(shown, here, earlier, dropped, searched) {
  if (searched) return `${count(shown)} of ${many(here, "line")} match`;
  if (!earlier && !dropped) return many(here, "line");
  if (earlier && earlier.lines === null) return `the last ${many(here, "line")}, after ${bytes(earlier.bytes)}`;
  return `${here} of ${here + (earlier ? earlier.lines : 0) + dropped} lines`;
}

/* Whether more may come, and from whom. */
function sign(job, attempt) {
  const state = (name, text, moves) => h("span.state", { "data-state": name }, icon(name, 12, moves ? { class: "spin" } : {}), text);
  if (job.terminal) return h("span.quiet", "Ended");
  if (job.status === "in_progress" && (attempt === null || attempt === job.attempt)) return state("in_progress", "Streaming", true);
  const how = standing(job);
  if (!job.attempt) return state(how, { queued: "Not begun", delayed: "Not begun", waiting: "Not begun" }[how] || said(how));
  return h("span.quiet", attempt === null ? said(how) : `Attempt ${attempt} has ended`);
}

function nothing(job, { chosen, attempt, begun, searched }) {
  if (searched) return "No line has these words.";
  if (!begun) return "Reading the output …";
  if (!job.attempt) {
    const how = standing(job);
    if (how === "delayed") return `It has not begun. It may begin ${ago(job.not_before)}.`;
    if (how === "waiting") return job.person ? "It has not begun. It waits for a person." : `It has not begun. It waits for ${many(job.waits_for.length, "other job")}.`;
    return "It has not begun.";
  }
  const live = job.status === "in_progress" && (attempt === null || attempt === job.attempt);
  if (chosen) return `Step ${chosen} has said nothing${live ? " yet" : attempt === null ? "" : ` in attempt ${attempt}`}.`;
  return live ? "Nothing yet." : "It said nothing.";
}

/* [[text, hit]]: the parts of a text that were searched for, and those between. */
function around(text, searched) {
  const [whole, sought] = [text.toLowerCase(), searched.toLowerCase()];
  if (whole.length !== text.length) return [[text, false]]; // letters that have no lower case of their length
  const out = [];
  let at = 0;
  for (let hit = whole.indexOf(sought); hit >= 0; hit = whole.indexOf(sought, at)) {
    if (hit > at) out.push([text.slice(at, hit), false]);
    out.push([text.slice(hit, hit + sought.length), true]);
    at = hit + sought.length;
  }
  if (at < text.length) out.push([text.slice(at), false]);
  return out;
}

const decode = (text) => { try { return new TextDecoder("utf-8").decode(Uint8Array.from(atob(text || ""), (char) => char.charCodeAt(0))); } catch { return ""; } };
