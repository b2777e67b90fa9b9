/* Markdown to nodes of the page: headings, lists, quotes, code, emphasis, tables. Nothing becomes HTML, links are only
 * http(s) and open elsewhere; whatever is not understood stays the text that it was. */
import { diff } from "./diff.js";
import { h } from "./view.js";

const MOST = 200_000; // characters; more is shown as its source

export function markdown(source) {
  if (source.length > MOST) return h("pre.code.box", source);
  return h("div.prose", blocks(source.replace(/\r\n?/g, "\n").split("\n"), 0));
}

function blocks(lines, depth) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^ {0,3}(```+|~~~+)/.exec(line);
    if (fence) {
      const end = lines.findIndex((one, i) => i > at && one.trim().startsWith(fence[1]));
      const stop = end < 0 ? lines.length : end;
      const inside = lines.slice(at + 1, stop).join("\n");
      out.push(/^(diff|patch)\b/.test(line.trim().slice(fence[1].length)) ? diff(inside) : h("pre.code.box", h("code", inside)));
      at = stop + 1;
    } else if (!line.trim()) at += 1;
    else if (/^#{1,6}\s/.test(line)) {
      const level = /^#+/.exec(line)[0].length;
      out.push(h(level < 3 ? "h3" : level === 3 ? "h4" : "h5", inline(line.replace(/^#+\s+/, "").replace(/\s+#+$/, ""))));
      at += 1;
    } else if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) { out.push(h("hr")); at += 1; }
    else if (/^ {0,3}>/.test(line) && depth < 8) {
      const end = after(lines, at, (one) => /^ {0,3}>/.test(one));
      out.push(h("blockquote", blocks(lines.slice(at, end).map((one) => one.replace(/^ {0,3}> ?/, "")), depth + 1)));
      at = end;
    } else if (LIST.test(line) && depth < 8) {
      const ordered = /^\s*\d/.test(line);
      const indent = /^\s*/.exec(line)[0].length;
      const end = after(lines, at, (one) => LIST.test(one) || /^\s{2,}\S/.test(one));
      out.push(h(ordered ? "ol" : "ul", items(lines.slice(at, end), indent, depth)));
      at = end;
    } else if (line.includes("|") && /^\s*\|?[\s:|-]*-[\s:|-]*$/.test(lines[at + 1] || "") && (lines[at + 1] || "").includes("|")) {
      const end = after(lines, at, (one) => one.includes("|"));
      out.push(table(lines.slice(at, end)));
      at = end;
    } else {
      const end = Math.max(at + 1, after(lines, at, (one) => one.trim() && !/^(#{1,6}\s| {0,3}(```|~~~|>))/.test(one) && !LIST.test(one)));
      out.push(h("p", inline(lines.slice(at, end).join("\n"))));
      at = end;
    }
  }
  return out;
}

const LIST = /^\s*(?:[-*+]|\d{1,9}[.)])\s+\S/;
const after = (lines, at, goes) => { let end = at; while (end < lines.length && goes(lines[end])) end += 1; return Math.max(end, at + 1); };

function items(lines, indent, depth) {
  const out = [];
  let own = null;
  const close = () => { if (own) out.push(h("li", inline(own.first), own.rest.length ? blocks(own.rest, depth + 1) : null)); };
  for (const line of lines) {
    const begins = LIST.test(line) && /^\s*/.exec(line)[0].length <= indent + 1;
    if (begins) { close(); own = { first: line.replace(/^\s*(?:[-*+]|\d{1,9}[.)])\s+/, ""), rest: [] }; }
    else if (own) own.rest.push(line.replace(new RegExp(`^\\s{0,${indent + 4}}`), ""));
  }
  close();
  return out;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
function table(lines) {
  const [head, , ...rows] = lines;
  return h("div.scroll", h("table.table", h("thead", h("tr", cells(head).map((cell) => h("th", { scope: "col" }, inline(cell))))), h("tbody", rows.map((row) => h("tr", cells(row).map((cell) => h("td", inline(cell))))))));
}

/* Code first, then links, then emphasis; each pattern is linear in the text. */
const SPANS = /(?<!`)(`{1,8})(?!`)([^\n]{1,1000}?)(?<!`)\1(?!`)|\[([^\][]{1,500})\]\((https?:\/\/[^\s()]{1,2000})\)|\*\*([^*\n]{1,2000})\*\*|__([^_\n]{1,2000})__|\*([^*\s][^*\n]{0,2000}?)\*|(https?:\/\/[^\s<>()"']{1,2000})/g;
function inline(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(SPANS)) {
    if (found.index > at) out.push(text.slice(at, found.index));
    const [whole, , code, label, target, bold, bold2, slanted, bare] = found;
    if (code !== undefined) out.push(h("code", code.trim()));
    else if (target !== undefined) out.push(outside(target, label));
    else if (bold !== undefined || bold2 !== undefined) out.push(h("strong", bold || bold2));
    else if (slanted !== undefined) out.push(h("em", slanted));
    else if (bare !== undefined) out.push(outside(bare, bare));
    at = found.index + whole.length;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

/* The address is shown where the words do not: a result may want to lead people astray. */
function outside(target, label) {
  if (!URL.canParse(target)) return label === target ? label : `${label} (${target})`;
  return [h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, label), label === target ? null : h("span.quiet.small", ` (${new URL(target).host})`)];
}
