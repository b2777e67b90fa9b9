/* Split a command line into words as a POSIX shell does: quotes and backslashes, and nothing else that a shell does. */

/* Inside double quotes a backslash quotes only these. */
const ESCAPABLE = new Set(["$", "`", '"', "\\", "\n"]);

/* Throw where the line ends inside a quote: a shell would wait for the rest. */
export function splitCommandLine(line) {
  const words = [];
  let word = null; // null between words; "" is an empty word, from ''
  let position = 0;
  while (position < line.length) {
    const char = line[position];
    if (char === "'" || char === '"') {
      const { text, end } = char === "'" ? readSingleQuoted(line, position) : readDoubleQuoted(line, position);
      word = (word ?? "") + text;
      position = end;
    } else if (char === "\\") {
      const next = line[position + 1];
      if (next === undefined) throw new Error("The line ends with a backslash. Write \\\\ for a backslash.");
      if (next !== "\n") word = (word ?? "") + next;
      position += 2;
    } else {
      if (!/\s/.test(char)) word = (word ?? "") + char;
      else if (word !== null) {
        words.push(word);
        word = null;
      }
      position += 1;
    }
  }
  if (word !== null) words.push(word);
  return words;
}

/* `start` is the opening quote, `end` the position after the closing one. */
function readSingleQuoted(line, start) {
  const close = line.indexOf("'", start + 1);
  if (close < 0) throw new Error("The single quote ' is not closed.");
  return { text: line.slice(start + 1, close), end: close + 1 };
}

function readDoubleQuoted(line, start) {
  let text = "";
  for (let position = start + 1; position < line.length; position += 1) {
    const char = line[position];
    if (char === '"') return { text, end: position + 1 };
    if (char === "\\" && ESCAPABLE.has(line[position + 1])) {
      position += 1;
      if (line[position] !== "\n") text += line[position];
    } else text += char;
  }
  throw new Error('The double quote " is not closed.');
}
