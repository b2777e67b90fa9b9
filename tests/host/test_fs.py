"""Durable files: renames never replace, writes are atomic, and syncs are merged."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farro.errors import StorageTrouble, SyncFailed
from farro.host import fs, trees

NOBODY = 65534


class Seam:
    """Record the mutating calls; `fail` names calls, by number and kind, that raise instead."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fail: Callable[[str, int], int | None] = lambda op, number: None
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda op, args: None
        self.counts: Counter[str] = Counter()

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.counts[op] += 1
        self.calls.append((op, args))
        self.before(op, args)
        code = self.fail(op, self.counts[op])
        if code is not None:
            raise OSError(code, os.strerror(code), str(args[-1]))
        return call(*args)

    def look(self, op: str, path: str) -> None:
        pass

    @property
    def ops(self) -> list[str]:
        return [op for op, _ in self.calls]


@contextmanager
def seam() -> Iterator[Seam]:
    placed = Seam()
    fs.set_seam(placed)
    try:
        yield placed
    finally:
        fs.set_seam(None)


# --- moving ------------------------------------------------------------------------------------------------------


def test_a_move_never_replaces_an_empty_folder(tmp_path: Path) -> None:
    """POSIX rename would replace it silently (RELIABILITY 17)."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "inside").write_text("x")
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        fs.move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert list((tmp_path / "b").iterdir()) == []
    assert (tmp_path / "a" / "inside").read_text() == "x"


@pytest.mark.parametrize("kind", ["file", "full folder", "link", "dangling link"])
def test_a_move_never_replaces_anything(tmp_path: Path, kind: str) -> None:
    source, path = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    if kind == "file":
        path.write_text("kept")
    elif kind == "full folder":
        path.mkdir()
        (path / "x").write_text("kept")
    else:
        path.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        fs.move(str(source), str(path))
    assert source.is_dir()
    assert os.path.lexists(path)


def test_moving_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.move(str(tmp_path / "a"), str(tmp_path / "b"))
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        fs.move(str(tmp_path / "a"), str(tmp_path / "missing" / "a"))
    assert (tmp_path / "a").is_dir()


def test_of_many_movers_one_wins(tmp_path: Path) -> None:
    for n in range(30):
        source = tmp_path / f"job{n}"
        source.mkdir()
        together = threading.Barrier(4)
        won: list[int] = []

        def move(me: int, source: Path = source, together: threading.Barrier = together, won: list[int] = won) -> None:
            together.wait()
            try:
                fs.move(str(source), str(tmp_path / f"{source.name}-{me}"))
            except FileNotFoundError:
                return
            won.append(me)

        threads = [threading.Thread(target=move, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_an_atomic_write_is_whole(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "job.json"
    for text in (b"first", b"", b"x" * 200_000):
        fs.write_atomic(str(path), text, sync=sync)
        assert path.read_bytes() == text
    assert os.listdir(tmp_path) == ["job.json"]


def test_a_file_is_synced_before_it_replaces_another(tmp_path: Path) -> None:
    with seam() as placed:
        fs.write_atomic(str(tmp_path / "f"), b"x", sync=True)
        fs.write_atomic(str(tmp_path / "f"), b"x", sync=False)
    assert placed.ops == ["create", "write", "fsync", "replace", "create", "write", "replace"]
    written, synced = placed.calls[0][1][0], placed.calls[2][1][1]
    assert written == synced, "the same file that will replace it"


@pytest.mark.parametrize("op", ["create", "write", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EDQUOT, errno.EINTR])
def test_a_transient_error_is_retried_with_a_new_temporary_file(tmp_path: Path, op: str, code: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    pauses: list[float] = []
    with seam() as placed:
        placed.fail = lambda called, number: code if called == op and number <= 2 else None
        fs.write_atomic(str(path), b"new", sync=True, pause=pauses.append)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["f"]
    names = [args[0] for called, args in placed.calls if called == "create"]
    assert len(set(names)) == len(names) == 3
    assert pauses == sorted(pauses)
    assert len(pauses) == 2


@pytest.mark.parametrize("op", ["create", "write", "replace"])
def test_a_write_that_fails_repeatedly_leaves_the_old_file(tmp_path: Path, op: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with seam() as placed:
        placed.fail = lambda called, number: errno.ENOSPC if called == op else None
        with pytest.raises(StorageTrouble, match="df -h"):
            fs.write_atomic(str(path), b"new", sync=True)
    assert placed.counts[op] == fs.WRITE_TRIES
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"], "nothing is left beside it"


def test_a_permanent_error_is_raised_at_once(tmp_path: Path) -> None:
    with seam() as placed, pytest.raises(FileNotFoundError):
        fs.write_atomic(str(tmp_path / "missing" / "f"), b"x", sync=False)
    assert placed.counts["create"] == 1


def test_a_short_write_is_finished(tmp_path: Path) -> None:
    class Short(Seam):
        def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            if op == "write":
                args = (args[0], args[1][:7])
            return super().perform(op, call, args)

    fs.set_seam(Short())
    try:
        fs.create(str(tmp_path / "f"), b"0123456789" * 5)
    finally:
        fs.set_seam(None)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 5


def test_readers_see_the_old_or_the_new_and_nothing_between(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    texts = [bytes([n]) * 5000 for n in range(64)]
    fs.write_atomic(path, texts[0], sync=False)
    stop = threading.Event()
    torn: list[bytes] = []

    def look() -> None:
        while not stop.is_set():
            seen = fs.read_bytes(path)
            if seen not in texts:
                torn.append(seen)

    reader = threading.Thread(target=look)
    reader.start()
    for text in texts * 5:
        fs.write_atomic(path, text, sync=False)
    stop.set()
    reader.join()
    assert torn == []


def test_temporary_names_are_unique_and_outside_every_pattern(tmp_path: Path) -> None:
    names = {fs.temporary(str(tmp_path)) for _ in range(1000)}
    assert len(names) == 1000
    for name in names:
        assert os.path.dirname(name) == str(tmp_path)
        assert os.path.basename(name).startswith(".tmp-")
        assert len(os.path.basename(name)) >= len(".tmp-") + 16
    (tmp_path / ".tmp-0123").mkdir()
    (tmp_path / "job").mkdir()
    assert fs.subdirectories(str(tmp_path)) == ["job"]


@pytest.mark.parametrize("planted", ["file", "link", "dangling link"])
def test_a_temporary_name_that_is_taken_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    victim, planned = tmp_path / "victim", tmp_path / ".tmp-planned"
    victim.write_text("precious")
    if planted == "file":
        planned.write_text("theirs")
    else:
        planned.symlink_to(victim if planted == "link" else tmp_path / "made")
    monkeypatch.setattr(fs, "temporary", lambda folder: str(planned))
    with pytest.raises(FileExistsError):
        fs.write_atomic(str(tmp_path / "f"), b"new", sync=False)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "f").exists()


def test_a_result_planted_as_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    result = tmp_path / "result.md"
    result.symlink_to(victim)
    fs.write_atomic(str(result), b"new", sync=True)
    assert victim.read_text() == "precious"
    assert not result.is_symlink()
    assert result.read_bytes() == b"new"


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_creating_over_a_planted_link_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "f").symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        fs.create(str(tmp_path / "f"), b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_an_exclusive_link_is_complete_when_it_appears(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fs.symlink("agent-1", path)
    with pytest.raises(FileExistsError):
        fs.symlink("agent-2", path)
    assert fs.readlink(path) == "agent-1"
    assert fs.readlink(str(tmp_path / "none")) is None
    (tmp_path / "file").write_text("agent-3\n")
    assert fs.readlink(str(tmp_path / "file")) == "agent-3", "a file replaces a link where links are not supported"


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [fs.read_bytes, fs.open_read], ids=lambda read: read.__name__)
@pytest.mark.parametrize("kind", ["fifo", "link", "device", "dangling link"])
@pytest.mark.linux
def test_only_regular_files_are_read_and_nothing_is_waited_for(
    tmp_path: Path, read: Callable[[str], Any], kind: str
) -> None:
    path = tmp_path / "planted"
    (tmp_path / "secret").write_text("secret")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to(tmp_path / ("secret" if kind == "link" else "nowhere"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        read(str(path))
    assert len(os.listdir("/proc/self/fd")) == before, "no descriptor is left open"


def test_a_folder_is_not_read_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        fs.read_bytes(str(tmp_path))


def test_reading_stops_one_byte_after_the_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    path = str(tmp_path / "f")
    assert fs.read_bytes(path, 20) == fs.read_bytes(path, 10) == fs.read_bytes(path) == b"0123456789"
    assert fs.read_bytes(path, 4) == b"01234", "one byte more than allowed, so the caller sees that it is too long"


def test_a_missing_folder_has_no_subfolders(tmp_path: Path) -> None:
    assert fs.subdirectories(str(tmp_path / "none")) == []
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("x")
    assert fs.subdirectories(str(tmp_path)) == []


# --- removing ----------------------------------------------------------------------------------------------------


def test_removing_a_tree_never_follows_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "to-folder").symlink_to(outside)
    (tree / "a" / "to-file").symlink_to(outside / "precious")
    (tree / "a" / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tree / "fifo")
    trees.remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "precious").read_text() == "x"
    trees.remove_tree(str(tree))  # a missing path is no error


def test_removing_a_link_to_a_tree_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError):
        trees.remove_tree(str(tmp_path / "link"))
    assert (outside / "precious").exists()


def test_walking_lists_links_and_does_not_follow_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sorted(os.path.relpath(path, tmp_path) for path in trees.walk_files(str(tmp_path))) == ["a/f", "loop"]


# --- syncing -----------------------------------------------------------------------------------------------------


class Gate:
    """Block the first sync until the others wait, so that merged syncs can be counted without timing."""

    def __init__(self, followers: int) -> None:
        self.followers = followers
        self.entered = threading.Event()

    def hold(self, op: str, args: tuple[Any, ...]) -> None:
        if op == "fsync" and not self.entered.is_set():
            self.entered.set()
            until = time.monotonic() + 30  # only a broken group waits so long
            while len(fs._group.waiting) < self.followers and time.monotonic() < until:
                pass  # they are on their way; each is listed in `waiting` before it waits


def sync_together(placed: Seam, paths: list[list[str]]) -> list[BaseException | None]:
    """Let the first of `paths` lead and the others arrive during its first fsync. Return the result of each."""
    gate = Gate(len(paths) - 1)
    placed.before = gate.hold
    told: list[BaseException | None] = [None] * len(paths)

    def sync(n: int) -> None:
        if n:
            gate.entered.wait()
        try:
            fs.sync_all(paths[n])
        except BaseException as error:
            told[n] = error

    threads = [threading.Thread(target=sync, args=(n,)) for n in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def make_files(folder: Path, count: int) -> list[str]:
    paths = [folder / f"f{n}" for n in range(count)]
    for path in paths:
        path.write_text("x")
    return [str(path) for path in paths]


def test_waiting_syncs_are_merged(tmp_path: Path, figure: Callable[..., None]) -> None:
    """Ten threads each sync their own file and a shared folder."""
    files = make_files(tmp_path, 10)
    with seam() as placed:
        told = sync_together(placed, [[path, str(tmp_path)] for path in files])
    assert told == [None] * 10
    synced = Counter(args[1] for op, args in placed.calls)
    assert all(synced[path] == 1 for path in files)
    assert synced[str(tmp_path)] == 2, "once for the leader, once for the nine that came meanwhile"
    figure("fsyncs of ten concurrent commits (20 without group commit)", placed.counts["fsync"], "fsyncs")


def test_a_sync_requested_during_an_fsync_gets_its_own_fsync(tmp_path: Path) -> None:
    """The running fsync may not cover data written after it began: another fsync must follow."""
    path = make_files(tmp_path, 1)[0]
    with seam() as placed:
        told = sync_together(placed, [[path], [path]])
    assert told == [None, None]
    assert placed.counts["fsync"] == 2


def test_a_failed_sync_fails_every_member_of_the_group(tmp_path: Path) -> None:
    files = make_files(tmp_path, 5)
    with seam() as placed:
        placed.fail = lambda op, number: errno.EIO if op == "fsync" and number == 4 else None
        told = sync_together(placed, [[path] for path in files])
    assert told[0] is None, "the leader's own round was over"
    assert [type(error) for error in told[1:]] == [SyncFailed] * 4
    assert placed.counts["fsync"] == 4, "the round ends at the first error"
    fs.sync_all(files)  # the next round is a new one


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_is_never_retried(tmp_path: Path, code: int) -> None:
    """After EIO the kernel has dropped the dirty pages: a second fsync would succeed although data was lost."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with seam() as placed:
        placed.fail = lambda op, number: code if op == "fsync" else None
        with pytest.raises(SyncFailed):
            fs.write_atomic(str(path), b"new", sync=True)
    assert placed.counts["fsync"] == 1
    assert path.read_bytes() == b"old"


def test_a_missing_path_fails_only_its_own_member(tmp_path: Path) -> None:
    files = make_files(tmp_path, 3)
    with seam() as placed:
        told = sync_together(placed, [[files[0]], [str(tmp_path / "gone")], [files[1], files[2]]])
    assert [type(error) for error in told] == [type(None), FileNotFoundError, type(None)]


def test_folders_can_be_synced(tmp_path: Path) -> None:
    with seam() as placed:
        fs.sync_all([str(tmp_path)])
        fs.sync_all([])
    assert placed.counts["fsync"] == 1


def test_a_link_is_not_synced_through(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    with pytest.raises(SyncFailed):
        fs.sync_all([str(tmp_path / "link")])


def test_a_tree_that_is_deeper_than_a_path_can_name_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("d" * 200, "d"):
        (tmp_path / "tree").mkdir()
        os.chdir(tmp_path / "tree")
        for _ in range(1200):
            os.mkdir(name)
            Path("file").touch()
            os.chdir(name)
        os.chdir(tmp_path)
        trees.remove_tree(str(tmp_path / "tree"))
        assert os.listdir(tmp_path) == []


def test_folders_that_were_closed_against_their_own_user_go() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:  # which an ordinary user may enter
        folder = Path(home, "tree/closed/inside")
        folder.mkdir(parents=True)
        (folder / "file").touch()
        if os.geteuid() == 0:
            for path in (Path(home), *Path(home).rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        folder.chmod(0o500)
        folder.parent.chmod(0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                trees.remove_tree(f"{home}/tree")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert os.listdir(home) == []
