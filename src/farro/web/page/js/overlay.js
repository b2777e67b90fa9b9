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
  setTimeout(() => { notes = notes.filter((one) => one !== note); show(); }, kind === "ok" ? 5000 : 12_000);
}
const show = () => draw(place(), notes.map((note) => h("div.toast", { key: note.id, "data-state": note.kind }, icon(note.kind, 16), h("span", note.text))));

/* For screen readers alone. */
export const say = (text) => { document.getElementById("said").textContent = plain(text); };

/* Asks in a dialog; answers the fields' values, or null where nobody agreed.
   fields: [{name, label, kind: "text"|"line"|"area"|"code"|"select"|"check", value, needed, options, hint, half}]
   send(values): does what was agreed to, before the dialog closes. Where it answers {field: what is wrong with it} (""
   for what is no field's fault) the dialog stays, with all that was typed. */
export function ask({ title, text, fields = [], yes, danger = false, broad = false, body = null, send = null }) {
  const overlay = document.getElementById("overlay");
  const back = document.activeElement;
  const key = `${title}-${(counted += 1)}`;
  let values = Object.fromEntries(fields.map(({ name, value = "" }) => [name, value]));
  let faults = {};
  let busy = false;
  return new Promise((resolve) => {
    let answer = null;
    const close = () => {
      draw(overlay, null);
      if (back && back.isConnected) back.focus();
      resolve(answer);
    };
    const submit = async (event) => {
      event.preventDefault();
      const form = event.target;
      if (busy) return;
      values = typed(form);
      if (send) {
        busy = true;
        show();
        faults = (await send(values)) || {};
        busy = false;
        if (!form.isConnected) return; // somebody closed it meanwhile
        if (Object.keys(faults).length) {
          show();
          const first = fields.find(({ name }) => faults[name]);
          (first ? form.elements[first.name] : form.querySelector("[type=submit]")).focus();
          return;
        }
      }
      answer = values;
      form.closest("dialog").close();
    };
    const typed = (form) => Object.fromEntries(fields.map(({ name, kind }) => [name, kind === "check" ? form.elements[name].checked : form.elements[name].value]));
    /* A click beside it closes it, unless something was typed: a selection that is drawn too far ends there as well. */
    const beside = (event) => {
      if (event.target.tagName !== "DIALOG") return;
      const now = typed(event.target.querySelector("form"));
      if (fields.every(({ name, value = "", kind }) => (kind === "check" ? Boolean(value) : value) === now[name])) event.target.close();
    };
    const show = () => draw(overlay, h("dialog", {
      key, class: broad ? "broad" : "", "aria-labelledby": "dialog-title", "aria-describedby": text ? "dialog-text" : null,
      on: { close, click: beside },
      made: (el) => requestAnimationFrame(() => el.isConnected && !el.open && el.showModal()),
    }, h("form", { method: "dialog", on: { submit } },
      h("h2", { id: "dialog-title" }, title),
      text && h("p.soft", { id: "dialog-text" }, text),
      body,
      inRows(fields).map((row) => { const made = row.map((one) => field({ ...one, value: values[one.name] }, faults[one.name])); return row.length > 1 ? h("div.beside", { key: row[0].name }, made) : made; }),
      faults[""] ? h("p.error", { key: "fault", role: "alert" }, faults[""]) : null,
      h("div.buttons", { key: "buttons" },
        h("button.button", { type: "button", on: { click: (event) => event.target.closest("dialog").close() } }, yes ? "Cancel" : "Close"),
        yes && h("button.button.primary", { type: "submit", disabled: busy, class: danger ? "danger" : "", autofocus: fields.length ? null : true }, yes)))));
    show();
  });
}

/* Those of half a width stand two and two. */
function inRows(fields) {
  const rows = [];
  for (const one of fields) {
    const last = rows.at(-1);
    if (one.half && last && last.length === 1 && last[0].half) last.push(one);
    else rows.push([one]);
  }
  return rows;
}

function field({ name, label, kind = "text", value = "", needed = false, options = [], hint = null }, fault) {
  const id = `f-${name}`;
  const about = [fault && `${id}-fault`, hint && `${id}-hint`].filter(Boolean).join(" ");
  const shared = { id, name, required: needed, "aria-describedby": about || null, "aria-invalid": fault ? "true" : null };
  if (kind === "check") return h("label.row", { key: name, for: id }, h("input", { ...shared, type: "checkbox", checked: Boolean(value) }), label);
  const control = {
    text: () => h("input.input", { ...shared, type: "text", value, autocomplete: "off" }),
    line: () => h("input.input.code", { ...shared, type: "text", value, autocomplete: "off", autocapitalize: "off", spellcheck: "false" }),
    area: () => h("textarea.input", { ...shared, value, rows: 4 }),
    code: () => h("textarea.input.code", { ...shared, value, rows: 14, spellcheck: "false" }),
    select: () => h("select.input", { ...shared, value }, options.map(([one, text]) => h("option", { value: one }, text))),
  }[kind]();
  return h("div.field", { key: name }, h("label", { for: id }, label, needed || kind === "select" ? null : h("span.quiet", " (optional)")), control,
    fault ? h("span.small.fault", { key: "fault", id: `${id}-fault`, role: "alert" }, fault) : null, hint && h("span.small.quiet", { key: "hint", id: `${id}-hint` }, hint));
}

export const isOpen = () => Boolean(document.querySelector("dialog[open]"));
