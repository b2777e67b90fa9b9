"""The contract of the Runner port, and guarantees of runners in a separate process.

Adapters: inline, process. tests/execution covers steps, tests/flows/test_runners.py whole workers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.errors import ClaimLost
from farro.execution.runner import Runner
from farro.execution.runners import process as process_runner
from farro.execution.runners import runner_slots
from farro.execution.runners.inline import InlineRunner
from farro.execution.runners.process import ProcessRunner
from farro.execution.runners.runner_slots import RunnerSlots
from farro.execution.tools import Tools
from farro.host import process_tree
from farro.host.process_limits import ProcessLimits
from farro.host.process_template import ProcessTemplate
from farro.jobs.outcomes import Failed, Released, Succeeded
from farro.testing.runner import *  # noqa: F403 - the suite
from farro.testing.runner import TOOL_NAMES, RunnerBench, shell, tool
from farro.testing.waiting import eventually


class Bench(RunnerBench):
    """A runner of each kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.kind = kind

    def runner(self, *, limit: int = 4, **limits: Any) -> Runner[Any]:
        tools = {name: f"crashing_tools:{name}" for name in TOOL_NAMES}
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


@pytest.fixture
def adopting() -> Iterator[None]:
    """Adopt orphans during one test, as a worker does."""
    before, _ = process_tree._adopting, process_tree.adopt_orphans()
    yield
    eventually(lambda: not process_tree.end_adopted(), "an orphan lives")
    ctypes.CDLL(None).prctl(process_tree._PR_SET_CHILD_SUBREAPER, int(before), 0, 0, 0)
    process_tree._adopting = before


def in_use(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    if request.param == "template":
        request.getfixturevalue("adopting")
    else:
        monkeypatch.setattr(ProcessTemplate, "fork", lambda self, wanted: None)
    with Bench(tmp_path, request.param).in_use(monkeypatch) as made:
        yield made


@pytest.fixture(params=["inline", "new interpreter", "template"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from in_use(request, tmp_path, monkeypatch)


@pytest.fixture(params=["new interpreter", "template"])
def process(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from in_use(request, tmp_path, monkeypatch)


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
    both = "import os,sys;sys.path[:]={path!r};from farro.execution.runners import run_job;"
    monkeypatch.setattr(process_runner, "_BOOT", both + "run_job.main();os.kill(os.getpid(),9)")
    serve = "process_template.serve(lambda:[run_job.main(),os.kill(os.getpid(),9)])"
    monkeypatch.setattr(process_runner, "_TEMPLATE", both + "from farro.host import process_template;" + serve)
    assert isinstance(process.run(shell("echo once >> ran")), Succeeded)
    assert (process.root / "ran").read_text() == "once\n"


def test_a_runner_starts_without_its_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopting: None) -> None:
    with Bench(tmp_path, "template").in_use(monkeypatch) as bench:
        runner = bench.runner()
        for number in range(3):
            bench.attempt = tmp_path / f"attempt-{number}"
            bench.attempt.mkdir()
            assert isinstance(bench.run(shell("echo once >> ran"), runner=runner), Succeeded)
            template = runner._template._started  # type: ignore[attr-defined]
            assert (template is None) == (number == 1), "the job after its death gets a new interpreter"
            if number == 0:
                template.kill()
        assert (bench.root / "ran").read_text() == "once\n" * 3


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
