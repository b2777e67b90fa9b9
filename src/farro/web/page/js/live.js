/* The one EventSource of the page: its state, its resumption, and a pulse that finds a server gone silent.
 *
 * A server that ends, or a machine that refuses, is told by the browser. One that hangs is not: its connection stays
 * open, and a new one waits for ever. So the server says "beat" when it has nothing else to say, and who hears nothing
 * for a while stops waiting and asks anew.
 *
 * A browser gives a host six connections for all its tabs, so a tab that nobody looks at lets go of its own and
 * resumes from the last event when it is shown again. */

const KINDS = ["hello", "changes", "counts", "workers", "gap", "ready", "beat", "bye"];
const SILENT_MS = 20_000; // four beats
const HIDDEN_MS = 30_000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

/* Calls `silent` when `heard` was not called for a while. */
export function pulse(silent) {
  let timer = 0;
  const stop = () => clearTimeout(timer);
  return { stop, heard() { stop(); timer = setTimeout(silent, SILENT_MS); } };
}

export function listen(heard, linked) {
  let source = null;
  let last = null;
  let failures = 0;
  let timer = 0;
  let hiding = 0;
  let link = "joining";
  const alive = pulse(() => again("silent"));

  const become = (state) => { if (state !== link) { link = state; linked(state); } };

  function open() {
    clearTimeout(timer);
    close();
    source = new EventSource(last ? `/api/events?last_event_id=${encodeURIComponent(last)}` : "/api/events");
    for (const kind of KINDS) source.addEventListener(kind, (event) => take(kind, event));
    source.onerror = () => again("lost");
    alive.heard();
  }
  function close() {
    alive.stop();
    if (source) { source.onerror = null; source.close(); source = null; }
  }
  function take(kind, event) {
    alive.heard();
    if (event.lastEventId) last = event.lastEventId;
    failures = 0;
    if (kind === "bye") return;
    become("live");
    if (kind === "beat") return;
    let data = {};
    try { data = JSON.parse(event.data); } catch { /* an empty one */ }
    heard(kind, data);
  }
  // By hand: the browser's own attempt gives up for good when the answer is an error, as from a server that starts.
  function again(why) {
    close();
    become(why);
    timer = setTimeout(open, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
  }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => { clearTimeout(timer); close(); become("paused"); }, HIDDEN_MS);
    else if (["paused", "lost", "silent"].includes(link)) { failures = 0; become("joining"); open(); }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
  return { retry() { failures = 0; open(); } };
}
