"""Read the dependencies of a job (`metadata.after`, `after_any`) and decide what their ends mean for it."""

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
    after_any: tuple[str, ...] = ()  # must have ended, with any status

    @property
    def all(self) -> tuple[str, ...]:
        named = self.after + self.after_any
        return tuple(dict.fromkeys(named)) if named else named


_NONE = Dependencies()
_FIELDS = ("after", "after_any")


def dependencies(prompt_data: Mapping[str, Any] | list[Any]) -> Dependencies:
    """Return the dependencies that the prompt names. Invalid ids are left out: no path is built from them."""
    metadata = metadata_of(prompt_data)
    if "after" not in metadata and "after_any" not in metadata:
        return _NONE
    return Dependencies(after=_ids(metadata.get("after")), after_any=_ids(metadata.get("after_any")))


def alone(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt of a retried job without its dependencies: they have ended, may have been pruned, and a failed
    one would keep the retry from ever running."""
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


class DependencyState(Enum):
    """The state of a dependency, as the dependent job sees it."""

    OPEN = auto()  # it may still succeed
    SUCCEEDED = auto()
    FAILED = auto()  # failed for good, killed, or in quarantine
    GONE = auto()  # not found: pruned, or removed by hand


@dataclass(frozen=True, kw_only=True, slots=True)
class DependencyVerdict:
    """What happens to a waiting job. Neither ready nor hopeless: it keeps waiting."""

    ready: bool = False
    hopeless: str | None = None  # why it will never run


StateOf = Callable[[str], DependencyState]


def judge(named: Dependencies, end: StateOf, *, gone_is_over: bool = False) -> DependencyVerdict:
    """Judge a waiting job. With `gone_is_over` the caller has made sure that a missing dependency is not merely being
    moved: its end is unknown, which satisfies `after_any` but not `after`."""
    ready = True
    for job_id in named.after:
        match end(job_id):
            case DependencyState.FAILED:
                return DependencyVerdict(hopeless=f"{job_id} did not succeed")
            case DependencyState.GONE if gone_is_over:
                return DependencyVerdict(hopeless=f"{job_id} is gone, and nobody knows whether it succeeded")
            case DependencyState.OPEN | DependencyState.GONE:
                ready = False
    for job_id in named.after_any:
        state = end(job_id)
        ended = state in (DependencyState.SUCCEEDED, DependencyState.FAILED)
        ready &= ended or (state is DependencyState.GONE and gone_is_over)
    return DependencyVerdict(ready=ready)


def blocking(named: Dependencies, end: StateOf, *, earlier: Collection[str], own: str | None) -> list[str]:
    """Return what a new job has to wait for. `earlier` are ids of the same batch, which are submitted before it.

    Raise UnknownJob, InputError or Refused when it could never run. A dependency must exist first, so there are no
    cycles.
    """
    found = []
    for job_id in named.all:
        if job_id == own:
            raise InputError(f"{job_id} cannot run after itself")
        state = DependencyState.OPEN if job_id in earlier else end(job_id)
        if state is DependencyState.GONE:
            raise UnknownJob(f"no job {job_id} to run after; `farro ls` lists what there is")
        if state is DependencyState.FAILED and job_id in named.after:
            raise Refused(
                f"{job_id} did not succeed, so a job that runs after its success would never start. "
                "Nothing was queued. Run it after the end, however it was, with --after-any, or leave it out"
            )
        if state is DependencyState.OPEN:
            found.append(job_id)
    return found
