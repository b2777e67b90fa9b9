"""The contract of the Runner port, and guarantees of runners in a separate process.

Adapters: inline, process. tests/execution covers steps, tests/flows/test_runners.py whole workers.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.errors import ClaimLost
from farro.execution.runner import Runner, Work
from farro.execution.runners import hand_off, runner_slots
from farro.execution.runners import process as process_runner
from farro.execution.runners.inline import InlineRunner
from farro.execution.runners.process import ProcessRunner
from farro.execution.runners.runner_slots import RunnerSlots
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.host import process_table
from farro.host.clock import SystemClock
from farro.host.process_limits import ProcessLimits
from farro.jobs.outcomes import Failed, Outcome, Released, Succeeded
from support import eventually

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
NAMES = ("say", "segfault", "leave", "killed", "hang", "fill", "spin", "talk", "busy", "reads")


class Bench:
    """A folder for one attempt, and a runner of each kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.root = folder / "root"
        (self.root / "jobs").mkdir(parents=True)
        self.attempt = folder / "0001"
        self.attempt.mkdir()
        (folder / "crashing_tools.py").write_text(textwrap.dedent(TOOLS))
        self.clock = SystemClock()
        self.stop = Stop(self.clock)
        self.marker = f"job-1/0001@{folder}"
        self.on_tick: Callable[[], None] = lambda: None

    def runner(self, *, limit: int = 4, **limits: Any) -> Runner[Any]:
        tools = {name: f"crashing_tools:{name}" for name in NAMES}
        if self.kind == "inline":
            return InlineRunner(tools=Tools(tools), clock=self.clock, tick_every_s=0.05)
        return ProcessRunner(
            tools=tools,
            environ=os.environ,
            places=RunnerSlots(str(self.root), limit),
            limits=ProcessLimits(**limits),
            clock=self.clock,
            tick_every_s=0.05,
        )

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


@pytest.fixture(params=["inline", "process"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from made(tmp_path, request.param, monkeypatch)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from made(tmp_path, "process", monkeypatch)


def made(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path, kind)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("crashing_tools", None)
    yield bench
    left = bench.living()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    bench.stop.close()
    assert left == []


def shell(script: str, id: str = "a") -> dict[str, Any]:  # noqa: A002 - the field's name
    return {"id": id, "command": "sh", "args": ["-c", script]}


def tool(name: str, *args: str) -> dict[str, Any]:
    return {"id": "a", "tool": name, "command": "x", "args": list(args)}


ENDLESS = "setsid sleep 100000 & touch started; exec sleep 100000"


def test_a_successful_plan_returns_its_report(bench: Bench) -> None:
    came = bench.run(shell("echo hi; pwd"), {"id": "b", "command": "cat", "input_from_step": "a"})
    assert isinstance(came, Succeeded)
    assert (came.report.result["job_id"], came.report.result["success"]) == ("job-1", True)
    assert came.report.markdown.startswith("# Succeeded")
    assert set(came.report.files) == {"steps/a/stdout", "steps/a/stderr", "steps/b/stdout", "steps/b/stderr"}
    assert bench.said("b").decode() == f"hi\n{bench.root}\n"
    assert not (bench.attempt / hand_off.OUTCOME).exists()


def test_a_step_that_fails_is_a_failed_outcome(bench: Bench) -> None:
    came = bench.run(shell("echo no >&2; exit 3"), shell("touch ran", "b"))
    assert isinstance(came, Failed)
    assert (came.error.category, came.error.message, came.retryable) == ("step_failed", "step a: exit code 3", False)
    assert not bench.ran("ran")()


def test_a_bad_prompt_is_a_failed_outcome(bench: Bench) -> None:
    came = bench.run({"id": "a"})
    assert isinstance(came, Failed)
    assert came.error.category == "bad_prompt"


def test_steps_see_the_environment_of_the_work(bench: Bench) -> None:
    bench.run({"id": "a", "command": "env"})
    said = dict(line.split("=", 1) for line in bench.said("a").decode().splitlines())
    assert (said["FARRO_JOB"], said["FARRO_ROOT"], said["FARRO_CLAIM"]) == ("job-1", str(bench.root), bench.marker)
    assert said["FARRO_AGENT"] == "worker.0.1"
    assert "HOME" not in said  # a variable of the runner itself, which its steps do not get


def test_python_tools_are_called(bench: Bench) -> None:
    assert isinstance(bench.run(tool("say")), Succeeded)
    assert bench.said("a") == b"said to the step"


def test_a_failed_step_reports_whether_a_retry_may_help(bench: Bench) -> None:
    outcome = bench.run(tool("busy"))
    assert isinstance(outcome, Failed)
    assert (outcome.error.category, outcome.retryable, outcome.retry_after_s) == ("busy", True, 30)


def test_no_process_outlives_the_wait(bench: Bench) -> None:
    assert isinstance(bench.run(shell("setsid sleep 100000 & (setsid sleep 100000 &)")), Succeeded)
    assert bench.living() == []


def test_a_job_that_was_taken_away_is_ended_at_once(bench: Bench) -> None:
    def taken() -> None:
        if bench.ran()():
            raise ClaimLost("taken")

    bench.on_tick = taken
    with pytest.raises(ClaimLost):
        bench.run(shell(f"trap '' TERM; {ENDLESS}"))
    assert bench.living() == []


def test_a_stop_releases_the_work(bench: Bench) -> None:
    bench.on_tick = lambda: bench.stop.request(0.0) if bench.ran()() else None
    came = bench.run(shell("true"), shell(ENDLESS, "b"))
    assert came == Released(note="the worker was stopped after 1 of 2 steps")
    assert bench.living() == []


def test_a_step_that_ends_in_the_grace_of_a_stop_counts(bench: Bench) -> None:
    def stop() -> None:
        if bench.ran()() and not bench.stop.requested:
            bench.stop.request(60.0)
            (bench.root / "go").touch()

    bench.on_tick = stop
    assert isinstance(bench.run(shell("touch started; while [ ! -e go ]; do sleep 0.02; done")), Succeeded)


def test_a_second_stop_shortens_the_first(bench: Bench) -> None:
    def stop() -> None:
        if bench.ran()():
            bench.stop.request(0.0 if bench.stop.requested else 600.0)

    bench.on_tick = stop
    assert isinstance(bench.run(shell(ENDLESS)), Released)


def test_terminate_ends_a_run_from_another_thread(bench: Bench) -> None:
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


# --- runners in a separate process -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crash", "how"),
    [
        (tool("segfault"), "signal 11 (SIGSEGV)"),
        (tool("leave", "7"), "exit code 7"),
        (tool("leave", "0"), "exit code 0"),
        (tool("killed"), "signal 9 (SIGKILL)"),
    ],
    ids=["segfault", "exit-7", "exit-0", "SIGKILL"],
)
def test_every_death_of_a_runner_is_an_outcome(process: Bench, crash: dict[str, Any], how: str) -> None:
    came = process.run(shell("setsid sleep 100000 &", "before"), {**crash, "id": "crash"})
    assert isinstance(came, Failed)
    assert (came.error.category, came.retryable) == ("runner_died", True)
    assert how in came.error.message
    assert process.living() == []
    assert runner_slots.records(str(process.root)) == []


def test_a_runner_that_is_killed_after_it_left_its_outcome_has_done_its_work(
    process: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = (
        "import os,sys;sys.path[:]={path!r};from farro.execution.runners import run_job;"
        "run_job.main();os.kill(os.getpid(),9)"
    )
    monkeypatch.setattr(process_runner, "_BOOT", boot)
    assert isinstance(process.run(shell("echo once >> ran")), Succeeded)
    assert (process.root / "ran").read_text() == "once\n"


def test_the_last_output_of_a_runner_is_reported(process: Bench) -> None:
    came = process.run(tool("leave", "1"))
    assert isinstance(came, Failed)
    assert came.error.message.endswith("; it said last: leaving now")
    assert "    leaving now" in came.report.markdown
    assert came.report.files == ("runner.log",)
    assert (process.attempt / "runner.log").read_text() == "leaving now\n"


def test_a_segfault_says_where_it_was(process: Bench) -> None:
    process.run(tool("segfault"))
    assert "in segfault" in (process.attempt / "runner.log").read_text()


def test_the_output_of_a_runner_is_bounded(process: Bench) -> None:
    process.run(tool("talk"))
    said = (process.attempt / "runner.log").read_bytes()
    assert len(said) < (1 << 20) + 8192
    assert b" bytes are left out here " in said
    assert said.endswith(b"the last word\n")


def test_a_quiet_runner_leaves_no_log(process: Bench) -> None:
    process.run(shell("echo hi"))
    assert not (process.attempt / "runner.log").exists()


def test_a_tool_cannot_read_the_workers_messages(process: Bench) -> None:
    process.run(tool("reads"))
    assert process.said("a") == b"nothing"


def test_stopping_the_worker_kills_a_runner_that_ignores_signals(process: Bench) -> None:
    process.on_tick = lambda: process.stop.request(0.0) if process.ran("hung")() else None
    came = process.run(tool("hang", "hung"))
    assert isinstance(came, Released)
    assert process.living() == []


@pytest.mark.parametrize(
    ("step", "limits", "category", "words"),
    [
        (shell("exec dd if=/dev/zero of=big bs=1M count=9"), {"file_size": 1 << 20}, "step_failed", "file_bytes"),
        (shell("head -c 9000000 /dev/zero"), {"file_size": 1 << 20}, "step_failed", "runners.file_bytes (1048576)"),
        (shell("while :; do :; done"), {"cpu_s": 1}, "step_failed", "runners.cpu_s (1 s)"),
        (tool("spin"), {"cpu_s": 1}, "runner_died", "runners.cpu_s (1 s)"),
        (tool("fill"), {"address_space": 512 << 20}, "step_failed", "runners.memory_bytes (536870912)"),
        (
            {"id": "a", "command": sys.executable, "args": ["-c", "x = b'1' * (1 << 30)"]},
            {"address_space": 512 << 20},
            "step_failed",
            "runners.memory_bytes (536870912)",
        ),
    ],
    ids=[
        "file",
        "file of a shell's child",
        "cpu of a step",
        "cpu of the runner",
        "memory of the runner",
        "memory of a step",
    ],
)
def test_the_limit_that_was_hit_is_named(
    process: Bench, step: dict[str, Any], limits: dict[str, int], category: str, words: str
) -> None:
    came = process.run(step, runner=process.runner(**limits))
    assert isinstance(came, Failed)
    assert came.error.category == category
    assert words in came.error.message
    assert came.report.result["error"]["message"] == came.error.message
    assert words in came.report.markdown


def test_a_worker_that_is_stopped_while_it_waits_for_a_place_releases_the_work(process: Bench) -> None:
    held = RunnerSlots(str(process.root), 1).take(tick=lambda: None, every_s=1.0, stop=process.stop)
    assert held is not None
    process.on_tick = lambda: process.stop.request(5.0)
    came = process.run(shell("touch ran"), runner=process.runner(limit=1))
    assert came == Released(note="the worker was stopped before a runner was free")
    assert not process.ran("ran")()
    held.free()


def test_a_job_that_is_taken_away_while_it_waits_for_a_place_is_not_run(process: Bench) -> None:
    def taken() -> None:
        raise ClaimLost("taken")

    held = RunnerSlots(str(process.root), 1).take(tick=lambda: None, every_s=1.0, stop=process.stop)
    assert held is not None
    process.on_tick = taken
    with pytest.raises(ClaimLost):
        process.run(shell("touch ran"), runner=process.runner(limit=1))
    held.free()


def test_a_live_runner_is_recorded_and_a_dead_one_is_not(process: Bench) -> None:
    seen: list[Any] = []

    def tick() -> None:
        seen.extend(runner_slots.records(str(process.root)))
        if seen:
            (process.root / "go").touch()

    process.on_tick = tick
    process.run(shell("while [ ! -e go ]; do sleep 0.02; done"))
    assert seen[0]["job_id"] == "job-1"
    assert seen[0]["claim"] == process.marker
    assert {"pid", "start", "boot_id", "host"} <= seen[0].keys()
    assert runner_slots.records(str(process.root)) == []
