"""Run one job in the foreground: its outcome is committed although the reader of its output left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from farro.errors import AgentLost, StorageTrouble
from farro.execution.stop import Stop
from farro.jobs.outcomes import Outcome, Released
from farro.jobs.states import Status
from farro.queue import foreground
from farro.queue.foreground import Foreground
from farro.store.port import Claim, Submission
from stage import plan
from worker.bench import Bench, Scripted, fail, succeed


class Reader:
    """A Tail that raises the given error while the command runs or at its end."""

    def __init__(self, *, running: BaseException | None = None, ended: BaseException | None = None) -> None:
        self._raises = {False: running, True: ended}

    def pump(self, attempt_dir: str, *, ended: bool = False) -> None:
        error = self._raises[ended]
        if error is not None:
            raise error


class UntilStopped:
    """A performer that runs until it is asked to stop and then returns a scripted outcome."""

    def __init__(self, outcome: Callable[[Claim], Outcome]) -> None:
        self._outcome = outcome

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        while not stop.requested:
            threading.Event().wait(0.001)
        return self._outcome(claim)


def run(bench: Bench, performer: Any, reader: Any) -> Any:
    submission = Submission(role="Runner", prompt=plan(), job_id="one")
    return Foreground(store=bench.store, performer=performer, stop=bench.stop).run(submission, reader)


class Gone(Exception):
    pass


@pytest.mark.parametrize(("does", "status"), [(succeed, Status.SUCCEEDED), (fail, Status.FAILED)])
def test_a_reader_that_leaves_at_the_end_loses_no_outcome(bench: Bench, does: Any, status: Status) -> None:
    with pytest.raises(Gone):
        run(bench, Scripted(does), Reader(ended=Gone("nobody reads")))
    assert bench.view("one").status is status
    assert bench.agents() == []


def test_a_reader_that_leaves_early_ends_the_command_and_kills_its_job(bench: Bench) -> None:
    with pytest.raises(Gone):
        run(bench, UntilStopped(lambda claim: Released()), Reader(running=Gone("nobody reads")))
    assert bench.view("one").status is Status.KILLED
    assert bench.view("one").lifecycle.hops[-1].note == "stopped: nobody reads"


def test_a_command_that_ended_as_its_reader_left_has_succeeded(bench: Bench) -> None:
    with pytest.raises(Gone):
        run(bench, UntilStopped(succeed), Reader(running=Gone("nobody reads")))
    assert bench.view("one").status is Status.SUCCEEDED


def test_a_slow_reader_keeps_the_job_alive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a pager blocks the output, the run holds its job until the last line is written."""
    monkeypatch.setattr(foreground, "BEAT_S", 0.001)
    beats = threading.Semaphore(0)
    beat = bench.store.heartbeat

    def heard(agent: Any, claim: Any = None) -> None:
        beat(agent, claim)
        beats.release()

    monkeypatch.setattr(bench.store, "heartbeat", heard)

    class Pager:
        def pump(self, attempt_dir: str, *, ended: bool = False) -> None:
            assert not ended or all(beats.acquire(timeout=60) for _ in range(3))

    assert run(bench, Scripted(), Pager()).status is Status.SUCCEEDED


@pytest.mark.parametrize(("does", "how"), [(succeed, "succeeded"), (fail, r"failed \(no\)")])
def test_an_outcome_that_cannot_be_committed_is_reported_with_its_consequence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, does: Any, how: str
) -> None:
    def away(results: object) -> None:
        raise StorageTrouble("the server is away")

    monkeypatch.setattr(bench.store, "commit", away)
    with pytest.raises(StorageTrouble, match=f"one: its command {how}.*is run again.*farro kill one.*server is away"):
        run(bench, Scripted(does), Reader())


def test_an_unreachable_store_ends_no_running_command(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(agent: Any, claim: Any = None) -> None:
        raise StorageTrouble("the server is away")

    monkeypatch.setattr(bench.store, "heartbeat", away)

    class Ticking:
        def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
            tick()
            return succeed(claim)

    assert run(bench, Ticking(), Reader()).status is Status.SUCCEEDED


def test_a_run_that_was_fenced_says_what_becomes_of_its_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(results: object) -> None:
        raise AgentLost("run.0 was declared dead")

    monkeypatch.setattr(bench.store, "commit", lost)
    monkeypatch.setattr(Scripted, "clock", bench.clock, raising=False)
    with pytest.raises(AgentLost, match=r"declared dead\. one: its command succeeded, but"):
        run(bench, Scripted(), Reader())
