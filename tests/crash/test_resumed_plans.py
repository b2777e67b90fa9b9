"""Kill a worker at every mutating call of a plan with parallel, piped and added steps; and again while it resumes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stage
from crash.seams import Counting, KillAt, Seam, placed
from crash.tally import add_figure
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Call, Tools
from farro.host.clock import SystemClock
from farro.jobs.retry import RetryPolicy
from farro.store.files import FilesStore
from farro.store.port import Claim, Submission
from farro.worker.perform import Performer
from one_job import claim_one, commit_one
from stage import Crash
from support import torture

# The exception that ends a call of a killed worker may come between the opening of a file and its assignment.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
PROMPT = {
    "parallel": 2,
    "steps": [
        {"id": "left", "tool": "piece", "command": "left"},
        {"id": "right", "tool": "piece", "command": "right"},
        {"id": "reads", "tool": "piece", "command": "reads", "input_from_step": "left"},
        {"id": "last", "tool": "piece", "command": "last", "input_from_step": "reads", "needs": ["right"]},
    ],
}
SAID = {
    "left": "left.",
    "right": "right.",
    "child": "right.child.",
    "reads": "left.reads.",
    "last": "left.reads.last.",
}
PAIRS = 1 if torture() else 47  # play one in so many of all pairs of kills


class Pieces:
    """The tool of the plan, and its finished calls by attempt."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def tool(self, call: Call) -> None:
        """Run the step. A kill in the tool's thread kills the whole process, so the thread reports nothing."""
        with contextlib.suppress(Crash):
            self.say(call)

    def say(self, call: Call) -> None:
        given = call.stdin.read()
        if call.command == "right":
            call.add_task("child", id="child", tool="piece", input_from="right")
        call.stdout.write(given + f"{call.command}.".encode())
        call.stdout.flush()
        with self._lock:
            self.ran.append((call.attempt_dir[-4:], call.command))

    def perform(self, root: str, store: FilesStore, claim: Claim) -> None:
        clock = SystemClock()
        stop = Stop(clock)
        runner = InlineRunner(tools=Tools({"piece": self.tool}), clock=clock)
        performer = Performer(root=root, base_env={}, runner=runner, clock=clock)
        try:
            commit_one(store, claim, performer.perform(claim, lambda: None, stop))
        finally:
            stop.close()


def opened(root: str, seed: int) -> FilesStore:
    enough = RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=9)
    return stage.open_files(root, seed=seed, store_policy=stage.policy(retry=enough))


def begin(root: str) -> str:
    stage.make(root)
    store = opened(root, 1)
    job_id = store.enqueue(Submission(role="Runner", prompt=PROMPT))
    store.close()
    return job_id


def attempt(root: str, pieces: Pieces, seed: int, seam: Seam) -> None:
    """Recover dead agents; let a worker claim the job undisturbed, run and commit it under `seam`, and die."""
    keeping = opened(root, seed)
    keeper = keeping.join("keeper", role=None)
    keeping.recover(keeper)
    for stale in keeping.stale():
        keeping.resolve_stale(keeper, stale)
    keeping.close()
    store = opened(root, seed + 1)
    claim = claim_one(store, store.join("w", role="Runner"))
    if claim is not None:
        try:
            with placed(seam):
                pieces.perform(root, store, claim)
        except Crash:
            pass
    stage.die(store)


def attempts(root: str, job_id: str) -> tuple[str, list[Path]]:
    (place,) = stage.everywhere(root)[job_id]
    return place, sorted(Path(root, place, job_id, "attempts").iterdir())


def recorded(attempt: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        lines = [json.loads(line) for line in (attempt / "steps.jsonl").read_text().splitlines()]
        return [line["id"] for line in lines if line.get("success")]
    return []


def judge(root: str, pieces: Pieces, job_id: str, how: str) -> None:
    place, folders = attempts(root, job_id)
    assert place.endswith("completed/succeeded"), f"{how}: {place}"
    assert len(set(pieces.ran)) == len(pieces.ran), f"{how}: run twice within one attempt: {pieces.ran}"
    result: dict[str, Any] = json.loads((folders[-1] / "result.json").read_text())
    said = {one["id"]: one["stdout"] for one in result["step_results"]}
    assert said == SAID, f"{how}: {said}"
    assert {one["id"]: one.get("added_by") for one in result["step_results"]}["child"] == "right", how
    known: set[str] = set()
    for folder in folders:
        ran = {name for number, name in pieces.ran if number == folder.name}
        assert not known & ran, f"{how}: {known & ran} had succeeded before attempt {folder.name}"
        done = set(recorded(folder))
        # An attempt killed before it took over any step records none, and hides none.
        assert not done or known <= done, f"{how}: attempt {folder.name} lost {known - done}"
        known |= done
    resumed = {one["id"] for one in result["step_results"] if one.get("resumed")}
    assert resumed == known - {name for number, name in pieces.ran if number == folders[-1].name}, how


def whole(root: str) -> int:
    counted = Counting()
    job_id, pieces = begin(root), Pieces()
    attempt(root, pieces, 10, counted)
    judge(root, pieces, job_id, "in peace")
    return counted.count


def kills(upto: int) -> Iterator[KillAt]:
    for n in range(1, upto + 1):
        for after in (False, True):
            yield KillAt(n, after=after)


def test_a_worker_killed_at_every_call_of_parallel_piped_steps_is_resumed_and_nothing_is_lost(shm: Path) -> None:
    """The number of calls depends on which of two steps ends first, so the kills continue until one comes too late."""
    count = 0
    for number, seam in enumerate(kills(whole(str(shm / "whole")) + 10)):
        root = str(shm / str(number))
        job_id, pieces = begin(root), Pieces()
        attempt(root, pieces, 10, seam)
        attempt(root, pieces, 20, Counting())
        judge(root, pieces, job_id, repr(seam))
        count += seam.dead
    assert count >= 40
    add_figure("kill points, parallel piped plans", count, "points")


def test_a_worker_killed_again_while_it_resumes_loses_nothing_either(shm: Path) -> None:
    calls = whole(str(shm / "whole"))
    number = count = 0
    for first in kills(calls):
        for second in kills(calls + 10):
            number += 1
            if number % PAIRS:
                continue
            root = str(shm / str(number))
            job_id, pieces = begin(root), Pieces()
            attempt(root, pieces, 10, KillAt(first.n, after=first.after))
            attempt(root, pieces, 20, second)
            attempt(root, pieces, 30, Counting())
            judge(root, pieces, job_id, f"{first!r}, then {second!r}")
            count += second.dead
    assert count >= 30
    add_figure("pairs of kill points, parallel piped plans", count, "pairs")


class KillAtTheResult(KillAt):
    """Kill the worker after all steps, before it writes the result."""

    def perform(self, op: str, call: Any, args: tuple[Any, ...]) -> Any:
        if op == "create" and args[0].endswith("/result.json"):
            self.n = self.count + 1
        return super().perform(op, call, args)


@pytest.mark.parametrize("lost", ["steps.jsonl", "steps"])
def test_the_check_of_resumed_plans_notices_a_loss(shm: Path, lost: str) -> None:
    """Remove an attempt's records between the kill and the resume: successful steps then run again."""
    root = str(shm / "root")
    job_id, pieces = begin(root), Pieces()
    attempt(root, pieces, 10, KillAtTheResult(0))
    _, (folder,) = attempts(root, job_id)
    kept = recorded(folder)
    assert len(kept) == len(SAID)
    (folder / lost).rename(folder / "elsewhere")
    attempt(root, pieces, 20, Counting())
    _, (folder, _) = attempts(root, job_id)
    (folder / "elsewhere").rename(folder / lost)
    with pytest.raises(AssertionError, match="had succeeded before"):
        judge(root, pieces, job_id, "with a loss")
