/* The board: a lane for each state, jobs as cards that move between lanes.
 *
 * A lane holds a page of cards, however many jobs there are; its number comes from the counts of the queues. */
import { get, query } from "../api.js";
import { actOnJobs, jobAction, possibleActions } from "../job_actions.js";
import { newJob } from "../new_job.js";
import { h } from "../view.js";
import { button } from "../widgets.js";
import { filterBar } from "./board_filter.js";
import { LANES, laneNode, laneWidth } from "./board_lane.js";

const FIRST_CARDS = 25;
const MOST_CARDS = 250; // in one lane; to find more is what the search is for
const TYPING_MS = 180;
const NO_FILTER = { text: "", roles: [], statuses: [], tag: "" };
const MOVED_MS = 2000; // how long a card is known to have moved
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export class BoardPage {
  constructor(context, route) {
    this.context = context;
    this.filter = {
      text: route.query.get("text") || "",
      roles: route.query.getAll("role"),
      statuses: route.query.getAll("status"),
      tag: route.query.get("tag") || "",
    };
    this.lanes = new Map(LANES.map((status) => [status, this.newLane(status)]));
    this.selected = new Set(); // job ids
    this.lastSelected = null;
    this.movedAt = new Map(); // job id → when it came into its lane
    this.cardPlaces = null; // before the draw: job id → rectangle
    this.aborted = new AbortController();
    this.typingTimer = null;
    this.keys = this.shortcuts();
    this.loadAll();
    if (route.query.get("find")) focusSearch();
  }

  title() {
    return "Board";
  }

  shortcuts() {
    return {
      j: { text: "Next card", run: () => focusCard(1) },
      k: { text: "Previous card", run: () => focusCard(-1) },
      l: { text: "Lane to the right", run: () => focusLane(1) },
      h: { text: "Lane to the left", run: () => focusLane(-1) },
      x: { text: "Select the card", run: () => focusedJob() && this.toggleSelected(focusedJob()) },
      K: { text: "Kill the selected", run: () => this.actOnSelected("kill") },
      R: { text: "Retry the selected", run: () => this.actOnSelected("retry") },
      n: { text: "New job", run: () => newJob(this.context) },
      Escape: { text: "Clear the selection", run: () => this.selected.clear() },
    };
  }

  stop() {
    this.aborted.abort();
    clearTimeout(this.typingTimer);
    for (const lane of this.lanes.values()) lane.load.stop();
  }

  /* Data */

  newLane(status) {
    const lane = { status, jobs: null, next: null, total: null, error: null, limit: FIRST_CARDS };
    lane.load = this.context.loader(() => this.loadLane(lane), {
      onError: (error) => {
        if (!error.unreachable) lane.error = error;
      },
    });
    return lane;
  }

  async loadLane(lane) {
    const filter = JSON.stringify(this.filter);
    const parameters = query({
      status: lane.status,
      role: this.filter.roles,
      text: this.filter.text,
      tag: this.filter.tag,
      limit: lane.limit,
      order: lane.status === "queued" ? "oldest" : "changed",
    });
    const { jobs, next, total } = await get(`/api/jobs${parameters}`, this.aborted.signal);
    const isCurrent = filter === JSON.stringify(this.filter); // the user may have changed the filter meanwhile
    if (isCurrent) Object.assign(lane, { jobs, next, total, error: null });
  }

  shownLanes() {
    const { statuses } = this.filter;
    return [...this.lanes.values()].filter(({ status }) => !statuses.length || statuses.includes(status));
  }

  loadAll() {
    for (const lane of this.shownLanes()) lane.load();
  }

  showMore(lane) {
    lane.limit = Math.min(lane.limit * 2, MOST_CARDS);
    lane.load();
  }

  onEvent(kind, data) {
    if (kind === "changes") this.moveCards(data.jobs);
    else if (["hello", "gap", "ready"].includes(kind)) this.loadAll();
  }

  /* Move the cards at once, then load the lanes again. */
  moveCards(changes) {
    for (const change of changes) {
      if (this.filter.roles.length && !this.filter.roles.includes(change.role)) continue;
      for (const lane of this.shownLanes()) {
        if (lane.status === change.status || lane.status === change.was) lane.load();
      }
      this.moveCard(change);
      this.movedAt.set(change.job_id, Date.now());
      if (change.status === "gone") this.selected.delete(change.job_id);
    }
    if (this.movedAt.size > 2000) this.forgetMoves();
  }

  moveCard({ job_id: id, role, status }) {
    const target = this.lanes.get(status);
    for (const lane of this.lanes.values()) {
      if (lane === target || !lane.jobs) continue;
      const index = lane.jobs.findIndex((job) => job.job_id === id);
      if (index < 0) continue;
      const [job] = lane.jobs.splice(index, 1);
      if (!target || !target.jobs || target.jobs.some((other) => other.job_id === id)) continue;
      const moved = { ...job, status, role, updated_at: new Date().toISOString() };
      if (status === "queued") target.jobs.push(moved);
      else target.jobs.unshift(moved);
      target.jobs.length = Math.min(target.jobs.length, MOST_CARDS);
    }
  }

  forgetMoves() {
    for (const [id, at] of this.movedAt) {
      if (Date.now() - at > MOVED_MS) this.movedAt.delete(id);
    }
  }

  /* Filter */

  setFilter(change) {
    Object.assign(this.filter, change);
    this.selected.clear();
    for (const lane of this.lanes.values()) Object.assign(lane, { limit: FIRST_CARDS, total: null });
    const { text, roles, statuses, tag } = this.filter;
    this.context.go(`#/board${query({ text, role: roles, status: statuses, tag })}`, { replace: true });
    this.loadAll();
    this.context.redraw();
  }

  onSearchText(text) {
    this.filter.text = text;
    clearTimeout(this.typingTimer);
    this.typingTimer = setTimeout(() => this.setFilter({ text }), TYPING_MS);
  }

  /* Selection */

  shownJobs() {
    return this.shownLanes().flatMap((lane) => lane.jobs || []);
  }

  /* With the shift key: everything from the last selected card to this one. */
  toggleSelected(id, event) {
    const order = this.shownJobs().map((job) => job.job_id);
    if (event && event.shiftKey && order.includes(this.lastSelected)) {
      const ends = [order.indexOf(this.lastSelected), order.indexOf(id)];
      for (const other of order.slice(Math.min(...ends), Math.max(...ends) + 1)) this.selected.add(other);
    } else if (!this.selected.delete(id)) this.selected.add(id);
    this.lastSelected = id;
    this.context.redraw();
  }

  selectLane(lane, isSelected) {
    for (const { job_id: id } of lane.jobs || []) {
      if (isSelected) this.selected.add(id);
      else this.selected.delete(id);
    }
    this.context.redraw();
  }

  clearSelection() {
    this.selected.clear();
    this.context.redraw();
  }

  async actOnSelected(name) {
    if (!this.selected.size) return;
    if (await actOnJobs(name, [...this.selected])) {
      this.selected.clear();
      this.loadAll();
    }
    this.context.redraw();
  }

  /* View */

  actions() {
    if (this.context.readOnly()) return null;
    return button("New job", () => newJob(this.context), { kind: "primary", icon: "plus", title: "New job (n)" });
  }

  beforeDraw() {
    if (reducedMotion.matches) return;
    const cards = [...document.querySelectorAll(".card")];
    this.cardPlaces = new Map(cards.map((card) => [card.dataset.job, card.getBoundingClientRect()]));
  }

  /* Let a card that changed its lane glide from where it was. */
  afterDraw() {
    if (!this.cardPlaces) return;
    for (const card of document.querySelectorAll(".card")) {
      const before = this.cardPlaces.get(card.dataset.job);
      if (!before || !this.movedAt.has(card.dataset.job)) continue;
      const after = card.getBoundingClientRect();
      const [x, y] = [before.left - after.left, before.top - after.top];
      const frames = [{ transform: `translate(${x}px, ${y}px)`, zIndex: 5 }, { transform: "none" }];
      if (Math.abs(x) > 40) card.animate(frames, { duration: 260, easing: "cubic-bezier(.2,.8,.2,1)" });
    }
  }

  view() {
    const lanes = this.shownLanes();
    const roles = this.context.shared.info ? this.context.shared.info.roles : [];
    return h(
      "div.board",
      { class: this.selected.size ? "has-selection" : "" },
      filterBar(this.filter, roles, {
        onText: (text) => this.onSearchText(text),
        onChange: (change) => this.setFilter(change),
        onClear: () => this.setFilter(NO_FILTER),
      }),
      this.selectionBar(),
      h(
        "div.columns",
        { style: { "--lanes": lanes.map(laneWidth).join(" ") } },
        lanes.map((lane) => laneNode(this, lane, MOST_CARDS)),
      ),
    );
  }

  selectionBar() {
    if (!this.selected.size) return null;
    const jobs = this.shownJobs().filter((job) => this.selected.has(job.job_id));
    const names = this.context.readOnly() ? [] : [...new Set(jobs.flatMap(possibleActions))];
    const actionButton = (name) => {
      const { name: text, icon, danger } = jobAction(name);
      return button(text, () => this.actOnSelected(name), { key: name, kind: danger ? "danger" : "", icon });
    };
    return h(
      "div.selection-bar",
      { role: "region", "aria-label": "Selected jobs", key: "selection" },
      h("strong.num", `${this.selected.size} selected`),
      names.map(actionButton),
      button("Clear", () => this.clearSelection(), { kind: "ghost", icon: "close" }),
    );
  }
}

/* Focus */

/* The search field is in the document after the next frame. */
function focusSearch() {
  const focus = () => document.querySelector("input[type=search]")?.focus();
  requestAnimationFrame(() => requestAnimationFrame(focus));
}

const cardLinks = (container) => [...container.querySelectorAll(".card a.open")];
const focusedJob = () => document.activeElement?.closest?.(".card")?.dataset.job;

function focusCard(step) {
  const links = cardLinks(document);
  const index = links.indexOf(document.activeElement);
  const next = index < 0 ? 0 : Math.min(Math.max(index + step, 0), links.length - 1);
  links[next]?.focus();
}

/* Focus the card in the same row of the next lane that has cards. */
function focusLane(step) {
  const lanes = [...document.querySelectorAll(".lane")].map(cardLinks);
  const index = lanes.findIndex((links) => links.includes(document.activeElement));
  const row = index < 0 ? 0 : lanes[index].indexOf(document.activeElement);
  for (let next = index + step; next >= 0 && next < lanes.length; next += step) {
    const links = lanes[next];
    if (!links.length) continue;
    links[Math.min(row, links.length - 1)].focus();
    return;
  }
}
