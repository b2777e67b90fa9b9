"""Kill pruning at every call: a job is whole in completed/, or its remains are in the trash for the next prune."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

import stage
from crash.seams import Counting, KillAt, placed
from farro.errors import Refused
from farro.jobs.states import Status
from farro.queue.prune import PruneFilter, candidates
from farro.store.files import FilesStore
from farro.store.files.prune import TRASH
from farro.store.port import Removed
from stage import Crash, QuickClock

EVERYTHING = PruneFilter(keep=0)
BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])


def prepared(root: str) -> list[str]:
    """Make three finished jobs, one with a chosen id, and a queued one with a chosen id; return the finished ones."""
    store = stage.open_files(stage.make(root), seed=1)
    finished = [store.enqueue(stage.submission(number)) for number in range(2)]
    finished.append(store.enqueue(stage.submission(2, job_id="chosen")))
    worker = store.join("w", role="Runner")
    while stage.work_one(store, worker, stage.History()):
        pass
    store.enqueue(stage.submission(3, job_id="live"))
    store.close()
    return finished


def opened(root: str, seed: int, durable: bool) -> FilesStore:
    return stage.open_files(root, seed=seed, store_policy=stage.policy(durable=durable))


def pruned(store: FilesStore) -> Removed:
    return store.remove(candidates(store, EVERYTHING, now=QuickClock().now()), by="pruner")


@BOTH
def test_kill_at_every_call_of_prune(shm: Path, durable: bool) -> None:
    before = str(shm / "before")
    finished = prepared(before)
    whole = str(shm / "whole")
    shutil.copytree(before, whole, symlinks=True)
    with placed(Counting()) as calls:
        pruned(opened(whole, 2, durable))
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    for number, seam in enumerate(seams):
        root = str(shm / str(number))
        shutil.copytree(before, root, symlinks=True)
        dying = opened(root, 2, durable)
        with placed(seam), contextlib.suppress(Crash):
            pruned(dying)
        stage.die(dying)
        _judge_wreck(root, finished, f"{seam!r}")
        _judge_end(root, finished, durable, f"{seam!r}")
        shutil.rmtree(root)


def _judge_wreck(root: str, finished: list[str], how: str) -> None:
    """Check that right after the kill each job is whole or absent."""
    store = stage.open_files(root, seed=3)
    for job_id in finished:
        view = store.find(job_id)
        if view is not None:
            assert (view.status, view.damaged) == (Status.SUCCEEDED, None), how
            stage._judge_job(root, job_id, f"{root}/{view.place}/{job_id}", view.place, stage.History(), terminal=True)
    live = store.find("live")
    assert live is not None, how
    assert live.status is Status.QUEUED, how
    stage.die(store)


def _judge_end(root: str, finished: list[str], durable: bool, how: str) -> None:
    """Check that a watchdog and the next prune remove the jobs entirely, and that a chosen id is free again."""
    store = opened(root, 4, durable)
    store.recover(store.join("watchdog", role=None))
    pruned(store)
    assert [name for name in os.listdir(f"{root}/{TRASH}") if not name.startswith(".")] == [], how
    assert set(stage.everywhere(root)) == {"live"}, how
    assert os.listdir(f"{root}/jobs/.ids") == ["live"], how
    assert store.enqueue(stage.submission(7, job_id="chosen")) == "chosen", how
    again = store.find("chosen")
    assert again is not None, how
    assert again.status is Status.QUEUED, how
    stage.die(store)


def test_a_pruned_id_may_be_used_again(shm: Path) -> None:
    """Also when the pruner died before it removed the empty folder: the new job is not mistaken for the old one."""
    root = str(shm / "root")
    prepared(root)
    dying = opened(root, 2, True)
    with dying.trash() as trash:
        assert trash.take("chosen", "agents/Runner/completed/succeeded")
        (name,) = trash.names()
        last = _rmdirs(f"{root}/{TRASH}/{name}") + 1
        with placed(KillAt(last, only=frozenset({"rmdir"}))), contextlib.suppress(Crash):
            trash.remove(name)
    assert os.listdir(f"{root}/{TRASH}/{name}") == []
    assert os.listdir(f"{root}/jobs/.ids") == ["live"]
    stage.die(dying)
    store = opened(root, 4, True)
    assert store.enqueue(stage.submission(7, job_id="chosen")) == "chosen"
    pruned(store)
    assert "chosen" in os.listdir(f"{root}/jobs/.ids")
    assert store.find("chosen") is not None
    stage.die(store)


def _rmdirs(path: str) -> int:
    return sum(len(folders) for _, folders, _ in os.walk(path))


def test_a_second_prune_is_refused_while_one_runs(shm: Path) -> None:
    root = str(shm / "root")
    prepared(root)
    one, other = opened(root, 2, True), opened(root, 3, True)
    with one.trash(), pytest.raises(Refused, match="another `farro prune`"):
        pruned(other)
    assert pruned(other).jobs == 3
    for store in (one, other):
        stage.die(store)


def test_a_job_that_is_not_final_is_never_pruned(shm: Path) -> None:
    root = str(shm / "root")
    prepared(root)
    store = opened(root, 2, True)
    with store.trash() as trash:
        assert not trash.take("live", "agents/Runner/incoming")
        assert not trash.take("nobody", "agents/Runner/completed/succeeded")
        assert trash.names() == []
    live = store.find("live")
    assert live is not None
    assert live.status is Status.QUEUED
    stage.die(store)
