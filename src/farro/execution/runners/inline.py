"""The inline runner: the plan runs inside the worker, on the slot's own thread.

No start-up cost, but Python tools without a timeout are not separated from the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farro.execution.function_batch import run_batch
from farro.execution.runner import TICK_S, Work
from farro.execution.step import BegunCall
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import AgentSteps, PlanCache, failed, perform_work
from farro.host.clock import Clock
from farro.jobs.outcomes import Outcome


class InlineRun:
    """The handle of one run. The work is done in `wait`: there is no other thread for it."""

    __slots__ = ("alive", "begun", "ended", "work")

    def __init__(self, work: Work, begun: BegunCall | None = None) -> None:
        self.work = work
        self.begun = begun  # the call that `run` began
        self.alive = begun is None or not begun.over
        self.ended = False  # by `terminate`


class _Terminated(BaseException):
    """Raised out of a tick: run_plan ends everything at once. Not an Exception, which would become an outcome there."""


class InlineRunner:
    """Port: Runner, inside the worker."""

    def __init__(
        self, *, tools: Tools, clock: Clock, tick_every_s: float = TICK_S, agents: AgentSteps | None = None
    ) -> None:
        self._tools = tools
        self._agents = agents
        self._clock = clock
        self._tick_every_s = tick_every_s
        self._plans = PlanCache()

    def run(self, batch: Sequence[Work]) -> list[Outcome | InlineRun]:
        begun = run_batch(batch, plans=self._plans, tools=self._tools, clock=self._clock)
        return [
            InlineRun(work, came) if isinstance(came, BegunCall) else came
            for work, came in zip(batch, begun, strict=False)
        ]

    def spawn(self, work: Work, *, tick: Callable[[], None], stop: Stop) -> InlineRun:
        return InlineRun(work)

    def is_alive(self, run: InlineRun) -> bool:
        return run.alive

    def terminate(self, run: InlineRun) -> None:
        """End the run at its next tick."""
        run.ended = True

    def wait(self, run: InlineRun, *, tick: Callable[[], None], stop: Stop) -> Outcome:
        def own_tick() -> None:
            if run.ended:
                raise _Terminated
            tick()

        try:
            return perform_work(
                run.work,
                plans=self._plans,
                tools=self._tools,
                clock=self._clock,
                tick=own_tick,
                stop=stop,
                tick_every_s=self._tick_every_s,
                agents=self._agents,
                begun=run.begun,
            )
        except _Terminated:
            return failed(run.work.job_id, "runner_died", "the run was terminated", retryable=True)
        finally:
            run.alive = False
