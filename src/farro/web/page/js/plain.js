/* Text of jobs made harmless and visible. Every text node and attribute of the page goes through here.
 *
 * HTML needs no care (nothing here is ever parsed as HTML), but a text may still lie: bidirectional overrides show
 * "gpj.exe" as "exe.jpg", escape sequences and invisible characters hide. They are shown by name instead. */

// eslint-disable-next-line no-control-regex
const TRICKS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const TRICK = new RegExp(TRICKS.source);

const named = (char) => {
  const code = char.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code); // ␛ for escape
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

export const plain = (text) => {
  const whole = typeof text === "string" ? text : String(text);
  return TRICK.test(whole) ? whole.replace(TRICKS, named) : whole;
};
