/* Enqueuing from the page: a command, as `farro enqueue -- command args` would. */
import { post } from "./api.js";
import { ask, toast } from "./overlay.js";
import { jobAddress } from "./parts.js";

const ESCAPED = new Set(["$", "`", '"', "\\", "\n"]); // what a backslash quotes between double quotes, and nothing else
const RUNNER = "Runner"; // where commands go when nobody says otherwise

/* The words of a line as a POSIX shell splits it: quotes and backslashes, and nothing else that a shell does. Throws
   where a quote is open at the end: a shell would wait for the rest. */
export function words(line) {
  const out = [];
  let word = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const char = line[at];
    const next = line[at + 1];
    if (quote === "'") { if (char === "'") quote = ""; else word += char; }
    else if (quote) {
      if (char === quote) quote = "";
      else if (char === "\\" && ESCAPED.has(next)) { at += 1; if (next !== "\n") word += next; }
      else word += char;
    } else if (char === "\\") {
      if (next === undefined) throw new Error("The line ends with a backslash, which quotes what follows it. Write \\\\ for a backslash.");
      at += 1;
      if (next !== "\n") word = (word ?? "") + next;
    } else if (char === "'" || char === '"') { quote = char; word ??= ""; }
    else if (/\s/.test(char)) { if (word !== null) out.push(word); word = null; }
    else word = (word ?? "") + char;
  }
  if (quote) throw new Error(`The ${quote === "'" ? "single" : "double"} quote ${quote} is not closed.`);
  if (word !== null) out.push(word);
  return out;
}

/* What the server found wrong, beside the field that it is about. */
const FIELDS = { command: "command", tags: "tags", tag: "tags", delay: "delay", role: "role", priority: "priority", id: "id" };
export function placed(error) {
  const faults = {};
  const add = (place, message) => { const name = FIELDS[place] || ""; faults[name] = faults[name] ? `${faults[name]} ${message}` : message; };
  for (const { path, message } of error.problems) add(/^[a-z]*/.exec(path)[0], FIELDS[/^[a-z]*/.exec(path)[0]] || !path ? message : `${path}: ${message}`);
  if (error.problems.length) return faults;
  const [, place = "", message] = /^(?:--)?([a-z]+): ([^]*)$/.exec(error.message) || [null, "", error.message];
  add(place, FIELDS[place] ? message : error.message);
  return faults;
}

export async function newJob(ctx) {
  const roles = ctx.shared.info ? ctx.shared.info.roles.filter((role) => role !== RUNNER) : [];
  const send = async ({ command: line, ...rest }) => {
    let command;
    try { command = words(line); } catch (error) { return { command: error.message }; }
    if (!command.length || !command[0]) return { command: "The first word is the program that shall run." };
    const body = { command };
    const told = (name) => rest[name].trim();
    for (const name of ["role", "priority", "id", "delay"]) if (told(name)) body[name] = told(name);
    if (told("tags")) body.tags = told("tags").split(/[\s,]+/);
    try {
      const { jobs } = await post("/api/jobs", body);
      toast("ok", "Enqueued");
      ctx.go(jobAddress(jobs[0]));
      return null;
    } catch (error) {
      return placed(error);
    }
  };
  await ask({
    title: "New job", yes: "Enqueue", send,
    text: "The command is run as it stands, without a shell. Plans and agent prompts: farro enqueue --help.",
    fields: [
      { name: "command", label: "Command", kind: "line", needed: true },
      { name: "role", label: "Role", kind: "select", options: [["", RUNNER], ...roles.map((role) => [role, role])], half: true },
      { name: "priority", label: "Priority", kind: "select", options: [["P0", "P0, before all others"], ["P1", "P1"], ["", "P2, as usual"], ["P3", "P3, when nothing else waits"]], half: true },
      { name: "id", label: "Id", kind: "line", hint: "The same id again is the same job.", half: true },
      { name: "delay", label: "Delay", hint: "Such as 10m or 2h.", half: true },
      { name: "tags", label: "Tags", hint: "Only workers with all of them take it. Separated by spaces." },
    ],
  });
}
