"""Whole folders: removing them, and what files are in them, whatever somebody has put there.

Single calls live in fs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from farro.host import fs

T = TypeVar("T")

_O_PATH = getattr(os, "O_PATH", 0)


def remove_tree(path: str) -> None:
    """Remove a folder and what is in it, never through a link. What is already gone is fine.

    Whoever filled it may have closed folders against its own user, which are opened, and gone deeper than a path can
    name: what lies far down is brought up first.
    """
    if os.path.islink(path):  # scandir would go through it
        raise NotADirectoryError(errno.ENOTDIR, "a link, not a folder", path)
    brought_up: list[str] = []
    _remove_below(path, path, brought_up, _DEEP)
    while brought_up:
        _remove_below(brought_up.pop(), path, brought_up, _DEEP)
    with contextlib.suppress(FileNotFoundError):
        fs.rmdir(path)


_DEEP, _LONG = 50, 2000  # folders within each other, and bytes of a path, that are gone down at once


def _remove_below(path: str, top: str, brought_up: list[str], left: int) -> None:
    """`path` with all that is in it; of `top` only that."""
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
    """`call`; again where a folder of our own was closed against us, when it is open."""
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
                raise refused from None  # another user's: what was refused first has the path
            finally:
                os.close(fd)
        return call()


def walk_files(path: str) -> Iterator[str]:
    """Every file below `path`, links included but not followed."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk_files(entry.path)
            else:
                yield entry.path


def everything(path: str) -> list[str]:
    """The paths of all files and folders below, the innermost first; nothing when it is gone."""
    return [f"{here}/{name}" for here, inside, files in os.walk(path, topdown=False) for name in (*files, *inside)]
