"""Kill, cut off and starve the archive at every call: each job is in its folder or in the archive, and whole."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import stage
from crash.powermodel import Log, Recorder, states
from crash.seams import Counting, Errno, KillAt, placed
from crash.tally import add_figure
from farro.errors import StorageTrouble, SyncFailed
from farro.host import fs
from farro.jobs.states import Status
from farro.queue.retention import choose
from farro.store.files import FilesStore
from farro.store.port import JobView
from stage import Crash, QuickClock
from support import torture

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
STATES = 20_000 if torture() else 250
CODES = (errno.EIO, errno.ENOSPC, errno.EMFILE)


class Before(NamedTuple):
    """The jobs of a root before the archive was touched."""

    views: dict[str, JobView]
    files: dict[str, dict[str, bytes]]


def opened(root: str, seed: int, durable: bool = True) -> FilesStore:
    return stage.open_files(root, seed=seed, store_policy=stage.policy(durable=durable))


def prepared(root: str, *, archived: int = 0) -> Before:
    """Make four finished jobs, one with a chosen id and a name, the first `archived` of them archived in two runs."""
    store = opened(stage.make(root), 1)
    worker = store.join("w", role="Runner")
    made = [store.enqueue_named("nightly", stage.submission(1, job_id="chosen"))]
    made += [store.enqueue(stage.submission(number)) for number in range(2, 4)]
    made.append(store.enqueue(stage.submission(4, job_id="other")))
    while stage.work_one(store, worker, stage.History()):
        pass
    store.leave(worker)
    for job_id in made[:archived]:
        store.archive([seen(store, job_id)])
    store.enqueue(stage.submission(9, job_id="live"))
    before = Before({job_id: seen(store, job_id) for job_id in made}, {job_id: files(store, job_id) for job_id in made})
    store.close()
    return before


def seen(store: FilesStore, job_id: str) -> JobView:
    view = store.find(job_id)
    assert view is not None, f"{job_id} is gone"
    return view


def files(store: FilesStore, job_id: str) -> dict[str, bytes]:
    folder = store.folder(seen(store, job_id))
    return {
        os.path.relpath(f"{here}/{name}", folder): Path(here, name).read_bytes()
        for here, _, names in os.walk(folder)
        for name in names
    }


def live_places(root: str) -> dict[str, int]:
    """Count the places of each job that has a folder."""
    found = stage.everywhere(root)
    hidden = (".archive", ".trash", ".work")
    return {
        job_id: len(kept)
        for job_id, homes in found.items()
        if (kept := [home for home in homes if not any(name in home for name in hidden)])
    }


def archive_all(store: FilesStore) -> None:
    store.archive(choose(store, now=QuickClock().now()))


def judge(root: str, before: Before, how: str, durable: bool, *, gone: frozenset[str] = frozenset()) -> None:
    """Check the wreck, then what recovery and the next run make of it. Jobs of `gone` may have been removed."""
    store = opened(root, 3, durable)
    there = {job_id for job_id in before.views if store.find(job_id) is not None}
    assert there | gone == set(before.views), how
    _check(store, before, there, how)
    watchdog = store.join("watchdog", role=None)
    store.recover(watchdog)
    store.leave(watchdog)
    _check(store, before, there, how)
    assert not [name for name in _segments(root) if name.endswith(".new")], how
    _one_place(store, there, how)
    archive_all(store)
    _check(store, before, there, how)
    assert live_places(root) == {"live": 1}, how
    _one_place(store, there, how)
    assert os.listdir(f"{root}/jobs/.archive/.gone") == [], how
    assert not [name for name in os.listdir(f"{root}/jobs/.archive") if name.startswith(fs.TEMPORARY)], how
    assert os.listdir(f"{root}/jobs/.ids") == ["live"], how
    for job_id, number in (("chosen", 1), ("other", 4)):
        (again,) = store.enqueue_many([stage.submission(number, job_id=job_id)])
        assert again.existed == (job_id in there), how
        assert seen(store, job_id).status is (Status.SUCCEEDED if job_id in there else Status.QUEUED), how
    assert dict(store.names()) == ({"nightly": "chosen"} if "chosen" in there else {}), how
    stage.die(store)
    store._context.archive_index.close()


def _check(store: FilesStore, before: Before, there: set[str], how: str) -> None:
    for job_id in there:
        assert seen(store, job_id) == before.views[job_id], how
        assert files(store, job_id) == before.files[job_id], how
    assert sorted(view.job_id for view in store.list()) == sorted({*there, "live"}), how
    assert store.count()[Status.SUCCEEDED] == len(there), how


def _segments(root: str) -> list[str]:
    try:
        return [name for name in os.listdir(f"{root}/jobs/.archive") if name.endswith((".new", ".seg"))]
    except FileNotFoundError:
        return []


def _one_place(store: FilesStore, there: set[str], how: str) -> None:
    index = store._context.archive
    archived = [] if index is None else [job.job_id for segment in index.segments() for job in segment.jobs()]
    folders = [job_id for job_id in live_places(store.root) if job_id != "live"]
    assert sorted([*archived, *folders]) == sorted(there), how


def killed_everywhere(
    shm: Path, durable: bool, archived: int, act: Callable[[FilesStore], object], gone: frozenset[str] = frozenset()
) -> None:
    """Kill `act` before and after every call, and in the middle of every write; judge what is left each time."""
    first, whole = str(shm / "first"), str(shm / "whole")
    before = prepared(first, archived=archived)
    shutil.copytree(first, whole, symlinks=True)
    acting = opened(whole, 2, durable)
    with placed(Counting()) as calls:
        act(acting)
    stage.die(acting)
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    seams += [KillAt(n, torn=True) for n, op in enumerate(calls.ops, start=1) if op == "write"]
    for number, seam in enumerate(seams):
        root = str(shm / str(number))
        shutil.copytree(first, root, symlinks=True)
        dying = opened(root, 2, durable)
        with placed(seam), contextlib.suppress(Crash):
            act(dying)
        stage.die(dying)
        judge(root, before, f"{seam!r}", durable, gone=gone)
        shutil.rmtree(root)
    add_figure("kill points, archive", len(seams), "points")


@BOTH
@pytest.mark.parametrize("archived", [0, 2], ids=["first", "merging"])
def test_kill_at_every_call_of_archive(shm: Path, durable: bool, archived: int) -> None:
    killed_everywhere(shm, durable, archived, archive_all)


@BOTH
def test_kill_at_every_call_of_pruning_the_archive(shm: Path, durable: bool) -> None:
    def act(store: FilesStore) -> None:
        store.remove([seen(store, "chosen")], by="pruner")

    killed_everywhere(shm, durable, 3, act, frozenset({"chosen"}))


def test_kill_at_every_call_of_a_recovery(shm: Path) -> None:
    """The recovery of a half-done move is itself killed."""
    first = str(shm / "first")
    before = prepared(first)
    dying = opened(first, 2)
    with placed(KillAt(1, only=frozenset({"unlink"}))), contextlib.suppress(Crash):
        archive_all(dying)
    stage.die(dying)
    assert [name for name in _segments(first) if name.endswith(".new")]

    def recover(store: FilesStore) -> None:
        store.recover(store.join("watchdog", role=None))

    whole = str(shm / "whole")
    shutil.copytree(first, whole, symlinks=True)
    store = opened(whole, 2)
    with placed(Counting()) as calls:
        recover(store)
    stage.die(store)
    for number in range(1, calls.count + 1):
        root = str(shm / str(number))
        shutil.copytree(first, root, symlinks=True)
        store = opened(root, 2)
        with placed(KillAt(number, after=True)), contextlib.suppress(Crash):
            recover(store)
        stage.die(store)
        judge(root, before, f"killed at {number} of the recovery", True)
        shutil.rmtree(root)
    add_figure("kill points, archive", calls.count, "points")


@pytest.mark.parametrize("what", ["archive", "merge", "prune", "recover"])
def test_power_cut_during_an_archive(shm: Path, what: str) -> None:
    """After a power cut no archived job is lost, and none that was pruned half-way comes back torn."""
    root = str(shm / "root")
    before = prepared(root, archived={"archive": 0, "merge": 2, "prune": 3, "recover": 0}[what])
    recorder = Recorder(root)
    acting = opened(root, 2)

    def kill_before_the_moves_are_synced(op: str, args: tuple[object, ...]) -> BaseException | None:
        gone = f"{root}/jobs/.archive/.gone"
        return Crash() if op in ("fsync", "syncfs") and os.path.isdir(gone) and os.listdir(gone) else None

    with placed(recorder):
        if what == "prune":
            acting.remove([seen(acting, "chosen")], by="pruner")
        elif what == "recover":
            recorder.trap = kill_before_the_moves_are_synced
            with pytest.raises(Crash):
                archive_all(acting)
            stage.die(acting)
            acting = opened(root, 5)
            acting.recover(acting.join("watchdog", role=None))
        else:
            archive_all(acting)
    stage.die(acting)
    gone = frozenset({"chosen"}) if what == "prune" else frozenset()
    count = 0
    for state in itertools.islice(states(Log.of(recorder), seed=48, randoms=2), STATES):
        cut = str(shm / "cut")
        state.write_out(cut)
        for folder in ("agents", "jobs/.staging"):
            os.makedirs(f"{cut}/{folder}", exist_ok=True)
        judge(cut, before, state.story, True, gone=gone)
        stage.remove(cut)
        count += 1
    assert count >= 30
    add_figure("power-loss states, archive", count, "states")


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("permanent", [False, True], ids=["once", "for ever"])
def test_errno_at_every_call_of_archive(shm: Path, code: int, permanent: bool) -> None:
    first, whole = str(shm / "first"), str(shm / "whole")
    before = prepared(first, archived=1)
    shutil.copytree(first, whole, symlinks=True)
    acting = opened(whole, 2)
    with placed(Counting()) as calls:
        archive_all(acting)
    stage.die(acting)
    for number in range(1, calls.count + 1):
        root = str(shm / str(number))
        shutil.copytree(first, root, symlinks=True)
        store = opened(root, 2)
        try:
            with placed(Errno(number, code, persistent=permanent)):
                archive_all(store)
        except (StorageTrouble, SyncFailed) as error:
            told = str(error)
        else:
            told = ""
        assert "None" not in told, "not clear"
        stage.die(store)
        judge(root, before, f"{errno.errorcode[code]} at {number}", True)
        shutil.rmtree(root)
