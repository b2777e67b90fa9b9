"""Turn operating-system errors that leave the file store into farro's own errors, with advice.

Errors that decide the course of a transaction are handled where they occur (move, folder.translated_errors,
fs.retried).
"""

from __future__ import annotations

import errno
import functools
import os
import shlex
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from farro.errors import StorageTrouble
from farro.host import fs

P = ParamSpec("P")
R = TypeVar("R")


def explained(verb: Callable[P, R]) -> Callable[P, R]:
    """Decorate a verb of the store so that it never raises a bare OSError (RELIABILITY 22).
    [test_errno_at_every_call]"""

    @functools.wraps(verb)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except OSError as error:
            raise storage_trouble(error) from error

    return wrapper


def storage_trouble(error: OSError) -> StorageTrouble:
    """Translate an error of the operating system."""
    trouble = fs.trouble_for(error)(_describe(error))
    trouble.__cause__ = error
    return trouble


def _describe(error: OSError) -> str:
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
        there = _existing_part(str(getattr(error, "filename2", None) or error.filename))
        return (
            f"{there} is in the way ({error.strerror}): farro keeps something else there. What was stored before is "
            f"intact. Look at it (ls -ld {shlex.quote(there)}), move it aside, then try again"
        )
    return (
        f"{why}. What was stored before is intact. Free space, inodes or open files (df -h, df -i, ulimit -n), check "
        "the device (dmesg), then try again"
    )


def _existing_part(path: str) -> str:
    """Return the longest part of a path that exists: one of its folders may be a file."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
