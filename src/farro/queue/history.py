"""Gather the whole life of a job from job.json, its attempts and the audit log, in the order in which it happened.

Events are ordered by attempts and states, not by time alone. An event is logged after it happened, by the process that
caused it, so the times of two processes may cross: a worker that claims a job at once may log that before the submitter
logs the enqueue. But attempt numbers never decrease, and inside one attempt each event starts from the state that the
event before it led to. That holds whatever the clocks say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from farro.execution import progress as steps
from farro.execution.progress import read_result, step_results
from farro.host import fs
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.jobs.times import moment_or_none, seconds_between, timestamp
from farro.lazy_dataclass import dataclass
from farro.log.audit_reader import JobEvents
from farro.queue import find_job
from farro.store.port import JobView, Store

T = TypeVar("T")
_FINAL = (Status.SUCCEEDED, Status.KILLED)


class Fact(NamedTuple):
    """The order of events according to one audit line."""

    attempt: int | None  # None: not in the line
    came: Status | None  # status before; None: not in the line
    status: Status | None  # status since; None: no transition
    begins: bool = False  # the job was created


def fact_of(line: Mapping[str, Any]) -> Fact:
    """Extract the facts about the order from an audit line."""
    attempt = line.get("attempt")
    return Fact(
        attempt=attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else None,
        came=_status(line.get("from")),
        status=_status(line.get("status")),
        begins=line.get("event") == Reason.ENQUEUED,
    )


def _status(value: Any) -> Status | None:
    try:
        return None if value is None else Status(value)
    except ValueError:
        return None


def in_order(events: Sequence[T], fact: Callable[[T], Fact]) -> list[T]:
    """Return the events of one job in the order in which they happened.

    `events` is sorted by time, and stays as it is where that order is possible. An event that says nothing about the
    order stays behind the one it followed.
    """
    if _possible([fact(one) for one in events]):
        return list(events)
    by_attempt: dict[int, list[tuple[T, Fact]]] = {}
    attempt = 0
    for one in events:
        known = fact(one)
        attempt = -1 if known.begins else known.attempt if known.attempt is not None else attempt
        by_attempt.setdefault(attempt, []).append((one, known))
        attempt = max(attempt, 0)
    found: list[T] = []
    for attempt in sorted(by_attempt):
        left = by_attempt[attempt]
        # A claim starts an attempt and finds the job queued. If the claim's line is missing, the job was claimed.
        claimed = any(known.status is Status.IN_PROGRESS for _, known in left)
        now = Status.QUEUED if claimed or attempt <= 0 else Status.IN_PROGRESS
        while left:
            one, known = left.pop(_next(left, now))
            found.append(one)
            now = known.status or now
    return found


def _possible(facts: Sequence[Fact]) -> bool:
    """Return whether the events can have happened in this order."""
    attempt, now = 0, None
    for place, known in enumerate(facts):
        if (known.begins and place) or (known.attempt is not None and known.attempt < attempt):
            return False
        if known.came is not None and now is not None and known.came is not now:
            return False
        attempt, now = known.attempt or attempt, known.status or now
    return True


def _next(left: Sequence[tuple[Any, Fact]], now: Status) -> int:
    """Return the index of the next event: the first that fits the job's state; a final one only if no other fits."""

    def order(place: int) -> tuple[bool, bool, int]:
        known = left[place][1]
        return (known.came not in (None, now), known.status in _FINAL, place)

    return min(range(len(left)), key=order)


_BY_ITS_WORKER = frozenset({Reason.COMMITTED, Reason.ROUTED, Reason.RETRIED, Reason.RELEASED, Reason.ROUTING_EXHAUSTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One step of an attempt, as far as it is known."""

    id: str
    exit_code: int | None
    duration_s: float | None
    tries: int
    error: str | None
    earlier: bool  # not run again: an earlier attempt, or the retried job, ran it


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One attempt, as far as it is known."""

    number: int
    agent: str | None
    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    outcome: str | None  # the reason code of the decision; None: it is running, or was not decided
    steps: tuple[StepRecord, ...]
    steps_total: int | None
    output: bool  # there is something for `farro logs --attempt`


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A job with its attempts and its audit lines."""

    view: JobView
    attempts: tuple[AttemptRecord, ...]
    audit: JobEvents


def history(store: Store, job_id: str) -> History:
    """Read the history of a job."""

    def read(view: JobView, folder: str) -> History:
        created = moment_or_none(view.lifecycle.created_at)
        since_s = 0.0 if created is None else created.timestamp() - 60
        said = _in_order(store.audit_events().of_job(job_id, since_s=since_s))
        numbers = attempt_numbers(folder)
        timed = store.live_folders  # folders of a copy have the time of the copy
        attempts = tuple(_attempt(view.lifecycle, folder, number, numbers[-1], said, timed) for number in numbers)
        return History(view=view, attempts=attempts, audit=said)

    return find_job.read_folder(store, job_id, read)


def _in_order(said: JobEvents) -> JobEvents:
    """Sort the lines of all writers: each writes its own in order, but their times may cross."""
    lines = sorted(said.lines, key=lambda line: str(line.get("ts")))
    return JobEvents(lines=tuple(in_order(lines, fact_of)), whole=said.whole)


def attempt_numbers(folder: str) -> list[int]:
    """Return the job's attempt numbers in ascending order. FileNotFoundError: the job is not there."""
    if not fs.exists(f"{folder}/attempts"):
        if not fs.exists(folder):
            raise FileNotFoundError(folder)
        return []
    return sorted(int(name) for name in fs.listdir(f"{folder}/attempts") if name.isdecimal())


def known_attempts(folder: str) -> list[int]:
    """Return the job's attempt numbers in ascending order; none if it is not there."""
    with contextlib.suppress(OSError):
        return attempt_numbers(folder)
    return []


def _attempt(life: Lifecycle, folder: str, number: int, latest: int, said: JobEvents, timed: bool) -> AttemptRecord:
    result = read_result(folder, number)
    end = next((hop for hop in life.hops if hop.attempt == number and hop.reason is not Reason.REQUEUED), None)
    running = number == latest and life.status is Status.IN_PROGRESS and end is None
    claim = _claim(said, number)
    duration_s = _number(result.get("duration_s"))
    started = claim.get("ts") or _started(life, folder if timed else None, number, running, end, duration_s)
    return AttemptRecord(
        number=number,
        agent=_agent(life, end, running, claim),
        started_at=started if isinstance(started, str) else None,
        ended_at=end.at if end is not None else None,
        duration_s=seconds_between(started, end.at if end is not None else None) if duration_s is None else duration_s,
        outcome=None if end is None else _outcome(life, end),
        steps=tuple(map(_step, _own_steps(result))) if result else tuple(_so_far(folder, number, running=running)),
        steps_total=total if isinstance(total := result.get("steps_total"), int) else None,
        output=steps.has_output(folder, number),
    )


def _outcome(life: Lifecycle, end: Hop) -> str:
    """Return the result of the attempt: `committed` alone does not say whether it succeeded."""
    if end.reason is Reason.COMMITTED:
        return end.to.rsplit("/", 1)[-1]
    return str(end.reason)


def _claim(said: JobEvents, number: int) -> Mapping[str, Any]:
    """Return the audit line of the claim, or an empty mapping."""
    return next((line for line in said.lines if line.get("attempt") == number and _is_claim(line)), {})


def _is_claim(line: Mapping[str, Any]) -> bool:
    return "claim" in f"{line.get('event')} {line.get('reason')}"


def _agent(life: Lifecycle, end: Hop | None, running: bool, claim: Mapping[str, Any]) -> str | None:
    if end is not None and end.reason in _BY_ITS_WORKER:
        return end.by
    if running:
        return life.agent
    named = claim.get("agent") or claim.get("actor")
    return named if isinstance(named, str) else None


def _started(
    life: Lifecycle, folder: str | None, number: int, running: bool, end: Hop | None, duration_s: float | None
) -> str | None:
    """Return when an attempt began. No file records it for later attempts, so the time of its first step's folder
    stands for it."""
    if number == 1 and life.first_claimed_at is not None:
        return life.first_claimed_at
    if running:
        return life.updated_at
    home = "" if folder is None else f"{folder}/attempts/{number:04d}/steps"
    with contextlib.suppress(OSError):
        times = [fs.lstat(f"{home}/{name}").st_mtime for name in fs.subdirectories(home)]
        if times:
            return timestamp(datetime.fromtimestamp(min(times), UTC))
    ended = None if end is None else moment_or_none(end.at)
    return None if ended is None or duration_s is None else timestamp(ended - timedelta(seconds=duration_s))


def _own_steps(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of this attempt. A manager's decision repeats what the last role did; that is shown there."""
    return [] if "decision" in result else step_results(result)


def _so_far(folder: str, number: int, *, running: bool) -> Iterator[StepRecord]:
    """Yield the steps of an attempt without a result: it runs, or its worker died. Taken from its folder."""
    ended = {line["id"]: line for line in steps.lines(folder, number) if isinstance(line.get("id"), str)}
    yield from map(_step, ended.values())
    for name in steps.begun(folder, number):
        if name not in ended:
            what = "runs" if running else "began; how it ended is not recorded"
            yield StepRecord(id=name, exit_code=None, duration_s=None, tries=1, error=what, earlier=False)


def _step(item: Mapping[str, Any]) -> StepRecord:
    code, tries, error = item.get("exit_code"), item.get("attempts"), item.get("error")
    return StepRecord(
        id=str(item.get("id") or item.get("step_number")),
        exit_code=code if isinstance(code, int) else None,
        duration_s=_number(item.get("duration_s")),
        tries=tries if isinstance(tries, int) else 1,
        error=error if isinstance(error, str) else None,
        earlier=item.get("resumed") is True,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
