"""The audit log with many writers, rotations, kills and a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crash import seams
from farro.host.clock import ManualClock, SystemClock
from farro.log import audit
from farro.log.audit import AuditLog, AuditPolicy
from support import torture

STRICT = AuditPolicy(strict=True)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def lines(folder: Path) -> list[dict[str, object]]:
    """Every line of every file, oldest first; each must be whole."""
    return [
        json.loads(line)
        for name in audit.files(str(folder))
        for line in (folder / name).read_bytes().split(b"\n")
        if line
    ]


def log(folder: Path, policy: AuditPolicy = STRICT, clock: ManualClock | None = None) -> AuditLog:
    return AuditLog(str(folder), actor="test", clock=clock or ManualClock(NOON), policy=policy)


def attempts(folder: Path) -> list[object]:
    return [line["attempt"] for line in lines(folder) if "attempt" in line]


def test_an_event_is_one_line_with_time_and_actor(tmp_path: Path) -> None:
    log(tmp_path).record("claimed", job_id="j1", role="Runner", attempt=1)
    stamp = "2026-11-15T12:00:00.000Z"
    told = {"ts": stamp, "event": "claimed", "actor": "test", "job_id": "j1", "role": "Runner", "attempt": 1}
    assert lines(tmp_path) == [told]


def test_buffered_lines_are_there_after_a_flush_and_at_exit(tmp_path: Path) -> None:
    writer = log(tmp_path, AuditPolicy(flush_s=3600))
    writer.record("enqueued", job_id="j1")
    assert not (tmp_path / "audit.log").exists()
    writer.close()
    assert len(lines(tmp_path)) == 1
    code = (
        "import sys; from farro.log.audit import *; from farro.host.clock import SystemClock\n"
        "AuditLog(sys.argv[1], actor='x', clock=SystemClock()).record('enqueued', job_id='j2')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert len(lines(tmp_path)) == 2


def test_strict_mode_syncs_each_line_and_buffered_mode_none(tmp_path: Path) -> None:
    with seams.placed(seams.Counting(only=frozenset({"write", "fsync"}))) as seam:
        writer = log(tmp_path, STRICT)
        for number in range(3):
            writer.record("claimed", attempt=number)
            assert attempts(tmp_path) == list(range(number + 1))
            assert seam.ops == ["write", "fsync"] * (number + 1)
    with seams.placed(seams.Counting(only=frozenset({"write", "fsync"}))) as seam:
        writer = log(tmp_path, AuditPolicy(flush_s=3600))
        writer.record("claimed", attempt=3)
        writer.close()
        assert seam.ops == ["write"]


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "a secret: hunter2!", "ü", "x" * 300])
def test_only_codes_get_in(tmp_path: Path, text: str) -> None:
    log(tmp_path).record("failed", job_id="j1", error=text)
    assert lines(tmp_path)[0]["error"] == "(not-a-code)"


def test_a_full_file_is_rotated_and_the_last_goes(tmp_path: Path) -> None:
    writer = log(tmp_path, AuditPolicy(strict=True, max_bytes=200, keep=3))
    for number in range(20):
        writer.record("claimed", attempt=number)
    assert audit.files(str(tmp_path)) == ["audit.log.2", "audit.log.1", "audit.log"]
    kept = attempts(tmp_path)
    assert kept == list(range(20))[-len(kept) :]
    assert all((tmp_path / name).stat().st_size <= 200 for name in audit.files(str(tmp_path)))


def test_a_new_utc_day_starts_a_fresh_file(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 11, 15, 23, 59, 59, tzinfo=UTC))
    log(tmp_path, STRICT, clock).record("claimed", attempt=1)
    clock.advance(2)
    log(tmp_path, STRICT, clock).record("claimed", attempt=2)
    log(tmp_path, STRICT, clock).record("claimed", attempt=3)
    assert [json.loads(line)["attempt"] for line in (tmp_path / "audit.log").read_text().splitlines()] == [2, 3]
    assert [json.loads(line)["attempt"] for line in (tmp_path / "audit.log.1").read_text().splitlines()] == [1]


def test_one_writer_starts_a_fresh_file_at_each_midnight(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 11, 15, 23, 59, 59, tzinfo=UTC))
    writer = log(tmp_path, STRICT, clock)
    for day in range(3):
        writer.record("claimed", attempt=2 * day)
        writer.record("claimed", attempt=2 * day + 1)
        clock.advance(86_400)
    found = [(tmp_path / name).read_text().splitlines() for name in audit.files(str(tmp_path))]
    assert [[json.loads(line)["attempt"] for line in file] for file in found] == [[0, 1], [2, 3], [4, 5]]


def test_the_quota_deletes_the_oldest_and_says_so(tmp_path: Path) -> None:
    writer = log(tmp_path, AuditPolicy(strict=True, max_bytes=300, keep=10, quota_bytes=900))
    for number in range(60):
        writer.record("claimed", attempt=number)
    deleted = [line for line in lines(tmp_path) if line["event"] == "audit_deleted"]
    assert deleted
    assert sum((tmp_path / name).stat().st_size for name in audit.files(str(tmp_path))) <= 900 + 300
    assert all(str(line["file"]).startswith("audit.log.") for line in deleted)


def test_a_torn_tail_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    log(tmp_path).record("claimed", attempt=1)
    with open(tmp_path / "audit.log", "ab") as file:
        file.write(b'{"ts": "2026-11-15T00:00:00.000Z", "event": "cl')
    log(tmp_path).record("claimed", attempt=2)
    assert attempts(tmp_path) == [1, 2]


def test_a_file_of_one_torn_line_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b"x" * 200_000)
    log(tmp_path).record("claimed", attempt=2)
    assert attempts(tmp_path) == [2]


def test_a_full_disk_is_counted_and_leaves_no_half_line(tmp_path: Path) -> None:
    """Row 28: disk fills during an audit write: the job goes on; the error is counted and surfaced."""
    writer = log(tmp_path)
    writer.record("claimed", attempt=1)
    with seams.placed(seams.Errno(1, errno.ENOSPC, after=True, only=frozenset({"write"}))):
        writer.record("claimed", attempt=2)
    assert writer.errors == 1
    assert writer.last_error is not None
    assert "No space left" in writer.last_error
    writer.record("claimed", attempt=3)
    writer.record("claimed", attempt=4)
    assert attempts(tmp_path) == [1, 3, 4]
    missed = [(line["lines"], line["since"]) for line in lines(tmp_path) if line["event"] == "audit_missed"]
    assert missed == [(1, "2026-11-15T12:00:00.000Z")]


def test_a_rotation_killed_at_any_call_loses_nothing(tmp_path: Path) -> None:
    policy = AuditPolicy(strict=True, max_bytes=200, keep=5)
    for n in range(1, 30):
        folder = tmp_path / str(n)
        folder.mkdir()
        writer = log(folder, policy)
        for number in range(4):
            writer.record("claimed", attempt=number)
        seam = seams.KillAt(n)
        try:
            with seams.placed(seam):
                writer.record("claimed", attempt=4)
        except seams.Crash:
            pass
        log(folder, policy).record("claimed", attempt=5)
        assert attempts(folder) in ([0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5]), seam
        if not seam.dead:
            return
    raise AssertionError("the rotation never ended")


def test_a_background_writer_is_one_thread_and_needs_no_flush(tmp_path: Path) -> None:
    """A kill loses at most the lines of the last `flush_s`; without new lines the thread sleeps."""
    before = threading.active_count()
    writer = AuditLog(str(tmp_path), actor="test", clock=SystemClock(), policy=AuditPolicy(flush_s=0.01))
    writer.many([])  # an idle worker's claims
    assert threading.active_count() == before
    for number in range(50):
        writer.record("claimed", attempt=number)
    assert threading.active_count() == before + 1
    _eventually(lambda: (tmp_path / "audit.log").exists() and attempts(tmp_path) == list(range(50)))
    writer.record("claimed", attempt=50)
    _eventually(lambda: attempts(tmp_path) == list(range(51)))
    assert threading.active_count() == before + 1
    writer.close()


def test_a_command_that_ends_at_once_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    clock = ManualClock(NOON)
    writer = AuditLog(str(tmp_path), actor="test", clock=clock, background=False)
    writer.record("enqueued", attempt=1)
    clock.advance(0.5)
    writer.record("enqueued", attempt=2)
    assert threading.active_count() == before
    assert not (tmp_path / "audit.log").exists()
    clock.advance(0.6)
    writer.record("enqueued", attempt=3)  # the command did not end at once: no unflushed line is older than a second
    assert attempts(tmp_path) == [1, 2, 3]
    writer.record("enqueued", attempt=4)
    writer.close()
    assert attempts(tmp_path) == [1, 2, 3, 4]


def test_a_forked_child_writes_its_own_lines_only(tmp_path: Path) -> None:
    code = (
        "import os, sys; from farro.log.audit import *; from farro.host.clock import SystemClock\n"
        "log = AuditLog(sys.argv[1], actor='x', clock=SystemClock(), policy=AuditPolicy(flush_s=3600))\n"
        "log.record('enqueued', attempt=1)\n"
        "child = os.fork()\n"
        "log.record('enqueued', attempt=3 if child else 2)\n"
        "log.flush()\n"
        "child and os.waitpid(child, 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert sorted(map(str, attempts(tmp_path))) == ["1", "2", "3"]


def test_a_starting_process_removes_a_torn_tail_and_reports_it(tmp_path: Path) -> None:
    log(tmp_path).record("claimed", attempt=1)
    with open(tmp_path / "audit.log", "ab") as file:
        file.write(b'{"ts": "2026-11')
    log(tmp_path).mend()
    assert [line["event"] for line in lines(tmp_path)] == ["claimed", "audit_repaired"]
    log(tmp_path).mend()
    assert len(lines(tmp_path)) == 2


def test_an_error_of_the_audit_log_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    writer = AuditLog(
        str(tmp_path / "missing"),
        actor="test",
        clock=ManualClock(NOON),
        policy=STRICT,
        log=lambda level, message, fields: said.append(f"{level}: {message}: {fields['why']}"),
    )
    writer.record("claimed", attempt=1)
    writer.record("claimed", attempt=2)
    assert writer.errors == 2
    assert len(said) == 1
    assert said[0].startswith("error: the audit log could not be written; jobs go on: ")


def _eventually(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


WRITER = """
import os, sys, time
from farro.log.audit import *
from farro.host.clock import SystemClock
folder, me, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
policy = AuditPolicy(max_bytes=int(sys.argv[4]), keep=1000, quota_bytes=1 << 40, flush_s=0.01, strict=me.endswith("0"))
log = AuditLog(folder, actor=me, clock=SystemClock(), policy=policy)
count = 0
while time.monotonic() < until:
    log.record("claimed", job_id=me, attempt=count)
    count += 1
    if count % 50 == 0:
        log.flush()
        os.write(1, f"{count}\\n".encode())
log.close()
os.write(1, f"{count}\\n".encode())
assert log.errors == 0, log.last_error
"""


def test_sixteen_writers_through_rotations_lose_tear_and_double_nothing(tmp_path: Path) -> None:
    """One writer is killed: its flushed lines are kept; its other lines are whole or absent."""
    seconds = 60 if torture() else 4
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), f"w{n}", str(seconds), str(seconds << 14)],
            stdout=subprocess.PIPE,
        )
        for n in range(16)
    ]
    assert writers[1].stdout is not None
    told = [writers[1].stdout.readline()]
    os.kill(writers[1].pid, signal.SIGKILL)
    flushed = {}
    for number, writer in enumerate(writers):
        out, _ = writer.communicate()
        flushed[f"w{number}"] = int((told + out.split() if number == 1 else out.split())[-1])
    assert all(writer.returncode == 0 for writer in writers if writer is not writers[1])
    found: dict[str, list[int]] = {f"w{n}": [] for n in range(16)}
    for line in lines(tmp_path):
        attempt = line["attempt"]
        assert isinstance(attempt, int)
        found[str(line["job_id"])].append(attempt)
    assert len(audit.files(str(tmp_path))) > 5
    for name, numbers in found.items():
        assert numbers == list(range(len(numbers))), f"{name}: lost, doubled or out of order"
        if name == "w1":
            assert len(numbers) >= flushed[name], f"{name}: lost what it had flushed"
        else:
            assert len(numbers) == flushed[name], f"{name}: lost"
