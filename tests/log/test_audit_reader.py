"""Read the lines of one job from all files of the audit log, between any other lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

from farro.log import audit_reader
from farro.log.audit_reader import trail


def line(job_id: str, event: str, number: int = 0) -> bytes:
    return json.dumps(
        {"ts": f"2026-11-15T12:00:{number:02d}.000Z", "event": event, "actor": "w", "job_id": job_id}
    ).encode()


def test_a_jobs_lines_are_read_oldest_first_from_all_files(tmp_path: Path) -> None:
    (tmp_path / "audit.log.2").write_bytes(line("j", "enqueued") + b"\n" + line("k", "enqueued") + b"\n")
    (tmp_path / "audit.log.1").write_bytes(line("j", "claimed") + b"\n")
    (tmp_path / "audit.log").write_bytes(line("k", "claimed") + b"\n" + line("j", "committed") + b"\n")
    told = trail(str(tmp_path), "j")
    assert [item["event"] for item in told.lines] == ["enqueued", "claimed", "committed"]
    assert told.whole


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    torn = line("j", "torn")[:-9]
    noise = [b'{"note": "j", "job_id": 7}', b'["j", "job_id"]', b'\xff\xfe"j"', b"", torn]
    (tmp_path / "audit.log").write_bytes(b"\n".join([*noise, line("j", "good"), line("jj", "other"), torn]))
    assert [item["event"] for item in trail(str(tmp_path), "j").lines] == ["good"]


def test_a_line_across_two_blocks_is_whole(tmp_path: Path) -> None:
    many = b"\n".join(line("k", "x") for _ in range(30_000))
    assert len(many) > audit_reader.BLOCK
    (tmp_path / "audit.log").write_bytes(b"\n".join([line("j", "first"), many, line("j", "last")]))
    assert [item["event"] for item in trail(str(tmp_path), "j").lines] == ["first", "last"]


def test_lines_older_than_the_job_are_not_read_and_the_work_is_bounded(tmp_path: Path) -> None:
    for name, event in (("audit.log.1", "old"), ("audit.log", "new")):
        (tmp_path / name).write_bytes(line("j", event) + b"\n")
    os.utime(tmp_path / "audit.log.1", (1000, 1000))
    assert [item["event"] for item in trail(str(tmp_path), "j", since_s=2000).lines] == ["new"]
    size = (tmp_path / "audit.log").stat().st_size
    bounded = trail(str(tmp_path), "j", limit=size)
    assert [item["event"] for item in bounded.lines] == ["new"]
    assert not bounded.whole


def test_no_log_is_an_empty_trail(tmp_path: Path) -> None:
    assert trail(str(tmp_path / "none"), "j").lines == ()
