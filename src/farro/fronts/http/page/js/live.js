/* The one EventSource of the page: its state, its resumption, and a pulse that finds a server gone silent.
 *
 * A browser gives a host six connections for all its tabs, so a tab that nobody looks at lets go of its own and
 * resumes from the last event when it is shown again. */

const KINDS = ["hello", "changes", "counts", "workers", "gap", "ready", "bye"];
const HIDDEN_MS = 30_000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export function listen(heard, linked) {
  let source = null;
  let last = null;
  let failures = 0;
  let timer = 0;
  let hiding = 0;
  let link = "joining";

  const become = (state) => { if (state !== link) { link = state; linked(state); } };

  function open() {
    clearTimeout(timer);
    close();
    source = new EventSource(last ? `/api/events?last_event_id=${encodeURIComponent(last)}` : "/api/events");
    for (const kind of KINDS) source.addEventListener(kind, (event) => take(kind, event));
    source.onerror = again;
  }
  function close() {
    if (source) { source.onerror = null; source.close(); source = null; }
  }
  function take(kind, event) {
    if (event.lastEventId) last = event.lastEventId;
    failures = 0;
    if (kind === "bye") return;
    become("live");
    let data = {};
    try { data = JSON.parse(event.data); } catch { /* an empty one */ }
    heard(kind, data);
  }
  // By hand: the browser's own attempt gives up for good when the answer is an error, as from a server that starts.
  function again() {
    close();
    become("lost");
    timer = setTimeout(open, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
  }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => { clearTimeout(timer); close(); become("paused"); }, HIDDEN_MS);
    else if (link === "paused" || link === "lost") { failures = 0; become("joining"); open(); }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
  return { retry() { failures = 0; open(); } };
}
