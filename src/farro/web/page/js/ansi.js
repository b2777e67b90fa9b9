/* Colours in the output of programs: the escape sequences that set them (SGR) become class names. Every other escape
 * sequence stays in the text, where `safeText` makes it visible. */

// eslint-disable-next-line no-control-regex
const COLOUR_SEQUENCE = /\u001b\[([0-9;:]*)m/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/* Codes that set or clear one thing. Colours are added below. */
const CHANGES = new Map([
  [1, { bold: true }],
  [2, { dim: true }],
  [3, { italic: true }],
  [4, { underlined: true }],
  [22, { bold: false, dim: false }],
  [23, { italic: false }],
  [24, { underlined: false }],
  [39, { ink: null }],
  [49, { ground: null }],
]);
COLOURS.forEach((colour, index) => {
  CHANGES.set(30 + index, { ink: colour }).set(90 + index, { ink: colour });
  CHANGES.set(40 + index, { ground: colour }).set(100 + index, { ground: colour });
});
const EXTENDED = new Map([
  [38, "ink"],
  [48, "ground"],
]);

export const withoutColours = (text) => text.replace(COLOUR_SEQUENCE, "");

/* Split `text`, which begins in `style`, into { parts: [{ text, className }], style at its end }. */
export function splitColours(text, style = {}) {
  const parts = [];
  let position = 0;
  let current = style;
  for (const match of text.matchAll(COLOUR_SEQUENCE)) {
    if (match.index > position) {
      parts.push({ text: text.slice(position, match.index), className: styleClass(current) });
    }
    current = applyCodes(current, match[1]);
    position = match.index + match[0].length;
  }
  if (position < text.length) parts.push({ text: text.slice(position), className: styleClass(current) });
  return { parts, style: current };
}

function applyCodes(style, sequence) {
  const codes = (sequence || "0").split(/[;:]/).map(Number);
  let next = { ...style };
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index];
    if (code === 0) next = {};
    else if (CHANGES.has(code)) Object.assign(next, CHANGES.get(code));
    else if (EXTENDED.has(code)) index += applyExtended(next, EXTENDED.get(code), codes.slice(index + 1));
  }
  return next;
}

/* "5;n" is one of 256 colours, of which the first sixteen have names here; "2;r;g;b" is any colour and has none.
 * Return how many codes it used. */
function applyExtended(style, field, [kind, number]) {
  if (kind === 5) {
    style[field] = number < 16 ? COLOURS[number % 8] : null;
    return 2;
  }
  if (kind === 2) {
    style[field] = null;
    return 4;
  }
  return 0;
}

/* On a coloured ground the text keeps the page's own colour: otherwise it might not be legible. */
function styleClass({ ink, ground, bold, dim, italic, underlined }) {
  let colour = "";
  if (ground) colour = `ground-${ground}`;
  else if (ink) colour = `ink-${ink}`;
  else if (dim) colour = "dim";
  return [colour, bold && "bold", italic && "italic", underlined && "underlined"].filter(Boolean).join(" ");
}
