/* The board's filter: text, role, states, tag. */
import { stateName } from "../format.js";
import { icon } from "../icons.js";
import { h } from "../view.js";
import { button } from "../widgets.js";
import { LANES } from "./board_lane.js";

/* filter: { text, roles, statuses, tag }
 * onText(text): the user types; onChange(some fields of the filter); onClear() */
export function filterBar(filter, roles, { onText, onChange, onClear }) {
  const isFiltered = filter.text || filter.roles.length || filter.statuses.length || filter.tag;
  return h(
    "div.row.wrap.tools",
    { role: "search", "aria-label": "Filter jobs" },
    searchField(filter.text, onText),
    roleChoice(filter.roles, roles, onChange),
    stateButtons(filter.statuses, onChange),
    filter.tag ? tagButton(filter.tag, onChange) : null,
    isFiltered ? button("Clear", onClear, { kind: "ghost", icon: "close" }) : null,
  );
}

function searchField(text, onText) {
  const properties = {
    type: "search",
    "aria-label": "Search jobs by id, name, title or error",
    placeholder: "Search",
    value: text,
    on: { input: (event) => onText(event.target.value) },
    autocomplete: "off",
  };
  return h("div.search", icon("search", 14), h("input.input", properties), h("kbd", { "aria-hidden": "true" }, "/"));
}

function roleChoice(selected, roles, onChange) {
  const onSelect = (event) => onChange({ roles: event.target.value ? [event.target.value] : [] });
  return h(
    "select.input.narrow",
    { "aria-label": "Role", value: selected[0] || "", on: { change: onSelect } },
    h("option", { value: "" }, "All roles"),
    roles.map((role) => h("option", { key: role, value: role }, role)),
  );
}

function stateButtons(selected, onChange) {
  const toggle = (status) => {
    const without = selected.filter((other) => other !== status);
    onChange({ statuses: selected.includes(status) ? without : [...selected, status] });
  };
  const stateButton = (status) => {
    const properties = {
      key: status,
      type: "button",
      "aria-pressed": String(selected.includes(status)),
      on: { click: () => toggle(status) },
    };
    const sign = h("span.state", { "data-state": status }, icon(status, 14));
    return h("button.button.ghost", properties, sign, stateName(status));
  };
  return h("div.row.wrap", { role: "group", "aria-label": "States shown" }, LANES.map(stateButton));
}

function tagButton(tag, onChange) {
  const properties = { type: "button", title: "Remove this filter", on: { click: () => onChange({ tag: "" }) } };
  return h("button.tag", properties, `tag ${tag} ×`);
}
