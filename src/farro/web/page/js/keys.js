/* The keyboard: two-key jumps, the keys of the shown page, and the list of both. */
import { ask, isOpen } from "./overlay.js";
import { h } from "./view.js";

const JUMPS = { o: ["overview", "Overview"], b: ["board", "Board"], t: ["tasks", "Tasks"], i: ["inbox", "Inbox"], s: ["swarms", "Swarms"], h: ["history", "History"] };
const PATIENCE_MS = 1200;

let current = () => null;

export function keys(page, context) {
  current = page;
  let first = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isOpen()) return;
    const typing = event.target.closest("input:not([type=checkbox], [type=range]), textarea, select");
    if (event.key === "Escape" && typing) { typing.blur(); return; }
    if (typing) return;
    if (Date.now() - first < PATIENCE_MS && JUMPS[event.key]) {
      first = 0;
      event.preventDefault();
      location.hash = `#/${JUMPS[event.key][0]}`;
      return;
    }
    first = event.key === "g" ? Date.now() : 0;
    const shown = page();
    const own = shown && shown.keys && shown.keys[event.key];
    if (event.key === "?") { event.preventDefault(); showKeys(); }
    else if (own) { event.preventDefault(); own.run(event); context.redraw(); }
    else if (event.key === "/") {
      event.preventDefault();
      const search = document.querySelector("input[type=search]");
      if (search) search.focus();
      else context.go("#/board?find=1");
    }
  });
}

export function showKeys() {
  const shown = current();
  const own = Object.entries((shown && shown.keys) || {}).filter(([, key]) => key.told);
  const list = (rows) => h("ul.keys", rows.map(([pressed, told]) => h("li", h("span", told), h("span.row", pressed.split(" ").map((one) => h("kbd", one))))));
  ask({
    title: "Keyboard shortcuts",
    broad: true,
    body: [
      h("h3.small.quiet", "Everywhere"),
      list([...Object.entries(JUMPS).map(([key, [, name]]) => [`g ${key}`, name]), ["/", "Search jobs"], ["?", "This list"], ["Esc", "Close, or leave a field"]]),
      own.length ? [h("h3.small.quiet", "On this page"), list(own.map(([key, { told }]) => [key === " " ? "Space" : key, told]))] : null,
    ],
  });
}
