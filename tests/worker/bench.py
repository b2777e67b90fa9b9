"""Share between these tests slots on any store, scripted performers, and a log that records its lines.

The stores under test are those of tests/contracts. Time is a ManualClock wherever it matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from contracts.adapters import Adapter
from farro.errors import FarroError
from farro.execution.stop import Stop
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Report, Succeeded
from farro.store.port import Claim, JobView, Submission
from farro.worker.perform import BegunJob
from farro.worker.worker import Slot, Turn, Until, Worker, WorkerSetup
from stage import plan

LONG_S = 3600.0  # no test waits so long: a wait that ends earlier was woken
JOIN_S = 60.0


class Log:
    """A log that records its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((level, message, fields))

    def events(self) -> list[str]:
        return [fields["event"]["type"] for _, _, fields in self.lines if "event" in fields]

    def messages(self, level: str) -> list[str]:
        return [message for seen, message, _ in self.lines if seen == level]


def succeed(claim: Claim) -> Outcome:
    return Succeeded(report=Report(result={"job_id": claim.job_id}, markdown="done\n"))


def fail(claim: Claim, *, retryable: bool = False) -> Outcome:
    error = ErrorInfo(category="step_failed", message="no")
    return Failed(error=error, report=Report(result={}, markdown="no\n"), retryable=retryable)


@dataclass
class Scripted:
    """A performer that calls `does` and records the claims that it was given."""

    does: Callable[[Claim], Outcome] = succeed
    seen: list[str] = field(default_factory=list)
    tick: Callable[[], None] = lambda: None

    def begin(self, claims: Iterable[Claim], stop: Stop) -> list[Outcome | BegunJob]:
        return [BegunJob(runner=cast(Any, self), work=cast(Any, next(iter(claims))))]

    def finish(self, begun: BegunJob, tick: Callable[[], None], stop: Stop) -> Outcome:
        claim = cast(Claim, begun.work)
        return self.perform(claim, tick, stop)

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        self.seen.append(claim.job_id)
        self.tick = tick
        return self.does(claim)


@dataclass
class Turns:
    """Run until so many turns are done, without waiting in between."""

    left: int
    patience_s: float = 0.0
    told: list[Turn] = field(default_factory=list)

    def over(self, turn: Turn) -> bool:
        self.told.append(turn)
        self.left -= 1
        return self.left == 0


class Bench:
    """One store, and slots on it."""

    def __init__(self, kit: Adapter) -> None:
        self.kit = kit
        self.store = kit.store
        self.clock = kit.clock
        self.log = Log()
        self.stop = Stop(kit.clock)

    def enqueue(self, job_id: str, **more: Any) -> str:
        return self.store.enqueue(Submission(role="Runner", prompt=plan(**more), job_id=job_id))

    def slot(self, performer: Any = None, *, tags: tuple[str, ...] = (), number: int = 0, **more: Any) -> Slot:
        stop = more.pop("stop", self.stop)
        return Slot(self.setup(performer, tags=tags, **more), stop, number)

    def setup(self, performer: Any = None, **more: Any) -> WorkerSetup:
        options = {"store": self.store, "role": "Runner", "name": "worker", **more}
        return WorkerSetup(performer=performer or Scripted(), clock=self.clock, log=self.log, idle_s=LONG_S, **options)

    def worker(self, performer: Any = None, *, slots: int = 2, until: Until | None = None, **more: Any) -> Worker:
        return Worker(self.setup(performer, **more), slots=slots, until=until or Patient())

    def view(self, job_id: str) -> JobView:
        found = self.store.find(job_id)
        assert found is not None
        return found

    def agents(self) -> list[str]:
        return [agent.id for agent in self.store.agents()]


class Patient:
    """Run for ever; an idle slot sleeps until it is woken."""

    patience_s = LONG_S

    def over(self, turn: Turn) -> bool:
        return False


class Running:
    """Run a worker in the background and wait for its end."""

    def __init__(self, worker: Worker) -> None:
        self.failure: BaseException | None = None
        self._worker = worker
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._worker.run()
        except FarroError as failure:
            self.failure = failure

    def ended(self) -> None:
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive(), "the worker did not end"
