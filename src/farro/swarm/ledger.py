"""Commands that were received, and what became of each: durable, so that every one is confirmed exactly once.

What a command does lives in the controller and the orchestrator.

- A command is known by its idempotency key, a signal by its correlation id. The first signal of a key begins it; a
  second one while it goes on waits for the same end; one after that end gets the end that is stored.
- A confirmation is written here before it is sent, and its message id follows from the correlation id: one that is
  sent again after a crash is the same message. [test_a_confirmation_that_was_not_sent_is_sent_after_a_restart]
- The newest commands are kept, a thousand of them: a retry comes within minutes, not months.
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
_JOURNAL_BYTES = 8 << 20  # then a new snapshot, also before a thousand lines
_SPACE = uuid.UUID("0d6cb5a2-7a11-4f6f-a3b0-4d1c8f2a9e55")


@dataclass(kw_only=True)
class End:
    """What a command came to."""

    good: bool
    state: str | None = None  # of a success
    notes: str | None = None
    phase: str | None = None  # of an error
    code: str | None = None
    message: str | None = None
    retryable: bool = False
    details: dict[str, Any] | None = None


@dataclass(kw_only=True)
class Entry:
    """One command. `unsent`: correlation ids that have not been confirmed yet."""

    key: str  # idempotency key
    signal: str
    swarm: str | None
    role: str | None
    instance: str | None
    correlations: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    begun_at: str = ""  # when it was received
    started_at: str | None = None  # when something was first done about it
    ended_at: str | None = None
    limit_s: float | None = None  # how long it may take from its start (orchestrator)
    given_up: bool = False  # its controller was told that nobody waits for it any more (orchestrator)
    args: dict[str, Any] | None = None
    asked: str | None = None  # what stands for the args when those are gone (fingerprint)
    end: End | None = None

    @property
    def scope(self) -> Scope:
        return Scope(swarm=self.swarm, role=self.role, instance=self.instance)


Received = Literal["new", "running", "done"]


class CommandLedger:
    """A snapshot of all commands, and a line for each change since: what one change costs does not grow with history.

    Written by one process. Others may read at any moment: a last line that is not whole is one that is being written,
    or was when its writer died, and was never acted upon.
    """

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._file: int | None = None  # the journal behind the snapshot; None: the next change writes a new snapshot
        self._lines = self._bytes = 0  # since the snapshot
        self.entries: dict[str, Entry] = {}
        self._open: dict[str, Entry] = {}
        self._owed: dict[str, Entry] = {}  # over, and not yet confirmed to all who asked
        self._load()

    def receive(self, told: ControlSignal, at: str) -> tuple[Received, Entry]:
        """Note a signal. It may be acknowledged when this returns: it is not forgotten any more."""
        key = _key(told)
        entry = self.entries.get(key)
        if entry is None:
            entry = Entry(
                key=told.idempotency_key,
                signal=told.signal,
                swarm=told.swarm_id,
                role=told.role,
                instance=told.instance,
                begun_at=at,
                args=told.args,
                asked=fingerprint(told.args),
            )
            self.entries[key] = entry
            self._forget()
            kind: Received = "new"
        else:
            kind = "done" if entry.end is not None else "running"
        if told.correlation_id not in entry.correlations:
            entry.correlations.append(told.correlation_id)
        if told.correlation_id not in entry.unsent:
            entry.unsent.append(told.correlation_id)
        self._note(key, entry)
        return kind, entry

    def find(self, told: ControlSignal) -> Entry | None:
        """The command of that signal, if it was received before."""
        return self.entries.get(_key(told))

    def start(self, entry: Entry, at: str, limit_s: float | None = None) -> None:
        """Something is about to be done about it: its time runs, also over the death of whoever does it."""
        entry.started_at, entry.limit_s = at, limit_s
        self._note(_key(entry), entry)

    def give_up(self, entry: Entry) -> None:
        entry.given_up = True
        self._note(_key(entry), entry)

    def end(self, entry: Entry, end: End, at: str, *, confirmed: Sequence[str] = ()) -> None:
        """The command is over; its confirmations are to be sent, but those that were `confirmed` by another."""
        entry.end, entry.ended_at = end, at
        entry.unsent = [one for one in entry.unsent if one not in confirmed]
        entry.args = None
        self._note(_key(entry), entry)

    def sent(self, entry: Entry, correlation_id: str) -> None:
        if correlation_id in entry.unsent:
            entry.unsent.remove(correlation_id)
            self._note(_key(entry), entry)

    def open(self) -> list[Entry]:
        """Commands that are not over, in the order in which they came."""
        return list(self._open.values())

    def owed(self) -> list[tuple[Entry, str]]:
        """Confirmations that were not sent, as far as anybody knows."""
        return [(entry, correlation) for entry in self._owed.values() for correlation in list(entry.unsent)]

    def close(self) -> None:
        """Nothing is lost without it: it gives the descriptor back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _sort(self, key: str, entry: Entry) -> None:
        for group, belongs in (
            (self._open, entry.end is None),
            (self._owed, entry.end is not None and bool(entry.unsent)),
        ):
            if belongs:
                group[key] = entry
            else:
                group.pop(key, None)

    def _forget(self) -> None:
        """The oldest that are over and confirmed, beyond those that are kept."""
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

    def _note(self, key: str, entry: Entry) -> None:
        """On the disk when this returns."""
        self._sort(key, entry)
        line = json.dumps([key, asdict(entry)]).encode() + b"\n"
        if self._file is None or self._lines >= KEEP or self._bytes + len(line) > _JOURNAL_BYTES:
            self._write_all()
            return
        try:
            fs.write(self._file, line)
            if self._durable:
                fs.sync_descriptor(self._file, self._path)
        except OSError:  # half a line may stand there: nothing is written behind it
            self._write_all()
            return
        self._lines += 1
        self._bytes += len(line)

    def _write_all(self) -> None:
        """A new snapshot, which takes away the lines before it. A file that another left is not written on: how its
        last line ends is not known."""
        self.close()
        text = json.dumps({key: asdict(entry) for key, entry in self.entries.items()})
        fs.write_atomic(self._path, text.encode() + b"\n", sync=self._durable)
        if self._durable:  # or a power cut may bring back the old file, without the lines that follow
            fs.sync_all([os.path.dirname(self._path)])
        self._file = fs.open_append(self._path)
        self._lines = self._bytes = 0


def _key(told: ControlSignal | Entry) -> str:
    own = told.key if isinstance(told, Entry) else told.idempotency_key
    return f"{told.signal}/{own}/{told.scope.words}"


def read(path: str) -> dict[str, Entry]:
    """The commands in a ledger's file, in the order in which they came; none where there is no file yet."""
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
                key, told = json.loads(line)
            except ValueError:
                if number < len(lines) - 1:
                    raise
            else:
                found[key] = told
        for key, told in found.items():
            end = told.pop("end")
            entries[key] = Entry(**told, end=None if end is None else End(**end))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Damaged(f"{path} cannot be read as a ledger of commands: {error}") from error
    return entries


def fingerprint(args: Mapping[str, Any] | None) -> str:
    """The same for the same arguments, in whatever order they were written."""
    return hashlib.sha256(json.dumps(args or {}, sort_keys=True).encode()).hexdigest()[:32]


def message_id(correlation_id: str, signal: Signal | str, kind: str) -> str:
    """Of the event about that signal: the same however often it is sent."""
    return str(uuid.uuid5(_SPACE, f"{correlation_id}/{signal}/{kind}"))
