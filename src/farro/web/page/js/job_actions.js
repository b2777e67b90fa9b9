/* What a user may do to jobs, queues and accounts: the question before it, the request, the note after it. */
import { path, post } from "./api.js";
import { ask, toast } from "./dialogs.js";
import { plural, shortId, stateName } from "./format.js";
import { h } from "./view.js";

const ACTIONS = {
  kill: {
    name: "Kill",
    past: "killed",
    icon: "stop",
    danger: true,
    textForOne: "Its processes are ended. A killed job does not run again; it can be retried as a new one.",
    textForMany: "Their processes are ended. A killed job does not run again; it can be retried as a new one.",
  },
  requeue: {
    name: "Requeue",
    past: "queued again",
    icon: "retry",
    textForOne: "It goes back into its queue, with a new attempt.",
    textForMany: "They go back into their queues, with a new attempt each.",
  },
  retry: {
    name: "Retry",
    past: "retried",
    icon: "retry",
    textForOne: "A new job is made; steps that had succeeded are kept.",
    textForMany: "A new job is made of each; steps that had succeeded are kept.",
  },
  "force-complete": {
    name: "Force complete",
    past: "completed by hand",
    icon: "flag",
    danger: true,
    textForOne: "It counts as succeeded from now on, whatever it did. The audit log keeps your name.",
    textForMany: "They count as succeeded from now on, whatever they did. The audit log keeps your name.",
  },
};
const REASON = { name: "note", label: "Why", kind: "text", hint: "Kept with the job." };
const BATCH = 200; // jobs in one request
const LISTED = 5; // ids in the question

export const jobAction = (name) => ACTIONS[name];

/* The actions that make sense for a job in its present state. The server decides. */
export function possibleActions(job) {
  const ended = job.terminal ?? ["succeeded", "killed"].includes(job.status);
  if (ended) return ["retry"];
  const actions = ["kill"];
  if (["stale", "failed"].includes(job.status)) actions.push("requeue");
  if (["in_progress", "stale", "failed"].includes(job.status)) actions.push("force-complete");
  return actions;
}

/* Run `work` for a dialog: its error is shown there, and the dialog stays open. */
async function asProblems(work) {
  try {
    await work();
    return null;
  } catch (error) {
    return { "": error.message };
  }
}

/* Ask, then do it to one job. after(answer): the server did it. */
export async function actOnJob(name, job, { after }) {
  const action = ACTIONS[name];
  const send = async ({ note }) => {
    const answer = await post(path("jobs", job.job_id, name), note ? { note } : {});
    if (name === "kill" && answer.status !== "killed") {
      const state = stateName(answer.status).toLowerCase();
      toast("warning", `${shortId(job.job_id)} is ${state} already; nothing was changed`);
    } else toast("ok", `${shortId(job.job_id)} is ${action.past}`);
    after(answer);
  };
  await ask({
    title: `${action.name} this job?`,
    text: action.textForOne,
    body: h("p.mono.clip", job.job_id),
    fields: [REASON],
    yes: action.name,
    danger: action.danger,
    submit: (values) => asProblems(() => send(values)),
  });
}

/* Retry a job, from `step` where it is not null. after(new job) */
export async function retryJob(job, step, { after }) {
  const send = async ({ whole }) => {
    const body = step === null ? { from_start: whole } : { from_step: step };
    const answer = await post(path("jobs", job.job_id, "retry"), body);
    toast("ok", `Retried as ${shortId(answer.job_id)}`);
    after(answer);
  };
  const submit = (values) => asProblems(() => send(values));
  if (step === null) {
    await ask({
      title: "Retry this job?",
      text: "A new job is made; steps that had succeeded are kept unless you run all of them again.",
      fields: [{ name: "whole", label: "Run all steps again", kind: "check" }],
      yes: "Retry",
      submit,
    });
  } else {
    await ask({
      title: `Retry from step ${step}?`,
      text: "A new job is made. What the steps before it left is kept; this step and what follows run again.",
      yes: "Retry",
      submit,
    });
  }
}

/* Pause a queue. after(pause): how the queue is paused now */
export async function pauseQueue(role, { after }) {
  const send = async ({ why }) => {
    const answer = await post(path("queues", role, "pause"), why.trim() ? { why: why.trim() } : {});
    if (answer.changed) toast("ok", `The queue of ${role} is paused`);
    else toast("warning", `The queue of ${role} was paused already, by ${answer.paused.by}`);
    after(answer.paused);
  };
  await ask({
    title: `Pause the queue of ${role}?`,
    text: "No worker takes a job from it until it is resumed. Running jobs go on, and new jobs are still queued.",
    fields: [{ name: "why", label: "Why", hint: "Shown where farro explains why a job does not start." }],
    yes: "Pause",
    submit: (values) => asProblems(() => send(values)),
  });
}

/* Resume a queue. after(null) */
export async function resumeQueue(role, { after }) {
  const send = async () => {
    const answer = await post(path("queues", role, "resume"));
    if (answer.changed) toast("ok", `The queue of ${role} goes on`);
    else toast("warning", `The queue of ${role} was not paused`);
    after(answer.paused);
  };
  await ask({
    title: `Resume the queue of ${role}?`,
    text: "Workers take its jobs again.",
    yes: "Resume",
    submit: () => asProblems(send),
  });
}

/* Resume the account of a provider. after(account) */
export async function resumeAccount(account, { after }) {
  const send = async () => {
    const { was_paused: wasPaused, jobs } = await post(path("accounts", account, "resume"));
    const started = jobs.length ? `; ${plural(jobs.length, "job starts", "jobs start")} now` : "";
    if (wasPaused) toast("ok", `Account ${account} goes on${started}`);
    else toast("warning", `Account ${account} was not paused${started}`);
    after(account);
  };
  await ask({
    title: `Resume the account ${account}?`,
    text: "Its waiting jobs start now. If it is still limited or refused, the first of them finds that out.",
    yes: "Resume",
    submit: () => asProblems(send),
  });
}

/* Ask, then do it to many jobs. Return whether any of them may have changed. */
export async function actOnJobs(name, ids) {
  const action = ACTIONS[name];
  const more = ids.length - LISTED;
  const answer = await ask({
    title: `${action.name} ${plural(ids.length, "job")}?`,
    text: action.textForMany,
    body: h(
      "ul.mono.small.soft",
      ids.slice(0, LISTED).map((id) => h("li.clip", id)),
      more > 0 ? h("li", `and ${more} more`) : null,
    ),
    fields: name === "retry" ? [] : [REASON],
    yes: `${action.name} ${ids.length}`,
    danger: action.danger,
  });
  return answer ? sendBatches(name, ids, answer.note || null) : false;
}

async function sendBatches(name, ids, note) {
  const { past } = ACTIONS[name];
  const refused = [];
  let done = 0;
  try {
    for (let start = 0; start < ids.length; start += BATCH) {
      const body = { action: name, jobs: ids.slice(start, start + BATCH), note };
      const { results } = await post("/api/jobs/actions", body);
      done += results.filter((result) => result.ok).length;
      refused.push(...results.filter((result) => !result.ok));
    }
  } catch (error) {
    toast("error", done ? `${plural(done, "job")} ${past}, then: ${error.message}` : error.message);
    return done > 0;
  }
  if (done) toast("ok", `${plural(done, "job")} ${past}`);
  if (refused.length) toast("warning", refusalText(refused, past));
  return true;
}

function refusalText(refused, past) {
  const reason = refused[0].error ? refused[0].error.message : "the server does not say why";
  const others = refused.length > 1 ? `; and ${plural(refused.length - 1, "other")}` : "";
  return `${plural(refused.length, "job")} not ${past}: ${reason}${others}`;
}
