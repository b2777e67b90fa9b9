"""Functions run in a batch have the same outcomes as functions run alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.execution.function_batch import run_batch
from farro.execution.functions import FunctionRun
from farro.execution.runner import Work
from farro.execution.step import BegunCall
from farro.execution.stop import Stop
from farro.execution.tools import Call, StepFailure, Tools
from farro.execution.work import PlanCache, perform_work
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Failed, Outcome, Succeeded

CLOCK = SystemClock()
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker is: this process may have servers of other tests. And patient: where processors are busy a call that
    does nothing may take some milliseconds."""
    monkeypatch.setattr("farro.host.process_tree.childless", lambda: True)
    monkeypatch.setattr("farro.execution.functions._LOOKS", 500)


def says(call: Call) -> None:
    call.stdout.write(b"hello\n")


def adds(call: Call) -> None:
    call.add_task("true", tool="unix")


def breaks(call: Call) -> None:
    raise StepFailure("no_luck", "not today", retryable=True)


TOOLS: dict[str, Callable[[Call], int | None]] = {
    "nothing": lambda call: None,
    "three": lambda call: 3,
    "says": says,
    "breaks": breaks,
}


def work(folder: Path, name: str, tool: str, **step: Any) -> Work:
    home = folder / name / "attempts" / "0001"
    home.mkdir(parents=True)
    prompt = {"plan_id": "p1", "steps": [{"step_number": 1, "tool": tool, "command": "x", **step}]}
    return Work(
        job_id=name,
        prompt=prompt,
        folder=str(home),
        marker=f"{name}/0001",
        env={"PATH": "/usr/bin:/bin"},
        cwd=str(folder),
        root=str(folder),
        step_timeout_s=WAIT_S,
    )


def alone(one: Work, tools: Tools, begun: BegunCall | None = None) -> Outcome:
    return perform_work(
        one, plans=PlanCache(), tools=tools, clock=CLOCK, tick=lambda: None, stop=Stop(CLOCK), begun=begun
    )


def row(works: list[Work], tools: Tools) -> list[Outcome | BegunCall]:
    return run_batch(works, plans=PlanCache(), tools=tools, clock=CLOCK)


def without_times(outcome: Outcome) -> Any:
    """Return the outcome without the values that differ from run to run."""
    assert isinstance(outcome, Succeeded | Failed)
    result = dict(outcome.report.result)
    for told in (result, *result["step_results"]):
        for name in ("duration_s", "user_s"):
            told.pop(name, None)
    words = re.sub(r"\d\.\d\d", "N", outcome.report.markdown)
    return type(outcome), result, words, outcome.report.files, getattr(outcome, "error", None)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_function_in_a_batch_is_reported_like_any_other(shm: Path, tool: str) -> None:
    tools = Tools(TOOLS)
    expected = alone(work(shm / "alone", "job", tool), tools)
    mine = work(shm / "row", "job", tool)
    (came,) = row([mine], tools)
    outcome = alone(mine, tools, came) if isinstance(came, BegunCall) else came
    assert without_times(outcome) == without_times(expected)
    assert isinstance(came, BegunCall) is (tool != "nothing")


def test_a_task_added_by_a_function_in_a_batch_is_run(shm: Path) -> None:
    tools = Tools({"adds": adds})
    mine = work(shm, "job", "adds")
    (came,) = row([mine], tools)
    assert isinstance(came, BegunCall)
    told = alone(mine, tools, came)
    assert isinstance(told, Succeeded)
    assert told.report.result["steps_total"] == 2


def test_a_batch_continues_after_a_function_that_failed(shm: Path) -> None:
    tools = Tools(TOOLS)
    works = [work(shm, f"j{n}", tool) for n, tool in enumerate(("nothing", "breaks", "nothing"))]
    first, second, third = row(works, tools)
    assert isinstance(first, Succeeded)
    assert isinstance(second, BegunCall)
    assert isinstance(third, Succeeded)
    told = alone(works[1], tools, second)
    assert isinstance(told, Failed)
    assert (told.error.category, told.retryable) == ("no_luck", True)


def test_a_function_that_failed_in_a_batch_is_retried(shm: Path) -> None:
    tries: list[int] = []

    def second_time(call: Call) -> int:
        tries.append(1)
        return 0 if len(tries) > 1 else 1

    tools = Tools({"t": second_time})
    mine = work(shm, "job", "t", retries=2)
    (came,) = row([mine], tools)
    assert isinstance(came, BegunCall)
    assert isinstance(alone(mine, tools, came), Succeeded)
    assert len(tries) == 2


def test_no_function_of_a_batch_begins_behind_a_slow_one(shm: Path) -> None:
    go, called = threading.Event(), []

    def long(call: Call) -> None:
        go.wait(WAIT_S)

    def quick(call: Call) -> None:
        called.append(call.job_id)

    tools = Tools({"long": long, "quick": quick})
    works = [work(shm, "a", "quick"), work(shm, "b", "long"), work(shm, "c", "quick")]
    first, second = row(works, tools)
    assert isinstance(first, Succeeded)
    assert isinstance(second, BegunCall)
    assert second.run.exit is None
    go.set()
    assert isinstance(alone(works[1], tools, second), Succeeded)
    assert called == ["a"]
    assert isinstance(row(works[2:], tools)[0], Succeeded)


def test_a_plan_that_is_not_a_single_function_ends_a_batch(shm: Path) -> None:
    tools = Tools(TOOLS)
    two = work(shm, "two", "nothing")
    steps = [{"step_number": n, "tool": "nothing", "command": "x"} for n in (1, 2)]
    two = Work(**{**{name: getattr(two, name) for name in two.__slots__}, "prompt": {"plan_id": "p", "steps": steps}})
    for other in (two, work(shm, "program", "unix"), work(shm, "none", "no-such-tool")):
        assert len(row([work(shm / other.job_id, "first", "nothing"), other], tools)) == 1
        assert row([other], tools) == []


def test_a_function_begun_in_a_batch_can_be_ended(shm: Path) -> None:
    def for_ever(call: Call) -> None:
        while True:
            threading.Event().wait(0.01)

    mine = work(shm, "job", "t")
    tools = Tools({"t": for_ever})
    (came,) = row([mine], tools)
    assert isinstance(came, BegunCall)
    stop = Stop(CLOCK)
    stop.request(0.0)
    perform_work(mine, plans=PlanCache(), tools=tools, clock=CLOCK, tick=lambda: None, stop=stop, begun=came)
    assert isinstance(came.run, FunctionRun)
    assert came.run.exit is not None
    assert came.run.exit.code == 143
