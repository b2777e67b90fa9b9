"""The whole life of a job in one view: what job.json, its attempts and the audit log say, in the order it happened.

How it is printed lives in cli; what moves a job lives in the kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from farro.errors import UnknownJob
from farro.execution import progress as steps
from farro.execution.progress import read_result
from farro.host import fs
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.log.audit_reader import Trail
from farro.queue import fleet, tree
from farro.queue.event_order import fact_of, in_order
from farro.queue.times import moment_or_none, seconds_between
from farro.store.port import JobView, Store

_BY_ITS_WORKER = frozenset({Reason.COMMITTED, Reason.ROUTED, Reason.RETRIED, Reason.RELEASED, Reason.ROUTING_EXHAUSTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTold:
    id: str
    exit_code: int | None
    duration_s: float | None
    tries: int
    error: str | None
    earlier: bool = False  # it was not run again: an earlier attempt, or the job that this one repeats, did it


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTold:
    number: int
    agent: str | None
    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    outcome: str | None  # the reason code of the decision; None: it is running, or nobody decided
    steps: tuple[StepTold, ...]
    steps_total: int | None
    output: bool  # steps were begun in it, or its runner spoke: there is something for `farro logs --attempt`


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    view: JobView
    attempts: tuple[AttemptTold, ...]
    audit: Trail


def history(store: Store, root: str, job_id: str) -> History:
    for _ in range(4):
        view = store.find(job_id)
        if view is None:
            break
        folder = store.folder(view)
        with contextlib.suppress(FileNotFoundError):  # it moved on while we looked
            created = moment_or_none(view.lifecycle.created_at)
            since_s = 0.0 if created is None else created.timestamp() - 60
            said = _in_order(fleet.trail(store, job_id, since_s=since_s))
            numbers = attempt_numbers(folder)
            timed = tree.in_folders(store)  # a copy's folders are as old as the copy
            told = tuple(_attempt(view.lifecycle, folder, number, numbers[-1], said, timed) for number in numbers)
            return History(view=view, attempts=told, audit=said)
    raise UnknownJob(f"no job {job_id} in {root}; `farro ls` lists what there is")


def _in_order(said: Trail) -> Trail:
    """Whoever told of it: the lines of two writers lie as they were written, and their times may cross."""
    lines = sorted(said.lines, key=lambda line: str(line.get("ts")))
    return Trail(lines=tuple(in_order(lines, fact_of)), whole=said.whole)


def attempt_numbers(folder: str) -> list[int]:
    """The attempts of a job, the first first. FileNotFoundError: the job is not there."""
    if not fs.exists(f"{folder}/attempts"):
        if not fs.exists(folder):
            raise FileNotFoundError(folder)
        return []
    return sorted(int(name) for name in fs.listdir(f"{folder}/attempts") if name.isdecimal())


def _attempt(life: Lifecycle, folder: str, number: int, latest: int, said: Trail, timed: bool) -> AttemptTold:
    result = read_result(folder, number)
    end = next((hop for hop in life.hops if hop.attempt == number and hop.reason is not Reason.REQUEUED), None)
    running = number == latest and life.status is Status.IN_PROGRESS and end is None
    claim = _claim(said, number)
    duration_s = _number(result.get("duration_s"))
    started = claim.get("ts") or _started(life, folder if timed else None, number, running, end, duration_s)
    return AttemptTold(
        number=number,
        agent=_agent(life, end, running, claim),
        started_at=started if isinstance(started, str) else None,
        ended_at=end.at if end is not None else None,
        duration_s=seconds_between(started, end.at if end is not None else None) if duration_s is None else duration_s,
        outcome=None if end is None else _outcome(life, end),
        steps=tuple(_step(item) for item in _own_steps(result) if isinstance(item, dict))
        if result
        else tuple(_so_far(folder, number, running=running)),
        steps_total=total if isinstance(total := result.get("steps_total"), int) else None,
        output=steps.has_output(folder, number),
    )


def _outcome(life: Lifecycle, end: Hop) -> str:
    """What the attempt came to: `committed` alone does not say whether it was good."""
    if end.reason is Reason.COMMITTED:
        return end.to.rsplit("/", 1)[-1]
    return str(end.reason)


def _claim(said: Trail, number: int) -> Mapping[str, Any]:
    """The audit log's own line of the claim, where there is one."""
    return next((line for line in said.lines if line.get("attempt") == number and _tells_a_claim(line)), {})


def _tells_a_claim(line: Mapping[str, Any]) -> bool:
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
    """No file says when a later attempt began: its first step's folder does, to the moment that it was made."""
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


def _own_steps(result: Mapping[str, Any]) -> Iterable[Any]:
    """A decision of the manager carries on what the last role did; that is told there."""
    return () if "decision" in result else result.get("step_results") or ()


def _so_far(folder: str, number: int, *, running: bool) -> Iterator[StepTold]:
    """The steps of an attempt that has no result: it runs, or its worker died. What its folder says of them."""
    ended = {line["id"]: line for line in steps.lines(folder, number) if isinstance(line.get("id"), str)}
    yield from map(_step, ended.values())
    for name in steps.begun(folder, number):
        if name not in ended:
            what = "runs" if running else "began; nothing tells how it ended"
            yield StepTold(id=name, exit_code=None, duration_s=None, tries=1, error=what)


def _step(item: Mapping[str, Any]) -> StepTold:
    code, tries, error = item.get("exit_code"), item.get("attempts"), item.get("error")
    return StepTold(
        id=str(item.get("id") or item.get("step_number")),
        exit_code=code if isinstance(code, int) else None,
        duration_s=_number(item.get("duration_s")),
        tries=tries if isinstance(tries, int) else 1,
        error=error if isinstance(error, str) else None,
        earlier=item.get("resumed") is True,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
