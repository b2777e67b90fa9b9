"""Raw inotify."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from farro.host import inotify
from farro.host.inotify import Inotify

pytestmark = pytest.mark.linux


def test_a_rename_into_a_folder_is_reported_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    name = "jöb-" + os.fsdecode(b"\xff")
    with Inotify() as watcher:
        wd = watcher.watch(str(tmp_path / "box"), inotify.MOVED_TO)
        (tmp_path / "new").mkdir()
        os.rename(tmp_path / "new", tmp_path / "box" / name)
        [event] = watcher.read(10)
    assert (event.wd, event.name) == (wd, name)
    assert event.mask == inotify.MOVED_TO | inotify.ISDIR
    assert not event.overflow


def test_both_halves_of_a_rename_share_a_cookie(tmp_path: Path) -> None:
    with Inotify() as watcher:
        watcher.watch(str(tmp_path), inotify.MOVED_FROM | inotify.MOVED_TO)
        (tmp_path / "a").touch()
        os.rename(tmp_path / "a", tmp_path / "b")
        left, came = watcher.read(10)
    assert (left.name, came.name) == ("a", "b")
    assert left.cookie == came.cookie != 0


def test_a_read_without_events_is_empty(tmp_path: Path) -> None:
    with Inotify() as watcher:
        watcher.watch(str(tmp_path), inotify.CREATE)
        assert watcher.read(0) == []


def test_wake_from_another_thread_ends_a_read_that_would_last_for_ever(tmp_path: Path) -> None:
    with Inotify() as watcher:
        watcher.watch(str(tmp_path), inotify.CREATE)
        waker = threading.Thread(target=watcher.wake)
        waker.start()
        assert watcher.read(None) == []
        waker.join()
        assert watcher.read(0) == []  # one wake ends one read


def test_a_wake_before_the_read_is_not_lost() -> None:
    with Inotify() as watcher:
        watcher.wake()
        watcher.wake()
        assert watcher.read(None) == []


def test_close_from_another_thread_ends_a_read() -> None:
    watcher = Inotify()
    answers: list[object] = []

    def read_until_closed() -> None:
        try:
            while True:
                answers.append(watcher.read(None))
        except ValueError as error:
            answers.append(error)

    reader = threading.Thread(target=read_until_closed)
    reader.start()
    watcher.close()
    reader.join(30)
    assert not reader.is_alive()
    assert isinstance(answers[-1], ValueError)
    watcher.wake()  # no error, and no foreign descriptor is closed
    watcher.close()


def test_an_overflow_is_reported_as_an_event(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with Inotify() as watcher:
        watcher.watch(str(tmp_path), inotify.CREATE | inotify.DELETE)
        for _ in range(limit // 2 + 2):  # two events each; created and removed, so that equal neighbours do not merge
            (tmp_path / "x").touch()
            (tmp_path / "x").unlink()
        seen = []
        while events := watcher.read(0):
            seen += events
    [overflow] = [event for event in seen if event.overflow]
    assert overflow.wd == -1


def test_watching_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with Inotify() as watcher, pytest.raises(FileNotFoundError):
        watcher.watch(str(tmp_path / "none"), inotify.CREATE)


def test_inotify_descriptors_are_not_inherited_and_are_all_closed() -> None:
    def descriptors() -> set[int]:
        return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}

    before = descriptors()
    watcher = Inotify()
    mine = descriptors() - before
    assert len(mine) == 2
    assert not any(os.get_inheritable(fd) for fd in mine)
    watcher.close()
    assert descriptors() == before


def test_a_platform_without_inotify_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert not inotify.available()
    with pytest.raises(OSError, match="not available on darwin") as caught:
        Inotify()
    assert caught.value.errno == errno.ENOSYS
