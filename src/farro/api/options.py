"""Options of `Queue.enqueue` and `@farro.task`: their types, and how Python values become a `JobRequest`.

Every process that runs a task imports this module with the module of the task, so what only a submitter needs is
imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

from farro.errors import InputError
from farro.execution import task_file
from farro.jobs.request import NO_ATTACHMENTS, Duration, JobRequest, duration_s
from farro.lazy_dataclass import replace

if TYPE_CHECKING:
    from farro.api.queue import Queue

__all__ = ["Duration"]


class HasId(Protocol):
    """A job, or whatever else has a job's id."""

    @property
    def id(self) -> str: ...


JobName = str | HasId
JobNames = JobName | Iterable[JobName]


class CallOptions(TypedDict, total=False):
    """Options of a call of a task."""

    id: str | None
    role: str | None
    delay: Duration | None
    at: datetime | str | None
    after: JobNames
    after_any: JobNames
    priority: str | None
    tags: Iterable[str]
    timeout: Duration | None
    force: bool


class EnqueueOptions(CallOptions, total=False):
    """Options of a plan or command."""

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None


class TaskOptions(CallOptions, total=False):
    """Options that replace those of a task."""

    retries: int | None
    retry_delay: Duration | None
    retry_backoff: float | None
    queue: Queue | None


def request(kind: type, function: str, options: Mapping[str, Any]) -> JobRequest:
    """Return the request with these options. TypeError: `kind`, a TypedDict, has no such option."""
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    given = {name: value for name, value in options.items() if _is_given(value)}
    if not given:
        return NO_OPTIONS
    for name in ("after", "after_any"):
        if name in given:
            given[name] = job_ids(given[name])
    if "tags" in given:
        given["tags"] = (given["tags"],) if isinstance(given["tags"], str) else tuple(given["tags"])
    if "cwd" in given:
        given["cwd"] = os.path.abspath(os.fspath(given["cwd"]))
    if "env" in given:
        given["env"] = dict(given["env"])
    return JobRequest(**given)


NO_OPTIONS = JobRequest()


def over(asked: JobRequest, others: JobRequest) -> JobRequest:
    """Return the options asked for, completed by the others where these give none."""
    given = {item.name: value for item in fields(asked) if _is_given(value := getattr(asked, item.name))}
    if "delay" in given or "at" in given:
        others = replace(others, delay=None, at=None)
    return replace(others, **given) if given else others


def _is_given(value: Any) -> bool:
    return value not in (None, (), "", {}, NO_ATTACHMENTS) and value is not False


def job_id_of(job: JobName) -> str:
    found = job if isinstance(job, str) else getattr(job, "id", None)
    if not isinstance(found, str):
        raise InputError(f"{job!r} is neither a job nor a job's id")
    return found


def job_ids(jobs: JobNames) -> tuple[str, ...]:
    """Return the ids of one job or of several, each once."""
    several: Iterable[Any] = jobs if isinstance(jobs, Iterable) and not isinstance(jobs, str) else [jobs]
    return tuple(dict.fromkeys(job_id_of(job) for job in several))


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


def retrying(retries: Any, delay: Duration, backoff: Any) -> TaskRetries:
    found = TaskRetries(retries, duration_s("retry_delay", delay), backoff)
    task_file.check_limits(found._asdict())
    return found._replace(retry_backoff=float(backoff))
