"""Heavy plans do not harm a worker: gigabytes in pipes, a reader that stops early, a kill."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.execution.runners import runner_slots
from flows.program import Daemon, Program, marked, steps
from support import eventually, torture

MIB = 1 << 20
THROUGH = (1024 if torture() else 256) * MIB  # bytes of the pipe; a GiB in the long form
ROOM = 48 * MIB  # how much the worker may grow: far less than the piped bytes


def piped(*scripts: tuple[str, ...], **plan: Any) -> dict[str, Any]:
    """Build steps that each read the output of the step before."""
    made = steps(*scripts, **plan)
    for before, one in zip(made["steps"], made["steps"][1:], strict=False):
        one["input_from_step"] = before["step_number"]
    return made


def peak(pid: int) -> int:
    """Return the peak memory of this process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def warm(farro: Program, *options: str) -> Daemon:
    """Start a worker and run a small job of the same form, so that its imports do not count as growth."""
    worker = farro.start("worker", "--workers", "1", *options)
    farro.enqueue(piped(("echo", "x"), ("cat",), ("cksum",)), "--id", "warm")
    eventually(lambda: farro.status("warm") == "succeeded", "the small job does not end")
    return worker


def test_a_gibibyte_goes_through_a_pipe_of_three_steps_and_the_workers_memory_stays_flat(
    farro: Program, figure: Callable[..., None]
) -> None:
    """256 MiB in the short form."""
    worker = warm(farro)
    before = peak(worker.pid)
    farro.enqueue(piped(("head", "-c", str(THROUGH), "/dev/zero"), ("cat",), ("wc", "-c")), "--id", "big")
    eventually(lambda: farro.status("big") in ("succeeded", "failed"), "the big job does not end")
    grown = peak(worker.pid) - before
    folder = farro.folder("big") / "attempts/0001/steps"
    assert (folder / "3/stdout").read_text().strip() == str(THROUGH)
    assert (folder / "2/stdout").stat().st_size == THROUGH
    assert grown < ROOM, f"the worker grew by {grown >> 20} MiB"
    figure(f"memory of a worker with {THROUGH >> 20} MiB through a pipe, grown by", round(grown / MIB, 1), "MiB")
    assert worker.end().code == 0


def test_reader_that_stops_early_does_not_fail_its_producer(farro: Program) -> None:
    """`yes | head` with a `yes` that ends: its output is a file, so it gets no signal when the reader ends."""
    farro.enqueue(piped(("sh", "-c", "yes | head -c 20000000"), ("head", "-n", "1")), "--id", "early")
    farro.worked()
    assert farro.status("early") == "succeeded"
    assert (farro.folder("early") / "attempts/0001/steps/2/stdout").read_text() == "y\n"


STUBBORN = 'trap "" TERM; setsid sh -c \'trap "" TERM; sleep 100000\' & touch started-$0; while :; do sleep 1000; done'


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_two_seconds_after_a_kill_no_process_of_that_job_lives(
    farro: Program, figure: Callable[..., None], runner: str
) -> None:
    """Run two parallel steps that ignore SIGTERM, each with an escaped process."""
    worker = warm(farro, "--runner", runner)
    farro.enqueue(steps(("sh", "-c", STUBBORN, "1"), ("sh", "-c", STUBBORN, "2"), parallel=2), "--id", "long")
    for number in (1, 2):
        eventually((farro.path / f"started-{number}").exists, "a step does not start")
    eventually(lambda: len(marked(farro.path)) >= 6, "not every process of the steps is seen")
    farro.run("kill", "long", code=0)
    killed_s = time.monotonic()
    while marked(farro.path) and time.monotonic() - killed_s < 10:
        time.sleep(0.02)
    took_s = time.monotonic() - killed_s
    figure(f"no process of a killed job lives, runner {runner}, after", round(took_s, 3), "s")
    # The promise is a time, so this one wall-clock assertion is needed.
    assert took_s < 2.0, f"processes of the job lived {took_s:.1f} s after its kill"
    assert farro.status("long") == "killed"
    assert worker.process.poll() is None
    eventually(lambda: runner_slots.records(str(farro.path)) == [], "its slot is still taken")
    assert worker.end().code == 0


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_yes_and_head_as_two_steps_of_a_job_succeed(farro: Program, runner: str) -> None:
    config = farro.path / "agents-config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "runners": {"kind": runner, "ahead_bytes": 1 << 20}})
    )
    farro.enqueue(piped(("yes",), ("head", "-n", "1")), "--id", "endless")
    farro.worked()
    assert farro.status("endless") == "succeeded"
    assert (farro.folder("endless") / "attempts/0001/steps/2/stdout").read_bytes() == b"y\n"
