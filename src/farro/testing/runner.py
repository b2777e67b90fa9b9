"""The contract of the Runner port. The fixture `bench` yields a RunnerBench with your runner."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from farro.errors import ClaimLost
from farro.execution.runner import Runner, Work
from farro.execution.runners import hand_off
from farro.execution.stop import Stop
from farro.host import process_table, process_tree
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Failed, Outcome, Released, Succeeded
from farro.testing.waiting import eventually

TOOLS = """
    import ctypes, os, signal, sys, time
    from farro.execution.tools import StepFailure

    def say(call):
        print("said to the runner")
        call.stdout.write(b"said to the step")

    def segfault(call):
        ctypes.string_at(0)

    def leave(call):
        print("leaving now")  # and no flush
        os._exit(int(call.args[0]))

    def killed(call):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(call):
        open(call.args[0], "w").close()
        time.sleep(1000)

    def fill(call):
        held = []
        while True:
            held.append(bytearray(16 << 20))

    def spin(call):
        while True:
            pass

    def talk(call):
        for _ in range(300):
            print("x" * 9999, flush=True)
        print("the last word", flush=True)
        os._exit(1)

    def busy(call):
        raise StepFailure("busy", "come back later", retryable=True, retry_after_s=30)

    def reads(call):
        call.stdout.write(sys.stdin.read().encode() or b"nothing")
"""

TOOL_NAMES = ("say", "segfault", "leave", "killed", "hang", "fill", "spin", "talk", "busy", "reads")


class RunnerBench:
    """A folder for one attempt, and the runner under test. Inherit from it and override `runner`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        (self.root / "jobs").mkdir(parents=True)
        self.attempt = folder / "0001"
        self.attempt.mkdir()
        (folder / "crashing_tools.py").write_text(textwrap.dedent(TOOLS))
        self.clock = SystemClock()
        self.stop = Stop(self.clock)
        self.marker = f"job-1/0001@{folder}"
        self.on_tick: Callable[[], None] = lambda: None

    def runner(self) -> Runner[Any]:
        """Return a runner that offers TOOL_NAMES, each as `crashing_tools:NAME`, and ticks every 0.05 s."""
        raise NotImplementedError

    @contextlib.contextmanager
    def in_use(self, patch: pytest.MonkeyPatch) -> Iterator[Self]:
        """Let the tools be found; afterwards end what the runner left, and fail if there was any."""
        patch.setattr(sys, "path", [str(self.folder), *sys.path])
        sys.modules.pop("crashing_tools", None)
        yield self
        left = self.living()
        process_tree.end_marked(f"FARRO_CLAIM={self.marker}")
        self.stop.close()
        assert left == []

    def work(self, *steps: dict[str, Any], **plan: Any) -> Work:
        return Work(
            job_id="job-1",
            prompt={"plan_id": "p", "steps": list(steps), **plan},
            folder=str(self.attempt),
            marker=self.marker,
            env={"PATH": os.environ["PATH"], "FARRO_AGENT": "worker.0.1"},
            cwd=str(self.root),
            root=str(self.root),
            step_timeout_s=100.0,
        )

    def run(self, *steps: dict[str, Any], runner: Runner[Any] | None = None, **plan: Any) -> Outcome:
        runner = runner or self.runner()
        run = runner.spawn(self.work(*steps, **plan), tick=self.tick, stop=self.stop)
        return runner.wait(run, tick=self.tick, stop=self.stop)

    def tick(self) -> None:
        self.on_tick()

    def living(self) -> list[int]:
        mark = f"FARRO_CLAIM={self.marker}"
        own = os.getpid()
        return [
            e.pid for e in process_table.entries() if e.alive and e.pid != own and process_table.carries(e.pid, mark)
        ]

    def said(self, step: str) -> bytes:
        return (self.attempt / "steps" / step / "stdout").read_bytes()

    def ran(self, name: str = "started") -> Callable[[], bool]:
        return (self.root / name).exists


def shell(script: str, id: str = "a") -> dict[str, Any]:  # noqa: A002 - the field's name
    return {"id": id, "command": "sh", "args": ["-c", script]}


def tool(name: str, *args: str) -> dict[str, Any]:
    return {"id": "a", "tool": name, "command": "x", "args": list(args)}


ENDLESS = "setsid sleep 100000 & touch started; exec sleep 100000"


def test_a_successful_plan_returns_its_report(bench: RunnerBench) -> None:
    came = bench.run(shell("echo hi; pwd"), {"id": "b", "command": "cat", "input_from_step": "a"})
    assert isinstance(came, Succeeded)
    assert (came.report.result["job_id"], came.report.result["success"]) == ("job-1", True)
    assert came.report.markdown.startswith("# Succeeded")
    assert set(came.report.files) == {"steps/a/stdout", "steps/a/stderr", "steps/b/stdout", "steps/b/stderr"}
    assert bench.said("b").decode() == f"hi\n{bench.root}\n"
    assert not (bench.attempt / hand_off.OUTCOME).exists()


def test_a_step_that_fails_is_a_failed_outcome(bench: RunnerBench) -> None:
    came = bench.run(shell("echo no >&2; exit 3"), shell("touch ran", "b"))
    assert isinstance(came, Failed)
    assert (came.error.category, came.error.message, came.retryable) == ("step_failed", "step a: exit code 3", False)
    assert not bench.ran("ran")()


def test_a_bad_prompt_is_a_failed_outcome(bench: RunnerBench) -> None:
    came = bench.run({"id": "a"})
    assert isinstance(came, Failed)
    assert came.error.category == "bad_prompt"


def test_steps_see_the_environment_of_the_work(bench: RunnerBench) -> None:
    bench.run({"id": "a", "command": "env"})
    said = dict(line.split("=", 1) for line in bench.said("a").decode().splitlines())
    assert (said["FARRO_JOB"], said["FARRO_ROOT"], said["FARRO_CLAIM"]) == ("job-1", str(bench.root), bench.marker)
    assert said["FARRO_AGENT"] == "worker.0.1"
    assert "HOME" not in said  # a variable of the runner itself, which its steps do not get


def test_python_tools_are_called(bench: RunnerBench) -> None:
    assert isinstance(bench.run(tool("say")), Succeeded)
    assert bench.said("a") == b"said to the step"


def test_a_failed_step_reports_whether_a_retry_may_help(bench: RunnerBench) -> None:
    outcome = bench.run(tool("busy"))
    assert isinstance(outcome, Failed)
    assert (outcome.error.category, outcome.retryable, outcome.retry_after_s) == ("busy", True, 30)


def test_no_process_outlives_the_wait(bench: RunnerBench) -> None:
    assert isinstance(bench.run(shell("setsid sleep 100000 & (setsid sleep 100000 &)")), Succeeded)
    assert bench.living() == []


def test_a_job_that_was_taken_away_is_ended_at_once(bench: RunnerBench) -> None:
    def taken() -> None:
        if bench.ran()():
            raise ClaimLost("taken")

    bench.on_tick = taken
    with pytest.raises(ClaimLost):
        bench.run(shell(f"trap '' TERM; {ENDLESS}"))
    assert bench.living() == []


def test_a_stop_releases_the_work(bench: RunnerBench) -> None:
    bench.on_tick = lambda: bench.stop.request(0.0) if bench.ran()() else None
    came = bench.run(shell("true"), shell(ENDLESS, "b"))
    assert came == Released(note="the worker was stopped after 1 of 2 steps")
    assert bench.living() == []


def test_a_step_that_ends_in_the_grace_of_a_stop_counts(bench: RunnerBench) -> None:
    def stop() -> None:
        if bench.ran()() and not bench.stop.requested:
            bench.stop.request(60.0)
            (bench.root / "go").touch()

    bench.on_tick = stop
    assert isinstance(bench.run(shell("touch started; while [ ! -e go ]; do sleep 0.02; done")), Succeeded)


def test_a_second_stop_shortens_the_first(bench: RunnerBench) -> None:
    def stop() -> None:
        if bench.ran()():
            bench.stop.request(0.0 if bench.stop.requested else 600.0)

    bench.on_tick = stop
    assert isinstance(bench.run(shell(ENDLESS)), Released)


def test_terminate_ends_a_run_from_another_thread(bench: RunnerBench) -> None:
    runner = bench.runner()
    run = runner.spawn(bench.work(shell(f"trap '' TERM; {ENDLESS}")), tick=bench.tick, stop=bench.stop)
    assert runner.is_alive(run)

    def end() -> None:
        eventually(bench.ran(), "the step did not start")
        runner.terminate(run)

    thread = threading.Thread(target=end)
    thread.start()
    came = runner.wait(run, tick=bench.tick, stop=bench.stop)
    thread.join()
    assert isinstance(came, Failed)
    assert (came.error.category, came.retryable) == ("runner_died", True)
    assert not runner.is_alive(run)
    assert bench.living() == []
