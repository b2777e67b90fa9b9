"""Server-Sent Events: what changes, to everybody who looks, from one reader of the store's changes.

Keeping the catalog exact is operations.catalog; what a job's steps say as they say it lives in `streams`.

Every event is kept in a ring, and made into bytes once, when the first viewer comes to it. A viewer is nothing but a
place in the ring: whoever reads slowly falls behind, and when what comes next for it has left the ring it is told of a
gap and goes on with the present. So a viewer costs no memory that grows, and a connection that takes nothing for a
while is closed. Ids are `<epoch>.<number>`; the epoch is this server's: after a restart a number of the old one means
nothing, and a gap is told.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farro.errors import FarroError
from farro.jobs.times import timestamp
from farro.queue.catalog.catalog import CatalogChange
from farro.web import errors, overview
from farro.web.access import SESSION_LEFT
from farro.web.state import House

RING = 4096  # events
RING_BYTES = 16 << 20
BATCH = 200  # jobs that one event tells of
PAUSE_S = 0.04  # between two looks at the feed while something happens: what comes meanwhile is told together
LONG_PAUSE_S = 0.1  # while much happens: the queue's workers need the machine more
MUCH = 100  # changes at once
JOB_BYTES = 250  # of one job in an event, roughly
BEAT_S = 5.0  # how often a stream on which nothing happens says that it lives
SLOW_S = 10.0  # a connection that takes nothing for so long is closed
COMPARE_S = 60.0  # how often what the feed does not tell is looked for, at the most
COUNTS_S = 1.0
QUIET_LOOK_S = 2.0  # how often what no change of a job tells is looked for
VIEWERS = 1000


def event(kind: str, data: Any, number: str | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: ".encode() + errors.text(data) + b"\n\n"


BEAT = event("beat", {})  # no comment: a page hears none, and could not tell a quiet server from one that hangs


class Kept:
    """An event in the ring: data until the first viewer comes to it, then the bytes for all of them."""

    __slots__ = ("_data", "_kind", "_made", "_number", "size")

    def __init__(self, kind: str, data: Any, number: str) -> None:
        self._kind, self._data, self._number = kind, data, number
        self._made: bytes | None = None
        self.size = 100 + JOB_BYTES * len(data["jobs"]) if kind == "changes" else len(self.text())

    def text(self) -> bytes:
        if self._made is None:
            data = self._data
            if self._kind == "changes":
                data = {**data, "jobs": [_change(one) for one in data["jobs"]]}
            self._made, self._data = event(self._kind, data, self._number), None
        return self._made


class Hub:
    """The ring, and who waits at its end. For the event loop's thread alone, but `tell`."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._ring: deque[Kept] = deque()
        self._bytes = 0
        self._last = 0  # the number of the newest event
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.viewers = 0

    @property
    def last(self) -> int:
        return self._last

    def tell(self, kind: str, data: Any) -> None:
        """From any thread."""
        self.tell_all([(kind, data)])

    def tell_all(self, told: Sequence[tuple[str, Any]]) -> None:
        """The same for several at once: whoever looks on is woken once."""
        self._loop.call_soon_threadsafe(self._add, told)

    def _add(self, told: Sequence[tuple[str, Any]]) -> None:
        for kind, data in told:
            self._last += 1
            kept = Kept(kind, data, f"{self.epoch}.{self._last}")
            self._ring.append(kept)
            self._bytes += kept.size
        while len(self._ring) > RING or self._bytes > RING_BYTES:
            self._bytes -= self._ring.popleft().size
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def place(self, last_id: str | None) -> int | None:
        """The number after which somebody goes on who has seen that; None: what came since is not there any more."""
        if not last_id:
            return self._last
        epoch, _, number = last_id.rpartition(".")
        if epoch != self.epoch or not number.isdecimal() or len(number) > 15:
            return None
        seen = int(number)
        return seen if self._last - len(self._ring) <= seen <= self._last else None

    async def after(self, number: int) -> AsyncIterator[bytes]:
        """Everything that comes after that, for ever; beats in between."""
        while not self.closed:
            missing = self._last - number
            if missing > len(self._ring):
                yield event("gap", {"why": "behind"}, f"{self.epoch}.{self._last}")
                number = self._last
            elif missing:
                some = list(islice(self._ring, len(self._ring) - missing, len(self._ring) - missing + 64))
                number += len(some)
                yield b"".join([kept.text() for kept in some])
            else:
                news = self._news
                try:
                    async with asyncio.timeout(BEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield BEAT
        yield event("bye", {})


class Stream(Response):
    """Bytes as they come. A reader that takes none of them for a while is left alone."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        done: Any = None,
        *,
        kind: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(media_type=kind, headers=headers)
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"
        self._chunks = chunks
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            # A stream lasts no longer than the session that opened it: who comes back is judged again.
            left_s = scope.get(SESSION_LEFT)
            done, _ = await asyncio.wait({leaving, sending}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in (leaving, sending):
                task.cancel()
            await asyncio.gather(leaving, sending, return_exceptions=True)
            if self._done is not None:
                self._done()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        async with asyncio.timeout(SLOW_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Follower:
    """The one reader of changes: a thread that loads the catalog, keeps it exact, and tells the hub."""

    def __init__(self, house: House, hub: Hub) -> None:
        self._house = house
        self._hub = hub
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)
        self._compared = 0.0
        self._took = 0.0
        self._counted = 0.0
        self._counts_due = False
        self._agents: frozenset[str] = frozenset()
        self._looked = 0.0
        self._lines: list[dict[str, Any]] = []
        self._missed = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._house.store.wake(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        trouble: str | None = None
        while not self._stop.is_set():
            try:
                if not self._house.catalog.ready:
                    self._house.catalog.load()
                    self._compared = time.monotonic()
                    self._hub.tell("ready", {"jobs": len(self._house.catalog)})
                self.run_once()
                if self._missed:  # what came while it failed may have been told to nobody
                    self._missed = False
                    self._hub.tell("gap", {"why": "store"})
                trouble = None
            except Exception as error:  # noqa: BLE001 - the store is away, or we are wrong: pages must not stand still
                known = isinstance(error, FarroError | OSError)
                why = str(error) if known else f"{type(error).__name__}: {error}"
                if why != trouble:
                    trouble = why
                    self._house.log("error", "changes cannot be followed", {"why": why})
                self._missed = True
                self._stop.wait(1.0)

    def run_once(self) -> None:
        """One turn: what changed is told; while it is quiet, a little more is read of jobs, and counts are told."""
        catalog = self._house.catalog
        busy = catalog.unread > 0 or self._counts_due
        told = catalog.follow(0.05 if busy else 1.0)
        now = time.monotonic()
        if self._missed or now - self._compared > max(COMPARE_S, 50 * self._took):
            told += catalog.compare()
            self._compared = time.monotonic()
            self._took = self._compared - now
        if told:
            self._tell(told)
            self._stop.wait(LONG_PAUSE_S if len(told) > MUCH else PAUSE_S)
        if len(told) <= MUCH:
            catalog.fill(4 if told else 50)
        if self._counts_due and now - self._counted >= COUNTS_S:
            self._tell_counts(now)
        if self._hub.viewers and now - self._looked >= QUIET_LOOK_S:
            self._look_around(now)

    def _tell(self, told: Sequence[CatalogChange]) -> None:
        self._counts_due = True
        at = timestamp(self._house.clock.now())
        lots = [told[start : start + BATCH] for start in range(0, len(told), BATCH)]
        self._hub.tell_all([("changes", {"at": at, "jobs": some}) for some in lots])

    def _tell_counts(self, now: float) -> None:
        self._counted, self._counts_due = now, False
        self._lines = overview.queue_lines(self._house)
        self._hub.tell("counts", {"at": timestamp(self._house.clock.now()), "queues": self._lines})

    def _look_around(self, now: float) -> None:
        """What changes while no job does: a delay is over, a worker comes or goes."""
        self._looked = now
        self._counts_due = self._counts_due or self._lines != overview.queue_lines(self._house)
        agents = frozenset(agent.id for agent in self._house.store.agents() if agent.alive)
        if agents != self._agents:
            self._agents = agents
            self._hub.tell("workers", {"at": timestamp(self._house.clock.now())})


def _change(one: CatalogChange) -> Mapping[str, Any]:
    return {
        "job_id": one.job_id,
        "role": one.role,
        "status": "gone" if one.status is None else one.status,
        "was": one.was,
        "was_role": one.was_role,
    }


def viewed(house: House, hub: Hub, last_id: str | None) -> Response:
    """The stream of one viewer."""
    if hub.viewers >= VIEWERS:
        return errors.response(errors.Wrong(503, "busy", f"{VIEWERS} viewers look on already"))
    hub.viewers += 1
    return Stream(_viewer(house, hub, last_id), done=lambda: _left(hub))


def _left(hub: Hub) -> None:
    hub.viewers -= 1


async def _viewer(house: House, hub: Hub, last_id: str | None) -> AsyncIterator[bytes]:
    catalog = house.catalog
    hello = {
        "at": timestamp(house.clock.now()),
        "version": house.version,
        "ready": catalog.ready,
        "loaded": len(catalog) - catalog.unread,
        "jobs": len(catalog),
    }
    place = hub.place(last_id)
    start = event("hello", hello)
    if place is None:
        why = "behind" if (last_id or "").startswith(f"{hub.epoch}.") else "restart"
        start += event("gap", {"why": why}, f"{hub.epoch}.{hub.last}")
        place = hub.last
    elif not last_id:
        start += f"id: {hub.epoch}.{place}\n\n".encode()  # so that a first drop resumes from here
    yield b"retry: 1000\n\n" + start
    async for chunk in hub.after(place):
        yield chunk
