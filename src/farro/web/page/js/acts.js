/* What may be done to jobs from any page: the question before it, the call, the word after it. */
import { path, post } from "./api.js";
import { ask, toast } from "./overlay.js";
import { h } from "./view.js";
import { many, said, shortId } from "./words.js";

const ACTS = {
  kill: { word: "Kill", past: "killed", sign: "stop", danger: true, text: "The processes of a running job are ended. A killed job does not run again; it can be retried as a new one." },
  requeue: { word: "Requeue", past: "queued again", sign: "retry", text: "They go back into their queue, with a new attempt.", one: "It goes back into its queue, with a new attempt." },
  retry: { word: "Retry", past: "retried", sign: "retry", text: "A new job is made of each; steps that had succeeded are kept." },
  "force-complete": { word: "Force complete", past: "completed by hand", sign: "flag", danger: true, text: "They count as succeeded from now on, whatever they did. The audit log keeps your name.", one: "It counts as succeeded from now on, whatever it did. The audit log keeps your name." },
};
export const act = (name) => ACTS[name];

/* What makes sense for a job as it stands. The server has the last word. */
export function possible(row) {
  const ended = row.terminal ?? ["succeeded", "killed"].includes(row.status);
  const acts = [];
  if (!ended) acts.push("kill");
  if (!ended && (row.status === "stale" || row.status === "failed")) acts.push("requeue");
  if (ended) acts.push("retry");
  if (!ended && ["in_progress", "stale", "failed"].includes(row.status)) acts.push("force-complete");
  return acts;
}

const NOTE = { name: "note", label: "Why", kind: "text", hint: "Kept with the job." };

export async function doTo(name, job, { after } = {}) {
  const told = ACTS[name];
  const send = async ({ note }) => {
    try {
      const done = await post(path("jobs", job.job_id, name), note ? { note } : {});
      if (name === "kill" && done.status !== "killed") toast("warning", `${shortId(job.job_id)} is ${said(done.status).toLowerCase()} already; nothing was changed`);
      else toast("ok", `${shortId(job.job_id)} is ${told.past}`);
      if (after) after(done);
      return null;
    } catch (error) {
      return { "": error.message };
    }
  };
  await ask({ title: `${told.word} this job?`, text: told.one || told.text, fields: [NOTE], yes: told.word, danger: told.danger, body: h("p.mono.clip", job.job_id), send });
}

export async function retryFrom(job, step, { after } = {}) {
  const send = async ({ whole }) => {
    try {
      const done = await post(path("jobs", job.job_id, "retry"), step === null ? { from_start: whole } : { from_step: step });
      toast("ok", `Retried as ${shortId(done.job_id)}`);
      if (after) after(done);
      return null;
    } catch (error) {
      return { "": error.message };
    }
  };
  await ask({
    send, title: step === null ? "Retry this job?" : `Retry from step ${step}?`, yes: "Retry",
    text: step === null ? "A new job is made; steps that had succeeded are kept unless you run all of them again." : "A new job is made. What the steps before it left is kept; this step and what follows run again.",
    fields: step === null ? [{ name: "whole", label: "Run all steps again", kind: "check" }] : [],
  });
}

/* A queue gives out no job, or does again. after(paused): how it stands now. */
export async function switchQueue(role, pause, { after } = {}) {
  const word = pause ? "Pause" : "Resume";
  const send = async ({ why = "" }) => {
    try {
      const done = await post(path("queues", role, word.toLowerCase()), why.trim() ? { why: why.trim() } : {});
      if (done.changed) toast("ok", `The queue of ${role} ${pause ? "is paused" : "goes on"}`);
      else toast("warning", pause ? `The queue of ${role} was paused already, by ${done.paused.by}` : `The queue of ${role} was not paused`);
      if (after) after(done.paused);
      return null;
    } catch (error) {
      return { "": error.message };
    }
  };
  await ask({
    send, title: `${word} the queue of ${role}?`, yes: word,
    text: pause ? "No worker takes a job of it until it is resumed. What runs goes on, and jobs are queued as ever." : "Workers take its jobs again.",
    fields: pause ? [{ name: "why", label: "Why", hint: "Told to whoever asks why a job does not begin." }] : [],
  });
}

const AT_ONCE = 200;

export async function doToMany(name, ids) {
  const told = ACTS[name];
  const some = ids.slice(0, 5);
  const answer = await ask({
    title: `${told.word} ${many(ids.length, "job")}?`, text: told.text, fields: name === "retry" ? [] : [NOTE], yes: `${told.word} ${ids.length}`, danger: told.danger,
    body: h("ul.mono.small.soft", some.map((id) => h("li.clip", id)), ids.length > some.length ? h("li", `and ${ids.length - some.length} more`) : null),
  });
  if (!answer) return false;
  const refused = [];
  let done = 0;
  try {
    for (let at = 0; at < ids.length; at += AT_ONCE) {
      const { results } = await post("/api/jobs/actions", { action: name, jobs: ids.slice(at, at + AT_ONCE), note: answer.note || null });
      for (const one of results) {
        if (one.ok) done += 1;
        else refused.push(one);
      }
    }
  } catch (error) {
    toast("error", done ? `${many(done, "job")} ${told.past}, then: ${error.message}` : error.message);
    return done > 0;
  }
  if (done) toast("ok", `${many(done, "job")} ${told.past}`);
  if (refused.length) toast("warning", `${many(refused.length, "job")} not ${told.past}: ${refused[0].error ? refused[0].error.message : "the server does not say why"}${refused.length > 1 ? `; and ${many(refused.length - 1, "other")}` : ""}`);
  return true;
}
