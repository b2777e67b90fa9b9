"""The files of the audit log: appending, rotation, quota and repair, safe with many processes at once.

One lock file orders all writers. Holding it, a writer checks that its open file is still the current one, removes a
torn tail that a killed writer left, rotates if it is time, and appends its lines with one write. Alternatives that
fail: O_APPEND alone keeps lines whole, but a rotation between open and write loses them; a shared lock for appending
cannot take back a half-written line when the disk is full. [tests/log/test_audit.py]
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable

from farro.host import fs, leases
from farro.lazy_dataclass import dataclass

NAME = "audit.log"
_PIECE = 1000  # lines: a write of moderate size is one call, seldom split


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPolicy:
    """Rotation, quota and sync of the audit log (SPEC-1 §8)."""

    max_bytes: int = 50 << 20
    keep: int = 10  # files, the current one among them
    quota_bytes: int = 512 << 20
    strict: bool = False  # sync every line; else written at most every `flush_s` and at exit
    flush_s: float = 1.0


class AuditFiles:
    """One writer of logs/audit.log. Its methods raise OSError and leave no half line behind."""

    def __init__(self, folder: str, policy: AuditPolicy, line: Callable[..., bytes]) -> None:
        self._folder = folder
        self._path = f"{folder}/{NAME}"
        self._policy = policy
        self._line = line  # makes the line of an event: a deletion is one
        self._day: str | None = None  # of the file that `_fd` is
        self._fd: int | None = None

    def append(self, lines: list[bytes], today: str) -> int:
        """Append all lines and return their number. If it raises, the error's `written` says how many were appended."""
        written = 0
        with leases.exclusively(f"{self._folder}/.audit.lock"):
            while written < len(lines):
                piece = lines[written : written + _PIECE]
                try:
                    self._write(b"".join(piece), today)
                except OSError as error:
                    error.written = written  # type: ignore[attr-defined]
                    raise
                written += len(piece)
        return written

    def mend(self) -> int:
        """Remove the half line that a killed writer left; return its size in bytes."""
        if not os.path.exists(self._path):
            return 0
        with leases.exclusively(f"{self._folder}/.audit.lock"):
            fd = self._current()
            before = os.fstat(fd).st_size
            return before - repair(fd)

    def forget(self) -> None:
        fd, self._fd, self._day = self._fd, None, None
        if fd is not None:
            os.close(fd)

    # --- under the lock file ---

    def _write(self, data: bytes, today: str) -> None:
        fd = self._current()
        size = repair(fd)
        if size and (size + len(data) > self._policy.max_bytes or self._first_day(fd, today) != today):
            self._rotate()
            fd, self._day = self._current(), today
            size = os.fstat(fd).st_size
        try:
            fs.write(fd, data)
            if self._policy.strict:
                fs.sync_descriptor(fd, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                fs.truncate(fd, size)  # no half line stays behind for others to append to
            raise

    def _current(self) -> int:
        """Return a descriptor of the current audit.log; another process may have rotated the last one."""
        if self._fd is not None:
            try:
                if fs.lstat(self._path).st_ino == os.fstat(self._fd).st_ino:
                    return self._fd
            except FileNotFoundError:
                pass
            self.forget()
        self._fd = fs.open_append(self._path)
        return self._fd

    def _first_day(self, fd: int, today: str) -> str:
        """Return the UTC day of the file's first line: each day starts a new file."""
        if self._day is None:
            found = re.match(rb'\{"ts": "([0-9-]{10})T', fs.read_at(fd, 64, 0))
            self._day = found[1].decode() if found else today
        return self._day

    def _rotate(self) -> None:
        """Rename audit.log → .1 → … → .9, the oldest first: a crash in between leaves a gap and overwrites no file."""
        self.forget()
        for name in files(self._folder):
            number = int(name.rpartition(".")[2]) if name != NAME else 0
            if number + 1 < self._policy.keep:
                fs.replace(f"{self._folder}/{name}", f"{self._path}.{number + 1}")
            else:
                fs.unlink(f"{self._folder}/{name}")
        for name, size in enforce_quota(self._folder, self._policy):
            fs.write(self._current(), self._line("audit_deleted", file=name, bytes=size))


def repair(fd: int) -> int:
    """Remove a last line without a newline, which a killed writer left; return the size of the file."""
    size = os.fstat(fd).st_size
    if size == 0 or fs.read_at(fd, 1, size - 1) == b"\n":
        return size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        found = fs.read_at(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    fs.truncate(fd, end)
    return end


def files(folder: str) -> list[str]:
    """Return the existing files of the log, oldest first."""
    named = [
        (int(found[1] or 0), name)
        for name in fs.listdir(folder)
        if (found := re.fullmatch(r"audit\.log(?:\.([0-9]+))?", name))
    ]
    return [name for _, name in sorted(named, reverse=True)]


def enforce_quota(folder: str, policy: AuditPolicy) -> list[tuple[str, int]]:
    """Delete the oldest rotated files until the rest fits; return the deleted ones."""
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
