"""How much a job's folder may hold while it runs (SPEC-1 §7: the artifact cap).

What a step may write elsewhere is the sandbox's matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

SNAPSHOT = ".snapshot"
ENTRIES = 100_000  # files and folders: to count more takes longer than a slot may be silent


class TooLarge(BaseException):
    """Raised out of a tick: run_plan ends everything at once. Not an Exception, which would be an outcome there."""


class ArtifactCap:
    """Looks at each tick; a job of few files costs a few microseconds."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def then(self, tick: Callable[[], None]) -> Callable[[], None]:
        """The tick, with a look."""

        def look() -> None:
            tick()
            if self.exceeded():
                raise TooLarge

        return look

    def exceeded(self) -> bool:
        return _Count(self._limit).of(self._folder)

    @property
    def message(self) -> str:
        return (
            f"its files are more than {self._limit} bytes, payload and results together, or more than {ENTRIES}; "
            "security.max_job_bytes is the cap"
        )


class _Count:
    """Bytes of files and entries of folders; counts no further than it must."""

    def __init__(self, limit: int) -> None:
        self._bytes = limit
        self._entries = ENTRIES

    def of(self, top: str) -> bool:
        """Whether there is more than the limit. What cannot be looked into was closed by the job, and may hold any
        amount."""
        folders = [top]
        while folders:
            folder = folders.pop()
            if folder.endswith(f"/{SNAPSHOT}") and _is_ours(folder[len(top) + 1 :].split("/")):
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._entries -= 1
                        with contextlib.suppress(FileNotFoundError):  # a temporary file, gone again
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(entry.path)
                            else:
                                self._bytes -= entry.stat(follow_symlinks=False).st_size
                        if self._bytes < 0 or self._entries < 0:
                            return True
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
                    raise
                return True
        return False


def _is_ours(parts: list[str]) -> bool:
    """Snapshots of the job and of its attempts are farro's; a folder of that name further down is not."""
    return len(parts) == 1 or (len(parts) == 3 and parts[0] == "attempts")
