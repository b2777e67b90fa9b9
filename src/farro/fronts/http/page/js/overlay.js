/* What lies over the page: questions before an action, short notes after it, the list of keys. */
import { icon } from "./icons.js";
import { plain } from "./plain.js";
import { draw, h } from "./view.js";

let notes = [];
let counted = 0;
const place = () => document.getElementById("toasts");

export function toast(kind, text) {
  const note = { id: (counted += 1), kind, text };
  notes = [...notes.slice(-3), note];
  show();
  setTimeout(() => { notes = notes.filter((one) => one !== note); show(); }, kind === "error" ? 12_000 : 5000);
}
const show = () => draw(place(), notes.map((note) => h("div.toast", { key: note.id, "data-state": note.kind }, icon(note.kind, 16), h("span", note.text))));

/* For screen readers alone. */
export const say = (text) => { document.getElementById("said").textContent = plain(text); };

/* Asks in a dialog; answers the fields' values, or null where nobody agreed.
   fields: [{name, label, kind: "text"|"area"|"code"|"select"|"check", value, needed, options, hint}] */
export function ask({ title, text, fields = [], yes, danger = false, broad = false, body = null }) {
  const overlay = document.getElementById("overlay");
  const back = document.activeElement;
  return new Promise((resolve) => {
    let answer = null;
    const close = () => {
      draw(overlay, null);
      if (back && back.isConnected) back.focus();
      resolve(answer);
    };
    const submit = (event) => {
      event.preventDefault();
      const form = event.target;
      answer = {};
      for (const field of fields) answer[field.name] = field.kind === "check" ? form.elements[field.name].checked : form.elements[field.name].value;
      form.closest("dialog").close();
    };
    draw(overlay, h("dialog", {
      key: `${title}-${(counted += 1)}`, class: broad ? "broad" : "", "aria-labelledby": "dialog-title", "aria-describedby": text ? "dialog-text" : null,
      on: { close, click: (event) => { if (event.target.tagName === "DIALOG") event.target.close(); } },
      made: (el) => requestAnimationFrame(() => el.isConnected && !el.open && el.showModal()),
    }, h("form", { method: "dialog", on: { submit } },
      h("h2", { id: "dialog-title" }, title),
      text && h("p.soft", { id: "dialog-text" }, text),
      body,
      fields.map(field),
      h("div.buttons",
        h("button.button", { type: "button", on: { click: (event) => event.target.closest("dialog").close() } }, yes ? "Cancel" : "Close"),
        yes && h("button.button.primary", { type: "submit", class: danger ? "danger" : "", autofocus: fields.length ? null : true }, yes)))));
  });
}

function field({ name, label, kind = "text", value = "", needed = false, options = [], hint = null }) {
  const id = `f-${name}`;
  const shared = { id, name, required: needed, "aria-describedby": hint ? `${id}-hint` : null };
  if (kind === "check") return h("label.row", { key: name, for: id }, h("input", { ...shared, type: "checkbox", checked: Boolean(value) }), label);
  const control = {
    text: () => h("input.input", { ...shared, type: "text", value, autocomplete: "off" }),
    area: () => h("textarea.input", { ...shared, value, rows: 4 }),
    code: () => h("textarea.input.code", { ...shared, value, rows: 14, spellcheck: "false" }),
    select: () => h("select.input", { ...shared, value }, options.map(([one, text]) => h("option", { value: one }, text))),
  }[kind]();
  return h("div.field", { key: name }, h("label", { for: id }, label, needed ? null : h("span.quiet", " (optional)")), control, hint && h("span.small.quiet", { id: `${id}-hint` }, hint));
}

export const isOpen = () => Boolean(document.querySelector("dialog[open]"));
