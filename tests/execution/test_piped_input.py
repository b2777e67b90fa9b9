"""Stream the output of an endless step into a reader that stops early: `yes | head` as two steps."""

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
    assert len(bench.bytes_of(1)) <= AHEAD  # output that the reader did not read is not kept
    assert bench.living() == []


def test_three_streaming_steps_succeed(bench: Bench) -> None:
    result = bench.run(
        step(1, "yes"),
        step(2, "cat", input_from_step=1),
        step(3, "head", "-n", "1", input_from_step=2),
        ahead_bytes=AHEAD,
    )
    assert result.success, result.error
    assert [one.id for one in result.step_results] == ["1", "2", "3"]
    assert result.step_results[-1].stdout == "y\n"


def test_a_reader_gets_all_output_of_a_writer_that_ends(bench: Bench) -> None:
    """The writer continues after its reader has begun: the reader gets every byte, in order."""
    begun = bench.work / "begun"
    says = f"seq 300000; while [ ! -e {begun} ]; do sleep 0.01; done; seq 300001 400000"
    reads = f"touch {begun}; cat"
    result = bench.run(shell(1, says), shell(2, reads, input_from_step=1), ahead_bytes=AHEAD)
    assert result.success, result.error
    whole = "".join(f"{number}\n" for number in range(1, 400001)).encode()
    assert bench.bytes_of(1) == whole
    assert bench.bytes_of(2) == whole


def test_a_failed_writer_ends_its_reader_and_fails_the_plan(bench: Bench) -> None:
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


def test_a_failed_reader_ends_its_writer_and_fails_the_plan(bench: Bench) -> None:
    result = bench.run(step(1, "yes"), shell(2, "head -n 1; exit 3", input_from_step=1), ahead_bytes=AHEAD)
    assert result.error is not None
    assert result.error.message == "step 2: exit code 3"
    assert [one.id for one in result.step_results] == ["2", "1"]
    assert bench.living() == []


@pytest.mark.parametrize("reader", ["./no-such-command", "./plain"])
def test_a_reader_that_cannot_start_ends_its_writer_and_leaks_no_descriptor(bench: Bench, reader: str) -> None:
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


def test_a_function_reads_a_running_step(bench: Bench) -> None:
    def first(call: Call) -> None:
        call.stdout.write(call.stdin.readline())

    reader = {"step_number": 2, "tool": "first", "command": "first", "input_from_step": 1}
    result = bench.run(step(1, "yes"), reader, tools=Tools({"first": first}), ahead_bytes=AHEAD)
    assert result.success, result.error
    assert result.step_results[1].stdout == "y\n"


def test_a_step_with_little_output_ends_before_its_reader_starts(bench: Bench) -> None:
    over = bench.work / "over"
    says = f"seq 1000; sleep 0.6; touch {over}"
    result = bench.run(shell(1, says), shell(2, f"test -e {over}", input_from_step=1), ahead_bytes=AHEAD)
    assert result.success, result.error


def test_a_writer_that_times_out_fails_the_plan(bench: Bench) -> None:
    result = bench.run(step(1, "yes", timeout=1.0), shell(2, "cat > /dev/null", input_from_step=1), ahead_bytes=AHEAD)
    assert result.error is not None
    assert result.error.category == "timeout"
    assert bench.living() == []


def test_two_readers_wait_for_the_end_of_their_writer(bench: Bench) -> None:
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


def test_a_writer_that_fails_as_its_reader_stops_has_failed(bench: Bench) -> None:
    """The reader ends only after the writer failed: it does not count as a success, because its input failed."""
    failed = bench.work / "failed"
    says = f"seq 300000; while [ ! -e {failed}.begun ]; do sleep 0.01; done; touch {failed}; exit 7"
    reads = f"touch {failed}.begun; while [ ! -e {failed} ]; do sleep 0.001; done; sleep 0.05"
    result = bench.run(shell(1, says), shell(2, reads, input_from_step=1), ahead_bytes=AHEAD)
    assert not any(one.success for one in result.step_results)
    assert result.error is not None
    assert result.error.message == "step 1: exit code 7"
