"""Kill every command at every mutating call, and each of these kills again at every call of the following recovery.

A kill comes before each call, after each call that publishes something, and in the middle of each write. Healthy
processes then finish the jobs, and the result is checked: nothing lost, duplicated or unexpected.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import stage
from crash import verbplays
from crash.seams import Both, Counting, KillAt, placed
from crash.tally import add_figure
from crash.verbplays import ALL, BY_NAME, Scenario, World, killed, play_every_point, points
from stage import Crash
from support import torture

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
PAIRED = (
    "claim",
    "commit_success",
    "commit_for_another_try",
    "commit_with_children",
    "recover_from_the_outbox",
    "kill_stale",
    "kill_queued",
    "settle_stale_again",
    "settle_stale_give_up",
)
PARTS = 4  # splits the long plays between parallel test processes
KEEPER = 5_000  # seeds of the recovering processes


@BOTH
@pytest.mark.parametrize("name", [scenario.name for scenario in ALL])
def test_kill_at_every_call(name: str, durable: bool, shm: Path) -> None:
    add_figure("kill points, single", play_every_point(str(shm), name, durable=durable), "points")


JOURNALLED = {
    "enqueue_one_more",
    "enqueue",
    "enqueue_a_chosen_id",
    "enqueue_many",
    "commit_with_children",  # these plays have their own test ids
    "recover_from_the_outbox",
    "recover_half_dispatched",
    "commit_success",
    "commit_a_row",
    "commit_failure",
    "commit_for_another_try",
    "commit_with_routing",
    "route",
    "release",
}


@pytest.mark.parametrize("restarts", [False, True], ids=["process", "machine"])
@pytest.mark.parametrize("name", [scenario.name for scenario in ALL])
def test_kill_at_every_call_with_a_journal(name: str, restarts: bool, shm: Path) -> None:
    """Kill only the process, with recovery in the same boot; or restart the machine, with a replay first."""
    ops: set[str] = set()
    count = play_every_point(str(shm), name, durable=True, journal=True, restarts=restarts, ops=ops)
    assert ("write_sync" in ops) is (name in JOURNALLED)
    add_figure("kill points, with a journal", count, "points")


@pytest.mark.parametrize("restarts", [False, True], ids=["process", "machine"])
def test_kill_at_every_call_of_a_journals_rotation(restarts: bool, shm: Path) -> None:
    """Kill anywhere in a run of enqueues and commits that rotates and frees the journal's files and then closes it."""

    def work(world: World) -> None:
        world.process()
        world.join()
        for number in range(12):
            more = stage.Submission(role="Runner", prompt=stage.plan(number), narrative="why\n" * 400)
            world.history.enqueued.add(world.actor.enqueue(more))
            world.commit(world.claim(), verbplays.success(world.claims[-1]))
        world.actor.close()

    scenario = Scenario("rotation", verbplays.nothing, work)
    found = points(str(shm / "whole"), scenario, durable=True, journal=True)
    some = [seam for place, seam in enumerate(found) if torture() or place % 3 == 0 or seam.op == "syncfs"]
    for seam in some:
        world = verbplays.begin(str(shm / "root"), scenario, durable=True, journal=True)
        killed(world, scenario, seam)
        if restarts:
            world.restart()
        verbplays.end(world, scenario)
    assert sum(seam.op == "syncfs" for seam in some) >= 2
    add_figure("kill points, with a journal", len(some), "points")


def test_kill_at_every_call_of_enqueue(shm: Path) -> None:
    """A crash before the rename leaves no job, a crash after it leaves the job; counted exactly."""
    scenario = BY_NAME["enqueue"]
    for index, seam in enumerate(points(str(shm / "whole"), scenario, durable=True)):
        world = verbplays.begin(str(shm / str(index)), scenario, durable=True)
        moves = Counting(frozenset({"move"}))
        with placed(Both(moves, seam)), contextlib.suppress(Crash):
            scenario.act(world)
        published = bool(moves.ops) and not (seam.op == "move" and not seam.after)
        assert len(stage.everywhere(world.root)) == published, f"{seam!r}"


def test_kill_at_every_call_of_commit(shm: Path) -> None:
    """A kill before the decision repeats the attempt; a later kill is rolled forward and never repeated."""
    scenario = BY_NAME["commit_success"]
    for index, seam in enumerate(points(str(shm / "whole"), scenario, durable=True)):
        world = verbplays.begin(str(shm / str(index)), scenario, durable=True)
        killed(world, scenario, seam)
        (job_id,) = world.jobs
        decided = world.lifecycle(job_id).decision is not None
        world.everybody_dies()
        stage.drain(world.root, world.history, store_policy=world.policy())
        stage.judge(world.root, world.history)
        assert world.history.executed == ([(job_id, 1)] if decided else [(job_id, 1), (job_id, 2)])


# --- paired with recovery ----------------------------------------------------------------------------------------


def recovery(world: World, root: str, seed: int, seam: Counting | KillAt) -> None:
    """Run a pass of a watchdog and of the manager in one process, under `seam` after it has joined."""
    store = stage.open_files(root, seed=seed, store_policy=world.policy())
    keeper = store.join("keeper", role=None)
    try:
        with placed(seam):
            store.recover(keeper)
            for job_id in store.stale():
                world.told(store.resolve_stale(keeper, job_id))
    except Crash:
        pass
    stage.die(store)


def finish(world: World, scenario: Scenario, root: str, seed: int, how: str) -> None:
    kept = (world.root, world.history, dict(world.decided))
    world.root, world.history = root, _copy(world.history)
    try:
        verbplays.end(world, scenario, seed=seed)
    except AssertionError as error:
        raise AssertionError(f"{scenario.name}, {how}: {error}") from error
    finally:
        world.root, world.history, world.decided = kept


def _copy(history: stage.History) -> stage.History:
    return stage.History(
        enqueued=set(history.enqueued),
        tried=set(history.tried),
        committed={job_id: list(told) for job_id, told in history.committed.items()},
        lost=list(history.lost),
        executed=list(history.executed),
    )


def recoveries(world: World, scenario: Scenario, depth: int, how: str, seed: int) -> int:
    """Kill the next recovery at each call, and after each kill the next one, `depth` deep; count the endings."""
    base = world.root
    verbplays.clone(base, f"{base}-w")
    decided = dict(world.decided)
    with_counting = Counting()
    recovery(world, f"{base}-w", seed, with_counting)
    finish(world, scenario, f"{base}-w", seed + 1, f"{how}, recovered")
    world.decided = decided
    count = 0
    for m in range(1, with_counting.count + 1):
        root = f"{base}-{m}"
        verbplays.clone(base, root)
        seam = KillAt(m)
        recovery(world, root, seed, seam)
        assert seam.dead
        deeper = f"{how}, recovery killed at call {m} ({seam.op})"
        if depth > 1:
            world.root = root
            count += recoveries(world, scenario, depth - 1, deeper, seed + 100)
            world.root = base
            stage.remove(root)
        else:
            finish(world, scenario, root, seed + 1, deeper)
            count += 1
        world.decided = dict(decided)
    return count


def play_pairs(shm: Path, name: str, part: int, *, durable: bool, depth: int) -> int:
    """Play every `PARTS`-th kill point, each with a kill at every point of recovery; return the number of plays."""
    scenario = BY_NAME[name]
    found = points(str(shm / "whole"), scenario, durable=durable)
    # A kill after a call leaves the same bytes as a kill before the next call; only the last call has no next one.
    found = [seam for seam in found if not seam.after or seam is found[-1]]
    count = 0
    for index, seam in enumerate(found):
        if index % PARTS != part:
            continue
        world = verbplays.begin(str(shm / str(index)), scenario, durable=durable)
        killed(world, scenario, seam)
        world.everybody_dies()
        count += recoveries(world, scenario, depth, f"{seam!r}", KEEPER)
        stage.remove(world.root)
    return count


@BOTH
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PAIRED)
def test_kill_at_every_call_and_recovery_at_every_call(name: str, part: int, durable: bool, shm: Path) -> None:
    count = play_pairs(shm, name, part, durable=durable, depth=1)
    add_figure("kill points, paired with recovery", count, "pairs")


@pytest.mark.torture
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PAIRED)
def test_kill_at_every_call_and_two_recoveries_at_every_call(name: str, part: int, shm: Path) -> None:
    add_figure("kill points, triples", play_pairs(shm, name, part, durable=True, depth=2), "triples")
