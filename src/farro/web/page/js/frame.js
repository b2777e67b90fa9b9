/* The frame around every page: navigation, head, and the banner about the connection. */
import { post } from "./api.js";
import { toast } from "./dialogs.js";
import { count } from "./format.js";
import { icon, logo } from "./icons.js";
import { showShortcuts } from "./shortcuts.js";
import { h } from "./view.js";
import { button } from "./widgets.js";

/* [address, name, shortcut, what its count means, class of the count] */
const PLACES = [
  ["overview", "Overview", "g o", "alerts", "calls fires"],
  ["board", "Board", "g b", "queued and running", ""],
  ["tasks", "Tasks", "g t", "", ""],
  ["inbox", "Inbox", "g i", "wait for you", "calls"],
  ["swarms", "Swarms", "g s", "", ""],
  ["history", "History", "g h", "", ""],
];
const LINK_NAMES = {
  live: "Live",
  joining: "Connecting",
  lost: "No connection",
  silent: "No answer",
  paused: "Paused",
};
const LINK_PROBLEMS = { lost: "No connection to the server.", silent: "The server does not answer." };
const THEMES = ["system", "light", "dark"];
const THEME_ICONS = { system: "half", light: "sun", dark: "moon" };
const THEME_NAMES = { system: "as the system", light: "light", dark: "dark" };

const currentTheme = () => document.documentElement.dataset.theme || "system";

function switchTheme() {
  const next = THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("farro.theme");
    else localStorage.setItem("farro.theme", next);
  } catch {
    // Storage is blocked: the theme holds until the page is closed.
  }
}

/* shared: what all pages know; section: the place to mark; page: the shown page; stream: the event stream */
export function frame({ shared, section, page, stream, redraw }) {
  return [
    h(
      "nav.nav",
      { "aria-label": "Pages", key: "nav" },
      brand(shared.info),
      placeLinks(shared, section),
      foot(shared, redraw),
    ),
    h(
      "div.page",
      { key: "page" },
      banner(shared, stream),
      head(page),
      h("main", { id: "main", tabindex: -1, key: "main" }, page.view()),
    ),
  ];
}

function brand(info) {
  const folder = info ? info.root.replace(/\/+$/, "").split("/").pop() || info.root : "";
  return h(
    "a.brand",
    { href: "#/overview", "aria-label": "farro, overview" },
    logo(20),
    "farro",
    h("span.where.clip", { title: info ? info.root : "" }, folder),
  );
}

function placeLinks({ total, waiting, firing }, section) {
  const counts = { board: total && total.queued + total.in_progress, inbox: waiting, overview: firing };
  return PLACES.map(([place, name, shortcut, meaning, countClass]) => {
    const properties = {
      key: place,
      href: `#/${place}`,
      "aria-current": section === place ? "page" : null,
      title: `${name} (${shortcut})`,
    };
    const number = counts[place] ? h("span.count", { class: countClass, title: meaning }, count(counts[place])) : null;
    return h("a.to", properties, icon(place, 16), h("span", name), number);
  });
}

function foot({ info, link }, redraw) {
  const readOnly = info && info.read_only ? ", read-only" : "";
  return h(
    "div.foot",
    h("div.pulse", { "data-link": link }, h("i"), LINK_NAMES[link], readOnly, h("span.end", info ? info.version : "")),
    h("div.tools", themeButton(redraw), shortcutsButton(), signOutButton()),
  );
}

function themeButton(redraw) {
  const theme = currentTheme();
  const label = `Colours: ${THEME_NAMES[theme]}`;
  const onClick = () => {
    switchTheme();
    redraw();
  };
  return toolButton(THEME_ICONS[theme], onClick, { "aria-label": `${label}. Switch`, title: label });
}

const shortcutsButton = () =>
  toolButton("keyboard", showShortcuts, { "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)" });

const signOutButton = () => toolButton("signOut", signOut, { "aria-label": "Sign out", title: "Sign out" });

const toolButton = (name, onClick, properties) =>
  h("button.button.ghost.icon", { type: "button", on: { click: onClick }, ...properties }, icon(name));

/* End the session at the server. The page at "/" then says how to sign in again. */
async function signOut() {
  try {
    await post("/logout");
    location.replace("/");
  } catch (error) {
    toast("error", `Not signed out. ${error.message}`);
  }
}

function head(page) {
  const [address, name] = page.parent || [];
  return h(
    "header.head",
    { key: "head" },
    address ? h("a.crumb", { href: address }, name) : null,
    h("h1.clip", page.heading ? page.heading() : page.title()),
    h("div.row.end", page.actions ? page.actions() : null),
  );
}

function banner({ trouble, link, info }, stream) {
  if (trouble && trouble.status === 401) {
    return alertBanner(
      h("span", "Signed out."),
      h("span.soft", "Get a new link with "),
      h("code.mono", "farro web --link"),
    );
  }
  if (LINK_PROBLEMS[link]) {
    return alertBanner(
      h("span", LINK_PROBLEMS[link]),
      h("span.soft", "The page shows the last known state and keeps trying to reconnect."),
      button("Try now", () => stream.retryNow(), { kind: "end" }),
    );
  }
  if (info && !info.ready) {
    const progress = `Reading the store: ${count(info.loaded)} of ${count(info.jobs)} jobs`;
    return h("div.banner", { role: "status", key: "banner", "data-state": "running" }, progress);
  }
  return null;
}

const alertBanner = (...content) => h("div.banner", { role: "alert", key: "banner" }, icon("alert"), content);
