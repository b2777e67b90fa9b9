"""Run one job in the foreground: submit, claim and perform it here, and pass its output on while it runs.

The job is claimed in the same step in which it is submitted, so it runs here, with this environment, and not in
whichever worker is faster. If this process dies, the job is recovered like any worker's: it becomes stale, and then any
worker may claim it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farro.errors import FarroError, Lost, StorageTrouble, TryAgain
from farro.execution.stop import Stop
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Failed, Outcome, Released, Succeeded
from farro.queue import follow
from farro.queue.follow import RunResult, Tail
from farro.store.port import Claim, Store, Submission, commit_one
from farro.worker.perform import Performer

_LOOKS, _PAUSE_S = 100, 0.02
BEAT_S = 1.0
LOOK_S, LATER_S = 0.01, 0.03  # how often its output is polled: in the first second, and later


class Foreground:
    """Run one submission to its end in this process."""

    def __init__(self, *, store: Store, performer: Performer, stop: Stop, name: str = "run") -> None:
        self._store = store
        self._performer = performer
        self._stop = stop
        self._name = name

    def run(self, submission: Submission, tail: Tail) -> RunResult | None:
        """Return the result. None: a job with that chosen id exists already and was not touched; follow it."""
        agent = self._store.join(self._name, role=submission.role)
        try:
            claim = self._store.enqueue_claimed(agent, submission)
            return None if claim is None else self._work(claim, tail)
        finally:
            self._store.leave(agent)

    def _work(self, claim: Claim, tail: Tail) -> RunResult:
        """Work the job to its end. An outcome is committed even if passing on the output failed."""
        outcome: Outcome | None = None
        result: Mapping[str, Any] = {}
        try:
            outcome, trouble = self._performed(claim, tail)
            if isinstance(outcome, Released):  # stopped: no worker may start it again
                lifecycle = self._killed(
                    claim.job_id, "stopped by the user who ran it" if trouble is None else f"stopped: {trouble}"
                )
            else:
                if isinstance(outcome, Failed):
                    outcome = replace(outcome, retryable=False)  # the user waits here for the result
                lifecycle, result = commit_one(self._store, claim, outcome), outcome.report.result
        except Lost as lost:
            found = self._end_elsewhere(claim.job_id)
            if found is None:
                raise type(lost)(f"{lost}. {_unrecorded(claim.job_id, outcome)}") from lost
            return follow.run_result(found, {})
        except TryAgain as error:
            if outcome is None:
                raise
            raise StorageTrouble(f"{_unrecorded(claim.job_id, outcome)}. What went wrong: {error}") from error
        if trouble is not None:
            raise trouble
        return follow.run_result(lifecycle, result)

    def _end_elsewhere(self, job_id: str) -> Lifecycle | None:
        """Return how a job ended that was taken from this process: an operator ends its processes first, and then
        decides."""
        for _ in range(_LOOKS):
            found = self._store.find(job_id)
            if found is not None and found.lifecycle.terminal:
                return found.lifecycle
            self._performer.clock.sleep(_PAUSE_S)
        return None

    def _performed(self, claim: Claim, tail: Tail) -> tuple[Outcome, BaseException | None]:
        """Perform the job in a thread, so that output is passed on and signals are handled meanwhile.

        Returns the outcome, and why its output could not be passed on: a reader that has left ends the job, as a
        shell's pipe would.
        """
        over, passed_on = threading.Event(), threading.Event()
        came: list[Outcome | BaseException] = []

        def perform() -> None:
            try:
                came.append(self._performer.perform(claim, lambda: self._beat(claim), self._stop))
            except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
                came.append(error)
            finally:
                over.set()
            # A slow reader (a pager) may take long for the last output: keep the lease meanwhile.
            while not passed_on.wait(BEAT_S):
                with contextlib.suppress(FarroError):  # the commit reports it
                    self._store.heartbeat(claim.agent, claim)

        thread = threading.Thread(target=perform, name="foreground")
        thread.start()
        trouble: BaseException | None = None
        turns = 0
        while trouble is None and not over.wait(LOOK_S if turns < 100 else LATER_S):
            trouble = _passed_on(tail, claim)
            turns += 1
        if trouble is not None:
            self._stop.request(0.0)  # its process tree ends before the job is released (R6)
            over.wait()
        if trouble is None and not isinstance(came[0], BaseException):
            trouble = _passed_on(tail, claim, ended=True)
        passed_on.set()
        thread.join()
        (result,) = came
        if isinstance(result, BaseException):
            raise result
        return result, trouble

    def _beat(self, claim: Claim) -> None:
        """Send a heartbeat. An unreachable store is no reason to end the command: the commit reports it."""
        with contextlib.suppress(TryAgain):
            self._store.heartbeat(claim.agent, claim)

    def _killed(self, job_id: str, note: str) -> Lifecycle:
        agent = self._store.join(self._name, role=None)
        try:
            return self._store.kill(agent, job_id, note=note)
        finally:
            self._store.leave(agent)


def _passed_on(tail: Tail, claim: Claim, *, ended: bool = False) -> BaseException | None:
    try:
        tail.pump(claim.folder, ended=ended)
    except BaseException as error:  # noqa: BLE001 - raised after the job is committed
        return error
    return None


def _unrecorded(job_id: str, outcome: Outcome | None) -> str:
    """Say what happens to a job whose end could not be recorded."""
    if isinstance(outcome, Succeeded):
        ended = "its command succeeded"
    elif isinstance(outcome, Failed):
        ended = f"its command failed ({outcome.error.message})"
    else:
        ended = "its command was ended"
    return (
        f"{job_id}: {ended}, but that could not be recorded: the job counts as in progress until a watchdog finds it, "
        f"and then its command is run again. To keep it from that: `farro kill {job_id}`, or `farro force-complete "
        f"{job_id}` if it shall count as succeeded"
    )
