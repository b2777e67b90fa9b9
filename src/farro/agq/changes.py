"""Report changes in the store: to clients that wait for jobs, and to subscribers of `job:updates`.

Threads wait for them and report to the event loop: one for each role that a client waits for, and one for all changes.
Waiting clients cost none.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from farro.agq import memo_jobs
from farro.agq.keys import GlobPattern
from farro.agq.resp import PushMessage
from farro.errors import FarroError
from farro.jobs.states import Status
from farro.log.structured import Log
from farro.store.port import Changes, JobView, Store

T = TypeVar("T")

LOOK_S = 10.0  # longest wait: no feed reports a dead lock, or a job that another machine's clock makes due
RETRY_S = 1.0
PAUSE_S = 0.005  # changes in this time are reported together; the first one after a pause at once
OWN_PAUSE_S = 0.02  # … if all of them are this server's own pushes, which need no report
OWN_S = 0.25  # … but are reported after this time, in case they were not
MAX_EXPECTED = 4096  # own jobs whose feed entries are awaited


class OwnPushes:
    """The jobs that this server is about to queue. The push itself wakes waiting clients, so the feed need not wake
    them again, which would take 5 % more CPU time per job. A job is added before it is queued, so the feed cannot be
    faster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[str, None] = {}

    def expect(self, job_ids: Iterable[str]) -> None:
        with self._lock:
            self._expected.update(dict.fromkeys(job_ids))
            while len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def covers(self, changes: Changes) -> bool:
        """Return whether all changes are own pushes. Each job counts once: a second entry is not ours."""
        if changes.gap or not changes.items:
            return False
        with self._lock:
            known = [item.job_id in self._expected for item in changes.items]
            for item in changes.items:
                self._expected.pop(item.job_id, None)
        return all(known)


class FeedThread:
    def __init__(
        self,
        *,
        store: Store,
        role: str | None,
        on_changes: Callable[[Changes], None],
        log: Log,
        own: OwnPushes | None = None,
    ) -> None:
        self._store = store
        self._role = role
        self._on_changes = on_changes  # called in this thread
        self._log = log
        self._own = own
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agq-feed-{role or 'all'}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        cursor: int | None = None
        late_s: float | None = None  # when held-back changes are reported
        while not self._stopped.is_set():
            try:
                timeout_s = LOOK_S if late_s is None else max(0.0, late_s - time.monotonic())
                changes = self._store.changes(cursor, role=self._role, timeout_s=timeout_s)
                cursor = changes.cursor
                if self._own is not None and self._own.covers(changes):
                    late_s = late_s or time.monotonic() + OWN_S
                    if time.monotonic() < late_s:
                        self._stopped.wait(OWN_PAUSE_S)
                        continue
                late_s = None
                if not self._stopped.is_set():
                    self._on_changes(changes)
                    self._stopped.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - without this thread no waiting client would be woken
                if self._stopped.is_set():
                    return
                why = str(error) if isinstance(error, FarroError) else f"{type(error).__name__}: {error}"
                self._log("error", "the change feed failed", {"role": self._role, "error": why})
                self._stopped.wait(RETRY_S)
                cursor = None

    def stop(self) -> None:
        self._stopped.set()
        self._store.wake(self._role)

    def join(self) -> None:
        self._thread.join(timeout=1.0)


# --- subscriptions ---

UPDATES = b"job:updates"
_REMEMBERED = 10_000
MAX_SUBSCRIPTIONS = 1024  # of one connection


class Subscription(NamedTuple):
    is_pattern: bool
    name: bytes


class Channels:
    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._listeners: dict[Subscription, dict[Any, None]] = {}
        self._patterns: dict[Subscription, GlobPattern] = {}
        self._plan_ids: OrderedDict[str, str] = OrderedDict()

    def subscribe(self, connection: Any, wanted: Subscription) -> None:
        connection.subscriptions.add(wanted)
        self._listeners.setdefault(wanted, {})[connection] = None
        if wanted.is_pattern and wanted not in self._patterns:
            self._patterns[wanted] = GlobPattern(wanted.name)

    def unsubscribe(self, connection: Any, wanted: Subscription) -> None:
        connection.subscriptions.discard(wanted)
        listeners = self._listeners.get(wanted, {})
        listeners.pop(connection, None)
        if not listeners:
            self._listeners.pop(wanted, None)
            self._patterns.pop(wanted, None)

    def forget(self, connection: Any) -> None:
        for wanted in list(connection.subscriptions):
            self.unsubscribe(connection, wanted)

    def publish(self, channel: bytes, messages: list[bytes]) -> None:
        for message in messages:
            for wanted in self._reached(channel):
                head = (b"pmessage", wanted.name, channel) if wanted.is_pattern else (b"message", channel)
                for connection in list(self._listeners.get(wanted, ())):
                    connection.push(PushMessage((*head, message)))

    def _reached(self, channel: bytes) -> list[Subscription]:
        """Return the subscriptions that get the messages of a channel. May be called from any thread."""
        exact = Subscription(is_pattern=False, name=channel)
        patterns = [wanted for wanted, pattern in list(self._patterns.items()) if pattern.fits(channel)]
        return [exact, *patterns] if exact in self._listeners else patterns

    # --- job:updates ---

    def changed(self, changes: Changes) -> None:
        """Publish changes; called in the thread of the feed."""
        if changes.items and self._reached(UPDATES):
            messages = list(self._messages(changes))
            self._loop.call_soon_threadsafe(self.publish, UPDATES, messages)

    def _messages(self, changes: Changes) -> Iterator[bytes]:
        for change in changes.items:
            plan_id = self._plan_id(change.job_id)
            update = {"job_id": change.job_id, "plan_id": plan_id, "status": str(change.status), "role": change.role}
            if change.status is Status.FAILED:
                update |= self._look(change.job_id, memo_jobs.failure) or {}
            yield json.dumps(update).encode()

    def _plan_id(self, job_id: str) -> str | None:
        known = self._plan_ids
        if job_id not in known:
            found = self._look(job_id, memo_jobs.plan_id)
            if found is None:
                return None
            known[job_id] = found
            if len(known) > _REMEMBERED:
                known.popitem(last=False)
        return known[job_id]

    def _look(self, job_id: str, read: Callable[[Store, JobView], T]) -> T | None:
        """Read something of a job; None: it is gone, moved meanwhile or is damaged. The update is sent anyway."""
        try:
            view = self._store.find(job_id)
            return None if view is None else read(self._store, view)
        except (FarroError, OSError):
            return None
