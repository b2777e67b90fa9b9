/* Make text from jobs harmless and visible. Every text node and attribute of the dashboard passes through `safeText`.
 *
 * Markup needs no care, because nothing here is parsed as HTML. Text can still deceive: a bidirectional override shows
 * "gpj.exe" as "exe.jpg", and control or zero-width characters hide what follows. Such characters are shown by name. */

const DECEPTIVE_RANGES = [
  "\\u0000-\\u0008\\u000b-\\u001f", // control characters except tab and newline
  "\\u007f-\\u009f", // delete and the second block of control characters
  "\\u00ad\\u061c\\u200b\\u200e\\u200f", // soft hyphen, zero-width space, direction marks
  "\\u2028-\\u202e", // line separators, bidirectional overrides
  "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb", // invisible operators and isolates, byte order mark, annotations
];
const DECEPTIVE = new RegExp(`[${DECEPTIVE_RANGES.join("")}]`);
const EVERY_DECEPTIVE = new RegExp(DECEPTIVE.source, "g");

function visibleName(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code); // the control pictures, such as ␛ for escape
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

export function safeText(value) {
  const text = typeof value === "string" ? value : String(value);
  return DECEPTIVE.test(text) ? text.replace(EVERY_DECEPTIVE, visibleName) : text;
}
