/* The lines of a job's output in the document: split from the stream, coloured, searched, and kept to a limit. */
import { splitColours, withoutColours } from "../ansi.js";
import { safeText } from "../safe_text.js";

const NEAR_END_PX = 24;

/* A chunk of the stream is { step, stream, attempt, text or base64 }. A line is
 *   step, stream, attempt   as in its chunk
 *   text                    without its newline
 *   isOpen                  the newline has not come yet
 *   styleBefore, styleAfter colours at its beginning and its end
 *   element, heading        in the document; a line has a heading where another attempt begins */
export class OutputLines {
  constructor(limit, onChange) {
    this.limit = limit;
    this.onChange = onChange;
    this.container = null;
    this.lines = [];
    this.pending = []; // those of `lines` that are not in the document yet
    this.dropped = 0; // lines that were removed to keep to the limit
    this.searched = "";
    this.following = true; // keep the newest line in sight
    this.frameRequest = 0;
  }

  get count() {
    return this.lines.length;
  }

  shownCount() {
    return this.searched ? this.lines.filter((line) => this.matches(line)).length : this.lines.length;
  }

  stepCount() {
    return new Set(this.lines.map((line) => line.step).filter(Boolean)).size;
  }

  stop() {
    cancelAnimationFrame(this.frameRequest);
  }

  clear() {
    this.lines = [];
    this.pending = [];
    this.dropped = 0;
    this.container?.replaceChildren();
  }

  /* Reading the stream */

  add(chunk) {
    const last = this.lines.findLast((line) => isSameStream(line, chunk));
    const lines = splitLines(chunk);
    if (lines.length && last && last.isOpen && last === this.lines.at(-1)) this.continueLine(last, lines.shift());
    if (lines.length && last) lines[0].styleBefore = last.styleAfter;
    this.lines.push(...lines);
    this.pending.push(...lines);
    if (!this.frameRequest) this.frameRequest = requestAnimationFrame(() => this.appendPending());
  }

  continueLine(line, rest) {
    line.text += rest.text;
    line.isOpen = rest.isOpen;
    if (line.element) this.fillText(line, line.element.lastChild, null);
  }

  /* Put earlier output before the rest, without moving what the user reads. */
  addBefore(chunks) {
    this.lines = [...chunks.flatMap(splitLines), ...this.lines];
    const { scrollHeight, scrollTop } = this.container;
    this.following = false;
    this.redrawAll();
    this.container.scrollTop = this.container.scrollHeight - scrollHeight + scrollTop;
  }

  appendPending() {
    this.frameRequest = 0;
    if (!this.container) return;
    const added = this.pending;
    this.pending = [];
    let before = this.lines[this.lines.length - added.length - 1] || null;
    for (const line of added) {
      this.container.append(...this.elementsOf(line, before));
      before = line;
    }
    this.dropOldest();
    if (this.following) this.scrollToEnd();
    this.onChange();
  }

  dropOldest() {
    while (this.lines.length > this.limit) {
      const line = this.lines.shift();
      line.element?.remove();
      line.heading?.remove();
      this.dropped += 1;
    }
  }

  /* Scrolling */

  showIn(container) {
    this.container = container;
    const onScroll = () => {
      const atEnd = container.scrollHeight - container.scrollTop - container.clientHeight < NEAR_END_PX;
      if (atEnd === this.following) return;
      this.following = atEnd;
      this.onChange();
    };
    container.addEventListener("scroll", onScroll, { passive: true });
    this.redrawAll();
  }

  follow() {
    this.following = true;
    this.scrollToEnd();
  }

  scrollToEnd() {
    if (this.container) this.container.scrollTop = this.container.scrollHeight;
  }

  /* Drawing */

  search(text) {
    this.searched = text;
    this.redrawAll();
  }

  matches(line) {
    if (!this.searched) return true;
    return safeText(withoutColours(line.text)).toLowerCase().includes(this.searched.toLowerCase());
  }

  redrawAll() {
    if (!this.container) return;
    this.container.replaceChildren(
      ...this.lines.flatMap((line, index) => this.elementsOf(line, this.lines[index - 1] || null)),
    );
    this.pending = [];
    requestAnimationFrame(() => {
      if (this.following) this.scrollToEnd();
    });
  }

  /* A line, with a heading before it where another attempt begins. */
  elementsOf(line, before) {
    const gutter = newElement("span", "gutter");
    gutter.dataset.step = safeText(line.step ?? "");
    if (line.stream === "stderr") gutter.title = "stderr";
    const text = newElement("span", "text");
    this.fillText(line, text, before);
    const marked = ["stderr", "runner"].includes(line.stream);
    line.element = newElement("div", marked ? `line ${line.stream}` : "line");
    line.element.append(gutter, text);
    line.element.hidden = !this.matches(line);
    const continues = !before || before.attempt === line.attempt || line.attempt === undefined;
    if (continues) return [line.element];
    line.heading = newElement("div", "head-line", `Attempt ${line.attempt}`);
    return [line.heading, line.element];
  }

  /* As at a terminal, a carriage return overwrites what came before it in the line. */
  fillText(line, container, before) {
    line.styleBefore ??= before && isSameStream(before, line) ? before.styleAfter : {};
    const { parts, style } = splitColours(line.text.split("\r").at(-1), line.styleBefore || {});
    line.styleAfter = style;
    container.replaceChildren(...parts.flatMap((part) => this.partNodes(part)));
  }

  partNodes({ text, className }) {
    return splitMatches(safeText(text), this.searched).map(({ piece, isMatch }) => {
      if (!className && !isMatch) return document.createTextNode(piece);
      return newElement(isMatch ? "mark" : "span", className, piece);
    });
  }
}

const isSameStream = (one, other) =>
  one.stream === other.stream && one.step === other.step && one.attempt === other.attempt;

function newElement(tag, className, text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.append(document.createTextNode(text));
  return element;
}

function splitLines(chunk) {
  const { step, stream, attempt } = chunk;
  const text = chunk.text !== undefined ? chunk.text : decodeBase64(chunk.base64);
  const parts = text.replace(/\r+\n/g, "\n").split("\n");
  const rest = parts.pop(); // after the last newline
  const newLine = (content, isOpen) => ({
    ...{ step, stream, attempt, text: content, isOpen },
    ...{ styleBefore: null, styleAfter: null, element: null, heading: null },
  });
  const lines = parts.map((part) => newLine(part, false));
  return rest === "" ? lines : [...lines, newLine(rest, true)];
}

/* Output that is not UTF-8 arrives in base64. */
function decodeBase64(text) {
  try {
    const octets = Uint8Array.from(atob(text || ""), (char) => char.charCodeAt(0));
    return new TextDecoder("utf-8").decode(octets);
  } catch {
    return "";
  }
}

/* The parts of `text` that match what is searched for, and those between. */
function splitMatches(text, searched) {
  const whole = text.toLowerCase();
  const sought = searched.toLowerCase();
  // The lower case of some letters has another length: then the positions would be wrong.
  if (!sought || whole.length !== text.length) return [{ piece: text, isMatch: false }];
  const pieces = [];
  let position = 0;
  for (let match = whole.indexOf(sought); match >= 0; match = whole.indexOf(sought, position)) {
    if (match > position) pieces.push({ piece: text.slice(position, match), isMatch: false });
    position = match + sought.length;
    pieces.push({ piece: text.slice(match, position), isMatch: true });
  }
  if (position < text.length) pieces.push({ piece: text.slice(position), isMatch: false });
  return pieces;
}
