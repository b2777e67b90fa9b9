"""Describe a job as lists show it: a summary of its prompt, which never changes, and its last known state.

Times are kept as milliseconds: as text, those of a hundred thousand jobs would take a hundred megabytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Any

from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.plans.metadata import DEFAULT_PRIORITY, priority, required_tags
from farro.store.port import JobView

LONGEST_TITLE = 200
LONGEST_ERROR = 300
_MINTED = "job-YYYYMMDD-hhmmss-mmm"


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A short description of a job's work."""

    title: str = ""
    name: str | None = None  # the plan's name
    plan_id: str | None = None
    task: str | None = None
    tags: tuple[str, ...] = ()
    priority: str = DEFAULT_PRIORITY
    steps: int = 0


NO_SUMMARY = JobSummary()


@dataclass(frozen=True, slots=True)
class Standing:
    """A job's state when its job.json was last read. Times in milliseconds of Unix time."""

    attempt: int
    created_ms: int | None
    enqueued_ms: int | None
    updated_ms: int | None
    first_claimed_ms: int | None
    finalized_ms: int | None
    not_before_ms: int | None
    agent: str | None
    retry_of: str | None
    error: Mapping[str, str] | None
    waits_for: tuple[str, ...]
    person: bool  # waits for a person
    terminal: bool


class JobRow:
    """One job. `standing` and `summary` are None until they were read; `fresh`: `standing` includes the latest known
    change."""

    __slots__ = (
        *("summary", "changed_ms", "claimed_ms", "counted", "fresh", "job_id"),
        *("key", "number", "place", "role", "standing", "status", "text"),
    )

    def __init__(self, job_id: str, role: str | None, status: Status, place: str, key: str, changed_ms: int) -> None:
        self.job_id = job_id
        self.role = role
        self.status = status
        self.place = place
        self.key = key
        self.changed_ms = changed_ms
        self.number = 0  # of its last change, counting all changes
        self.fresh = False
        self.counted = False  # its end is in the charts
        self.claimed_ms: int | None = None  # when it was first seen in progress
        self.standing: Standing | None = None
        self.summary: JobSummary | None = None
        self.text = job_id.casefold()  # the text that a search looks at

    def describe(self) -> None:
        """Update the search text after `summary` or `standing` was set. Built once, not for each search."""
        parts = [self.job_id]
        if self.summary is not None:
            parts += [part for part in (self.summary.title, self.summary.plan_id, self.summary.task) if part]
        if self.standing is not None and self.standing.error is not None:
            parts.append(self.standing.error["message"])
        self.text = "\n".join(parts).casefold()


def minted_ms(job_id: str) -> int | None:
    """Return when farro minted the id; None if a submitter chose it."""
    if len(job_id) < len(_MINTED) or not job_id.startswith("job-") or job_id[12] != "-" or job_id[19] != "-":
        return None
    second_ms, rest = _second_ms(job_id[4:19]), job_id[20:23]
    return second_ms + int(rest) if second_ms is not None and rest.isdecimal() and rest.isascii() else None


@lru_cache(maxsize=4096)  # jobs that were enqueued together share their second
def _second_ms(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None


def key_of(job_id: str, created_ms: int) -> str:
    """Return a sort key by creation that never changes, so that pages stay exact."""
    return f"{created_ms:013d}{job_id}"


def standing_of(view: JobView) -> Standing:
    """Extract the state from a job's view."""
    life = view.lifecycle
    error = life.error
    if error is not None:
        message = str(error.get("message", ""))
        short = message if len(message) <= LONGEST_ERROR else f"{message[: LONGEST_ERROR - 1]}…"
        error = {"category": intern(str(error.get("category", ""))), "message": short}
    return Standing(
        attempt=life.attempt,
        created_ms=milliseconds(life.created_at),
        enqueued_ms=milliseconds(life.enqueued_at),
        updated_ms=milliseconds(life.updated_at),
        first_claimed_ms=milliseconds(life.first_claimed_at),
        finalized_ms=milliseconds(life.finalized_at),
        not_before_ms=milliseconds(life.not_before),
        agent=None if life.agent is None else intern(life.agent),
        retry_of=life.retry_of,
        error=error,
        waits_for=view.waits_for,
        person=life.status is Status.QUEUED and waits_for_person(life),
        terminal=life.terminal,
    )


def summarize(prompt: Mapping[str, Any]) -> JobSummary:
    """Summarize a prompt. Read without trust: it may contain anything."""
    if not prompt:
        return NO_SUMMARY
    name, plan_id = _text(prompt.get("name")), _text(prompt.get("plan_id"))
    inputs = prompt.get("inputs")
    task = _text(inputs.get("task_id")) if isinstance(inputs, Mapping) else None
    steps = prompt.get("steps", prompt.get("tasks"))
    listed: Sequence[Any] = steps if isinstance(steps, list) else ()
    agent = is_agent_prompt(dict(prompt))
    return JobSummary(
        title=_line(_title(prompt, name, listed) or plan_id or ""),
        name=name,
        plan_id=None if plan_id is None else intern(plan_id),
        task=task,
        tags=_tags(prompt),
        priority=priority(prompt),
        steps=1 if agent else len(listed),
    )


def _tags(prompt: Mapping[str, Any]) -> tuple[str, ...]:
    found = required_tags(prompt)
    return tuple(map(intern, sorted(found))) if found else ()


def _title(prompt: Mapping[str, Any], name: str | None, steps: Sequence[Any]) -> str | None:
    if name:
        return name
    rubric = _text(prompt.get("rubric"))
    if rubric:
        return next((line for line in rubric.splitlines() if line.strip()), rubric)
    first = steps[0] if steps and isinstance(steps[0], Mapping) else {}
    command, args = first.get("command"), first.get("args")
    if not isinstance(command, str):
        return None
    words = [command, *(word for word in (args if isinstance(args, list) else ())[:20] if isinstance(word, str))]
    return shlex.join(word[:LONGEST_TITLE] for word in words) + (f" (+{len(steps) - 1})" if len(steps) > 1 else "")


def _line(text: str) -> str:
    one = " ".join(text[: 4 * LONGEST_TITLE].split())
    return one if len(one) <= LONGEST_TITLE else f"{one[: LONGEST_TITLE - 1]}…"


def _text(value: Any) -> str | None:
    return value[:1000] if isinstance(value, str) and value else None


def milliseconds(text: str | None) -> int | None:
    """Return a timestamp as milliseconds of Unix time; None if it is invalid."""
    moment = moment_or_none(text)
    if moment is None:
        return None
    return int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000


def created_ms(row: JobRow) -> int:
    """Return when the row's job was created."""
    return int(row.key[:13])


def spelled(ms: int | None) -> str | None:
    """Format milliseconds of Unix time as farro writes every time."""
    if ms is None:
        return None
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
