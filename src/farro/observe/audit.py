"""The audit log: logs/audit.log, one JSON object a line, codes only; many processes append and rotate it safely.

Free text, prompts and results never come here (they live in hops[] and in the job); who did what to a job is told by
the callers. The history of one job is in its own job.json.

One lock file orders all writers. Under it a writer looks whether the file is still the one it has open, takes away a
torn tail that a killed writer left, rotates if it is time, and appends its lines with one write. Alternatives that
fail: O_APPEND alone keeps lines whole, but a rotation between open and write loses them; a shared lock for appending
cannot take back a half-written line when the disk is full. [tests/observe/test_audit.py]
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import threading
from dataclasses import dataclass

from farro.kernel.moments import timestamp
from farro.ports.clock import Clock
from farro.system import fs, leases

NAME = "audit.log"
_CODE = re.compile(r"[A-Za-z0-9_.:/@+ -]{0,200}")
Value = str | int | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPolicy:
    """SPEC-1 §8, pinned."""

    max_bytes: int = 50 << 20
    keep: int = 10  # files, the current one among them
    quota_bytes: int = 512 << 20
    strict: bool = False  # sync every line; else written at most every `flush_s` and at exit
    flush_s: float = 1.0


class AuditLog:
    """One writer. `record` never raises and never waits for the disk in buffered mode: a full disk stops no job
    (RELIABILITY 28); `errors` counts what could not be written, and `last_error` says why."""

    def __init__(self, folder: str, *, actor: str, clock: Clock, policy: AuditPolicy | None = None) -> None:
        self._folder = folder
        self._path = f"{folder}/{NAME}"
        self._actor = actor
        self._clock = clock
        self._policy = policy or AuditPolicy()
        self._buffer: list[bytes] = []
        self._mutex = threading.Lock()  # guards everything below; never held while another process is waited for
        self._writing = threading.Lock()
        self._timer: threading.Timer | None = None
        self._day: str | None = None  # of the file that `_fd` is
        self._fd: int | None = None
        self._pid = os.getpid()
        self.errors = 0
        self.last_error: str | None = None
        atexit.register(self.flush)

    def record(self, event: str, **codes: Value) -> None:
        """Append one event. Values are codes: anything else is replaced, so that no text of a prompt gets in here."""
        line = {"ts": timestamp(self._clock.now()), "event": event, "actor": self._actor}
        data = (json.dumps({**line, **{name: _code(value) for name, value in codes.items()}}) + "\n").encode()
        with self._mutex:
            if self._pid != os.getpid():  # a fork: what its parent buffered is the parent's to write
                self._pid, self._buffer, self._timer, self._fd = os.getpid(), [], None, None
            self._buffer.append(data)
            if not self._policy.strict:
                if self._timer is None:
                    self._timer = threading.Timer(self._policy.flush_s, self.flush)
                    self._timer.daemon = True
                    self._timer.start()
                return
        self.flush()

    def flush(self) -> None:
        """Write what is buffered. Called by itself every second, and at exit."""
        with self._writing:
            with self._mutex:
                lines, self._buffer = self._buffer, []
                self._timer = None
            if not lines:
                return
            try:
                self._append(lines)
            except OSError as error:
                self.errors += len(lines)
                self.last_error = f"{error.filename or self._path}: {error.strerror}"

    def close(self) -> None:
        self.flush()
        atexit.unregister(self.flush)
        with self._writing:
            self._forget()

    # --- under the lock file ---

    def _append(self, lines: list[bytes]) -> None:
        with leases.exclusively(f"{self._folder}/.audit.lock"):
            for start in range(0, len(lines), 1000):  # a write of moderate size: one call, seldom split
                self._write(b"".join(lines[start : start + 1000]))

    def _write(self, data: bytes) -> None:
        fd = self._current()
        size = repair(fd)
        today = timestamp(self._clock.now())[:10]
        if size and (size + len(data) > self._policy.max_bytes or self._first_day(fd, today) != today):
            self._rotate()
            fd, size, self._day = self._current(), 0, today
        try:
            fs.write(fd, data)
            if self._policy.strict:
                fs.sync_descriptor(fd, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                fs.truncate(fd, size)  # no half line stays behind for others to append to
            raise

    def _current(self) -> int:
        """The descriptor of what is called audit.log now; another process may have rotated it."""
        if self._fd is not None:
            try:
                if fs.lstat(self._path).st_ino == os.fstat(self._fd).st_ino:
                    return self._fd
            except FileNotFoundError:
                pass
            self._forget()
        self._fd = fs.open_append(self._path)
        return self._fd

    def _forget(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._day = None

    def _first_day(self, fd: int, today: str) -> str:
        """The UTC day of the file's first line: a new day starts a fresh file."""
        if self._day is None:
            found = re.match(rb'\{"ts": "([0-9-]{10})T', os.pread(fd, 64, 0))
            self._day = found[1].decode() if found else today
        return self._day

    def _rotate(self) -> None:
        """audit.log → .1 → … → .9. From the oldest on: a crash in between leaves a gap, never two files of one name."""
        self._forget()
        for name in files(self._folder):
            number = int(name.rpartition(".")[2]) if name != NAME else 0
            if number + 1 < self._policy.keep:
                fs.replace(f"{self._folder}/{name}", f"{self._path}.{number + 1}")
            else:
                fs.unlink(f"{self._folder}/{name}")
        deleted = enforce_quota(self._folder, self._policy)
        for name, size in deleted:
            line = {"ts": timestamp(self._clock.now()), "event": "audit_deleted", "actor": self._actor}
            fs.write(self._current(), (json.dumps({**line, "file": name, "bytes": size}) + "\n").encode())


def repair(fd: int) -> int:
    """Take away a tail without its newline: a killed writer's half line was never whole. Answers the size."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    fs.truncate(fd, end)
    return end


def files(folder: str) -> list[str]:
    """The log's files that are there, oldest first."""
    named = [
        (int(found[1] or 0), name)
        for name in fs.listdir(folder)
        if (found := re.fullmatch(r"audit\.log(?:\.([0-9]+))?", name))
    ]
    return [name for _, name in sorted(named, reverse=True)]


def enforce_quota(folder: str, policy: AuditPolicy) -> list[tuple[str, int]]:
    """Delete the oldest rotated files until the rest fits; answers what went."""
    sizes = [(name, fs.lstat(f"{folder}/{name}").st_size) for name in files(folder)]
    total = sum(size for _, size in sizes)
    gone = []
    for name, size in sizes:
        if total <= policy.quota_bytes or name == NAME:
            break
        fs.unlink(f"{folder}/{name}")
        total -= size
        gone.append((name, size))
    return gone


def _code(value: Value) -> Value:
    if isinstance(value, str) and _CODE.fullmatch(value) is None:
        return "(not a code)"
    return value
