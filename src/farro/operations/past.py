"""The queues as they were: the audit log folded up to a moment. For whoever scrubs back and forth through time.

Reading single lines for people is observe.audit_reading; how a job stands now is the store's to say.

The log is read once, and then only what was added: a transition becomes a few numbers, so that a million of them fit
into memory and are gone through in a fraction of a second. Lines of different writers are out of order by as long as
they buffer; they are put in order as they come. What the log does not know, because its first files are gone, is told
as `whole=False`; of a job whose beginning is gone, what it was before its first line stands for it.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from farro.errors import TryAgain
from farro.kernel.states import Status
from farro.late import dataclass
from farro.observe.audit import files
from farro.operations.catalog.rows import milliseconds, spelled
from farro.operations.catalog.telling import in_lots
from farro.ports.fleet import Fleet
from farro.ports.store import Store
from farro.system import fs

MOST = 2_000_000  # transitions that are kept; the oldest are folded into one state
BLOCK = 1 << 20
LOT = 100_000  # transitions that are put in order at once
WAIT_S = 2.0  # for somebody else who reads
_STATUSES = tuple(Status)
_NUMBERS = {str(status): number for number, status in enumerate(_STATUSES)}
_LATE = 20_000  # entries that a late line may have to be put before


class Step(NamedTuple):
    """One transition."""

    at_ms: int
    job: int
    role: int
    status: int
    actor: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobThen:
    job_id: str
    role: str
    status: Status
    since: str | None
    agent: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Then:
    """How everything stood."""

    queues: Mapping[str, Mapping[str, int]]
    jobs: tuple[JobThen, ...]  # those that had not ended first, the newest first
    more: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    first: str | None
    last: str | None
    lines: int


class Past:
    """Invariant: the arrays are as long as each other and sorted by time; `_before` has the states at their start."""

    def __init__(self, store: Store, *, most: int = MOST) -> None:
        self._store = store
        self._most = most
        self._lock = threading.Lock()
        self._times = array("q")
        self._jobs = array("l")
        self._roles = array("H")
        self._states = array("B")
        self._actors = array("l")
        self._names: dict[str, int] = {}
        self._role_names: dict[str, int] = {}
        self._actor_names: dict[str, int] = {}
        self._before: dict[int, tuple[int, int]] = {}  # job → role and status, of those that the log found there
        self._met: set[int] = set()
        self._read: dict[int, int] = {}  # inode → bytes of it that were read
        self._seen_ms: tuple[int, int] = (0, 0)  # of a common log: the last time, and how many lines of it
        self.whole = True

    # --- reading ---

    def refresh(self) -> None:
        """What was added to the log since the last look. TryAgain: somebody reads it, and that takes a while: of a log
        of gigabytes the first time minutes, in which nobody who asks may keep a thread waiting."""
        if not self._lock.acquire(timeout=WAIT_S):
            raise TryAgain("the audit log is still being read; ask again in a moment")
        try:
            steps = (step for line in self._news() if (step := self._step(line)) is not None)
            for lot in in_lots(steps, LOT):  # so that a long log is never in memory as a whole
                self._add(sorted(lot, key=lambda step: step.at_ms))
        finally:
            self._lock.release()

    def _news(self) -> Iterator[Mapping[str, Any]]:
        if isinstance(self._store, Fleet):
            yield from self._common(self._store)
            return
        folder = f"{self._store.root}/logs"
        try:
            names = files(folder)
        except OSError:
            return
        there: dict[int, int] = {}
        for name in names:
            try:
                fd = fs.open_read(f"{folder}/{name}")
            except OSError:
                continue
            try:
                inode = os.fstat(fd).st_ino
                there[inode] = self._read.get(inode, 0)
                for line, end in _lines(fd, there[inode]):
                    there[inode] = end
                    yield line
            finally:
                os.close(fd)
        self._read = there

    def _common(self, store: Fleet) -> Iterator[Mapping[str, Any]]:
        since_ms, known = self._seen_ms
        for line in store.audit_lines(since_ms):
            at_ms = milliseconds(line.get("ts")) or 0
            if at_ms == since_ms and known > 0:
                known -= 1
                continue
            count = self._seen_ms[1] + 1 if at_ms == self._seen_ms[0] else 1
            self._seen_ms = (at_ms, count)
            yield line

    def _step(self, line: Mapping[str, Any]) -> Step | None:
        job_id, status = line.get("job_id"), line.get("status")
        number = _NUMBERS.get(status) if isinstance(status, str) else None
        at_ms = milliseconds(line.get("ts"))
        if not isinstance(job_id, str) or number is None or at_ms is None:
            return None
        role = line.get("next") or line.get("role")
        job = self._names.setdefault(job_id, len(self._names))
        of = _number(self._role_names, role if isinstance(role, str) else "-")
        if job not in self._met:
            self._met.add(job)
            came_from = _NUMBERS.get(str(line.get("from")))
            if came_from is not None:  # its beginning is in files that are gone
                own = line.get("role")
                self._before[job] = (_number(self._role_names, own if isinstance(own, str) else "-"), came_from)
                self.whole = False
        return Step(at_ms, job, of, number, _number(self._actor_names, str(line.get("actor"))))

    def _add(self, steps: list[Step]) -> None:
        if not steps:
            return
        if self._times and steps[0].at_ms < self._times[-1]:  # some came late: put in order with the last ones
            begin = max(bisect_left(self._times, steps[0].at_ms), len(self._times) - _LATE, 0)
            steps = sorted([*self._steps(begin, len(self._times)), *steps], key=lambda step: step.at_ms)
            for kept in (self._times, self._jobs, self._roles, self._states, self._actors):
                del kept[begin:]
        for step in steps:
            self._times.append(step.at_ms)
            self._jobs.append(step.job)
            self._roles.append(step.role)
            self._states.append(step.status)
            self._actors.append(step.actor)
        if len(self._times) > self._most:
            self._fold(len(self._times) - self._most * 9 // 10)

    def _fold(self, count: int) -> None:
        """The oldest become the state that all begins with."""
        for step in self._steps(0, count):
            self._before[step.job] = (step.role, step.status)
        for kept in (self._times, self._jobs, self._roles, self._states, self._actors):
            del kept[:count]
        self.whole = False

    def _steps(self, begin: int, end: int) -> Iterator[Step]:
        for at in range(begin, end):
            yield Step(self._times[at], self._jobs[at], self._roles[at], self._states[at], self._actors[at])

    # --- asking ---

    def range(self) -> Range:
        with self._lock:
            if not self._times:
                return Range(first=None, last=None, lines=0)
            return Range(first=spelled(self._times[0]), last=spelled(self._times[-1]), lines=len(self._times))

    def at(self, moment_ms: int, *, limit: int, roles: Collection[str] = ()) -> Then:
        with self._lock:
            states: dict[int, tuple[int, int, int, int]] = {
                job: (role, status, 0, -1) for job, (role, status) in self._before.items()
            }
            for step in self._steps(0, bisect_right(self._times, moment_ms)):
                states[step.job] = (step.role, step.status, step.at_ms, step.actor)
            job_names, role_names = list(self._names), list(self._role_names)
            actors = list(self._actor_names)
        queues: dict[str, dict[str, int]] = {}
        found: list[tuple[bool, int, int, int, int, int]] = []
        for job, (role, status, at_ms, actor) in states.items():
            name = role_names[role]
            if roles and name not in roles:
                continue
            counts = queues.setdefault(name, {str(each): 0 for each in _STATUSES})
            counts[str(_STATUSES[status])] += 1
            ended = _STATUSES[status] in (Status.SUCCEEDED, Status.FAILED, Status.KILLED)
            found.append((ended, -at_ms, job, role, status, actor))
        found.sort()
        jobs = tuple(
            JobThen(
                job_id=job_names[job],
                role=role_names[role],
                status=_STATUSES[status],
                since=spelled(-at) if at else None,
                agent=actors[actor] if actor >= 0 else None,
            )
            for _, at, job, role, status, actor in found[:limit]
        )
        return Then(queues=dict(sorted(queues.items())), jobs=jobs, more=max(0, len(found) - limit))

    def curve(self, since_ms: int, until_ms: int, points: int, *, role: str | None = None) -> list[dict[str, Any]]:
        """How many jobs of each status there were at each of so many moments, and what happened up to it."""
        moments = [since_ms + (until_ms - since_ms) * (number + 1) // points for number in range(points)]
        with self._lock:
            only = None if role is None else self._role_names.get(role, -1)
            states: dict[int, tuple[int, int]] = dict(self._before)
            counts = [0] * len(_STATUSES)
            for own, status in states.values():
                counts[status] += only is None or own == only
            told: list[dict[str, Any]] = []
            at = 0
            for moment in moments:
                events = 0
                end = bisect_right(self._times, moment)
                for step in self._steps(at, end):
                    before = states.get(step.job)
                    if before is not None and (only is None or before[0] == only):
                        counts[before[1]] -= 1
                    states[step.job] = (step.role, step.status)
                    counts[step.status] += only is None or step.role == only
                    events += step.at_ms > since_ms and (only is None or step.role == only)
                at = end
                numbers = {str(status): counts[number] for number, status in enumerate(_STATUSES)}
                told.append({"at": spelled(moment), **numbers, "events": events})
        return told


def _number(known: dict[str, int], name: str) -> int:
    return known.setdefault(name, len(known))


def _lines(fd: int, offset: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Whole lines from there on, each with where it ends. What is no JSON object is passed over."""
    rest = b""
    while block := os.pread(fd, BLOCK, offset + len(rest)):
        whole, newline, rest_now = (rest + block).rpartition(b"\n")
        if not newline:
            rest = rest_now
            if len(rest) > BLOCK:
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
