"""Kill a worker at every mutating call of a plan that grows while it runs, from its first step to its commit.

The next attempt resumes after the last recorded success: no success and none of its added steps is lost, no recorded
step runs again, and the result is that of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash.seams import Counting, KillAt, Seam, placed
from crash.tally import add_figure
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Call, Tools
from farro.host import trees
from farro.host.clock import SystemClock
from farro.store.files import FilesStore
from farro.store.port import Agent, Claim, Submission
from farro.worker.perform import Performer
from one_job import claim_one, commit_one
from stage import Crash

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
EXPECTED = ["first", "planned", "a", "b", "deeper"]
PROMPT = {
    "steps": [
        {"id": "first", "tool": "grow", "command": "first"},
        {"id": "planned", "tool": "grow", "command": "planned"},
    ]
}


class Grown:
    """A plan whose steps add steps, and the steps that ran in each attempt."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    def tool(self, call: Call) -> None:
        """Run the step. A kill in the tool's thread kills the whole process: the thread reports nothing, and the
        worker's next call crashes too."""
        with contextlib.suppress(Crash):
            self.grow(call)

    def grow(self, call: Call) -> None:
        self.ran.append((call.attempt_dir[-4:], call.command))
        if call.command == "first":
            call.add_task("b", id="b", needs=["a"], tool="grow")
            call.add_task("a", id="a", tool="grow")
        if call.command == "a":
            call.add_task("deeper", id="deeper", tool="grow")

    def perform(self, root: str, store: FilesStore, claim: Claim) -> None:
        clock = SystemClock()
        stop = Stop(clock)
        runner = InlineRunner(tools=Tools({"grow": self.tool}), clock=clock)
        performer = Performer(root=root, base_env={}, runner=runner, clock=clock)
        try:
            commit_one(store, claim, performer.perform(claim, lambda: None, stop))
        finally:
            stop.close()


def begin(root: str, *, durable: bool) -> tuple[FilesStore, Agent, str]:
    stage.make(root)
    store = stage.open_files(root, seed=1, store_policy=stage.policy(durable=durable))
    job_id = store.enqueue(Submission(role="Runner", prompt=PROMPT))
    return store, store.join("w", role="Runner"), job_id


def play(root: str, seam: Seam, *, durable: bool) -> tuple[Grown, str]:
    """Let a worker claim the job undisturbed, run and commit it under `seam`, and then die."""
    store, agent, job_id = begin(root, durable=durable)
    claim = claim_one(store, agent)
    assert claim is not None
    grown = Grown()
    try:
        with placed(seam):
            grown.perform(root, store, claim)
    except Crash:
        pass
    stage.die(store)
    return grown, job_id


def finish(root: str, grown: Grown, *, durable: bool) -> None:
    """Let a watchdog, a manager and a worker finish the job."""
    store = stage.open_files(root, seed=2, store_policy=stage.policy(durable=durable))
    keeper, worker = store.join("keeper", role=None), store.join("second", role="Runner")
    for _ in range(5):
        store.recover(keeper)
        for job_id in store.stale():
            store.resolve_stale(keeper, job_id)
        while (claim := claim_one(store, worker)) is not None:
            grown.perform(root, store, claim)
    store.close()


def judge(root: str, grown: Grown, job_id: str, how: str) -> None:
    (place,) = stage.everywhere(root)[job_id]
    assert place.endswith("completed/succeeded"), f"{how}: {place}"
    assert len(set(grown.ran)) == len(grown.ran), f"{how}: run twice within one attempt: {grown.ran}"
    attempts = sorted(Path(root, place, job_id, "attempts").iterdir())
    result = json.loads((attempts[-1] / "result.json").read_text())
    assert [one["id"] for one in result["step_results"]] == EXPECTED, how
    again = [name for attempt, name in grown.ran if attempt == attempts[-1].name]
    recorded = succeeded(attempts[-2]) if len(attempts) > 1 else []
    assert recorded + again == EXPECTED, f"{how}: {recorded} was done, then {again}"
    assert [one["id"] for one in result["step_results"] if one.get("resumed")] == recorded, how
    ended = [name for attempt, name in grown.ran if attempt == attempts[0].name]
    assert len(ended) - len(recorded) in ((0, 1) if len(attempts) > 1 else (len(EXPECTED),)), how


def succeeded(attempt: Path) -> list[str]:
    try:
        lines = [json.loads(line) for line in (attempt / "steps.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [line["id"] for line in lines if line.get("success")]


class _AtOnce:
    """Stands in for the threads of a BackgroundRemoval, so that every run makes the same calls in the same order."""

    def submit(self, call: Callable[..., None], *args: object) -> None:
        call(*args)


@pytest.mark.parametrize("renamed_first", [False, True])
@BOTH
def test_a_worker_killed_at_every_call_of_a_growing_plan_loses_and_doubles_nothing(
    shm: Path, durable: bool, renamed_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if renamed_first:  # as in a worker's own process
        (shm / "aside").mkdir()
        removal = trees.BackgroundRemoval(str(shm / "aside"))
        monkeypatch.setattr(removal, "_threads", _AtOnce())
        monkeypatch.setattr(trees, "_background", removal)
    counted = Counting()
    grown, job_id = play(str(shm / "whole"), counted, durable=durable)
    judge(str(shm / "whole"), grown, job_id, "in peace")
    assert {"mkdir", "move"} <= set(counted.ops)
    count = 0
    for n in range(1, counted.count + 1):
        for after in (False, True):
            seam = KillAt(n, after=after)
            root = str(shm / f"{n}-{after}")
            grown, job_id = play(root, seam, durable=durable)
            assert seam.dead, f"call {n} of {counted.count} was never made"
            finish(root, grown, durable=durable)
            judge(root, grown, job_id, repr(seam))
            count += 1
    add_figure("kill points, growing plans", count, "points")
