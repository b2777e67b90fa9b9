"""Decisions of operators, the manager and persons: requeue, kill, complete, answer, reroute, finalize.

Each moves the job into the agent's own folder first, then reads, then edits (R1). One owner at a time (RELIABILITY 29):
the path is the state, so a successful move proves the state that it moved from.
[test_watchdog_manager_and_operator_edit_a_stale_job_one_at_a_time]

The order of an answer with a text, and what a crash at each point leaves [tests/crash/test_manager.py]:
1. The move into our folder. Crash: the old decision stands, and recovery puts the job back among the waiting.
2. attempts/NNNN with the text. Crash: a counted attempt without a decision; recovery returns the job to the manager,
   which finds no answer and asks again.
3. job.json with the decision. Crash from here on: rolled forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from farro.errors import (
    ClaimLost,
    Damaged,
    FarroError,
    IllegalTransition,
    SyncFailed,
    TryAgain,
    UnknownJob,
    UnknownSchema,
)
from farro.host import fs
from farro.jobs import ids, moves, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Report
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import replace
from farro.store.files import commit, views
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import MoveResult, quarantine, try_move
from farro.store.operator_verbs import (
    move_for_answer,
    move_for_completion,
    move_for_kill,
    move_for_requeue,
    move_for_reroute,
    move_for_start,
)
from farro.store.port import PersonAnswer, marker

_TRIES = 20  # a job on the move is searched for again; it cannot evade for ever
_PAUSE_S = 0.05
_TICK_S = 1.0  # longer than one tick of any filesystem's clock


def change(context: FilesContext, owner: LocalAgent, job_id: str, move: Move) -> Lifecycle:
    """Take the job wherever it is and decide `move` (its role is filled in here). If the job is already decided, carry
    that decision out first and check the verb against the result."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        found = views.locate(context, job_id)
        if found is None:
            raise UnknownJob(f"no job {job_id} in {context.root}; `farro ls` lists what there is")
        try:
            seen = views.view(context, found).lifecycle
        except FileNotFoundError:
            continue  # it moved on in between
        seen.check_transition(move.status, move.reason)
        if found.busy:
            context.clock.sleep(_PAUSE_S)  # another agent holds it for an instant, or recovery will free it
            continue
        path = f"{owner.folder}/{job_id}"
        before = take(context, path, job_id, found)
        if before is None:
            continue
        highest = folders.highest_attempt(path)
        if found.status is Status.IN_PROGRESS and moves.is_decided(before, highest):
            commit.carry_out(context, owner, path, before)
            continue
        if found.status is Status.IN_PROGRESS:
            # Its worker may be stopped, or die before its next turn. Then nothing else would end these processes:
            # recovery only looks for those of jobs that it finds in a dead agent's folder (RELIABILITY 23).
            context.reap([marker(job_id, highest, context.scope)], {})
        return commit.decide(context, owner, path, before, replace(move, role=before.role))
    raise TryAgain(f"{job_id} is held by another operator, manager or watchdog; try again in a moment")


def take(context: FilesContext, path: str, job_id: str, found: views.LocatedJob) -> Lifecycle | None:
    """Move the job into our own folder, then read it. None: another agent was faster.

    A job that another version of farro wrote is put back; one that cannot be read at all is quarantined. Neither stays
    in our folder, where no recovery looks for it while we live (RELIABILITY 24, 31).
    """
    if try_move(found.path, path) is not MoveResult.DONE:
        return None
    try:
        return _read_taken(context, path, job_id, found)
    except UnknownSchema:
        with contextlib.suppress(OSError):
            try_move(path, found.path)
        raise
    except (Damaged, FileNotFoundError) as error:
        if not fs.exists(path):  # not damage: a watchdog declared us hung and took the job
            raise ClaimLost(f"{job_id}: taken from this agent, which was declared dead; nothing was changed") from error
        quarantine(context, path, job_id, str(error))
        raise Damaged(f"{job_id} cannot be read ({error}); it is now in {places.QUARANTINE}") from error


def _read_taken(context: FilesContext, path: str, job_id: str, found: views.LocatedJob) -> Lifecycle:
    """Return the lifecycle of a job that we have just moved from `found`. Its status is that of the path."""
    before = folders.owned_lifecycle(context, path, job_id, found.role or "", found.status)
    if found.status is Status.IN_PROGRESS and before.status is Status.STALE:
        return before  # marked stale in place
    if before.status is not found.status:
        before = replace(before, status=found.status)
    return before


def requeue(
    context: FilesContext, owner: LocalAgent, job_id: str, note: str | None, delay_s: float | None
) -> Lifecycle:
    return change(context, owner, job_id, move_for_requeue(note, delay_s))


def kill(context: FilesContext, owner: LocalAgent, job_id: str, note: str | None, reason: Reason) -> Lifecycle:
    try:
        return change(context, owner, job_id, move_for_kill(note, reason))
    except IllegalTransition:
        seen = views.find(context, job_id)
        if seen is None or not seen.lifecycle.terminal:
            raise
        return seen.lifecycle  # it had ended before the kill


def force_complete(context: FilesContext, owner: LocalAgent, job_id: str, note: str | None) -> Lifecycle:
    return change(context, owner, job_id, move_for_completion(note))


def resolve_stale(context: FilesContext, owner: LocalAgent, job_id: str) -> Lifecycle | None:
    """Requeue a stale job while attempts remain, else kill it with the reason (RELIABILITY 13, 20)."""
    found = views.LocatedJob.stale(context, job_id)
    path = f"{owner.folder}/{job_id}"
    if job_id in context.foreign:
        return None
    try:
        before = take(context, path, job_id, found)
    except UnknownSchema as error:
        context.log_foreign(job_id, str(error))
        return None
    if before is None:
        return None
    highest = folders.highest_attempt(path)
    move = moves.resolve_stale(before, context.policy.retry, context.uniform, highest=highest)
    return commit.decide(context, owner, path, before, move)


def answer(context: FilesContext, owner: LocalAgent, job_id: str, answered: PersonAnswer) -> Lifecycle:
    """Record a person's answer and return the job to the manager, which reads the answer in hops[]."""
    return _move_checked(context, owner, job_id, lambda seen: move_for_answer(seen, answered), answered.text)


def reroute(
    context: FilesContext, owner: LocalAgent, job_id: str, role: str, note: str | None, route: Mapping[str, Any] | None
) -> Lifecycle:
    """Put the job into that role's queue, whatever its workflow says. Not possible while a worker runs it."""
    return _move_checked(context, owner, job_id, lambda seen: move_for_reroute(seen, role, note, route))


def start_now(context: FilesContext, owner: LocalAgent, job_id: str, note: str | None) -> Lifecycle:
    """Let a job start at once that waits for a paused account."""
    return _move_checked(context, owner, job_id, lambda seen: move_for_start(seen, note))


def finalize(
    context: FilesContext, owner: LocalAgent, job_id: str, note: str | None, route: Mapping[str, Any] | None
) -> Lifecycle | None:
    """Make a failure final. None: another agent has the job, or it is no longer an open failure."""
    found = views.locate(context, job_id)
    if found is None or found.busy or found.status is not Status.FAILED or job_id in context.foreign:
        return None
    path = f"{owner.folder}/{job_id}"
    before = take(context, path, job_id, found)
    if before is None:
        return None
    if before.terminal:
        _put_back(path, found.path)
        return None
    move = Move(reason=Reason.FINALIZED, status=Status.FAILED, role=before.role, note=note, route=route)
    return commit.decide(context, owner, path, before, move)


class OpenFailures:
    """Find failures that are not final. Reads each finished job once, and lists a folder again only after it has
    changed."""

    def __init__(self) -> None:
        self._final: dict[str, set[str]] = {}  # role → jobs that need no second check
        self._quiet: dict[str, int] = {}  # role → modification time of a folder without open failures

    def find(self, context: FilesContext) -> list[str]:
        found: list[str] = []
        for role in context.roles():
            place = context.path(places.completed(role, Status.FAILED))
            try:
                changed_ns = fs.lstat(place).st_mtime_ns
            except FileNotFoundError:
                continue
            if self._quiet.get(role) == changed_ns:
                continue
            open_here = self._open_in(role, place)
            found += open_here
            # A folder that has just changed may change again within the same tick of the filesystem's clock.
            settled = context.clock.now().timestamp() - changed_ns / 1e9 > _TICK_S
            self._quiet[role] = changed_ns if settled and not open_here else -1
        return found

    def _open_in(self, role: str, place: str) -> list[str]:
        names = [name for name in sorted(fs.subdirectories(place)) if ids.is_job_id(name)]
        final = self._final.get(role, set()) & set(names)
        left = []
        for job_id in names:
            if job_id in final:
                continue
            try:
                life = folders.read_lifecycle(f"{place}/{job_id}")
            except (FarroError, OSError):
                continue
            if life.terminal or (life.routing or {}).get("mode") != "manager":
                final.add(job_id)
            else:
                left.append(job_id)
        self._final[role] = final
        return left


def _move_checked(
    context: FilesContext,
    owner: LocalAgent,
    job_id: str,
    choose: Callable[[Lifecycle], Move],
    text: str | None = None,
) -> Lifecycle:
    """Take the job if `choose` accepts it, ask again about what was read after the move, and decide. After an error the
    job is put back. With `text`, a new attempt has it as its result."""
    before, path, source = _take_checked(context, owner, job_id, choose)
    try:
        move = choose(before)
        if text is not None:
            with folders.translated_errors(path, job_id):
                _keep_text(context, owner, path, text, by=owner.agent.id)
        return commit.decide(context, owner, path, before, move)
    except SyncFailed:
        raise
    except (FarroError, OSError):
        _put_back(path, source)
        raise


def _take_checked(
    context: FilesContext, owner: LocalAgent, job_id: str, check: Callable[[Lifecycle], Move]
) -> tuple[Lifecycle, str, str]:
    """Take the job if `check` does not raise. Returns its lifecycle as read after the move, its path, and its old
    path."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        found = views.locate(context, job_id)
        if found is None:
            raise UnknownJob(f"no job {job_id} in {context.root}; `farro ls` lists what there is")
        if found.busy:
            context.clock.sleep(_PAUSE_S)
            continue
        try:
            check(views.view(context, found).lifecycle)
        except FileNotFoundError:
            continue  # it moved on in between
        path = f"{owner.folder}/{job_id}"
        before = take(context, path, job_id, found)
        if before is not None:
            return before, path, found.path
    raise TryAgain(f"{job_id} is held by another operator, manager or watchdog; try again in a moment")


def _put_back(path: str, source: str) -> None:
    """Return the job, so that it does not stay in our folder, where no recovery looks for it while we live."""
    with contextlib.suppress(OSError):
        try_move(path, source)


def _keep_text(context: FilesContext, owner: LocalAgent, path: str, text: str, *, by: str) -> None:
    """Write the person's text as the result of a new attempt; the earlier result stays in its own attempt."""
    attempt = folders.begin_attempt(path)
    home = folders.attempt_folder(path, attempt)
    report = Report(result={"success": True, "edited_by": by}, markdown=text)
    result = folders.ResultFiles.of(report, good=True)
    folders.write_result(context, home, result, again=False)
    if context.policy.durable:
        context.sync([*result.durable(path, home), owner.folder])
