"""Commands that were received, and what became of each: durable, so that every one is confirmed exactly once.

What a command does lives in the controller and the orchestrator.

- A command is known by its idempotency key, a signal by its correlation id. The first signal of a key begins it; a
  second one while it goes on waits for the same end; one after that end gets the end that is stored.
- A confirmation is written here before it is sent, and its message id follows from the correlation id: one that is
  sent again after a crash is the same message. [test_a_confirmation_that_was_not_sent_is_sent_after_a_restart]
- The newest commands are kept, a thousand of them: a retry comes within minutes, not months.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from farro.errors import Damaged
from farro.swarm.messages import ControlSignal
from farro.swarm.names import Scope, Signal
from farro.system import fs

KEEP = 1000
_LIMIT = 64 << 20
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
    end: End | None = None

    @property
    def scope(self) -> Scope:
        return Scope(swarm=self.swarm, role=self.role, instance=self.instance)


Received = Literal["new", "running", "done"]


class CommandLedger:
    """In one file, replaced as a whole before anything is done about what it says."""

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self.entries: dict[str, Entry] = {}
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
            )
            self.entries[key] = entry
            kind: Received = "new"
        else:
            kind = "done" if entry.end is not None else "running"
        if told.correlation_id not in entry.correlations:
            entry.correlations.append(told.correlation_id)
        if told.correlation_id not in entry.unsent:
            entry.unsent.append(told.correlation_id)
        self._write()
        return kind, entry

    def find(self, told: ControlSignal) -> Entry | None:
        """The command of that signal, if it was received before."""
        return self.entries.get(_key(told))

    def start(self, entry: Entry, at: str, limit_s: float | None = None) -> None:
        """Something is about to be done about it: its time runs, also over the death of whoever does it."""
        entry.started_at, entry.limit_s = at, limit_s
        self._write()

    def give_up(self, entry: Entry) -> None:
        entry.given_up = True
        self._write()

    def end(self, entry: Entry, end: End, at: str, *, confirmed: Sequence[str] = ()) -> None:
        """The command is over; its confirmations are to be sent, but those that were `confirmed` by another."""
        entry.end, entry.ended_at = end, at
        entry.unsent = [one for one in entry.unsent if one not in confirmed]
        entry.args = None
        self._write()

    def sent(self, entry: Entry, correlation_id: str) -> None:
        if correlation_id in entry.unsent:
            entry.unsent.remove(correlation_id)
            self._write()

    def open(self) -> list[Entry]:
        """Commands that are not over, in the order in which they came."""
        return [entry for entry in self.entries.values() if entry.end is None]

    def owed(self) -> list[tuple[Entry, str]]:
        """Confirmations that were not sent, as far as anybody knows."""
        ended = [entry for entry in self.entries.values() if entry.end is not None]
        return [(entry, correlation) for entry in ended for correlation in list(entry.unsent)]

    def _load(self) -> None:
        self.entries = read(self._path)

    def _write(self) -> None:
        done = [key for key, entry in self.entries.items() if entry.end is not None and not entry.unsent]
        for key in done[: max(0, len(self.entries) - KEEP)]:
            del self.entries[key]
        text = json.dumps({key: asdict(entry) for key, entry in self.entries.items()})
        fs.write_atomic(self._path, text.encode() + b"\n", sync=self._durable)


def read(path: str) -> dict[str, Entry]:
    """The commands in a ledger's file, in the order in which they came; none where there is no file yet."""
    found = {}
    try:
        for key, data in json.loads(fs.read_bytes(path, _LIMIT)).items():
            end = data.pop("end")
            found[key] = Entry(**data, end=None if end is None else End(**end))
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise Damaged(f"{path} cannot be read as a ledger of commands: {error}") from error
    return found


def _key(told: ControlSignal) -> str:
    return f"{told.signal}/{told.idempotency_key}/{told.scope.words}"


def message_id(correlation_id: str, signal: Signal | str, kind: str) -> str:
    """Of the event about that signal: the same however often it is sent."""
    return str(uuid.uuid5(_SPACE, f"{correlation_id}/{signal}/{kind}"))
