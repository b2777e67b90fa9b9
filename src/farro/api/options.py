"""Options of `Queue.enqueue` and `@farro.task`: check Python values and turn them into `SubmitOptions`.

Every process that runs a task imports this module with the module of the task, so what only a submitter needs is
imported where it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from farro.errors import BadDocument, InputError
from farro.lazy_dataclass import dataclass, field

if TYPE_CHECKING:
    from farro.host.clock import Clock
    from farro.queue.options import SubmitOptions

Duration = float | str | timedelta  # seconds, or "10m", or a timedelta
MAX_DELAY_S = 3650 * 86_400.0
MAX_TIMEOUT_S, MAX_RETRIES, MAX_RETRY_DELAY_S = 365 * 86_400.0, 100, 3600.0  # as plans.model has them


class HasId(Protocol):
    """A job, or whatever else has a job's id."""

    @property
    def id(self) -> str: ...


JobName = str | HasId
JobNames = JobName | Iterable[JobName]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnqueueOptions:
    """How a job is queued and run. None or empty: not given."""

    id: str | None = None
    role: str | None = None
    delay: Duration | None = None
    at: datetime | str | None = None
    after: JobNames = ()
    after_any: JobNames = ()
    priority: str | None = None
    tags: Iterable[str] = ()
    timeout: Duration | None = None
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    force: bool = False

    def __post_init__(self) -> None:
        for name in ("after", "after_any"):
            if getattr(self, name) != ():
                object.__setattr__(self, name, job_ids(getattr(self, name)))  # an iterator can be read only once
        if self.tags != ():
            object.__setattr__(self, "tags", (self.tags,) if isinstance(self.tags, str) else tuple(self.tags))

    def over(self, others: EnqueueOptions) -> EnqueueOptions:
        """Return these options, completed by the others where these give none."""
        asked = {item.name: value for item in fields(self) if _is_asked(value := getattr(self, item.name))}
        if "delay" in asked or "at" in asked:
            others = replace(others, delay=None, at=None)
        return replace(others, **asked) if asked else others

    @property
    def timeout_s(self) -> float | None:
        if self.timeout is None:
            return None
        seconds = duration_s("timeout", self.timeout)
        if not 0 < seconds <= MAX_TIMEOUT_S:
            raise InputError(f"timeout: {self.timeout!r} must be positive and at most a year")
        return seconds

    def submit_options(self, clock: Clock, *, cwd: str | None = None) -> SubmitOptions:
        """Check the values. `cwd`: the folder where none is given."""
        from farro.plans.metadata import PRIORITIES
        from farro.queue.options import SubmitOptions

        where = cwd if self.cwd is None else os.path.abspath(os.fspath(self.cwd))
        if where is not None and not os.path.isdir(where):
            raise InputError(f"cwd: {where} is not a folder")
        if self.priority is not None and self.priority not in PRIORITIES:
            raise InputError(f"priority: {self.priority!r} is not a priority; choose one of {', '.join(PRIORITIES)}")
        return SubmitOptions(
            tags=tuple(self.tags),
            priority=self.priority,
            timeout_s=self.timeout_s,
            cwd=where,
            env=dict(self.env),
            after=job_ids(self.after),
            after_any=job_ids(self.after_any),
            not_before=self._start(clock),
        )

    def _start(self, clock: Clock) -> datetime | None:
        if self.delay is not None and self.at is not None:
            raise InputError("`delay` and `at` both set the start time; keep one of them")
        if self.delay is not None:
            seconds = duration_s("delay", self.delay)
            if not 0 <= seconds <= MAX_DELAY_S:
                raise InputError(f"delay: {self.delay!r} must not be negative, and at most ten years")
            return clock.now() + timedelta(seconds=seconds)
        if isinstance(self.at, datetime):
            moment = self.at.astimezone(UTC)  # a datetime without a zone is local, as everywhere in Python
            if self.at.tzinfo is None and moment.astimezone().replace(tzinfo=None) != self.at:
                from farro.jobs.start_times import moment_of

                moment = moment_of(self.at, lambda local: local.astimezone())  # raises: no clock ever shows that time
            if moment <= clock.now():
                raise InputError(f"at: {self.at} is in the past; name a later time, or leave it out to start now")
            return moment
        if self.at is None:
            return None
        from farro.jobs.start_times import parse_start

        try:
            return parse_start(self.at, clock.now(), lambda local: local.astimezone())
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"at: {error}") from error


def duration_s(name: str, value: Duration) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        from farro.jobs.times import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from error
    given: object = value
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    raise InputError(f"{name}: {value!r} is not a duration; give seconds, a timedelta, or text such as 10m")


def job_id_of(job: JobName) -> str:
    found = job if isinstance(job, str) else getattr(job, "id", None)
    if not isinstance(found, str):
        raise InputError(f"{job!r} is neither a job nor a job's id")
    return found


def job_ids(jobs: JobNames) -> tuple[str, ...]:
    """Return the ids of one job or of several, each once."""
    several: Iterable[Any] = jobs if isinstance(jobs, Iterable) and not isinstance(jobs, str) else [jobs]
    return tuple(dict.fromkeys(job_id_of(job) for job in several))


@contextmanager
def python_names() -> Iterator[None]:
    """Rename command-line options in errors to Python's parameters: `--after-any: …` becomes `after_any: …`."""
    try:
        yield
    except BadDocument:
        raise
    except InputError as error:
        said = str(error)
        told = re.sub(r"^--([a-z-]+):", lambda found: f"{found[1].replace('-', '_')}:", said)
        if told == said:
            raise
        raise type(error)(told) from error.__cause__


def _is_asked(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, str | tuple | list | dict) and not value)


class TaskRetries(NamedTuple):
    """How often a call that raised is repeated, and when. The names are those of a step's fields."""

    retries: int = 0
    retry_delay: float = 0.0
    retry_backoff: float = 1.0

    @property
    def step_fields(self) -> dict[str, Any]:
        """The fields that a step needs: those that differ from the defaults."""
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}


ONCE = TaskRetries()


def retrying(retries: object, delay: Duration, backoff: object) -> TaskRetries:
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES:
        raise InputError(f"retries: {retries!r} is not a whole number from 0 to {MAX_RETRIES}")
    delay_s = duration_s("retry_delay", delay)
    if not 0 <= delay_s <= MAX_RETRY_DELAY_S:
        raise InputError(f"retry_delay: {delay!r} must not be negative, and at most an hour")
    if isinstance(backoff, bool) or not isinstance(backoff, int | float) or not 1 <= backoff <= 10:
        raise InputError(f"retry_backoff: {backoff!r} is not a number from 1 to 10")
    return TaskRetries(retries, delay_s, float(backoff))
