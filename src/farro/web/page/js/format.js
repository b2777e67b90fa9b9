/* Format numbers, times, states and ids, the same way on every page. */

const STATE_NAMES = {
  queued: "Queued",
  delayed: "Delayed",
  waiting: "Waiting",
  in_progress: "Running",
  running: "Running",
  succeeded: "Succeeded",
  failed: "Failed",
  stale: "Stale",
  killed: "Killed",
  skipped: "Skipped",
  gone: "Removed",
};
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;

export const stateName = (state) => STATE_NAMES[state] || sentence(String(state || "unknown"));

export const capitalize = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* "changes_requested" → "Changes requested" */
export const sentence = (identifier) => capitalize(identifier.replaceAll("_", " ").replaceAll("-", " "));

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10_000) return String(Math.round(number));
  if (number < 100_000) return `${(number / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  if (number < 1_000_000) return `${Math.round(number / 1000)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

/* plural(1, "line") → "1 line"; plural(2, "job waits", "jobs wait") → "2 jobs wait" */
export const plural = (number, singular, several) => `${number} ${number === 1 ? singular : several || `${singular}s`}`;

export function usd(amount) {
  if (amount === null || amount === undefined) return "–";
  const value = Number(amount);
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  if (size < 1024 * 1024) return `${(size / 1024).toFixed(size < 10_240 ? 1 : 0)} KB`;
  return `${(size / 1024 / 1024).toFixed(1)} MB`;
}

/* Durations */

const twoDigits = (number) => String(number).padStart(2, "0");

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE_S) return `${Math.round(seconds)} s`;
  if (seconds < HOUR_S) return `${Math.floor(seconds / MINUTE_S)}m ${twoDigits(Math.floor(seconds % MINUTE_S))}s`;
  if (seconds < DAY_S) {
    return `${Math.floor(seconds / HOUR_S)}h ${twoDigits(Math.floor((seconds % HOUR_S) / MINUTE_S))}m`;
  }
  return `${Math.floor(seconds / DAY_S)}d ${Math.floor((seconds % DAY_S) / HOUR_S)}h`;
}

/* A duration in its largest unit, rounded down. */
export function roughDuration(seconds) {
  if (seconds < MINUTE_S) return `${Math.floor(seconds)}s`;
  if (seconds < HOUR_S) return `${Math.floor(seconds / MINUTE_S)}m`;
  if (seconds < DAY_S) return `${Math.floor(seconds / HOUR_S)}h`;
  return `${Math.floor(seconds / DAY_S)}d`;
}

/* Moments. The server sends its time; every age is counted by the server's clock. */

let serverAheadMs = 0;

export function setServerTime(text) {
  if (text) serverAheadMs = Date.parse(text) - Date.now();
}

export const now = () => Date.now() + serverAheadMs;
export const secondsSince = (text) => (text ? (now() - Date.parse(text)) / 1000 : null);
export const secondsBetween = (start, end) => (start && end ? (Date.parse(end) - Date.parse(start)) / 1000 : null);

export function ago(text) {
  const seconds = secondsSince(text);
  if (seconds === null || Number.isNaN(seconds)) return "–";
  if (seconds < -1) return `in ${remaining(-seconds)}`;
  return seconds < 2 ? "now" : `${roughDuration(seconds)} ago`;
}

/* The future is given in two units: "in 1h" for a job delayed by nearly two hours would look like a mistake. */
function remaining(seconds) {
  if (seconds < MINUTE_S) return roughDuration(seconds);
  const minutes = Math.ceil(seconds / MINUTE_S);
  if (minutes < 60) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return twoUnits(hours, "h", minutes % 60, "m");
  return twoUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

const twoUnits = (large, largeUnit, small, smallUnit) =>
  small === 0 ? `${large}${largeUnit}` : `${large}${largeUnit} ${small}${smallUnit}`;

const calendarDay = (date) => `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())}`;
const hoursMinutes = (date) => `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
const isToday = (date) => date.toDateString() === new Date(now()).toDateString();

/* The time of day, with the date unless it is today. `withDate` always adds the date. */
export function clock(text, withDate = false) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "–";
  const time = `${hoursMinutes(date)}:${twoDigits(date.getSeconds())}`;
  return withDate || !isToday(date) ? `${calendarDay(date)} ${time}` : time;
}

/* The same for narrow columns: without the year where it is this one, without seconds after a date. */
export function dayClock(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime()) || isToday(date)) return clock(text);
  const thisYear = date.getFullYear() === new Date(now()).getFullYear();
  return `${thisYear ? calendarDay(date).slice(5) : calendarDay(date)} ${hoursMinutes(date)}`;
}

export const shortClock = (moment) => hoursMinutes(new Date(moment));

/* Ids */

const GENERATED_ID = /^job-\d{8}-(\d{6})-(.+)$/;

/* A generated id is long. Its time and its last characters tell jobs apart. */
export function shortId(id) {
  const generated = GENERATED_ID.exec(id);
  return generated ? `${generated[1]}-${generated[2].slice(-6)}` : id;
}

export const tinyId = (id) => (GENERATED_ID.test(id) ? id.slice(-6) : id);

/* Where a hop of a job led, read from the folder that it names: { text, state?, role? } */
export function hopTarget(folder) {
  const path = folder || "";
  const ended = /completed\/(\w+)$/.exec(path);
  if (ended) return { text: stateName(ended[1]).toLowerCase(), state: ended[1] };
  const queue = /^agents\/([^/]+)\/(\w+)/.exec(path);
  if (queue && queue[2] === "waiting") return { text: "asks a person", role: "human", state: "waiting" };
  if (queue) return { text: `hands on to ${queue[1]}`, role: queue[1] };
  const other = /^jobs\/(\w+)/.exec(path);
  if (!other) return { text: path };
  return other[1] === "stale" ? { text: "is lost", state: "stale" } : { text: other[1] };
}
