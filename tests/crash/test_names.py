"""Kill a named enqueue at every call: the name and its job appear together, or the name is unchanged."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.air import named_jobs as named
from farro.host import leases
from farro.jobs.states import Status
from farro.queue.submit import ANYTHING
from farro.store.files import FilesStore
from farro.store.port import Submission
from one_job import claim_one
from stage import Crash

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
AGAIN = Submission(role="Runner", prompt=stage.plan(9))


def opened(root: str, seed: int, durable: bool) -> FilesStore:
    return stage.open_files(root, seed=seed, store_policy=stage.policy(durable=durable))


def killed_everywhere(
    shm: Path,
    durable: bool,
    prepare: Callable[[str], None],
    act: Callable[[FilesStore], object],
    judge: Callable[[str, str], None],
) -> None:
    """Kill `act` before and after every call; call `judge` on the root after each kill."""
    before, whole = str(shm / "before"), str(shm / "whole")
    stage.make(before)
    prepare(before)
    shutil.copytree(before, whole, symlinks=True)
    acting = opened(whole, 2, durable)
    with placed(Counting()) as calls:
        act(acting)
    stage.die(acting)
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    for number, seam in enumerate(seams):
        root = str(shm / str(number))
        shutil.copytree(before, root, symlinks=True)
        before_it = set(leases._held)
        dying = opened(root, 2, durable)
        with placed(seam), contextlib.suppress(Crash):
            act(dying)
        stage.die(dying)
        for fd in leases._held - before_it:  # the kernel also releases the leases of an agent that was leaving
            leases.Lease(fd).drop()
        judge(root, f"{seam!r}")
        shutil.rmtree(root)
    add_figure("kill points, names", len(seams), "points")


@BOTH
@pytest.mark.parametrize("chosen", [None, "mine"], ids=["minted", "chosen"])
def test_kill_at_every_call_of_a_named_enqueue(shm: Path, durable: bool, chosen: str | None) -> None:
    def act(store: FilesStore) -> None:
        store.enqueue_named("nightly", stage.submission(1, job_id=chosen))

    def judge(root: str, how: str) -> None:
        store = opened(root, 3, durable)
        present = store.named("nightly")
        jobs = set(stage.everywhere(root))
        if present is None:
            assert jobs == set(), how
            # The next submitter gets the name, even for another job, and the dead submission never appears.
            present = store.enqueue_named("nightly", stage.submission(2))
            store.recover(store.join("watchdog", role=None))
        elif chosen is not None:  # registered: repeating the submission finishes the same job
            assert store.enqueue(stage.submission(1, job_id=chosen)) == present, how
        assert set(stage.everywhere(root)) == {present}, how
        assert store.names() == {"nightly": present}, how
        stage.die(store)

    killed_everywhere(shm, durable, lambda root: None, act, judge)


@BOTH
def test_kill_at_every_call_of_giving_a_name_to_the_next_job(shm: Path, durable: bool) -> None:
    """Repeating it makes one job, not two: the name tells whether the first try succeeded."""
    old: list[str] = []

    def prepare(root: str) -> None:
        store = opened(root, 1, durable)
        old[:] = [store.enqueue_named("nightly", stage.submission(1))]
        store.close()

    def act(store: FilesStore) -> None:
        store.enqueue_named("nightly", AGAIN, instead_of=old[0])

    def judge(root: str, how: str) -> None:
        store = opened(root, 3, durable)
        present = store.named("nightly")
        assert present is not None, how
        jobs = set(stage.everywhere(root))
        assert jobs == {old[0], present}, how
        if present == old[0]:
            present = store.enqueue_named("nightly", AGAIN, instead_of=present)
            assert set(stage.everywhere(root)) == {old[0], present}, how
        assert store.named("nightly") == present, how
        stage.die(store)

    killed_everywhere(shm, durable, prepare, act, judge)


@BOTH
@pytest.mark.parametrize("state", ["failed", "stale"])
def test_kill_at_every_call_of_a_reset(shm: Path, durable: bool, state: str) -> None:
    """After a repeat one job waits under the name, and the old one can never run again."""
    old: list[str] = []

    def prepare(root: str) -> None:
        store = opened(root, 1, durable)
        old[:] = [store.enqueue_named("nightly", stage.submission(1))]
        worker = store.join("w", role="Runner")
        if state == "failed":
            stage.work_one(store, worker, stage.History(), fail=True)
        else:
            assert claim_one(store, worker) is not None
            stage.die(store)
            keeper = opened(root, 7, durable)
            keeper.recover(keeper.join("keeper", role=None))
            assert keeper.stale() == old
        store.close()

    def act(store: FilesStore) -> None:
        named.reset_named_job(store, "nightly", by="person", policy=ANYTHING)

    def judge(root: str, how: str) -> None:
        store = opened(root, 3, durable)
        keeper = store.join("keeper", role=None)
        store.recover(keeper)  # held by the dead operator
        named.reset_named_job(store, "nightly", by="person", policy=ANYTHING)
        present = store.named("nightly")
        assert present is not None, how
        assert present != old[0], how
        assert set(stage.everywhere(root)) == {old[0], present}, how
        view, before = store.find(present), store.find(old[0])
        assert view is not None, how
        assert before is not None, how
        assert (view.status, view.lifecycle.retry_of) == (Status.QUEUED, old[0]), how
        assert before.lifecycle.terminal, how
        stage.die(store)

    killed_everywhere(shm, durable, prepare, act, judge)
