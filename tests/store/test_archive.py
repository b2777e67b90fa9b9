"""Archive finished jobs, and find them as before: the format, its damage, the queries, prune and export."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from pathlib import Path

import pytest

import stage
from farro.errors import Damaged, IdConflict, IllegalTransition, Refused
from farro.host import fs
from farro.jobs.states import FINISHED, Status
from farro.queue import retry
from farro.queue.history import history
from farro.queue.jobs import JobQuery, ls, show
from farro.queue.prune import PruneFilter, candidates
from farro.queue.retention import Retention, choose
from farro.queue.stats import stats
from farro.store.files import FilesStore, archive, archive_segment
from farro.store.files.checks import checks
from farro.store.port import Archived
from stage import QuickClock

CLOCK = QuickClock()


def opened(root: str, seed: int = 1) -> FilesStore:
    return stage.open_files(root, seed=seed)


def archived(store: FilesStore) -> Archived:
    return store.archive(choose(store, now=CLOCK.now()))


def prepared(root: str, jobs: int = 4) -> tuple[FilesStore, list[str]]:
    """Make finished jobs, the last one named and with a chosen id, one of them failed."""
    store = opened(stage.make(root))
    made = [store.enqueue(stage.submission(number)) for number in range(jobs - 1)]
    made.append(store.enqueue_named("nightly", stage.submission(77, job_id="chosen")))
    worker = store.join("w", role="Runner")
    done = 0
    while stage.work_one(store, worker, stage.History(), fail=done == 1):
        done += 1
    store.leave(worker)
    return store, made


def files_of(folder: str) -> dict[str, bytes]:
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            path = Path(here, name)
            if not path.is_symlink():
                found[os.path.relpath(path, folder)] = path.read_bytes()
    return found


def test_an_archived_job_is_found_as_before(shm: Path) -> None:
    store, made = prepared(str(shm / "root"))
    before = [store.find(job_id) for job_id in made]
    files = [files_of(store.folder(view)) for view in before if view is not None]
    counts = store.count(), store.queue_counts()
    prompts = store.prompts([view for view in before if view is not None])
    listed = ls(store, JobQuery(last=3)), {view.job_id for view in ls(store, JobQuery())}
    lines = stats(store, now=CLOCK.now(), window_s=1e9)
    lives = [history(store, job_id).attempts for job_id in made]
    shown = [show(store, job_id) for job_id in made]
    assert archived(store).jobs == len(made)
    assert stage.everywhere(store.root) == {}
    for other in (store, opened(store.root, seed=2)):
        after = [other.find(job_id) for job_id in made]
        assert after == before
        assert [files_of(other.folder(view)) for view in after if view is not None] == files
        assert (other.count(), other.queue_counts()) == counts
        assert other.prompts([view for view in after if view is not None]) == prompts
        assert (ls(other, JobQuery(last=3)), {view.job_id for view in ls(other, JobQuery())}) == listed
        assert stats(other, now=CLOCK.now(), window_s=1e9) == lines
        assert [history(other, job_id).attempts for job_id in made] == lives
        assert [show(other, job_id) for job_id in made] == shown
        assert {entry.job_id for entry in other.entries(statuses=FINISHED)} == set(made)
        assert {entry.job_id for entry in other.entries(statuses=[Status.FAILED])} == {
            view.job_id for view in before if view is not None and view.status is Status.FAILED
        }
        assert (other.named("nightly"), dict(other.names())) == ("chosen", {"nightly": "chosen"})
        assert "chosen" in set(other.ids("ch"))
        assert set(made[:-1]) <= set(other.ids("job-"))
        other.close()
    assert os.listdir(f"{store.root}/jobs/.work") == [], "the copies go with their process"


def test_an_archived_id_is_not_used_twice(shm: Path) -> None:
    store, made = prepared(str(shm / "root"))
    archived(store)
    assert os.listdir(f"{store.root}/jobs/.ids") == [], "the index has the id"
    (again,) = store.enqueue_many([stage.submission(77, job_id="chosen")])
    assert (again.id, again.existed) == ("chosen", True)
    both = store.enqueue_many([stage.submission(77, job_id="chosen"), stage.submission(5, job_id="fresh")])
    assert [(one.id, one.existed) for one in both] == [("chosen", True), ("fresh", False)]
    with pytest.raises(IdConflict, match="with other content"):
        store.enqueue(stage.submission(78, job_id="chosen"))
    with pytest.raises(IdConflict, match="exists already"):
        store.enqueue(stage.submission(0, job_id=made[0]))
    worker = store.join("w", role="Runner")
    assert store.enqueue_claimed(worker, stage.submission(77, job_id="chosen")) is None
    assert list(stage.everywhere(store.root)) == ["fresh"]
    store.close()


def test_a_job_archived_during_its_resubmission_is_not_made_twice(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submitter looked into the archive before the job was in it, and registers after its link is gone."""
    store, _ = prepared(str(shm / "root"))
    late = opened(store.root, seed=2)
    archived(store)
    index = late._context.archive_index
    digest, looks = index.digest, iter([None])
    monkeypatch.setattr(index, "digest", lambda job_id: next(looks, digest(job_id)))
    (again,) = late.enqueue_many([stage.submission(77, job_id="chosen")])
    assert (again.id, again.existed) == ("chosen", True)
    assert os.listdir(f"{store.root}/jobs/.ids") == []
    assert stage.everywhere(store.root) == {}
    assert os.listdir(f"{store.root}/jobs/.staging") == []
    for each in (store, late):
        each.close()


def test_dependents_retries_and_refusals_of_an_archived_job(shm: Path) -> None:
    store, made = prepared(str(shm / "root"))
    archived(store)
    failed = next(entry.job_id for entry in store.entries(statuses=[Status.FAILED]))
    store.enqueue(stage.submission(5, job_id="dependent", metadata={"after": ["chosen"]}))
    dependent = store.find("dependent")
    assert dependent is not None
    assert dependent.place == "agents/Runner/incoming", "what it runs after has succeeded"
    new = retry.retry(store, failed)
    assert store.find(new.job_id) is not None
    with retry_operator(store) as agent, pytest.raises(IllegalTransition, match="is final"):
        store.requeue(agent, failed)
    with retry_operator(store) as agent:
        assert store.kill(agent, made[0]).job_id == made[0], "a job that has ended is returned as it is"
    store.close()


def retry_operator(store: FilesStore):  # type: ignore[no-untyped-def]
    from farro.queue.jobs import operator

    return operator(store, "ann")


def test_export_gives_the_folders_back(shm: Path) -> None:
    store, made = prepared(str(shm / "root"))
    extra = f"{store.root}/agents/Runner/completed/succeeded/chosen"
    os.makedirs(f"{extra}/attempts/0001/out/deep")
    Path(extra, "attempts/0001/out/deep/run.sh").write_bytes(b"#!/bin/sh\n\x00\xff")
    os.chmod(f"{extra}/attempts/0001/out/deep/run.sh", 0o755)
    os.symlink("../nowhere", f"{extra}/attempts/0001/out/link")
    before, to = str(shm / "before"), str(shm / "exported")
    shutil.copytree(f"{store.root}/agents/Runner/completed", before, symlinks=True)
    archived(store)
    chosen = choose(store, now=CLOCK.now(), archived=True)
    assert store.export(chosen, to) == len(made)
    _equal(before, f"{to}/agents/Runner/completed")
    with pytest.raises(Refused, match="exists already"):
        store.export(chosen, to)
    store.close()


def _equal(one: str, other: str) -> None:
    for here, folders, names in os.walk(other):
        there = here.replace(other, one)
        for name in (*folders, *names):
            mine, its = os.lstat(f"{here}/{name}"), os.lstat(f"{there}/{name}")
            assert (mine.st_mode, mine.st_size if name in names else 0) == (
                its.st_mode,
                its.st_size if name in names else 0,
            )
            if os.path.islink(f"{here}/{name}"):
                assert os.readlink(f"{here}/{name}") == os.readlink(f"{there}/{name}")
            elif name in names:
                assert filecmp.cmp(f"{here}/{name}", f"{there}/{name}", shallow=False)
                assert mine.st_mtime_ns == its.st_mtime_ns
    assert len(files_of(one)) == len(files_of(other))


def test_prune_removes_archived_jobs(shm: Path) -> None:
    store, made = prepared(str(shm / "root"))
    archived(store)
    old = candidates(store, PruneFilter(keep=1), now=CLOCK.now())
    assert {job.job_id for job in old} < set(made)
    assert (store.size_bytes(old) or 0) > 0
    assert store.remove(old, by="pruner").jobs == len(old) == len(made) - 1
    assert len(store.list()) == 1
    assert store.remove(store.list(), by="pruner").jobs == 1
    assert (store.list(), list(store.entries()), dict(store.names())) == ([], [], {})
    assert sorted(os.listdir(f"{store.root}/jobs/.archive")) == [".gone"]
    assert store.enqueue_named("nightly", stage.submission(3, job_id="chosen")) == "chosen", "both are free again"
    store.close()


def test_runs_share_segments(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty runs of one job leave at most as many segments as forty has binary digits, each job in one of them."""
    store = opened(stage.make(str(shm / "root")))
    worker = store.join("w", role="Runner")
    made = []
    for number in range(40):
        made.append(store.enqueue(stage.submission(number)))
        assert stage.work_one(store, worker, stage.History())
        assert archived(store).jobs == 1
    segments = store._context.archive_index.segments()
    assert len(segments) <= 6
    assert sorted(job.job_id for segment in segments for job in segment.jobs()) == sorted(made)
    newest = [entry.job_id for entry in store.newest()]
    assert sorted(newest) == sorted(made)
    times = [entry.changed_at_s() for entry in store.newest()]
    assert times == sorted(times, reverse=True)
    store.close()


def live(store: FilesStore) -> list[str]:
    """Return the jobs that have folders."""
    return [name for name in stage.everywhere(store.root) if "." not in name]


def segment_of(store: FilesStore) -> str:
    (name,) = (name for name in os.listdir(f"{store.root}/jobs/.archive") if name.endswith(".seg"))
    return f"{store.root}/jobs/.archive/{name}"


def spoil(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_a_damaged_block_costs_only_its_own_jobs(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_segment, "BLOCK_BYTES", 4000)
    store, made = prepared(str(shm / "root"), jobs=12)
    archived(store)
    (segment,) = store._context.archive_index.segments()
    assert len(segment.blocks) > 2
    broken = {job.job_id for job in segment.jobs() if job.block == segment.blocks[1].offset}
    spoil(segment.path, segment.blocks[1].offset + 100)
    store.close()
    store = opened(store.root, seed=2)
    views = {job_id: store.find(job_id) for job_id in made}
    assert {job_id for job_id, view in views.items() if view is not None and view.damaged} == broken
    assert 0 < len(broken) < len(made)
    for job_id, view in views.items():
        assert view is not None
        assert view.lifecycle.terminal
        if job_id in broken:
            with pytest.raises(Damaged):
                store.folder(view)
        else:
            assert show(store, job_id).message
    assert len(store.list()) == len(made)
    finding = next(check for check in checks(store._context, ["Runner"], finished=None) if check.id == "archive").look()
    assert finding.verdict == "failed"
    assert "1 damaged block of" in finding.details[0]
    store.close()


@pytest.mark.parametrize("where", ["end", "foot", "index", "page"])
def test_a_lost_index_is_rebuilt(shm: Path, where: str) -> None:
    store, made = prepared(str(shm / "root"))
    archived(store)
    path = segment_of(store)
    (segment,) = store._context.archive_index.segments()
    pages = segment._foot["pages"]
    store.close()
    size = os.path.getsize(path)
    offset = {"end": size - 2, "foot": size - 40, "index": pages + 14, "page": segment._pages[0][0] + 20}[where]
    spoil(path, offset)
    store = opened(store.root, seed=2)
    for job_id in made:
        view = store.find(job_id)
        assert view is not None
        assert view.damaged is None
    assert len(store.list()) == len(made)
    assert len(list(store.newest())) == len(made)
    finding = next(check for check in checks(store._context, ["Runner"], finished=None) if check.id == "archive").look()
    assert finding.verdict == "failed"
    store.archive([])
    finding = next(check for check in checks(store._context, ["Runner"], finished=None) if check.id == "archive").look()
    assert finding.verdict == "ok"
    assert os.path.exists(f"{path}.damaged")
    assert [view.job_id for view in map(store.find, made) if view is not None] == made
    store.close()


def break_disk(monkeypatch: pytest.MonkeyPatch, path: str, sector: int) -> None:
    """Let every read of this sector fail."""
    bad = os.stat(path)

    def read_at(fd: int, count: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(fd), bad) and offset < sector + 4096 and offset + count > sector:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, count, offset)

    monkeypatch.setattr(fs, "read_at", read_at)


@pytest.mark.parametrize("where", ["end", "index", "page", "dropped"])
def test_an_unreadable_sector_of_the_index_costs_nothing_else(
    shm: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(archive_segment, "BLOCK_BYTES", 4000)
    store, _ = prepared(str(shm / "root"), jobs=40)
    archived(store)
    (segment,) = store._context.archive_index.segments()
    path, foot = segment.path, segment._foot
    offset = {"end": segment.size - 1, "index": foot["pages"], "page": segment._pages[0][0], "dropped": foot["dropped"]}
    sector = offset[where] // 4096 * 4096
    whole = {job.job_id for job in segment.jobs() if job.block + len(segment.frame(job.block)) <= sector}
    assert len(whole) > 20
    store.close()
    break_disk(monkeypatch, path, sector)
    store = opened(store.root, seed=2)
    for job_id in whole:
        view = store.find(job_id)
        assert view is not None
        assert view.damaged is None
    assert {view.job_id for view in store.list()} >= whole
    assert sum(store.queue_counts().roles["Runner"].values()) >= len(whole)
    assert store.enqueue(stage.submission(5, job_id="fresh")) == "fresh"
    finding = next(check for check in checks(store._context, ["Runner"], finished=None) if check.id == "archive").look()
    assert finding.verdict == "failed"
    store.archive([])
    assert {view.job_id for view in store.list()} >= whole
    store.close()


def test_a_segment_with_an_unreadable_block_is_rewritten(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run absorbs it and prune removes jobs from it: the block's jobs stay in the index."""
    monkeypatch.setattr(archive_segment, "BLOCK_BYTES", 4000)
    store, made = prepared(str(shm / "root"), jobs=12)
    jobs = choose(store, now=CLOCK.now())
    store.archive(jobs[:6])
    (segment,) = store._context.archive_index.segments()
    broken = {job.job_id for job in segment.jobs() if job.block == segment.blocks[1].offset}
    spoil(segment.path, segment.blocks[1].offset + 4)  # of the length: the frame seems to end after the file
    assert archived(store).jobs == 6
    assert len(store._context.archive_index.segments()) == 1, "absorbed"
    assert os.path.exists(f"{segment.path}.damaged")
    pruned = next(job_id for job_id in made if job_id not in broken)
    assert store.remove([view for view in store.list() if view.job_id == pruned], by="pruner").jobs == 1
    assert {view.job_id for view in store.list()} == set(made) - {pruned}
    assert {view.job_id for view in store.list() if view.damaged} == broken
    store.close()


def test_a_job_that_the_disk_cannot_read_stays_and_the_others_are_archived(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = prepared(str(shm / "root"))
    said: list[tuple[str, object]] = []
    store.close()
    store = stage.open_files(store.root, seed=2, log=lambda level, message, more: said.append((level, more["job_id"])))
    read = fs.read_with_status

    def refuse(path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
        if f"/{made[0]}/prompt.json" in path or f"/{made[1]}/job.json" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path, limit)

    monkeypatch.setattr(fs, "read_with_status", refuse)
    assert archived(store).jobs == len(made) - 2
    assert sorted(live(store)) == sorted(made[:2])
    assert sorted(said) == sorted([("error", made[0]), ("error", made[1])])
    store.close()


def test_a_job_with_folder_and_record_is_seen_once(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = prepared(str(shm / "root"))
    views = [store.find(job_id) for job_id in made]
    counts = store.count(), store.queue_counts()

    def die(*args: object) -> None:
        raise stage.Crash

    with monkeypatch.context() as patched:
        patched.setattr(archive, "_finish", die)
        with pytest.raises(stage.Crash):
            archived(store)
    store._context.archive_index.forget_listing()
    assert any(segment.unfinished for segment in store._context.archive_index.segments())
    assert len(stage.everywhere(store.root)) == len(made)
    assert [store.find(job_id) for job_id in made] == views
    assert sorted(entry.job_id for entry in store.entries()) == sorted(made)
    assert sorted(entry.job_id for entry in store.newest()) == sorted(made)
    assert sorted(view.job_id for view in store.list()) == sorted(made)
    assert (store.count(), store.queue_counts()) == counts
    changed = f"{store.root}/agents/Runner/completed/succeeded/chosen/note.txt"
    Path(changed).write_text("by hand")
    watchdog = store.join("watchdog", role=None)
    assert [action.what for action in store.recover(watchdog) if "archived" in action.what]
    assert live(store) == ["chosen"], "what was edited since stays a folder"
    assert sorted(entry.job_id for entry in store.entries()) == sorted(made)
    assert (store.count(), store.queue_counts()) == counts
    assert archived(store).jobs == 1
    chosen = store.find("chosen")
    assert chosen is not None
    assert Path(store.folder(chosen), "note.txt").read_text() == "by hand"
    store.close()


def test_damage_before_the_end_of_a_move_loses_no_job(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment was damaged after it was written, and the folders are still there: they stay."""
    store, made = prepared(str(shm / "root"))
    views = [store.find(job_id) for job_id in made]

    def die(*args: object) -> None:
        raise stage.Crash

    with monkeypatch.context() as patched:
        patched.setattr(archive, "_finish", die)
        with pytest.raises(stage.Crash):
            archived(store)
    store._context.archive_index.forget_listing()
    (segment,) = store._context.archive_index.segments()
    spoil(segment.path, segment.blocks[0].offset + 100)
    store.recover(store.join("watchdog", role=None))
    assert sorted(live(store)) == sorted(made)
    assert [store.find(job_id) for job_id in made] == views
    assert archived(store).jobs == len(made)
    assert [store.find(job_id) for job_id in made] == views
    store.close()


def test_what_cannot_be_archived_stays(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = prepared(str(shm / "root"))
    store.enqueue(stage.submission(9, job_id="waiting"))
    home = f"{store.root}/agents/Runner/completed/succeeded"
    os.mkfifo(f"{home}/{made[0]}/attempts/0001/pipe")
    monkeypatch.setattr(archive_segment, "MAX_JOB_BYTES", 100_000)
    Path(home, "chosen/attempts/0001/large").write_bytes(os.urandom(200_000))
    assert archived(store).jobs == len(made) - 2
    assert set(stage.everywhere(store.root)) == {made[0], "chosen", "waiting"}
    with store.trash(), pytest.raises(Refused, match="another"):
        archived(opened(store.root, seed=3))
    store.close()


def test_the_manager_archives_what_is_old_enough(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = prepared(str(shm / "root"))
    clock = QuickClock()
    newest = max(entry.changed_at_s() for entry in store.entries())
    clock.offset_s = newest + 3600 - QuickClock().now().timestamp()
    said: list[str] = []
    late = Retention(store=store, after_s=7200, clock=clock, log=lambda level, message, more: said.append(message))
    late.turn(background=False)
    assert len(stage.everywhere(store.root)) == len(made)
    soon = Retention(store=store, after_s=60, clock=clock, log=lambda level, message, more: said.append(message))
    soon.turn(background=False)
    with monkeypatch.context() as patched:
        patched.setattr(archive_segment.Segment, "_read", lambda *_: pytest.fail("the archive was read"))
        soon.run_once()
    assert stage.everywhere(store.root) == {}
    assert said == ["finished jobs archived"]
    store.close()
