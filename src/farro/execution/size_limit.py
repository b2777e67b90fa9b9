"""Limit how much a job's folder may hold while it runs (SPEC-1 §7: the artifact cap)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

SNAPSHOT = ".snapshot"
ENTRIES = 100_000  # files and folders; counting more takes longer than a slot may go without a heartbeat


class JobTooLarge(BaseException):
    """Raised out of a tick: run_plan ends everything at once. Not an Exception, which would become an outcome there."""


class ArtifactCap:
    """Check the size at each tick; a job of few files costs a few microseconds."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def then(self, tick: Callable[[], None]) -> Callable[[], None]:
        """Return a tick that also checks the size."""

        def look() -> None:
            tick()
            if self.exceeded():
                raise JobTooLarge

        return look

    def exceeded(self) -> bool:
        """Count bytes of files and entries of folders, no further than needed. A folder that the job made unreadable
        may hold any amount, so it counts as more than the limit."""
        left_bytes, left_entries = self._limit, ENTRIES
        folders = [self._folder]
        while folders:
            folder = folders.pop()
            if folder.endswith(f"/{SNAPSHOT}") and _is_ours(folder[len(self._folder) + 1 :].split("/")):
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        left_entries -= 1
                        with contextlib.suppress(FileNotFoundError):  # a temporary file, already removed
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(entry.path)
                            else:
                                left_bytes -= entry.stat(follow_symlinks=False).st_size
                        if left_bytes < 0 or left_entries < 0:
                            return True
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
                    raise
                return True
        return False

    @property
    def message(self) -> str:
        return (
            f"its files are more than {self._limit} bytes, payload and results together, or more than {ENTRIES}; "
            "security.max_job_bytes is the cap"
        )


def _is_ours(parts: list[str]) -> bool:
    """Return whether this is farro's own snapshot of the job or an attempt; a folder of that name further down is
    not."""
    return len(parts) == 1 or (len(parts) == 3 and parts[0] == "attempts")
