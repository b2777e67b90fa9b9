"""The ledger of commands: one end for each, and one confirmation for each signal, whatever crashes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from farro.errors import Damaged
from farro.swarm import ledger
from farro.swarm.ledger import CommandLedger, End
from farro.swarm.wire.messages import ControlSignal

NOW = "2026-11-16T12:00:00.000Z"


def signal(key: str | None = None, **changes: Any) -> ControlSignal:
    correlation = str(uuid.uuid4())
    told: dict[str, Any] = {"signal": "swarm-start", "swarm_id": "demo", **changes}
    return ControlSignal(correlation_id=correlation, idempotency_key=key or str(uuid.uuid4()), **told)


def opened(path: Path) -> CommandLedger:
    return CommandLedger(str(path / "commands.json"), durable=False)


def test_a_confirmation_that_was_not_sent_is_sent_after_a_restart(shm: Path) -> None:
    told = signal()
    kind, entry = opened(shm).receive(told, NOW)
    assert kind == "new"
    again = opened(shm)  # it died before the command was over
    (found,) = again.open()
    assert found == entry
    again.end(found, End(good=True, state="Running"), NOW)
    third = opened(shm)  # … and before it was told
    ((owed, correlation),) = third.owed()
    assert (owed.end, correlation) == (End(good=True, state="Running"), told.correlation_id)
    first = ledger.message_id(correlation, "swarm-start", "ready")
    assert first == ledger.message_id(correlation, "swarm-start", "ready")
    assert first != ledger.message_id(correlation, "swarm-start", "error")
    third.sent(owed, correlation)
    assert opened(shm).owed() == []


def test_a_command_that_comes_again_is_one_command(shm: Path) -> None:
    book = opened(shm)
    first = signal()
    second = signal(first.idempotency_key)
    other = signal(first.idempotency_key, signal="swarm-stop")
    assert book.receive(first, NOW)[0] == "new"
    kind, entry = book.receive(second, NOW)
    assert (kind, entry.unsent) == ("running", [first.correlation_id, second.correlation_id])
    assert book.receive(other, NOW)[0] == "new"  # a key is of one action
    book.end(entry, End(good=False, code="X", message="no"), NOW)
    for correlation in list(entry.unsent):
        book.sent(entry, correlation)
    third = signal(first.idempotency_key)
    kind, entry = opened(shm).receive(third, NOW)
    assert (kind, entry.unsent) == ("done", [third.correlation_id])
    assert book.receive(first, NOW)[0] == "done"  # delivered twice: told once more, as the same message


def test_the_oldest_go_and_open_ones_stay(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEEP", 3)
    book = opened(shm)
    waiting = signal()
    book.receive(waiting, NOW)
    for _ in range(6):
        _, entry = book.receive(signal(), NOW)
        book.end(entry, End(good=True, state="Running"), NOW)
        book.sent(entry, entry.correlations[0])
    kept = opened(shm).entries.values()
    assert len(kept) <= 4
    assert any(entry.key == waiting.idempotency_key for entry in kept)


def test_a_change_costs_the_same_however_long_the_history_is(shm: Path) -> None:
    book = opened(shm)
    path = shm / "commands.json"
    grown = []
    for _ in range(400):
        before = path.stat().st_size if path.exists() else 0
        _, entry = book.receive(signal(), NOW)
        book.end(entry, End(good=True, state="Running"), NOW)
        grown.append(path.stat().st_size - before)
    assert max(grown[1:]) <= 2 * min(grown[1:])  # lines are appended; nothing is written again
    assert len(opened(shm).entries) == 400


def test_the_journal_is_summed_up_before_it_is_long(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEEP", 5)
    book = opened(shm)
    for _ in range(50):
        _, entry = book.receive(signal(), NOW)
        book.end(entry, End(good=True, state="Running"), NOW)
        book.sent(entry, entry.correlations[0])
        assert len((shm / "commands.json").read_bytes().splitlines()) <= 7
    assert [entry.key for entry in opened(shm).entries.values()] == [entry.key for entry in book.entries.values()]


@pytest.mark.parametrize("left", [1, 20, 100])
def test_a_line_that_was_torn_by_a_crash_was_never_there(shm: Path, left: int) -> None:
    book = opened(shm)
    first = signal()
    _, entry = book.receive(first, NOW)
    path = shm / "commands.json"
    whole = path.stat().st_size
    book.end(entry, End(good=True, state="Running"), NOW)
    data = path.read_bytes()
    path.write_bytes(data[: whole + left])
    again = opened(shm)
    assert [one.key for one in again.open()] == [first.idempotency_key]
    again.receive(signal(), NOW)  # what is written next does not stand behind half a line
    assert len(opened(shm).open()) == 2


def test_a_line_that_is_broken_in_the_middle_is_told(shm: Path) -> None:
    book = opened(shm)
    for _ in range(3):
        book.receive(signal(), NOW)
    path = shm / "commands.json"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(Damaged):
        opened(shm)


def test_a_ledger_that_cannot_be_read_is_kept_and_told(shm: Path) -> None:
    (shm / "commands.json").write_text("[")
    with pytest.raises(Damaged, match=r"commands\.json cannot be read"):
        opened(shm)
    assert (shm / "commands.json").read_text() == "["
