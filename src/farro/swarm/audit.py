"""The audit trail of one swarm, audit.jsonl: every action and event about it, a line each, with its correlation id.

Who notes what lives in the orchestrator and the controller; both append to the same file.

One lock orders the writers, as of the audit log of jobs (observe.audit_file). A file of 8 MiB is set aside, and four
are kept. A line that cannot be written is told in the log, and stops nothing: commands go on where a disk is full.
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
KEEP = 4  # files, the current one among them


class Trail:
    """`folder` is the swarm's; `who` is the one that notes."""

    def __init__(self, folder: str, who: str, now: Callable[[], str], log: Log) -> None:
        self._path = f"{folder}/{NAME}"
        self._lock = f"{folder}/.audit.lock"
        self._who = who
        self._now = now
        self._log = log

    def note(self, what: str, correlation_id: str | None = None, **fields: object) -> None:
        told = {"ts": self._now(), "by": self._who, "what": what, "correlationId": correlation_id, **fields}
        line = json.dumps({name: value for name, value in told.items() if value is not None}, default=str)
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
