"""Reconstruct the queues at any past moment from the audit log.

The log is read once, and then only what was added. A transition becomes a few numbers, so that a million of them fit
into memory and are replayed in a fraction of a second. Lines of different writers are out of order by as long as they
buffer; they are sorted as they arrive. Times of two writers may cross as well; then a job's own events are put into a
possible order (`history.in_order`): an event is logged after it happened, so one that must precede another counts as no
later than that. If the first log files are gone, `whole` is False; for a job whose beginning is gone, the state before
its first line is used.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from farro.errors import TryAgain
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.catalog import in_batches
from farro.queue.catalog.rows import milliseconds, spelled
from farro.queue.history import Fact, in_order
from farro.store.port import Store

MOST = 2_000_000  # transitions that are kept; the oldest are folded into a starting state
BATCH = 100_000  # transitions that are sorted at once
WAIT_S = 2.0  # for another thread that reads the log
_STATUSES = tuple(Status)
_NUMBERS = {str(status): number for number, status in enumerate(_STATUSES)}
_LATE = 20_000  # most entries that a late line may be inserted before
_MOMENT_MS = 5000  # by how much the times of two writers may cross
_BEGINS, _UNKNOWN = 254, 255  # instead of the previous status: the job was created; the line does not say
_NO_ATTEMPT = 65535


class Transition(NamedTuple):
    """One status change, with names replaced by numbers."""

    at_ms: int
    job: int
    role: int
    status: int
    actor: int
    came: int  # previous status
    attempt: int

    @property
    def fact(self) -> Fact:
        """Return what the change says about the order of events."""
        return Fact(
            attempt=None if self.attempt == _NO_ATTEMPT else self.attempt,
            came=_STATUSES[self.came] if self.came < _BEGINS else None,
            status=_STATUSES[self.status],
            begins=self.came == _BEGINS,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PastJob:
    """A job at a past moment."""

    job_id: str
    role: str
    status: Status
    since: str | None
    agent: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuesAtMoment:
    """All queues at a past moment."""

    queues: Mapping[str, Mapping[str, int]]
    jobs: tuple[PastJob, ...]  # unfinished first, then newest first
    more: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The period that the log covers."""

    first: str | None
    last: str | None
    lines: int


class QueueHistory:
    """Transitions of all jobs in columns.

    Invariant: the arrays have equal length and are sorted by time; `_before` has the states at their start.
    """

    def __init__(self, store: Store, *, most: int = MOST) -> None:
        self._added = store.audit_events().follow()
        self._most = most
        self._lock = threading.Lock()
        self._times = array("q")
        self._jobs = array("l")
        self._roles = array("H")
        self._states = array("B")
        self._actors = array("l")
        self._came = array("B")
        self._attempts = array("H")
        self._names: dict[str, int] = {}
        self._role_names: dict[str, int] = {}
        self._actor_names: dict[str, int] = {}
        self._before: dict[int, tuple[int, int]] = {}  # job → role and status before the first line
        self._met: set[int] = set()
        self._lost: dict[int, int] = {}  # jobs without a beginning in the log → time of their first line
        self._folded = False

    @property
    def whole(self) -> bool:
        return not self._folded and not self._lost

    @property
    def _columns(self) -> tuple[array[int], ...]:
        """Return the arrays in the order of a transition's fields."""
        return (self._times, self._jobs, self._roles, self._states, self._actors, self._came, self._attempts)

    # --- reading ---

    def refresh(self) -> None:
        """Read what was added to the log.

        Raises TryAgain if another thread is reading it: the first read of a log of gigabytes takes minutes, and must
        not block other threads that long.
        """
        if not self._lock.acquire(timeout=WAIT_S):
            raise TryAgain("the audit log is still being read; ask again in a moment")
        try:
            steps = (step for line in self._added() if (step := self._step(line)) is not None)
            for lot in in_batches(steps, BATCH):  # so that a long log is never in memory as a whole
                self._add(lot)
        finally:
            self._lock.release()

    def _step(self, line: Mapping[str, Any]) -> Transition | None:
        job_id, status = line.get("job_id"), line.get("status")
        number = _NUMBERS.get(status) if isinstance(status, str) else None
        at_ms = milliseconds(line.get("ts"))
        if not isinstance(job_id, str) or number is None or at_ms is None:
            return None
        role = line.get("next") or line.get("role")
        job = self._names.setdefault(job_id, len(self._names))
        of = _number(self._role_names, role if isinstance(role, str) else "-")
        begins = line.get("event") == Reason.ENQUEUED
        came = _BEGINS if begins else _NUMBERS.get(str(line.get("from")), _UNKNOWN)
        if job not in self._met:
            self._met.add(job)
            if came < _BEGINS:  # its beginning is in deleted files, or is logged later
                own = line.get("role")
                self._before[job] = (_number(self._role_names, own if isinstance(own, str) else "-"), came)
                self._lost[job] = at_ms
        elif begins:
            if job not in self._lost:
                return None  # logged twice, or the job's beginning is known
            at_ms = min(at_ms, self._lost.pop(job))
            del self._before[job]
        attempt = line.get("attempt")
        counted = attempt if isinstance(attempt, int) and 0 <= attempt < _NO_ATTEMPT else _NO_ATTEMPT
        return Transition(at_ms, job, of, number, _number(self._actor_names, str(line.get("actor"))), came, counted)

    def _add(self, steps: list[Transition]) -> None:
        """Insert transitions, sorted together with the last known ones: they may have happened before those."""
        if not steps:
            return
        first_ms = min(step.at_ms for step in steps) - _MOMENT_MS
        begin = max(bisect_left(self._times, first_ms), len(self._times) - _LATE, 0)
        floor_ms = self._times[begin - 1] if begin else 0
        steps = _sorted([*self._steps(begin, len(self._times)), *steps], floor_ms)
        for column, values in zip(self._columns, zip(*steps, strict=True), strict=True):
            del column[begin:]
            column.extend(values)
        if len(self._times) > self._most:
            self._fold(len(self._times) - self._most * 9 // 10)

    def _fold(self, count: int) -> None:
        """Fold the oldest transitions into the starting state."""
        for step in self._steps(0, count):
            self._before[step.job] = (step.role, step.status)
            self._lost.pop(step.job, None)  # its beginning would be inserted too late
        for column in self._columns:
            del column[:count]
        self._folded = True

    def _steps(self, begin: int, end: int) -> Iterator[Transition]:
        return map(Transition._make, zip(*(column[begin:end] for column in self._columns), strict=True))

    # --- asking ---

    def range(self) -> Range:
        """Return the period that the log covers."""
        with self._lock:
            if not self._times:
                return Range(first=None, last=None, lines=0)
            return Range(first=spelled(self._times[0]), last=spelled(self._times[-1]), lines=len(self._times))

    def at(self, moment_ms: int, *, limit: int, roles: Collection[str] = ()) -> QueuesAtMoment:
        """Return all queues at that moment."""
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
            PastJob(
                job_id=job_names[job],
                role=role_names[role],
                status=_STATUSES[status],
                since=spelled(-at) if at else None,
                agent=actors[actor] if actor >= 0 else None,
            )
            for _, at, job, role, status, actor in found[:limit]
        )
        return QueuesAtMoment(queues=dict(sorted(queues.items())), jobs=jobs, more=max(0, len(found) - limit))

    def curve(self, since_ms: int, until_ms: int, points: int, *, role: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs of each status at `points` moments, and the number of events before each."""
        moments = [since_ms + (until_ms - since_ms) * (number + 1) // points for number in range(points)]
        with self._lock:
            only = None if role is None else self._role_names.get(role, -1)
            states: dict[int, tuple[int, int]] = dict(self._before)
            counts = [0] * len(_STATUSES)
            for of_role, status in states.values():
                counts[status] += only is None or of_role == only
            curve_points: list[dict[str, Any]] = []
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
                curve_points.append({"at": spelled(moment), **numbers, "events": events})
        return curve_points


def _sorted(steps: list[Transition], floor_ms: int) -> list[Transition]:
    """Sort by time, and each job's own transitions into a possible order.

    A transition older than `floor_ms` arrives too late to be inserted: it counts from there, and a beginning is
    dropped.
    """
    if floor_ms:
        steps = [
            step if step.at_ms >= floor_ms else step._replace(at_ms=floor_ms)
            for step in steps
            if step.at_ms >= floor_ms or step.came != _BEGINS
        ]
    steps.sort(key=_at_ms)
    last: dict[int, Transition] = {}
    crossed: dict[int, list[Transition]] = {}
    for step in steps:
        before = last.get(step.job)
        if before is not None and (step.came != before.status or step.attempt < before.attempt):
            crossed[step.job] = []
        last[step.job] = step
    if not crossed:
        return steps
    for step in steps:
        if step.job in crossed:
            crossed[step.job].append(step)
    straight = [step for step in steps if step.job not in crossed]
    for own in crossed.values():
        straight += _with_possible_times(in_order(own, lambda step: step.fact))
    return sorted(straight, key=_at_ms)


def _with_possible_times(own: list[Transition]) -> Iterator[Transition]:
    """Move times forward: none happened later than a following event was logged."""
    times = accumulate((step.at_ms for step in reversed(own)), min)
    return (step._replace(at_ms=at_ms) for step, at_ms in zip(own, reversed([*times]), strict=True))


def _at_ms(step: Transition) -> int:
    return step.at_ms


def _number(known: dict[str, int], name: str) -> int:
    return known.setdefault(name, len(known))
