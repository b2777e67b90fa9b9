"""Parallel steps: when each starts, and how the end of one affects the others."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from execution.bench import ESCAPE, Bench, shell, step
from farro.execution import Interrupted
from farro.execution.functions import FunctionRun
from farro.execution.process_watch import REST_GRACE_S, RunningTry
from farro.execution.records import Records
from farro.execution.step import Tries, TryResult
from farro.execution.tools import Call, Tools
from farro.host import process_tree
from farro.host.clock import SystemClock

MEET = 'echo $$ >> "$FARRO_ROOM/here"; while [ $(wc -l < "$FARRO_ROOM/here") -lt {} ]; do sleep 0.01; done'


def named(name: str, script: str, **fields: object) -> dict[str, object]:
    return {"id": name, "command": "sh", "args": ["-c", script], **fields}


def meet(bench: Bench, count: int) -> str:
    """Return a script that ends only when `count` copies of it run at once."""
    return MEET.format(count).replace("$FARRO_ROOM", str(bench.work))


def test_independent_steps_run_together(bench: Bench) -> None:
    result = bench.run(*(named(name, meet(bench, 3)) for name in "abc"), parallel=3)
    assert result.success
    assert sorted(one.id for one in result.step_results) == ["a", "b", "c"]


def test_no_more_run_at_once_than_the_plan_says(bench: Bench) -> None:
    script = f"cd {bench.work}; mkdir here.$$; ls -d here.* | wc -l; sleep 0.05; rmdir here.$$"
    result = bench.run(*(named(f"s{place}", script) for place in range(9)), parallel=2)
    assert result.success
    assert max(int(one.stdout) for one in result.step_results) <= 2


def test_a_step_starts_as_soon_as_its_needs_have_ended(bench: Bench) -> None:
    """`slow` waits for `last`, so both end only if `last` starts while `slow` runs."""
    slow = f"while [ ! -e {bench.work}/done ]; do sleep 0.01; done"
    result = bench.run(
        named("slow", slow),
        named("first", "true"),
        named("last", f"touch {bench.work}/done", needs=["first"]),
        parallel=2,
    )
    assert result.success
    assert result.step_results[0].id == "first"  # the other two may be seen to end together


def test_after_a_failure_running_steps_finish_and_no_step_starts(bench: Bench) -> None:
    # A process can be signalled until the executor has waited for it: once `kill -0` fails, its failure is known.
    gone = f"while kill -0 $(cat {bench.work}/failed) 2>/dev/null; do sleep 0.01; done"
    wait = f"while [ ! -s {bench.work}/failed ]; do sleep 0.01; done; {gone}; echo kept"
    result = bench.run(
        named("goes-on", wait),
        named("fails", f"echo $$ > {bench.work}/failed; exit 3"),
        named("never", "true"),
        parallel=2,
    )
    assert not result.success
    assert result.error is not None
    assert result.error.message == "step fails: exit code 3"
    assert {one.id: one.success for one in result.step_results} == {"fails": False, "goes-on": True}
    assert {one.id: one.stdout for one in result.step_results}["goes-on"] == "kept\n"


def test_a_plan_that_keeps_going_stops_only_what_depends_on_a_failed_step(bench: Bench) -> None:
    result = bench.run(
        named("fails", "exit 3"),
        named("dependent", "true", needs=["fails"]),
        named("independent", "echo a"),
        named("flaky", "test -e flag || { touch flag; exit 1; }", retries=1),
        named("last", "echo b", needs=["independent"]),
        keep_going=True,
    )
    assert not result.success
    assert result.error is not None
    assert result.error.message == "step fails: exit code 3"
    succeeded = {one.id: one.success for one in result.step_results}
    assert succeeded == {"fails": False, "independent": True, "flaky": True, "last": True}
    assert result.steps_total == 5


def test_a_timeout_ends_its_own_tree_and_no_other_step(bench: Bench) -> None:
    """A process that escaped from the step is found by the marker of its try; the other step's processes are spared."""
    done: list[int] = []
    other = bench.in_background(lambda: done.append(bench.told_pid()))
    result = bench.run(
        named("late", ESCAPE + "sleep 1000", timeout=0.5),
        named("lives", f"sleep 1; echo alive; touch {bench.work}/x"),
        parallel=2,
    )
    other.join()
    assert {one.id: (one.success, one.timed_out) for one in result.step_results} == {
        "late": (False, True),
        "lives": (True, False),
    }
    assert bench.living() == []


def test_a_step_that_timed_out_is_tried_again_while_another_runs(bench: Bench) -> None:
    first = f"[ -e {bench.work}/tried ] || {{ touch {bench.work}/tried; sleep 1000; }}"
    hold = f"while [ ! -e {bench.work}/tried ]; do sleep 0.01; done; sleep 0.5"
    result = bench.run(named("again", first, timeout=0.3, retries=1), named("other", hold), parallel=2)
    assert result.success
    assert {one.id: one.attempts for one in result.step_results} == {"again": 2, "other": 1}


def test_other_steps_end_while_one_is_being_ended(bench: Bench) -> None:
    """The stubborn step has a grace of two seconds; the parallel chain ends long before."""
    chain = [named(f"c{place}", "true", needs=[f"c{place - 1}"] if place else []) for place in range(5)]
    stubborn = named(
        "deaf", f'trap "" TERM; while [ ! -e {bench.work}/go ]; do sleep 0.01; done; sleep 1000', timeout=0.2
    )
    last = named("go", f"touch {bench.work}/go", needs=["c4"])
    result = bench.run(stubborn, *chain, last, parallel=2, term_grace_s=2.0)
    ids = [one.id for one in result.step_results]
    assert ids[-1] == "deaf"
    assert "c0" in ids


def test_the_plans_timeout_ends_all_running_steps(bench: Bench) -> None:
    result = bench.run(*(named(name, "sleep 1000") for name in "ab"), parallel=2, timeout=0.3)
    assert [one.timed_out for one in result.step_results] == [True, True]
    assert result.error is not None
    assert result.error.category == "timeout"
    assert bench.living() == []


def test_a_stop_ends_all_running_steps_after_its_grace(bench: Bench) -> None:
    threading.Timer(0.3, lambda: bench.stop.request(0.2)).start()
    with pytest.raises(Interrupted):
        bench.run(*(named(name, 'trap "" TERM; sleep 1000') for name in "ab"), parallel=2)
    assert bench.living() == []


def test_a_step_that_ends_within_the_grace_of_a_stop_counts(bench: Bench) -> None:
    script = f"while [ ! -e {bench.work}/stopped ]; do sleep 0.01; done"

    def ask() -> None:
        time.sleep(0.2)
        bench.stop.request(5.0)
        Path(bench.work, "stopped").touch()

    asking = bench.in_background(ask)
    result = bench.run(named("a", script), named("b", script), parallel=2)
    asking.join()
    assert result.success


def test_a_lost_claim_kills_all_running_steps_at_once(bench: Bench) -> None:
    class Lost(Exception):
        pass

    def lose() -> None:
        if (bench.work / "two").exists():
            raise Lost

    bench.on_tick = lose
    ready = f'trap "" TERM; touch {bench.work}/one; [ -e {bench.work}/one ] && touch {bench.work}/two; sleep 1000'
    with pytest.raises(Lost):
        bench.run(named("a", ready), named("b", ready), parallel=2, tick_every_s=0.05)
    assert bench.living() == []


def test_tasks_added_by_a_running_step_wait_for_its_end(bench: Bench) -> None:
    """`adds` adds a task and fails later; `other` succeeds in between and must not start that task."""
    import sys

    add = "import farro; farro.add_task('true', id='child')"
    path = f"{bench.work}/added"
    fails = f'{sys.executable} -c "{add}"; touch {path}; while [ ! -e {bench.work}/over ]; do sleep 0.01; done; exit 1'
    other = f"while [ ! -e {path} ]; do sleep 0.01; done"
    after = named("after", f"touch {bench.work}/over", needs=["other"])
    result = bench.run(named("adds", fails), named("other", other), after, parallel=2)
    assert sorted(one.id for one in result.step_results) == ["adds", "after", "other"]
    assert result.steps_total == 3


def test_piped_steps_run_in_order_although_slots_are_free(bench: Bench) -> None:
    result = bench.run(
        step(1, "seq", "1000"),
        step(2, "tail", "-n", "1", input_from_step=1),
        shell(3, "cat", input_from_step=2),
        parallel=3,
    )
    assert result.step_results[-1].stdout == "1000\n"


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave like a worker: look only for orphans at the end of a plan, not for all processes ever started."""
    monkeypatch.setattr(process_tree, "_adopting", True)


def holds(bench: Bench) -> str:
    return f'trap "" TERM; touch {bench.work}/held; exec sleep 1000'


@pytest.mark.usefixtures("adopting")
def test_a_claim_lost_between_two_steps_kills_the_parallel_steps(bench: Bench) -> None:
    """The tick before the next step starts is a different call than the tick during a wait."""

    class Lost(Exception):
        pass

    def lose() -> None:
        records = bench.attempt / "steps.jsonl"
        if records.exists() and '"over"' in records.read_text():
            raise Lost

    bench.on_tick = lose
    over = f"while [ ! -e {bench.work}/held ]; do sleep 0.01; done"
    after = named("after", "true", needs=["over"])
    with pytest.raises(Lost):
        bench.run(named("held", holds(bench)), named("over", over), after, parallel=2, tick_every_s=0.0)
    assert bench.living() == []


@pytest.mark.usefixtures("adopting")
def test_an_unwritable_attempt_folder_leaves_no_step_running(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Records, "step", full)
    over = f"while [ ! -e {bench.work}/held ]; do sleep 0.01; done"
    with pytest.raises(OSError, match="full"):
        bench.run(named("held", holds(bench)), named("over", over), parallel=2)
    assert bench.living() == []


@pytest.mark.usefixtures("adopting")
def test_a_failed_try_during_a_stop_leaves_the_grace_to_the_other_steps(bench: Bench) -> None:
    """`fails` has retries left when the plan is stopped; `goes-on` ends within the grace and counts as a success."""
    fails = f"while [ ! -e {bench.work}/stopped ]; do sleep 0.01; done; exit 1"
    goes_on = f"while [ ! -e {bench.work}/stopped ]; do sleep 0.01; done; sleep 0.3"

    def ask() -> None:
        time.sleep(0.2)
        bench.stop.request(30.0)
        Path(bench.work, "stopped").touch()

    asking = bench.in_background(ask)
    with pytest.raises(Interrupted) as interrupted:
        bench.run(named("fails", fails, retries=3), named("goes-on", goes_on), named("never", "true"), parallel=2)
    asking.join()
    assert [one.id for one in interrupted.value.partial.step_results] == ["goes-on"]
    assert bench.living() == []


def test_a_step_that_ended_in_time_is_not_timed_out_by_a_late_check(bench: Bench) -> None:
    """The worker was busy (a slow disk, a slow tick) when the step ended and checked only after the step's timeout."""

    def busy() -> None:
        if (bench.work / "begun").exists():
            time.sleep(0.6)

    bench.on_tick = busy
    quick = named("quick", f"touch {bench.work}/begun; sleep 0.1", timeout=0.5)
    other = named("other", f"while [ ! -e {bench.work}/begun ]; do sleep 0.01; done; sleep 1")
    result = bench.run(quick, other, parallel=2, tick_every_s=0.05)
    assert {one.id: one.timed_out for one in result.step_results} == {"quick": False, "other": False}


def test_ended_functions_leave_neither_threads_nor_descriptors(bench: Bench) -> None:
    """Each function runs until it is ended, by a stop or because the claim was lost."""

    class Lost(Exception):
        pass

    def endless(call: Call) -> None:
        (bench.work / call.command).touch()
        while True:
            time.sleep(0.01)

    def all_run() -> bool:
        return all((bench.work / f"f{number}").exists() for number in range(8))

    def lose() -> None:
        if all_run():
            raise Lost

    tools = Tools({"endless": endless})
    steps = [{"id": f"f{number}", "tool": "endless", "command": f"f{number}"} for number in range(8)]

    def turn(number: int) -> None:
        bench.attempt = bench.folder / f"turn-{number}"
        bench.attempt.mkdir()
        with pytest.raises(Lost):
            bench.run(*steps, parallel=8, tools=tools, tick_every_s=0.02)

    bench.on_tick = lose
    turn(0)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for number in range(1, 4):
        turn(number)
    deadline = time.monotonic() + 10
    while (now := (len(os.listdir("/proc/self/fd")), threading.active_count())) > before:
        assert time.monotonic() < deadline, f"{before} descriptors and threads became {now}"
        time.sleep(0.01)


def test_sixty_four_steps_that_time_out_together_leave_no_descriptor(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    steps = [named(f"s{number}", "sleep 1000", timeout=0.5, retries=1) for number in range(64)]
    result = bench.run(*steps, parallel=64)
    assert [one.timed_out for one in result.step_results] == [True] * 64
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert bench.living() == []


def test_functions_that_cannot_be_ended_share_one_grace_of_a_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight are blocked in C. One after the other they would hold the worker eight times as long; told by how many
    graces are waited for, not by the clock."""
    graces: list[float] = []
    end = FunctionRun.end

    def told(self: FunctionRun, marker: str | None, *, grace_s: float, **more: Any) -> tuple[int, ...]:
        graces.append(grace_s)
        return end(self, marker, grace_s=grace_s, **more)

    monkeypatch.setattr(FunctionRun, "end", told)
    go = threading.Event()
    running = threading.Semaphore(0)

    def blocked(call: Call) -> None:
        running.release()
        go.wait()

    def ask() -> None:
        for _ in range(8):
            running.acquire()
        bench.stop.request(0.0)

    asking = bench.in_background(ask)
    steps = [{"id": f"f{number}", "tool": "blocked", "command": "x"} for number in range(8)]
    with pytest.raises(Interrupted):
        bench.run(*steps, parallel=8, tools=Tools({"blocked": blocked}))
    go.set()
    asking.join()
    assert len(graces) == 8
    assert sum(graces) < 2 * REST_GRACE_S


def test_a_failed_try_at_the_plans_timeout_keeps_its_output(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a failed try is moved aside only if there is a next try."""

    class Jumping(SystemClock):
        ahead_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.ahead_s

    clock = Jumping()
    judge = Tries.judge

    def judged(self: Tries, running: RunningTry, **more: float) -> TryResult:
        tried = judge(self, running, **more)
        clock.ahead_s = 1000.0
        return tried

    monkeypatch.setattr(Tries, "judge", judged)
    bench.clock = clock
    result = bench.run(named("late", "echo said; echo why >&2; exit 1", retries=2), timeout=500)
    (late,) = result.step_results
    assert (late.stdout, late.stderr, late.attempts) == ("said\n", "why\n", 1)
