"""The audit log: one JSON object per line, codes only, buffered for a second or synced line by line (SPEC-1 §8).

Free text, prompts and results are never written here; they are in hops[] and in the job.

An event is written after it happened: a line about something that did not happen is worse than a missing line. So a
killed process may leave transitions unwritten: those of its last second, and one whose rename had just been made. The
truth about a job is its own job.json, whose hops[] are part of the transition itself.

One lock file orders all writers. Holding it, a writer checks that its open file is still the current one, removes a
torn tail that a killed writer left, rotates if it is time, and appends its lines with one write. Alternatives that
fail: O_APPEND alone keeps lines whole, but a rotation between open and write loses them; a shared lock for appending
cannot take back a half-written line when the disk is full. [tests/log/test_audit.py]
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from farro.host import fs, leases
from farro.host.clock import Clock
from farro.jobs import audit_fields
from farro.jobs.envelope import Lifecycle
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log

Value = str | int | bool | None
# A mapping of codes, `event` and `actor` among them; or the transition that led to this lifecycle.
AuditEvent = Mapping[str, Value] | Lifecycle
# Characters of codes: none needs an escape in JSON, and without a blank no sentence is accepted.
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/@+-"
_LONGEST = 200
NOT_A_CODE = "(not-a-code)"
NAME = "audit.log"
MISSED = "audit_missed"  # a writer reports, once it can write again, what it could not write
DELETED = "audit_deleted"  # a file was deleted for the quota
_PIECE = 1000  # lines: a write of moderate size is one call, seldom split


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPolicy:
    """Rotation, quota and sync of the audit log (SPEC-1 §8)."""

    max_bytes: int = 50 << 20
    keep: int = 10  # files, the current one among them
    quota_bytes: int = 512 << 20
    strict: bool = False  # sync every line; else written at most every `flush_s` and at exit
    flush_s: float = 1.0


class Audit(Protocol):
    def __call__(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        """Record one event; never raises. A code that is None is left out."""


def no_audit(event: str, *, actor: str | None = None, **codes: Value) -> None:
    """Record nothing: for stores without an audit log."""


def tell_all(audit: Audit, events: Sequence[AuditEvent]) -> None:
    """Record several events of one moment."""
    if isinstance(audit, AuditLog):
        audit.many(events)
        return
    for event in events:
        audit(**_codes(event))  # type: ignore[arg-type]


class AuditLog:
    """One process's writer. `record` never raises and never waits for the disk in buffered mode: a full disk stops no
    job (RELIABILITY 28). `errors` counts the lines that could not be written, `last_error` says why; both are logged.

    With `background` a thread writes the buffered events within `flush_s`; it starts with the first event and sleeps
    while there is nothing to write. Without it, for commands that end at once, lines are written with the first event
    after `flush_s`, by `close`, and at exit.

    Events are buffered as objects and formatted when they are written: formatting all of a second at once takes a third
    of the time, and no job waits for it.
    """

    def __init__(
        self,
        folder: str,
        *,
        actor: str,
        clock: Clock,
        policy: AuditPolicy | None = None,
        background: bool = True,
        log: Log | None = None,
    ) -> None:
        self._folder = folder
        self.actor = actor
        self._clock = clock
        self._policy = policy or AuditPolicy()
        self._background = background and not self._policy.strict
        self._log = log
        self.errors = 0
        self.last_error: str | None = None
        self._second = (-1, "")  # the last formatted second: most events share theirs with others
        self._closed = False
        self._start_anew()
        atexit.register(self.flush)

    def _start_anew(self) -> None:
        """Initialise; called again in a forked child. The child drops the buffer, which the parent writes, and makes
        its own lock, because no thread of the child would release a lock that was held at the fork."""
        self._pid = os.getpid()
        self._buffer: list[tuple[datetime, Sequence[AuditEvent]]] = []
        self._since_s = 0.0  # when the oldest event of `_buffer` was recorded
        self._mutex = threading.Lock()  # guards _buffer; never held while the disk or another process is waited for
        self._writing = threading.Lock()
        self._wake = threading.Event()  # there is something in `_buffer`
        self._thread: threading.Thread | None = None
        self._untold = (0, "")  # how many lines could not be written since the last written one, and since when
        self._files = AuditFiles(self._folder, self._policy, self.spell)

    def __call__(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        """Append one event. A value that is not a code is replaced, so that no text of a prompt is written."""
        self.many(({"event": event, "actor": actor, **codes},))

    record = __call__

    def many(self, events: Sequence[AuditEvent]) -> None:
        """Record several events of one moment."""
        if not events:  # from an idle worker: do not wake the thread
            return
        if self._pid != os.getpid():
            self._start_anew()
        late = self._policy.strict
        moment = self._clock.now()
        with self._mutex:
            empty = not self._buffer
            self._buffer.append((moment, events))
            if empty and not late:
                self._since_s = self._clock.monotonic_s()
                if self._background:
                    self._wake.set()
                    if self._thread is None:
                        self._thread = threading.Thread(target=self._keep_flushing, name="audit", daemon=True)
                        self._thread.start()
            elif not self._background and not late:
                late = self._clock.monotonic_s() - self._since_s >= self._policy.flush_s
        if late or self._closed:
            self.flush()

    def _head(self, moment: datetime) -> str:
        """Return the beginning of a line of that moment."""
        second = int(moment.timestamp())
        if second != self._second[0]:
            self._second = (second, f'{{"ts": "{timestamp(moment)[:20]}')
        return f'{self._second[1]}{moment.microsecond // 1000:03d}Z"'

    def spell(self, event: str, *, actor: str | None = None, **codes: Value) -> bytes:
        return self._line(self._head(self._clock.now()), {"event": event, "actor": actor, **codes})

    def _lines(self, told: Sequence[tuple[datetime, Sequence[AuditEvent]]]) -> Iterator[bytes]:
        for moment, events in told:
            head = self._head(moment)
            for event in events:
                yield self._line(head, _codes(event))

    def _line(self, head: str, codes: Mapping[str, Value]) -> bytes:
        """Format a line without the json module: there are three for every job, and codes need no escapes. All values
        are checked at once; only if that fails, one by one."""
        codes = audit_fields.without_names(codes, actor=self.actor)
        texts, members = _spelled(codes)
        if len(texts) > _LONGEST or not _is_code(texts):
            members = _spelled({name: _code(v) if isinstance(v, str) else v for name, v in codes.items()})[1]
        return f"{head}{members}}}\n".encode()

    def _keep_flushing(self) -> None:
        pause = threading.Event()  # never set: a real thread needs a real sleep, not the injected clock's
        while not self._closed:
            self._wake.wait()
            pause.wait(self._policy.flush_s)
            self._wake.clear()
            self.flush()

    def flush(self) -> None:
        """Write the buffered events. The background thread calls it every second; it also runs at exit."""
        if self._pid != os.getpid():
            return
        with self._writing:
            with self._mutex:
                told, self._buffer = self._buffer, []
            if not told:
                return
            lines = list(self._lines(told))
            confession = self._confession()
            try:
                self._files.append([*confession, *lines], timestamp(self._clock.now())[:10])
                self._untold = (0, "")
            except OSError as error:
                written = getattr(error, "written", 0)
                if written:
                    self._untold = (0, "")
                self._missed(len(lines) - max(0, written - len(confession)), error)

    def _confession(self) -> list[bytes]:
        """Return a line that reports how many lines could not be written; it precedes the next ones. Without it,
        `farro stats --alerts` could not count lines that were lost in a past failure."""
        lines, since = self._untold
        return [self.spell(MISSED, lines=lines, since=since)] if lines else []

    def mend(self) -> None:
        """Remove a torn last line. A long-lived process does this at its start, not with its first event."""
        with self._writing:
            try:
                torn = self._files.mend()
            except OSError as error:
                self._missed(0, error)
                return
        if torn:
            self.record("audit_repaired", bytes=torn)

    def _missed(self, lines: int, error: OSError) -> None:
        why = f"{error.filename or self._folder}: {error.strerror or error}"
        if self._log is not None and why != self.last_error:  # once for each cause: it may last
            self._log("error", "the audit log could not be written; jobs go on", {"name": "audit", "why": why})
        self.errors += lines
        self.last_error = why
        if lines:
            before, since = self._untold
            self._untold = (before + lines, since or timestamp(self._clock.now()))

    def close(self) -> None:
        """Write the buffered events. Later events are written at once."""
        self._closed = True
        self.flush()
        self._wake.set()  # the thread ends within `flush_s`
        atexit.unregister(self.flush)
        with self._writing:
            self._files.forget()


def _codes(event: AuditEvent) -> Mapping[str, Value]:
    return audit_fields.codes(event) if isinstance(event, Lifecycle) else event


def _spelled(codes: Mapping[str, Value]) -> tuple[str, str]:
    """Return all texts among the values, joined, and all values as members of a JSON object."""
    texts = members = ""
    for name, value in codes.items():
        if isinstance(value, str):
            texts += value
            members += f', "{name}": "{value}"'
        elif value is not None:
            members += f', "{name}": {_number(value)}'
    return texts, members


def _is_code(text: str) -> bool:
    return not text.encode("utf-8", "replace").translate(None, _ALPHABET)


def _code(text: str) -> str:
    return text if len(text) <= _LONGEST and _is_code(text) else NOT_A_CODE


def _number(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


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
            fs.write(self._current(), self._line(DELETED, file=name, bytes=size))


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
