/* One lane of the board, and its cards. */
import { ago, count, plural, roughDuration, secondsSince, shortId, stateName, tinyId } from "../format.js";
import { h } from "../view.js";
import { button, errorNote, jobAddress, jobState, pauseText, stateLabel } from "../widgets.js";

export const LANES = ["queued", "in_progress", "stale", "failed", "succeeded", "killed"];
const EMPTY_TEXTS = {
  queued: "Nothing waits.",
  in_progress: "Nothing runs.",
  stale: "No worker was lost.",
  failed: "Nothing failed.",
  succeeded: "Nothing succeeded yet.",
  killed: "Nothing was killed.",
};
const FRESH_MS = 1500; // a card that moved is marked for this time

/* An empty lane needs room for its head only. */
export const laneWidth = ({ jobs }) =>
  jobs && !jobs.length ? "minmax(max-content, 0.5fr)" : "minmax(10.5rem, 1fr)";

/* board: the BoardPage */
export function laneNode(board, lane, mostCards) {
  const { status } = lane;
  return h(
    "section.lane",
    { key: status, "data-state": status, "aria-labelledby": `lane-${status}` },
    laneHead(board, lane),
    status === "queued" ? pausedQueues(board) : null,
    lane.error ? errorNote(lane.error, lane.load) : null,
    laneCards(board, lane),
    lane.next && lane.jobs && lane.jobs.length ? laneFoot(board, lane, mostCards) : null,
  );
}

const isSearch = ({ text, tag }) => Boolean(text || tag);
const isShownRole = ({ roles }, role) => !roles.length || roles.includes(role);

function laneHead(board, lane) {
  const jobs = lane.jobs || [];
  const selected = jobs.filter((job) => board.selected.has(job.job_id)).length;
  const box = {
    type: "checkbox",
    "aria-label": `Select the shown jobs of ${stateName(lane.status)}`,
    checked: selected > 0 && selected === jobs.length,
    indeterminate: selected > 0 && selected < jobs.length,
    disabled: !jobs.length,
    // The box's own state counts: the lane may hold other cards by now than when it was drawn.
    on: { change: (event) => board.selectLane(lane, event.target.checked) },
  };
  return h(
    "header",
    h("input", box),
    h("h2", { id: `lane-${lane.status}` }, stateLabel(lane.status)),
    h("span.num.quiet.end", { "data-count": lane.status }, laneCount(board, lane)),
  );
}

function laneCount({ filter, context }, { status, jobs, next, total }) {
  if (isSearch(filter)) return jobs ? `${jobs.length}${next ? "+" : ""}` : "–";
  const { queues } = context.shared;
  if (!queues) return count(total);
  const ofQueue = (queue) => queue[status] + (status === "queued" ? queue.delayed + queue.waiting : 0);
  const shown = queues.filter((queue) => isShownRole(filter, queue.role));
  return count(shown.reduce((sum, queue) => sum + ofQueue(queue), 0));
}

function pausedQueues({ filter, context }) {
  const isHeldUp = (queue) => queue.paused && queue.queued + queue.delayed + queue.waiting > 0;
  const paused = (context.shared.queues || []).filter((queue) => isHeldUp(queue) && isShownRole(filter, queue.role));
  if (!paused.length) return null;
  const item = ({ role, paused: pause }) =>
    h(
      "li",
      { key: role, title: `Paused ${pauseText(pause)}` },
      stateLabel("paused", { text: `${role} is paused`, size: 12 }),
    );
  return h("ul.paused-queues.small", { "aria-label": "Paused queues" }, paused.map(item));
}

function laneCards(board, { status, jobs }) {
  if (jobs === null) return h("p.none", { "aria-busy": "true" }, "Loading …");
  if (!jobs.length) return h("p.none", isSearch(board.filter) ? "No match." : EMPTY_TEXTS[status]);
  return h("ol", { "aria-label": `${stateName(status)} jobs` }, jobs.map((job) => card(board, job)));
}

function laneFoot(board, lane, mostCards) {
  if (lane.limit >= mostCards) return h("p.none", `The first ${mostCards}. Search or filter for others.`);
  const label = `Show more of ${stateName(lane.status)}`;
  return button("Show more", () => board.showMore(lane), { kind: "ghost", "aria-label": label });
}

function card(board, job) {
  const id = job.job_id;
  const isSelected = board.selected.has(id);
  const isFresh = Date.now() - (board.movedAt.get(id) || 0) < FRESH_MS;
  const box = {
    type: "checkbox",
    "aria-label": `Select ${job.title || id}`,
    checked: isSelected,
    on: { click: (event) => board.toggleSelected(id, event) },
  };
  const properties = {
    key: id,
    "data-job": id,
    "data-state": jobState(job),
    class: [isSelected && "chosen", isFresh && "fresh"].filter(Boolean).join(" "),
  };
  return h(
    "li.card",
    properties,
    h(
      "div.row",
      h("a.open.clip", { href: jobAddress(id), title: job.title }, job.title || job.name || shortId(id)),
      h("input.end", box),
    ),
    job.error && job.status !== "succeeded" ? cardError(job.error) : null,
    cardDetails(job, board.filter),
  );
}

const cardError = ({ message, category }) => h("p.why.small", { title: message }, message || category);

function cardDetails(job, filter) {
  const isUsualPriority = !job.priority || ["P2", "normal"].includes(job.priority);
  return h(
    "div.row.small.quiet.meta",
    h("span.mono.clip.id", { title: job.job_id }, job.name || tinyId(job.job_id)),
    filter.roles.length === 1 ? null : h("span.clip", job.role),
    job.attempt > 1 ? h("span.num", { title: `Attempt ${job.attempt}` }, `×${job.attempt}`) : null,
    isUsualPriority ? null : h("span.tag", job.priority),
    (job.tags || []).slice(0, 2).map((tag) => h("span.tag", { key: tag }, tag)),
    h("span.end.num", cardTime(job)),
  );
}

/* What the job waits for, how long it has been running, or how long ago it came here. */
function cardTime(job) {
  const state = jobState(job);
  if (state === "waiting") {
    return stateLabel("waiting", { text: job.person ? "you" : plural(job.waits_for.length, "job"), size: 12 });
  }
  if (state === "delayed") return stateLabel("delayed", { text: ago(job.not_before), size: 12 });
  if (job.status === "in_progress") return age(job.updated_at);
  const since = job.status === "queued" ? job.enqueued_at : job.finalized_at || job.updated_at;
  return h("time.num", { datetime: since, title: ago(since) }, age(since));
}

const age = (moment) => roughDuration(Math.max(secondsSince(moment), 0));
