/* What appears above the page: dialogs that ask before an action, and short notes after it. */
import { icon } from "./icons.js";
import { safeText } from "./safe_text.js";
import { draw, h } from "./view.js";

const MOST_TOASTS = 4;
const TOAST_MS = 5000;
const WARNING_MS = 12_000;

let toasts = [];
let lastId = 0;

/* Show a note in the corner for a few seconds. kind: "ok", "warning" or "error" */
export function toast(kind, text) {
  lastId += 1;
  const added = { id: lastId, kind, text };
  toasts = [...toasts, added].slice(-MOST_TOASTS);
  drawToasts();
  const remove = () => {
    toasts = toasts.filter((other) => other !== added);
    drawToasts();
  };
  setTimeout(remove, kind === "ok" ? TOAST_MS : WARNING_MS);
}

function drawToasts() {
  const nodes = toasts.map(({ id, kind, text }) =>
    h("div.toast", { key: id, "data-state": kind }, icon(kind, 16), h("span", text)),
  );
  draw(document.getElementById("toasts"), nodes);
}

/* Tell screen readers what changed. */
export function announce(text) {
  document.getElementById("announcements").textContent = safeText(text);
}

export const isDialogOpen = () => Boolean(document.querySelector("dialog[open]"));

/* Show a dialog. Resolve to the values of its fields, or to null where the user did not confirm.
 *
 * fields: [{ name, label, kind, value, required, options, hint, half }]
 *   kind: "text", "line" (monospaced), "area", "code" (a monospaced area), "select" or "check"
 * submit(values): called before the dialog closes. Where it returns { field name: problem } the dialog stays open with
 *   everything that was typed; the name "" is for a problem that belongs to no field. */
export function ask(options) {
  return new Promise((resolve) => new Dialog(options, resolve).draw());
}

class Dialog {
  constructor(options, resolve) {
    this.options = { fields: [], ...options };
    this.resolve = resolve;
    this.result = null;
    this.values = Object.fromEntries(this.options.fields.map(({ name, value = "" }) => [name, value]));
    this.problems = {};
    this.busy = false;
    this.focusedBefore = document.activeElement;
    lastId += 1;
    this.key = `dialog-${lastId}`;
  }

  draw() {
    const { title, text, broad } = this.options;
    const properties = {
      key: this.key,
      class: broad ? "broad" : "",
      "aria-labelledby": "dialog-title",
      "aria-describedby": text ? "dialog-text" : null,
      on: { close: () => this.onClose(), click: (event) => this.onClick(event) },
      onCreate: (element) => requestAnimationFrame(() => element.isConnected && !element.open && element.showModal()),
    };
    const form = h(
      "form",
      { method: "dialog", on: { submit: (event) => this.onSubmit(event) } },
      h("h2", { id: "dialog-title" }, title),
      text && h("p.soft", { id: "dialog-text" }, text),
      this.options.body,
      this.fieldRows(),
      this.problems[""] ? h("p.error", { key: "problem", role: "alert" }, this.problems[""]) : null,
      this.buttons(),
    );
    draw(document.getElementById("overlay"), h("dialog", properties, form));
  }

  fieldRows() {
    return inRows(this.options.fields).map((row) => {
      const drawn = row.map((field) => {
        const { name } = field;
        return fieldNode({ ...field, value: this.values[name] }, this.problems[name]);
      });
      return row.length > 1 ? h("div.field-row", { key: row[0].name }, drawn) : drawn;
    });
  }

  buttons() {
    const { yes, danger, fields } = this.options;
    const cancel = (event) => event.target.closest("dialog").close();
    const confirm = {
      type: "submit",
      disabled: this.busy,
      class: danger ? "danger" : "",
      autofocus: fields.length ? null : true,
    };
    return h(
      "div.buttons",
      { key: "buttons" },
      h("button.button", { type: "button", on: { click: cancel } }, yes ? "Cancel" : "Close"),
      yes && h("button.button.primary", confirm, yes),
    );
  }

  async onSubmit(event) {
    event.preventDefault();
    const form = event.target;
    if (this.busy) return;
    this.values = this.typedValues(form);
    if (this.options.submit && !(await this.isAccepted(form))) return;
    this.result = this.values;
    form.closest("dialog").close();
  }

  async isAccepted(form) {
    this.busy = true;
    this.draw();
    this.problems = (await this.options.submit(this.values)) || {};
    this.busy = false;
    if (!form.isConnected) return false; // the user closed the dialog meanwhile
    if (!Object.keys(this.problems).length) return true;
    this.draw();
    const wrong = this.options.fields.find(({ name }) => this.problems[name]);
    (wrong ? form.elements[wrong.name] : form.querySelector("[type=submit]")).focus();
    return false;
  }

  typedValues(form) {
    const typed = ({ name, kind }) => (kind === "check" ? form.elements[name].checked : form.elements[name].value);
    return Object.fromEntries(this.options.fields.map((field) => [field.name, typed(field)]));
  }

  /* A click outside closes the dialog, unless something was typed: selecting text may end outside by accident. */
  onClick(event) {
    const dialog = event.target;
    if (dialog.tagName !== "DIALOG") return;
    const typed = this.typedValues(dialog.querySelector("form"));
    const isUntouched = ({ name, value = "", kind }) => typed[name] === (kind === "check" ? Boolean(value) : value);
    if (this.options.fields.every(isUntouched)) dialog.close();
  }

  onClose() {
    draw(document.getElementById("overlay"), null);
    if (this.focusedBefore && this.focusedBefore.isConnected) this.focusedBefore.focus();
    this.resolve(this.result);
  }
}

/* Two fields of half the width share a row. */
function inRows(fields) {
  const rows = [];
  for (const field of fields) {
    const last = rows.at(-1);
    if (field.half && last && last.length === 1 && last[0].half) last.push(field);
    else rows.push([field]);
  }
  return rows;
}

const CONTROLS = {
  text: (shared, value) => h("input.input", { ...shared, type: "text", value, autocomplete: "off" }),
  line: (shared, value) =>
    h("input.input.code", {
      ...shared,
      type: "text",
      value,
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
    }),
  area: (shared, value) => h("textarea.input", { ...shared, value, rows: 4 }),
  code: (shared, value) => h("textarea.input.code", { ...shared, value, rows: 14, spellcheck: "false" }),
  select: (shared, value, options) =>
    h("select.input", { ...shared, value }, options.map(([choice, text]) => h("option", { value: choice }, text))),
};

function fieldNode({ name, label, kind = "text", value = "", required = false, options = [], hint = null }, problem) {
  const id = `f-${name}`;
  const descriptions = [problem && `${id}-problem`, hint && `${id}-hint`].filter(Boolean).join(" ");
  const shared = {
    id,
    name,
    required,
    "aria-describedby": descriptions || null,
    "aria-invalid": problem ? "true" : null,
  };
  if (kind === "check") {
    const box = h("input", { ...shared, type: "checkbox", checked: Boolean(value) });
    return h("label.row", { key: name, for: id }, box, label);
  }
  const optional = required || kind === "select" ? null : h("span.quiet", " (optional)");
  return h(
    "div.field",
    { key: name },
    h("label", { for: id }, label, optional),
    CONTROLS[kind](shared, value, options),
    problem ? h("span.small.problem", { key: "problem", id: `${id}-problem`, role: "alert" }, problem) : null,
    hint && h("span.small.quiet", { key: "hint", id: `${id}-hint` }, hint),
  );
}
