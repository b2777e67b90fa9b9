"""The border of the file store: what the operating system refuses is told as farro's own error, with what to do.

What an error means to a transaction is decided where it happens (moving, folder.fenced, fs.retried); this is the rest.
"""

from __future__ import annotations

import errno
import functools
import os
import shlex
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from farro.errors import StorageTrouble

P = ParamSpec("P")
R = TypeVar("R")


def explained(verb: Callable[P, R]) -> Callable[P, R]:
    """No verb of the store ends in a bare OSError (RELIABILITY 22). [test_errno_at_every_call]"""

    @functools.wraps(verb)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except OSError as error:
            raise StorageTrouble(_in_words(error)) from error

    return told


def _in_words(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    why = f"{where}{error.strerror or error}"
    if error.errno == errno.EXDEV:
        other = getattr(error, "filename2", None) or error.filename
        return (
            f"{other} is on another device or mount than the rest of the root, and a job is handed on by a rename; "
            "nothing was changed. `farro doctor` says what to do"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{why}: this user may not write there. What was stored before is intact. Do it as the user who owns the "
            "root, give this one the right, or name another root with --root; `farro doctor` says who owns it"
        )
    if error.errno == errno.EROFS:
        return (
            f"{why}: the root is mounted read-only. What was stored before is intact. Mount it for writing (dmesg says "
            "whether the kernel changed that after an error), or name another root with --root"
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP):
        there = _there(str(getattr(error, "filename2", None) or error.filename))
        return (
            f"{there} is in the way ({error.strerror}): farro keeps something else there. What was stored before is "
            f"intact. Look at it (ls -ld {shlex.quote(there)}), move it aside, then try again"
        )
    return (
        f"{why}. What was stored before is intact. Free space, inodes or open files (df -h, df -i, ulimit -n), check "
        "the device (dmesg), then try again"
    )


def _there(path: str) -> str:
    """What there is of a path: a folder of it may be a file."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
