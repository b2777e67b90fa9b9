"""Recover the jobs of dead agents: one watchdog pass. Any number may run; every step can be repeated (RELIABILITY 10,
12).

- Only a free lease proves death (R3); during recovery the watchdog holds the dead agent's lease.
- Each job is moved into the watchdog's own folder first and read after that, so that a live worker's status is not
  overwritten. [test_watchdog_against_a_live_worker, test_move_before_read]
- A decided job is carried out; any other becomes stale and moves to jobs/stale. [test_decided_job_is_rolled_forward]
- A slot whose loop made no turn for `stale_after_s` on this watchdog's own clock, while both were awake, is hung: it is
  killed by pidfd and then treated as dead. Sleep, stops and clock jumps kill nothing.
  [test_a_silent_agent_is_killed_and_recovered, test_sleep_of_the_machine_makes_no_agent_silent]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farro.errors import Damaged, FarroError, Lost, SyncFailed, UnknownSchema
from farro.host import fs, leases, trees
from farro.jobs import ids, moves, places
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import replace
from farro.store.files import agents, chosen_ids, commit, dependencies, dispatch, journal_file, unblock, views
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import MoveResult, deliver, quarantine, try_move
from farro.store.port import RecoveryAction, marker

_AUDITED = frozenset({"stale", "quarantined", "dispatched"})  # transitions, which are audited where they happen


class HeartbeatMonitor:
    """Measure for how long each live agent's heartbeat has not changed, on this watchdog's own clock.

    The time between two passes counts for at most half of `stale_after_s`: a watchdog that was itself stopped (a paused
    container, a stopped session) was probably stopped together with the agents that it watches, and they beat again by
    its next pass. [test_a_watchdog_that_was_stopped_declares_no_agent_hung]
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # folder → last beat, seconds without a change
        self._last_pass_s = float("inf")
        self._passed_s = 0.0

    def begin_pass(self, now_s: float, stale_after_s: float) -> None:
        self._passed_s = min(max(now_s - self._last_pass_s, 0.0), stale_after_s / 2)
        self._last_pass_s = now_s

    def silent_s(self, folder: str) -> float:
        try:
            beat = fs.lstat(f"{folder}/{agents.LEASE}").st_mtime_ns
        except FileNotFoundError:
            return 0.0
        known = self._seen.get(folder)
        silent_s = known[1] + self._passed_s if known is not None and known[0] == beat else 0.0
        self._seen[folder] = (beat, silent_s)
        return silent_s

    def keep_only(self, folders_seen: set[str]) -> None:
        self._seen = {folder: seen for folder, seen in self._seen.items() if folder in folders_seen}


def recover(context: FilesContext, owner: LocalAgent, heartbeats: HeartbeatMonitor) -> list[RecoveryAction]:
    """Run one pass and return what was done."""
    done: list[RecoveryAction] = []
    # Not the boot clock, which includes the machine's sleep: the first pass after a night's sleep would find every
    # agent silent for hours (RELIABILITY 18).
    heartbeats.begin_pass(context.clock.monotonic_s(), context.policy.stale_after_s)
    for job_id, (agent, role) in list(owner.leftovers.items()):
        with _isolated(context, job_id):
            done += _recover_taken(context, owner, agent, job_id, role)
    seen: set[str] = set()
    for role in (None, *context.roles()):
        home = context.holds if role is None else context.in_progress(role)
        for name in fs.subdirectories(home):
            folder = f"{home}/{name}"
            if folder == owner.folder:
                continue
            seen.add(folder)
            with _isolated(context, name):
                done += _recover_agent(context, owner, heartbeats, folder, name, role)
    heartbeats.keep_only(seen)
    for name in fs.subdirectories(context.path(places.OUTBOX)):
        with _isolated(context, name):
            if not ids.is_job_id(name):
                continue
            owner.leftovers[name] = (owner.agent.id, None)
            delivered = dispatch.dispatch(context, owner, name)
            del owner.leftovers[name]
            if delivered:
                done.append(RecoveryAction(job_id=name, agent=None, what="dispatched"))
    with _isolated(context, journal_file.FOLDER):
        done += [
            RecoveryAction(job_id=None, agent=None, what=f"freed {n}")
            for n in journal_file.sweep(context.root, context.boot_id)
        ]
    with _isolated(context, "archive"):
        done += _recover_archive(context)
    with _isolated(context, "staging"):
        done += [RecoveryAction(job_id=None, agent=None, what=f"swept {name}") for name in sweep_staging(context)]
    with _isolated(context, "waiting"):
        done += unblock.tend_all(context, owner)
    for item in done:
        if item.what not in _AUDITED:
            what = item.what.split(" ", 1)[0]
            context.audit("recovered", actor=owner.agent.id, job_id=item.job_id, what=what, agent=item.agent)
    return done


def _recover_archive(context: FilesContext) -> list[RecoveryAction]:
    if context.archive is None:
        return []
    from farro.store.files import archive  # imported here: most roots have no archive

    return archive.recover(context)


@contextlib.contextmanager
def _isolated(context: FilesContext, name: str) -> Iterator[None]:
    """Log an error with one agent or job and go on with the others (RELIABILITY 26)."""
    try:
        yield
    except Lost:
        pass  # another watchdog was faster
    except SyncFailed:
        raise  # it is unknown what reached the disk: stop, and do not sync again on a disk that has just lied (R7)
    except (FarroError, OSError) as error:
        context.log("error", "recovery failed, will be tried again", {"name": name, "why": str(error)})


def _recover_agent(
    context: FilesContext,
    owner: LocalAgent,
    heartbeats: HeartbeatMonitor,
    folder: str,
    name: str,
    role: str | None,
) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    lease: leases.Lease | None = None
    try:
        lease = leases.take(f"{folder}/{agents.LEASE}")
        if lease is None:
            if heartbeats.silent_s(folder) < context.policy.stale_after_s:
                return _collect_marked(context, owner, folder, name, role)
            done.append(RecoveryAction(job_id=None, agent=name, what="silent_killed"))
            lease = _end_hung(context, folder)
    except FileNotFoundError:
        pass  # a folder without a lease belongs to a dead agent and is half removed
    try:
        jobs = [job_id for job_id in fs.subdirectories(folder) if ids.is_job_id(job_id)]
        # The attempt's processes end before another worker may start the job again (R6, RELIABILITY 23).
        markers = [marker(job_id, folders.highest_attempt(f"{folder}/{job_id}"), context.scope) for job_id in jobs]
        if markers or role is not None:  # an operator may have taken a job from a stopped worker and died too
            context.reap(markers, {**agents.read_identity(folder), "agent": name})
        for job_id in jobs:
            with _isolated(context, job_id):
                done += _job(context, owner, folder, name, job_id, role)
        if not fs.subdirectories(folder):
            agents.remove_folder(folder)
            done.append(RecoveryAction(job_id=None, agent=name, what="agent_removed"))
    finally:
        if lease is not None:
            lease.drop()
    return done


def _end_hung(context: FilesContext, folder: str) -> leases.Lease | None:
    """Kill a hung process and wait for its lease. None after `free_after_s`: then its jobs are moved anyway."""
    context.log("error", "agent is silent, killing it", {"agent": folder.rsplit("/", 1)[1]})
    context.kill_hung(agents.read_identity(folder))
    until_s = context.clock.monotonic_s() + context.policy.free_after_s
    while True:
        lease = leases.take(f"{folder}/{agents.LEASE}")
        if lease is not None or context.clock.monotonic_s() >= until_s:
            return lease
        context.clock.sleep(0.05)


def _collect_marked(
    context: FilesContext, owner: LocalAgent, folder: str, name: str, role: str | None
) -> list[RecoveryAction]:
    """Collect jobs that a live worker marked stale in place (routing exhausted). The check is advisory; the move
    decides."""
    done: list[RecoveryAction] = []
    if role is None:
        return done
    for job_id in fs.subdirectories(folder):
        try:
            if folders.read_lifecycle(f"{folder}/{job_id}").status is not Status.STALE:
                continue
        except (FarroError, OSError):
            continue
        done += _job(context, owner, folder, name, job_id, role)
    return done


def _job(
    context: FilesContext, owner: LocalAgent, folder: str, agent: str, job_id: str, role: str | None
) -> list[RecoveryAction]:
    """Recover one job of a dead agent: move it to our folder, then read it, then decide."""
    if job_id in context.foreign:
        return []
    if try_move(f"{folder}/{job_id}", f"{owner.folder}/{job_id}") is not MoveResult.DONE:
        return []
    return _recover_taken(context, owner, agent, job_id, role)


def _give_back(context: FilesContext, path: str, agent: str, job_id: str, role: str | None, why: str) -> None:
    """Return a job that another version of farro wrote to where it was; it is then left alone (DESIGN §3.3)."""
    context.log_foreign(job_id, why)
    home = context.holds if role is None else context.in_progress(role)
    try_move(path, f"{home}/{agent}/{job_id}")


def _recover_taken(
    context: FilesContext, owner: LocalAgent, agent: str, job_id: str, role: str | None
) -> list[RecoveryAction]:
    path = f"{owner.folder}/{job_id}"
    owner.leftovers[job_id] = (agent, role)  # until it is done
    done = _judge(context, owner, path, agent, job_id, role) if fs.exists(path) else []
    owner.leftovers.pop(job_id, None)
    return done


def _judge(
    context: FilesContext, owner: LocalAgent, path: str, agent: str, job_id: str, role: str | None
) -> list[RecoveryAction]:
    try:
        twin = _twin(context, job_id)
        if twin is not None:
            raise Damaged(f"a job with the same id is in {twin} too")
        found = folders.owned_lifecycle(context, path, job_id, role or "", Status.IN_PROGRESS)
        highest = folders.highest_attempt(path)
        if moves.is_decided(found, highest):
            commit.carry_out(context, owner, path, found)
            return [RecoveryAction(job_id=job_id, agent=agent, what="rolled_forward")]
        if role is None and found.status is Status.QUEUED:  # an operator took it from its queue and died
            # A worker that had just locked it may live on: with that lock in the queue no worker could claim the job.
            folders.drop_lock(path)
            deliver(context, path, places.incoming(found.role), job_id)
            return [RecoveryAction(job_id=job_id, agent=agent, what="rolled_forward")]
        if role is not None and found.role != role:
            found = replace(found, role=role)
        found = replace(found, status=Status.IN_PROGRESS)  # according to the path
        error = ErrorInfo(category="agent_died", message=f"agent {agent} died during attempt {highest}")
        commit.decide(
            context,
            owner,
            path,
            found,
            Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=found.role, error=error),
        )
        return [RecoveryAction(job_id=job_id, agent=agent, what="stale")]
    except SyncFailed:
        raise  # trouble of the disk, not of the job
    except UnknownSchema as error:
        _give_back(context, path, agent, job_id, role, str(error))
        return []
    except (Damaged, FileNotFoundError) as error:
        quarantine(context, path, job_id, str(error))
    return [RecoveryAction(job_id=job_id, agent=agent, what="quarantined")]


def _twin(context: FilesContext, job_id: str) -> str | None:
    """Another place that contains this id: a filesystem may tear a rename in a power cut and show the job in two."""
    for place, _, _, busy in views.job_places(context):
        if not busy and fs.exists(context.path(place, job_id)):
            return place
    return None


# --- staging ---


STAGED_S = 3600.0  # no submitter stages for an hour


def sweep_staging(context: FilesContext) -> list[str]:
    """Clean up jobs/.staging after crashed submitters and joining agents: remove or publish old folders, and return
    their names.

    Safe beside live submitters: a folder that an id points to is published, not removed; a locked folder has a live
    submitter; and a slow submitter whose folder was removed gets ENOENT at its rename, before anything is acknowledged.
    [test_staging_cleanup_keeps_folders_that_an_id_points_to]
    """
    done = []
    now_s = context.clock.now().timestamp()
    for name in fs.subdirectories(context.staging):
        path = f"{context.staging}/{name}"
        try:
            if now_s - fs.lstat(path).st_mtime < STAGED_S or leases.is_held(f"{path}/{agents.LEASE}"):
                continue
            lease = leases.take(path) if leases.FOLDERS else None
            if lease is None and leases.FOLDERS:
                continue
        except FileNotFoundError:
            continue
        try:
            if _finish_staged(context, name, path):
                done.append(name)
        finally:
            if lease is not None:
                lease.drop()
    return done


def _finish_staged(context: FilesContext, name: str, path: str) -> bool:
    """Publish a folder that the registry points at (its submitter died before it could); remove any other."""
    job_id = name.split(".", 1)[0]
    try:
        if context.archive is not None and context.archive.find(job_id) is not None:
            # Registered while its job was being archived, by a submitter that died before it saw that (submit).
            if chosen_ids.registered(context, job_id)[1] == name:
                fs.unlink(f"{context.registry}/{job_id}")
        elif chosen_ids.registered(context, job_id)[1] == name:
            lifecycle = folders.read_lifecycle(path)
            blocks = dependencies.staged(context, path)
            home = context.path(places.WAITING) if blocks else context.incoming(lifecycle.role)
            # As its submitter would have done, and may have: a job must not outlive its link (see submit).
            chosen_ids.make_durable(context, name)
            context.sync([context.registry, *dependencies.register(context, job_id, blocks)])
            moved = try_move(path, f"{home}/{job_id}")
            context.sync([home])
            if moved is MoveResult.DONE:
                context.audit_transition(lifecycle)
            return True
    except (Damaged, FileNotFoundError, FileExistsError) as error:
        if not fs.exists(path):
            return False  # another submitter of that id has published it
        context.log("error", "staged job of a registered id cannot be published", {"job_id": job_id, "why": str(error)})
        return False
    trees.remove_tree(path)
    return True
