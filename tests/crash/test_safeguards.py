"""Prove that the crash suite can fail: remove each safeguard in turn, and check that a small part of the suite notices.

This module covers the safeguards that a few kills can test. test_power_can_fail removes syncs, and
test_interleavings_can_fail removes safeguards that need two actors. `test_every_safeguard_has_its_meta_test`
checks the list.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash import seams
from farro.errors import Damaged
from farro.host import fs, leases
from farro.jobs import ids
from farro.store.files import FilesStore, commit, dispatch, move, submit
from farro.store.port import Submission

Play = Callable[[FilesStore], None]


def kill_everywhere(folder: Path, play: Play, check: Callable[[str], None]) -> None:
    """Play it with a kill at every call, and run `check` on the root after each."""
    for n in range(1, 200):
        root = stage.make(str(folder / str(n)))
        store = stage.open_files(root, seed=1)
        seam = seams.KillAt(n)
        try:
            with seams.placed(seam):
                play(store)
        except stage.Crash:
            pass
        stage.die(store)
        check(root)
        if not seam.dead:
            return
    raise AssertionError("the play never ended")


def noticed(folder: Path, play: Play, check: Callable[[str], None]) -> None:
    with pytest.raises((AssertionError, Damaged), match=r"LOST|DUPLICATED|UNEXPECTED|TORN|quarantine"):
        kill_everywhere(folder, play, check)


def work(store: FilesStore) -> None:
    """Enqueue, claim, commit with a child."""
    store.enqueue(stage.submission(1, job_id="job-a"))
    agent = store.join("w", role="Runner")
    stage.work_one(store, agent, stage.History(), children=1)


def drained(root: str) -> None:
    history = stage.History()
    stage.drain(root, history)
    stage.judge(root, history)
    assert not os.listdir(f"{root}/jobs/quarantine"), "UNEXPECTED: something is in quarantine"


def submitted_again(root: str) -> None:
    """Finish all jobs, then let the submitter, which got no answer, submit the same id again."""
    stage.drain(root, stage.History())
    store = stage.open_files(root, seed=2)
    store.enqueue(stage.submission(1, job_id="job-a"))
    stage.die(store)
    stage.drain(root, stage.History(), seed=30_000)
    stage.judge(root, stage.History())


def children_of_decided_attempts_only(root: str) -> None:
    drained(root)
    found = stage.everywhere(root)
    children = {name for name in found if name.startswith("job-a-")}
    for folders in (found.get("job-a", []),):
        for place in folders:
            life = stage.Lifecycle.from_json(stage.read(f"{root}/{place}/job-a/job.json"))
            decided = {hop.attempt for hop in life.hops if hop.reason is stage.Reason.COMMITTED}
            expected = {ids.child_id("job-a", attempt, 0) for attempt in decided}
            assert children <= expected, (
                f"UNEXPECTED: children {children - expected} of an attempt that was not decided"
            )


def test_with_all_safeguards_the_same_plays_pass(shm: Path) -> None:
    kill_everywhere(shm / "work", work, drained)
    kill_everywhere(shm / "again", lambda store: store.enqueue(stage.submission(1, job_id="job-a")), submitted_again)
    kill_everywhere(shm / "children", work, children_of_decided_attempts_only)


def test_without_unique_temporary_names_a_kill_is_noticed(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead agent's temporary file then blocks the next agent."""
    monkeypatch.setattr(fs, "temporary", lambda folder: f"{folder}/{fs.TEMPORARY}x")
    noticed(shm, work, drained)


def test_with_the_registry_after_the_rename_a_resubmission_is_noticed(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two leaves a job with an unregistered id: submitting it again makes a second job."""
    register, publish = submit._register, submit._publish

    def backwards(context: object, item: object) -> None:
        publish(context, item)  # type: ignore[arg-type]
        register(context, item, False)  # type: ignore[arg-type]

    monkeypatch.setattr(submit, "_register", lambda context, item, gone_is_done: None)
    monkeypatch.setattr(submit, "_publish", backwards)
    noticed(shm, lambda store: store.enqueue(stage.submission(1, job_id="job-a")), submitted_again)


def test_with_children_delivered_before_the_decision_a_kill_is_noticed(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outbox that is not sealed with the decision delivers children of attempts that never counted."""

    def unsealed(context: object, path: str, attempt: int, children: object) -> list[str]:
        for index, child in enumerate(children):  # type: ignore[arg-type,var-annotated]
            child_id = ids.child_id(os.path.basename(path), attempt, index)
            submit.enqueue_many(context, [Submission(role=child.role, prompt=child.prompt, job_id=child_id)])  # type: ignore[arg-type]
        return []

    monkeypatch.setattr(dispatch, "seal", unsealed)
    noticed(shm, work, children_of_decided_attempts_only)


def test_without_the_decision_in_job_json_a_kill_is_noticed(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move without a decision leaves a folder at its destination that does not say what was decided."""
    monkeypatch.setattr(commit.folders, "write_lifecycle", lambda context, path, lifecycle, sync: None)
    noticed(shm, work, drained)


def test_without_noreplace_two_jobs_become_one(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSIX rename silently replaces an empty directory, so that the job at the destination would be lost."""
    root = stage.make(str(shm / "root"))
    for safe in (True, False):
        source, destination = (
            f"{root}/agents/Runner/incoming/j{safe}",
            f"{root}/agents/Runner/completed/succeeded/j{safe}",
        )
        os.mkdir(source)
        os.mkdir(destination)
        if safe:
            with pytest.raises(FileExistsError):
                move.try_move(source, destination)
        else:
            monkeypatch.setattr(fs, "move", os.rename)
            move.try_move(source, destination)
        assert os.path.exists(source) is safe


@pytest.mark.linux
@pytest.mark.parametrize("guarded", [True, False])
def test_without_the_fork_guard_a_child_keeps_a_dead_agent_alive(shm: Path, guarded: bool) -> None:
    """A tool that forks (multiprocessing) must not hold the lease of the agent that it was forked from."""
    root = stage.make(str(shm / "root"))
    ready, told = os.pipe()
    worker = os.fork()
    if worker == 0:  # the "worker": joins, forks a child that lives on, and waits to be killed
        store = stage.open_files(root, seed=1)
        store.join("w", role="Runner")
        if not guarded:
            leases._held = set()  # the guard now has nothing to close
        if os.fork() == 0:
            os.write(told, str(os.getpid()).encode())  # by the child: now the guard has run in it
        signal.pause()
    child = int(os.read(ready, 32))
    try:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        store = stage.open_files(root, seed=2)
        (agent,) = [view for view in store.agents() if view.role == "Runner"]
        assert agent.alive is not guarded, "the lease of a dead agent is held by its forked child"
        stage.die(store)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        os.close(told)


SAFEGUARDS = {
    "each sync": "test_power_can_fail.py",
    "NOREPLACE": "test_without_noreplace_two_jobs_become_one",
    "unique temporary names": "test_without_unique_temporary_names_a_kill_is_noticed",
    "move-before-read": "test_interleavings_can_fail.py",
    "the lease": "test_interleavings_can_fail.py",
    "the fork guard": "test_without_the_fork_guard_a_child_keeps_a_dead_agent_alive",
    "the id registry's order": "test_with_the_registry_after_the_rename_a_resubmission_is_noticed",
    "the sealed outbox": "test_with_children_delivered_before_the_decision_a_kill_is_noticed",
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_every_safeguard_has_its_meta_test(safeguard: str) -> None:
    where = SAFEGUARDS[safeguard]
    here = Path(__file__)
    if where.endswith(".py"):
        assert re.search(r"^def test_", (here.parent / where).read_text(), re.MULTILINE)
    else:
        assert where in vars(sys.modules[__name__])
