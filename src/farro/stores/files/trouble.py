"""The border of the file store: what the operating system refuses is told as farro's own error, with what to do.

What an error means to a transaction is decided where it happens (moving, folder.fenced, fs.retried); this is the rest.
"""

from __future__ import annotations

import errno
import functools
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
            if error.errno == errno.EXDEV:
                other = getattr(error, "filename2", None) or error.filename
                raise StorageTrouble(
                    f"{verb.__name__}: {other} is on another device or mount than the rest of the root, and a job is "
                    "handed on by a rename; nothing was changed. `farro doctor` says what to do"
                ) from error
            where = f"{error.filename}: " if error.filename else ""
            raise StorageTrouble(
                f"{verb.__name__}: {where}{error.strerror or error}. What was stored before is intact. Free space, "
                "inodes or open files (df -h, df -i, ulimit -n), check the device (dmesg), then try again"
            ) from error

    return told
