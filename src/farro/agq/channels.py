"""Manage subscriptions, and publish changes of jobs on `job:updates`."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from farro.agq import memo_jobs
from farro.agq.keys import GlobPattern
from farro.agq.replies import PushMessage
from farro.errors import FarroError
from farro.store.port import Changes, Store

UPDATES = b"job:updates"
_REMEMBERED = 10_000
MAX_SUBSCRIPTIONS = 1024  # of one connection


class Channels:
    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._names: dict[bytes, dict[Any, None]] = {}
        self._patterns: dict[bytes, tuple[GlobPattern, dict[Any, None]]] = {}
        self._plan_ids: OrderedDict[str, str | None] = OrderedDict()

    def subscribe(self, connection: Any, name: bytes) -> None:
        connection.channels.add(name)
        self._names.setdefault(name, {})[connection] = None

    def unsubscribe(self, connection: Any, name: bytes) -> None:
        connection.channels.discard(name)
        listeners = self._names.get(name, {})
        listeners.pop(connection, None)
        if not listeners:
            self._names.pop(name, None)

    def psubscribe(self, connection: Any, name: bytes) -> None:
        connection.patterns.add(name)
        _, listeners = self._patterns.setdefault(name, (GlobPattern(name), {}))
        listeners[connection] = None

    def punsubscribe(self, connection: Any, name: bytes) -> None:
        connection.patterns.discard(name)
        listeners = self._patterns[name][1] if name in self._patterns else {}
        listeners.pop(connection, None)
        if not listeners:
            self._patterns.pop(name, None)

    def forget(self, connection: Any) -> None:
        for name in list(connection.channels):
            self.unsubscribe(connection, name)
        for name in list(connection.patterns):
            self.punsubscribe(connection, name)

    @property
    def wanted(self) -> bool:
        """Whether any client listens to `job:updates`."""
        return UPDATES in self._names or any(pattern.fits(UPDATES) for pattern, _ in self._patterns.values())

    def publish(self, channel: bytes, messages: list[bytes]) -> None:
        for message in messages:
            for connection in list(self._names.get(channel, ())):
                connection.push(PushMessage((b"message", channel, message)))
            for name, (pattern, listeners) in list(self._patterns.items()):
                if pattern.fits(channel):
                    for connection in list(listeners):
                        connection.push(PushMessage((b"pmessage", name, channel, message)))

    # --- job:updates ---

    def changed(self, changes: Changes) -> None:
        """Publish changes; called in the thread of the feed."""
        if changes.items and self.wanted:
            messages = list(self._messages(changes))
            self._loop.call_soon_threadsafe(self.publish, UPDATES, messages)

    def _messages(self, changes: Changes) -> Iterator[bytes]:
        for change in changes.items:
            plan_id = self._plan_id(change.job_id)
            update = {"job_id": change.job_id, "plan_id": plan_id, "status": str(change.status), "role": change.role}
            yield json.dumps(update).encode()

    def _plan_id(self, job_id: str) -> str | None:
        known = self._plan_ids
        if job_id not in known:
            view = self._store.find(job_id)
            if view is None:
                return None
            try:
                known[job_id] = memo_jobs.plan_id(self._store, view)
            except (FarroError, OSError):  # the job moved or is damaged; the other updates are still sent
                return None
            if len(known) > _REMEMBERED:
                known.popitem(last=False)
        return known[job_id]
