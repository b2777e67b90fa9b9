/* Markdown as nodes of the view layer: headings, lists, quotes, code, emphasis, tables.
 *
 * Nothing becomes HTML. Links lead only to http(s) addresses and open in a new tab. Whatever is not understood stays
 * the text that it was. */
import { diff } from "./diff.js";
import { h } from "./view.js";

const MOST_CHARACTERS = 200_000; // a longer text is shown as its source
const MOST_NESTED = 8;

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^#{1,6}\s/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>/;
const LIST_ITEM = /^\s*(?:[-*+]|\d{1,9}[.)])\s+\S/;
const LIST_MARKER = /^\s*(?:[-*+]|\d{1,9}[.)])\s+/;
const TABLE_RULE = /^\s*\|?[\s:|-]*-[\s:|-]*$/;
const ENDS_PARAGRAPH = /^(#{1,6}\s| {0,3}(```|~~~|>))/;

export function markdown(source) {
  if (source.length > MOST_CHARACTERS) return h("pre.code.box", source);
  return h("div.prose", blocks(source.replace(/\r\n?/g, "\n").split("\n"), 0));
}

/* Each kind of block: whether it begins at a line, and how it is read. Read returns [node, the line after it]. */
const BLOCKS = [
  [(lines, at) => FENCE.test(lines[at]), readFence],
  [(lines, at) => HEADING.test(lines[at]), readHeading],
  [(lines, at) => RULE.test(lines[at]), (lines, at) => [h("hr"), at + 1]],
  [(lines, at, depth) => QUOTE.test(lines[at]) && depth < MOST_NESTED, readQuote],
  [(lines, at, depth) => LIST_ITEM.test(lines[at]) && depth < MOST_NESTED, readList],
  [beginsTable, readTable],
  [() => true, readParagraph],
];

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [, read] = BLOCKS.find(([begins]) => begins(lines, at, depth));
    const [node, next] = read(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
}

/* The first line from `at` on that does not belong; at least one line is taken. */
function endOf(lines, at, belongs) {
  let end = at;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return Math.max(end, at + 1);
}

function readFence(lines, at) {
  const [, fence] = FENCE.exec(lines[at]);
  const close = lines.findIndex((line, index) => index > at && line.trim().startsWith(fence));
  const end = close < 0 ? lines.length : close;
  const code = lines.slice(at + 1, end).join("\n");
  const language = lines[at].trim().slice(fence.length);
  const node = /^(diff|patch)\b/.test(language) ? diff(code) : h("pre.code.box", h("code", code));
  return [node, end + 1];
}

function readHeading(lines, at) {
  const level = /^#+/.exec(lines[at])[0].length;
  const text = lines[at].replace(/^#+\s+/, "").replace(/\s+#+$/, "");
  return [h(["h3", "h3", "h4"][level - 1] || "h5", inline(text)), at + 1];
}

function readQuote(lines, at, depth) {
  const end = endOf(lines, at, (line) => QUOTE.test(line));
  const quoted = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [h("blockquote", blocks(quoted, depth + 1)), end];
}

function readList(lines, at, depth) {
  const ordered = /^\s*\d/.test(lines[at]);
  const end = endOf(lines, at, (line) => LIST_ITEM.test(line) || /^\s{2,}\S/.test(line));
  return [h(ordered ? "ol" : "ul", listItems(lines.slice(at, end), depth)), end];
}

function listItems(lines, depth) {
  const indent = indentOf(lines[0]);
  const items = [];
  for (const line of lines) {
    const begins = LIST_ITEM.test(line) && indentOf(line) <= indent + 1;
    if (begins) items.push({ first: line.replace(LIST_MARKER, ""), rest: [] });
    else items.at(-1)?.rest.push(line.replace(new RegExp(`^\\s{0,${indent + 4}}`), ""));
  }
  return items.map(({ first, rest }) => h("li", inline(first), rest.length ? blocks(rest, depth + 1) : null));
}

const indentOf = (line) => /^\s*/.exec(line)[0].length;

function beginsTable(lines, at) {
  const next = lines[at + 1] || "";
  return lines[at].includes("|") && TABLE_RULE.test(next) && next.includes("|");
}

function readTable(lines, at) {
  const end = endOf(lines, at, (line) => line.includes("|"));
  const [head, , ...rows] = lines.slice(at, end).map(tableCells);
  const node = h(
    "div.scroll",
    h(
      "table.table",
      h("thead", h("tr", head.map((cell) => h("th", { scope: "col" }, inline(cell))))),
      h("tbody", rows.map((row) => h("tr", row.map((cell) => h("td", inline(cell)))))),
    ),
  );
  return [node, end];
}

const tableCells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function readParagraph(lines, at) {
  const belongs = (line) => line.trim() && !ENDS_PARAGRAPH.test(line) && !LIST_ITEM.test(line);
  const end = endOf(lines, at, belongs);
  return [h("p", inline(lines.slice(at, end).join("\n"))), end];
}

/* Code before links before emphasis. Each pattern takes linear time: a text must not be able to stall the page. */
const INLINE_PATTERNS = [
  "(?<!`)(?<ticks>`{1,8})(?!`)(?<code>[^\\n]{1,1000}?)(?<!`)\\k<ticks>(?!`)",
  "\\[(?<label>[^\\][]{1,500})\\]\\((?<target>https?:\\/\\/[^\\s()]{1,2000})\\)",
  "\\*\\*(?<strong>[^*\\n]{1,2000})\\*\\*",
  "__(?<strong2>[^_\\n]{1,2000})__",
  "\\*(?<em>[^*\\s][^*\\n]{0,2000}?)\\*",
  "(?<bare>https?:\\/\\/[^\\s<>()\"']{1,2000})",
];
const INLINE = new RegExp(INLINE_PATTERNS.join("|"), "g");

function inline(text) {
  const nodes = [];
  let position = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > position) nodes.push(text.slice(position, match.index));
    nodes.push(inlineNode(match.groups));
    position = match.index + match[0].length;
  }
  if (position < text.length) nodes.push(text.slice(position));
  return nodes;
}

function inlineNode({ code, label, target, strong, strong2, em, bare }) {
  if (code !== undefined) return h("code", code.trim());
  if (target !== undefined) return link(target, label);
  if (em !== undefined) return h("em", em);
  if (bare !== undefined) return link(bare, bare);
  return h("strong", strong ?? strong2);
}

/* A label may pretend to be another address: show the host beside it. */
function link(target, label) {
  if (!URL.canParse(target)) return label === target ? label : `${label} (${target})`;
  const anchor = h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, label);
  return label === target ? anchor : [anchor, h("span.quiet.small", ` (${new URL(target).host})`)];
}
