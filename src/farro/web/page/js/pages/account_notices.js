/* Notices of paused accounts: why, until when, how many jobs wait, and resuming one. */
import { ago, clock, plural } from "../format.js";
import { icon } from "../icons.js";
import { resumeAccount } from "../job_actions.js";
import { h } from "../view.js";
import { button } from "../widgets.js";

export function accountNotices(context, accounts, after) {
  if (!accounts.length) return null;
  const notices = accounts.map((paused) => notice(context, paused, after));
  return h("section.firing", { "aria-label": "Paused accounts" }, notices);
}

function notice(context, paused, after) {
  const { account, kind, reason, jobs } = paused;
  const refused = kind === "refused";
  const resume = () => resumeAccount(account, { after });
  const label = `Resume the account ${account}`;
  const waiting = jobs ? plural(jobs, "job waits", "jobs wait") : "no job waits";
  return h(
    "div.notice",
    { key: account, "data-state": refused ? "failed" : "paused" },
    icon(refused ? "alert" : "paused"),
    h(
      "div.grow.wrapped",
      h("p", h("span.strong", `Account ${account} is ${kind}`), ` ${duration(paused)} · ${waiting}`),
      h("p.soft", reason),
    ),
    context.readOnly() ? null : button("Resume", resume, { icon: "play", "aria-label": label }),
  );
}

const duration = ({ since, until }) =>
  until ? `until ${clock(until)} (${ago(until)})` : `since ${clock(since)}, until a person resumes it`;
