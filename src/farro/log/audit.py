"""The audit log: one JSON object per line, codes only, buffered for a second or synced line by line (SPEC-1 §8).

Free text, prompts and results are never written here; they are in hops[] and in the job.

An event is written after it happened: a line about something that did not happen is worse than a missing line. So a
killed process may leave transitions unwritten: those of its last second, and one whose rename had just been made. The
truth about a job is its own job.json, whose hops[] are part of the transition itself.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from farro.host.clock import Clock
from farro.jobs import audit_fields
from farro.jobs.envelope import Lifecycle
from farro.jobs.times import timestamp
from farro.log.alert_rules import MISSED
from farro.log.audit_file import AuditFiles, AuditPolicy, files
from farro.log.structured import Log

__all__ = ["Audit", "AuditLog", "AuditPolicy", "Value", "files", "no_audit", "tell_all"]

Value = str | int | bool | None
# A mapping of codes, `event` and `actor` among them; or the transition that led to this lifecycle.
AuditEvent = Mapping[str, Value] | Lifecycle
# Characters of codes: none needs an escape in JSON, and without a blank no sentence is accepted.
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/@+-"
_LONGEST = 200
NOT_A_CODE = "(not-a-code)"


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
        """Initialise, also in a forked child: the parent writes what it buffered, and a lock that another thread held
        at the fork would never be released."""
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
        if codes["actor"] is None:
            codes = {**codes, "actor": self.actor}
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
