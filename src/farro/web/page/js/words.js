/* How figures, times and states are said. All of the page says them the same way. */

export const STATES = {
  queued: "Queued", delayed: "Delayed", waiting: "Waiting", in_progress: "Running", running: "Running",
  succeeded: "Succeeded", failed: "Failed", stale: "Stale", killed: "Killed", skipped: "Skipped", gone: "Removed",
};
export const said = (state) => STATES[state] || sentence(String(state || "unknown"));
export const sentence = (word) => {
  const spaced = word.replaceAll("_", " ").replaceAll("-", " ");
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
};

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10_000) return String(Math.round(number));
  if (number < 100_000) return `${(number / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  if (number < 1_000_000) return `${Math.round(number / 1000)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}
export const many = (number, one, more) => `${number} ${number === 1 ? one : more || `${one}s`}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) seconds = 0;
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${String(Math.floor(seconds % 60)).padStart(2, "0")}s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(seconds / 86_400)}d ${Math.floor((seconds % 86_400) / 3600)}h`;
}

export function usd(amount) {
  if (amount === null || amount === undefined) return "–";
  const value = Number(amount);
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toFixed(4)}`;
  return `$${value.toFixed(2)}`;
}

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  if (size < 1024 * 1024) return `${(size / 1024).toFixed(size < 10_240 ? 1 : 0)} KB`;
  return `${(size / 1024 / 1024).toFixed(1)} MB`;
}

let ahead = 0; // of the server's clock against this one
export const serverTime = (text) => { if (text) ahead = Date.parse(text) - Date.now(); };
export const now = () => Date.now() + ahead;
export const since = (text) => (text ? (now() - Date.parse(text)) / 1000 : null);
export const between = (start, end) => (start && end ? (Date.parse(end) - Date.parse(start)) / 1000 : null);

export function ago(text) {
  const seconds = since(text);
  if (seconds === null || Number.isNaN(seconds)) return "–";
  if (seconds < -1) return `in ${untilThen(-seconds)}`;
  return seconds < 2 ? "now" : `${coarse(seconds)} ago`;
}
/* What is to come is said closer than what was: "in 1h" of a job that was delayed by two would look like a mistake. */
function untilThen(seconds) {
  const minutes = Math.ceil(seconds / 60);
  const hours = Math.floor(minutes / 60);
  const two = (whole, rest) => (rest.startsWith("0") ? whole : `${whole} ${rest}`);
  if (seconds < 60) return coarse(seconds);
  if (minutes < 60) return `${minutes}m`;
  return hours < 24 ? two(`${hours}h`, `${minutes % 60}m`) : two(`${Math.floor(hours / 24)}d`, `${hours % 24}h`);
}
export function coarse(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}

const two = (number) => String(number).padStart(2, "0");
export function clock(text, withDay = false) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return "–";
  const time = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
  return withDay || moment.toDateString() !== new Date(now()).toDateString() ? `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${time}` : time;
}
/* The day and the time, as far as they do not go without saying: in narrow columns, with the whole in a title. */
export function dayClock(text) {
  const [day, time] = clock(text, true).split(" ");
  if (time === undefined || clock(text).length === time.length) return clock(text);
  return `${day.startsWith(`${new Date(now()).getFullYear()}-`) ? day.slice(5) : day} ${time.slice(0, 5)}`;
}
export const shortClock = (text) => { const moment = new Date(text); return `${two(moment.getHours())}:${two(moment.getMinutes())}`; };

/* A minted id is long; its end tells jobs of one second apart. */
export function shortId(id) {
  const minted = /^job-(\d{8})-(\d{6})-(.+)$/.exec(id);
  return minted ? `${minted[2]}-${minted[3].slice(-6)}` : id;
}

export const tinyId = (id) => (/^job-\d{8}-\d{6}-/.test(id) ? id.slice(-6) : id);
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* Where a hop led, from the place that it names: {words, state?, role?} */
export function whither(place) {
  const ended = /completed\/(\w+)$/.exec(place || "");
  if (ended) return { words: said(ended[1]).toLowerCase(), state: ended[1] };
  const queue = /^agents\/([^/]+)\/(\w+)/.exec(place || "");
  if (queue && queue[2] === "waiting") return { words: "asks a person", role: "human", state: "waiting" };
  if (queue) return { words: `hands on to ${queue[1]}`, role: queue[1] };
  const other = /^jobs\/(\w+)/.exec(place || "");
  return other ? { words: other[1] === "stale" ? "is lost" : other[1], state: other[1] === "stale" ? "stale" : undefined } : { words: place || "" };
}
