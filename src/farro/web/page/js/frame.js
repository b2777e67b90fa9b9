/* The frame around the shown page: navigation, head, banner. What stands inside comes from the page. */
import { post } from "./api.js";
import { grain, icon } from "./icons.js";
import { toast } from "./overlay.js";
import { h } from "./view.js";
import { count } from "./words.js";
import { showKeys } from "./keys.js";

const PLACES = [
  ["overview", "Overview", "g o"], ["board", "Board", "g b"], ["tasks", "Tasks", "g t"],
  ["inbox", "Inbox", "g i"], ["swarms", "Swarms", "g s"], ["history", "History", "g h"],
];
const LINKS = { live: "Live", joining: "Connecting", lost: "No connection", silent: "No answer", paused: "Paused" };
const APART = { lost: "No connection to the server.", silent: "The server does not answer." };
const THEMES = { system: ["half", "as the system"], light: ["sun", "light"], dark: ["moon", "dark"] };

export function theme() { return document.documentElement.dataset.theme || "system"; }

export function switchTheme() {
  const order = ["system", "light", "dark"];
  const next = order[(order.indexOf(theme()) + 1) % order.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("farro.theme");
    else localStorage.setItem("farro.theme", next);
  } catch { /* no storage: for this visit */ }
}

export function frame({ shared, section, shown, live, redraw }) {
  const { info, total } = shared;
  const counts = { board: total && total.queued + total.in_progress, inbox: shared.waiting, overview: shared.firing };
  const root = info ? info.root.replace(/\/+$/, "").split("/").pop() || info.root : "";
  const [sign, told] = THEMES[theme()];
  return [
    h("nav.nav", { "aria-label": "Pages", key: "nav" },
      h("a.brand", { href: "#/overview", "aria-label": "farro, overview" }, grain(20), "farro", h("span.where.clip", { title: info ? info.root : "" }, root)),
      PLACES.map(([name, text, key]) => h("a.to", { key: name, href: `#/${name}`, "aria-current": section === name ? "page" : null, title: `${text} (${key})` },
        icon(name, 16), h("span", text),
        counts[name] ? h("span.count", { class: { inbox: "calls", overview: "calls fires" }[name] || "", title: { inbox: "wait for you", overview: "alerts", board: "queued and running" }[name] }, count(counts[name])) : null)),
      h("div.foot",
        h("div.pulse", { "data-link": shared.link }, h("i"), LINKS[shared.link], info && info.read_only ? ", read-only" : "", h("span.end", info ? info.version : "")),
        h("div.tools",
          h("button.button.ghost.icon", { type: "button", "aria-label": `Colours: ${told}. Switch`, title: `Colours: ${told}`, on: { click: () => { switchTheme(); redraw(); } } }, icon(sign)),
          h("button.button.ghost.icon", { type: "button", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)", on: { click: showKeys } }, icon("keyboard")),
          h("button.button.ghost.icon", { type: "button", "aria-label": "Sign out", title: "Sign out", on: { click: signOut } }, icon("out"))))),
    h("div.page", { key: "page" },
      banner(shared, live),
      h("header.head", { key: "head" }, shown.crumb ? h("a.crumb", { href: shown.crumb()[0] }, shown.crumb()[1]) : null, h("h1.clip", shown.heading ? shown.heading() : shown.title()), h("div.row.end", shown.actions ? shown.actions() : null)),
      h("main", { id: "main", tabindex: -1, key: "main" }, shown.view())),
  ];
}

/* The session ends on the server; what answers then says how to come back. */
async function signOut() {
  try { await post("/logout"); location.replace("/"); } catch (error) { toast("error", `Not signed out. ${error.message}`); }
}

function banner(shared, live) {
  if (shared.trouble && shared.trouble.status === 401) {
    return h("div.banner", { role: "alert", key: "banner" }, icon("alert"), h("span", "Signed out."), h("span.soft", "Get a new link with "), h("code.mono", "farro web --link"));
  }
  if (APART[shared.link]) {
    return h("div.banner", { role: "alert", key: "banner" }, icon("alert"), h("span", APART[shared.link]),
      h("span.soft", "What you see is the last that was heard. Trying again by itself."),
      h("button.button.end", { type: "button", on: { click: () => live.retry() } }, "Try now"));
  }
  if (shared.info && !shared.info.ready) {
    return h("div.banner", { role: "status", key: "banner", "data-state": "running" }, `Reading the store: ${count(shared.info.loaded)} of ${count(shared.info.jobs)} jobs`);
  }
  return null;
}
