"""In which order it happened what the audit log tells of one job: by its attempts and states, not by the times alone.

Reading the lines lives in observe.audit_reading; folding those of all jobs into queues, in operations.past.

An event is told after it happened, by whoever brought it about. So the times of two tellers may cross: a worker that
claims a job at once may tell of that before whoever enqueued it tells of its own. But no attempt is counted down, and
inside of one each event begins with the state that the event before it led to. That holds whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from farro.jobs.states import Reason, Status

T = TypeVar("T")
_FINAL = (Status.SUCCEEDED, Status.KILLED)


class Fact(NamedTuple):
    """What one line says of the order."""

    attempt: int | None  # None: it does not say
    came: Status | None  # what the job was before; None: it does not say
    status: Status | None  # what it is since; None: no transition
    begins: bool = False  # the job was made


def fact_of(line: Mapping[str, Any]) -> Fact:
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


def in_order(told: Sequence[T], fact: Callable[[T], Fact]) -> list[T]:
    """All that is told of one job, as it happened. `told` is in the order of its times, which is left alone where it
    can have been so; what says nothing of the order stays behind what it stood behind."""
    if _possible([fact(one) for one in told]):
        return list(told)
    lots: dict[int, list[tuple[T, Fact]]] = {}
    attempt = 0
    for one in told:
        known = fact(one)
        attempt = -1 if known.begins else known.attempt if known.attempt is not None else attempt
        lots.setdefault(attempt, []).append((one, known))
        attempt = max(attempt, 0)
    found: list[T] = []
    for attempt in sorted(lots):
        left = lots[attempt]
        # An attempt is counted by a claim, which finds the job queued. Where that line is missing, it was claimed.
        claimed = any(known.status is Status.IN_PROGRESS for _, known in left)
        now = Status.QUEUED if claimed or attempt <= 0 else Status.IN_PROGRESS
        while left:
            one, known = left.pop(_next(left, now))
            found.append(one)
            now = known.status or now
    return found


def _possible(facts: Sequence[Fact]) -> bool:
    attempt, now = 0, None
    for place, known in enumerate(facts):
        if (known.begins and place) or (known.attempt is not None and known.attempt < attempt):
            return False
        if known.came is not None and now is not None and known.came is not now:
            return False
        attempt, now = known.attempt or attempt, known.status or now
    return True


def _next(left: Sequence[tuple[Any, Fact]], now: Status) -> int:
    """Which of them comes next: the first that fits to how the job stands; an end only when nothing else does."""

    def order(place: int) -> tuple[bool, bool, int]:
        known = left[place][1]
        return (known.came not in (None, now), known.status in _FINAL, place)

    return min(range(len(left)), key=order)
