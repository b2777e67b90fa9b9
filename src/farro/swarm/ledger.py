"""The ledger of received commands and their ends: durable, so that every command is confirmed exactly once.

- A command is known by its idempotency key, a signal by its correlation id. The first signal of a key begins the
  command; another one during it waits for the same end; one after the end gets the stored end. The same signal once
  more gets nothing: each correlation id is confirmed once.
- A confirmation is written here before it is sent, and its message id follows from the correlation id: sent again after
  a crash it is the same message. [test_a_confirmation_that_was_not_sent_is_sent_after_a_restart]
- The newest thousand commands are kept, and as many of the controller's own config updates: a retry comes within
  minutes, not months.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from farro.errors import Damaged
from farro.host import fs
from farro.lazy_dataclass import dataclass, field
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal

KEEP = 1000
_LIMIT = 64 << 20
_JOURNAL_BYTES = 8 << 20  # then a new snapshot is written, even before a thousand lines
_SPACE = uuid.UUID("0d6cb5a2-7a11-4f6f-a3b0-4d1c8f2a9e55")


@dataclass(kw_only=True)
class CommandEnd:
    """The outcome of a command."""

    good: bool
    state: str | None = None  # of a success
    notes: str | None = None
    phase: str | None = None  # of an error
    code: str | None = None
    message: str | None = None
    retryable: bool = False
    details: dict[str, Any] | None = None


@dataclass(kw_only=True)
class LedgerEntry:
    """One command. `unsent` holds the correlation ids that are not confirmed yet."""

    key: str  # idempotency key
    signal: str
    swarm: str | None
    role: str | None
    instance: str | None
    correlations: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    begun_at: str = ""  # when it was received
    started_at: str | None = None  # when work on it began
    ended_at: str | None = None
    limit_s: float | None = None  # time limit from its start (orchestrator only)
    given_up: bool = False  # its controller must not confirm it any more (orchestrator only)
    own: bool = False  # a config update that the controller itself sent (controller only)
    allowed: bool = True  # False until the orchestrator has said that the signal is its own (controller only)
    args: dict[str, Any] | None = None
    asked: str | None = None  # fingerprint of the args, which are dropped at the end
    end: CommandEnd | None = None

    @property
    def scope(self) -> Scope:
        return Scope(swarm=self.swarm, role=self.role, instance=self.instance)


Received = Literal["new", "repeated", "redelivered"]  # repeated: the same command by another signal


class CommandLedger:
    """A snapshot of all commands and a line for each change since, so that the cost of a change does not grow.

    Written by one process. Other processes may read at any time: an incomplete last line is being written, or its
    writer died, and nothing was done on its account.
    """

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._file: int | None = None  # the file, open for appending; None if the next change writes a new snapshot
        self._lines = self._bytes = 0  # since the snapshot
        self._changed: dict[str, LedgerEntry] = {}  # not written yet
        self._batching = False
        self.entries: dict[str, LedgerEntry] = {}
        self._by_correlation: dict[str, LedgerEntry] = {}
        self._open: dict[str, LedgerEntry] = {}
        self._owed: dict[str, LedgerEntry] = {}  # ended, with unsent confirmations
        self._load()

    def receive(
        self, signal: ControlSignal, at: str, *, own: bool = False, allowed: bool = True
    ) -> tuple[Received, LedgerEntry]:
        """Note a signal. It is durable when this returns, so the message may be acknowledged."""
        known = self._by_correlation.get(signal.correlation_id)
        if known is not None:
            return "redelivered", known
        key = key_of(signal)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = entry_of(signal, at)
            entry.own, entry.allowed = own, allowed
            kind: Received = "new"
        else:
            kind = "repeated"
            entry.correlations.append(signal.correlation_id)
            entry.unsent.append(signal.correlation_id)
        self._by_correlation[signal.correlation_id] = entry
        self._note(key, entry)
        return kind, entry

    def by_correlation(self, correlation_id: str) -> LedgerEntry | None:
        return self._by_correlation.get(correlation_id)

    def allow(self, entry: LedgerEntry) -> None:
        """Note that the orchestrator sent this command."""
        entry.allowed = True
        self._note(key_of(entry), entry)

    def start(self, entry: LedgerEntry, at: str, limit_s: float | None = None) -> None:
        """Note that work on a command begins. Its time limit goes on even if the process dies."""
        entry.started_at, entry.limit_s = at, limit_s
        self._note(key_of(entry), entry)

    def give_up(self, entry: LedgerEntry) -> None:
        entry.given_up = True
        self._note(key_of(entry), entry)

    def end(self, entry: LedgerEntry, end: CommandEnd, at: str, *, confirmed: Sequence[str] = ()) -> None:
        """Note the end of a command. Its confirmations become owed, except those that were already `confirmed`."""
        entry.end, entry.ended_at = end, at
        entry.unsent = [one for one in entry.unsent if one not in confirmed]
        entry.args = None
        self._note(key_of(entry), entry)

    def sent(self, entry: LedgerEntry, correlation_id: str) -> None:
        if correlation_id in entry.unsent:
            entry.unsent.remove(correlation_id)
            self._note(key_of(entry), entry)

    def open(self) -> list[LedgerEntry]:
        """Return the commands in progress, oldest first."""
        return list(self._open.values())

    def owed(self) -> list[tuple[LedgerEntry, str]]:
        """Return the confirmations that are not known to have been sent."""
        return [(entry, correlation) for entry in self._owed.values() for correlation in list(entry.unsent)]

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _sort(self, key: str, entry: LedgerEntry) -> None:
        for group, belongs in (
            (self._open, entry.end is None),
            (self._owed, entry.end is not None and bool(entry.unsent)),
        ):
            if belongs:
                group[key] = entry
            else:
                group.pop(key, None)

    def _forget(self) -> None:
        """Drop the oldest ended and confirmed commands beyond the kept number."""
        if len(self.entries) <= KEEP:
            return
        for own in (False, True):
            keys = [key for key, entry in self.entries.items() if entry.own is own]
            ended = [key for key in keys[:-1] if key not in self._open and key not in self._owed]
            for key in ended[: max(0, len(keys) - KEEP)]:
                for correlation_id in self.entries.pop(key).correlations:
                    self._by_correlation.pop(correlation_id, None)

    # --- the file ---

    def _load(self) -> None:
        self.entries = read(self._path)
        for key, entry in self.entries.items():
            self._sort(key, entry)
            self._by_correlation |= dict.fromkeys(entry.correlations, entry)
        self._forget()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Write all changes inside together, with one sync. Nothing may be awaited inside."""
        self._batching = True
        try:
            yield
        finally:
            self._batching = False
            self._write_changes()

    def _note(self, key: str, entry: LedgerEntry) -> None:
        """Write one change. It is durable when this returns, or when its batch ends."""
        self._sort(key, entry)
        self._changed[key] = entry
        if not self._batching:
            self._write_changes()

    def _write_changes(self) -> None:
        changed, self._changed = self._changed, {}
        if not changed:
            return
        self._forget()
        lines = b"".join(json.dumps([key, entry], default=vars).encode() + b"\n" for key, entry in changed.items())
        if self._file is None or self._lines >= KEEP or self._bytes + len(lines) > _JOURNAL_BYTES:
            self._write_all()
            return
        try:
            fs.write(self._file, lines)
            if self._durable:
                fs.sync_descriptor(self._file, self._path)
        except OSError:  # half a line may be written: nothing may be appended after it
            self._write_all()
            return
        self._lines += len(changed)
        self._bytes += len(lines)

    def _write_all(self) -> None:
        """Write a new snapshot that replaces all lines. A file of an earlier process is never appended to, since its
        last line may be incomplete."""
        self.close()
        text = json.dumps(self.entries, default=vars)
        fs.write_atomic(self._path, text.encode() + b"\n", sync=self._durable)
        if self._durable:  # without it a power cut may bring back the old file and lose the lines that follow
            fs.sync_all([os.path.dirname(self._path)])
        self._file = fs.open_append(self._path)
        self._lines = self._bytes = 0


def entry_of(signal: ControlSignal, at: str) -> LedgerEntry:
    """Return the command that a signal begins, received at the time `at`."""
    return LedgerEntry(
        key=signal.idempotency_key,
        signal=str(signal.signal),
        swarm=signal.swarm_id,
        role=signal.role,
        instance=signal.instance,
        correlations=[signal.correlation_id],
        unsent=[signal.correlation_id],
        begun_at=at,
        args=signal.args,
        asked=fingerprint(signal.args),
    )


def key_of(signal: ControlSignal | LedgerEntry) -> str:
    """Return by what a command is known: its signal, its idempotency key and its scope."""
    own = signal.key if isinstance(signal, LedgerEntry) else signal.idempotency_key
    return f"{signal.signal}/{own}/{signal.scope.words}"


def read(path: str) -> dict[str, LedgerEntry]:
    """Read the commands of a ledger file, oldest first; empty if there is no file yet."""
    try:
        data = fs.read_bytes(path, _LIMIT)
    except FileNotFoundError:
        return {}
    first, *lines = data.split(b"\n")
    entries = {}
    try:
        found = dict(json.loads(first).items())
        for number, line in enumerate(lines):
            try:
                key, signal = json.loads(line)
            except ValueError:
                if number < len(lines) - 1:
                    raise
            else:
                found[key] = signal
        for key, signal in found.items():
            end = signal.pop("end")
            entries[key] = LedgerEntry(**signal, end=None if end is None else CommandEnd(**end))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Damaged(f"{path} is not a valid ledger of commands: {error}") from error
    return entries


def fingerprint(args: Mapping[str, Any] | None) -> str:
    """Return a digest of arguments that does not depend on their order."""
    return hashlib.sha256(json.dumps(args or {}, sort_keys=True).encode()).hexdigest()[:32]


def message_id(correlation_id: str, signal: Signal | str, kind: str) -> str:
    """Return the message id of the event about a signal: the same however often the event is sent."""
    return str(uuid.uuid5(_SPACE, f"{correlation_id}/{signal}/{kind}"))
