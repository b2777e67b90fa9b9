"""Claiming (`load_job`): lock, move, count the attempt, write job.json. The move is the commit point.

Which job is next lives in queue; what comes of it lives in settle.

- A job whose claimer died before the move was never started: its lock is dead and may be removed by whoever meets it.
  [test_lock_held_and_holder_dies_before_the_move]
- The rename arbitrates even if a lock was lost; the winner puts its own name right.
  [test_two_workers_want_one_job, test_a_lock_removed_by_a_late_one_is_put_right]
- Checks before the move are advisory and repeated after it: job.json is replaced by rename, never edited, so an
  unchanged inode, size and time are an unchanged text. The inode alone is not: two replacements later the filesystem
  gives the first number out again. [test_a_job_edited_between_look_and_move_is_read_again]
- A claim needs no sync (a lost claim only re-queues), but it never puts at risk what earlier hops decided: once there
  is something to lose, job.json is synced before it is replaced (R6).
  [test_power_cut_during_a_claim_keeps_earlier_hops]
- Of a row of small jobs (`claim_some`) job.json is written with the commit, or by `write_down` when one is not over in
  a moment: until then it says what it said in the queue, as after a kill between the move and the writing. The path is
  the state (R1). [test_kill_at_every_call]
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from typing import Any

from farro.errors import AgentLost, ClaimLost, Damaged, FarroError, SyncFailed, UnknownSchema
from farro.kernel import ids, moves, places, telling
from farro.kernel.envelope import Envelope, Lifecycle
from farro.kernel.states import Status
from farro.plans.tags import required_tags
from farro.ports.store import Claim
from farro.stores.files import folder as folders
from farro.stores.files.agents import LEASE
from farro.stores.files.ground import Ground, Held
from farro.stores.files.moving import Moved, deliver, quarantine, try_move
from farro.stores.files.queue import QueueView
from farro.system import fs, leases

JUST_NOW_S = 0.05
_FEW = 4  # so many are taken at once even if little more is there


class _Changed(Exception):
    """After the move it turned out that the job had been away meanwhile: it came back with a delay, or was not read."""


class Verdict(Enum):
    TAKE = auto()  # now, or after `until`
    NEVER = auto()
    GONE = auto()


def claim(ground: Ground, held: Held, view: QueueView, *, row: int | None = None) -> Claim | None:
    """The next job, if there is one. `row`: as one more of so many in a row."""
    role = held.agent.role
    assert role is not None
    busy: set[str] = set()
    while (upcoming := view.next(known=bool(row))) is not None:
        name, entered_ns = upcoming
        if name in busy:
            return None  # the queue was listed again meanwhile: waiting for a lock is not this call's business
        look = _look(ground, held, f"{ground.incoming(role)}/{name}", name)
        if look.verdict is Verdict.NEVER:
            view.skip(name)
        elif look.verdict is Verdict.GONE:
            pass
        elif look.entered_ns != entered_ns:
            view.enter(name, look.entered_ns)
        elif look.until is not None:
            view.delay(name, look.until, entered_ns)
        elif row and (look.lifecycle is None or look.lifecycle.attempt > 0):
            view.enter(name, entered_ns)  # alone, in the next turn
            return None
        else:
            try:
                locked = _lock(ground, held, name)
            except PermissionError as error:  # this job's folder alone: without this the others waited behind it
                ground.log("critical", "folder may not be changed, job skipped", {"job_id": name, "why": str(error)})
                view.skip(name)
                continue
            if not locked:
                busy.add(name)
                view.locked(name, entered_ns)
            elif (claimed := _take(ground, held, name, look, in_row=row is not None)) is not None:
                return claimed
    return None


def claim_some(ground: Ground, held: Held, view: QueueView, limit: int) -> list[Claim]:
    """Up to so many: a job that was begun before alone, and of much that is there not all (ports.store.Bulk)."""
    claims: list[Claim] = []
    while len(claims) < min(limit, max(_FEW, (len(claims) + len(view)) // 2)):
        try:
            claimed = claim(ground, held, view, row=len(claims))
        except (FarroError, OSError):
            for one in claims:  # nobody works on them now
                with contextlib.suppress(FarroError, OSError):
                    hand_back(ground, held, one)
            raise
        if claimed is None:
            break
        claims.append(claimed)
        if claimed.attempt > 1 or not len(view):  # what comes in this instant can wait for the next turn
            break
    return claims


def write_down(ground: Ground, held: Held, claim: Claim) -> None:
    """What a claim of a row has left for later: job.json, for whoever looks at a job that takes longer."""
    if claim.job_id in held.unwritten and held.claims.get(claim.job_id) == claim.attempt:
        path = f"{held.folder}/{claim.job_id}"
        with folders.fenced(path, claim.job_id):
            folders.write_lifecycle(ground, path, claim.envelope.lifecycle.to_json(), sync=False)
        held.unwritten.discard(claim.job_id)


def hand_back(ground: Ground, held: Held, claim: Claim) -> bool:
    """To its place in the queue, as if nobody had had it; False: it has been written down, or is not ours any more.

    Its job.json is the one that it had there, so its place is too. A kill in between leaves what a kill during the
    claim leaves, backwards. [test_kill_at_every_call]
    """
    job_id = claim.job_id
    if job_id not in held.unwritten or held.claims.get(job_id) != claim.attempt:
        return False
    path = f"{held.folder}/{job_id}"
    before = claim.envelope.lifecycle
    held.forget(job_id)
    with folders.fenced(path, job_id):
        with contextlib.suppress(OSError):  # not empty: then it counts
            fs.rmdir(folders.attempt_folder(path, claim.attempt))
            fs.rmdir(f"{path}/attempts")
        folders.drop_lock(path)
        if not deliver(ground, path, places.incoming(before.role), job_id, sync=False):
            raise ClaimLost(f"{job_id}: taken from {held.agent.id} (recovered or killed)")
    ground.audit(**telling.handed_back(before))  # type: ignore[arg-type]
    return True


def _just_locked(ground: Ground, lock: str) -> bool:
    """Whether somebody locked it a moment ago, and is about to move it: no lease to look at. A lock that stays is
    looked at in earnest."""
    try:
        made_s = fs.lstat(lock).st_mtime
    except OSError:
        return False
    return 0.0 <= ground.clock.now().timestamp() - made_s < JUST_NOW_S


class Look:
    """What was seen before the move."""

    __slots__ = ("entered_ns", "fresh", "lifecycle", "prompt", "seen", "until", "verdict")

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.until: datetime | None = None
        self.lifecycle: Lifecycle | None = None
        self.prompt: dict[str, Any] | None = None
        self.seen: tuple[int, int, int] | None = None  # which job.json it was
        self.entered_ns = 0
        self.fresh = False  # not read: it is what this process wrote


def _look(ground: Ground, held: Held, path: str, name: str) -> Look:
    """Validate size, schema version, status, tags and time. What cannot be read is taken: its owner repairs it."""
    look = Look(Verdict.TAKE)
    if (known := ground.fresh.take(name)) is not None:
        look.fresh, look.seen, look.entered_ns = True, known.seen, known.seen[2]
        look.lifecycle, look.prompt = known.life, folders.parse_prompt(known.prompt)
        return _judged(ground, held, name, look)
    try:
        text, status = fs.read_with_status(f"{path}/job.json", folders.JOB_LIMIT)
        look.seen = _identity(status)
        look.entered_ns = status.st_mtime_ns
        look.lifecycle = folders.parse_lifecycle(text)
    except UnknownSchema as error:
        ground.tell_foreign(name, str(error))
        return Look(Verdict.NEVER)
    except (FileNotFoundError, NotADirectoryError):
        if not fs.exists(path):
            return Look(Verdict.GONE)
    except Damaged:
        pass
    except OSError:
        if (seen := _which_or_none(path)) is not None:
            look.seen, look.entered_ns = seen, seen[2]
    try:
        look.prompt = folders.read_prompt(ground, path)
    except (FileNotFoundError, NotADirectoryError):  # or a plain file that somebody put into the queue
        # With another job.json it was away meanwhile, and came back: its entry is told again. Without this look it was
        # skipped for good, by every slot of this worker.
        if not fs.exists(path) or _which_or_none(path) != look.seen:
            return Look(Verdict.GONE)
        if look.lifecycle is not None:
            return look  # a job that lost its prompt: its owner quarantines it. Skipped, it would wait for ever unsaid
        ground.log("critical", "folder without prompt.json in a queue, skipped", {"job_id": name})
        return Look(Verdict.NEVER)
    except (Damaged, OSError):
        return look
    return _judged(ground, held, name, look)


def _judged(ground: Ground, held: Held, name: str, look: Look) -> Look:
    """Whether this agent may have it, and when."""
    if look.prompt is not None and not required_tags(look.prompt) <= held.agent.tags:
        return Look(Verdict.NEVER)
    if look.lifecycle is not None:
        if look.lifecycle.status not in (Status.QUEUED, Status.IN_PROGRESS):
            ground.log(
                "critical",
                "status contradicts the queue, job skipped",
                {"job_id": name, "status": look.lifecycle.status},
            )
            return Look(Verdict.NEVER)
        if look.lifecycle.not_before is not None:
            due = datetime.fromisoformat(look.lifecycle.not_before)
            if due > ground.due_now():
                look.until = due
    return look


def _owned_prompt(ground: Ground, path: str) -> dict[str, Any]:
    try:
        return folders.read_prompt(ground, path)
    except FileNotFoundError as error:
        if not fs.exists(path):
            raise  # the whole job was taken from us: its fence says so
        raise Damaged("prompt.json is missing") from error


def _which(path: str) -> tuple[int, int, int]:
    return _identity(fs.lstat(f"{path}/job.json"))


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _which_or_none(path: str) -> tuple[int, int, int] | None:
    try:
        return _which(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _lock(ground: Ground, held: Held, name: str) -> bool:
    """Make `lock` exclusively: one call, complete when it appears. A dead agent's lock is removed once."""
    assert held.agent.role is not None
    path = f"{ground.incoming(held.agent.role)}/{name}/{folders.LOCK}"
    for _ in range(2):
        try:
            fs.symlink(held.agent.id, path)
            return True
        except FileExistsError:
            owner = fs.readlink(path)
            if owner == held.agent.id:
                return True  # made by a call whose answer was lost (R7); else we would wait for ourselves for ever
            if _just_locked(ground, path):
                return False
            home = ground.in_progress(held.agent.role)
            if owner is not None and ids.is_agent(owner) and leases.is_held(f"{home}/{owner}/{LEASE}"):
                return False
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return True  # gone: the move will say so
    return False


def _take(ground: Ground, held: Held, name: str, look: Look, *, in_row: bool) -> Claim | None:
    role = held.agent.role
    assert role is not None
    source, path = f"{ground.incoming(role)}/{name}", f"{held.folder}/{name}"
    try:
        moved = try_move(source, path)
    except FileExistsError:
        ground.log("critical", "job is in its agent's folder and in the queue, skipped", {"job_id": name})
        return None
    except OSError:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)  # not ours after all: others may try, while our trouble lasts
        raise
    if moved is Moved.NO_DESTINATION:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)
        raise AgentLost(f"{held.agent.id} was declared dead; the slot joins again under a new name")
    if moved is Moved.GONE:
        return None
    try:
        with folders.fenced(path, name):
            return fs.retried(lambda: _begin(ground, held, name, path, look, in_row=in_row), path, ground.clock.sleep)
    except ClaimLost:
        return None  # an operator or a watchdog was faster
    except _Changed:
        _put_back(path, source)  # its entry is told again, and then it is looked at
    except UnknownSchema as error:
        ground.tell_foreign(name, str(error))
        _put_back(path, source)
    except SyncFailed:
        raise  # the disk's trouble, not the job's: the worker stops, recovery decides (R7)
    except Damaged as error:
        quarantine(ground, path, name, str(error))
    except Exception:
        _put_back(path, source)  # nothing was started; where this fails too, recovery puts it back
        raise
    return None


def begin_at_once(ground: Ground, held: Held, name: str) -> Claim:
    """Claim a job that was published into our own folder: there is nobody to race with."""
    path = f"{held.folder}/{name}"
    with folders.fenced(path, name):
        return fs.retried(lambda: _begin(ground, held, name, path, Look(Verdict.TAKE)), path, ground.clock.sleep)


def _begin(ground: Ground, held: Held, name: str, path: str, look: Look, *, in_row: bool = False) -> Claim:
    role = held.agent.role
    assert role is not None
    if fs.readlink(f"{path}/{folders.LOCK}") != held.agent.id:
        folders.drop_lock(path)
        fs.symlink(held.agent.id, f"{path}/{folders.LOCK}")
    before = look.lifecycle
    if before is None or _which(path) != look.seen:
        if look.fresh:
            raise _Changed
        before = folders.owned_lifecycle(ground, path, name, role, Status.QUEUED)
        # Before the attempt is counted. Without this a job that failed and was to wait was started again at once.
        if before.not_before is not None and datetime.fromisoformat(before.not_before) > ground.due_now():
            raise _Changed
    if before.attempt > 0:
        folders.reconcile_mirrors(path)
    prompt = look.prompt if look.prompt is not None else _owned_prompt(ground, path)
    if before.attempt == 0 and folders.first_attempt(path):
        attempt = 1
    else:
        attempt = folders.begin_attempt(path, folders.highest_attempt(path))
    if before.status is not Status.QUEUED or before.role != role:
        before = replace(before, status=Status.QUEUED, role=role)  # the path is the state (R1)
    lifecycle = moves.claimed(
        before,
        agent=held.agent.id,
        attempt=attempt,
        correlation_id=f"{ground.random_bits(128):032x}",
        now=ground.clock.now(),
        policy_version=ground.policy.policy_version(role),
    )
    # What job.json alone knows: the hops, and which job this one repeats. Everything else is rebuilt when it is torn.
    precious = bool(before.hops or before.retry_of)
    if in_row and attempt == 1 and not precious:
        held.unwritten.add(name)
    else:
        held.unwritten.discard(name)
        folders.write_lifecycle(ground, path, lifecycle.to_json(), sync=precious)
    held.claims[name] = attempt
    ground.tell(lifecycle)
    return Claim(
        agent=held.agent,
        envelope=Envelope(prompt=prompt, lifecycle=lifecycle),
        attempt=attempt,
        folder=folders.attempt_folder(path, attempt),
        scope=ground.scope,
    )


def _put_back(path: str, source: str) -> None:
    with contextlib.suppress(OSError):
        folders.drop_lock(path)
        fs.move(path, source)
