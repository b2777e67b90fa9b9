/* The page's one connection for server-sent events: its state, how it resumes, and how it detects a silent server.
 *
 * The browser reports a server that ends or refuses. It does not report a server that hangs: the connection stays open,
 * and a new one would wait for ever. Therefore the server sends "beat" when it has nothing else to send, and the page
 * reconnects when it has heard nothing for a while.
 *
 * A browser grants a host six connections for all its tabs. Therefore a hidden tab closes its connection, and resumes
 * from the last event when it is shown again. */

const EVENT_KINDS = ["hello", "changes", "counts", "workers", "gap", "ready", "beat", "bye"];
const SILENT_MS = 20_000; // the server sends four beats in this time
const HIDDEN_MS = 30_000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

/* Call `onSilence` when `reset` was not called for a while. */
export function watchdog(onSilence) {
  let timer = null;
  const stop = () => clearTimeout(timer);
  const reset = () => {
    stop();
    timer = setTimeout(onSilence, SILENT_MS);
  };
  return { stop, reset };
}

export class EventStream {
  /* onEvent(kind, data); onLink(state), with state "joining", "live", "lost", "silent" or "paused" */
  constructor(onEvent, onLink) {
    this.onEvent = onEvent;
    this.onLink = onLink;
    this.source = null;
    this.lastEventId = null;
    this.failures = 0;
    this.link = "joining";
    this.retryTimer = null;
    this.hiddenTimer = null;
    this.watchdog = watchdog(() => this.reconnect("silent"));
    document.addEventListener("visibilitychange", () => this.onVisibility());
    window.addEventListener("pagehide", () => this.close());
    window.addEventListener("pageshow", (event) => {
      if (event.persisted) this.open();
    });
    this.open();
  }

  open() {
    clearTimeout(this.retryTimer);
    this.close();
    const resume = this.lastEventId ? `?last_event_id=${encodeURIComponent(this.lastEventId)}` : "";
    this.source = new EventSource(`/api/events${resume}`);
    for (const kind of EVENT_KINDS) this.source.addEventListener(kind, (event) => this.receive(kind, event));
    this.source.onerror = () => this.reconnect("lost");
    this.watchdog.reset();
  }

  close() {
    this.watchdog.stop();
    if (!this.source) return;
    this.source.onerror = null;
    this.source.close();
    this.source = null;
  }

  receive(kind, event) {
    this.watchdog.reset();
    if (event.lastEventId) this.lastEventId = event.lastEventId;
    this.failures = 0;
    if (kind === "bye") return;
    this.setLink("live");
    if (kind !== "beat") this.onEvent(kind, parseData(event.data));
  }

  /* The browser's own reconnection gives up for good on an error response, as from a server that starts. */
  reconnect(reason) {
    this.close();
    this.setLink(reason);
    const pause = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    this.retryTimer = setTimeout(() => this.open(), pause);
  }

  retryNow() {
    this.failures = 0;
    this.open();
  }

  onVisibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.pause(), HIDDEN_MS);
    else if (["paused", "lost", "silent"].includes(this.link)) {
      this.setLink("joining");
      this.retryNow();
    }
  }

  pause() {
    clearTimeout(this.retryTimer);
    this.close();
    this.setLink("paused");
  }

  setLink(state) {
    if (state === this.link) return;
    this.link = state;
    this.onLink(state);
  }
}

function parseData(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {}; // an event without data
  }
}
