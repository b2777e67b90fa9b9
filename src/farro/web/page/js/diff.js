/* A unified diff, a file at a time, with the numbers of its lines. Signs stay: colour is not all that tells. */
import { h } from "./view.js";

const MOST_LINES = 4000;

export function parseDiff(text) {
  const files = [];
  let file = null;
  let left = 0;
  let right = 0;
  for (const line of text.split("\n").slice(0, MOST_LINES)) {
    const names = /^diff --git a\/(.+) b\/(.+)$/.exec(line);
    if (names || (line.startsWith("--- ") && (!file || file.lines.length))) {
      file = { name: names ? names[2] : "", lines: [], added: 0, removed: 0 };
      files.push(file);
      if (names) continue;
    }
    if (!file) continue;
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/.exec(line);
    if (hunk) {
      left = Number(hunk[1]);
      right = Number(hunk[2]);
      file.lines.push({ kind: "hunk", text: hunk[3].trim() || "…" });
    } else if (line.startsWith("+++ ")) { if (line !== "+++ /dev/null") file.name = line.slice(4).replace(/^b\//, ""); }
    else if (line.startsWith("--- ")) { if (!file.name && line !== "--- /dev/null") file.name = line.slice(4).replace(/^a\//, ""); }
    else if (!file.lines.length) continue; // index, mode
    else if (line.startsWith("+")) { file.added += 1; file.lines.push({ kind: "added", right: right++, text: line.slice(1) }); }
    else if (line.startsWith("-")) { file.removed += 1; file.lines.push({ kind: "removed", left: left++, text: line.slice(1) }); }
    else if (line.startsWith(" ") || line === "") file.lines.push({ kind: "same", left: left++, right: right++, text: line.slice(1) });
  }
  return files.filter((one) => one.lines.length || one.name);
}

export function diff(text) {
  const files = parseDiff(text);
  if (!files.length) return h("pre.code.box", text);
  return h("div.stack.tight", files.map((file, index) =>
    h("details.diff", { key: index, open: index < 6 },
      h("summary", h("span.mono.clip", file.name || "file"), h("span.end.num.plus", `+${file.added}`), h("span.num.minus", `−${file.removed}`)),
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": `Changes of ${file.name}` }, h("table.code", h("tbody", trimmed(file.lines).map((line) =>
        h("tr", { class: line.kind }, h("td.no.num", line.left || ""), h("td.no.num", line.right || ""), h("td.sign", { added: "+", removed: "−" }[line.kind] || ""), h("td.text", line.text)))))))));
}
const trimmed = (lines) => { const last = lines.at(-1); return last && last.kind === "same" && last.text === "" ? lines.slice(0, -1) : lines; };
