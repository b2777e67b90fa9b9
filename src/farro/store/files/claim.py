"""Claiming (`load_job`): lock, move, count the attempt, write job.json. The move is the commit point.

Which job is next lives in queue, what is seen of it in look; what comes of it lives in settle.

- A job whose claimer died before the move was never started: its lock is dead and may be removed by whoever meets it.
  [test_lock_held_and_holder_dies_before_the_move]
- The rename arbitrates even if a lock was lost; the winner puts its own name right.
  [test_two_workers_want_one_job, test_a_lock_removed_by_a_late_one_is_put_right]
- Checks before the move are advisory and repeated after it. [test_a_job_edited_between_look_and_move_is_read_again,
  test_a_queue_that_is_paused_between_look_and_move_keeps_its_job]
- A claim needs no sync (a lost claim only re-queues), but it never puts at risk what earlier hops decided: once there
  is something to lose, job.json is synced before it is replaced (R6).
  [test_power_cut_during_a_claim_keeps_earlier_hops]
- Of a row of small jobs (`claim_batch`) job.json is written with the commit, or by `record_claim` when one is not over in
  a moment: until then it says what it said in the queue, as after a kill between the move and the writing. The path is
  the state (R1). [test_kill_at_every_call]
- A row goes through each step together (see look): read, judged, locked and moved, counted. For each job the steps are
  those of a claim alone, in their order.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from farro.errors import AgentLost, ClaimLost, Damaged, FarroError, StorageTrouble, SyncFailed, UnknownSchema
from farro.host import fs, leases, links
from farro.jobs import audit_fields, ids, places, transitions
from farro.jobs.envelope import Envelope
from farro.jobs.states import Status
from farro.log.audit import tell_all
from farro.store.files import folder as folders
from farro.store.files import inspect as looks
from farro.store.files import pause
from farro.store.files.agents import LEASE
from farro.store.files.agents import LOCK as OWN_LOCK
from farro.store.files.context import Ground, Held
from farro.store.files.inspect import Look, Verdict
from farro.store.files.move import Moved, deliver, quarantine, try_move
from farro.store.files.queue import QueueView
from farro.store.port import Claim

JUST_NOW_S = 0.05
_FEW = 4  # so many are taken at once even if little more is there


class _Changed(Exception):
    """After the move it turned out that the job had been away meanwhile: it came back with a delay, or was not read."""


def claim(ground: Ground, held: Held, view: QueueView) -> Claim | None:
    """The next job, if there is one."""
    claims = _claimed(ground, held, view, 1, in_row=False)
    return claims[0] if claims else None


def claim_batch(ground: Ground, held: Held, view: QueueView, limit: int) -> list[Claim]:
    """Up to so many: a job that was begun before alone, and of much that is there not all (ports.store.BatchStore)."""
    return _claimed(ground, held, view, limit, in_row=True)


def _claimed(ground: Ground, held: Held, view: QueueView, limit: int, *, in_row: bool) -> list[Claim]:
    claims: list[Claim] = []
    if pause.is_paused(ground, held.agent.role or ""):
        return claims
    mine: deque[Look] = deque()  # moved, and not begun yet
    busy: set[str] = set()
    over = False
    try:
        while not over and (room := min(limit, max(_FEW, (len(claims) + len(view)) // 2)) - len(claims)) > 0:
            chosen, over = _chosen(ground, held, view, room, busy, first=not claims)
            _move_all(ground, held, view, chosen, busy, mine)
            if mine and pause.is_paused(ground, held.agent.role or ""):
                # Since we looked: whoever paused the queue has been told that none of its jobs is claimed from then on.
                while mine:
                    _put_back(ground, held, mine.popleft().name)
                over = True
            while mine:
                claims += _taken(ground, held, mine.popleft(), in_row)
            # What comes in this instant can wait for the next turn.
            over = over or bool(claims and (claims[-1].attempt > 1 or not len(view)))
    except Exception:
        for look in mine:
            _put_back(ground, held, look.name)
        ground.tell_all([one.envelope.lifecycle for one in claims])
        for one in claims:  # nobody works on them now
            with contextlib.suppress(FarroError, OSError):
                hand_back(ground, held, one)
        raise
    ground.tell_all([one.envelope.lifecycle for one in claims])
    return claims


def _chosen(
    ground: Ground, held: Held, view: QueueView, room: int, busy: set[str], *, first: bool
) -> tuple[list[Look], bool]:
    """Up to so many that this agent may have now; and whether the row ends here. `first`: it has none yet."""
    incoming = ground.incoming(held.agent.role or "")
    upcoming: list[tuple[str, int]] = []
    met = False  # a name that is locked, and was listed again meanwhile: to wait for it is not this call's business
    while len(upcoming) < room and (found := view.next(known=bool(upcoming) or not first)) is not None:
        if met := found[0] in busy:
            break
        upcoming.append(found)
    seen = [looks.seen(ground, f"{incoming}/{name}", name) for name, _ in upcoming]
    chosen: list[Look] = []
    for at, ((name, entered_ns), look) in enumerate(zip(upcoming, seen, strict=True)):
        if look is None:
            continue
        verdict, until = looks.judged(ground, held, look)
        if verdict is Verdict.NEVER:
            view.skip(name)
        elif look.entered_ns != entered_ns:
            view.enter(name, look.entered_ns)
        elif until is not None:
            view.delay(name, until, entered_ns)
        elif not look.begun:
            chosen.append(look)
        else:  # alone: now, or in the next turn
            alone = first and not chosen
            view.put_back(upcoming[at + alone :])
            return [look] if alone else chosen, True
    return chosen, met or not upcoming


def _move_all(
    ground: Ground, held: Held, view: QueueView, chosen: Iterable[Look], busy: set[str], mine: deque[Look]
) -> None:
    """Lock and move each; those that are in this agent's folder then are added to `mine`."""
    for look in chosen:
        try:
            locked = _lock(ground, held, look.name)
        except PermissionError as error:  # this job's folder alone: without this the others waited behind it
            ground.log("critical", "folder may not be changed, job skipped", {"job_id": look.name, "why": str(error)})
            view.skip(look.name)
            continue
        if not locked:
            busy.add(look.name)
            view.locked(look.name, look.entered_ns)
        elif _move(ground, held, look.name):
            mine.append(look)


def record_claim(ground: Ground, held: Held, claim: Claim) -> None:
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
        folders.uncount_attempt(path, claim.attempt)
        folders.drop_lock(path)
        if not deliver(ground, path, places.incoming(before.role), job_id, sync=False):
            raise ClaimLost(f"{job_id}: taken from {held.agent.id} (recovered or killed)")
    tell_all(ground.audit, [audit_fields.handed_back(before)])
    return True


def _just_locked(ground: Ground, lock: str) -> bool:
    """Whether somebody locked it a moment ago, and is about to move it: no lease to look at. A lock that stays is
    looked at in earnest."""
    try:
        locked_s = fs.lstat(lock).st_ctime  # of its owner's last lock, or of the end of one: he is at work
    except OSError:
        return False
    return 0.0 <= ground.clock.now().timestamp() - locked_s < JUST_NOW_S


def _owned_prompt(ground: Ground, path: str) -> dict[str, Any]:
    try:
        return folders.read_prompt(ground, path)
    except FileNotFoundError as error:
        if not fs.exists(path):
            raise  # the whole job was taken from us: its fence says so
        raise Damaged("prompt.json is missing") from error


def _lock(ground: Ground, held: Held, name: str) -> bool:
    """Make `lock` exclusively: one call, complete when it appears. A dead agent's lock is removed once."""
    path = f"{_queued(ground, held, name)}/{folders.LOCK}"
    for _ in range(2):
        try:
            links.again(f"{held.folder}/{OWN_LOCK}", path)
            return True
        except FileExistsError:
            owner = fs.readlink(path)
            if owner == held.agent.id:
                return True  # made by a call whose answer was lost (R7); else we would wait for ourselves for ever
            if _just_locked(ground, path):
                return False
            home = held.folder.rsplit("/", 1)[0]
            if owner is not None and ids.is_agent(owner) and leases.is_held(f"{home}/{owner}/{LEASE}"):
                return False
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return True  # gone: the move will say so
    return False


def _move(ground: Ground, held: Held, name: str) -> bool:
    """Whether it is ours now. The lock goes where it is not: others may try, while our trouble lasts."""
    source = _queued(ground, held, name)
    try:
        moved = try_move(source, f"{held.folder}/{name}")
    except FileExistsError:
        ground.log("critical", "job is in its agent's folder and in the queue, skipped", {"job_id": name})
        return False
    except OSError:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)
        raise
    if moved is Moved.NO_DESTINATION:
        with contextlib.suppress(OSError):
            folders.drop_lock(source)
        raise AgentLost(f"{held.agent.id} was declared dead; the slot joins again under a new name")
    return moved is Moved.DONE


def _taken(ground: Ground, held: Held, look: Look, in_row: bool) -> list[Claim]:
    """The claim of a job that is ours now; none where it turns out not to be one for us."""
    name, path = look.name, f"{held.folder}/{look.name}"
    try:
        with folders.fenced(path, name):
            return [fs.retried(lambda: _begin(ground, held, name, path, look, in_row=in_row), path, ground.clock.sleep)]
    except ClaimLost:
        pass  # an operator or a watchdog was faster
    except _Changed:
        _put_back(ground, held, name)  # its entry is told again, and then it is looked at
    except UnknownSchema as error:
        ground.tell_foreign(name, str(error))
        _put_back(ground, held, name)
    except SyncFailed:
        raise  # the disk's trouble, not the job's: the worker stops, recovery decides (R7)
    except Damaged as error:
        quarantine(ground, path, name, str(error))
    except Exception:
        _put_back(ground, held, name)  # nothing was started
        raise
    return []


def begin_at_once(ground: Ground, held: Held, name: str) -> Claim:
    """Claim a job that was published into our own folder: there is nobody to race with."""
    path = f"{held.folder}/{name}"
    with folders.fenced(path, name):
        claimed = fs.retried(lambda: _begin(ground, held, name, path, Look(name)), path, ground.clock.sleep)
    ground.tell(claimed.envelope.lifecycle)
    return claimed


def _begin(ground: Ground, held: Held, name: str, path: str, look: Look, *, in_row: bool = False) -> Claim:
    role = held.agent.role
    assert role is not None
    if fs.readlink(f"{path}/{folders.LOCK}") != held.agent.id:
        folders.drop_lock(path)
        fs.symlink(held.agent.id, f"{path}/{folders.LOCK}")
    before = look.lifecycle
    if before is None or looks.which(path) != look.seen:
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
    lifecycle = transitions.claimed(
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
        try:
            folders.write_lifecycle(ground, path, lifecycle.to_json(), sync=precious)
        except (StorageTrouble, OSError):
            # It is put back. Without this a disk that was full for a minute used up every attempt that the job has, and
            # the first worker that died with it had it killed. [test_a_claim_that_the_disk_refuses_is_no_attempt]
            folders.uncount_attempt(path, attempt)
            raise
    held.claims[name] = attempt
    return Claim(
        agent=held.agent,
        envelope=Envelope(prompt=prompt, lifecycle=lifecycle),
        attempt=attempt,
        folder=folders.attempt_folder(path, attempt),
        scope=ground.scope,
    )


def _queued(ground: Ground, held: Held, name: str) -> str:
    """Its folder in the queue that this agent works."""
    assert held.agent.role is not None
    return f"{ground.incoming(held.agent.role)}/{name}"


def _put_back(ground: Ground, held: Held, name: str) -> None:
    """Into its queue, as if nobody had had it. Where this fails too, recovery does it."""
    path = f"{held.folder}/{name}"
    with contextlib.suppress(OSError):
        folders.drop_lock(path)
        fs.move(path, _queued(ground, held, name))
