"""Properties of the file store alone: leases, locks, the order of its calls, and the cost of a claim."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters import Files, make_adapter
from crash.seams import BadLook, placed
from farro.errors import BadName, ClaimLost, Damaged, NotARoot, TryAgain
from farro.host import fs, leases
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Succeeded, Unroutable
from farro.jobs.states import Reason, Status
from farro.store.feed import ChangeFeed
from farro.store.files import FilesStore
from farro.store.port import Agent, Claim, QueuePause, Submission
from one_job import claim_one, commit_one, release_one
from stage import Crash, plan, read, report, submission

YEARS_S = 20 * 365 * 86400


class Watch:
    """A seam that records every filesystem call and lets a test act before one of them."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, str]] = []
        self.performs: list[tuple[str, tuple[Any, ...]]] = []
        self.before: Callable[[str, tuple[Any, ...]], None] | None = None
        self.after: Callable[[str, tuple[Any, ...]], None] | None = None

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.performs.append((op, args))
        self._act("before", op, args)
        answer = call(*args)
        self._act("after", op, args)
        return answer

    def _act(self, when: str, op: str, args: tuple[Any, ...]) -> None:
        act = getattr(self, when)
        if act is not None:
            setattr(self, when, None)  # calls by the test itself are not recorded
            act(op, args)
            if getattr(self, when) is None:
                setattr(self, when, act)

    def look(self, op: str, path: str) -> None:
        self.looks.append((op, path))

    @property
    def cost(self) -> int:
        return len(self.looks) + len(self.performs)

    def ops(self) -> Counter[str]:
        return Counter(op for op, _ in self.performs)


@contextmanager
def watched() -> Iterator[Watch]:
    seam = Watch()
    fs.set_seam(seam)
    try:
        yield seam
    finally:
        fs.set_seam(None)


def once(op: str, needle: str, act: Callable[[], None]) -> Callable[[str, tuple[Any, ...]], None]:
    """Call `act` before the first call of that kind whose last path contains `needle`."""
    todo = [act]

    def maybe(called: str, args: tuple[Any, ...]) -> None:
        if todo and called == op and any(isinstance(arg, str) and needle in arg for arg in args):
            todo.pop()()

    return maybe


def crash() -> None:
    raise Crash


def silent(files: Files, dog: Agent) -> None:
    """Let the watchdog run passes for longer than an agent may be silent, while no other agent beats."""
    for _ in range(2):
        files.clock.advance(1000)
        files.store.heartbeat(dog)
        files.store.recover(dog)


def claimed(store: FilesStore, agent: Agent) -> Claim:
    claim = claim_one(store, agent)
    assert claim is not None
    return claim


def success(claim: Claim, *children: Child) -> Succeeded:
    return Succeeded(report=report(claim), children=children)


def lifecycle(files: Files, place: str, job_id: str) -> Lifecycle:
    return Lifecycle.from_json(read(f"{files.root}/{place}/{job_id}/job.json"))


# --- agents ------------------------------------------------------------------------------------------------------


@pytest.mark.linux
def test_no_handle_into_a_jobs_folder_is_kept(files: Files) -> None:
    """R4: a handle would follow the folder to its next owner; the path of a job that was taken gives ENOENT instead."""
    job_id = files.store.enqueue(submission())
    agent = files.store.join("worker", role="Runner")
    claim = claim_one(files.store, agent)
    assert claim is not None

    def into_the_job() -> list[str]:
        with os.scandir("/proc/self/fd") as entries:
            open_now = [os.readlink(entry.path) for entry in entries if os.path.lexists(entry.path)]
        return [path for path in [*open_now, os.getcwd()] if f"/{job_id}" in path]

    assert into_the_job() == []
    files.store.heartbeat(agent, claim)
    commit_one(files.store, claim, Succeeded(report=report(claim)))
    assert into_the_job() == []


@pytest.mark.parametrize("role", ["Runner", None])
def test_an_agent_appears_already_leased(files: Files, role: str | None) -> None:
    seen: list[bool] = []
    with watched() as seam:

        def look(op: str, args: tuple[Any, ...]) -> None:
            if op == "move":
                seen.append(leases.is_held(f"{args[1]}/.lease"))

        seam.after = look
        agent = files.store.join("worker", role=role)
    assert seen == [True]
    home = "jobs/.held" if role is None else "agents/Runner/in-progress"
    identity = json.loads(read(f"{files.root}/{home}/{agent.id}/.lease"))
    assert identity == {"host": "stage", "boot_id": "0", "pid": 1, "start": 0, "started_at": "2026-11-15T12:00:00.000Z"}


def test_a_leaving_agent_removes_its_folder(files: Files) -> None:
    agent = files.store.join("worker", role="Runner")
    files.store.leave(agent)
    assert os.listdir(f"{files.root}/agents/Runner/in-progress") == []


def test_identity_never_decides_death(files: Files) -> None:
    """A process id may be reused or belong to another namespace: the lease alone decides (RELIABILITY 8, 9)."""
    store = files.store
    living, dead = store.join("a", role="Runner"), store.join("b", role="Runner")
    home = f"{files.root}/agents/Runner/in-progress"
    for agent, pid in ((living, 2**22 + 1), (dead, os.getpid())):
        with open(f"{home}/{agent.id}/.lease", "r+") as file:
            file.write(json.dumps({"host": "elsewhere", "boot_id": "x", "pid": pid, "start": 1, "started_at": "t"}))
    files.die(dead)
    assert {view.id: view.alive for view in store.agents()} == {living.id: True, dead.id: False}
    store.recover(store.join("dog", role=None))
    assert living.id in os.listdir(home)
    assert dead.id not in os.listdir(home)


def test_a_folder_that_is_not_a_root_is_refused(tmp_path: Path) -> None:
    context = make_adapter("power", str(tmp_path / "root")).store._context  # type: ignore[attr-defined]
    context.root = str(tmp_path)
    with pytest.raises(NotARoot, match="farro init"):
        FilesStore(context)


# --- claiming ----------------------------------------------------------------------------------------------------


def test_a_claimed_job_shows_its_owner(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claim = claimed(files.store, agent)
    home = f"{files.root}/agents/Runner/in-progress/{agent.id}/j"
    assert os.readlink(f"{home}/lock") == agent.id
    assert claim.folder == f"{home}/attempts/0001"
    assert os.path.isdir(claim.folder)


def test_the_lock_of_an_agent_that_died_before_the_move_is_removed(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    with watched() as seam:
        seam.before = once("move", "/in-progress/", crash)
        with pytest.raises(Crash):
            claim_one(victim, agent)
    lock = f"{files.root}/agents/Runner/incoming/j/lock"
    assert os.readlink(lock) == agent.id, "complete, with its owner"
    survivor = files.store.join("worker", role="Runner")
    assert claim_one(files.store, survivor) is None, "its holder is alive"
    files.die(agent, victim)
    files.clock.advance(1)  # a lock that stays is looked at again
    claim = claimed(files.store, survivor)
    assert claim.attempt == 1, "it was never started"
    assert os.readlink(f"{os.path.dirname(os.path.dirname(claim.folder))}/lock") == survivor.id


def test_the_winner_of_a_move_restores_its_lock(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    lock = f"{files.root}/agents/Runner/incoming/j/lock"

    def late() -> None:
        os.unlink(lock)
        os.symlink("late.0.0123456789abcdef", lock)

    with watched() as seam:
        seam.before = once("move", "/in-progress/", late)
        claim = claimed(files.store, agent)
    home = os.path.dirname(os.path.dirname(claim.folder))
    assert os.readlink(f"{home}/lock") == agent.id
    commit_one(files.store, claim, success(claim))
    assert "lock" not in os.listdir(f"{files.root}/agents/Runner/completed/succeeded/j")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_job_edited_between_read_and_move_is_read_again(files: Files, turns: int) -> None:
    """Another worker claims the job and returns it meanwhile. The filesystem may give the new job.json the inode of the
    one that was read; here it always does."""
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    other = files.process()
    quick = other.join("quick", role="Runner")
    incoming, kept = f"{files.root}/agents/Runner/incoming/j", f"{files.root}/kept"
    os.link(f"{incoming}/job.json", kept)

    def meanwhile() -> None:
        os.unlink(f"{incoming}/lock")  # a lock that seems dead to them
        for _ in range(turns):
            release_one(other, claimed(other, quick))
        Path(kept).write_bytes(read(f"{incoming}/job.json"))
        os.rename(kept, f"{incoming}/job.json")

    with watched() as seam:
        seam.before = once("move", "/in-progress/", meanwhile)
        claim = claimed(files.store, agent)
    now = claim.envelope.lifecycle
    assert claim.attempt == now.attempt == turns + 1
    assert [hop.reason for hop in now.hops] == [Reason.RELEASED] * turns


def test_a_job_that_left_and_came_back_is_read_again(files: Files) -> None:
    agent = files.store.join("worker", role="Runner")
    assert claim_one(files.store, agent) is None
    files.store.enqueue(submission(job_id="j"))
    other = files.process()
    release_one(other, claimed(other, other.join("quick", role="Runner")))
    claim = claimed(files.store, agent)
    assert claim.attempt == 2
    assert [hop.reason for hop in claim.envelope.lifecycle.hops] == [Reason.RELEASED]


def test_a_prompt_edited_in_the_queue_is_read(files: Files) -> None:
    agent = files.store.join("worker", role="Runner")
    assert claim_one(files.store, agent) is None
    files.store.enqueue(submission(job_id="j"))
    path = Path(files.root, "agents/Runner/incoming/j/prompt.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "plan_id": "put-right"}))
    files.clock.advance(1)
    assert claimed(files.store, agent).envelope.prompt["plan_id"] == "put-right"


def test_an_attempt_is_counted_before_work_starts(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    with watched() as seam:
        seam.before = once("exchange", "/job.json", crash)
        with pytest.raises(Crash):
            claim_one(victim, agent)
    home = f"agents/Runner/in-progress/{agent.id}"
    assert lifecycle(files, home, "j").status is Status.QUEUED, "job.json still says so; the path wins"
    assert os.listdir(f"{files.root}/{home}/j/attempts") == ["0001"]
    seen = files.store.find("j")
    assert seen is not None
    assert seen.status is Status.IN_PROGRESS
    files.die(agent, victim)
    boss = files.store.join("boss", role=None)
    files.store.recover(boss)
    assert lifecycle(files, "jobs/stale", "j").attempt == 1
    files.store.resolve_stale(boss, "j")
    files.clock.advance(10)
    assert claimed(files.store, files.store.join("worker", role="Runner")).attempt == 2


def test_a_claim_syncs_only_when_there_is_something_to_lose(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    with watched() as seam:
        claim = claimed(files.store, agent)
        assert seam.ops()["fsync"] == 0
        release_one(files.store, claim)
        before = seam.ops()["fsync"]
        claimed(files.store, agent)
        assert seam.ops()["fsync"] == before + 1, "hops are there now: job.json is synced before it replaces (R6)"


def test_each_worker_examines_a_job_once(files: Files) -> None:
    for n in range(30):
        files.store.enqueue(submission(n, metadata={"tags": ["gpu"]}))
    for n in range(30):
        files.store.enqueue(Submission(role="Runner", prompt=plan(n), not_before=files.clock.now().replace(year=2040)))
    agents = [files.store.join("worker", role="Runner", slot=slot) for slot in range(3)]
    with watched() as seam:
        for _ in range(5):
            assert [claim_one(files.store, agent) for agent in agents] == [None] * 3
            files.clock.advance(31)  # past a rescan, which lists names only
    prompts = Counter(path for op, path in seam.looks if op == "read" and path.endswith("/prompt.json"))
    assert len(prompts) == 60
    assert set(prompts.values()) == {1}


def test_an_idle_worker_finds_an_unreported_job_by_polling(files: Files) -> None:
    files.policy = replace(files.policy, rescan_s=30.0, poll_s=5.0)
    store = files.process()
    store._feeds.update({role: ChangeFeed() for role in (None, *store.roles())})  # a disk that reports no changes
    agent = store.join("worker", role="Runner")
    assert claim_one(store, agent) is None
    files.store.enqueue(submission(job_id="j"))
    files.clock.advance(4.9)
    assert claim_one(store, agent) is None
    files.clock.advance(0.2)
    assert claimed(store, agent).job_id == "j"


def test_a_claim_does_not_list_the_queue(files: Files) -> None:
    agent = files.store.join("worker", role="Runner")
    files.store.enqueue_many([submission(n) for n in range(20)])
    claim = claimed(files.store, agent)
    incoming = f"{files.root}/agents/Runner/incoming"
    with watched() as seam:
        while claim is not None:
            commit_one(files.store, claim, success(claim))
            if len(seam.performs) < 200:
                files.store.enqueue(submission())
            following = claim_one(files.store, agent)
            if following is None:
                break
            claim = following
    assert ("list", incoming) not in seam.looks


@pytest.mark.parametrize("kind", ["power", "process"])
def test_the_cost_of_a_claim_does_not_grow_with_the_backlog(shm: Path, figure: Callable[..., None], kind: str) -> None:
    """The system calls of a claim and its commit after the queue was listed, counted at the seam."""
    costs: dict[int, set[int]] = {}
    for backlog in (100, 3000):
        made = make_adapter(kind, str(shm / f"{kind}-{backlog}"))
        made.store.enqueue_many([submission(n) for n in range(backlog)])
        agent = made.store.join("worker", role="Runner")
        first = claim_one(made.store, agent)
        assert first is not None
        commit_one(made.store, first, success(first))
        costs[backlog] = set()
        for _ in range(50):
            with watched() as seam:
                claim = claim_one(made.store, agent)
                assert claim is not None
                commit_one(made.store, claim, success(claim))
            costs[backlog].add(seam.cost)
        made.close()
    assert costs[100] == costs[3000]
    assert len(costs[100]) == 1
    figure(f"calls of a claim and commit ({kind}), backlog 100 and 3000", costs[100].pop(), "calls")


def test_durability_differs_only_in_syncing(shm: Path) -> None:
    calls = {}
    for kind in ("power", "process"):
        made = make_adapter(kind, str(shm / kind))
        with watched() as seam:
            made.store.enqueue(submission(job_id="j"))
            claim = claim_one(made.store, made.store.join("worker", role="Runner"))
            assert claim is not None
            commit_one(made.store, claim, success(claim))
        made.close()
        calls[kind] = [op for op, _ in seam.performs]
    assert "fsync" not in calls["process"]
    assert [op for op in calls["power"] if op != "fsync"] == calls["process"]


# --- committing --------------------------------------------------------------------------------------------------


def test_results_are_mirrored_in_the_jobs_folder(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    claim = claimed(files.store, files.store.join("worker", role="Runner"))
    commit_one(files.store, claim, success(claim))
    home = f"{files.root}/agents/Runner/completed/succeeded/j"
    assert read(f"{home}/result.md") == read(f"{home}/attempts/0001/result.md")
    assert json.loads(read(f"{home}/attempts/0001/result.json"))["attempt"] == 1
    assert sorted(os.listdir(home)) == ["attempts", "job.json", "prompt.json", "result.md"]


@pytest.mark.parametrize("ends", ["", "f", "sf", "fs", "fsf"])
def test_planted_mirrors_are_replaced_by_those_of_the_attempts(files: Files, ends: str) -> None:
    """SPEC-1 §9: a worker that finds both reconciles from attempts/; an older success stays until a newer one."""
    agent = files.store.join("worker", role="Runner")
    job_id = files.store.enqueue(submission())
    for end in ends:  # a success that is routed on, or a failure that is tried again
        claim = claimed(files.store, agent)
        move = Move(reason=Reason.ROUTED, status=Status.QUEUED, role="Runner")
        failed = Failed(error=ErrorInfo(category="x", message="y"), retryable=True, report=report(claim))
        outcome = success(claim) if end == "s" else failed
        commit_one(files.store, claim, outcome, move if end == "s" else None)
        files.clock.advance(100)
    home = Path(files.root, "agents/Runner/incoming", job_id)
    for name in ("result.md", "error.md"):
        (home / name).unlink(missing_ok=True)
        (home / name).write_text("planted")
    home = Path(claimed(files.store, agent).folder).parents[1]
    good, last = ends.rfind("s") + 1, len(ends)
    wanted = {"result.md": good, "error.md": last if last > good else 0}
    assert {name: read(f"{home}/{name}") for name in wanted if (home / name).exists()} == {
        name: read(f"{home}/attempts/{attempt:04d}/{name}") for name, attempt in wanted.items() if attempt
    }


def test_a_job_that_was_declared_succeeded_says_who_and_why(files: Files) -> None:
    job_id = files.store.enqueue(submission())
    claim = claimed(files.store, files.store.join("worker", role="Runner"))
    commit_one(files.store, claim, Unroutable(error=ErrorInfo(category="x", message="y"), report=report(claim)))
    files.store.recover(files.store.join("watchdog", role=None))
    operator = files.store.join("cli-ann", role=None)
    files.store.force_complete(operator, job_id, note="Done by hand.")
    home = f"{files.root}/agents/Runner/completed/succeeded/{job_id}"
    told = read(f"{home}/result.md").decode()
    assert f"By {operator.id} at " in told
    assert told.endswith("\n\nDone by hand.\n")
    assert not os.path.exists(f"{home}/error.md")


def test_enoent_with_the_source_still_there_is_not_a_fence(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claim = claimed(files.store, agent)
    os.rmdir(claim.folder)  # a step removed a folder of the store
    with pytest.raises(Damaged):
        commit_one(files.store, claim, success(claim))
    files.store.heartbeat(agent, claim)  # still ours
    os.mkdir(claim.folder)
    assert commit_one(files.store, claim, success(claim)).status is Status.SUCCEEDED


def test_children_of_a_fenced_attempt_are_not_delivered(files: Files) -> None:
    files.store.enqueue(submission(job_id="parent"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    claim = claimed(victim, agent)
    with watched() as seam:
        seam.before = once("exchange", "/job.json", crash)  # sealed, not decided
        with pytest.raises(Crash):
            commit_one(victim, claim, success(claim, Child(role="Runner", prompt=plan(1))))
    assert os.path.exists(f"{files.root}/agents/Runner/in-progress/{agent.id}/parent/outbox/0001.json")
    files.die(agent, victim)
    boss = files.store.join("boss", role=None)
    files.store.recover(boss)
    files.store.force_complete(boss, "parent")
    files.store.recover(boss)
    assert [seen.job_id for seen in files.store.list()] == ["parent"]
    with pytest.raises(ClaimLost):
        commit_one(
            files.store,
            Claim(
                agent=files.store.join("worker", role="Runner"),
                envelope=claim.envelope,
                attempt=claim.attempt,
                folder=claim.folder,
            ),
            success(claim, Child(role="Runner", prompt=plan(1))),
        )
    assert len(files.store.list()) == 1


def test_children_in_the_outbox_are_delivered_by_the_next_watchdog(files: Files) -> None:
    files.store.enqueue(submission(job_id="parent"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    claim = claimed(victim, agent)
    with watched() as seam:
        seam.after = once("move", "/jobs/outbox/", crash)
        with pytest.raises(Crash):
            commit_one(victim, claim, success(claim, Child(role="Runner", prompt=plan(1))))
    files.die(agent, victim)
    done = files.store.recover(files.store.join("dog", role=None))
    assert ("parent", "dispatched") in [(each.job_id, each.what) for each in done]
    found = {seen.job_id: seen.status for seen in files.store.list()}
    assert found == {"parent": Status.SUCCEEDED, ids.child_id("parent", 1, 0): Status.QUEUED}


def test_a_planted_decision_cannot_name_a_path(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claim = claimed(files.store, agent)
    home = f"{files.root}/agents/Runner/in-progress/{agent.id}/j"
    data = json.loads(read(f"{home}/job.json"))
    data["decision"] = {"attempt": claim.attempt, "reason": "committed", "to": "../../elsewhere", "not_before": None}
    os.unlink(f"{home}/job.json")
    with open(f"{home}/job.json", "w") as file:
        json.dump(data, file)
    os.makedirs(os.path.join(os.path.dirname(files.root), "elsewhere"), exist_ok=True)
    files.die(agent)
    files.store.recover(files.store.join("dog", role=None))
    assert os.listdir(f"{files.root}/jobs/quarantine") == ["j"]
    seen = files.store.find("j")
    assert seen is not None
    assert seen.status is Status.FAILED
    assert "is not a place for a job" in (seen.damaged or "")


# --- recovery ----------------------------------------------------------------------------------------------------


def test_decided_job_is_rolled_forward(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    claim = claimed(victim, agent)
    with watched() as seam:
        seam.before = once("move", "/completed/", crash)
        with pytest.raises(Crash):
            commit_one(victim, claim, success(claim))
    files.die(agent, victim)
    done = files.store.recover(files.store.join("dog", role=None))
    assert ("j", "rolled_forward") in [(each.job_id, each.what) for each in done]
    now = lifecycle(files, "agents/Runner/completed/succeeded", "j")
    assert (now.status, now.attempt, len(now.hops)) == (Status.SUCCEEDED, 1, 1)
    assert claim_one(files.store, files.store.join("worker", role="Runner")) is None, "not repeated"


def test_killing_a_decided_job_returns_its_decision(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    victim = files.process()
    agent = victim.join("worker", role="Runner")
    claim = claimed(victim, agent)
    with watched() as seam:
        seam.before = once("move", "/completed/", crash)
        with pytest.raises(Crash):
            commit_one(victim, claim, success(claim))
    boss = files.store.join("boss", role=None)
    assert files.store.kill(boss, "j").status is Status.SUCCEEDED
    assert os.listdir(f"{files.root}/agents/Runner/completed/succeeded") == ["j"]


def test_move_before_read(files: Files) -> None:
    """A watchdog reads a dead agent's job only in its own folder: until then other agents may change it."""
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claimed(files.store, agent)
    files.die(agent)
    dog = files.store.join("dog", role=None)
    order: list[str] = []
    with watched() as seam:

        def note(op: str, args: tuple[Any, ...]) -> None:
            if op == "move" and args[1].endswith(f"{dog.id}/j"):
                order.append(f"moved after {sum('job.json' in path for _, path in seam.looks)} looks at job.json")

        seam.before = note
        files.store.recover(dog)
    assert order == ["moved after 0 looks at job.json"]


def test_watchdog_against_a_live_worker(files: Files) -> None:
    """The watchdog found the worker silent and moved its job: the worker's commit is refused and the watchdog's
    decision stands, at whichever call of the commit that happens."""
    with watched() as seam:
        files.store.enqueue(submission(job_id="probe"))
        agent = files.store.join("worker", role="Runner")
        claim = claimed(files.store, agent)
        start = len(seam.performs)
        commit_one(files.store, claim, success(claim))
        calls = sum(op != "fsync" for op, _ in seam.performs[start:])
    refused = 0
    for at in range(calls):
        job_id = f"j{at}"
        files.store.enqueue(submission(job_id=job_id))
        store = files.process()
        agent = store.join("worker", role="Runner")
        claim = claimed(store, agent)
        dog = files.store.join("dog", role=None)
        files.store.recover(dog)
        left = [at]

        def fence(op: str, args: tuple[Any, ...], dog: Agent = dog, left: list[int] = left) -> None:
            if op == "fsync":
                return  # the group's leader cannot wait for itself
            if left and left[0] == 0:
                left.clear()
                silent(files, dog)
            elif left:
                left[0] -= 1

        with watched() as seam:
            seam.before = fence
            try:
                commit_one(store, claim, success(claim))
            except ClaimLost:
                refused += 1
        now = files.store.find(job_id)
        assert now is not None
        hops = [hop.reason for hop in now.lifecycle.hops]
        assert (now.status, hops) in (
            (Status.STALE, [Reason.AGENT_DIED]),
            (Status.SUCCEEDED, [Reason.COMMITTED]),
        ), f"call {at}"
        if now.status is Status.STALE:
            files.store.kill(dog, job_id)
        files.store.leave(dog)
    assert refused > calls / 2


def test_watchdog_manager_and_operator_edit_a_stale_job_one_at_a_time(files: Files) -> None:
    for n in range(20):
        job_id = files.store.enqueue(submission(job_id=f"j{n}"))
        agent = files.store.join("worker", role="Runner")
        claimed(files.store, agent)
        files.die(agent)
        stores = [files.process() for _ in range(3)]
        holders = [store.join("holder", role=None) for store in stores]
        stores[0].recover(holders[0])
        together = threading.Barrier(3)
        troubles: list[BaseException] = []

        def act(
            verb: Callable[[], Any], together: threading.Barrier = together, troubles: list[BaseException] = troubles
        ) -> None:
            together.wait()
            try:
                verb()
            except TryAgain:
                pass
            except BaseException as error:
                troubles.append(error)

        verbs: list[Callable[[], Any]] = [
            lambda stores=stores, holders=holders: stores[0].recover(holders[0]),  # type: ignore[misc]
            lambda stores=stores, holders=holders, job_id=job_id: stores[1].resolve_stale(holders[1], job_id),  # type: ignore[misc]
            lambda stores=stores, holders=holders, job_id=job_id: stores[2].kill(holders[2], job_id),  # type: ignore[misc]
        ]
        threads = [threading.Thread(target=act, args=(verb,)) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert troubles == []
        now = files.store.kill(files.store.join("boss", role=None), job_id)
        assert now.status is Status.KILLED
        assert [hop.reason for hop in now.hops] in (
            [Reason.AGENT_DIED, Reason.KILLED],
            [Reason.AGENT_DIED, Reason.REQUEUED, Reason.KILLED],
        )
        for store in stores:
            store.close()


def test_a_hung_process_is_killed_by_its_identity_before_its_jobs_move(files: Files) -> None:
    store = files.process()
    store.enqueue(submission(job_id="j"))
    agent = store.join("worker", role="Runner")
    claimed(store, agent)
    where: list[list[str]] = []

    def kill(identity: Any) -> bool:
        where.append(os.listdir(f"{files.root}/agents/Runner/in-progress/{agent.id}"))
        files.die(agent, store)
        return True

    files.when_hung = kill
    dog = files.store.join("dog", role=None)
    files.store.recover(dog)
    silent(files, dog)
    assert [identity["pid"] for identity in files.hung] == [1]
    assert [sorted(each) for each in where] == [[".lease", ".lock", "j"]]
    assert files.reaped[-1] == [f"j/0001@{files.store._context.scope}"], (
        "processes left by the attempt end before the job can start again"
    )


def test_the_next_watchdog_finishes_the_jobs_of_a_dead_one(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claimed(files.store, agent)
    files.die(agent)
    first = files.process()
    dog = first.join("dog", role=None)
    with watched() as seam:
        seam.before = once("exchange", "/job.json", crash)
        with pytest.raises(Crash):
            first.recover(dog)
    assert os.path.isdir(f"{files.root}/jobs/.held/{dog.id}/j")
    files.die(dog, first)
    files.store.recover(files.store.join("dog", role=None))
    assert files.store.stale() == ["j"]


# --- staging -----------------------------------------------------------------------------------------------------


def test_staging_cleanup_keeps_folders_that_an_id_points_to(files: Files) -> None:
    victim = files.process()
    with watched() as seam:
        seam.before = once("move", "/incoming/", crash)  # registered, not published
        with pytest.raises(Crash):
            victim.enqueue(submission(job_id="chosen"))
        seam.before = once("move", "/incoming/", crash)
        with pytest.raises(Crash):
            victim.enqueue(submission())
    staging = f"{files.root}/jobs/.staging"
    dog = files.store.join("dog", role=None)
    assert len(os.listdir(staging)) == 2
    files.store.recover(dog)
    assert len(os.listdir(staging)) == 2, "too young: its submitter may still be writing"
    files.clock.jump(YEARS_S)
    files.store.recover(dog)
    assert os.listdir(staging) == []
    assert [seen.job_id for seen in files.store.list()] == ["chosen"]
    assert files.store.enqueue(submission(job_id="chosen")) == "chosen"


def test_a_resubmission_publishes_the_folder_of_its_dead_submitter(files: Files) -> None:
    victim = files.process()
    with watched() as seam:
        seam.before = once("move", "/incoming/", crash)
        with pytest.raises(Crash):
            victim.enqueue(submission(job_id="chosen"))
    assert files.store.find("chosen") is None
    assert files.store.enqueue(submission(job_id="chosen")) == "chosen"
    assert [seen.job_id for seen in files.store.list()] == ["chosen"]
    assert os.listdir(f"{files.root}/jobs/.staging") == []


def test_staging_cleanup_leaves_live_submitters_alone(files: Files) -> None:
    slow = files.process()
    swept: list[list[str]] = []
    dog = files.store.join("dog", role=None)

    def sweep() -> None:
        files.clock.jump(YEARS_S)
        files.store.recover(dog)
        swept.append(os.listdir(f"{files.root}/jobs/.staging"))

    with watched() as seam:
        seam.before = once("symlink", "/jobs/.ids/", sweep)
        assert slow.enqueue(submission(job_id="slow")) == "slow"
    assert [len(names) for names in swept] == [1]
    assert files.store.find("slow") is not None


def test_the_runtime_never_reaches_the_disk(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    (claim,) = files.store.claim(agent, limit=2)  # of a batch: the heartbeat writes its job.json
    claim.envelope.runtime = {"lock": "the runtime of this claim"}
    files.store.heartbeat(agent, claim)
    assert lifecycle(files, f"agents/Runner/in-progress/{agent.id}", "j").status is Status.IN_PROGRESS
    before = files.snapshot()
    commit_one(files.store, claim, success(claim))
    assert b"succeeded" in read(f"{files.root}/agents/Runner/completed/succeeded/j/job.json")
    assert "runtime" not in repr((before, files.snapshot(), files.audited)).replace(files.root, "")


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema_version": "1.0.0"}', b"\xff" * 10])
def test_an_unreadable_job_json_is_rebuilt_at_the_claim(files: Files, text: bytes) -> None:
    files.store.enqueue(submission(3, job_id="j"))
    path = f"{files.root}/agents/Runner/incoming/j/job.json"
    os.unlink(path)
    Path(path).write_bytes(text)
    claim = claimed(files.store, files.store.join("worker", role="Runner"))
    assert (claim.job_id, claim.attempt, claim.envelope.prompt) == ("j", 1, plan(3))
    assert commit_one(files.store, claim, success(claim)).status is Status.SUCCEEDED
    assert ("warning", "job.json rebuilt") in [(level, message) for level, message, _ in files.logged]


def test_a_job_whose_status_contradicts_its_queue_is_skipped_with_a_critical_log(files: Files) -> None:
    for name in ("a-bad", "b-good"):
        files.store.enqueue(submission(job_id=name))
    path = f"{files.root}/agents/Runner/incoming/a-bad"
    said = replace(lifecycle(files, "agents/Runner/incoming", "a-bad"), status=Status.SUCCEEDED).to_json()
    Path(f"{path}/job.json").write_bytes(said)
    agent = files.store.join("worker", role="Runner")
    with watched() as seam:
        assert claimed(files.store, agent).job_id == "b-good"
        assert claim_one(files.store, agent) is None
    critical = [(message, fields) for level, message, fields in files.logged if level == "critical"]
    assert critical == [("status contradicts the queue, job skipped", {"job_id": "a-bad", "status": Status.SUCCEEDED})]
    assert not [args for op, args in seam.performs if any("/a-bad" in str(arg) for arg in args)], "it was not locked"
    assert read(f"{path}/job.json") == said


def test_a_contradictory_job_affects_no_other_job(files: Files) -> None:
    for name in ("a-good", "b-bad", "c-good"):
        files.store.enqueue(submission(job_id=name))
    bad = f"{files.root}/agents/Runner/incoming/b-bad"
    for name in ("job.json", "prompt.json"):
        os.unlink(f"{bad}/{name}")
        Path(f"{bad}/{name}").write_text("garbage")
    agent = files.store.join("worker", role="Runner")
    order = []
    while (claim := claim_one(files.store, agent)) is not None:
        order.append(claim.job_id)
        commit_one(files.store, claim, success(claim))
    assert sorted(order) == ["a-good", "c-good"]
    assert os.listdir(f"{files.root}/jobs/quarantine") == ["b-bad"]
    seen = files.store.find("b-bad")
    assert seen is not None
    assert (seen.status, seen.lifecycle.terminal) == (Status.FAILED, True)
    assert Path(f"{files.root}/jobs/quarantine/b-bad/prompt.json").read_text() == "garbage", "kept as it was"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("name", ["job.json", "prompt.json"])
def test_a_job_file_that_is_no_file_damages_only_its_job(files: Files, name: str, kind: str) -> None:
    """This was once treated as a disk error: the worker retried for ever and blocked the other jobs."""
    for job_id in ("a-bad", "b-good"):
        files.store.enqueue(submission(job_id=job_id))
    path = f"{files.root}/agents/Runner/incoming/a-bad/{name}"
    os.unlink(path)
    {"folder": os.mkdir, "link": lambda at: os.symlink("x", at), "pipe": os.mkfifo}[kind](path)
    seen = files.store.find("a-bad")
    assert seen is not None
    assert (seen.damaged is not None) == (name == "job.json")
    worker = files.store.join("worker", role="Runner")
    assert claimed(files.store, worker).job_id == "b-good"
    assert claim_one(files.store, worker) is None
    seen = files.store.find("a-bad")
    assert seen is not None
    assert (seen.status, seen.lifecycle.terminal) == (Status.FAILED, True)
    assert name in (seen.damaged or "")


def test_a_job_without_its_prompt_is_quarantined_and_a_foreign_folder_left(files: Files) -> None:
    """Both were once skipped: the job stayed queued for ever, and a draining worker waited for it."""
    for job_id in ("a-bad", "b-good"):
        files.store.enqueue(submission(job_id=job_id))
    os.unlink(f"{files.root}/agents/Runner/incoming/a-bad/prompt.json")
    os.mkdir(f"{files.root}/agents/Runner/incoming/no-job")
    worker = files.store.join("worker", role="Runner")
    assert claimed(files.store, worker).job_id == "b-good"
    assert claim_one(files.store, worker) is None
    seen = files.store.find("a-bad")
    assert seen is not None
    assert (seen.status, seen.lifecycle.terminal, seen.damaged) == (Status.FAILED, True, "prompt.json is missing")
    assert os.listdir(f"{files.root}/agents/Runner/incoming") == ["no-job"]


def test_a_read_only_job_folder_is_skipped_and_logged(files: Files) -> None:
    for job_id in ("a-bad", "b-good"):
        files.store.enqueue(submission(job_id=job_id))

    def refuse(op: str, args: tuple[Any, ...]) -> None:
        if op == "link" and "/a-bad/" in args[1]:
            raise PermissionError(errno.EACCES, "Permission denied", args[1])

    agent = files.store.join("worker", role="Runner")
    with watched() as seam:
        seam.before = refuse
        assert claimed(files.store, agent).job_id == "b-good"
    assert ("critical", "folder may not be changed, job skipped") in [told[:2] for told in files.logged]
    assert claimed(files.process(), files.stores[-1].join("worker", role="Runner")).job_id == "a-bad"


def test_a_folder_without_a_prompt_is_not_a_job(files: Files) -> None:
    os.mkdir(f"{files.root}/agents/Runner/incoming/debris")
    agent = files.store.join("worker", role="Runner")
    for _ in range(3):
        assert claim_one(files.store, agent) is None
    assert [level for level, _, _ in files.logged] == ["critical"], "logged once"
    assert os.listdir(f"{files.root}/agents/Runner/incoming") == ["debris"]


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a\0b"])
def test_payload_names_are_plain_file_names(files: Files, name: str) -> None:
    before = files.snapshot()
    with pytest.raises(BadName):
        files.store.enqueue(Submission(role="Runner", prompt=plan(), payload={name: b"x"}))
    assert files.snapshot() == before


def test_a_missing_destination_strands_no_job(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    agent = files.store.join("worker", role="Runner")
    claim = claimed(files.store, agent)
    gone = f"{files.root}/agents/Runner/completed/succeeded"
    os.rmdir(gone)
    with pytest.raises(TryAgain, match="farro init"):
        commit_one(files.store, claim, success(claim))
    seen = files.store.find("j")
    assert seen is not None
    assert seen.status is Status.IN_PROGRESS
    files.die(agent)
    os.mkdir(gone)
    files.store.recover(files.store.join("dog", role=None))
    assert os.listdir(gone) == ["j"]


def test_one_id_in_two_places_is_quarantined_not_overwritten(files: Files) -> None:
    files.store.enqueue(submission(job_id="j"))
    claim = claimed(files.store, files.store.join("worker", role="Runner"))
    twin = f"{files.root}/agents/Runner/completed/succeeded/j"
    os.mkdir(twin)  # empty: a plain rename would replace it silently
    with pytest.raises(Damaged, match="quarantine"):
        commit_one(files.store, claim, success(claim))
    assert os.listdir(twin) == []
    assert os.listdir(f"{files.root}/jobs/quarantine") == ["j"]


def test_an_unreadable_pause_still_pauses(files: Files) -> None:
    """The file of another user with a strict umask: no job is claimed, and `paused` reports the queue. Here it is a
    folder, which a test can make as any user."""
    os.mkdir(f"{files.root}/agents/Runner/.paused")
    files.store.enqueue(submission(job_id="a"))
    assert claim_one(files.store, files.store.join("worker", role="Runner")) is None
    assert files.store.paused() == {"Runner": QueuePause(by="an unknown user", at="")}


def test_a_disk_error_is_no_due_time(files: Files) -> None:
    """A slot reads it outside of its turn: an error there would end the worker."""
    agent = files.store.join("worker", role="Runner")
    due = files.clock.now() + timedelta(seconds=5)
    files.store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    assert claim_one(files.store, agent) is None
    with placed(BadLook(1)) as seam:
        assert files.store.next_due("Runner") is None
    assert seam.hit is not None
    assert files.store.next_due("Runner") == due


def test_a_pause_on_a_full_disk_leaves_no_debris(files: Files) -> None:
    before = os.listdir(f"{files.root}/jobs/.staging")
    fs.set_seam(NoRoom())
    try:
        with pytest.raises(TryAgain):
            files.store.pause("Runner", QueuePause(by="ann", at=""))
    finally:
        fs.set_seam(None)
    assert os.listdir(f"{files.root}/jobs/.staging") == before
    assert files.store.paused() == {}


@pytest.mark.parametrize("row", [False, True], ids=["one", "a row"])
def test_a_queue_paused_between_read_and_move_keeps_its_job(files: Files, row: bool) -> None:
    """The pause was acknowledged while a worker was about to claim: no job may be claimed from then on."""
    agent, other = files.store.join("worker", role="Runner"), files.process()
    for name in "abc":
        files.store.enqueue(submission(job_id=name))

    def pause(op: str, args: tuple[Any, ...]) -> None:
        if op == "move":
            other.pause("Runner", QueuePause(by="ann", at=""))

    with watched() as seam:
        seam.before = pause
        taken = files.store.claim(agent, 3) if row else [claim_one(files.store, agent)]
    assert [claim for claim in taken if claim is not None] == []
    for name in "abc":
        assert sorted(os.listdir(f"{files.root}/agents/Runner/incoming/{name}")) == ["job.json", "prompt.json"]
    other.resume("Runner")
    assert [claimed(files.store, agent).job_id for _ in "abc"] == ["a", "b", "c"], "in their order"


def test_a_watchdog_that_was_stopped_declares_no_agent_hung(files: Files) -> None:
    """A paused container stops the watchdog and all agents in it: the clock goes on, and no agent beats."""
    files.store.enqueue(submission(job_id="a"))
    agent, dog = files.store.join("worker", role="Runner"), files.store.join("dog", role=None)
    claim = claimed(files.store, agent)
    files.store.recover(dog)
    for hours in (2, 8):
        files.clock.advance(hours * 3600)
        assert files.store.recover(dog) == []
        files.store.heartbeat(agent, claim)
        files.clock.advance(5)
        assert files.store.recover(dog) == []
    files.clock.advance(900)
    assert files.store.recover(dog) == []
    files.clock.advance(900)
    told = [each.what for each in files.store.recover(dog)]
    assert told == ["silent_killed", "stale", "agent_removed"], "silence is reported while the watchdog runs"


# --- a disk that refuses ---------------------------------------------------------------------------------------------


class NoRoom(Watch):
    """Names can be created but nothing can be written: a full tmpfs, btrfs or xfs, or a quota of blocks."""

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if op == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")
        return super().perform(op, call, args)


@pytest.mark.parametrize("begun", [False, True], ids=["the first", "another"])
def test_a_claim_that_the_disk_refuses_counts_no_attempt(files: Files, begun: bool) -> None:
    agent = files.store.join("worker", role="Runner")
    files.store.enqueue(submission(job_id="a"))
    if begun:
        first = claimed(files.store, agent)
        commit_one(
            files.store, first, Failed(error=ErrorInfo(category="c", message="m"), report=report(first), retryable=True)
        )
        files.clock.advance(60)
    for _ in range(4):
        fs.set_seam(NoRoom())
        try:
            with pytest.raises(TryAgain):
                claim_one(files.store, agent)
        finally:
            fs.set_seam(None)
    claim = claimed(files.store, agent)
    assert claim.attempt == 1 + begun
    files.store.leave(agent)
    keeper = files.store.join("keeper", role=None)
    files.store.recover(keeper)
    told = files.store.resolve_stale(keeper, "a")
    assert told is not None
    assert told.status is Status.QUEUED, "attempts are left"
