"""The ledger of received commands and their ends: durable, so that every command is confirmed exactly once.

- A command is known by its idempotency key, a signal by its correlation id. The first signal of a key begins the
  command; a second one during it waits for the same end; one after the end gets the stored end.
- A confirmation is written here before it is sent, and its message id follows from the correlation id: sent again after
  a crash it is the same message. [test_a_confirmation_that_was_not_sent_is_sent_after_a_restart]
- The newest thousand commands are kept: a retry comes within minutes, not months.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
    args: dict[str, Any] | None = None
    asked: str | None = None  # fingerprint of the args, which are dropped at the end
    end: CommandEnd | None = None

    @property
    def scope(self) -> Scope:
        return Scope(swarm=self.swarm, role=self.role, instance=self.instance)


Received = Literal["new", "running", "done"]


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
        self.entries: dict[str, LedgerEntry] = {}
        self._open: dict[str, LedgerEntry] = {}
        self._owed: dict[str, LedgerEntry] = {}  # ended, with unsent confirmations
        self._load()

    def receive(self, signal: ControlSignal, at: str) -> tuple[Received, LedgerEntry]:
        """Note a signal. It is durable when this returns, so the message may be acknowledged."""
        key = key_of(signal)
        entry = self.entries.get(key)
        if entry is None:
            entry = LedgerEntry(
                key=signal.idempotency_key,
                signal=signal.signal,
                swarm=signal.swarm_id,
                role=signal.role,
                instance=signal.instance,
                begun_at=at,
                args=signal.args,
                asked=fingerprint(signal.args),
            )
            self.entries[key] = entry
            self._forget()
            kind: Received = "new"
        else:
            kind = "done" if entry.end is not None else "running"
        if signal.correlation_id not in entry.correlations:
            entry.correlations.append(signal.correlation_id)
        if signal.correlation_id not in entry.unsent:
            entry.unsent.append(signal.correlation_id)
        self._note(key, entry)
        return kind, entry

    def find(self, signal: ControlSignal) -> LedgerEntry | None:
        """Return the command of a signal, if it was received before."""
        return self.entries.get(key_of(signal))

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
        while len(self.entries) > KEEP:
            old = next((key for key in self.entries if key not in self._open and key not in self._owed), None)
            if old is None or old == next(reversed(self.entries)):
                return
            del self.entries[old]

    # --- the file ---

    def _load(self) -> None:
        self.entries = read(self._path)
        for key, entry in self.entries.items():
            self._sort(key, entry)
        self._forget()

    def _note(self, key: str, entry: LedgerEntry) -> None:
        """Write one change. It is durable when this returns."""
        self._sort(key, entry)
        line = json.dumps([key, asdict(entry)]).encode() + b"\n"
        if self._file is None or self._lines >= KEEP or self._bytes + len(line) > _JOURNAL_BYTES:
            self._write_all()
            return
        try:
            fs.write(self._file, line)
            if self._durable:
                fs.sync_descriptor(self._file, self._path)
        except OSError:  # half a line may be written: nothing may be appended after it
            self._write_all()
            return
        self._lines += 1
        self._bytes += len(line)

    def _write_all(self) -> None:
        """Write a new snapshot that replaces all lines. A file of an earlier process is never appended to, since its
        last line may be incomplete."""
        self.close()
        text = json.dumps({key: asdict(entry) for key, entry in self.entries.items()})
        fs.write_atomic(self._path, text.encode() + b"\n", sync=self._durable)
        if self._durable:  # without it a power cut may bring back the old file and lose the lines that follow
            fs.sync_all([os.path.dirname(self._path)])
        self._file = fs.open_append(self._path)
        self._lines = self._bytes = 0


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
