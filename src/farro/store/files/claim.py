"""Claim jobs: lock, move, count the attempt, write job.json. The move is the commit point.

- A job whose claimer died before the move was never started: any agent may remove the dead lock.
  [test_the_lock_of_an_agent_that_died_before_the_move_is_removed]
- The rename decides even if a lock was lost; the winner writes its own name into the lock.
  [test_two_workers_want_one_job, test_the_winner_of_a_move_restores_its_lock]
- Checks before the move are advisory and repeated after it. [test_a_job_edited_between_read_and_move_is_read_again,
  test_a_queue_paused_between_read_and_move_keeps_its_job]
- A claim needs no sync, because a lost claim only requeues the job. But it never risks what earlier hops decided: once
  there is something to lose, job.json is synced before it is replaced (R6).
  [test_power_cut_during_a_claim_keeps_earlier_hops]
- For a claim of several jobs job.json is written with the commit, or by `record_claim` at the first heartbeat of a job
  that takes longer than a moment. Until then it says what it said in the queue, as after a kill between the move and
  the write. The path is the state (R1). [test_kill_at_every_call]
- A batch goes through each step together: examine, lock and move, count. For each job these are the steps of a single
  claim, in the same order.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from farro.errors import AgentLost, ClaimLost, Damaged, FarroError, StorageTrouble, SyncFailed, UnknownSchema
from farro.host import fs, leases, links
from farro.jobs import audit_fields, ids, moves, places
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.log.audit import tell_all
from farro.plans.metadata import required_tags
from farro.store.files import folder as folders
from farro.store.files import pause
from farro.store.files.agents import LEASE
from farro.store.files.agents import LOCK as OWN_LOCK
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import MoveResult, deliver, quarantine, try_move
from farro.store.files.queue import QueueView
from farro.store.port import Claim

JUST_NOW_S = 0.05
_SMALL_BATCH = 4  # this many are claimed at once even if the queue holds few more


FileIdentity = tuple[int, int, int]  # of a job.json: inode, size, modification time


class _ChangedMeanwhile(Exception):
    """Between the reading and the move, the job left the queue and came back with a delay."""


class _NotForUs(Exception):
    """This agent can never run the job."""


@dataclass(kw_only=True, slots=True)
class QueuedJob:
    """A queued job as it was before the move. What could not be read is None: the agent that claims the job repairs
    it."""

    name: str
    identity: FileIdentity | None = None  # of the job.json that was read
    lifecycle: Lifecycle | None = None
    prompt: dict[str, Any] | None = None
    due: datetime | None = None  # it is delayed until then

    @property
    def entered_ns(self) -> int:
        """Return when it entered the queue."""
        return 0 if self.identity is None else self.identity[2]

    @property
    def started_before(self) -> bool:
        """Return whether the job may have been attempted before: then it is not claimed in a batch with others."""
        return self.lifecycle is None or self.lifecycle.attempt > 0


def claim(context: FilesContext, owner: LocalAgent, view: QueueView, limit: int) -> list[Claim]:
    """Claim up to `limit` jobs. A job that was started before is claimed alone; some of a long queue is left for idle
    workers."""
    claims: list[Claim] = []
    if pause.is_paused(context, owner.agent.role or ""):
        return claims
    moved: deque[QueuedJob] = deque()  # in our folder, attempt not counted yet
    busy: set[str] = set()
    over = False
    try:
        while not over and (room := min(limit, max(_SMALL_BATCH, (len(claims) + len(view)) // 2)) - len(claims)) > 0:
            chosen, over = _choose(context, owner, view, room, busy, first=not claims)
            _move_all(context, owner, view, chosen, busy, moved)
            if moved and pause.is_paused(context, owner.agent.role or ""):
                # Paused since the first check. The pause was acknowledged, so no job may be claimed from then on.
                while moved:
                    _put_back(context, owner, moved.popleft().name)
                over = True
            while moved:
                claims += _finish(context, owner, moved.popleft(), in_batch=limit > 1)
            # Jobs that arrive at this instant can wait for the next turn.
            over = over or bool(claims and (claims[-1].attempt > 1 or not len(view)))
    except Exception:
        for job in moved:
            _put_back(context, owner, job.name)
        context.audit_transitions([one.envelope.lifecycle for one in claims])
        for one in claims:  # the caller does not get them, so no worker would run them
            with contextlib.suppress(FarroError, OSError):
                hand_back(context, owner, one)
        raise
    context.audit_transitions([one.envelope.lifecycle for one in claims])
    return claims


def _choose(
    context: FilesContext, owner: LocalAgent, view: QueueView, room: int, busy: set[str], *, first: bool
) -> tuple[list[QueuedJob], bool]:
    """Up to `room` jobs that this agent may claim now, and whether the batch ends with them. `first`: the batch is
    still empty."""
    upcoming: list[tuple[str, int]] = []
    met_locked = False  # a locked name was listed again meanwhile: this call does not wait for it
    while len(upcoming) < room and (found := view.next(known=bool(upcoming) or not first)) is not None:
        if met_locked := found[0] in busy:
            break
        upcoming.append(found)
    chosen: list[QueuedJob] = []
    for at, (name, entered_ns) in enumerate(upcoming):
        try:
            job = _examine(context, owner, name)
        except _NotForUs:
            view.skip(name)
            continue
        if job is None:
            continue
        if job.entered_ns != entered_ns:
            view.enter(name, job.entered_ns)
        elif job.due is not None:
            view.delay(name, job.due, entered_ns)
        elif not job.started_before:
            chosen.append(job)
        else:  # claimed alone: now, or in the next turn
            alone = first and not chosen
            view.put_back(upcoming[at + alone :])
            return [job] if alone else chosen, True
    return chosen, met_locked or not upcoming


def _examine(context: FilesContext, owner: LocalAgent, name: str) -> QueuedJob | None:
    """Read a queued job, as far as that is possible without owning it. None: it has left the queue. A job that cannot
    be read is claimed, so that its new owner repairs it."""
    path, job = _queue_folder(context, owner, name), QueuedJob(name=name)
    try:
        text, status = fs.read_with_status(f"{path}/job.json", folders.JOB_LIMIT)
        job.identity = _identity(status)
        job.lifecycle = folders.parse_lifecycle(text)
    except (FileNotFoundError, NotADirectoryError):
        if not fs.exists(path):
            return None
    except UnknownSchema as error:
        context.log_foreign(name, str(error))
        raise _NotForUs from error
    except Damaged:
        pass
    except OSError:
        job.identity = _identity_or_none(path)
    try:
        job.prompt = folders.read_prompt(context, path)
    except (FileNotFoundError, NotADirectoryError) as error:  # NotADirectoryError: a plain file was put into the queue
        # A different job.json means that the job was away meanwhile and came back; the feed reports its entry again.
        # Without this check every slot of this worker skipped the job for good.
        if not fs.exists(path) or _identity_or_none(path) != job.identity:
            return None
        if job.lifecycle is None:
            context.log("critical", "folder without prompt.json in a queue, skipped", {"job_id": name})
            raise _NotForUs from error
    except (Damaged, OSError):
        pass
    if job.prompt is None:  # lost: its new owner quarantines the job. Skipped, it would wait for ever
        return job
    if not required_tags(job.prompt) <= owner.agent.tags:
        raise _NotForUs
    if job.lifecycle is None:
        return job
    if job.lifecycle.status not in (Status.QUEUED, Status.IN_PROGRESS):
        status_said = job.lifecycle.status
        context.log("critical", "status contradicts the queue, job skipped", {"job_id": name, "status": status_said})
        raise _NotForUs
    job.due = _delayed_until(context, job.lifecycle)
    return job


def _delayed_until(context: FilesContext, lifecycle: Lifecycle) -> datetime | None:
    """Return when a delayed job becomes due; None: it is due."""
    due = None if lifecycle.not_before is None else datetime.fromisoformat(lifecycle.not_before)
    return due if due is not None and due > context.due_now() else None


def file_identity(path: str) -> FileIdentity:
    """Identify the present job.json. It is replaced by rename and never edited, so the same inode, size and time mean
    the same text. The inode alone is not enough: the filesystem reuses its number two replacements later."""
    return _identity(fs.lstat(f"{path}/job.json"))


def _identity(status: os.stat_result) -> FileIdentity:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _identity_or_none(path: str) -> FileIdentity | None:
    try:
        return file_identity(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _move_all(
    context: FilesContext,
    owner: LocalAgent,
    view: QueueView,
    chosen: Iterable[QueuedJob],
    busy: set[str],
    moved: deque[QueuedJob],
) -> None:
    """Lock and move each job; add those that arrived in this agent's folder to `moved`."""
    for job in chosen:
        try:
            locked = _lock(context, owner, job.name)
        except PermissionError as error:  # only this job's folder is affected: without this the others waited behind it
            context.log("critical", "folder may not be changed, job skipped", {"job_id": job.name, "why": str(error)})
            view.skip(job.name)
            continue
        if not locked:
            busy.add(job.name)
            view.locked(job.name, job.entered_ns)
        elif _move(context, owner, job.name):
            moved.append(job)


def record_claim(context: FilesContext, owner: LocalAgent, claim: Claim) -> None:
    """Write the job.json that the claim of a batch has postponed, so that queries show a job that takes longer."""
    if claim.job_id in owner.unwritten and owner.claims.get(claim.job_id) == claim.attempt:
        path = f"{owner.folder}/{claim.job_id}"
        with folders.translated_errors(path, claim.job_id):
            folders.write_lifecycle(context, path, claim.envelope.lifecycle.to_json(), sync=False)
        owner.unwritten.discard(claim.job_id)


def hand_back(context: FilesContext, owner: LocalAgent, claim: Claim) -> bool:
    """Return the job to its place in the queue as if it had never been claimed. False: its job.json has been written,
    or this agent no longer owns the job.

    Its job.json is the one that it had in the queue, and therefore so is its place. A kill in between leaves the same
    states as a kill during the claim. [test_kill_at_every_call]
    """
    job_id = claim.job_id
    if job_id not in owner.unwritten or owner.claims.get(job_id) != claim.attempt:
        return False
    path = f"{owner.folder}/{job_id}"
    before = claim.envelope.lifecycle
    owner.forget(job_id)
    with folders.translated_errors(path, job_id):
        folders.uncount_attempt(path, claim.attempt)
        folders.drop_lock(path)
        if not deliver(context, path, places.incoming(before.role), job_id, sync=False):
            raise ClaimLost(f"{job_id} no longer belongs to {owner.agent.id}: it was recovered or killed")
    tell_all(context.audit, [audit_fields.handed_back(before)])
    return True


def _just_locked(context: FilesContext, lock: str) -> bool:
    """Return whether another agent locked the job a moment ago and is about to move it. Then its lease need not be
    checked; a lock that stays is checked later."""
    try:
        locked_s = fs.lstat(lock).st_ctime  # changes whenever its agent makes or removes a lock, so the agent is active
    except OSError:
        return False
    return 0.0 <= context.clock.now().timestamp() - locked_s < JUST_NOW_S


def _lock(context: FilesContext, owner: LocalAgent, name: str) -> bool:
    """Create the lock exclusively, in one call, complete when it appears. A dead agent's lock is removed once."""
    path = f"{_queue_folder(context, owner, name)}/{folders.LOCK}"
    for _ in range(2):
        try:
            links.again(f"{owner.folder}/{OWN_LOCK}", path)
            return True
        except FileExistsError:
            holder = fs.readlink(path)
            if holder == owner.agent.id:
                return True  # made by a call whose answer was lost (R7); else we would wait for ourselves for ever
            if _just_locked(context, path):
                return False
            home = owner.folder.rsplit("/", 1)[0]
            if holder is not None and ids.is_agent(holder) and leases.is_held(f"{home}/{holder}/{LEASE}"):
                return False
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return True  # the job is gone: the move will report it
    return False


def _move(context: FilesContext, owner: LocalAgent, name: str) -> bool:
    """Return whether the job is in our folder now. If the move failed, remove the lock so that other agents can try."""
    source = _queue_folder(context, owner, name)
    try:
        result = try_move(source, f"{owner.folder}/{name}")
    except FileExistsError:
        context.log("critical", "job is in its agent's folder and in the queue, skipped", {"job_id": name})
        return False
    except OSError:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)
        raise
    if result is MoveResult.NO_DESTINATION:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)
        raise AgentLost(f"{owner.agent.id} was declared dead; the slot joins again under a new name")
    return result is MoveResult.DONE


def _finish(context: FilesContext, owner: LocalAgent, job: QueuedJob, *, in_batch: bool) -> list[Claim]:
    """Return the claim of a job that is in our folder now, or an empty list where it turns out that we cannot have
    it."""
    name, path = job.name, f"{owner.folder}/{job.name}"
    try:
        with folders.translated_errors(path, name):
            return [fs.retried(lambda: _begin(context, owner, path, job, in_batch=in_batch), path, context.clock.sleep)]
    except ClaimLost:
        pass  # an operator or a watchdog was faster
    except _ChangedMeanwhile:
        _put_back(context, owner, name)  # the feed reports its entry again, and then the job is read
    except UnknownSchema as error:
        context.log_foreign(name, str(error))
        _put_back(context, owner, name)
    except SyncFailed:
        raise  # trouble of the disk, not of the job: the worker stops, and recovery decides (R7)
    except Damaged as error:
        quarantine(context, path, name, str(error))
    except Exception:
        _put_back(context, owner, name)  # nothing was started
        raise
    return []


def begin_at_once(context: FilesContext, owner: LocalAgent, name: str) -> Claim:
    """Claim a job that was published into our own folder, where no other agent can race for it."""
    path = f"{owner.folder}/{name}"
    with folders.translated_errors(path, name):
        claimed = fs.retried(lambda: _begin(context, owner, path, QueuedJob(name=name)), path, context.clock.sleep)
    context.audit_transition(claimed.envelope.lifecycle)
    return claimed


def _begin(context: FilesContext, owner: LocalAgent, path: str, job: QueuedJob, *, in_batch: bool = False) -> Claim:
    """Count the attempt of a job in our folder and write its job.json, unless a batch postpones that."""
    role = owner.agent.role
    assert role is not None
    if fs.readlink(f"{path}/{folders.LOCK}") != owner.agent.id:
        folders.drop_lock(path)
        fs.symlink(owner.agent.id, f"{path}/{folders.LOCK}")
    before = _lifecycle_after_move(context, path, job, role)
    folders.reconcile_mirrors(path)
    prompt = job.prompt if job.prompt is not None else _owned_prompt(context, path)
    attempt = folders.begin_attempt(path)
    if before.status is not Status.QUEUED or before.role != role:
        before = replace(before, status=Status.QUEUED, role=role)  # the path is the state (R1)
    lifecycle = moves.claimed(
        before,
        agent=owner.agent.id,
        attempt=attempt,
        correlation_id=f"{context.random_bits(128):032x}",
        now=context.clock.now(),
        policy_version=context.policy.policy_version(role),
    )
    # Only job.json knows the hops and which job this one repeats. Everything else is rebuilt when the file is torn.
    irreplaceable = bool(before.hops or before.retry_of)
    if in_batch and attempt == 1 and not irreplaceable:
        owner.unwritten.add(job.name)
    else:
        owner.unwritten.discard(job.name)
        try:
            folders.write_lifecycle(context, path, lifecycle.to_json(), sync=irreplaceable)
        except (StorageTrouble, OSError):
            # The caller puts the job back. Without this a disk that was full for a minute used up every attempt of the
            # job, and it was killed with the first worker that died.
            # [test_a_claim_that_the_disk_refuses_counts_no_attempt]
            folders.uncount_attempt(path, attempt)
            raise
    owner.claims[job.name] = attempt
    return Claim(
        agent=owner.agent,
        envelope=Envelope(prompt=prompt, lifecycle=lifecycle),
        attempt=attempt,
        folder=folders.attempt_folder(path, attempt),
        scope=context.scope,
    )


def _lifecycle_after_move(context: FilesContext, path: str, job: QueuedJob, role: str) -> Lifecycle:
    """Return what was read before the move, if job.json is still the same file; else what it says now."""
    if job.lifecycle is not None and file_identity(path) == job.identity:
        return job.lifecycle
    found = folders.owned_lifecycle(context, path, job.name, role, Status.QUEUED)
    # Checked before the attempt is counted. Without this a job that had failed and had to wait was started at once.
    if _delayed_until(context, found) is not None:
        raise _ChangedMeanwhile
    return found


def _owned_prompt(context: FilesContext, path: str) -> dict[str, Any]:
    try:
        return folders.read_prompt(context, path)
    except FileNotFoundError as error:
        if not fs.exists(path):
            raise  # the whole job was taken from us: translated_errors reports ClaimLost
        raise Damaged("prompt.json is missing") from error


def _queue_folder(context: FilesContext, owner: LocalAgent, name: str) -> str:
    """Return the job's folder in the queue that this agent works on."""
    assert owner.agent.role is not None
    return f"{context.incoming(owner.agent.role)}/{name}"


def _put_back(context: FilesContext, owner: LocalAgent, name: str) -> None:
    """Return the job to its queue as if it had never been claimed. If this fails too, recovery does it."""
    path = f"{owner.folder}/{name}"
    with contextlib.suppress(OSError):
        folders.drop_lock(path)
        fs.move(path, _queue_folder(context, owner, name))
