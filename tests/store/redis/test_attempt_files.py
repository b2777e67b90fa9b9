"""Check which files of an attempt the server keeps."""

from __future__ import annotations

from pathlib import Path

from farro.jobs.outcomes import Report
from farro.store.redis.attempt_files import AttemptFiles


def test_answers_of_agents_and_what_their_programs_said_are_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    attempt = tmp_path / "one" / "attempts" / "0001"
    calls = attempt / "steps" / "1" / "calls"
    for folder in (tmp_path / "one" / ".snapshot", attempt / ".snapshot", calls):
        folder.mkdir(parents=True)
    short, long = b"\x1f\x8b\x00\xff", b"\x00" * 5000
    for name, data in {"1.json": b"{}", "1.exchanges.gz": short, "2.exchanges.gz": long, "left.tmp": b"x"}.items():
        (calls / name).write_bytes(data)
    kept = AttemptFiles(str(attempt), inline_bytes=1024, shared_files=None).collect(
        Report(result={"success": True}, markdown="done"), good=True
    )
    assert kept.files["steps/1/calls/1.exchanges.gz"] == short
    assert sorted(name for name in kept.files if "calls" in name) == [
        "steps/1/calls/1.exchanges.gz",
        "steps/1/calls/1.json",
    ]
    assert kept.cut == {}
