"""The guarantees of the journal: when it is freed, what it may forget, that no process waits forever, and replay."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stage
from crash import powerplays
from crash.powermodel import Log, Recorder, states
from crash.powerplays import AFTER, DAY_S, Play, check, record
from crash.seams import Call, Counting, Errno, KillAt, Open, Recording, placed
from crash.tally import add_figure
from crash.verbplays import clone, failure, success
from farro.errors import StorageTrouble, SyncFailed, UnknownSchema
from farro.host import fs, leases, trees
from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Reason, Status
from farro.queue.prune import PruneFilter, candidates
from farro.store.files import FilesStore, journal_file
from farro.store.files.journal import AGAIN_AFTER, Journal, JournalEntry
from farro.store.files.journal_file import FOLDER, START, Record
from one_job import claim_one, commit_one
from support import eventually, torture

SMALL = 16 << 10
PATIENCE_S = 30.0


@pytest.fixture
def root(shm: Path) -> str:
    return stage.make(str(shm / "root"))


def opened(root: str, seed: int = 1, **more: Any) -> FilesStore:
    return stage.open_files(root, seed=seed, **{"journal": True, **more})


def journal_of(store: FilesStore) -> Journal:
    found = store._context.journal
    assert found is not None
    return found


def made(root: str, **more: Any) -> Journal:
    dice = itertools.count(time.time_ns())
    defaults = {"root": root, "boot_id": "0", "random_bits": lambda bits: next(dice), "eager_after": 0, "size": SMALL}
    return Journal(**{**defaults, **more})


def entry_of(number: int, size: int = 1000) -> Record:
    life = moves.enqueued(job_id=f"job-{number}", role="Runner", now=stage.EPOCH)
    files = {"prompt.json": b"x" * size}
    return Record(kind="enqueue", job_id=f"job-{number}", role="Runner", life=life.to_json(), files=files, staged="s")


def written(journal: Journal, number: int, size: int = 1000) -> JournalEntry:
    entry = journal.write([entry_of(number, size)])
    assert entry is not None
    return entry


def fill(journal: Journal, numbers: Iterator[int], until: Callable[[], bool]) -> None:
    """Write records, with their folders, until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        written(journal, next(numbers)).finished()


def in_thread(work: Callable[[], object]) -> Callable[[], None]:
    """Start `work` in a thread; return a function that joins it and fails if it does not end."""
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread waits forever"
        if trouble:
            raise trouble[0]

    return join


def generations(root: str) -> list[int]:
    heads = [stage.read(f"{root}/{FOLDER}/{name}")[8:16] for name in journal_file.names(root)]
    return [int.from_bytes(head, "little") for head in heads]


def restarted(root: str, **more: Any) -> FilesStore:
    """Open the store as the first process after a restart of the machine."""
    return stage.open_files(root, seed=40_000, boot=AFTER, **more)


# --- freeing ---------------------------------------------------------------------------------------------------------


def test_a_journal_is_freed_when_its_folders_are_synced(root: str) -> None:
    """A head that discards records is written after a sync of the filesystem, which comes after the last move of every
    job in those records."""
    store = opened(root)
    worker = store.join("w", role="Runner")
    with placed(Recording()) as seen:
        for number in range(30):
            store.enqueue(stage.submission(number))
            assert stage.work_one(store, worker, stage.History())
    freed = 0
    for at, (op, args) in enumerate(seen.calls):
        if op == "write_sync" and args[3] == 0:
            before = seen.calls[:at]
            last = max(i for i, (op, given) in enumerate(before) if op == "write_sync" and given[1] == args[1])
            moved = next(i for i, (op, _) in enumerate(before) if op == "move" and i > last)
            synced = max(i for i, (op, _) in enumerate(before) if op == "syncfs")
            assert last < moved < synced
            freed += 1
    assert freed >= 3
    store.close()
    assert journal_file.names(root) == []


def test_a_record_is_kept_until_its_folder_is_written(root: str) -> None:
    journal, numbers = made(root), itertools.count(1)
    held = written(journal, 0)
    journal_files = list(journal._files)
    fill(journal, numbers, lambda: journal._active is not journal_files[0])
    eventually(lambda: journal._full == journal_files)
    assert generations(root)[0] == 1
    assert "job-0" in journal_file.mentioned(root)
    held.finished()
    eventually(lambda: journal._full == [])
    assert "job-0" not in journal_file.mentioned(root)
    journal.close()


def test_a_journal_is_not_freed_at_every_record_but_soon_when_it_is_idle(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = made(root, size=8 << 20)
    with placed(Counting(frozenset({"syncfs"}))) as syncs:
        for number in range(40):
            written(journal, number).finished()
            threading.Event().wait(0.002)  # gives the thread time to free it wrongly
        assert syncs.count == 0
    assert len(journal._files) == 1
    journal.close()
    monkeypatch.setattr("farro.store.files.journal.FREE_AFTER_S", 0.05)
    journal = made(root, size=1 << 20)
    written(journal, 1).finished()
    eventually(lambda: not journal_file.mentioned(root))
    journal.close()


def test_a_journal_of_a_dead_process_is_freed_by_a_watchdog(root: str) -> None:
    store, live = opened(root, 1), opened(root, 2)
    store.enqueue(stage.submission(1))
    live.enqueue(stage.submission(2))
    stage.die(store)
    assert len(journal_file.names(root)) == 2
    watchdog = stage.open_files(root, seed=3)
    done = watchdog.recover(watchdog.join("keeper", role=None))
    assert [item.what.split()[0] for item in done] == ["freed"]
    assert [f"{root}/{FOLDER}/{name}" for name in journal_file.names(root)] == [journal_of(live)._files[0].path]
    watchdog.close()
    live.close()


def test_a_removed_journal_never_reappears(root: str) -> None:
    """Its removal is synced before any later change: a file that reappeared after a power cut would restore pruned
    jobs. This holds when it is closed, after its process's death, and after a replay."""
    ends: list[Callable[[FilesStore], object]] = [
        lambda store: store.close(),
        lambda store: (stage.die(store), journal_file.sweep(root, "0")),
        lambda store: (stage.die(store), restarted(root)),
    ]
    for seed, end in enumerate(ends):
        store = opened(root, 10 + seed)
        store.enqueue(stage.submission(1))
        (name,) = journal_file.names(root)
        with placed(Recording()) as seen:
            end(store)
        calls = [(op, args[-1]) for op, args in seen.calls]
        at = calls.index(("unlink", f"{root}/{FOLDER}/{name}"))
        assert "syncfs" in [op for op, _ in calls[:at]]
        assert ("fsync", f"{root}/{FOLDER}") in calls[at:]


def test_eight_threads_lose_nothing_and_none_hangs(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are so small that they rotate all the time. An observer checks that every acknowledged job is in a
    journal, or was finished before a sync of the filesystem."""
    monkeypatch.setattr("farro.store.files.journal.FREE_AFTER_S", 0.002)
    journal = made(root)
    lock = threading.Lock()
    finished: set[str] = set()
    synced: dict[str, set[str]] = {}
    safe: set[str] = set()

    class Watching(Open):
        def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
            if op == "syncfs":
                with lock:
                    synced[args[1]] = set(finished)
            result = super().perform(op, call, args)
            if op == "write_sync" and args[3] == 0:
                with lock:
                    safe.update(synced[args[1]])
            return result

    def work(first: int) -> None:
        for number in range(first, first + rounds):
            entry = written(journal, number, 300 + number % 700)
            with lock:
                finished.add(f"job-{number}")
            entry.finished()

    rounds = 2_000 if torture() else 250
    with placed(Watching()):
        joins = [in_thread(lambda first=first: work(first * rounds)) for first in range(8)]
        for join in joins:
            join()
        kept = journal_file.mentioned(root)
        with lock:
            lost = finished - safe - kept
        journal.close()
    assert len(finished) == 8 * rounds
    assert not lost
    assert safe


def test_eight_slots_of_one_process_lose_nothing(root: str) -> None:
    """Enqueues and commits of eight threads through tiny files; then the machine goes down."""
    store = opened(root)
    tiny = store._context.journal = made(root)
    history = stage.History()
    workers = [store.join("w", role="Runner", slot=slot) for slot in range(8)]
    lock = threading.Lock()

    def work(slot: int) -> None:
        own = stage.History()
        for number in range(12):
            job_id = store.enqueue(stage.submission(slot * 100 + number))
            with lock:
                history.enqueued.add(job_id)
            stage.work_one(store, workers[slot], own, fail=number % 5 == 4)
        with lock:
            history.committed.update(own.committed)
            history.executed += own.executed

    for join in [in_thread(lambda slot=slot: work(slot)) for slot in range(8)]:
        join()
    assert tiny._calls >= 96
    stage.die(store)
    for file in tiny._files:
        file.lease.drop()
    tiny._closing = True
    stage.drain(root, history, boot=AFTER)
    stage.judge(root, history)
    assert len(history.enqueued) == 96


# --- closing, forking, trouble ---------------------------------------------------------------------------------------


def test_a_journal_is_closed_while_its_thread_frees(root: str) -> None:
    journal, numbers = made(root), itertools.count()
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Open):
        def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
            if op == "syncfs" and not begun.is_set():
                begun.set()
                assert go_on.wait(PATIENCE_S)
            return super().perform(op, call, args)

    with placed(Slow()):
        fill(journal, numbers, lambda: journal._full != [])
        assert begun.wait(PATIENCE_S)
        join = in_thread(journal.close)
        go_on.set()
        join()
    assert journal_file.names(root) == []


def test_a_store_that_is_closed_twice_then_works_without_a_journal(root: str) -> None:
    store = opened(root)
    store.enqueue(stage.submission(1))
    store.close()
    store.close()
    assert journal_file.names(root) == []
    with placed(Counting()) as calls:
        store.enqueue(stage.submission(2))
    assert "fsync" in calls.ops
    assert "write_sync" not in calls.ops


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_journal(root: str, background: bool) -> None:
    """A child closes the descriptors, whose numbers other files may soon reuse."""
    journal = made(root, background=background)
    written(journal, 1).finished()
    (path,) = [file.path for file in journal._files]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            stranger = [os.open(f"{root}/stranger-{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
            refused = journal.write([entry_of(2)]) is None
            journal.close()
            empty = all(os.fstat(fd).st_size == 0 for fd in stranger)
            code = 0 if refused and empty and os.path.exists(path) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    written(journal, 3).finished()
    assert journal_file.mentioned(root) == {"job-1", "job-3"}
    journal.close()
    assert journal_file.names(root) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_failed_sync_of_the_filesystem_is_reported_and_frees_nothing(root: str, background: bool) -> None:
    """The kernel reports the error once. The next sync succeeds, and the journal must not trust it."""
    store = opened(root)
    broken = store._context.journal = made(root, background=background)
    told: list[str] = []

    def enqueue_on() -> None:
        for number in range(500):
            told.append(store.enqueue(stage.submission(number)))

    with placed(Errno(1, errno.EIO, only=frozenset({"syncfs"}))) as seam, pytest.raises(SyncFailed, match="journal"):
        enqueue_on()
    assert seam.hit == "syncfs"
    with pytest.raises(SyncFailed):
        store.enqueue(stage.submission(1))
    before = journal_file.mentioned(root)
    assert set(told) & before
    store.close()
    assert broken._files == []
    assert made(root).write([entry_of(1)]) is None  # no record is written that could not be freed later
    watchdog = stage.open_files(root, seed=2)
    keeper = watchdog.join("keeper", role=None)
    for _ in range(3):
        watchdog.recover(keeper)
    assert journal_file.mentioned(root) == before
    watchdog.close()
    for job_id in before:  # the data of the failed sync is gone after the restart
        trees.remove_tree(f"{root}/agents/Runner/incoming/{job_id}")
    restarted(root).close()
    assert set(told) <= stage.everywhere(root).keys()
    assert journal_file.names(root) == []


def test_a_failed_sync_of_a_watchdog_is_reported_and_frees_nothing(root: str) -> None:
    store = opened(root)
    store.enqueue(stage.submission(1))
    stage.die(store)
    watchdog = stage.open_files(root, seed=2)
    keeper = watchdog.join("keeper", role=None)
    with placed(Errno(1, errno.EIO, only=frozenset({"syncfs"}))), pytest.raises(SyncFailed):
        watchdog.recover(keeper)
    watchdog.recover(keeper)
    assert len(journal_file.mentioned(root)) == 1
    watchdog.close()
    with placed(Errno(1, errno.EIO, only=frozenset({"syncfs"}))), pytest.raises(SyncFailed):
        restarted(root)
    assert len(journal_file.mentioned(root)) == 1


def test_no_writer_waits_for_a_dead_freeing_thread(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(self: Journal, file: object) -> None:
        raise MemoryError("gone")

    monkeypatch.setattr(Journal, "_free", ends)
    journal = made(root)

    def write_on() -> None:
        for number in range(1000):
            written(journal, number).finished()

    joins = [in_thread(write_on) for _ in range(4)]
    for join in joins:
        with pytest.raises(SyncFailed, match="gone"):
            join()
    in_thread(journal.close)()


def test_no_writer_waits_for_a_record_that_is_never_finished(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer was interrupted, for example by a signal. Writing without the journal is always right."""
    monkeypatch.setattr("farro.store.files.journal.PATIENCE_S", 0.05)
    journal = made(root)
    written(journal, 0)

    def write_on() -> None:
        for number in range(1, 1000):
            entry = journal.write([entry_of(number)])
            if entry is None:
                return
            entry.finished()

    in_thread(write_on)()
    in_thread(journal.close)()
    assert journal_file.names(root) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("op", ["create", "write", "mkdir"])
def test_an_error_while_a_journal_is_made_leaves_nothing_behind(op: str, code: int, root: str) -> None:
    """A half-written journal file would fill a full disk further, and so would the next one."""
    journal = made(root)
    with placed(Errno(1, code, only=frozenset({op}), persistent=True)):
        assert journal.write([entry_of(1)]) is None
    assert journal_file.names(root) == []
    with placed(Counting()) as calls:
        assert journal.write([entry_of(1)]) is None  # not tried again at once
    assert calls.count == 0
    assert not journal._leading
    journal.close()


def test_a_watchdog_may_remove_a_journal_before_it_is_locked(root: str) -> None:
    """The watchdog treats the file as a dead process's; its maker goes on without a journal and makes one later."""
    journal = made(root)
    swept: list[str] = []

    class Meets(Open):
        def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
            result = super().perform(op, call, args)
            if op == "create" and not swept:
                lease = leases.take(args[0])
                assert lease is not None
                taken.append(lease)
                swept.append(args[0])
            return result

    taken: list[leases.Lease] = []
    with placed(Meets()):
        assert journal.write([entry_of(1)]) is None
    taken.pop().drop()
    assert journal_file.sweep(root, "0") == []
    numbers = itertools.count()
    while (entry := journal.write([entry_of(next(numbers))])) is None:
        assert next(numbers) < 2 * AGAIN_AFTER
    entry.finished()
    journal.close()


def test_without_room_for_a_second_file_the_first_is_freed_in_place(root: str) -> None:
    """The only file is then freed in place, while writers wait."""
    journal, numbers = made(root), itertools.count()
    written(journal, next(numbers)).finished()
    with placed(Errno(1, errno.ENOSPC, only=frozenset({"create"}), persistent=True)):
        fill(journal, numbers, lambda: generations(root)[0] >= 3)
    assert len(journal_file.names(root)) == 1
    journal.close()


@pytest.mark.parametrize("files", [1, 2])
def test_a_file_that_cannot_be_freed_is_never_written_again(files: int, root: str) -> None:
    """The generation of its head is unknown, so a reader might assign a record to the wrong generation."""
    journal, numbers = made(root, background=False), itertools.count()
    written(journal, next(numbers)).finished()
    heads = Heads(files)
    with placed(heads):
        while (entry := journal.write([entry_of(next(numbers))])) is not None:
            entry.finished()
    assert heads.failed == 1
    assert heads.late == []
    assert journal.write([entry_of(1)]) is None
    journal.close()
    assert journal_file.names(root) == []


class Heads(Open):
    """Fail every write of a head, and with one file also the creation of a second."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.failed = 0
        self.late: list[str] = []  # files written after the failure

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if op == "create" and self.files == 1:
            raise OSError(errno.ENOSPC, "no", args[0])
        if op == "write_sync" and args[3] == 0:
            self.failed += 1
            raise OSError(errno.EIO, "no", args[1])
        if op == "write_sync" and self.failed:
            self.late.append(args[1])
        return super().perform(op, call, args)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["torn", "garbage", "checksum", "zeros"])
def test_reading_ends_at_a_torn_record_without_an_error(spoil: str, root: str) -> None:
    journal = made(root)
    for number in range(4):
        written(journal, number).finished()
    (path,) = [file.path for file in journal._files]
    data = bytearray(stage.read(path))
    third = START + 2 * (journal._files[0].position - START) // 4
    change = {"torn": bytes(600), "garbage": os.urandom(64), "checksum": b"\1\2\3\4", "zeros": bytes(16)}[spoil]
    at = third + {"torn": 500, "garbage": 0, "checksum": 4, "zeros": 0}[spoil]
    data[at : at + len(change)] = change
    Path(path).write_bytes(data)
    assert [record.job_id for record in journal_file.read(path)] == ["job-0", "job-1"]
    journal.close()


def test_records_of_an_earlier_generation_are_ignored(root: str) -> None:
    journal, numbers = made(root, background=False), itertools.count()
    fill(journal, numbers, lambda: max(generations(root), default=0) >= 2 and journal._active is journal._files[0])
    last = next(numbers)
    written(journal, last).finished()
    first = journal._files[0]
    assert first.generation == 2
    named = [record.job_id for record in journal_file.read(first.path)]
    assert named[-1] == f"job-{last}"
    assert len(named) <= 2
    assert b"job-1" in stage.read(first.path)  # the bytes of the first generation are still there, after the new ones
    journal.close()


def test_half_written_heads_are_not_read_as_journals(root: str) -> None:
    home = f"{root}/{FOLDER}"
    os.mkdir(home)
    for number, data in enumerate([b"", b"farro-j1", bytes(SMALL), b"\xff" * SMALL]):
        Path(f"{home}/0.{number:016x}.a").write_bytes(data)
    restarted(root).close()
    assert journal_file.names(root) == []


def test_a_journal_of_another_version_keeps_the_root_closed(root: str) -> None:
    """Such records were acknowledged and exist nowhere else: the root refuses to open, and says why."""
    store = opened(root)
    store.enqueue(stage.submission(1))
    stage.die(store)
    (name,) = journal_file.names(root)
    path = Path(f"{root}/{FOLDER}/{name}")
    good = path.read_bytes()
    path.write_bytes(b"farro-j2" + good[8:])
    with pytest.raises(UnknownSchema, match="another version"):
        restarted(root)
    assert journal_file.names(root) == [name]
    path.write_bytes(good)
    restarted(root).close()
    assert journal_file.names(root) == []


# --- pruning ---------------------------------------------------------------------------------------------------------


def test_a_job_in_a_journal_is_not_pruned(root: str) -> None:
    """After a power cut its record would restore it."""
    store, pruner = opened(root), stage.open_files(root, seed=2)
    everything = PruneFilter(keep=0)

    def pruned() -> int:
        now = stage.QuickClock().now()
        chosen = candidates(pruner, everything, now=now)
        return pruner.remove(chosen, by="pruner").jobs

    worker = store.join("w", role="Runner")
    for number in range(3):
        store.enqueue(stage.submission(number))
        stage.work_one(store, worker, stage.History())
        assert pruned() == 0
    store.close()
    assert pruned() == 3
    restarted(root).close()
    assert stage.everywhere(root) == {}


def test_a_job_that_ends_during_a_prune_is_not_pruned(root: str) -> None:
    """The pruner has already read the journals when the record is written."""
    store, pruner = opened(root), stage.open_files(root, seed=2)
    worker = store.join("w", role="Runner")
    first, second = (store.enqueue(stage.submission(number)) for number in range(2))
    with pruner.trash() as trash:
        for job_id in (first, second):
            stage.work_one(store, worker, stage.History())
            assert trash.take(job_id, "agents/Runner/completed/succeeded") is False
    store.close()


# --- replaying -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "play", [powerplays.rotated, powerplays.rerun, powerplays.mixed, powerplays.chained], ids=lambda play: play.__name__
)
def test_a_power_cut_during_the_replay(play: Callable[[Play], None], shm: Path) -> None:
    """Cut the power again at every call of the replay; a third process finishes."""
    recorded = record(play, str(shm / "root"), journal=True)
    first, second = (60, 400) if torture() else (6, 60)
    told = recorded.log.told()
    # The first state of each cut has lost nothing, so the replay has little to do.
    found = list(itertools.islice(states(recorded.log, seed=26, randoms=3, cuts=told), len(told), 8 * len(told)))
    count = 0
    for state in found[:: max(1, len(found) // first)]:
        tree = str(shm / "tree")
        state.write_out(tree)
        recorder = Recorder(tree)
        clock = stage.QuickClock()
        clock.sleep(DAY_S)
        with placed(recorder):
            stage.open_files(tree, seed=30_000, clock=clock, boot=AFTER)
        for again in itertools.islice(states(Log.of(recorder), seed=27, randoms=2), second):
            story = f"{state.story}; then in the replay {again.story}"
            check(dataclasses.replace(again, acks=state.acks, story=story), recorded, str(shm / "again"))
            count += 1
        trees.remove_tree(tree)
    assert count > 100
    add_figure("power-loss states, cut again in the replay", count, "states")


def test_a_kill_during_the_replay(shm: Path) -> None:
    """Kill the replay at every call; the next process starts it again."""
    recorded = record(powerplays.mixed, str(shm / "root"), journal=True)
    (state,) = itertools.islice(states(recorded.log, seed=28, randoms=1, cuts=[len(recorded.log.entries) - 1]), 1, 2)
    count = 0
    for n in itertools.count(1):
        tree = str(shm / f"tree-{n}")
        state.write_out(tree)
        with placed(KillAt(n)) as seam:
            try:
                stage.open_files(tree, seed=30_000, boot=AFTER)
            except stage.Crash:
                count += 1
        powerplays.after_the_cut(tree, state.acks, recorded, coming_back=("drain",), old_staging=False)
        if not seam.dead:
            break
    assert count > 8
    add_figure("kill points, with a journal", count, "points")


def test_two_processes_after_a_power_cut_replay_once(root: str) -> None:
    store = opened(root)
    told = [store.enqueue(stage.submission(number)) for number in range(20)]
    stage.die(store)
    said: list[str] = []
    together = threading.Barrier(4)

    def opens(seed: int) -> None:
        together.wait()
        stage.open_files(root, seed=seed, boot=AFTER, log=lambda level, message, fields: said.append(message)).close()

    for join in [in_thread(lambda seed=seed: opens(seed)) for seed in range(50, 54)]:
        join()
    assert said == ["journals replayed after a restart of the machine"]
    assert stage.everywhere(root).keys() == set(told)


def test_a_journal_of_another_boot_whose_process_lives_is_left_alone(root: str) -> None:
    """A container may have its own boot id on the same machine and the same root."""
    store = opened(root)
    store.enqueue(stage.submission(1))
    said: list[str] = []
    other = restarted(root, log=lambda level, message, fields: said.append(level))
    assert said == ["error"]
    assert len(journal_file.names(root)) == 1
    other.close()
    store.enqueue(stage.submission(2))
    store.close()


def test_a_refused_enqueue_does_not_appear_after_a_power_cut(root: str) -> None:
    store = opened(root)
    store.enqueue(stage.submission(1))
    with placed(Errno(2, errno.EACCES, only=frozenset({"move"}), persistent=True)), pytest.raises(StorageTrouble):
        store.enqueue_many([stage.submission(2), stage.submission(3), stage.submission(4)])
    there = stage.everywhere(root)
    assert len(there) == 2  # the first of the three was published before the error
    stage.die(store)
    restarted(root).close()
    assert stage.everywhere(root) == there


@pytest.mark.parametrize("stays", [True, False])
def test_an_enqueue_whose_folder_cannot_be_made_is_revoked(stays: bool, root: str) -> None:
    """The journal record is on disk by then. After a transient error the job is made without the journal."""
    store = opened(root)
    store.enqueue(stage.submission(1))
    refused = pytest.raises(StorageTrouble) if stays else contextlib.nullcontext()
    with placed(Errno(1, errno.EACCES, only=frozenset({"mkdir"}), persistent=stays)) as seam, refused:
        store.enqueue(stage.submission(2))
    assert seam.hit
    there = stage.everywhere(root)
    assert len(there) == (1 if stays else 2)
    assert len(os.listdir(f"{root}/jobs/.staging")) == 0
    stage.die(store)
    restarted(root).close()
    assert stage.everywhere(root) == there


def test_a_begun_record_that_fails_is_not_acknowledged(root: str) -> None:
    store = opened(root)
    store.enqueue(stage.submission(1))
    with placed(Errno(1, errno.EIO, only=frozenset({"write_sync"}))), pytest.raises(SyncFailed):
        store.enqueue(stage.submission(2))
    assert len(stage.everywhere(root)) == 1
    assert os.listdir(f"{root}/jobs/.staging") == []
    with pytest.raises(SyncFailed):
        store.enqueue(stage.submission(3))
    store.close()


@pytest.mark.parametrize("after", [False, True])
def test_without_async_writes_a_record_is_written_directly(after: bool, root: str) -> None:
    """This also holds for a begun write that was never acknowledged: it ends before the next one uses its place."""
    store = opened(root)
    store.enqueue(stage.submission(1))
    with placed(Errno(1, errno.EAGAIN, after, only=frozenset({"write_begun"}))):
        store.enqueue(stage.submission(2))
    with placed(Counting()) as counting:
        store.enqueue(stage.submission(3))
    assert "write_begun" not in counting.ops  # not tried again
    assert "write_sync" in counting.ops
    there = stage.everywhere(root)
    assert len(there) == 3
    stage.die(store)
    lost(root)
    restarted(root).close()
    assert stage.everywhere(root) == there


def test_eight_submitters_of_one_process_lose_nothing_with_the_power(root: str) -> None:
    """Some have the journal to themselves and begin their write early, others find it busy and wait."""
    store = opened(root)
    done: list[str] = []
    ends = [
        in_thread(lambda: done.extend(store.enqueue(stage.submission(number)) for number in range(25)))
        for _ in range(8)
    ]
    for end in ends:
        end()
    assert len(set(done)) == 200
    stage.die(store)
    restarted(root).close()
    assert set(stage.everywhere(root)) == set(done)


def lost(root: str) -> None:
    """Reduce a young root to the worst state after a power cut: only the journals are left."""
    for place in ("agents/Runner/incoming", "agents/CodeReviewer/incoming", "jobs/.staging"):
        for name in os.listdir(f"{root}/{place}"):
            trees.remove_tree(f"{root}/{place}/{name}")


def test_the_replay_restores_the_order_of_a_queue(root: str) -> None:
    for whole in (True, False):
        home = stage.make(f"{root}-{whole}")
        store = opened(home)
        wanted = {}
        for priority in ["P2", "P3", "P0", "P1"]:
            store._context.clock.sleep(2.0)
            wanted[priority] = store.enqueue(stage.submission(1, metadata={"priority": priority}))
        stage.die(store)
        if whole:
            lost(home)
        else:
            for job_id in wanted.values():
                os.utime(f"{home}/agents/Runner/incoming/{job_id}/job.json")
        other = restarted(home)
        claims = [claim_one(other, other.join("w", role="Runner", slot=n)) for n in range(4)]
        assert [claim and claim.job_id for claim in claims] == [wanted[each] for each in ("P0", "P1", "P2", "P3")]
        other.close()


def test_the_mirrors_after_a_replay_are_the_last_reports(root: str) -> None:
    """The first attempt is in a journal, the second was synced in place: the older must not replace the newer."""
    store, careful = opened(root), stage.open_files(root, seed=2)
    store.enqueue(stage.submission(1, routing={"next": "CodeReviewer"}))
    history = stage.History()
    stage.work_one(store, store.join("w", role="Runner"), history)
    stage.work_one(careful, careful.join("r", role="CodeReviewer"), history)
    stage.die(store)
    stage.die(careful)
    restarted(root).close()
    ((job_id, (place,)),) = stage.everywhere(root).items()
    path = f"{root}/{place}/{job_id}"
    assert stage.read(f"{path}/result.md") == stage.read(f"{path}/attempts/0002/result.md")
    assert not os.path.exists(f"{path}/error.md")


def test_the_replay_does_not_overwrite_a_newer_schema(root: str) -> None:
    store = opened(root)
    job_id = store.enqueue(stage.submission(1))
    stage.die(store)
    path = Path(f"{root}/agents/Runner/incoming/{job_id}/job.json")
    planted = json.dumps({"schema_version": "99.0.0", "job_id": job_id})
    path.write_text(planted)
    said: list[str] = []
    restarted(root, log=lambda level, message, fields: said.append(level)).close()
    assert path.read_text() == planted
    assert said == ["critical", "warning"]


def test_a_quarantined_job_stays_there(root: str) -> None:
    store = opened(root)
    job_id = store.enqueue(stage.submission(1))
    os.rename(f"{root}/agents/Runner/incoming/{job_id}", f"{root}/jobs/quarantine/{job_id}")
    stage.die(store)
    restarted(root).close()
    assert stage.everywhere(root) == {job_id: ["jobs/quarantine"]}


def test_of_two_folders_of_one_id_the_later_one_stays(root: str) -> None:
    """A disk may tear a rename. Without this rule the other folder would run again and be committed twice."""
    store = opened(root)
    job_id = store.enqueue(stage.submission(1))
    queued, done = f"{root}/agents/Runner/incoming/{job_id}", f"{root}/agents/Runner/completed/succeeded/{job_id}"
    fs.mkdir(f"{root}/twin")
    for name in os.listdir(queued):
        Path(f"{root}/twin/{name}").write_bytes(stage.read(f"{queued}/{name}"))
    stage.work_one(store, store.join("w", role="Runner"), stage.History())
    stage.die(store)
    os.rename(f"{root}/twin", queued)
    restarted(root).close()
    assert os.path.isdir(done)
    assert sorted(stage.everywhere(root)[job_id]) == ["agents/Runner/completed/succeeded", "jobs/quarantine"]


def test_a_role_that_is_gone_keeps_the_root_closed_until_it_is_made_again(root: str) -> None:
    """A job of that role would stay in staging, where clean-up would remove it as debris."""
    store = opened(root)
    job_id = store.enqueue(stage.submission(1, role="CodeReviewer"))
    stage.die(store)
    lost(root)
    os.rmdir(f"{root}/agents/CodeReviewer/incoming")
    for _ in range(2):
        with pytest.raises(StorageTrouble, match="farro init"):
            restarted(root)
    stage.make(root)
    restarted(root).close()
    assert stage.everywhere(root) == {job_id: ["agents/CodeReviewer/incoming"]}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_an_error_at_every_call_of_the_replay_keeps_the_journals(code: int, root: str, shm: Path) -> None:
    store = opened(root)
    told = {store.enqueue(stage.submission(1)), store.enqueue(stage.submission(2))}
    stage.work_one(store, store.join("w", role="Runner"), stage.History())
    stage.die(store)
    lost(root)
    for n in itertools.count(1):
        home = str(shm / f"{n}")
        clone(root, home)
        with placed(Errno(n, code)) as seam, contextlib.suppress(StorageTrouble, SyncFailed):
            restarted(home).close()
        if os.path.exists(f"{home}/{FOLDER}/{AFTER}{journal_file.FAILED}"):
            assert journal_file.mentioned(home) == told  # until the machine restarts
            stage.open_files(home, seed=9, boot="2").close()
        restarted(home).close()
        assert stage.everywhere(home).keys() == told
        if seam.hit is None:
            break
    assert n > 10


def test_a_commit_record_of_a_missing_job_is_reported(root: str) -> None:
    """An operator removed its folder by hand; the other jobs are still restored."""
    store = stage.open_files(root, seed=1)
    taken, other = store.enqueue(stage.submission(1)), store.enqueue(stage.submission(2))
    quick = opened(root, 2)
    worker = quick.join("w", role="Runner")
    for _ in range(2):
        stage.work_one(quick, worker, stage.History())
    stage.die(quick)
    trees.remove_tree(f"{root}/agents/Runner/completed/succeeded/{taken}")
    said: list[str] = []
    restarted(root, log=lambda level, message, fields: said.append(level)).close()
    assert said == ["critical", "warning"]
    assert stage.everywhere(root).keys() == {other}


def test_two_tries_of_a_commit_with_different_results_are_not_mixed(root: str) -> None:
    """The first try's record is in the journal, but its folder could not be written; the second try used no journal."""
    store = opened(root)
    store.enqueue(stage.submission(1))
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    with placed(Errno(1, errno.ENOSPC, only=frozenset({"exchange"}), persistent=True)), pytest.raises(StorageTrouble):
        commit_one(store, claim, success(claim))
    told = commit_one(store, claim, failure(claim))
    assert told.status is Status.FAILED
    stage.die(store)
    restarted(root).close()
    history = stage.History(committed={claim.job_id: [(1, Status.FAILED)]})
    stage.judge(root, history)
    ((job_id, (place,)),) = stage.everywhere(root).items()
    life = Lifecycle.from_json(stage.read(f"{root}/{place}/{job_id}/job.json"))
    assert [hop.reason for hop in life.hops] == [Reason.COMMITTED]


def test_a_root_without_a_boot_id_journals_and_replays_nothing(root: str) -> None:
    store = opened(root)
    store.enqueue(stage.submission(1))
    stage.die(store)
    other = opened(root, 2, boot="")
    with placed(Counting()) as calls:
        other.enqueue(stage.submission(2))
    assert "write_sync" not in calls.ops
    assert journal_file.sweep(root, "") == []
    assert len(journal_file.names(root)) == 1
    other.close()
