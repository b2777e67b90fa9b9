"""Read the change feed of the Redis store from streams in the server, over a separate connection.

Each role has a stream of the entries into its queue. The common log has all changes, numbered without gaps. Entries
that were trimmed before they were read are reported as a gap. So is a broken connection: a failover may have lost
entries.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

from farro.errors import StorageTrouble
from farro.jobs.states import Status
from farro.store.port import Change
from farro.store.redis.client import RedisConnection, ReplyError, pack, readable
from farro.store.redis.context import RedisContext

_BLOCK_S = 30.0  # a blocking read returns at the latest after this, so that a dead connection is noticed
_MANY = 1000

Entry = tuple[bytes, list[bytes]]


def _order(entry_id: bytes) -> tuple[int, int]:
    """Return the id of a stream entry as numbers, for comparing."""
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number)


class Wakeup:
    """End the wait of a thread that blocks on the server, from another thread of this process."""

    def __init__(self, role: str | None) -> None:
        self.role = role
        self.socket, self._sender = socket.socketpair()
        for end in (self.socket, self._sender):
            end.setblocking(False)
        self._busy = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[socket.socket]:
        try:
            with self._busy:
                yield self.socket
        finally:
            if self._closed:
                self.close()

    def wake(self) -> None:
        """End the current wait, or the next one if none is under way."""
        with contextlib.suppress(OSError):
            self._sender.send(b"!")

    def close(self) -> None:
        """End the current wait; its thread then closes the sockets."""
        self._closed = True
        self.wake()
        if self._busy.acquire(blocking=False):
            self.socket.close()
            self._sender.close()
            self._busy.release()


class ChangeStream:
    """A `Source` of farro.store.feed. If `read` returns early, its request stays pending in the server, and the next
    `read` waits for its reply. So waking needs no second connection, and no thread polls."""

    def __init__(self, context: RedisContext, role: str | None) -> None:
        self._context = context
        self._role = role
        self._key = context.keys.log if role is None else context.keys.feed(role)
        self._connection: RedisConnection | None = None
        self._requested = False  # a request is pending
        self._requested_s = 0.0
        self._id, self._number = self._newest()
        self._wakeup = Wakeup(role)
        self._busy = threading.Lock()
        self._closed = False

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        try:
            with self._busy:
                if self._closed:
                    return [], False
                if timeout_s <= 0:
                    return self._poll()
                try:
                    return self._wait(timeout_s)
                except OSError:
                    return self._reconnect(timeout_s)
        finally:
            if self._closed:
                self._release()

    def wake(self) -> None:
        self._wakeup.wake()

    def close(self) -> None:
        """End a `read` that waits; its thread then closes the connection."""
        self._closed = True
        self.wake()
        self._release()

    def _release(self) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._wakeup.close()
                if self._connection is not None:
                    self._connection.close()
            finally:
                self._busy.release()

    # --- reading ---

    def _poll(self) -> tuple[list[Change], bool]:
        """Read the entries that exist already, by a separate request: the pending one may not have its reply yet."""
        try:
            answer = self._context.client.call("XREAD", "COUNT", _MANY, "STREAMS", self._key, self._id)
        except StorageTrouble:
            return [], False  # the next read reports a gap
        return self._received(answer)

    def _wait(self, timeout_s: float) -> tuple[list[Change], bool]:
        deadline = time.monotonic() + timeout_s
        while True:
            connection = self._request()
            left = deadline - time.monotonic()
            ready = readable([connection.socket, self._wakeup.socket], max(0.0, left))
            if self._wakeup.socket in ready:
                with contextlib.suppress(OSError):
                    self._wakeup.socket.recv(4096)
                return [], False
            if connection.socket not in ready:
                if time.monotonic() - self._requested_s > 2 * _BLOCK_S:
                    raise ConnectionError("no answer")
                return [], False
            answer = connection.receive()
            self._requested = False
            if isinstance(answer, ReplyError):
                raise ConnectionError(str(answer))
            changes, gap = self._received(answer)
            if changes or gap:
                return changes, gap
            if time.monotonic() >= deadline:
                return [], False

    def _request(self) -> RedisConnection:
        if self._connection is None:
            self._connection = self._context.client.connect(2 * _BLOCK_S)
        if not self._requested:
            block_ms = int(_BLOCK_S * 1000)
            command = ("XREAD", "COUNT", _MANY, "BLOCK", block_ms, "STREAMS", self._key, self._id)
            self._connection.send(pack(command))
            self._requested, self._requested_s = True, time.monotonic()
        return self._connection

    def _reconnect(self, timeout_s: float) -> tuple[list[Change], bool]:
        """Start again at the newest entry after a broken connection. The gap makes readers look at everything."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._requested = None, False
        try:
            self._id, self._number = self._newest()
        except StorageTrouble as error:
            self._context.log("error", "the change feed is away", {"why": str(error)})
            readable([self._wakeup.socket], min(timeout_s, 1.0))
            return [], False
        return [], True

    def _newest(self) -> tuple[bytes, int]:
        page = self._context.client.call("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return (page[0][0], self._numbered(page[0])) if page else (b"0-0", 0)

    def _numbered(self, entry: Entry) -> int:
        """Return the number of an entry; 0 for a role's stream, which has none."""
        return int(entry[1][0]) if self._role is None else 0

    def _received(self, answer: list[tuple[bytes, list[Entry]]] | None) -> tuple[list[Change], bool]:
        entries = answer[0][1] if answer else []
        # others were read by another request
        unread = [entry for entry in entries if _order(entry[0]) > _order(self._id)]
        if not unread:
            return [], False
        last = self._numbered(unread[-1])
        if self._role is None:
            gap = last != self._number + len(unread)
        else:
            # an entry without an id ends a pause
            gap = self._lost_entries(len(entries)) or any(not entry[1][1] for entry in unread)
        self._id, self._number = unread[-1][0], last
        return [change for change in map(self._change, unread) if change is not None], gap

    def _lost_entries(self, read: int) -> bool:
        """Return whether the server trimmed entries that were not read. It keeps at least as many as configured, so
        only a long read needs the check."""
        if read < min(_MANY, self._context.keep_changes):
            return False
        page = self._context.client.call("XRANGE", self._key, "-", "+", "COUNT", 1)
        return not page or _order(page[0][0]) > _order(self._id)

    def _change(self, entry: Entry) -> Change | None:
        if self._role is not None:
            job_id = entry[1][1].decode()
            return Change(job_id=job_id, role=self._role, status=Status.QUEUED) if job_id else None
        event = json.loads(entry[1][1])
        if "status" not in event or "job_id" not in event:
            return None
        with contextlib.suppress(ValueError):
            return Change(
                job_id=event["job_id"], role=event.get("next") or event.get("role"), status=Status(event["status"])
            )
        return None
