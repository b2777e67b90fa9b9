"""Remove whole folders, list their files and count their subfolders, even with hostile content from a step."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from farro.host import fs
from farro.host.thread_turns import RESTING

T = TypeVar("T")

_O_PATH = getattr(os, "O_PATH", 0)


def make_folders(path: str) -> None:
    """Make a folder and its missing parents."""
    if os.path.isdir(path):
        return
    make_folders(os.path.dirname(path))
    try:
        fs.mkdir(path)
    except FileExistsError:  # another process made it just now
        if not os.path.isdir(path):
            raise


def remove_tree(path: str) -> None:
    """Remove a folder and everything in it, never through a link. What is already gone is no error.

    A step may have made folders that its own user cannot enter: their mode is changed first. It may have nested folders
    deeper than a path can name: those far down are moved up first.
    """
    if os.path.islink(path):  # scandir would go through it
        raise NotADirectoryError(errno.ENOTDIR, "a link, not a folder", path)
    brought_up: list[str] = []
    _remove_below(path, path, brought_up, _DEEP)
    while brought_up:
        _remove_below(brought_up.pop(), path, brought_up, _DEEP)
    with contextlib.suppress(FileNotFoundError):
        fs.rmdir(path)


class BackgroundRemoval:
    """Remove empty folders on threads of its own.

    Where a filesystem discards freed blocks at once, rmdir(2) waits for 2 to 4 ms, longer than a small command runs;
    several such calls wait at the same time. So the folder is first moved to `home`, on the same filesystem, whose
    cleaner removes it if this process is killed. The interpreter exits when all are removed.

    A thread is handed several folders at once: waking one for each costs a worker 7 % of its CPU time for commands, and
    three times as many thread switches.
    """

    def __init__(self, home: str) -> None:
        from concurrent.futures import ThreadPoolExecutor  # here: slow to import, and only workers need it

        self._home = home
        self._threads = ThreadPoolExecutor(_REMOVERS, "remove")
        self._aside: list[str] = []  # not handed to a thread yet
        self._handing = threading.Lock()  # guards _aside
        atexit.register(self.finish)

    def remove(self, path: str) -> None:
        """Begin to remove an empty folder. If it cannot be moved, it is removed when this returns."""
        aside = f"{self._home}/removed.{os.urandom(8).hex()}"
        try:
            fs.move(path, aside)
        except OSError:
            with RESTING:
                fs.rmdir(path)
        else:
            with self._handing:
                self._aside.append(aside)
                if len(self._aside) < _AT_ONCE:
                    return
                folders, self._aside = self._aside, []
            self._threads.submit(_remove_all, folders)

    def finish(self) -> None:
        """Remove what no thread was handed yet."""
        with self._handing:
            folders, self._aside = self._aside, []
        _remove_all(folders)


_REMOVERS = 4
_AT_ONCE = 8  # folders for one thread
_background: BackgroundRemoval | None = None


def _remove_all(folders: Iterable[str]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # the cleaner of `home` was faster, or removes it later
            fs.rmdir(folder)


def remove_in_background(home: str) -> None:
    """Let `remove_or_seal` leave the waiting to other threads of this process."""
    global _background
    _background = BackgroundRemoval(home)


def remove_or_seal(path: str, seal: str) -> bool:
    """Remove a folder if it is empty, else rename it to `seal`; return whether it was empty. Nothing new can arrive
    under its old name. Raises NotADirectoryError for anything else."""
    try:
        if _background is None:
            with RESTING:
                fs.rmdir(path)
            return True
        fs.move(path, seal)
        if os.path.islink(seal):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if fs.listdir(seal):
            return False
        _background.remove(seal)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if fs.exists(path):
            fs.move(path, seal)
        return False
    return True


_DEEP, _LONG = 50, 2000  # nested folders, and bytes of a path, that one recursion descends


def _remove_below(path: str, top: str, brought_up: list[str], left: int) -> None:
    """Remove `path` with its content; of `top` only the content."""
    try:
        with _opened_up(lambda: os.scandir(path), path) as entries:
            inside = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return
    for name, is_directory in inside:
        if not is_directory:
            with contextlib.suppress(FileNotFoundError):
                _opened_up(partial(fs.unlink, name), path)
        elif left > 0 and len(name) < len(top) + _LONG:
            _remove_below(name, top, brought_up, left - 1)
        else:
            with contextlib.suppress(FileNotFoundError):
                _opened_up(partial(_bring_up, name, brought_up, top), path, name)
    if path != top:
        with contextlib.suppress(FileNotFoundError):
            _opened_up(lambda: fs.rmdir(path), os.path.dirname(path))


def _bring_up(path: str, brought_up: list[str], top: str) -> None:
    name = fs.temporary(top)
    fs.replace(path, name)
    brought_up.append(name)


def _opened_up(call: Callable[[], T], *folders: str) -> T:
    """Call `call`; after a PermissionError give this user access to `folders`, and call it again."""
    try:
        return call()
    except PermissionError as refused:
        if not _O_PATH:
            raise
        for folder in folders:
            fd = os.open(folder, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)  # noqa: TID251 - opens nothing
            try:
                fs.set_mode(f"/proc/self/fd/{fd}", 0o700)
            except PermissionError:
                raise refused from None  # another user's folder: the first error names the path
            finally:
                os.close(fd)
        return call()


def walk_files(path: str) -> Iterator[str]:
    """Yield every file below `path`; links are yielded, not followed."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk_files(entry.path)
            else:
                yield entry.path


def size(path: str) -> int:
    """Return the bytes of all files below `path`; a file with several names counts once."""
    seen: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in walk_files(path):
            with contextlib.suppress(FileNotFoundError):
                status = fs.lstat(name)
                seen[status.st_ino] = status.st_size
    return sum(seen.values())


def everything(path: str) -> list[str]:
    """Return the paths of all files and folders below, innermost first; an empty list when `path` is gone."""
    return [f"{here}/{name}" for here, inside, files in os.walk(path, topdown=False) for name in (*files, *inside)]


_counted: dict[int, bool] = {}  # device → whether a folder's link count gives its number of subfolders


def count_subdirectories(path: str) -> int:
    """Count the folders in `path`, hidden ones included, without reading it where the filesystem keeps the count.

    ext4 and xfs count the `..` of every subfolder as a link of its parent. One link: the folder is not counted (btrfs;
    ext4 beyond 65,000 subfolders). Whether a filesystem counts is tried once, on the parent, which has at least one.
    """
    try:
        found = fs.lstat(path)
    except FileNotFoundError:
        return 0
    if found.st_nlink >= 2:
        if found.st_dev not in _counted:
            above = os.path.dirname(path)
            beyond = fs.lstat(above)
            if beyond.st_dev != found.st_dev or beyond.st_nlink < 2:
                return _read_directories(path)  # a mount point, or a parent with too many subfolders to be counted
            _counted[found.st_dev] = beyond.st_nlink - 2 == _read_directories(above)
        if _counted[found.st_dev]:
            return found.st_nlink - 2
    return _read_directories(path)


def _read_directories(path: str) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(1 for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return 0
