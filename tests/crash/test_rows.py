"""Play the rows of docs/reliability.md: each crash point and race of the store as a named test.

The exhaustive forms are test_kill_points, test_errno and the power and storm suites. Rows about processes use real
processes; the others use the stage. tests/house/test_reliability.py checks which rows are covered.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stage
from crash import verbplays
from crash.seams import Before, Counting, Errno, KillAt, Recording, placed
from crash.verbplays import BY_NAME, World, play_every_point
from farro.errors import ClaimLost, Damaged, FarroError, IdConflict, StorageTrouble, SyncFailed, TryAgain
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Reason, Status
from farro.store.files import FilesStore
from one_job import claim_one, commit_one, release_one
from stage import Crash
from support import ROOT, need


@pytest.fixture
def world(shm: Path) -> Iterator[World]:
    """A root in memory with one process, a queued job and a worker "w" in a second process."""
    made = World(root=stage.make(str(shm / "root")), durable=False)
    made.process()
    made.enqueue()
    made.process()
    made.join()
    yield made
    made.everybody_dies()


def where(world: World) -> str:
    """Return the only place of the only job."""
    (place,) = stage.everywhere(world.root)[world.jobs[0]]
    return place


def dies(world: World, seam: KillAt, play: Any) -> None:
    with pytest.raises(Crash), placed(seam):
        play()
    world.die(world.actor)


def only(op: str) -> frozenset[str]:
    return frozenset({op})


def finish(world: World) -> Lifecycle:
    """Let healthy processes finish everything, check the tree, and return the first job's lifecycle."""
    world.everybody_dies()
    stage.drain(world.root, world.history, clock=world.clock, store_policy=world.policy())
    verbplays.judge(world)
    return world.lifecycle(world.jobs[0])


# --- real processes ----------------------------------------------------------------------------------------------

_WORKER = """
import sys
sys.path[:0] = [{tests!r}, {source!r}]
import stage
from farro.errors import Lost
from farro.jobs.outcomes import Succeeded
from one_job import claim_one, commit_one
store = stage.open_files({root!r}, seed={seed})
agent = store.join("real", role="Runner")
claim = claim_one(store, agent)
output = open(claim.folder + "/stdout", "w")
print(agent.id, flush=True)
for line in sys.stdin:
    try:
        if line == "commit\\n":
            commit_one(store, claim, Succeeded(report=stage.report(claim)))
        elif line == "write\\n":
            output.write("late"); output.flush()
            open(claim.folder + "/late", "w")
        elif line == "job.json\\n":
            open(claim.folder + "/../../job.json", "w").write("torn")
        print("done", flush=True)
    except (Lost, OSError) as error:
        print(type(error).__name__, flush=True)
"""


@contextmanager
def real_worker(root: str, *prefix: str, seed: int = 500) -> Iterator[subprocess.Popen[str]]:
    """Run a process that joins and claims, then executes input lines: commit, write, job.json."""
    code = _WORKER.format(tests=f"{ROOT}/tests", source=f"{ROOT}/src", root=root, seed=seed)
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str], line: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def watchdog(world: World) -> FilesStore:
    world.process()
    world.join(role=None, name="keeper")
    return world.actor


def recovered(world: World, store: FilesStore) -> list[str]:
    return [done.what for done in store.recover(world.agents["keeper"]) if done.job_id is not None]


def declare_silent(world: World, store: FilesStore) -> list[str]:
    """Run passes without a heartbeat for longer than `stale_after_s`; return the actions of the last one."""
    assert almost_silent(world, store) == []
    return recovered(world, store)


def almost_silent(world: World, store: FilesStore) -> list[str]:
    """Run all these passes but the last; a single pass counts as at most half of `stale_after_s`."""
    told = recovered(world, store)
    for _ in range(2):
        told += recovered(world, store)
        world.clock.offset_s += world.policy().stale_after_s / 2 + 1
    return told


def queued_only(shm: Path) -> World:
    made = World(root=stage.make(str(shm / "root")), durable=False)
    made.process()
    made.enqueue()
    return made


# --- the rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_lock_appears_complete_or_not_at_all(world: World, after: bool) -> None:
    """Row 1: crash while making the lock: it appears complete, with its owner, or not at all."""
    dies(world, KillAt(1, after=after, only=only("link")), world.claim)
    lock = f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/lock"
    assert os.path.lexists(lock) is after
    if after:
        assert os.readlink(lock) == world.agents["w"].id
    assert finish(world).attempt == 1


def test_a_lock_whose_holder_died_is_removed_and_the_job_is_claimable(world: World) -> None:
    """Row 2: lock held, job not moved, holder dies: lock removed, job untouched and claimable."""
    before = world.lifecycle(world.jobs[0])
    dies(world, KillAt(1, only=only("move")), world.claim)
    assert where(world) == "agents/Runner/incoming"
    assert world.lifecycle(world.jobs[0]) == before
    world.process()
    world.join(name="second")
    assert world.claim("second").attempt == 1


def test_a_job_that_moved_but_says_queued_is_recovered_and_its_attempt_counted(world: World) -> None:
    """Row 3: job moved, job.json still `queued`: path wins; recovered, attempt counted."""
    dies(world, KillAt(1, only=only("exchange")), world.claim)
    assert world.lifecycle(world.jobs[0]).status is Status.QUEUED
    store = watchdog(world)
    seen = store.find(world.jobs[0])
    assert seen is not None
    assert seen.status is Status.IN_PROGRESS
    assert recovered(world, store) == ["stale"]
    assert world.lifecycle(world.jobs[0]).attempt == 1
    assert finish(world).attempt == 2


@pytest.mark.parametrize("op", ["link", "move"])
def test_of_two_workers_one_rename_wins(world: World, op: str) -> None:
    """Row 4: two workers want one job: one rename wins, the other sees ENOENT and goes on."""
    slow, slow_agent = world.actor, world.agents["w"]
    world.process()
    world.join(name="fast")

    def be_faster() -> None:
        for name in os.listdir(f"{world.root}/agents/Runner/incoming/{world.jobs[0]}"):
            if name == "lock":  # lost, as if a late worker had removed it: the rename still decides
                os.unlink(f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/lock")
        world.claim("fast")

    with placed(Before(op, be_faster)):
        assert claim_one(slow, slow_agent) is None
    world.commit(world.claims[0], Succeeded(report=stage.report(world.claims[0])))
    assert finish(world).attempt == 1


def test_a_result_without_a_decision_is_repeated_in_a_new_attempt(world: World) -> None:
    """Row 5: result written, job.json not: attempt is repeated in a new attempts/NNNN."""
    claim = world.claim()
    outcome = Succeeded(report=stage.report(claim))
    dies(world, KillAt(1, only=only("exchange")), lambda: world.commit(claim, outcome))
    first = stage.read(f"{claim.folder}/result.json")
    lifecycle = finish(world)
    home = f"{world.root}/{where(world)}/{world.jobs[0]}/attempts"
    assert sorted(os.listdir(home)) == ["0001", "0002"]
    assert stage.read(f"{home}/0001/result.json") == first
    assert [hop.attempt for hop in lifecycle.hops if hop.reason is Reason.COMMITTED] == [2]


def test_a_decided_job_is_rolled_forward_not_repeated(world: World) -> None:
    """Row 6: job.json decided, folder not moved: rolled forward, not repeated."""
    claim = world.claim()
    outcome = Succeeded(report=stage.report(claim))
    dies(world, KillAt(1, only=only("move")), lambda: world.commit(claim, outcome))
    assert "in-progress" in where(world)
    assert recovered(world, watchdog(world)) == ["rolled_forward"]
    assert where(world) == "agents/Runner/completed/succeeded"
    finish(world)
    assert world.history.executed == [(world.jobs[0], 1)]


def test_a_lock_left_inside_is_removed_by_the_next_owner(world: World) -> None:
    """Row 7: folder moved, lock left inside: removed by the next owner of the folder."""
    claim = world.claim()
    world.die(world.actor)
    assert os.readlink(f"{claim.folder}/../../lock") == claim.agent.id
    assert recovered(world, watchdog(world)) == ["stale"]
    assert not os.path.lexists(f"{world.root}/jobs/stale/{world.jobs[0]}/lock")
    world.actor.resolve_stale(world.agents["keeper"], world.jobs[0])
    os.symlink("nobody.0.0000000000000000", f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/lock")
    world.process()
    world.join(name="next")
    again = world.claim("next")
    assert os.readlink(f"{again.folder}/../../lock") == again.agent.id
    finish(world)


@pytest.mark.linux
def test_a_reused_pid_keeps_no_dead_agent_alive_and_kills_no_living_one(shm: Path) -> None:
    """Row 8: PID reused by another process: no effect, the lease decides."""
    world = queued_only(shm)
    with real_worker(world.root) as process:
        agent = answer(process)
        lease = f"{world.root}/agents/Runner/in-progress/{agent}/.lease"
        store = watchdog(world)
        os.truncate(lease, 0)
        Path(lease).write_text(json.dumps({"host": "x", "boot_id": "0", "pid": 2**22 - 1, "start": 1}))  # no process
        assert recovered(world, store) == []
        Path(lease).write_text(json.dumps({"host": "x", "boot_id": "0", "pid": os.getpid(), "start": 1}))  # us
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert recovered(world, store) == ["stale"]
    assert finish(world).attempt == 2


@pytest.mark.linux
def test_an_agent_in_another_pid_namespace_lives_and_dies_by_its_lease(shm: Path) -> None:
    """Row 9: agent in another PID namespace: same as row 8."""
    unshare = need("unshare")
    flags = ("--pid", "--fork", "--kill-child=SIGKILL")
    if os.geteuid() != 0:
        flags = ("--user", "--map-root-user", *flags)
    tried = subprocess.run([unshare, *flags, "true"], capture_output=True, check=False)
    need(tried.returncode == 0, "a PID namespace (unshare --pid)")
    world = queued_only(shm)
    with real_worker(world.root, unshare, *flags) as process:
        agent = answer(process)
        assert agent.startswith("real.")
        store = watchdog(world)
        assert recovered(world, store) == []
        process.send_signal(signal.SIGKILL)
        process.communicate()  # until the last holder of its stdout has ended: the worker itself
        assert recovered(world, store) == ["stale"]
    assert finish(world).attempt == 2


@pytest.mark.parametrize("name", ["recover_undecided", "recover_decided", "recover_from_the_outbox"])
def test_two_watchdogs_meet_at_every_step(shm: Path, name: str) -> None:
    """Row 10: two watchdogs: every step idempotent, ENOENT benign."""
    scenario = BY_NAME[name]
    n = 0
    while True:
        n += 1
        world = verbplays.begin(str(shm / str(n)), scenario, durable=False)
        first, keeper = world.actor, world.agents["keeper"]
        second = watchdog(world)
        seam = Before("any", lambda second=second, world=world: second.recover(world.agents["keeper"]), n)  # type: ignore[misc]
        with placed(seam):
            first.recover(keeper)
        verbplays.end(world, scenario)
        if not seam.happened:
            break
    assert n > 5


def test_a_watchdog_leaves_a_living_workers_job_alone(world: World) -> None:
    """Row 11: watchdog against a live worker: a live worker's status is never overwritten."""
    claim = world.claim()
    worker = world.actor
    store = watchdog(world)
    assert recovered(world, store) == []
    world.commit(claim, Succeeded(report=stage.report(claim)), worker)
    assert finish(world).status is Status.SUCCEEDED


def test_a_watchdog_that_takes_a_hung_worker_for_dead_moves_before_it_reads(world: World) -> None:
    """Row 11: watchdog against a live worker: fence (move) before read; the worker commits while it decides."""
    claim = world.claim()
    worker = world.actor
    store = watchdog(world)
    almost_silent(world, store)
    outcome = Succeeded(report=stage.report(claim))
    with placed(Before("move", lambda: world.commit(claim, outcome, worker))) as seam:
        assert recovered(world, store) == []  # its move came too late (ENOENT), and it read and wrote nothing
    assert seam.happened
    assert finish(world).status is Status.SUCCEEDED
    assert world.history.executed == [(world.jobs[0], 1)]


@pytest.mark.parametrize("name", ["recover_undecided", "recover_decided"])
def test_a_watchdog_dies_at_any_of_its_steps_and_the_next_one_finishes(shm: Path, name: str) -> None:
    """Row 12: watchdog dies at any of its steps: the next one finishes."""
    assert play_every_point(str(shm), name, durable=False) > 5


@pytest.mark.parametrize("name", ["settle_stale_again", "commit_with_routing", "recover_from_the_outbox"])
def test_a_manager_dies_while_requeueing_routing_or_creating_children(shm: Path, name: str) -> None:
    """Row 13: manager dies while requeueing, routing, or creating children: repeated safely."""
    assert play_every_point(str(shm), name, durable=False) > 5


@pytest.mark.linux
def test_a_zombie_that_commits_after_recovery_has_lost_its_claim(shm: Path) -> None:
    """Row 14: zombie (SIGSTOP, then resumed) commits after recovery: `ClaimLost`; the new owner's job is untouched."""
    world = queued_only(shm)
    with real_worker(world.root) as process:
        answer(process)
        process.send_signal(signal.SIGSTOP)
        store = watchdog(world)
        assert declare_silent(world, store) == ["stale"]
        store.resolve_stale(world.agents["keeper"], world.jobs[0])
        world.process()
        world.join(name="new")
        claim = world.claim("new")
        before = stage.tree(claim.folder)
        process.send_signal(signal.SIGCONT)
        assert answer(process, "commit") == "ClaimLost"
        assert stage.tree(claim.folder) == before
        world.commit(claim, Succeeded(report=stage.report(claim)))
    lifecycle = finish(world)
    assert [hop.by for hop in lifecycle.hops if hop.reason is Reason.COMMITTED] == [claim.agent.id]


def test_a_dead_lock_removed_by_two_at_once_is_harmless(world: World) -> None:
    """Row 15: a dead lock removed by two at once: harmless."""
    lock = f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/lock"
    os.symlink("dead.0.0000000000000000", lock)
    with placed(Before("unlink", lambda: os.unlink(lock))) as seam:
        assert world.claim().attempt == 1
    assert seam.happened


def test_a_new_lock_removed_by_a_late_worker_is_harmless(world: World) -> None:
    """Row 15: a new lock removed by a late worker: the rename decides, and the winner restores its own lock."""
    lock = f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/lock"
    late = world.actor
    late_agent = world.agents["w"]
    world.process()
    world.join(name="winner")

    def remove_and_lock() -> None:
        """Act as the late worker, which saw the dead lock that the winner has since removed."""
        os.unlink(lock)
        os.symlink(late_agent.id, lock)

    with placed(Before("move", remove_and_lock)):
        claim = world.claim("winner")
    assert os.readlink(f"{claim.folder}/../../lock") == claim.agent.id
    assert claim_one(late, late_agent) is None


@pytest.mark.linux
def test_a_zombies_writes_reach_only_its_own_attempt(shm: Path) -> None:
    """Row 16: zombie writes into its old paths: reaches only its own attempt or temporary file."""
    world = queued_only(shm)
    with real_worker(world.root) as process:
        answer(process)
        process.send_signal(signal.SIGSTOP)
        store = watchdog(world)
        assert declare_silent(world, store) == ["stale"]
        store.resolve_stale(world.agents["keeper"], world.jobs[0])
        world.process()
        world.join(name="new")
        claim = world.claim("new")
        job = os.path.dirname(os.path.dirname(claim.folder))
        lifecycle = stage.read(f"{job}/job.json")
        process.send_signal(signal.SIGCONT)
        assert answer(process, "write") == "FileNotFoundError"  # by name: the path is gone
        assert answer(process, "job.json") == "FileNotFoundError"
        assert stage.read(f"{job}/attempts/0001/stdout") == b"late"  # by descriptor: its own attempt's file
        assert os.listdir(claim.folder) == []
        assert stage.read(f"{job}/job.json") == lifecycle
        world.commit(claim, Succeeded(report=stage.report(claim)))
    assert finish(world).status is Status.SUCCEEDED


def test_a_rename_onto_an_existing_directory_is_refused(shm: Path) -> None:
    """Row 17: rename onto an existing directory: refused (NOREPLACE), an empty one also."""
    (shm / "source").mkdir()
    (shm / "source" / "file").write_text("x")
    (shm / "empty").mkdir()
    with pytest.raises(FileExistsError):
        fs.move(str(shm / "source"), str(shm / "empty"))
    assert (shm / "source" / "file").read_text() == "x"
    assert list((shm / "empty").iterdir()) == []


def test_order_of_one_producer_is_kept_when_the_clock_jumps_back(shm: Path) -> None:
    """Row 18: clock jumps: FIFO order of one producer kept."""
    root = stage.make(str(shm / "root"))
    clock = stage.QuickClock()
    store = stage.open_files(root, seed=1, clock=clock)
    first = store.enqueue(stage.submission(1, job_id="zz-first"))
    hour_ns = 3600 * 10**9
    job = f"{root}/agents/Runner/incoming/{first}/job.json"
    ahead_ns = os.stat(job).st_mtime_ns + hour_ns  # it was written when the clock was an hour ahead
    os.utime(job, ns=(ahead_ns, ahead_ns))
    store._context.last_entry_ns = ahead_ns
    clock.offset_s -= 3600
    second = store.enqueue(stage.submission(2, job_id="aa-second"))
    third = store.enqueue(stage.submission(3))
    worker = store.join("w", role="Runner")
    claims = [claim_one(store, worker) for _ in range(3)]
    assert [claim.job_id for claim in claims if claim] == [first, second, third]
    store.close()


class JumpyClock(stage.QuickClock):
    """A wall clock that the test sets; the other clocks run normally."""

    def __init__(self) -> None:
        super().__init__()
        self.jump_s = 0.0

    def now(self) -> Any:
        return super().now() + timedelta(seconds=self.jump_s)


@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
def test_no_job_is_declared_stale_by_a_clock_jump(shm: Path, jump_s: float) -> None:
    """Row 18: clock jumps, laptop sleep: no job declared stale by it."""
    root = stage.make(str(shm / "root"))
    clock = JumpyClock()
    store = stage.open_files(root, seed=1, clock=clock)
    store.enqueue(stage.submission(1))
    worker = store.join("w", role="Runner")
    claim = claim_one(store, worker)
    assert claim is not None
    keeper_store = stage.open_files(root, seed=2, clock=clock)
    keeper = keeper_store.join("keeper", role=None)
    for _ in range(3):
        clock.jump_s += jump_s
        assert [done for done in keeper_store.recover(keeper) if done.job_id or done.agent] == []
    assert commit_one(store, claim, Succeeded(report=stage.report(claim))).status is Status.SUCCEEDED
    store.close()
    keeper_store.close()


def test_no_delay_is_stuck_after_a_clock_jump(shm: Path) -> None:
    """Row 18: clock jumps, laptop sleep: no delay stuck."""
    root = stage.make(str(shm / "root"))
    clock = JumpyClock()
    store = stage.open_files(root, seed=1, clock=clock)
    later = replace(stage.submission(1), not_before=clock.now() + timedelta(seconds=60))
    store.enqueue(later)
    worker = store.join("w", role="Runner")
    assert claim_one(store, worker) is None
    clock.jump_s = -3600.0
    assert claim_one(store, worker) is None
    clock.jump_s = 61.0  # set right again, or the machine slept: it is due at once
    assert claim_one(store, worker) is not None
    store.close()


def test_one_id_submitted_twice_is_one_job(shm: Path) -> None:
    """Row 19: same caller-chosen id submitted twice, also after a timeout: one job."""
    root = stage.make(str(shm / "root"))
    store = stage.open_files(root, seed=1)
    fsyncs = Counting(only("fsync"))
    with placed(fsyncs):
        store.enqueue(stage.submission(1, job_id="once"))
    for n in range(1, fsyncs.count + 1):
        name = f"again-{n}"
        with placed(Errno(n, 5, only=only("fsync"))), pytest.raises(SyncFailed):  # no answer, as in a timeout
            store.enqueue(stage.submission(1, job_id=name))
        assert store.enqueue(stage.submission(1, job_id=name)) == name
        assert store.enqueue(stage.submission(1, job_id=name)) == name
        with pytest.raises(IdConflict):
            store.enqueue(stage.submission(2, job_id=name))
        assert stage.everywhere(root)[name] == ["agents/Runner/incoming"]
    assert len(stage.everywhere(root)) == fsyncs.count + 1
    store.close()


def test_a_job_that_kills_its_worker_each_time_is_killed_with_the_reason(shm: Path) -> None:
    """Row 20: poison job that kills its worker each time: attempts exhausted → killed, with the reason."""
    world = queued_only(shm)
    attempts = 0
    while where(world) == "agents/Runner/incoming":
        world.process()
        world.join(name="victim")
        attempts = world.claim("victim").attempt
        world.die(world.actor)
        store = watchdog(world)
        assert recovered(world, store) == ["stale"]
        store.resolve_stale(world.agents["keeper"], world.jobs[0])
    lifecycle = world.lifecycle(world.jobs[0])
    assert (attempts, lifecycle.status) == (3, Status.KILLED)
    assert lifecycle.error is not None
    assert lifecycle.error["category"] == "attempts_exhausted"
    assert "gave up after 3 attempts; the last: agent victim." in lifecycle.error["message"]
    world.everybody_dies()


def test_an_acknowledged_change_is_synced_before_the_answer(shm: Path) -> None:
    """Row 21: power cut at any point: what is acknowledged was synced, in order (the states themselves: test_power)."""
    root = stage.make(str(shm / "root"))
    store = stage.open_files(root, seed=1)
    with placed(Recording()) as enqueueing:
        job_id = store.enqueue(stage.submission(1))
    calls = [(op, str(args[-1] if op == "fsync" else args[0])) for op, args in enqueueing.calls]
    moved = next(at for at, (op, _) in enumerate(calls) if op == "move")
    synced = {os.path.basename(path) for op, path in calls[:moved] if op == "fsync"}
    assert {"prompt.json", "job.json"} < synced
    assert calls[-1] == ("fsync", f"{root}/agents/Runner/incoming")
    worker = store.join("w", role="Runner")
    claim = claim_one(store, worker)
    assert claim is not None
    with placed(Recording()) as committing:
        commit_one(store, claim, Succeeded(report=stage.report(claim)))
    decided = next(
        at for at, (op, args) in enumerate(committing.calls) if op == "exchange" and args[1].endswith("/job.json")
    )
    before = [str(args[-1]) for op, args in committing.calls[:decided] if op == "fsync"]
    assert {os.path.basename(path) for path in before} >= {"result.json", "result.md", "0001", "attempts"}
    assert str(committing.calls[decided][1][0]) in before  # the new job.json itself, before it replaces the old
    assert committing.calls[-1][1][-1] == f"{root}/agents/Runner/completed/succeeded"
    assert job_id == claim.job_id
    store.close()


def plant(path: str, text: str) -> bytes:
    Path(path).write_text(text)
    return text.encode()


@pytest.mark.parametrize("version", [{"schema_version": "99.0.0"}, {}], ids=["another", "none"])
def test_an_unknown_schema_is_skipped_once_with_a_critical_log(world: World, version: dict[str, str]) -> None:
    """Row 24: schema version unknown or missing: skipped once with a critical log; never a busy loop, never
    overwritten."""
    path = f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/job.json"
    planted = plant(path, json.dumps({**version, "job_id": world.jobs[0]}))
    said: list[tuple[str, str]] = []
    store = stage.open_files(world.root, seed=9, log=lambda level, message, fields: said.append((level, message)))
    worker = store.join("w", role="Runner")
    keeper = store.join("keeper", role=None)
    for _ in range(3):
        assert claim_one(store, worker) is None
        store.recover(keeper)
    assert [level for level, _ in said] == ["critical"]
    with pytest.raises(FarroError, match=r"schema|99\.0\.0"):
        store.kill(keeper, world.jobs[0])
    assert stage.read(path) == planted
    store.close()


def test_an_unknown_schema_among_the_stale_is_skipped_once(world: World) -> None:
    """Row 24: schema version unknown, in jobs/stale: not touched by this version's manager."""
    world.claim()
    world.die(world.actor)
    recovered(world, watchdog(world))
    path = f"{world.root}/jobs/stale/{world.jobs[0]}/job.json"
    planted = plant(path, json.dumps({"schema_version": "99.0.0", "job_id": world.jobs[0]}))
    said: list[str] = []
    store = stage.open_files(world.root, seed=9, log=lambda level, message, fields: said.append(level))
    keeper = store.join("manager", role=None)
    assert [store.resolve_stale(keeper, world.jobs[0]) for _ in range(3)] == [None, None, None]
    assert said == ["critical"]
    assert stage.read(path) == planted
    store.close()


def test_an_unparsable_job_json_is_rebuilt_and_an_unparsable_prompt_quarantined(world: World) -> None:
    """Row 24: JSON unparsable: rebuilt, or quarantined and shown as failed; never a busy loop."""
    other = world.processes[0].enqueue(stage.submission(2))
    plant(f"{world.root}/agents/Runner/incoming/{world.jobs[0]}/job.json", "{torn")
    plant(f"{world.root}/agents/Runner/incoming/{other}/prompt.json", "{torn")
    assert world.claim().job_id == world.jobs[0]
    assert claim_one(world.actor, world.agents["w"]) is None
    assert stage.everywhere(world.root)[other] == ["jobs/quarantine"]
    seen = world.actor.find(other)
    assert seen is not None
    assert (seen.status, bool(seen.damaged)) == (Status.FAILED, True)


def test_a_corrupt_job_affects_itself_alone(world: World) -> None:
    """Row 26: corrupt state of one job: that job alone is affected."""
    dice = random.Random(26)
    for victim in ("job.json", "prompt.json"):
        job_id = world.enqueue()
        path = f"{world.root}/agents/Runner/incoming/{job_id}/{victim}"
        plant(path, "".join(chr(dice.randrange(32, 127)) for _ in range(200)))
    os.mkdir(f"{world.root}/agents/Runner/incoming/empty")
    plant(f"{world.root}/agents/Runner/incoming/file", "not a folder")
    world.enqueue()
    world.everybody_dies()
    stage.drain(world.root, world.history, store_policy=world.policy())
    places = [stage.everywhere(world.root)[job_id] for job_id in world.jobs]
    done, bad = ["agents/Runner/completed/succeeded"], ["jobs/quarantine"]
    assert places == [done, done, bad, done]


@pytest.mark.linux
def test_a_restart_with_work_in_flight_loses_nothing(shm: Path) -> None:
    """Row 27: daemon upgraded or restarted with work in flight: released or recovered, nothing lost."""
    world = queued_only(shm)
    world.enqueue()
    with real_worker(world.root) as process:  # one is killed in flight,
        answer(process)
        world.process()
        world.join()
        claim = world.claim()  # the other is asked to stop
        release_one(world.actor, claim, note="shutdown")
        world.actor.close()
        assert world.lifecycle(claim.job_id).hops[-1].reason is Reason.RELEASED
        process.kill()
        process.wait()
        finish(world)
    assert len(stage.everywhere(world.root)) == 2
    assert world.lifecycle(claim.job_id).attempts_in_hop(2) == 1  # a graceful release counts as no attempt


def test_one_owner_at_a_time_edits_a_stale_job(shm: Path) -> None:
    """Row 29: watchdog, manager and an operator edit one stale job at once: one owner at a time: move, then edit."""
    scenario = BY_NAME["settle_stale_again"]
    n = 0
    while True:
        n += 1
        world = verbplays.begin(str(shm / str(n)), scenario, durable=False)
        manager, manager_agent = world.actor, world.agents["operator"]
        operator = watchdog(world)

        def interfere(world: World = world, operator: FilesStore = operator) -> None:
            operator.recover(world.agents["keeper"])
            with suppress(TryAgain):
                world.told(operator.kill(world.agents["keeper"], world.jobs[0], note="enough"))

        with placed(Before("any", interfere, n)) as seam:
            told = manager.resolve_stale(manager_agent, world.jobs[0])
        if told is None:
            assert world.decided  # the operator held it
        verbplays.end(world, scenario)
        if not seam.happened:
            break
    assert n > 3


@pytest.mark.parametrize("name", ["recover_sealed_but_undecided", "recover_from_the_outbox", "recover_half_dispatched"])
def test_only_a_decided_attempts_children_are_delivered_and_once(shm: Path, name: str) -> None:
    """Row 30: children of an attempt that was fenced: not delivered; a decided attempt's are delivered once."""
    scenario = BY_NAME[name]
    world = verbplays.begin(str(shm / "root"), scenario, durable=False)
    scenario.act(world)
    scenario.act(world)
    verbplays.end(world, scenario)


def test_children_of_a_failed_commit_are_not_delivered_by_the_next(world: World) -> None:
    """Row 30: children of an attempt whose later commit asked for none: not delivered."""
    claim = world.claim()
    with placed(Errno(1, 28, only=only("exchange"), persistent=True)), pytest.raises(StorageTrouble):
        commit_one(world.actor, claim, verbplays.with_children(claim))
    world.commit(claim, verbplays.failure(claim))
    assert finish(world).status is Status.FAILED
    assert list(stage.everywhere(world.root)) == world.jobs


def test_a_missing_destination_leaves_the_source_untouched(world: World) -> None:
    """Row 31: destination folder missing: source untouched and reported; nothing stranded."""
    claim = world.claim()
    missing = f"{world.root}/agents/Runner/completed/succeeded"
    os.rmdir(missing)
    with pytest.raises(StorageTrouble, match="completed/succeeded is missing"):
        commit_one(world.actor, claim, Succeeded(report=stage.report(claim)))
    assert where(world) == f"agents/Runner/in-progress/{claim.agent.id}"
    world.die(world.actor)
    said: list[str] = []
    store = stage.open_files(world.root, seed=9, log=lambda level, message, fields: said.append(str(fields)))
    keeper = store.join("keeper", role=None)
    store.recover(keeper)
    assert "is missing" in said[0]
    os.mkdir(missing)
    store.recover(keeper)  # the same watchdog, still alive, now finishes its interrupted work
    assert where(world) == "agents/Runner/completed/succeeded"
    finish(world)
    assert world.history.executed == [(world.jobs[0], 1)]
    store.close()


def test_an_id_that_is_already_there_is_quarantined(world: World) -> None:
    """Row 31: the id already there: quarantined; nothing stranded, nothing overwritten."""
    claim = world.claim()
    there = f"{world.root}/agents/Runner/completed/succeeded/{claim.job_id}"
    os.mkdir(there)
    with pytest.raises(Damaged, match="already in agents/Runner/completed/succeeded"):
        commit_one(world.actor, claim, Succeeded(report=stage.report(claim)))
    assert os.listdir(there) == []
    assert where(world) == "jobs/quarantine"
    why = stage.read(f"{world.root}/jobs/quarantine/{claim.job_id}/quarantine.txt")
    assert b"already in agents/Runner/completed/succeeded" in why
    with pytest.raises(ClaimLost):
        commit_one(world.actor, claim, Succeeded(report=stage.report(claim)))
