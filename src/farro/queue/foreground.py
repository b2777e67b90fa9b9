"""One job in the foreground: submitted, claimed and performed here, its output passed on while it runs.

A worker's loop over a queue lives in worker; output and exit codes live in operations.run.

The job is claimed in the same step as it is submitted, so it runs here, with this environment, and not in whichever
worker is faster. When this process dies it is recovered like any worker's: stale, and then anybody's.
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
from farro.queue.follow import Ended, Tail
from farro.store.port import Claim, Store, Submission
from farro.worker.perform import Performer

_LOOKS, _PAUSE_S = 100, 0.02
BEAT_S = 1.0
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
        """To its end: an outcome that is there is committed, whatever became of whoever reads the output."""
        outcome: Outcome | None = None
        result: Mapping[str, Any] = {}
        try:
            outcome, trouble = self._performed(claim, tail)
            if isinstance(outcome, Released):  # stopped: nobody shall find it in the queue and start it again
                told = self._killed(
                    claim.job_id, "stopped by whoever ran it" if trouble is None else f"stopped: {trouble}"
                )
            else:
                if isinstance(outcome, Failed):
                    outcome = replace(outcome, retryable=False)  # whoever waits here wants to know now
                told, result = self._store.commit(claim, outcome), outcome.report.result
        except Lost as lost:
            found = self._end_elsewhere(claim.job_id)
            if found is None:
                raise type(lost)(f"{lost}. {_left(claim.job_id, outcome)}") from lost
            return follow.ended(found, {})
        except TryAgain as error:
            if outcome is None:
                raise
            raise StorageTrouble(f"{_left(claim.job_id, outcome)}. What went wrong: {error}") from error
        if trouble is not None:
            raise trouble
        return follow.ended(told, result)

    def _end_elsewhere(self, job_id: str) -> Lifecycle | None:
        """What became of a job that was taken from us: an operator ends its processes first, and then decides."""
        for _ in range(_LOOKS):
            found = self._store.find(job_id)
            if found is not None and found.lifecycle.terminal:
                return found.lifecycle
            self._performer.clock.sleep(_PAUSE_S)
        return None

    def _performed(self, claim: Claim, tail: Tail) -> tuple[Outcome, BaseException | None]:
        """Perform in a thread of its own, so that output is passed on, and signals are heard, meanwhile. What came of
        it, and why its output could not be passed on: whoever has left ends it, as a shell's pipe would."""
        over, passed_on = threading.Event(), threading.Event()
        came: list[Outcome | BaseException] = []

        def perform() -> None:
            try:
                came.append(self._performer.perform(claim, lambda: self._beat(claim), self._stop))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                came.append(error)
            finally:
                over.set()
            # Its last words take as long as their reader likes (a pager): the job is still ours meanwhile.
            while not passed_on.wait(BEAT_S):
                with contextlib.suppress(FarroError):  # the commit is told
                    self._store.heartbeat(claim.agent, claim)

        thread = threading.Thread(target=perform, name="foreground")
        thread.start()
        trouble: BaseException | None = None
        turns = 0
        while trouble is None and not over.wait(LOOK_S if turns < 100 else LATER_S):
            trouble = _passed_on(tail, claim)
            turns += 1
        if trouble is not None:
            self._stop.request(0.0)  # its tree ends before we let go of the job (R6)
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
        """A store that cannot be reached is no reason to end the command: the commit is told."""
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
    except BaseException as error:  # noqa: BLE001 - raised when the job is in safety
        return error
    return None


def _left(job_id: str, outcome: Outcome | None) -> str:
    """What to expect of a job whose end could not be written down."""
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
