"""Which jobs a job runs after (`metadata.after`, `after_any` of its raw prompt), and what their ends mean to it.

Whether they have ended is a store's business; refusing what is no id, with its place, is operations.submit's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any

from farro.errors import InputError, Refused, UnknownJob
from farro.jobs import ids
from farro.lazy_dataclass import dataclass
from farro.plans.metadata import metadata_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependencies:
    after: tuple[str, ...] = ()  # must have succeeded
    after_any: tuple[str, ...] = ()  # must have ended, however

    @property
    def all(self) -> tuple[str, ...]:
        named = self.after + self.after_any
        return tuple(dict.fromkeys(named)) if named else named


_NONE = Dependencies()
_FIELDS = ("after", "after_any")


def dependencies(prompt_data: Mapping[str, Any] | list[Any]) -> Dependencies:
    """What the prompt names; what is not an id is left out, and no path is built from it."""
    metadata = metadata_of(prompt_data)
    if "after" not in metadata and "after_any" not in metadata:
        return _NONE
    return Dependencies(after=_ids(metadata.get("after")), after_any=_ids(metadata.get("after_any")))


def alone(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt of a job that runs again, without the jobs that it ran after: they have ended, may be gone by now, and
    one that failed would keep it from ever running."""
    rest = dict(prompt)
    metadata = rest.get("metadata")
    if isinstance(metadata, dict) and not metadata.keys().isdisjoint(_FIELDS):
        kept = {name: value for name, value in metadata.items() if name not in _FIELDS}
        if kept:
            rest["metadata"] = kept
        else:
            del rest["metadata"]
    return rest


def _ids(named: Any) -> tuple[str, ...]:
    items = named if isinstance(named, list | tuple) else ()
    return tuple(dict.fromkeys(item for item in items if isinstance(item, str) and ids.is_job_id(item)))


class End(Enum):
    """How far a job is, as one that runs after it sees it."""

    OPEN = auto()  # it may still succeed
    SUCCEEDED = auto()
    FAILED = auto()  # failed for good, killed, or in quarantine
    GONE = auto()  # nowhere to be found: pruned, or removed by hand


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What becomes of a waiting job. Not ready and not hopeless: it waits on."""

    ready: bool = False
    hopeless: str | None = None  # why it will never run


def judge(named: Dependencies, end: Callable[[str], End], *, gone_is_over: bool = False) -> Verdict:
    """`gone_is_over`: the caller has made sure that what it cannot find is not merely on the move. How it ended nobody
    knows then: enough for `after_any`, not for `after`."""
    ready = True
    for job_id in named.after:
        match end(job_id):
            case End.FAILED:
                return Verdict(hopeless=f"{job_id} did not succeed")
            case End.GONE if gone_is_over:
                return Verdict(hopeless=f"{job_id} is gone, and nobody knows whether it succeeded")
            case End.OPEN | End.GONE:
                ready = False
    for job_id in named.after_any:
        state = end(job_id)
        ready &= state in (End.SUCCEEDED, End.FAILED) or (state is End.GONE and gone_is_over)
    return Verdict(ready=ready)


def blocking(named: Dependencies, end: Callable[[str], End], *, earlier: Collection[str], own: str | None) -> list[str]:
    """What a new job has to wait for; `earlier` are the ids of the same batch, which exist before it does.

    UnknownJob, InputError or Refused when it could never run: a dependency must exist before, so there are no cycles.
    """
    found = []
    for job_id in named.all:
        if job_id == own:
            raise InputError(f"{job_id} cannot run after itself")
        state = End.OPEN if job_id in earlier else end(job_id)
        if state is End.GONE:
            raise UnknownJob(f"no job {job_id} to run after; `farro ls` lists what there is")
        if state is End.FAILED and job_id in named.after:
            raise Refused(
                f"{job_id} did not succeed, so a job that runs after its success would never start. "
                "Nothing was queued. Run it after the end, however it was, with --after-any, or leave it out"
            )
        if state is End.OPEN:
            found.append(job_id)
    return found
