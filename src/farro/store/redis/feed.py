"""Where the change feed of the Redis store comes from: a stream in the server, read by a connection of its own.

Who waits for what lives in stores.feed. A stream for each role has the entries into its queue; the common log has all
changes, numbered without gaps. What was cut off before it was read is told as a gap, and so is a connection that broke:
what came meanwhile may be gone with a failover.
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
from farro.store.redis.connection import Link, ReplyError, pack, readable
from farro.store.redis.context import Ground

_BLOCK_S = 30.0  # a request of the source is answered at the latest after this: a dead connection shows itself
_MANY = 1000

Entry = tuple[bytes, list[bytes]]


def _order(entry_id: bytes) -> tuple[int, int]:
    """Ids are numbers, and compared as such."""
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number)


class Ear:
    """By which whoever waits for the server is called by somebody of this process."""

    def __init__(self, role: str | None) -> None:
        self.role = role
        self.socket, self._bell = socket.socketpair()
        for end in (self.socket, self._bell):
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

    def call(self) -> None:
        """It need not wait yet: then it will not."""
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def close(self) -> None:
        """Whoever listens is called, and lets go of it."""
        self._closed = True
        self.call()
        if self._busy.acquire(blocking=False):
            self.socket.close()
            self._bell.close()
            self._busy.release()


class Stream:
    """A `feed.Source`. A request that waits in the server stays there when `read` returns early; the next `read` waits
    for its answer. So waking needs no other connection, and nobody polls."""

    def __init__(self, ground: Ground, role: str | None) -> None:
        self._ground = ground
        self._role = role
        self._key = ground.keys.log if role is None else ground.keys.feed(role)
        self._link: Link | None = None
        self._asked = False  # a request is on its way
        self._asked_at = 0.0
        self._id, self._number = self._newest()
        self._ear = Ear(role)
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
                    return self._mended(timeout_s)
        finally:
            if self._closed:
                self._let_go()

    def wake(self) -> None:
        self._ear.call()

    def close(self) -> None:
        """A `read` that waits returns; its thread then lets go of the connection."""
        self._closed = True
        self.wake()
        self._let_go()

    def _let_go(self) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._ear.close()
                if self._link is not None:
                    self._link.close()
            finally:
                self._busy.release()

    # --- reading ---

    def _poll(self) -> tuple[list[Change], bool]:
        """What has happened already, by an ordinary request: the one that waits may not have its answer yet."""
        try:
            answer = self._ground.server.call("XREAD", "COUNT", _MANY, "STREAMS", self._key, self._id)
        except StorageTrouble:
            return [], False  # it will be told by the next one, as a gap
        return self._taken(answer)

    def _wait(self, timeout_s: float) -> tuple[list[Change], bool]:
        deadline = time.monotonic() + timeout_s
        while True:
            link = self._request()
            left = deadline - time.monotonic()
            ready = readable([link.socket, self._ear.socket], max(0.0, left))
            if self._ear.socket in ready:
                with contextlib.suppress(OSError):
                    self._ear.socket.recv(4096)
                return [], False
            if link.socket not in ready:
                if time.monotonic() - self._asked_at > 2 * _BLOCK_S:
                    raise ConnectionError("no answer")
                return [], False
            answer = link.receive()
            self._asked = False
            if isinstance(answer, ReplyError):
                raise ConnectionError(str(answer))
            changes, gap = self._taken(answer)
            if changes or gap:
                return changes, gap
            if time.monotonic() >= deadline:
                return [], False

    def _request(self) -> Link:
        if self._link is None:
            self._link = self._ground.server.connect(2 * _BLOCK_S)
        if not self._asked:
            block_ms = int(_BLOCK_S * 1000)
            command = ("XREAD", "COUNT", _MANY, "BLOCK", block_ms, "STREAMS", self._key, self._id)
            self._link.send(pack(command))
            self._asked, self._asked_at = True, time.monotonic()
        return self._link

    def _mended(self, timeout_s: float) -> tuple[list[Change], bool]:
        """The connection broke. Begun anew, from the newest entry; whoever waits looks at everything."""
        if self._link is not None:
            self._link.close()
        self._link, self._asked = None, False
        try:
            self._id, self._number = self._newest()
        except StorageTrouble as error:
            self._ground.log("error", "the change feed is away", {"why": str(error)})
            readable([self._ear.socket], min(timeout_s, 1.0))
            return [], False
        return [], True

    def _newest(self) -> tuple[bytes, int]:
        page = self._ground.server.call("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return (page[0][0], self._numbered(page[0])) if page else (b"0-0", 0)

    def _numbered(self, entry: Entry) -> int:
        """0 in the stream of a role, whose entries have none."""
        return int(entry[1][0]) if self._role is None else 0

    def _taken(self, answer: list[tuple[bytes, list[Entry]]] | None) -> tuple[list[Change], bool]:
        entries = answer[0][1] if answer else []
        unread = [entry for entry in entries if _order(entry[0]) > _order(self._id)]  # others: by another request
        if not unread:
            return [], False
        last = self._numbered(unread[-1])
        if self._role is None:
            gap = last != self._number + len(unread)
        else:
            gap = self._cut_off(len(entries)) or any(not entry[1][1] for entry in unread)  # after a pause: look
        self._id, self._number = unread[-1][0], last
        return [change for change in map(self._change, unread) if change is not None], gap

    def _cut_off(self, read: int) -> bool:
        """Whether the server has thrown away what was not read. Then all that it keeps was unread, which is never less
        than it is to keep: so this is asked next to never."""
        if read < min(_MANY, self._ground.keep_changes):
            return False
        page = self._ground.server.call("XRANGE", self._key, "-", "+", "COUNT", 1)
        return not page or _order(page[0][0]) > _order(self._id)

    def _change(self, entry: Entry) -> Change | None:
        if self._role is not None:
            job_id = entry[1][1].decode()
            return Change(job_id=job_id, role=self._role, status=Status.QUEUED) if job_id else None
        told = json.loads(entry[1][1])
        if "status" not in told or "job_id" not in told:
            return None
        with contextlib.suppress(ValueError):
            return Change(
                job_id=told["job_id"], role=told.get("next") or told.get("role"), status=Status(told["status"])
            )
        return None
