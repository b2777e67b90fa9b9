"""The ledger of commands: one end for each, and one confirmation for each signal, whatever crashes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from farro.errors import Damaged
from farro.swarm import ledger as ledgers
from farro.swarm.ledger import CommandEnd, CommandLedger
from farro.swarm.wire.messages import ControlSignal

NOW = "2026-11-16T12:00:00.000Z"


def signal(key: str | None = None, **changes: Any) -> ControlSignal:
    fields: dict[str, Any] = {"signal": "swarm-start", "swarm_id": "demo", "correlation_id": str(uuid.uuid4())}
    return ControlSignal(idempotency_key=key or str(uuid.uuid4()), **{**fields, **changes})


def open_ledger(path: Path) -> CommandLedger:
    return CommandLedger(str(path / "commands.json"), durable=False)


def test_a_confirmation_that_was_not_sent_is_sent_after_a_restart(shm: Path) -> None:
    received = signal()
    kind, entry = open_ledger(shm).receive(received, NOW)
    assert kind == "new"
    again = open_ledger(shm)  # it died before the command ended
    (found,) = again.open()
    assert found == entry
    again.end(found, CommandEnd(good=True, state="Running"), NOW)
    third = open_ledger(shm)  # and before it was confirmed
    ((owed, correlation),) = third.owed()
    assert (owed.end, correlation) == (CommandEnd(good=True, state="Running"), received.correlation_id)
    first = ledgers.message_id(correlation, "swarm-start", "ready")
    assert first == ledgers.message_id(correlation, "swarm-start", "ready")
    assert first != ledgers.message_id(correlation, "swarm-start", "error")
    third.sent(owed, correlation)
    assert open_ledger(shm).owed() == []


def test_a_repeated_command_is_one_command(shm: Path) -> None:
    ledger = open_ledger(shm)
    first = signal()
    second = signal(first.idempotency_key)
    other = signal(first.idempotency_key, signal="swarm-stop")
    assert ledger.receive(first, NOW)[0] == "new"
    kind, entry = ledger.receive(second, NOW)
    assert (kind, entry.unsent) == ("repeated", [first.correlation_id, second.correlation_id])
    assert ledger.receive(other, NOW)[0] == "new"  # a key is of one action
    ledger.end(entry, CommandEnd(good=False, code="X", message="no"), NOW)
    for correlation in list(entry.unsent):
        ledger.sent(entry, correlation)
    third = signal(first.idempotency_key)
    kind, entry = open_ledger(shm).receive(third, NOW)
    assert (kind, entry.unsent) == ("repeated", [third.correlation_id])
    kind, entry = ledger.receive(first, NOW)
    assert (kind, entry.unsent) == ("redelivered", [])  # each correlation id is confirmed once
    strange = signal(correlation_id=first.correlation_id)
    assert ledger.receive(strange, NOW) == ("redelivered", entry)  # also under another key


def test_the_oldest_ended_commands_are_forgotten_and_open_ones_stay(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEEP", 3)
    ledger = open_ledger(shm)
    waiting = signal()
    ledger.receive(waiting, NOW)
    for _ in range(6):
        _, entry = ledger.receive(signal(), NOW)
        ledger.end(entry, CommandEnd(good=True, state="Running"), NOW)
        ledger.sent(entry, entry.correlations[0])
    state = open_ledger(shm).entries.values()
    assert len(state) <= 4
    assert any(entry.key == waiting.idempotency_key for entry in state)


def test_changes_of_a_batch_are_written_together(shm: Path) -> None:
    ledger = open_ledger(shm)
    ledger.receive(signal(), NOW)
    before = (shm / "commands.json").read_bytes()
    with ledger.batch():
        ledger.receive(signal(), NOW, own=True)
        ledger.receive(signal(), NOW, own=True)
        assert (shm / "commands.json").read_bytes() == before
    assert [entry.own for entry in open_ledger(shm).open()] == [False, True, True]


def test_own_config_updates_push_no_command_out(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEEP", 3)
    ledger = open_ledger(shm)
    for own in (False, *(True for _ in range(10))):
        _, entry = ledger.receive(signal(), NOW, own=own)
        ledger.end(entry, CommandEnd(good=True, state="Running"), NOW)
        ledger.sent(entry, entry.correlations[0])
    assert [entry.own for entry in open_ledger(shm).entries.values()].count(False) == 1
    assert len(open_ledger(shm).entries) <= 4


def test_the_cost_of_a_change_does_not_grow_with_history(shm: Path) -> None:
    ledger = open_ledger(shm)
    path = shm / "commands.json"
    grown = []
    for _ in range(400):
        before = path.stat().st_size if path.exists() else 0
        _, entry = ledger.receive(signal(), NOW)
        ledger.end(entry, CommandEnd(good=True, state="Running"), NOW)
        grown.append(path.stat().st_size - before)
    assert max(grown[1:]) <= 2 * min(grown[1:])  # lines are appended; nothing is rewritten
    assert len(open_ledger(shm).entries) == 400


def test_the_journal_is_compacted_before_it_is_long(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEEP", 5)
    ledger = open_ledger(shm)
    for _ in range(50):
        _, entry = ledger.receive(signal(), NOW)
        ledger.end(entry, CommandEnd(good=True, state="Running"), NOW)
        ledger.sent(entry, entry.correlations[0])
        assert len((shm / "commands.json").read_bytes().splitlines()) <= 7
    assert [entry.key for entry in open_ledger(shm).entries.values()] == [
        entry.key for entry in ledger.entries.values()
    ]


@pytest.mark.parametrize("left", [1, 20, 100])
def test_a_line_torn_by_a_crash_is_ignored(shm: Path, left: int) -> None:
    ledger = open_ledger(shm)
    first = signal()
    _, entry = ledger.receive(first, NOW)
    path = shm / "commands.json"
    whole = path.stat().st_size
    ledger.end(entry, CommandEnd(good=True, state="Running"), NOW)
    data = path.read_bytes()
    path.write_bytes(data[: whole + left])
    again = open_ledger(shm)
    assert [one.key for one in again.open()] == [first.idempotency_key]
    again.receive(signal(), NOW)  # the next line must not follow half a line
    assert len(open_ledger(shm).open()) == 2


def test_a_broken_line_in_the_middle_is_an_error(shm: Path) -> None:
    ledger = open_ledger(shm)
    for _ in range(3):
        ledger.receive(signal(), NOW)
    path = shm / "commands.json"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(Damaged):
        open_ledger(shm)


def test_an_unreadable_ledger_is_kept_and_is_an_error(shm: Path) -> None:
    (shm / "commands.json").write_text("[")
    with pytest.raises(Damaged, match=r"commands\.json is not a valid ledger"):
        open_ledger(shm)
    assert (shm / "commands.json").read_text() == "["
