/* The side of a job's page: its facts, and the timeline of its attempts and hops. */
import { ago, clock, dayClock, duration, hopTarget, plural, secondsBetween } from "../format.js";
import { secondsSince, stateName, usd } from "../format.js";
import { stateIcon } from "../icons.js";
import { h } from "../view.js";
import { copyButton, facts, jobLink, jobState, panel, stateLabel, taskAddress, timeAgo } from "../widgets.js";

const OUTCOME_STATES = {
  succeeded: "succeeded",
  routed: "succeeded",
  failed: "failed",
  retried: "failed",
  killed: "killed",
  stale: "stale",
  released: "skipped",
};

export function factsPanel(job) {
  const requeues = job.retry_count ? `, ${plural(job.retry_count, "requeue")}` : "";
  const waitsFor = job.waits_for || [];
  const ran = runSeconds(job);
  return panel(
    "About",
    {},
    facts([
      ["State", stateLabel(jobState(job), { chip: true })],
      ["Job", h("span.row", h("span.mono.wrapped", job.job_id), copyButton(job.job_id, "Copy the job's id"))],
      ["Name", job.name],
      ["Role", h("a", { href: `#/board?role=${encodeURIComponent(job.role)}` }, job.role)],
      ["Task", job.task ? h("a", { href: taskAddress(job.task) }, job.task) : null],
      ["Tags", job.tags && job.tags.length ? job.tags.map(tagLink) : null],
      ["Attempt", job.attempt ? `${job.attempt}${requeues}` : "none yet"],
      ["Created", timeAgo(job.created_at)],
      ["Waited", waitText(job)],
      [job.terminal ? "Took" : "Runs", ran === null ? null : h("span.num", duration(ran))],
      ["Not before", job.not_before && !job.first_claimed_at ? timeAgo(job.not_before) : null],
      ["Waits for", waitsFor.length ? h("span.row.wrap", waitsFor.map((id) => jobLink(id))) : null],
      ["Agent", job.agent && !job.terminal ? h("span.mono.wrapped", job.agent) : null],
      ["Retry of", job.retry_of ? jobLink(job.retry_of) : null],
      ["Cost", job.cost ? costText(job.cost) : null],
    ]),
  );
}

const tagLink = (tag) => h("a.tag", { key: tag, href: `#/board?tag=${encodeURIComponent(tag)}` }, tag);

function runSeconds({ first_claimed_at: claimed, finalized_at: finalized }) {
  if (finalized) return secondsBetween(claimed, finalized);
  return claimed ? secondsSince(claimed) : null;
}

function waitText({ created_at: created, first_claimed_at: claimed }) {
  if (claimed) return duration(secondsBetween(created, claimed));
  return ago(created).replace(" ago", " so far");
}

function costText(cost) {
  if (typeof cost !== "object") return usd(cost);
  const amount = cost.usd ?? cost.total_usd ?? null;
  const calls = cost.calls ? h("span.quiet", ` in ${plural(cost.calls, "call")}`) : null;
  return h("span.num", amount === null ? "unknown" : usd(amount), calls);
}

export function timelinePanel(job, attempts) {
  const items = timelineEvents(job, attempts).map(timelineItem);
  return panel("Timeline", { note: plural(attempts.length, "attempt") }, h("ol.timeline", items));
}

function timelineItem({ at, state, title, text, details, note }, index) {
  return h(
    "li",
    { key: index, "data-state": state },
    h("span.marker", stateIcon(state, 14, state === "in_progress")),
    h(
      "div.grow",
      h("div", h("span.strong", title), " ", h("span.soft", text)),
      details ? h("p.small.quiet", details) : null,
      note ? h("p.small.soft.note", note) : null,
    ),
    h("time.num.small.quiet", { datetime: at, title: at ? clock(at, true) : "" }, at ? dayClock(at) : "–"),
  );
}

/* An attempt and the hop that ended it are one event. Hops of operators and of the watchdog are events of their own. */
function timelineEvents(job, attempts) {
  const hops = [...job.hops];
  const firstRole = hops.length ? hops[0].role : job.role;
  const events = [{ at: job.created_at, state: "queued", title: "Enqueued", text: `for ${firstRole}` }];
  for (const attempt of attempts) {
    const index = hops.findIndex((hop) => hop.attempt === attempt.number);
    const hop = index < 0 ? null : hops.splice(index, 1)[0];
    events.push(attemptEvent(job, attempt, hop));
  }
  events.push(...hops.map(hopEvent));
  const time = ({ at }) => Date.parse(at) || Number.MAX_SAFE_INTEGER;
  return events.sort((one, other) => time(one) - time(other)); // stable: equal times keep their order
}

function attemptEvent(job, attempt, hop) {
  const event = {
    title: hop ? hop.role : job.role,
    details: attemptDetails(attempt),
    note: hop && hop.note,
  };
  const isRunning = !attempt.ended_at && !hop && job.status === "in_progress";
  if (isRunning) return { ...event, at: attempt.started_at, state: "in_progress", text: "works" };
  const target = hop ? hopTarget(hop.to) : {};
  return {
    ...event,
    at: attempt.ended_at || (hop && hop.at) || attempt.started_at,
    state: target.state || outcomeState(attempt.outcome),
    text: target.text || (hop ? stateName(hop.reason).toLowerCase() : attempt.outcome || ""),
  };
}

function attemptDetails({ number, agent, duration_s: seconds, steps, steps_total: total }) {
  const isDone = (step) => step.exit_code === 0 || (step.exit_code === null && !step.error);
  return [
    `attempt ${number}`,
    agent,
    seconds ? duration(seconds) : null,
    total > 1 ? `${steps.filter(isDone).length}/${total} steps` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}

function hopEvent(hop) {
  const target = hopTarget(hop.to);
  return {
    at: hop.at,
    title: stateName(hop.reason),
    text: target.text || "",
    state: target.state || "queued",
    details: hop.by,
    note: hop.note,
  };
}

/* An attempt without an outcome was lost. */
const outcomeState = (outcome) => OUTCOME_STATES[outcome] || (outcome ? "skipped" : "stale");
