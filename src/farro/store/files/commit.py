"""Committing (`commit_job`): results, then the decision, then one move. And carrying out a decision after a crash.

What an outcome asks for is decided in kernel.moves; finding dead agents lives in recover.

The order, and what a crash at each point leaves [test_kill_at_every_call_of_commit, RELIABILITY 5-7]:
1. result files of the attempt. Crash: not decided, the attempt is repeated in a new folder.
2. job.json with the decision. Crash from here on: rolled forward, not repeated.
3. mirrors, the lock goes: what is found at the destination says what was decided.
4. the move (ENOENT = fenced: ClaimLost, nothing written elsewhere), then the answer.
With children the move goes to jobs/outbox first (dispatch).

With durability `power` all of it is in the journal before 1 and nothing is synced: after a power cut the record makes
it true again (journal, replay). Without a journal (a commit with children, a large output, a process that has only just
begun) each step is on the disk before the next: the results with their folders and the agent's own folder (the job is
durably ours before anything is decided about it: without that btrfs may keep the decision and lose the claim's move, a
finished job in a queue, which no worker takes), job.json before it replaces, the job's folder before the move, the
destination before the answer. [test_power_cut_keeps_what_was_acknowledged,
test_a_neighbours_syncs_show_no_half_transaction]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ParamSpec, TypeVar

from farro.errors import ClaimLost, FarroError, SyncFailed
from farro.host import fs
from farro.jobs import places, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Child, Failed, Outcome, Released, Report, Succeeded, Unroutable
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.lazy_dataclass import dataclass
from farro.store.files import dispatch, draft
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held
from farro.store.files.journal import LARGEST
from farro.store.files.journal_records import Record
from farro.store.files.move import deliver
from farro.store.port import Claim

P = ParamSpec("P")
T = TypeVar("T")

# Decisions that an attempt's own report stands for. A report that its agent did not live to decide is not mirrored.
REPORTED = frozenset({Reason.COMMITTED, Reason.ROUTED, Reason.RETRIED, Reason.ROUTING_EXHAUSTED, Reason.ANSWERED})

_TRIED = object()  # a claim's runtime from its first commit on
_DECIDING = object()  # … and from its decision on


def commit(ground: Ground, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
    """Decide and carry out. ClaimLost: somebody else has the job, or has carried out this very decision.

    A claim is committed once, also by the agent that has the same job again: the path alone would let an old claim
    decide the new attempt. [test_a_claim_is_committed_once]
    """
    (told,) = _commit_all(ground, [(claim, outcome)], move)
    if isinstance(told, FarroError):
        raise told
    return told


def commit_batch(ground: Ground, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | FarroError]:
    """As `commit` for each, whosever claims they are, with one write of the journal for all: what came of each, or what
    it raised. Only a failed sync ends it (R7)."""
    return _commit_all(ground, ended, None)


def _commit_all(
    ground: Ground, ended: Sequence[tuple[Claim, Outcome]], move: Move | None
) -> list[Lifecycle | FarroError]:
    """Each goes through the steps in their order, and all of them through each step together: see look."""
    now = ground.clock.now()
    going = [_told(_prepared, ground, claim, outcome, move, now) for claim, outcome in ended]
    ready = [one for one in going if isinstance(one, Commit)]
    records = [record for one in ready if (record := _record(ground, one)) is not None]
    # All or none: jobs in a row are small, and have one each.
    entry = ground.journalled(records) if records and len(records) == len(ready) else None
    try:
        for step in (_write, _decide, _hand_on):
            going = [_told(step, ground, one, entry is None) if isinstance(one, Commit) else one for one in going]
    finally:
        if entry is not None:
            entry.finished()
    done = [one for one in going if isinstance(one, Commit)]
    ground.tell_all([one.lifecycle for one in done if not one.exhausted])  # those were told when they were marked
    for one in done:
        one.held.forget(one.claim.job_id)
    return [one.lifecycle if isinstance(one, Commit) else one for one in going]


def _told(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | FarroError:
    try:
        return call(*args, **kwargs)
    except SyncFailed:
        raise
    except FarroError as error:
        return error


@dataclass(kw_only=True, slots=True)
class Commit:
    """What will be written, and nothing of it is."""

    held: Held
    claim: Claim
    path: str
    lifecycle: Lifecycle
    text: bytes
    result: folders.Result | None
    children: tuple[Child, ...]
    sealed: bool  # it has them, or there is a list of them
    again: bool  # an earlier try may have left something
    exhausted: bool  # it is marked where it lies


def _prepared(ground: Ground, claim: Claim, outcome: Outcome, move: Move | None, now: datetime) -> Commit | Lifecycle:
    """The commit; or the lifecycle, where an earlier try had decided it: then it is carried out."""
    held = ground.mine(claim.agent)
    if held.claims.get(claim.job_id) != claim.attempt:
        raise ClaimLost(f"{claim.job_id}: attempt {claim.attempt} is no longer a claim of {held.agent.id}")
    path = f"{held.folder}/{claim.job_id}"
    if claim.envelope.runtime is _DECIDING and (decided := _decided_before(path, claim)) is not None:
        # The last try failed after it had decided. To decide anew would write over the result that was decided: a crash
        # would then roll forward a decision whose result is another's. [test_a_commit_that_failed_may_be_tried_again]
        carry_out(ground, held, path, decided)
        held.forget(claim.job_id)
        return decided
    before = claim.envelope.lifecycle
    move = move or transitions.after(before, outcome, ground.policy.retry, ground.uniform, attempt=claim.attempt)
    report = _report(outcome)
    result = None if report is None else folders.Result.of(report, good=isinstance(outcome, Succeeded))
    again = claim.envelope.runtime is not None
    claim.envelope.runtime = claim.envelope.runtime or _TRIED
    lifecycle = transitions.decided(
        before,
        move,
        by=held.agent.id,
        attempt=claim.attempt,
        now=now,
        result_sha256=None if result is None else result.sha256,
    )
    children = outcome.children if isinstance(outcome, Succeeded) else ()
    with folders.fenced(path, claim.job_id):
        # A list of this number: of a try before, or of an attempt whose own folder was lost with the power.
        sealed = bool(children) or dispatch.is_sealed(path, claim.attempt)
    return Commit(
        held=held,
        claim=claim,
        path=path,
        lifecycle=lifecycle,
        text=lifecycle.to_json(),
        result=result,
        children=children,
        sealed=sealed,
        again=again,
        exhausted=move.reason is Reason.ROUTING_EXHAUSTED,
    )


# The steps. Not `careful`: it is in the journal.


def _write(ground: Ground, going: Commit, careful: bool) -> Commit:
    """The results."""
    claim, path, result = going.claim, going.path, going.result
    try:
        if result is not None:
            folders.write_result(ground, claim.folder, result, again=going.again)
        if going.sealed or (careful and ground.policy.durable):
            durable = [] if result is None else result.durable(path, claim.folder)
            if going.children:
                durable += dispatch.seal(ground, path, claim.attempt, going.children)
            elif going.sealed:
                durable += dispatch.unseal(path, claim.attempt)
            ground.sync([*durable, going.held.folder])
    except OSError as error:
        raise folders.meaning(error, path, claim.job_id) from error
    return going


def _decide(ground: Ground, going: Commit, careful: bool) -> Commit:
    """job.json with the decision."""
    claim, path = going.claim, going.path
    try:
        claim.envelope.runtime = _DECIDING
        folders.write_lifecycle(ground, path, going.text, sync=careful)
        if going.lifecycle.status is Status.QUEUED:
            draft.keep_order(ground, path, claim.envelope.prompt)
    except OSError as error:
        raise folders.meaning(error, path, claim.job_id) from error
    return going


def _hand_on(ground: Ground, going: Commit, careful: bool) -> Commit:
    """What the decision says."""
    claim, path, lifecycle = going.claim, going.path, going.lifecycle
    if going.exhausted:
        with folders.fenced(path, claim.job_id):
            folders.refresh_mirrors(path, claim.attempt)
            ground.sync([path])  # the name of the new job.json: without it a power cut takes back what we now tell
        ground.tell(lifecycle)
    else:
        fresh = claim.attempt == 1 and not going.again and not going.sealed
        report_name = going.result.name if fresh and going.result is not None else None
        _carry_out(ground, going.held, path, lifecycle, careful=careful, fresh=report_name)
    return going


def _record(ground: Ground, going: Commit) -> Record | None:
    """The record of this commit, if it is to have one. One that is fenced after this look leaves a record all the same:
    whoever took the job says more of it, durably, before anyone is told."""
    plain = not (going.sealed or going.again or going.exhausted)
    if ground.journal is None or not plain or not fs.exists(going.path):
        return None
    claim = going.claim
    with folders.fenced(going.path, claim.job_id):
        files = {} if going.result is None else going.result.small(claim.folder, LARGEST)
    if files is None:
        return None
    return Record(
        kind="commit",
        job_id=claim.job_id,
        role=claim.envelope.lifecycle.role,
        life=going.text,
        files=files,
        attempt=claim.attempt,
    )


def _decided_before(path: str, claim: Claim) -> Lifecycle | None:
    """What an earlier try of this commit decided, None when it did not get so far."""
    with folders.fenced(path, claim.job_id):
        found = folders.read_lifecycle(path)
    return found if transitions.is_decided(found, claim.attempt) else None


def _report(outcome: Outcome) -> Report | None:
    match outcome:
        case Succeeded(report=report) | Failed(report=report) | Unroutable(report=report):
            return report
        case Released():
            return None


def decide(ground: Ground, held: Held, path: str, before: Lifecycle, move: Move) -> Lifecycle:
    """An operator's, manager's or watchdog's decision about a job in its own folder."""
    with folders.fenced(path, before.job_id):
        highest = folders.highest_attempt(path)
        ground.sync([held.folder])  # the job's move to us, before the decision: see the head of this module
        lifecycle = transitions.decided(before, move, by=held.agent.id, attempt=highest, now=ground.clock.now())
        folders.write_lifecycle(ground, path, lifecycle.to_json(), sync=True)
        if lifecycle.status is Status.QUEUED:
            draft.keep_order(ground, path, folders.prompt_if_any(ground, path))
    carry_out(ground, held, path, lifecycle)
    return lifecycle


def carry_out(ground: Ground, held: Held, path: str, lifecycle: Lifecycle) -> None:
    """Do what a decided job.json says: the same after a crash as in the first place, and safe to repeat."""
    assert lifecycle.decision is not None
    _carry_out(ground, held, path, lifecycle, careful=True, fresh=None)
    if lifecycle.decision.reason is not Reason.ROUTING_EXHAUSTED:  # that was told when it was marked
        ground.tell(lifecycle)


def _carry_out(
    ground: Ground, held: Held, path: str, lifecycle: Lifecycle, *, careful: bool, fresh: str | None
) -> None:
    """Not `careful`: a journal stands for what is not synced. `fresh`: the report that the first commit of a first
    attempt has just written, so there is nothing from earlier ones to look for."""
    decision = lifecycle.decision
    assert decision is not None
    to = places.parse(decision.to).path
    try:
        if fresh is not None:
            folders.first_mirror(path, decision.attempt, fresh)
        elif decision.reason in REPORTED:
            folders.refresh_mirrors(path, decision.attempt)
        folders.drop_lock(path)
        if careful:
            ground.sync([path])
        children = fresh is None and dispatch.has_children(path, decision)
        if not deliver(ground, path, places.OUTBOX if children else to, lifecycle.job_id, sync=careful):
            raise ClaimLost(f"{lifecycle.job_id}: taken from {held.agent.id} (recovered or killed)")
    except OSError as error:
        raise folders.meaning(error, path, lifecycle.job_id) from error
    if children:
        dispatch.dispatch(ground, held, lifecycle.job_id)
