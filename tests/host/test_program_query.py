"""Query a program: the size and the time of its answer are bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from farro.host import process_table
from farro.host.programs import ProgramAnswer, ask


def lives(pid: int) -> bool:
    entry = process_table.entry(pid)
    return entry is not None and entry.alive


def asked(script: str, folder: Path, *, timeout_s: float = 20.0, limit: int = 1000) -> ProgramAnswer:
    return ask(["sh", "-c", script], timeout_s=timeout_s, limit=limit, cwd=str(folder), env=os.environ)


def test_the_whole_answer_comes_back(tmp_path: Path) -> None:
    assert asked("printf one; printf noise >&2; printf two; cat", tmp_path) == ProgramAnswer(stdout=b"onetwo", code=0)


@pytest.mark.parametrize(
    ("script", "trouble"),
    [("exit 3", "ended with exit code 3"), ("kill -9 $$", "ended with signal 9"), ("yes", "said more than 1000 bytes")],
)
def test_a_bad_answer_is_reported_with_its_reason(tmp_path: Path, script: str, trouble: str) -> None:
    assert asked(script, tmp_path).trouble == trouble


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    said = asked("sleep 1000 & echo $! > child; sleep 1000", tmp_path, timeout_s=0.5)
    assert said.trouble == "gave no answer within 0.5 s"
    child = int((tmp_path / "child").read_text())
    until_s = time.monotonic() + 60
    while lives(child):  # killed already: the kernel may take a moment to end it
        assert time.monotonic() < until_s, "the child is still running"
        time.sleep(0.01)


def test_processes_left_by_a_program_are_not_awaited(tmp_path: Path) -> None:
    assert asked("sleep 1000 & echo {}", tmp_path).stdout == b"{}\n"


def test_a_program_that_closes_its_output_is_still_awaited(tmp_path: Path) -> None:
    assert asked("echo {}; exec >&-; sleep 0.1; exit 5", tmp_path).trouble == "ended with exit code 5"


def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    said = ask([str(tmp_path / "none")], timeout_s=1, limit=10, cwd=str(tmp_path), env={})
    assert said.trouble == "could not be started: No such file or directory"
