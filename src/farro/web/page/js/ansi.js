/* The colours of programs: the sequences that set them (SGR) become names of classes, and text stays text. Every other
 * sequence is left to plain(), which shows it by name. */

// eslint-disable-next-line no-control-regex
const COLOURS = /\u001b\[([0-9;:]*)m/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

export const bare = (text) => text.replace(COLOURS, "");

/* text, in the style that holds at its beginning → [{text, name}], and the style that holds at its end. */
export function coloured(text, style = {}) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(COLOURS)) {
    if (found.index > at) parts.push({ text: text.slice(at, found.index), name: named(style) });
    style = changed(style, found[1]);
    at = found.index + found[0].length;
  }
  if (at < text.length) parts.push({ text: text.slice(at), name: named(style) });
  return { parts, style };
}

function changed(style, codes) {
  const next = { ...style };
  const list = (codes || "0").split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i += 1) {
    const code = list[i];
    if (code === 0) for (const name of Object.keys(next)) delete next[name];
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.slanted = true;
    else if (code === 4) next.underlined = true;
    else if (code === 22) { delete next.bold; delete next.dim; }
    else if (code === 23) delete next.slanted;
    else if (code === 24) delete next.underlined;
    else if (code >= 30 && code <= 37) next.ink = NAMES[code - 30];
    else if (code >= 90 && code <= 97) next.ink = NAMES[code - 90];
    else if (code === 39) delete next.ink;
    else if (code >= 40 && code <= 47) next.ground = NAMES[code - 40];
    else if (code >= 100 && code <= 107) next.ground = NAMES[code - 100];
    else if (code === 49) delete next.ground;
    else if (code === 38 || code === 48) { // of 256, or of all: of those we have the first sixteen
      const which = code === 38 ? "ink" : "ground";
      if (list[i + 1] === 5) { if (list[i + 2] < 16) next[which] = NAMES[list[i + 2] % 8]; else delete next[which]; i += 2; } else if (list[i + 1] === 2) { delete next[which]; i += 4; }
    }
  }
  return next;
}

/* On a coloured ground the ink is the page's own: only so is the text sure to be seen. */
const named = ({ ink, ground, bold, dim, slanted, underlined }) =>
  [ground ? `ground-${ground}` : ink ? `ink-${ink}` : dim ? "dim" : "", bold ? "bold" : "", slanted ? "slanted" : "", underlined ? "underlined" : ""].filter(Boolean).join(" ");
