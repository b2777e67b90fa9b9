"""How much a job's folder may hold while it runs (SPEC-1 §7: the artifact cap).

What a step may write elsewhere is the sandbox's matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable


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
        return _bytes(self._folder, self._limit) > self._limit

    @property
    def message(self) -> str:
        return (
            f"its files are more than {self._limit} bytes, payload and results together; "
            "security.max_job_bytes is the cap"
        )


def _bytes(folder: str, enough: int) -> int:
    """Bytes of the files in it; stops counting when it is more than enough. Snapshots are farro's own."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += 0 if entry.name == ".snapshot" else _bytes(entry.path, enough - total)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # a temporary file, gone again
                if total > enough:
                    break
    except FileNotFoundError:
        return total
    return total
