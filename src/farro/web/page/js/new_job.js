/* The dialog that enqueues a command, as `farro enqueue -- command args` does. */
import { get, post } from "./api.js";
import { splitCommandLine } from "./command_line.js";
import { ask, toast } from "./dialogs.js";
import { jobAddress } from "./widgets.js";

const DEFAULT_ROLE = "Runner";
const PRIORITIES = [
  ["P0", "P0, before all others"],
  ["P1", "P1"],
  ["", "P2, as usual"],
  ["P3", "P3, when nothing else waits"],
];

/* Names in the server's messages → fields of the dialog */
const FIELDS = {
  command: "command",
  tags: "tags",
  tag: "tags",
  delay: "delay",
  role: "role",
  priority: "priority",
  id: "id",
};

export async function newJob(context) {
  const roles = await knownRoles(context.shared.info);
  await ask({
    title: "New job",
    text: "The command is run as it stands, without a shell. Plans and agent prompts: farro enqueue --help.",
    fields: dialogFields(roles),
    yes: "Enqueue",
    submit: (values) => enqueue(values, context),
  });
}

/* info: the answer of /api, or null where the user was faster than the server. */
async function knownRoles(info) {
  try {
    return (info || (await get("/api"))).roles;
  } catch {
    return []; // the command can still be typed; sending it reports the error
  }
}

function dialogFields(roles) {
  const otherRoles = roles.filter((role) => role !== DEFAULT_ROLE).map((role) => [role, role]);
  return [
    { name: "command", label: "Command", kind: "line", required: true },
    { name: "role", label: "Role", kind: "select", options: [["", DEFAULT_ROLE], ...otherRoles], half: true },
    { name: "priority", label: "Priority", kind: "select", options: PRIORITIES, half: true },
    { name: "id", label: "Id", kind: "line", hint: "The same id again is the same job.", half: true },
    { name: "delay", label: "Delay", hint: "Such as 10m or 2h.", half: true },
    { name: "tags", label: "Tags", hint: "Only workers with all of them take it. Separated by spaces." },
  ];
}

/* Return the problems of the fields, or null. */
async function enqueue(values, context) {
  let command;
  try {
    command = splitCommandLine(values.command);
  } catch (error) {
    return { command: error.message };
  }
  if (!command[0]) return { command: "The first word must be the program to run." };
  const body = { command };
  for (const name of ["role", "priority", "id", "delay"]) {
    if (values[name].trim()) body[name] = values[name].trim();
  }
  if (values.tags.trim()) body.tags = values.tags.trim().split(/[\s,]+/);
  try {
    const { jobs } = await post("/api/jobs", body);
    toast("ok", "Enqueued");
    context.go(jobAddress(jobs[0]));
    return null;
  } catch (error) {
    return problemsByField(error);
  }
}

/* Put what the server found wrong beside the field that it names. */
function problemsByField(error) {
  const problems = {};
  const add = (field, message) => {
    problems[field] = problems[field] ? `${problems[field]} ${message}` : message;
  };
  for (const { path, message } of error.problems) {
    const field = FIELDS[/^[a-z]*/.exec(path)[0]];
    if (field) add(field, message);
    else add("", path ? `${path}: ${message}` : message);
  }
  if (error.problems.length) return problems;
  const [, name, message] = /^(?:--)?([a-z]+): ([^]*)$/.exec(error.message) || [];
  if (FIELDS[name]) add(FIELDS[name], message);
  else add("", error.message);
  return problems;
}
