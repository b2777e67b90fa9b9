"""Send changes to browsers as Server-Sent Events, all read from one feed of the store.

Every event goes into a ring and is encoded once, when the first viewer reaches it. A viewer is only a position in the
ring: a slow one falls behind, and when its next event has left the ring, it receives a `gap` event and continues with
the newest. So a viewer's memory does not grow, and a connection that accepts nothing for a while is closed. Event ids
are `<epoch>.<number>`; the epoch belongs to this server process: an id of an earlier process leads to a `gap`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farro.errors import FarroError
from farro.jobs.times import timestamp
from farro.queue.catalog.catalog import CatalogChange
from farro.web import errors, overview
from farro.web.access import SESSION_LEFT
from farro.web.request_handling import WebState

RING_EVENTS = 4096
RING_BYTES = 16 << 20
BATCH = 200  # jobs in one event
PAUSE_S = 0.04  # between two reads of the feed while jobs change: changes meanwhile are sent together
BURST_PAUSE_S = 0.1  # during a burst: the queue's workers need the processor more
BURST_CHANGES = 100  # changes in one read that make a burst
JOB_BYTES = 250  # of one job in an event, roughly
HEARTBEAT_S = 5.0  # between heartbeats on a quiet stream
SEND_TIMEOUT_S = 10.0  # a connection that accepts nothing for this long is closed
COMPARE_S = 60.0  # between searches for changes that the feed missed, at least
COUNTS_S = 1.0
UNANNOUNCED_CHECK_S = 2.0  # between searches for changes that no job's change announces
MAX_VIEWERS = 1000


def event(kind: str, data: Any, event_id: str | None = None) -> bytes:
    """Encode one Server-Sent Event."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {kind}\ndata: ".encode() + errors.json_text(data) + b"\n\n"


# An event, not an SSE comment: a page cannot see comments, and could not tell a quiet server from one that hangs.
HEARTBEAT = event("beat", {})


class RingEvent:
    """An event in the ring, encoded when the first viewer reads it."""

    __slots__ = ("_data", "_encoded", "_id", "_kind", "size")

    def __init__(self, kind: str, data: Any, event_id: str) -> None:
        self._kind, self._data, self._id = kind, data, event_id
        self._encoded: bytes | None = None
        self.size = 100 + JOB_BYTES * len(data["jobs"]) if kind == "changes" else len(self.encoded())

    def encoded(self) -> bytes:
        if self._encoded is None:
            data = self._data
            if self._kind == "changes":
                data = {**data, "jobs": [_change_data(change) for change in data["jobs"]]}
            self._encoded, self._data = event(self._kind, data, self._id), None
        return self._encoded


class EventHub:
    """The ring of events and the viewers that wait for the next. Only `publish` may be called from other threads."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._ring: deque[RingEvent] = deque()
        self._bytes = 0
        self._last = 0  # the number of the newest event
        self._new_events = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.viewers = 0

    @property
    def last(self) -> int:
        return self._last

    def publish(self, *events: tuple[str, Any]) -> None:
        """Add events, each a kind and its data, and wake the viewers once. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._add, events)

    def _add(self, events: Sequence[tuple[str, Any]]) -> None:
        for kind, data in events:
            self._last += 1
            stored = RingEvent(kind, data, f"{self.epoch}.{self._last}")
            self._ring.append(stored)
            self._bytes += stored.size
        while len(self._ring) > RING_EVENTS or self._bytes > RING_BYTES:
            self._bytes -= self._ring.popleft().size
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        new_events, self._new_events = self._new_events, asyncio.Event()
        new_events.set()

    def position(self, last_id: str | None) -> int | None:
        """Return the number after which a viewer that has seen `last_id` continues; None: the ring lacks the rest."""
        if not last_id:
            return self._last
        epoch, _, number = last_id.rpartition(".")
        if epoch != self.epoch or not number.isdecimal() or len(number) > 15:
            return None
        seen = int(number)
        return seen if self._last - len(self._ring) <= seen <= self._last else None

    async def events_after(self, number: int) -> AsyncIterator[bytes]:
        """Yield all later events until the hub closes, with heartbeats in between."""
        while not self.closed:
            missing = self._last - number
            if missing > len(self._ring):
                yield event("gap", {"why": "behind"}, f"{self.epoch}.{self._last}")
                number = self._last
            elif missing:
                batch = list(islice(self._ring, len(self._ring) - missing, len(self._ring) - missing + 64))
                number += len(batch)
                yield b"".join([stored.encoded() for stored in batch])
            else:
                new_events = self._new_events
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await new_events.wait()
                except TimeoutError:
                    yield HEARTBEAT
        yield event("bye", {})


class StreamResponse(Response):
    """Send chunks as they come, and close the connection when the client accepts none for a while.

    `on_end` is called when the connection ends, for any reason.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        on_end: Callable[[], None],
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"
        self._chunks = chunks
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnect = asyncio.ensure_future(_until_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            # A stream ends with the session that opened it; the guard then checks the reconnecting client.
            left_s = scope.get(SESSION_LEFT)
            done, _ = await asyncio.wait({disconnect, sending}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in (disconnect, sending):
                task.cancel()
            await asyncio.gather(disconnect, sending, return_exceptions=True)
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ChangeFollower:
    """The one thread that loads the catalog, keeps it up to date, and publishes changes to the hub."""

    def __init__(self, state: WebState, hub: EventHub) -> None:
        self._state = state
        self._hub = hub
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)
        self._compared_at_s = 0.0
        self._compare_s = 0.0
        self._counted_at_s = 0.0
        self._counts_due = False
        self._agents: frozenset[str] = frozenset()
        self._checked_at_s = 0.0
        self._lines: list[dict[str, Any]] = []
        self._may_have_missed = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._state.store.wake(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        reported: str | None = None  # the failure that was logged last
        while not self._stop.is_set():
            try:
                if not self._state.catalog.ready:
                    self._state.catalog.load()
                    self._compared_at_s = time.monotonic()
                    self._hub.publish(("ready", {"jobs": len(self._state.catalog)}))
                self.run_once()
                if self._may_have_missed:  # changes during the failure may not have been published
                    self._may_have_missed = False
                    self._hub.publish(("gap", {"why": "store"}))
                reported = None
            except Exception as error:  # noqa: BLE001 - neither a store failure nor a defect may end the updates
                known = isinstance(error, FarroError | OSError)
                why = str(error) if known else f"{type(error).__name__}: {error}"
                if why != reported:
                    reported = why
                    self._state.log("error", "changes cannot be followed", {"why": why})
                self._may_have_missed = True
                self._stop.wait(1.0)

    def run_once(self) -> None:
        """Publish what changed. While little changes, also read details of some jobs and publish the counts."""
        catalog = self._state.catalog
        busy = catalog.unread > 0 or self._counts_due
        changes = catalog.follow(0.05 if busy else 1.0)
        now = time.monotonic()
        if self._may_have_missed or now - self._compared_at_s > max(COMPARE_S, 50 * self._compare_s):
            changes += catalog.compare()
            self._compared_at_s = time.monotonic()
            self._compare_s = self._compared_at_s - now
        if changes:
            self._publish_changes(changes)
            self._stop.wait(BURST_PAUSE_S if len(changes) > BURST_CHANGES else PAUSE_S)
        if len(changes) <= BURST_CHANGES:
            catalog.fill(4 if changes else 50)
        if self._counts_due and now - self._counted_at_s >= COUNTS_S:
            self._publish_counts(now)
        if self._hub.viewers and now - self._checked_at_s >= UNANNOUNCED_CHECK_S:
            self._check_unannounced(now)

    def _publish_changes(self, changes: Sequence[CatalogChange]) -> None:
        self._counts_due = True
        at = timestamp(self._state.clock.now())
        batches = [changes[start : start + BATCH] for start in range(0, len(changes), BATCH)]
        self._hub.publish(*[("changes", {"at": at, "jobs": batch}) for batch in batches])

    def _publish_counts(self, now: float) -> None:
        self._counted_at_s, self._counts_due = now, False
        self._lines = overview.queue_lines(self._state)
        self._hub.publish(("counts", {"at": timestamp(self._state.clock.now()), "queues": self._lines}))

    def _check_unannounced(self, now: float) -> None:
        """Look for changes that come without a job's change: a delay is over, a worker joins or leaves."""
        self._checked_at_s = now
        self._counts_due = self._counts_due or self._lines != overview.queue_lines(self._state)
        agents = frozenset(agent.id for agent in self._state.store.agents() if agent.alive)
        if agents != self._agents:
            self._agents = agents
            self._hub.publish(("workers", {"at": timestamp(self._state.clock.now())}))


def _change_data(change: CatalogChange) -> Mapping[str, Any]:
    return {
        "job_id": change.job_id,
        "role": change.role,
        "status": "gone" if change.status is None else change.status,
        "was": change.was,
        "was_role": change.was_role,
    }


def open_event_stream(state: WebState, hub: EventHub, last_id: str | None) -> Response:
    """Open the event stream of one viewer."""
    if hub.viewers >= MAX_VIEWERS:
        return errors.response(errors.HttpError(503, "busy", f"{MAX_VIEWERS} viewers are connected already"))
    hub.viewers += 1
    return StreamResponse(_events_for(state, hub, last_id), on_end=lambda: _viewer_left(hub))


def _viewer_left(hub: EventHub) -> None:
    hub.viewers -= 1


async def _events_for(state: WebState, hub: EventHub, last_id: str | None) -> AsyncIterator[bytes]:
    catalog = state.catalog
    hello = {
        "at": timestamp(state.clock.now()),
        "version": state.version,
        "ready": catalog.ready,
        "loaded": len(catalog) - catalog.unread,
        "jobs": len(catalog),
    }
    position = hub.position(last_id)
    start = event("hello", hello)
    if position is None:
        why = "behind" if (last_id or "").startswith(f"{hub.epoch}.") else "restart"
        start += event("gap", {"why": why}, f"{hub.epoch}.{hub.last}")
        position = hub.last
    elif not last_id:
        start += (
            f"id: {hub.epoch}.{position}\n\n".encode()
        )  # lets the browser resume here if its first connection drops
    yield b"retry: 1000\n\n" + start
    async for chunk in hub.events_after(position):
        yield chunk
