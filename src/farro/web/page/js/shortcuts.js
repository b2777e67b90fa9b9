/* Keyboard shortcuts: two keys that lead to a page, the keys of the shown page, and the list of both. */
import { ask, isDialogOpen } from "./dialogs.js";
import { h } from "./view.js";

/* After "g": key → [page, name] */
const PAGE_KEYS = {
  o: ["overview", "Overview"],
  b: ["board", "Board"],
  t: ["tasks", "Tasks"],
  i: ["inbox", "Inbox"],
  s: ["swarms", "Swarms"],
  h: ["history", "History"],
};
const SECOND_KEY_MS = 1200;
const TEXT_FIELDS = "input:not([type=checkbox], [type=range]), textarea, select";

let shownPage = () => null;

/* getPage(): the shown page. Its `keys` are { key: { text, run(event) } }. */
export function listenToKeys(getPage, context) {
  shownPage = getPage;
  let pressedG = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isDialogOpen()) return;
    const field = event.target.closest(TEXT_FIELDS);
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if (Date.now() - pressedG < SECOND_KEY_MS && PAGE_KEYS[event.key]) {
      pressedG = 0;
      event.preventDefault();
      location.hash = `#/${PAGE_KEYS[event.key][0]}`;
      return;
    }
    pressedG = event.key === "g" ? Date.now() : 0;
    runShortcut(event, context);
  });
}

function runShortcut(event, context) {
  const ofPage = pageKeys()[event.key];
  if (event.key === "?") showShortcuts();
  else if (ofPage) {
    ofPage.run(event);
    context.redraw();
  } else if (event.key === "/") search(context);
  else return;
  event.preventDefault();
}

function pageKeys() {
  const page = shownPage();
  return (page && page.keys) || {};
}

function search(context) {
  const field = document.querySelector("input[type=search]");
  if (field) field.focus();
  else context.go("#/board?find=1");
}

export function showShortcuts() {
  const ofPage = Object.entries(pageKeys()).map(([key, { text }]) => [key === " " ? "Space" : key, text]);
  const everywhere = [
    ...Object.entries(PAGE_KEYS).map(([key, [, name]]) => [`g ${key}`, name]),
    ["/", "Search jobs"],
    ["?", "This list"],
    ["Esc", "Close, or leave a field"],
  ];
  ask({
    title: "Keyboard shortcuts",
    broad: true,
    body: [
      h("h3.small.quiet", "Everywhere"),
      shortcutList(everywhere),
      ofPage.length ? [h("h3.small.quiet", "On this page"), shortcutList(ofPage)] : null,
    ],
  });
}

function shortcutList(rows) {
  const keys = (combination) => h("span.row", combination.split(" ").map((key) => h("kbd", key)));
  return h("ul.keys", rows.map(([combination, text]) => h("li", h("span", text), keys(combination))));
}
