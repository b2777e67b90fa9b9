"""Operators' and the manager's verbs: move the job into one's own folder first, then read, then edit (R1).

Which verb a person may use lives in operations; recovery of what a dead holder left lives in recover.

One owner at a time (RELIABILITY 29): the path is the state, so a move that succeeds proves the state it moved from.
[test_watchdog_manager_and_operator_edit_one_stale_job]
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from farro.errors import ClaimLost, Damaged, IllegalTransition, TryAgain, UnknownJob, UnknownSchema
from farro.host import fs
from farro.jobs import ids, places, states, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.store.files import commit, views
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held
from farro.store.files.move import Moved, quarantine, try_move
from farro.store.port import marker

_TRIES = 20  # a job on the move is looked for again; it cannot run away for ever


def change(ground: Ground, held: Held, job_id: str, status: Status, reason: Reason, move: Move) -> Lifecycle:
    """Take the job wherever it is and decide `move` (its role is filled in). A decided job answers what it already is:
    its decision is carried out, and the verb is judged against what it then is."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        found = views.locate(ground, job_id)
        if found is None:
            raise UnknownJob(f"no job {job_id} in {ground.root}; `farro ls` lists what there is")
        try:
            seen = views.view(ground, found).lifecycle
        except FileNotFoundError:
            continue  # it moved on between the two looks
        states.check(job_id, seen.status, status, reason, finalized=seen.finalized_at is not None)
        if found.busy:
            ground.clock.sleep(0.05)  # another holder has it for an instant; or recovery will free it
            continue
        path = f"{held.folder}/{job_id}"
        before = taken(ground, path, job_id, found)
        if before is None:
            continue
        highest = folders.highest_attempt(path)
        if found.status is Status.IN_PROGRESS and transitions.is_decided(before, highest):
            commit.carry_out(ground, held, path, before)
            continue
        if found.status is Status.IN_PROGRESS:
            # Its worker may be stopped, or die before its next turn; then nobody else would look for these processes:
            # recovery looks for those of the jobs that it finds in the dead agent's folder (RELIABILITY 23).
            ground.reap([marker(job_id, highest, ground.scope)], {})
        return commit.decide(ground, held, path, before, replace(move, role=before.role))
    raise TryAgain(f"{job_id} is held by another operator, manager or watchdog; try again in a moment")


def taken(ground: Ground, path: str, job_id: str, found: views.Found) -> Lifecycle | None:
    """Move the job into our own folder, then read it. None: somebody else was faster.

    What another version of farro wrote is put back where it was; what cannot be read at all is quarantined: neither
    stays in our hands, where nobody would look for it while we live (RELIABILITY 24, 31).
    """
    if try_move(found.path, path) is not Moved.DONE:
        return None
    try:
        return owned(ground, path, job_id, found)
    except UnknownSchema:
        with contextlib.suppress(OSError):
            try_move(path, found.path)
        raise
    except (Damaged, FileNotFoundError) as error:
        if not fs.exists(path):  # not damage: a watchdog took us for hung, and the job from us
            raise ClaimLost(f"{job_id}: taken from this agent, which was declared dead; nothing was changed") from error
        quarantine(ground, path, job_id, str(error))
        raise Damaged(f"{job_id} cannot be read ({error}); it is now in {places.QUARANTINE}") from error


def owned(ground: Ground, path: str, job_id: str, found: views.Found) -> Lifecycle:
    """The lifecycle of a job that we have just moved from `found`; the path says its status."""
    before = folders.owned_lifecycle(ground, path, job_id, found.role or "", found.status)
    if found.status is Status.IN_PROGRESS and before.status is Status.STALE:
        return before  # marked stale where it lay
    if before.status is not found.status:
        before = replace(before, status=found.status)
    return before


def requeue(ground: Ground, held: Held, job_id: str, note: str | None, delay_s: float | None) -> Lifecycle:
    move = Move(reason=Reason.REQUEUED, status=Status.QUEUED, role="", delay_s=delay_s, note=note)
    return change(ground, held, job_id, Status.QUEUED, Reason.REQUEUED, move)


def kill(ground: Ground, held: Held, job_id: str, note: str | None, reason: Reason) -> Lifecycle:
    error = ErrorInfo(category="killed", message=note or "killed by an operator")
    try:
        move = Move(reason=reason, status=Status.KILLED, role="", error=error, note=note)
        return change(ground, held, job_id, Status.KILLED, reason, move)
    except IllegalTransition:
        seen = views.find(ground, job_id)
        if seen is None or not seen.lifecycle.terminal:
            raise
        return seen.lifecycle  # decided before the kill came: it answers what it already is


def force_complete(ground: Ground, held: Held, job_id: str, note: str | None) -> Lifecycle:
    move = Move(reason=Reason.FORCE_COMPLETED, status=Status.SUCCEEDED, role="", note=note)
    return change(ground, held, job_id, Status.SUCCEEDED, Reason.FORCE_COMPLETED, move)


def resolve_stale(ground: Ground, held: Held, job_id: str) -> Lifecycle | None:
    """The manager's part: requeue while attempts remain, else give up with the reason (RELIABILITY 13, 20)."""
    found = views.Found.stale(ground, job_id)
    path = f"{held.folder}/{job_id}"
    if job_id in ground.foreign:
        return None
    try:
        before = taken(ground, path, job_id, found)
    except UnknownSchema as error:
        ground.tell_foreign(job_id, str(error))
        return None
    if before is None:
        return None
    highest = folders.highest_attempt(path)
    move = transitions.resolve_stale(before, ground.policy.retry, ground.uniform, highest=highest)
    return commit.decide(ground, held, path, before, move)
