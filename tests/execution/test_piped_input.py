"""Who says without end is read along by one who has enough: `yes | head` as two steps."""

from __future__ import annotations

import os
import time

import pytest

from execution.bench import Bench, shell, step
from farro.execution.tools import Call, Tools
from support import eventually

AHEAD = 1 << 20


def test_yes_and_head_as_two_steps_succeed(bench: Bench) -> None:
    result = bench.run(step(1, "yes"), step(2, "head", "-n", "2", input_from_step=1), ahead_bytes=AHEAD)
    assert result.success, result.error
    first, second = result.step_results
    assert second.stdout == "y\ny\n"
    assert (first.id, first.success) == ("1", True)
    assert len(bench.bytes_of(1)) <= AHEAD  # what nobody asked for is not kept
    assert bench.living() == []


def test_three_of_them_succeed(bench: Bench) -> None:
    result = bench.run(
        step(1, "yes"),
        step(2, "cat", input_from_step=1),
        step(3, "head", "-n", "1", input_from_step=2),
        ahead_bytes=AHEAD,
    )
    assert result.success, result.error
    assert [one.id for one in result.step_results] == ["1", "2", "3"]
    assert result.step_results[-1].stdout == "y\n"


def test_one_that_ends_is_read_to_its_end(bench: Bench) -> None:
    """It goes on until its reader has begun, and then a little: the reader gets every byte, in order."""
    begun = bench.work / "begun"
    says = f"seq 300000; while [ ! -e {begun} ]; do sleep 0.01; done; seq 300001 400000"
    reads = f"touch {begun}; cat"
    result = bench.run(shell(1, says), shell(2, reads, input_from_step=1), ahead_bytes=AHEAD)
    assert result.success, result.error
    whole = "".join(f"{number}\n" for number in range(1, 400001)).encode()
    assert bench.bytes_of(1) == whole
    assert bench.bytes_of(2) == whole


def test_when_it_fails_its_reader_is_ended_and_the_plan_failed_because_of_it(bench: Bench) -> None:
    begun = bench.work / "begun"
    says = f"seq 300000; while [ ! -e {begun} ]; do sleep 0.01; done; exit 7"
    result = bench.run(
        shell(1, says, retries=3), shell(2, f"touch {begun}; cat; sleep 1000", input_from_step=1), ahead_bytes=AHEAD
    )
    assert result.error is not None
    assert result.error.message == "step 1: exit code 7"
    assert {one.id: one.error for one in result.step_results} == {
        "1": "exit code 7",
        "2": "its input, step 1, failed",
    }
    assert bench.living() == []


def test_when_its_reader_fails_it_is_ended_and_the_reader_is_to_blame(bench: Bench) -> None:
    result = bench.run(step(1, "yes"), shell(2, "head -n 1; exit 3", input_from_step=1), ahead_bytes=AHEAD)
    assert result.error is not None
    assert result.error.message == "step 2: exit code 3"
    assert [one.id for one in result.step_results] == ["2", "1"]
    assert bench.living() == []


@pytest.mark.parametrize("reader", ["./no-such-command", "./plain"])
def test_when_its_reader_cannot_be_started_it_is_ended_and_nothing_stays_open(bench: Bench, reader: str) -> None:
    (bench.work / "plain").touch(mode=0o755)
    before = len(os.listdir("/proc/self/fd"))
    result = bench.run(step(1, "yes", timeout=5), step(2, reader, input_from_step=1), ahead_bytes=AHEAD)
    assert result.error is not None
    assert result.error.message.startswith("step 2: ")
    assert [(one.id, one.timed_out) for one in result.step_results] == [("2", False), ("1", False)]
    assert result.step_results[1].error == "ended, because step 2, which read it, failed"
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "the pipe stays open")
    assert bench.living() == []


def test_a_reader_that_failed_is_tried_again_from_the_beginning(bench: Bench) -> None:
    once = bench.work / "once"
    reads = f"head -n 1; [ -e {once} ] || {{ touch {once}; exit 3; }}"
    result = bench.run(step(1, "yes"), shell(2, reads, input_from_step=1, retries=1), ahead_bytes=AHEAD)
    assert result.success, result.error
    assert (result.step_results[1].stdout, result.step_results[1].attempts) == ("y\n", 2)


def test_a_function_reads_along(bench: Bench) -> None:
    def first(call: Call) -> None:
        call.stdout.write(call.stdin.readline())

    reader = {"step_number": 2, "tool": "first", "command": "first", "input_from_step": 1}
    result = bench.run(step(1, "yes"), reader, tools=Tools({"first": first}), ahead_bytes=AHEAD)
    assert result.success, result.error
    assert result.step_results[1].stdout == "y\n"


def test_a_step_that_says_less_is_over_before_it_is_read(bench: Bench) -> None:
    over = bench.work / "over"
    says = f"seq 1000; sleep 0.6; touch {over}"
    result = bench.run(shell(1, says), shell(2, f"test -e {over}", input_from_step=1), ahead_bytes=AHEAD)
    assert result.success, result.error


def test_a_timeout_is_no_end_of_reading(bench: Bench) -> None:
    result = bench.run(step(1, "yes", timeout=1.0), shell(2, "cat > /dev/null", input_from_step=1), ahead_bytes=AHEAD)
    assert result.error is not None
    assert result.error.category == "timeout"
    assert bench.living() == []


def test_two_readers_wait_until_it_is_over(bench: Bench) -> None:
    began_s = time.monotonic()
    result = bench.run(
        step(1, "yes", timeout=0.6),
        step(2, "head", "-n", "1", input_from_step=1),
        step(3, "head", "-n", "1", input_from_step=1),
        ahead_bytes=AHEAD,
        parallel=3,
    )
    assert result.error is not None, f"after {time.monotonic() - began_s:.1f} s"
    assert [one.id for one in result.step_results] == ["1"]


def test_a_failure_in_the_moment_in_which_the_reader_has_enough_is_a_failure(bench: Bench) -> None:
    """The reader ends only when the other has failed: its success is none, for its input was none."""
    failed = bench.work / "failed"
    says = f"seq 300000; while [ ! -e {failed}.begun ]; do sleep 0.01; done; touch {failed}; exit 7"
    reads = f"touch {failed}.begun; while [ ! -e {failed} ]; do sleep 0.001; done; sleep 0.05"
    result = bench.run(shell(1, says), shell(2, reads, input_from_step=1), ahead_bytes=AHEAD)
    assert not any(one.success for one in result.step_results)
    assert result.error is not None
    assert result.error.message == "step 1: exit code 7"
