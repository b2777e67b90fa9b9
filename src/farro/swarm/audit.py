"""The audit log of one swarm, audit.jsonl: a line for each action and event, with its correlation id.

The orchestrator and the controller append to the same file; a lock orders them. A file of 8 MiB is rotated, and four
are kept. A line that cannot be written is reported in the log and stops nothing: commands go on when the disk is full.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

from farro.host import fs, leases
from farro.log.audit_file import repair
from farro.log.structured import Log, redacted

NAME = "audit.jsonl"
LIMIT = 8 << 20  # bytes of one file
KEEP = 4  # files, including the current one


class SwarmAudit:
    """Append to the audit log in a swarm's folder. `who` names the writing process."""

    def __init__(self, folder: str, who: str, now: Callable[[], str], log: Log) -> None:
        self._path = f"{folder}/{NAME}"
        self._lock = f"{folder}/.audit.lock"
        self._who = who
        self._now = now
        self._log = log

    def note(self, what: str, correlation_id: str | None = None, **fields: object) -> None:
        entry = {"ts": self._now(), "by": self._who, "what": what, "correlationId": correlation_id, **fields}
        line = json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)
        try:
            with leases.exclusively(self._lock):
                self._append(redacted(line).encode() + b"\n")
        except OSError as error:
            self._log("error", f"{self._path}: {error.strerror or error}", {"what": what})

    def _append(self, line: bytes) -> None:
        fd = fs.open_append(self._path)
        try:
            if repair(fd) + len(line) > LIMIT:
                os.close(fd)
                self._rotate()
                fd = fs.open_append(self._path)
            fs.write(fd, line)
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        for number in range(KEEP - 1, 0, -1):
            before = self._path if number == 1 else f"{self._path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                fs.replace(before, f"{self._path}.{number}")
