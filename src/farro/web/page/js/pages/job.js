/* One job: how it stands, what it was asked, what it did and said. Logs live in logs.js, the plan's picture in plan.js. */
import { act, doTo, possible, retryFrom, switchQueue } from "../acts.js";
import { bare } from "../ansi.js";
import { get, path, text } from "../api.js";
import { icon } from "../icons.js";
import { logs } from "../logs.js";
import { markdown } from "../markdown.js";
import { button, command, copyButton, failure, facts, jobAddress, jobLink, loading, moment, panel, segments, standing, state, tabs } from "../parts.js";
import { planGraph, stepFacts } from "../plan.js";
import { h } from "../view.js";
import { ago, between, bytes, capital, clock, dayClock, duration, many, said, shortId, since, usd, whither } from "../words.js";

const TABS = [["output", "Output"], ["result", "Result"], ["prompt", "Prompt"], ["files", "Files"], ["audit", "Audit"]];

export function job(ctx, route) {
  const id = route.args[0] || "";
  const page = { job: null, plan: null, story: null, explain: null, error: null, tab: TABS.some(([tab]) => tab === route.query.get("tab")) ? route.query.get("tab") : null, step: route.query.get("step"), result: null, source: false, file: null, fileText: null, paused: null };
  const aborted = new AbortController();
  const at = (...rest) => path("jobs", id, ...rest);
  let stream = null;

  const reload = ctx.paced(async () => {
    try {
      const [whole, story, plan] = await Promise.all([get(at(), aborted.signal), get(at("history"), aborted.signal), get(at("plan"), aborted.signal).catch((error) => { if (error.status >= 400) return null; throw error; })]);
      Object.assign(page, { job: whole, story, plan, error: null });
      if (page.tab === null) page.tab = whole.terminal && isAgent(whole) ? "result" : "output";
      page.explain = whole.status === "succeeded" ? null : await get(at("explain"), aborted.signal).catch(() => null);
      if (page.tab === "result") readResult();
      if (!stream) stream = logs(whole.job_id, page.step, ctx.redraw);
      stream.again(whole);
    } catch (error) {
      if (error.name === "AbortError") return;
      ctx.failed(error);
      if (error.status !== 0 || !page.job) page.error = error;
    }
    ctx.redraw();
  }, 700);
  reload();
  // No event tells that a step began, nor surely that a queue goes on which was paused for a moment: these are looked at.
  const changing = () => page.job && (page.job.status === "in_progress" || (page.explain && page.explain.reason === "paused"));
  const timer = setInterval(() => { if (changing() && !document.hidden) reload(); }, 2000);

  async function readResult() {
    const whole = page.job;
    const file = whole.files.find((one) => one.path === "result.md") || whole.files.find((one) => one.path === "error.md");
    if (!file) { page.result = { path: null, text: null }; ctx.redraw(); return; }
    try {
      page.result = { path: file.path, text: await text(at("files", ...file.path.split("/")).replaceAll("%2F", "/"), aborted.signal) };
    } catch (error) { if (error.name !== "AbortError") page.result = { path: file.path, text: null, error }; }
    ctx.redraw();
  }
  async function openFile(file) {
    page.file = file;
    page.fileText = undefined;
    ctx.redraw();
    try {
      page.fileText = file.bytes > 1024 * 1024 ? null : await text(at("files", ...file.path.split("/")), aborted.signal);
    } catch (error) { if (error.name !== "AbortError") page.fileText = error.message; }
    ctx.redraw();
  }
  const remember = () => ctx.go(`#/job/${encodeURIComponent(id)}?tab=${page.tab}${page.step ? `&step=${encodeURIComponent(page.step)}` : ""}`, { replace: true });
  const choose = (tab) => { page.tab = tab; if (tab === "result") readResult(); remember(); ctx.redraw(); };
  const chooseStep = (step) => { page.step = page.step === step ? null : step; if (stream) stream.filter(page.step); if (page.step) page.tab = "output"; remember(); ctx.redraw(); };
  const moveOn = (done) => ctx.go(jobAddress(done.job_id));
  const perform = (name) => (name === "retry" ? retryFrom(page.job, null, { after: moveOn }) : doTo(name, page.job, { after: reload }));
  const allowed = () => (page.job && !ctx.readOnly() ? possible(page.job) : []);

  return {
    title: () => (page.job ? `${page.job.title || shortId(page.job.job_id)} · ${said(standing(page.job))}` : shortId(id)),
    heading: () => (page.job ? page.job.title || page.job.name || shortId(page.job.job_id) : shortId(id)),
    crumb: () => ["#/board", "Board"],
    stay: (next) => next.args[0] === id && false,
    keys: {
      e: { told: "Retry", run: () => allowed().includes("retry") && perform("retry") },
      K: { told: "Kill", run: () => allowed().includes("kill") && perform("kill") },
      f: { told: "Follow the output", run: () => stream && stream.follow() },
      "/": { told: "Search the output", run: () => { choose("output"); requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(".logs input[type=search]")?.focus())); } },
      ...Object.fromEntries(TABS.map(([tab, name], i) => [String(i + 1), { told: name, run: () => choose(tab) }])),
    },
    actions: () => (page.job ? allowed().map((name) => button(act(name).word, () => perform(name), { key: name, sign: act(name).sign, kind: { kill: "danger", retry: "primary", "force-complete": "ghost" }[name] || "" })) : null),
    heard(kind, data) {
      const own = page.job ? page.job.job_id : id;
      // Nothing happens to a job whose queue is paused: the counts tell it.
      const queue = kind === "counts" && page.job ? data.queues.find((one) => one.role === page.job.role) : null;
      // By the pause, not by whether there is one: it may have gone on and been paused anew since the last counts.
      const pause = queue && queue.paused ? queue.paused.at || "once" : "", switched = queue && pause !== page.paused;
      if (queue) page.paused = pause;
      if (switched || ["hello", "gap", "ready"].includes(kind) || (kind === "changes" && data.jobs.some((one) => one.job_id === own))) reload();
    },
    stop: () => { aborted.abort(); clearInterval(timer); reload.stop(); if (stream) stream.stop(); },
    view() {
      if (!page.job) return page.error ? failure(page.error, reload) : loading("Reading the job");
      return h("div.job",
        h("div.stack", page.error ? failure(page.error, reload) : null, trouble(), plan(),
          h("section.panel", tabs("About this job", TABS.map(([tab, name]) => [tab, name, tab === "files" ? page.job.files.length : null]), page.tab, choose),
            h("div.body", { id: "tab-shown", role: "tabpanel", "aria-labelledby": `tab-${page.tab}`, class: page.tab === "output" || page.tab === "files" ? "flush" : "" }, shown()))),
        h("aside.stack", { "aria-label": "Facts and timeline" }, about(), timeline()));
    },
  };

  function trouble() {
    const { job: whole, explain } = page;
    const error = whole.error;
    const why = explain && !whole.terminal && whole.status !== "in_progress" && capital(explain.message);
    if (!error && !why && !whole.damaged) return null;
    return h("div.notice", { "data-state": standing(whole) }, icon(standing(whole)),
      h("div.grow.stack.tight",
        error ? h("p.strong.wrapped", error.message, h("span.tag.cause", error.category)) : null,
        whole.damaged ? h("p", `Damaged: ${whole.damaged}`) : null,
        why && (!error || why !== error.message) ? h("p.soft", why) : null,
        why && explain.fix ? h("div.row.wrap", command(explain.fix), explain.reason === "paused" && !ctx.readOnly() ? button("Resume the queue", () => switchQueue(whole.role, false, { after: reload }), { sign: "play" }) : null) : null));
  }

  function plan() {
    if (!page.plan || page.plan.steps.length < 2) return null;
    const steps = page.plan.steps;
    const done = steps.filter((step) => step.state === "succeeded").length;
    const chosen = steps.find((step) => step.id === page.step);
    return panel("Plan", { note: `${done} of ${many(steps.length, "step")} done${page.plan.added ? `, ${page.plan.added} added while it ran` : ""}`, flush: true },
      planGraph(page.plan, page.step, chooseStep),
      chosen ? h("div.chosen-step", stepFacts(chosen, lastTry(chosen.id)), h("div.row", ctx.readOnly() ? null : button("Retry from here", () => retryFrom(page.job, chosen.id, { after: moveOn }), { sign: "retry" }), button("All steps", () => chooseStep(chosen.id), { kind: "ghost", sign: "close" }))) : null);
  }
  function lastTry(step) {
    return page.story.attempts.flatMap((attempt) => attempt.steps).filter((one) => one.id === step).at(-1) || null;
  }

  /* The attempts that have output, each with the role that made it. */
  function spoken() {
    const roles = new Map(page.job.hops.map((hop) => [hop.attempt, hop.role]));
    return page.story.attempts.filter((one) => one.output).map((one) => ({ number: one.number, role: roles.get(one.number) || page.job.role, at: one.started_at }));
  }

  function shown() {
    if (page.tab === "output") return stream ? stream.view(page.job, spoken()) : loading();
    if (page.tab === "result") return result();
    if (page.tab === "prompt") return prompt();
    if (page.tab === "files") return files();
    return audit();
  }

  function result() {
    const told = page.result;
    if (!told) return loading();
    const steps = page.job.result && page.job.result.step_results;
    if (told.text) {
      return h("div.stack", h("div.row", h("span.mono.quiet.small", told.path), h("div.end", segments("How it is shown", [["read", "Rendered"], ["source", "Source"]], page.source ? "source" : "read", (value) => { page.source = value === "source"; ctx.redraw(); }))),
        page.source ? h("pre.code.box", { tabindex: 0 }, told.text) : markdown(told.text));
    }
    if (steps && steps.length) {
      return h("div.stack", steps.slice(0, 100).map((step, i) => h("div.stack.tight", { key: i },
        h("div.row", state(step.success ? "succeeded" : "failed", { text: `Step ${step.id || step.step_number}` }), h("span.quiet.num", `exit ${step.exit_code ?? "–"}`), step.duration_s !== undefined ? h("span.quiet.num", duration(step.duration_s)) : null),
        step.error ? h("p.error", step.error) : null, step.stdout ? h("pre.code.box", { tabindex: 0 }, bare(step.stdout)) : null, step.stderr ? h("pre.code.box.stderr", { tabindex: 0 }, bare(step.stderr)) : null)));
    }
    return h("p.quiet", page.job.terminal ? "It left no result." : "There is no result before the job ends.");
  }

  function prompt() {
    const asked = page.job.prompt || {};
    const rubric = typeof asked.rubric === "string" ? asked.rubric : typeof asked.objective === "string" ? asked.objective : null;
    return h("div.stack", page.job.narrative ? markdown(page.job.narrative) : rubric ? markdown(rubric) : null,
      h("details", { open: !page.job.narrative && !rubric }, h("summary.small.quiet", "prompt.json"), h("pre.code.box", { tabindex: 0 }, JSON.stringify(asked, null, 2))));
  }

  function files() {
    const list = page.job.files;
    if (!list.length) return h("p.empty.quiet", "No files.");
    return h("div.files",
      h("ul", { "aria-label": "Files of this job" }, list.slice(0, 500).map((file) => h("li", { key: file.path }, h("button", { type: "button", "aria-pressed": String(page.file === file), on: { click: () => openFile(file) } }, icon("file", 14), h("span.mono.clip", { title: file.path }, file.path), h("span.end.num.quiet.small", bytes(file.bytes)))))),
      h("div.reader", page.file ? [
        h("div.row", h("span.mono.clip.grow", page.file.path), h("a.button", { href: `${at("files", ...page.file.path.split("/"))}?download=true`, download: page.file.path.split("/").at(-1) }, icon("download", 14), "Download")),
        page.fileText === undefined ? loading() : page.fileText === null ? h("p.quiet", page.file.bytes > 1024 * 1024 ? "Too large to show here." : "Not a text.") : h("pre.code", { tabindex: 0, "aria-label": page.file.path }, page.fileText),
      ] : h("p.quiet", "Choose a file to read it.")));
  }

  function audit() {
    const lines = page.story.audit || [];
    if (!lines.length) return h("p.quiet", "The audit log says nothing about this job.");
    return h("div.scroll", h("table.table", h("thead", h("tr", ["When", "Event", "Actor", "Codes"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", lines.map((line, i) => {
        const { ts, event, actor, job_id: _, ...rest } = line;
        return h("tr", { key: i }, h("td.num", { title: ts }, clock(ts)), h("td", event), h("td.mono", actor), h("td.mono.small.soft", Object.entries(rest).filter(([, value]) => value !== null && typeof value !== "object").map(([name, value]) => `${name}=${value}`).join(" ")));
      }))));
  }

  function about() {
    const whole = page.job;
    const how = standing(whole);
    const ran = whole.finalized_at ? between(whole.first_claimed_at, whole.finalized_at) : whole.first_claimed_at ? since(whole.first_claimed_at) : null;
    const cost = whole.cost;
    return panel("About", {}, facts([
      ["State", state(how, { chip: true })],
      ["Job", h("span.row", h("span.mono.wrapped", whole.job_id), copyButton(whole.job_id, "Copy the job's id"))],
      ["Name", whole.name],
      ["Role", h("a", { href: `#/board?role=${encodeURIComponent(whole.role)}` }, whole.role)],
      ["Task", whole.task ? h("a", { href: `#/task/${encodeURIComponent(whole.task)}` }, whole.task) : null],
      ["Tags", whole.tags && whole.tags.length ? whole.tags.map((tag) => h("a.tag", { key: tag, href: `#/board?tag=${encodeURIComponent(tag)}` }, tag)) : null],
      ["Attempt", whole.attempt ? `${whole.attempt}${whole.retry_count ? `, ${many(whole.retry_count, "requeue")}` : ""}` : "none yet"],
      ["Created", moment(whole.created_at)],
      ["Waited", whole.first_claimed_at ? duration(between(whole.created_at, whole.first_claimed_at)) : ago(whole.created_at).replace(" ago", " so far")],
      [whole.terminal ? "Took" : "Runs", ran === null ? null : h("span.num", duration(ran))],
      ["Not before", whole.not_before && !whole.first_claimed_at ? moment(whole.not_before) : null],
      ["Waits for", whole.waits_for && whole.waits_for.length ? h("span.row.wrap", whole.waits_for.map((one) => jobLink(one))) : null],
      ["Agent", whole.agent && !whole.terminal ? h("span.mono.wrapped", whole.agent) : null],
      ["Retry of", whole.retry_of ? jobLink(whole.retry_of) : null],
      ["Cost", cost ? costWords(cost) : null],
    ]));
  }

  function timeline() {
    const list = events(page.job, page.story.attempts);
    return panel("Timeline", { note: many(page.story.attempts.length, "attempt") }, h("ol.timeline", list.map((event, i) => h("li", { key: i, "data-state": event.state },
      h("span.knot", icon(event.state, 14, event.state === "in_progress" ? { class: "spin" } : {})),
      h("div.grow", h("div", h("span.strong", event.who), " ", h("span.soft", event.what)), event.meta ? h("p.small.quiet", event.meta) : null, event.note ? h("p.small.soft.note", event.note) : null),
      h("time.num.small.quiet", { datetime: event.at, title: event.at ? clock(event.at, true) : "" }, event.at ? dayClock(event.at) : "–")))));
  }
}

const isAgent = (whole) => Boolean(whole.prompt && (whole.prompt.rubric !== undefined || whole.prompt.objective !== undefined || whole.prompt.role !== undefined) && !whole.prompt.steps);

function costWords(cost) {
  if (typeof cost !== "object") return usd(cost);
  const amount = cost.usd ?? cost.total_usd ?? null;
  return h("span.num", amount === null ? "unknown" : usd(amount), cost.calls ? h("span.quiet", ` in ${many(cost.calls, "call")}`) : null);
}

/* An attempt and the hop that ended it are one event; what operators and the watchdog did stands by itself. */
function events(whole, attempts) {
  const left = [...whole.hops];
  const list = [{ at: whole.created_at, state: "queued", who: "Enqueued", what: `for ${whole.hops.length ? whole.hops[0].role : whole.role}` }];
  for (const attempt of attempts) {
    const found = left.findIndex((hop) => hop.attempt === attempt.number);
    const hop = found < 0 ? null : left.splice(found, 1)[0];
    const goal = hop ? whither(hop.to) : null;
    const running = !attempt.ended_at && !hop && whole.status === "in_progress";
    const steps = attempt.steps_total > 1 ? `${attempt.steps.filter((step) => step.exit_code === 0 || (step.exit_code === null && !step.error)).length}/${attempt.steps_total} steps` : null;
    list.push({
      at: running ? attempt.started_at : attempt.ended_at || (hop && hop.at) || attempt.started_at, who: hop ? hop.role : whole.role, state: running ? "in_progress" : goal && goal.state ? goal.state : attemptState(attempt.outcome),
      what: running ? "works" : goal && goal.words ? goal.words : hop ? said(hop.reason).toLowerCase() : attempt.outcome || "",
      meta: [`attempt ${attempt.number}`, attempt.agent, attempt.duration_s ? duration(attempt.duration_s) : null, steps].filter(Boolean).join(" · "), note: hop && hop.note,
    });
  }
  for (const hop of left) {
    const goal = whither(hop.to);
    list.push({ at: hop.at, who: said(hop.reason), what: goal.words || "", state: goal.state || "queued", meta: hop.by, note: hop.note });
  }
  const order = new Map(list.map((event, i) => [event, i]));
  return list.sort((a, b) => (Date.parse(a.at) || Infinity) - (Date.parse(b.at) || Infinity) || order.get(a) - order.get(b));
}

const attemptState = (outcome) => ({ succeeded: "succeeded", routed: "succeeded", failed: "failed", retried: "failed", killed: "killed", stale: "stale", released: "skipped" })[outcome] || (outcome ? "skipped" : "stale");
