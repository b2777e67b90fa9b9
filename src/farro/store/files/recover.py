"""Recovery: what a watchdog does in one pass. Any number may run; every step can be repeated (RELIABILITY 10, 12).

Judging stale jobs lives in hold.resolve_stale (the manager); starting passes lives in services.

- Death is told by the lease alone (R3); while recovering, the watchdog holds the dead agent's lease.
- Each job is moved into the watchdog's own folder first and read after that: a live worker's status is not overwritten.
  [test_watchdog_against_a_live_worker, test_move_before_read]
- Decided: carried out. Else stale, to jobs/stale. [test_decided_job_is_rolled_forward]
- A slot whose loop made no turn for `stale_after` on this watchdog's own clock, while both were awake, is hung: it is
  killed by pidfd and then treated the same; sleep, stops and clock jumps kill nothing.
  [test_a_silent_agent_is_killed_and_recovered, test_sleep_of_the_machine_makes_nobody_silent]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from farro.errors import Damaged, FarroError, Lost, SyncFailed, UnknownSchema
from farro.host import fs, leases
from farro.jobs import ids, places, transitions
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.store.files import agents, commit, dispatch, journal_cleanup, journal_records, staging, unblock, views
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held
from farro.store.files.move import Moved, deliver, quarantine, try_move
from farro.store.port import RecoveryAction, marker

_TOLD = frozenset({"stale", "quarantined", "dispatched"})  # transitions, told where they happen


class Pulse:
    """For how long each live agent's heartbeat has not changed, on this watchdog's own clock, while it looked.

    What passed between two looks counts for half of `stale_after` at most: a watchdog that was stopped itself (a paused
    container, a stopped session) was so with those that it watches, and they beat again when it looks the next time.
    [test_a_watchdog_that_was_stopped_itself_takes_nobody_for_hung]
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # the beat, and for how long it was that
        self._looked_s = float("inf")
        self._passed_s = 0.0

    def look(self, now_s: float, stale_after_s: float) -> None:
        """A pass begins."""
        self._passed_s = min(max(now_s - self._looked_s, 0.0), stale_after_s / 2)
        self._looked_s = now_s

    def silent_s(self, folder: str) -> float:
        try:
            beat = fs.lstat(f"{folder}/{agents.LEASE}").st_mtime_ns
        except FileNotFoundError:
            return 0.0
        known = self._seen.get(folder)
        silent_s = known[1] + self._passed_s if known is not None and known[0] == beat else 0.0
        self._seen[folder] = (beat, silent_s)
        return silent_s

    def keep(self, folders_seen: set[str]) -> None:
        self._seen = {folder: seen for folder, seen in self._seen.items() if folder in folders_seen}


def recover(ground: Ground, held: Held, pulse: Pulse) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    # Not the boot clock, which counts the machine's sleep: the first pass after a night's sleep would find every agent
    # silent for hours (RELIABILITY 18).
    pulse.look(ground.clock.monotonic_s(), ground.policy.stale_after_s)
    for job_id, (agent, role) in list(held.leftovers.items()):
        with _one_alone(ground, job_id):
            done += _in_hand(ground, held, agent, job_id, role)
    seen: set[str] = set()
    for role in (None, *ground.roles()):
        home = ground.holds if role is None else ground.in_progress(role)
        for name in fs.subdirectories(home):
            folder = f"{home}/{name}"
            if folder == held.folder:
                continue
            seen.add(folder)
            with _one_alone(ground, name):
                done += _agent(ground, held, pulse, folder, name, role)
    pulse.keep(seen)
    for name in fs.subdirectories(ground.path(places.OUTBOX)):
        with _one_alone(ground, name):
            if not ids.is_job_id(name):
                continue
            held.leftovers[name] = (held.agent.id, None)
            delivered = dispatch.dispatch(ground, held, name)
            del held.leftovers[name]
            if delivered:
                done.append(RecoveryAction(job_id=name, agent=None, what="dispatched"))
    with _one_alone(ground, journal_records.FOLDER):
        done += [
            RecoveryAction(job_id=None, agent=None, what=f"freed {n}")
            for n in journal_cleanup.sweep(ground.root, ground.boot_id)
        ]
    with _one_alone(ground, "staging"):
        done += [RecoveryAction(job_id=None, agent=None, what=f"swept {name}") for name in staging.sweep(ground)]
    with _one_alone(ground, "waiting"):
        done += unblock.tend_all(ground, held)
    for item in done:
        if item.what not in _TOLD:
            what = item.what.split(" ", 1)[0]
            ground.audit("recovered", actor=held.agent.id, job_id=item.job_id, what=what, agent=item.agent)
    return done


@contextlib.contextmanager
def _one_alone(ground: Ground, name: str) -> Iterator[None]:
    """Trouble with one agent or job is reported and affects it alone (RELIABILITY 26)."""
    try:
        yield
    except Lost:
        pass  # another watchdog was faster
    except SyncFailed:
        raise  # nobody knows what reached the disk: stop, do not sync again on a disk that has just lied (R7)
    except (FarroError, OSError) as error:
        ground.log("error", "recovery failed, will be tried again", {"name": name, "why": str(error)})


def _agent(ground: Ground, held: Held, pulse: Pulse, folder: str, name: str, role: str | None) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    lease: leases.Lease | None = None
    try:
        lease = leases.take(f"{folder}/{agents.LEASE}")
        if lease is None:
            if pulse.silent_s(folder) < ground.policy.stale_after_s:
                return _collect_marked(ground, held, folder, name, role)
            done.append(RecoveryAction(job_id=None, agent=name, what="silent_killed"))
            lease = _end_hung(ground, folder)
    except FileNotFoundError:
        pass  # a folder without a lease is a dead agent's, half removed
    try:
        jobs = [job_id for job_id in fs.subdirectories(folder) if ids.is_job_id(job_id)]
        # The attempt's processes end before anyone else may start the job again (R6, RELIABILITY 23).
        markers = [marker(job_id, folders.highest_attempt(f"{folder}/{job_id}"), ground.scope) for job_id in jobs]
        if markers or role is not None:  # a holder died too: it may have taken the job from a worker that is stopped
            ground.reap(markers, {**agents.read_identity(folder), "agent": name})
        for job_id in jobs:
            with _one_alone(ground, job_id):
                done += _job(ground, held, folder, name, job_id, role)
        if not fs.subdirectories(folder):
            agents.remove_folder(folder)
            done.append(RecoveryAction(job_id=None, agent=name, what="agent_removed"))
    finally:
        if lease is not None:
            lease.drop()
    return done


def _end_hung(ground: Ground, folder: str) -> leases.Lease | None:
    """Kill a hung process and wait for its lease; None after `free_after_s`: then its jobs are moved anyway."""
    ground.log("error", "agent is silent, killing it", {"agent": folder.rsplit("/", 1)[1]})
    ground.kill_hung(agents.read_identity(folder))
    until_s = ground.clock.monotonic_s() + ground.policy.free_after_s
    while True:
        lease = leases.take(f"{folder}/{agents.LEASE}")
        if lease is not None or ground.clock.monotonic_s() >= until_s:
            return lease
        ground.clock.sleep(0.05)


def _collect_marked(ground: Ground, held: Held, folder: str, name: str, role: str | None) -> list[RecoveryAction]:
    """Jobs that a live worker marked stale and left (routing exhausted). The look is advisory; the move decides."""
    done: list[RecoveryAction] = []
    if role is None:
        return done
    for job_id in fs.subdirectories(folder):
        try:
            if folders.read_lifecycle(f"{folder}/{job_id}").status is not Status.STALE:
                continue
        except (FarroError, OSError):
            continue
        done += _job(ground, held, folder, name, job_id, role)
    return done


def _job(ground: Ground, held: Held, folder: str, agent: str, job_id: str, role: str | None) -> list[RecoveryAction]:
    """One job of a dead agent: ours first, then read, then decided."""
    if job_id in ground.foreign:
        return []
    if try_move(f"{folder}/{job_id}", f"{held.folder}/{job_id}") is not Moved.DONE:
        return []
    return _in_hand(ground, held, agent, job_id, role)


def _give_back(ground: Ground, path: str, agent: str, job_id: str, role: str | None, why: str) -> None:
    """What another version of farro wrote is moved nowhere (DESIGN §3.3): back to where it lay, and left alone then."""
    ground.tell_foreign(job_id, why)
    home = ground.holds if role is None else ground.in_progress(role)
    try_move(path, f"{home}/{agent}/{job_id}")


def _in_hand(ground: Ground, held: Held, agent: str, job_id: str, role: str | None) -> list[RecoveryAction]:
    path = f"{held.folder}/{job_id}"
    held.leftovers[job_id] = (agent, role)  # until it is through
    done = _judge(ground, held, path, agent, job_id, role) if fs.exists(path) else []
    held.leftovers.pop(job_id, None)
    return done


def _judge(ground: Ground, held: Held, path: str, agent: str, job_id: str, role: str | None) -> list[RecoveryAction]:
    try:
        twin = _twin(ground, job_id)
        if twin is not None:
            raise Damaged(f"the same id lies in {twin} too")
        found = folders.owned_lifecycle(ground, path, job_id, role or "", Status.IN_PROGRESS)
        highest = folders.highest_attempt(path)
        if transitions.is_decided(found, highest):
            commit.carry_out(ground, held, path, found)
            return [RecoveryAction(job_id=job_id, agent=agent, what="rolled_forward")]
        if role is None and found.status is Status.QUEUED:  # an operator took it from its queue and died: never started
            # Its worker may live on, unaware: with that lock in the queue nobody, not even it, could have the job.
            folders.drop_lock(path)
            deliver(ground, path, places.incoming(found.role), job_id)
            return [RecoveryAction(job_id=job_id, agent=agent, what="rolled_forward")]
        if role is not None and found.role != role:
            found = replace(found, role=role)
        found = replace(found, status=Status.IN_PROGRESS)  # the path said so
        error = ErrorInfo(category="agent_died", message=f"agent {agent} died during attempt {highest}")
        commit.decide(
            ground,
            held,
            path,
            found,
            Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=found.role, error=error),
        )
        return [RecoveryAction(job_id=job_id, agent=agent, what="stale")]
    except SyncFailed:
        raise  # the disk's trouble, not the job's
    except UnknownSchema as error:
        _give_back(ground, path, agent, job_id, role, str(error))
        return []
    except (Damaged, FileNotFoundError) as error:
        quarantine(ground, path, job_id, str(error))
    return [RecoveryAction(job_id=job_id, agent=agent, what="quarantined")]


def _twin(ground: Ground, job_id: str) -> str | None:
    """Where else this id lies. On a filesystem that tore a rename in a power cut it may lie in two places."""
    for place, _, _, busy in views.spots(ground):
        if not busy and fs.exists(ground.path(place, job_id)):
            return place
    return None
