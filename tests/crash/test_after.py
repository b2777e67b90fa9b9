"""Kill processes at every call while they submit, end, unblock and recover dependent jobs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import stage
from crash import test_errno, verbplays
from crash.seams import Before, Errno, KillAt, placed
from crash.tally import add_figure
from crash.test_errno import CODES
from crash.verbplays import BY_NAME, Scenario, World, failure, play_every_point, success
from farro.host.leases import Lease
from farro.jobs.outcomes import Outcome
from farro.jobs.states import Status
from farro.store.files import FilesStore, agents, dependencies
from farro.store.files.context import FilesContext
from farro.store.port import Agent, Submission

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])


def after(*job_ids: str, job_id: str | None = None, any_end: bool = False) -> Submission:
    return stage.submission(1, job_id=job_id, metadata={"after_any" if any_end else "after": list(job_ids)})


# --- what is prepared --------------------------------------------------------------------------------------------


def submitted(world: World, *items: Submission) -> None:
    for item in items:
        world.history.enqueued.add(world.processes[0].enqueue(item))


def first_queued(world: World) -> None:
    world.process()
    submitted(world, stage.submission(job_id="first"))
    world.process()


def chain(world: World) -> None:
    """Claim `first`; `second` needs its success, `third` needs that of `second`, `tidy` needs the end of `third`."""
    first_queued(world)
    submitted(
        world,
        after("first", job_id="second"),
        after("second", job_id="third"),
        after("third", job_id="tidy", any_end=True),
    )
    world.join()
    world.claim()


def chain_and_operator(world: World) -> None:
    chain(world)
    world.process()
    world.join(role=None, name="operator")


def dead_before_unblocking(world: World) -> None:
    """Kill the worker right after its commit's last move."""
    chain(world)
    with pytest.raises(stage.Crash), placed(KillAt(1, after=True, only=MOVE)):
        commit(success)(world)
    world.die(world.actor)
    watchdog(world)


MOVE = frozenset({"move"})


def dead_while_unblocking(world: World) -> None:
    """Kill the worker after it took the dependent to unblock it."""
    chain(world)
    with pytest.raises(stage.Crash), placed(KillAt(3, after=True, only=MOVE)):  # job, agent, dependent
        commit(success)(world)
    world.die(world.actor)
    watchdog(world)


def dead_operator_with_a_waiting_job(world: World) -> None:
    chain_and_operator(world)
    with pytest.raises(stage.Crash), placed(KillAt(1, after=True, only=MOVE)):
        kill_second(world)
    world.die(world.actor)
    watchdog(world)


def pruned(world: World) -> None:
    """Finish and remove the dependency before any process unblocks its dependents."""
    dead_before_unblocking(world)
    submitted(world, after("second", job_id="patient", any_end=True))
    for store in world.processes:  # a job that is still in a journal is never removed
        if store._context.journal is not None:
            store._context.journal.close()
    shutil.rmtree(f"{world.root}/agents/Runner/completed/succeeded/first")
    world.history.enqueued.discard("first")


def watchdog(world: World) -> None:
    world.process()
    world.join(role=None, name="keeper")


# --- what one process does ---------------------------------------------------------------------------------------


def commit(outcome: object) -> verbplays.Step:
    def act(world: World) -> None:
        made: Outcome = outcome(world.claims[-1])  # type: ignore[operator]
        world.commit(world.claims[-1], made)

    return act


def submit_minted(world: World) -> None:
    world.history.enqueued.add(world.actor.enqueue(after("first")))


def submit_chosen(world: World) -> None:
    world.history.tried.add("second")
    world.history.enqueued.add(world.actor.enqueue(after("first", job_id="second")))


def submit_batch(world: World) -> None:
    items = [stage.submission(2, job_id="a"), after("a", "first", job_id="b"), after("b")]
    world.history.enqueued.update(job.id for job in world.actor.enqueue_many(items))


def submit_again(world: World) -> None:
    world.process()
    submit_chosen(world)
    assert sorted(stage.everywhere(world.root)) == ["first", "second"]


def submit_while_the_dependency_ends(world: World) -> None:
    """End the dependency after the submitter's first check and before the index names the dependent."""
    register = dependencies.register

    def late(*args: object) -> list[str]:
        dependencies.register = register
        commit(success)(world)
        return register(*args)  # type: ignore[arg-type]

    dependencies.register = late  # type: ignore[assignment]
    try:
        world.history.enqueued.add(world.processes[0].enqueue(after("first", job_id="late")))
    finally:
        dependencies.register = register


def kill_second(world: World) -> None:
    world.told(world.actor.kill(world.agents["operator"], "second"))


def recover(world: World) -> None:
    world.actor.recover(world.agents["keeper"])


def claim_at_once(world: World) -> None:
    claim = world.actor.enqueue_claimed(world.agents["w"], stage.submission(1))
    assert claim is not None
    world.history.enqueued.add(claim.job_id)
    world.history.executed.append((claim.job_id, claim.attempt))


def joined(world: World) -> None:
    world.process()
    world.join()


# --- what must be ------------------------------------------------------------------------------------------------


def ends(**wanted: Status) -> verbplays.Step:
    def check(world: World) -> None:
        found = {name: world.lifecycle(name).status for name in wanted if name in stage.everywhere(world.root)}
        assert found == wanted
        nothing_waits(world)

    return check


def nothing_waits(world: World) -> None:
    """Check that no job is left in the index, except those that a dead submitter left in staging."""
    staged = {name.split(".")[0] for name in os.listdir(f"{world.root}/jobs/.staging")}
    assert {name for names in index(world.root).values() for name in names} <= staged


def index(root: str) -> dict[str, list[str]]:
    home = f"{root}/jobs/.after"
    return {name: os.listdir(f"{home}/{name}") for name in os.listdir(home)} if os.path.isdir(home) else {}


def in_order(world: World) -> None:
    """Check that no dependent ran before its dependency."""
    order = [job_id for job_id, _ in world.history.executed]
    assert order.index("first") == 0
    nothing_waits(world)


def second_came_or_not(world: World) -> None:
    """Accept both outcomes: if the operator was killed before its decision, `second` runs and succeeds."""
    told = {world.lifecycle(name).status for name in ("second", "third")}
    assert told in ({Status.SUCCEEDED}, {Status.KILLED})
    assert world.lifecycle("tidy").status is Status.SUCCEEDED
    nothing_waits(world)


GOOD = ends(first=Status.SUCCEEDED, second=Status.SUCCEEDED, third=Status.SUCCEEDED, tidy=Status.SUCCEEDED)


def good_or_repeated(world: World) -> None:
    GOOD(world)
    in_order(world)


def bad_or_repeated(world: World) -> None:
    """Accept both outcomes: an undecided failure is repeated by the drain, which succeeds."""
    if world.lifecycle("first").status is Status.SUCCEEDED:
        return GOOD(world)
    told = world.lifecycle("second")
    assert (told.error or {})["category"] == "dependency_failed"
    return ends(first=Status.FAILED, second=Status.KILLED, third=Status.KILLED, tidy=Status.SUCCEEDED)(world)


def as_pruned(world: World) -> None:
    ends(second=Status.KILLED, third=Status.KILLED, tidy=Status.SUCCEEDED, patient=Status.SUCCEEDED)(world)


def no_debris(world: World) -> None:
    assert not os.path.isdir(f"{world.root}/jobs/.after") or index(world.root) == {}


PLAYS: Sequence[Scenario] = (
    Scenario("enqueue_a_dependent", first_queued, submit_minted, check=in_order),
    Scenario("enqueue_a_chosen_dependent", first_queued, submit_chosen, submit_again, in_order),
    Scenario("enqueue_dependents_of_a_batch", first_queued, submit_batch, check=nothing_waits),
    Scenario("enqueue_while_the_dependency_ends", chain, submit_while_the_dependency_ends, check=good_or_repeated),
    Scenario("commit_with_dependents", chain, commit(success), check=good_or_repeated),
    Scenario("commit_a_failure_with_dependents", chain, commit(failure), check=bad_or_repeated),
    Scenario("kill_a_waiting_job", chain_and_operator, kill_second, check=second_came_or_not),
    Scenario("recover_dependents", dead_before_unblocking, recover, check=good_or_repeated),
    Scenario("recover_a_dependent_in_dead_hands", dead_while_unblocking, recover, check=good_or_repeated),
    Scenario("recover_a_waiting_job_in_dead_hands", dead_operator_with_a_waiting_job, recover, check=good_or_repeated),
    Scenario("recover_dependents_of_what_is_gone", pruned, recover, check=as_pruned),
    Scenario("enqueue_and_claim_at_once", joined, claim_at_once, check=no_debris),
)
NAMES = [scenario.name for scenario in PLAYS]


@pytest.fixture(autouse=True)
def known_plays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the plays by name. Also drop the leases of agents that were made only for unblocking: when such an agent
    is killed while leaving, its lease would stay held, because the test process lives on."""
    for scenario in PLAYS:
        monkeypatch.setitem(BY_NAME, scenario.name, scenario)
    die, join = World.die, agents.join
    made: list[tuple[FilesContext, Lease]] = []

    def noted(context: FilesContext, *args: Any, **more: Any) -> Agent:
        agent = join(context, *args, **more)
        made.append((context, context.local_agents[agent.id].lease))
        return agent

    def die_with_all(world: World, store: FilesStore) -> None:
        die(world, store)
        for context, lease in made:
            if context is store._context:
                lease.drop()
        made[:] = [item for item in made if item[0] is not store._context]

    monkeypatch.setattr(agents, "join", noted)
    monkeypatch.setattr(World, "die", die_with_all)
    yield
    made.clear()


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_kill_at_every_call_of_dependent_jobs(name: str, durable: bool, shm: Path) -> None:
    add_figure("kill points, dependencies", play_every_point(str(shm), name, durable=durable), "points")


@pytest.mark.parametrize("restarts", [False, True], ids=["process", "machine"])
@pytest.mark.parametrize("name", NAMES)
def test_kill_at_every_call_of_dependent_jobs_with_a_journal(name: str, restarts: bool, shm: Path) -> None:
    count = play_every_point(str(shm), name, durable=True, journal=True, restarts=restarts)
    add_figure("kill points, dependencies", count, "points")


@pytest.mark.parametrize("name", [name for name in NAMES if "while_the_dependency" not in name])
def test_errno_at_every_call_of_dependent_jobs(name: str, shm: Path) -> None:
    """An error while unblocking does not fail the commit: it is acknowledged, and the next pass unblocks."""
    n = 0
    while True:
        n += 1
        seam = Errno(n, CODES[n % len(CODES)])
        alive = name.startswith(("commit", "enqueue_a_", "enqueue_dep"))  # in the others a worker still runs `first`
        test_errno.play(shm / str(n), name, seam, alive=alive)
        if seam.hit is None:
            break
    assert n > 5


def test_a_commit_is_acknowledged_even_if_unblocking_fails(shm: Path) -> None:
    for n in range(1, 4):
        world = verbplays.begin(str(shm / str(n)), BY_NAME["commit_with_dependents"], durable=False)
        only = frozenset({"move"})
        with placed(Errno(n + 1, 28, persistent=True, only=only)):
            commit(success)(world)
        assert world.history.committed == {"first": [(1, Status.SUCCEEDED)]}
        assert world.lifecycle("second").status is Status.QUEUED
        verbplays.end(world, BY_NAME["commit_with_dependents"], alive=True)


def test_two_processes_unblock_one_job(shm: Path) -> None:
    """A watchdog overtakes the worker that ended the dependency, at each of its calls."""
    calls = 1
    while True:
        world = verbplays.begin(str(shm / str(calls)), BY_NAME["commit_with_dependents"], durable=False)
        other = stage.open_files(world.root, seed=777, clock=world.clock, store_policy=world.policy())
        keeper = other.join("keeper", role=None)
        seam = Before("any", lambda other=other, keeper=keeper: other.recover(keeper), calls)  # type: ignore[misc]
        with placed(seam):
            commit(success)(world)
        other.close()
        assert len(stage.everywhere(world.root)["second"]) == 1
        verbplays.end(world, BY_NAME["commit_with_dependents"])
        if not seam.happened:
            break
        calls += 1
    assert calls > 10


def test_a_power_cut_cannot_keep_a_waiting_job_and_lose_its_entry(shm: Path) -> None:
    """The index and its folders are synced before the job appears as waiting."""
    world = verbplays.begin(str(shm / "root"), BY_NAME["enqueue_a_dependent"], durable=True)
    synced: list[str] = []
    moved: list[list[str]] = []

    class Watching:
        def perform(self, op: str, call: object, args: tuple[object, ...]) -> object:
            if op == "fsync":
                synced.append(str(args[1]))
            if op == "move" and "/waiting/" in str(args[1]):
                moved.append(list(synced))
            return call(*args)  # type: ignore[operator]

        def look(self, op: str, path: str) -> None:
            pass

    with placed(Watching()):
        submit_minted(world)
    home = dependencies.index(world.actor._context)
    assert {f"{home}/first", home, f"{world.root}/jobs"} <= set(moved[0])
    assert synced[-1] == f"{world.root}/agents/Manager/waiting"
    world.everybody_dies()


def test_an_entry_whose_folder_vanishes_is_made_again(shm: Path) -> None:
    world = verbplays.begin(str(shm / "root"), BY_NAME["enqueue_a_dependent"], durable=False)
    home = dependencies.index(world.actor._context)

    def vanish() -> None:
        os.rmdir(f"{home}/first")

    with placed(Before("symlink", vanish)):
        submit_minted(world)
    assert index(world.root)["first"] == list(world.history.enqueued - {"first"})
    world.everybody_dies()
