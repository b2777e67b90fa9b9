"""One job in the foreground: submitted, claimed and performed here, its output passed on while it runs.

A worker's loop over a queue lives in worker; output and exit codes live in operations.run.

The job is claimed in the same step as it is submitted, so it runs here, with this environment, and not in whichever
worker is faster. When this process dies it is recovered like any worker's: stale, and then anybody's.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from farro.errors import Lost
from farro.execution.stop import Stop
from farro.kernel.envelope import Lifecycle
from farro.kernel.outcome import Failed, Outcome, Released
from farro.operations import run
from farro.operations.run import Ended, Tail
from farro.ports.store import Claim, Store, Submission
from farro.services.perform import Performer

_LOOKS, _PAUSE_S = 100, 0.02
LOOK_S, LATER_S = 0.01, 0.03  # how often its output is looked at: in its first second, and in a long life after it


class Foreground:
    def __init__(self, *, store: Store, performer: Performer, stop: Stop, name: str = "run") -> None:
        self._store = store
        self._performer = performer
        self._stop = stop
        self._name = name

    def run(self, submission: Submission, tail: Tail) -> Ended | None:
        """What came of it. None: a job of that chosen id exists already; it is not touched, follow it."""
        agent = self._store.join(self._name, role=submission.role)
        try:
            claim = self._store.enqueue_claimed(agent, submission)
            return None if claim is None else self._work(claim, tail)
        finally:
            self._store.leave(agent)

    def _work(self, claim: Claim, tail: Tail) -> Ended:
        try:
            outcome = self._performed(claim, tail)
            if isinstance(outcome, Released):  # stopped: nobody shall find it in the queue and start it again
                return run.ended(self._killed(claim.job_id, "stopped by whoever ran it"), {})
            if isinstance(outcome, Failed):
                outcome = replace(outcome, retryable=False)  # whoever waits here wants to know now
            told = self._store.commit(claim, outcome)
        except Lost:
            found = self._end_elsewhere(claim.job_id)
            if found is None:
                raise
            return run.ended(found, {})
        return run.ended(told, outcome.report.result)

    def _end_elsewhere(self, job_id: str) -> Lifecycle | None:
        """What became of a job that was taken from us: an operator ends its processes first, and then decides."""
        for _ in range(_LOOKS):
            found = self._store.find(job_id)
            if found is not None and found.lifecycle.terminal:
                return found.lifecycle
            self._performer.clock.sleep(_PAUSE_S)
        return None

    def _performed(self, claim: Claim, tail: Tail) -> Outcome:
        """Perform in a thread of its own, so that output is passed on, and signals are heard, meanwhile."""
        done = threading.Event()
        came: list[Outcome | BaseException] = []

        def perform() -> None:
            try:
                tick = lambda: self._store.heartbeat(claim.agent, claim)  # noqa: E731
                came.append(self._performer.perform(claim, tick, self._stop))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                came.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=perform, name="foreground")
        thread.start()
        try:
            turns = 0
            while not done.wait(LOOK_S if turns < 100 else LATER_S):
                tail.pump(claim.folder)
                turns += 1
        except BaseException:  # the reader has left, or worse: its tree ends before we let go of the job (R6)
            self._stop.request(0.0)
            thread.join()
            if came and not isinstance(came[0], BaseException):
                self._killed(claim.job_id, "stopped: nobody reads its output any more")
            raise
        thread.join()
        (result,) = came
        if isinstance(result, BaseException):
            raise result
        tail.pump(claim.folder, ended=True)
        return result

    def _killed(self, job_id: str, note: str) -> Lifecycle:
        agent = self._store.join(self._name, role=None)
        try:
            return self._store.kill(agent, job_id, note=note)
        finally:
            self._store.leave(agent)
