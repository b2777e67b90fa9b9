"""Delay the retries of a failed step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from execution.bench import Bench, shell
from farro.execution import Interrupted
from farro.plans.loading import load_data
from farro.plans.memo import as_job
from support import eventually

LONG = 3600


def fails_until(count: int) -> str:
    return f"date +%s%N >> tries; test $(wc -l < tries) -ge {count}"


def named(step_id: str, script: str, **fields: Any) -> dict[str, Any]:
    return {"id": step_id, "command": "sh", "args": ["-c", script], **fields}


def test_each_retry_waits_longer_than_the_last(bench: Bench) -> None:
    result = bench.run(shell(1, fails_until(3), retries=5, retry_delay=0.1, retry_backoff=3))
    assert (result.success, result.step_results[0].attempts) == (True, 3)
    first, second, third = (int(line) for line in (bench.work / "tries").read_text().split())
    assert second - first >= 0.1e9
    assert third - second >= 0.3e9


def test_the_retry_delay_grows_to_an_hour_and_defaults_to_none() -> None:
    plan = load_data(
        {"steps": [shell(1, "true", retries=9, retry_delay=10, retry_backoff=2), shell(2, "true")]}, "test"
    )
    assert [plan.steps[0].pause_s(tried) for tried in (1, 2, 3, 9, 20)] == [10, 20, 40, 2560, 3600]
    assert plan.steps[1].pause_s(7) == 0


def test_a_delayed_step_keeps_its_place_in_the_order(bench: Bench) -> None:
    first = named("first", "echo first >> order; " + fails_until(2), retries=1, retry_delay=0.1)
    assert bench.run(first, named("next", "echo next >> order")).success
    assert (bench.work / "order").read_text().split() == ["first", "first", "next"]


def test_other_steps_run_during_a_retry_delay(bench: Bench) -> None:
    rests = named("rests", fails_until(2), retries=1, retry_delay=0.2)
    others = [named(f"other-{number}", "date +%s%N >> others") for number in range(3)]
    assert bench.run(rests, *others, parallel=2).success
    assert len((bench.work / "others").read_text().split()) == 3


def test_a_stop_ends_a_retry_delay(bench: Bench) -> None:
    def ask() -> None:
        eventually((bench.work / "tries").exists)
        bench.stop.request(LONG)

    asking = bench.in_background(ask)
    with pytest.raises(Interrupted) as interrupted:
        bench.run(shell(1, fails_until(9), retries=9, retry_delay=LONG))
    asking.join()
    assert interrupted.value.partial.step_results == ()


def test_the_failure_of_another_step_ends_a_retry_delay(bench: Bench) -> None:
    rests = named("rests", "echo said; touch tried; exit 1", retries=9, retry_delay=LONG)
    fails = named("fails", "until [ -e tried ]; do sleep 0.02; done; sleep 0.1; exit 3")
    result = bench.run(rests, fails, parallel=2)
    assert result.error is not None
    assert "step fails" in result.error.message
    told = {one.id: one for one in result.step_results}
    assert (told["rests"].success, told["rests"].attempts, told["rests"].stdout) == (False, 1, "said\n")


def test_the_input_of_a_delayed_step_ends_when_its_retries_are_cancelled(bench: Bench) -> None:
    source = {"id": "source", "command": "yes"}
    reads = named("reads", "head -c 9; touch tried; exit 1", input_from_step="source", retries=9, retry_delay=LONG)
    fails = named("fails", "until [ -e tried ]; do sleep 0.02; done; sleep 0.1; exit 3")
    result = bench.run(source, reads, fails, parallel=2, ahead_bytes=1)
    assert result.error is not None
    assert "step fails" in result.error.message
    assert {one.id for one in result.step_results} == {"source", "reads", "fails"}


def test_a_retry_delay_longer_than_the_plans_timeout_is_not_begun(bench: Bench) -> None:
    result = bench.run(shell(1, "exit 1", retries=9, retry_delay=LONG), timeout=500)
    assert result.step_results[0].attempts == 1
    assert result.error is not None
    assert result.error.category == "step_failed"


def test_a_lost_claim_ends_a_retry_delay(bench: Bench) -> None:
    class Gone(Exception):
        pass

    def tick() -> None:
        if Path(bench.work, "tries").exists():
            raise Gone

    bench.on_tick = tick
    with pytest.raises(Gone):
        bench.run(shell(1, fails_until(9), retries=9, retry_delay=LONG), tick_every_s=0.05)


def test_a_submitted_plan_keeps_its_retry_delays() -> None:
    first = named("first", "true", retries=2, retry_delay=5, retry_backoff=2)
    step = as_job({"plan_id": "p", "steps": [first]}, "job-1")["steps"][0]
    assert (step["retries"], step["retry_delay"], step["retry_backoff"]) == (2, 5, 2)
