/* Enqueuing from the page: a command, as `farro enqueue -- command args` would. */
import { post } from "./api.js";
import { ask, toast } from "./overlay.js";
import { jobAddress } from "./parts.js";

/* Splits as a shell would, quotes and backslashes included, and does nothing else that a shell does. */
export function words(line) {
  const out = [];
  let word = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const char = line[at];
    if (quote === "'") { if (char === "'") quote = ""; else word += char; }
    else if (char === "\\" && at + 1 < line.length) { at += 1; word = (word || "") + line[at]; }
    else if (quote) { if (char === quote) quote = ""; else word += char; }
    else if (char === "'" || char === '"') { quote = char; word = word || ""; }
    else if (/\s/.test(char)) { if (word !== null) out.push(word); word = null; }
    else word = (word || "") + char;
  }
  if (word !== null) out.push(word);
  return out;
}

export async function newJob(ctx) {
  const answer = await ask({
    title: "New job", yes: "Enqueue",
    text: "The command is run as it stands, without a shell. Plans and agent prompts: farro enqueue --help.",
    fields: [
      { name: "command", label: "Command", needed: true },
      { name: "tags", label: "Tags", hint: "Only workers with all of them take it. Separated by spaces." },
      { name: "delay", label: "Delay", hint: "Such as 10m or 2h." },
    ],
  });
  const command = answer ? words(answer.command) : [];
  if (!command.length) return;
  const body = { command };
  if (answer.tags.trim()) body.tags = answer.tags.trim().split(/[\s,]+/);
  if (answer.delay.trim()) body.delay = answer.delay.trim();
  try {
    const { jobs } = await post("/api/jobs", body);
    toast("ok", "Enqueued");
    ctx.go(jobAddress(jobs[0]));
  } catch (error) {
    toast("error", [error.message, ...error.problems.map((one) => `${one.path}: ${one.message}`)].join(" "));
  }
}
