"""Read the audit log for queries: the one of the root, or the one that many machines share (`Store.audit_events`)."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from farro.host import fs
from farro.jobs.times import moment_or_none
from farro.log import audit_reader
from farro.log.audit import files
from farro.log.audit_reader import JobEvents, RecentEvents

LINES = 200_000  # most lines of a shared audit log for one query
PAGE_LIMIT = 64 << 20  # bytes of a root's audit log that one page reads
SLACK_S = 5.0  # by how much lines of different writers may be out of order
_BLOCK = 1 << 20

Line = Mapping[str, Any]


class AuditEvents(Protocol):
    """Read the audit log of a store. Lines that are torn, foreign or no JSON are left out."""

    def of_job(self, job_id: str, *, since_s: float) -> JobEvents:
        """Return the events of a job that did not exist before `since_s` (Unix time)."""

    def recent(self, *, since: datetime, holding: Sequence[bytes], limit: int) -> RecentEvents:
        """Return the events since then, newest first. With `holding`, events with none of these texts may be left out;
        a root's log is read up to `limit` bytes."""

    def backwards(self, *, newest: str | None, since: datetime | None, job_id: str | None) -> Iterator[bytes | None]:
        """Yield lines, newest first. None: there may be more, but the limit of one query is reached. The filters only
        save work: lines that do not match may come too."""

    def follow(self) -> Callable[[], Iterable[Line]]:
        """Return a function that yields all lines at its first call, and then those added since the last call."""


class RootAuditEvents:
    """The audit log in the folder `logs` of a root."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/logs"

    def of_job(self, job_id: str, *, since_s: float) -> JobEvents:
        return audit_reader.trail(self._folder, job_id, since_s=since_s)

    def recent(self, *, since: datetime, holding: Sequence[bytes], limit: int) -> RecentEvents:
        return audit_reader.recent(self._folder, since=since, holding=holding, limit=limit)

    def backwards(self, *, newest: str | None, since: datetime | None, job_id: str | None) -> Iterator[bytes | None]:
        left = PAGE_LIMIT
        bound = None if newest is None else moment_or_none(newest)
        for block in audit_reader.backwards(self._folder):
            lines = block.split(b"\n")
            first = audit_reader.moment_of(lines[0])
            if bound is not None and first is not None and first > bound + timedelta(seconds=SLACK_S):
                continue
            yield from (line for line in reversed(lines) if line)
            left -= len(block)
            if left <= 0:
                yield None

    def follow(self) -> Callable[[], Iterable[Line]]:
        read: dict[int, int] = {}  # inode → bytes already read

        def added() -> Iterator[Line]:
            nonlocal read
            try:
                names = files(self._folder)
            except OSError:
                return
            there: dict[int, int] = {}
            for name in names:
                try:
                    fd = fs.open_read(f"{self._folder}/{name}")
                except OSError:
                    continue
                try:
                    inode = os.fstat(fd).st_ino
                    there[inode] = read.get(inode, 0)
                    for line, end in _lines(fd, there[inode]):
                        there[inode] = end
                        yield line
                finally:
                    os.close(fd)
            read = there

        return added


def _lines(fd: int, offset: int) -> Iterator[tuple[Line, int]]:
    """Yield whole lines from `offset` on, each with its end. Lines that are not JSON objects are skipped."""
    rest = b""
    while block := fs.read_at(fd, _BLOCK, offset + len(rest)):
        whole, newline, rest_now = (rest + block).rpartition(b"\n")
        if not newline:
            rest = rest_now
            if len(rest) > _BLOCK:
                offset, rest = offset + len(rest), b""
            continue
        for line in whole.split(b"\n"):
            offset += len(line) + 1
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict):
                yield data, offset
        rest = rest_now


class SharedAuditEvents:
    """The audit log of all machines that share a store. `lines` yields the lines since a Unix time in ms, oldest first,
    of one job or of all."""

    def __init__(self, lines: Callable[[int, str | None], Iterator[Line]]) -> None:
        self._lines = lines

    def of_job(self, job_id: str, *, since_s: float) -> JobEvents:
        return JobEvents(lines=tuple(self._lines(max(0, int(since_s * 1000)), job_id)), whole=True)

    def recent(self, *, since: datetime, holding: Sequence[bytes], limit: int) -> RecentEvents:
        newest = deque(self._lines(int(since.timestamp() * 1000), None), maxlen=LINES)
        whole = len(newest) < LINES
        oldest = None if whole else moment_or_none(newest[0].get("ts"))
        return RecentEvents(lines=tuple(reversed(newest)), whole=whole, since=oldest)

    def backwards(self, *, newest: str | None, since: datetime | None, job_id: str | None) -> Iterator[bytes | None]:
        since_ms = 0 if since is None else max(0, int(since.timestamp() * 1000))
        found = deque(self._lines(since_ms, job_id), maxlen=LINES)
        return (json.dumps(line).encode() for line in reversed(found))

    def follow(self) -> Callable[[], Iterable[Line]]:
        last_ms, seen = 0, 0  # the last time, and how many lines have it

        def added() -> Iterator[Line]:
            nonlocal last_ms, seen
            since_ms, known = last_ms, seen
            for line in self._lines(since_ms, None):
                at = moment_or_none(line.get("ts"))
                at_ms = 0 if at is None else round(at.timestamp() * 1000)
                if at_ms == since_ms and known > 0:
                    known -= 1
                    continue
                last_ms, seen = at_ms, seen + 1 if at_ms == last_ms else 1
                yield line

        return added
