/* Show a unified diff: each file with its line numbers and signs. Colour is not the only difference. */
import { h } from "./view.js";

const MOST_LINES = 4000;
const OPEN_FILES = 6;
const SIGNS = { added: "+", removed: "−" };
const FILE_HEAD = /^diff --git a\/(.+) b\/(.+)$/;
const HUNK_HEAD = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;

export function diff(text) {
  const files = parseDiff(text);
  if (!files.length) return h("pre.code.box", text);
  return h("div.stack.tight", files.map(fileNode));
}

function fileNode(file, index) {
  const rows = file.lines.map((line) =>
    h(
      "tr",
      { class: line.kind },
      h("td.no.num", line.left || ""),
      h("td.no.num", line.right || ""),
      h("td.sign", SIGNS[line.kind] || ""),
      h("td.text", line.text),
    ),
  );
  return h(
    "details.diff",
    { key: index, open: index < OPEN_FILES },
    h(
      "summary",
      h("span.mono.clip", file.name || "file"),
      h("span.end.num.plus", `+${file.added}`),
      h("span.num.minus", `−${file.removed}`),
    ),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": `Changes of ${file.name}` },
      h("table.code", h("tbody", rows)),
    ),
  );
}

function parseDiff(text) {
  const files = [];
  for (const line of text.split("\n").slice(0, MOST_LINES)) {
    const head = FILE_HEAD.exec(line);
    const last = files.at(-1);
    if (head) files.push(new DiffFile(head[2]));
    else {
      // A diff without git's heads begins each file with "---".
      if (line.startsWith("--- ") && (!last || last.lines.length)) files.push(new DiffFile(""));
      files.at(-1)?.read(line);
    }
  }
  for (const file of files) file.dropTrailingBlank();
  return files.filter((file) => file.lines.length || file.name);
}

class DiffFile {
  constructor(name) {
    this.name = name;
    this.lines = []; // { kind, left, right, text }
    this.added = 0;
    this.removed = 0;
    this.left = 0; // the next line number of the old file
    this.right = 0; // and of the new file
  }

  read(line) {
    const hunk = HUNK_HEAD.exec(line);
    if (hunk) {
      this.left = Number(hunk[1]);
      this.right = Number(hunk[2]);
      this.lines.push({ kind: "hunk", text: hunk[3].trim() || "…" });
    } else if (line.startsWith("+++ ")) {
      if (line !== "+++ /dev/null") this.name = line.slice(4).replace(/^b\//, "");
    } else if (line.startsWith("--- ")) {
      if (!this.name && line !== "--- /dev/null") this.name = line.slice(4).replace(/^a\//, "");
    } else if (this.lines.length) this.readContent(line); // git writes the index and the mode before the first hunk
  }

  readContent(line) {
    const text = line.slice(1);
    if (line.startsWith("+")) {
      this.lines.push({ kind: "added", right: this.right, text });
      this.right += 1;
      this.added += 1;
    } else if (line.startsWith("-")) {
      this.lines.push({ kind: "removed", left: this.left, text });
      this.left += 1;
      this.removed += 1;
    } else if (line.startsWith(" ") || line === "") {
      this.lines.push({ kind: "same", left: this.left, right: this.right, text });
      this.left += 1;
      this.right += 1;
    }
  }

  /* The newline at the end of the text looks like one more unchanged line. */
  dropTrailingBlank() {
    const last = this.lines.at(-1);
    if (last && last.kind === "same" && last.text === "") this.lines.pop();
  }
}
