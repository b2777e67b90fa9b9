"""Commit a job: write results, then the decision, then make one move. Also carry out a decision after a crash.

The order, and what a crash at each point leaves [test_kill_at_every_call_of_commit, RELIABILITY 5-7]:
1. The result files of the attempt. Crash: nothing is decided, the attempt is repeated in a new folder.
2. job.json with the decision. Crash from here on: rolled forward, not repeated.
3. Update the mirrors and remove the lock, so that the files at the destination agree with the decision.
4. The move (ENOENT = fenced: ClaimLost, nothing is written elsewhere), then the acknowledgement.
With children the move goes to jobs/outbox first (dispatch).

With durability `power` everything is in the journal before step 1 and nothing is synced: after a power cut the record
restores it (journal_replay). Without a journal (a commit with children, a large output, a process that has just
started) each step is on the disk before the next: the results with their folders and the agent's own folder, job.json
before it replaces the old one, the job's folder before the move, the destination before the acknowledgement. The
agent's folder is synced so that the claim is durable before the decision: otherwise btrfs may keep the decision and
lose the claim's move, which leaves a finished job in a queue that no worker takes.
[test_power_cut_keeps_what_was_acknowledged, test_syncs_of_another_process_expose_no_half_transaction]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ParamSpec, TypeVar

from farro.errors import ClaimLost, FarroError, SyncFailed
from farro.host import fs
from farro.jobs import moves, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Child, Failed, Outcome, Released, Report, Succeeded, Unroutable
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass
from farro.store.files import dispatch, draft
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.errors import storage_trouble
from farro.store.files.journal import LARGEST
from farro.store.files.journal_file import Record
from farro.store.files.move import deliver
from farro.store.port import AttemptResult, Claim

P = ParamSpec("P")
T = TypeVar("T")

# Decisions that show the attempt's own report. The report of an agent that died before its decision is not mirrored.
REPORTED = frozenset({Reason.COMMITTED, Reason.ROUTED, Reason.RETRIED, Reason.ROUTING_EXHAUSTED, Reason.ANSWERED})

_TRIED = object()  # the claim's `runtime` after its first try to commit
_DECIDING = object()  # … and after that try has begun to write the decision


def commit(context: FilesContext, results: Sequence[AttemptResult]) -> list[Lifecycle | FarroError]:
    """Decide and carry out, with one journal write for the claims of any local agents. Returns for each job its
    lifecycle or its error. ClaimLost: another agent has the job, or has carried out this very decision. Only a failed
    sync aborts the batch (R7).

    A claim is committed once, even if the agent has claimed the same job again: the path alone would let an old claim
    decide the new attempt. [test_a_claim_is_committed_once]

    All jobs take each step together, because one journal write stands for all; each job takes the steps in order.
    """
    now = context.clock.now()
    commits = [_or_error(_prepare, context, result, now) for result in results]
    ready = [one for one in commits if isinstance(one, Commit)]
    records = [record for one in ready if (record := _record(context, one)) is not None]
    # All or none: the jobs of a batch are small, so each has a record.
    entry = context.write_journal(records) if records and len(records) == len(ready) else None
    try:
        for step in (_write_results, _write_decision, _apply_decision):
            commits = [
                _or_error(step, context, one, entry is None) if isinstance(one, Commit) else one for one in commits
            ]
    finally:
        if entry is not None:
            entry.finished()
    done = [one for one in commits if isinstance(one, Commit)]
    context.audit_transitions(
        [one.lifecycle for one in done if not one.exhausted]
    )  # exhausted ones are audited already
    for one in done:
        one.owner.forget(one.claim.job_id)
    return [one.lifecycle if isinstance(one, Commit) else one for one in commits]


def _or_error(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | FarroError:
    """Return the result of the call, or the error that it raised. A failed sync is raised."""
    try:
        return call(*args, **kwargs)
    except SyncFailed:
        raise
    except FarroError as error:
        return error
    except OSError as error:
        return storage_trouble(error)


@dataclass(kw_only=True, slots=True)
class Commit:
    """The data that a commit will write."""

    owner: LocalAgent
    claim: Claim
    path: str
    lifecycle: Lifecycle
    text: bytes
    result: folders.ResultFiles | None
    children: tuple[Child, ...]
    sealed: bool  # it has children, or there is a list of children
    again: bool  # an earlier try may have left files
    exhausted: bool  # routing exhausted: marked stale in place, without a move


def _prepare(context: FilesContext, ended: AttemptResult, now: datetime) -> Commit | Lifecycle:
    """Build the commit. If an earlier try has already decided, carry that out and return its lifecycle."""
    claim, outcome, move = ended
    if move is not None:
        context.check_role(move.role)
    owner = context.local_agent(claim.agent)
    if owner.claims.get(claim.job_id) != claim.attempt:
        raise ClaimLost(f"{claim.job_id}: attempt {claim.attempt} is no longer a claim of {owner.agent.id}")
    path = f"{owner.folder}/{claim.job_id}"
    if claim.envelope.runtime is _DECIDING and (decided := _decided_before(path, claim)) is not None:
        # The last try failed after its decision. Deciding again would overwrite the decided result, and a crash would
        # then roll forward a decision with another's result. [test_a_failed_commit_can_be_tried_again]
        carry_out(context, owner, path, decided)
        owner.forget(claim.job_id)
        return decided
    before = claim.envelope.lifecycle
    move = move or moves.after(before, outcome, context.policy.retry, context.uniform, attempt=claim.attempt)
    report = _report(outcome)
    result = None if report is None else folders.ResultFiles.of(report, good=isinstance(outcome, Succeeded))
    again = claim.envelope.runtime is not None
    claim.envelope.runtime = claim.envelope.runtime or _TRIED
    lifecycle = moves.decided(
        before,
        move,
        by=owner.agent.id,
        attempt=claim.attempt,
        now=now,
        result_sha256=None if result is None else result.sha256,
    )
    children = outcome.children if isinstance(outcome, Succeeded) else ()
    with folders.translated_errors(path, claim.job_id):
        # A list with this attempt's number: of an earlier try, or of an attempt whose folder a power cut destroyed.
        sealed = bool(children) or dispatch.is_sealed(path, claim.attempt)
    return Commit(
        owner=owner,
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


# The steps. `sync` is False when a journal record makes the syncs unnecessary.


def _write_results(context: FilesContext, going: Commit, sync: bool) -> Commit:
    claim, path, result = going.claim, going.path, going.result
    try:
        if result is not None:
            folders.write_result(context, claim.folder, result, again=going.again)
        if going.sealed or (sync and context.policy.durable):
            durable = [] if result is None else result.durable(path, claim.folder)
            if going.children:
                durable += dispatch.seal(context, path, claim.attempt, going.children)
            elif going.sealed:
                durable += dispatch.unseal(path, claim.attempt)
            context.sync([*durable, going.owner.folder])
    except OSError as error:
        raise folders.translate_error(error, path, claim.job_id) from error
    return going


def _write_decision(context: FilesContext, going: Commit, sync: bool) -> Commit:
    claim, path = going.claim, going.path
    try:
        claim.envelope.runtime = _DECIDING
        folders.write_lifecycle(context, path, going.text, sync=sync)
        if going.lifecycle.status is Status.QUEUED:
            draft.keep_order(context, path, claim.envelope.prompt)
    except OSError as error:
        raise folders.translate_error(error, path, claim.job_id) from error
    return going


def _apply_decision(context: FilesContext, going: Commit, sync: bool) -> Commit:
    claim, path, lifecycle = going.claim, going.path, going.lifecycle
    if going.exhausted:
        with folders.translated_errors(path, claim.job_id):
            folders.refresh_mirrors(path, claim.attempt)
            context.sync([path])  # the name of the new job.json: else a power cut undoes what we acknowledge
        context.audit_transition(lifecycle)
    else:
        _carry_out(context, going.owner, path, lifecycle, sync=sync)
    return going


def _record(context: FilesContext, going: Commit) -> Record | None:
    """Return the journal record of this commit, or None if it must be synced instead. A commit that is fenced after
    this check still leaves its record: the agent that took the job durably writes more hops before it acknowledges
    anything."""
    plain = not (going.sealed or going.again or going.exhausted)
    if context.journal is None or not plain or not fs.exists(going.path):
        return None
    claim = going.claim
    with folders.translated_errors(going.path, claim.job_id):
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
    """Return what an earlier try of this commit decided; None when it did not get that far."""
    with folders.translated_errors(path, claim.job_id):
        found = folders.read_lifecycle(path)
    return found if moves.is_decided(found, claim.attempt) else None


def _report(outcome: Outcome) -> Report | None:
    match outcome:
        case Succeeded(report=report) | Failed(report=report) | Unroutable(report=report):
            return report
        case Released():
            return None


def decide(context: FilesContext, owner: LocalAgent, path: str, before: Lifecycle, move: Move) -> Lifecycle:
    """Decide about a job in the folder of an operator, manager or watchdog, and carry the decision out."""
    with folders.translated_errors(path, before.job_id):
        highest = folders.highest_attempt(path)
        context.sync([owner.folder])  # the job's move to us, before the decision: see the module's docstring
        lifecycle = moves.decided(before, move, by=owner.agent.id, attempt=highest, now=context.clock.now())
        folders.write_lifecycle(context, path, lifecycle.to_json(), sync=True)
        if lifecycle.status is Status.QUEUED:
            draft.keep_order(context, path, folders.prompt_if_any(context, path))
    carry_out(context, owner, path, lifecycle)
    return lifecycle


def carry_out(context: FilesContext, owner: LocalAgent, path: str, lifecycle: Lifecycle) -> None:
    """Do what a decided job.json says. The same after a crash as in the first place, and safe to repeat."""
    assert lifecycle.decision is not None
    _carry_out(context, owner, path, lifecycle, sync=True)
    if lifecycle.decision.reason is not Reason.ROUTING_EXHAUSTED:  # that was audited when it was marked
        context.audit_transition(lifecycle)


def _carry_out(context: FilesContext, owner: LocalAgent, path: str, lifecycle: Lifecycle, *, sync: bool) -> None:
    """`sync` is False when a journal record replaces the syncs."""
    decision = lifecycle.decision
    assert decision is not None
    to = places.parse(decision.to).path
    try:
        if decision.reason in REPORTED:
            folders.refresh_mirrors(path, decision.attempt)
        elif (text := moves.completion_text(lifecycle)) is not None:
            folders.mirror_text(context, path, text)
        folders.drop_lock(path)
        if sync:
            context.sync([path])
        children = dispatch.has_children(path, decision)
        if not deliver(context, path, places.OUTBOX if children else to, lifecycle.job_id, sync=sync):
            raise ClaimLost(f"{lifecycle.job_id} no longer belongs to {owner.agent.id}: it was recovered or killed")
    except OSError as error:
        raise folders.translate_error(error, path, lifecycle.job_id) from error
    if children:
        dispatch.dispatch(context, owner, lifecycle.job_id)
