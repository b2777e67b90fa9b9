"""Run a plan inside the worker: its steps in order, or several in parallel, from files into files.

However a plan ends, its processes are ended before `run_plan` returns or raises (R6). A process that a successful step
leaves behind (a server for later steps) lives until the plan ends. A task that a step adds joins the plan when that
step has succeeded; the plan is over when its processes are, its task folder is sealed, and no task arrived.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from farro.errors import StorageTrouble
from farro.execution import resume
from farro.execution.added_steps import AddedTask
from farro.execution.process_watch import REST_GRACE_S, ProcessWatch, RunningTry
from farro.execution.records import AcceptedTask, Records
from farro.execution.results import Inline, PlanResult, StepResult
from farro.execution.runner import TICK_S, Work
from farro.execution.step import BegunCall, FinishedReader, PipedInput, Tries, TryResult, input_of
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Tools
from farro.host import process_tree
from farro.host.clock import Clock
from farro.jobs.outcomes import AccountWait, ErrorInfo
from farro.lazy_dataclass import dataclass, replace
from farro.plans.frontier import Frontier
from farro.plans.loading import grown
from farro.plans.model import Plan, Step

if TYPE_CHECKING:
    from farro.execution.confined import Confined


_LOOK_S = 0.25  # how often to check whether a step has written very much


class DelayedTry(NamedTuple):
    """A failed try whose step is tried again later."""

    step: Step
    attempt: int  # number of the failed try
    tried: TryResult
    until_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRun:
    """The work that a plan belongs to, and what this process runs it with."""

    work: Work
    tools: Tools
    clock: Clock
    tick: Callable[[], None]  # called at least every `tick_every_s`, on the caller's thread
    tick_every_s: float = TICK_S
    stop: Stop
    term_grace_s: float = process_tree.GRACE_S
    confined: Confined | None = None  # what its steps may touch
    begun: BegunCall | None = None  # its only step, which is under way (function_batch)


def run_plan(plan: Plan, run: PlanRun) -> PlanResult:
    """Run every step, or up to the first that fails. A failed step is a result; only these are raised:

    - what `tick` raises (ClaimLost): the process tree was killed at once; write nothing;
    - Interrupted: `stop` was requested before the plan was done; it holds the steps that ended before;
    - StorageTrouble or OSError: the attempt's folder does not accept files.
    """
    steps = _Run(plan, run)
    try:
        return steps.to_end()
    except BaseException:
        steps.kill()
        raise
    finally:
        steps.close()


class _Run:
    """The state of one run of one plan."""

    def __init__(self, plan: Plan, run: PlanRun) -> None:
        self.plan = plan
        self.run = run
        self.stop = run.stop
        self.clock = run.clock
        self.watch = ProcessWatch(
            marker=run.work.marker,
            tick=run.tick,
            tick_every_s=run.tick_every_s,
            stop=run.stop,
            clock=run.clock,
            term_grace_s=run.term_grace_s,
        )
        work = run.work
        if run.begun is None:
            source = input_of(plan, work.folder)
            self.tries = Tries(work, run.tools, run.clock, confined=run.confined, input_of=source)
        else:
            self.tries = run.begun.tries
        self.records = Records(work.folder, durable=work.durable)
        self.listed = list(plan.steps)  # and added steps
        self.frontier = Frontier(plan.steps)
        self.readers: dict[str, list[Step]] = {}
        self._note_readers(plan.steps)
        self.enough: dict[str, FinishedReader] = {}  # id of a step that is being ended → its finished reader
        self.running: list[RunningTry] = []
        self.delayed: list[DelayedTry] = []  # they still count towards the number of parallel steps
        self.done: list[StepResult] = []
        self.error: ErrorInfo | None = None  # why the plan failed
        self.halted = False  # no more steps are started: it failed, and does not keep going
        self.stopped = False  # a step was stopped, or is not tried again because of a stop
        self.added_by: dict[str, str] = {}
        self.succeeded: set[str] = set()
        self.inline = Inline()
        self.retryable = False
        self.retry_after_s: float | None = None
        self.wait: AccountWait | None = None
        self.started_s = self.clock.monotonic_s()
        # Without a timeout of its own, a plan is bounded by its steps' timeouts.
        self.deadline_s = self.started_s + (math.inf if plan.timeout is None else plan.timeout)

    def to_end(self) -> PlanResult:
        """Run the plan; return when its processes are over and its task folder is sealed."""
        run, tries = self.run, self.tries
        if run.work.earlier:
            self._resume(run.work.earlier)
        error: ErrorInfo | None = None
        if run.begun is None:
            error = tries.missing_input(self.plan, self.succeeded)
        else:
            self._adopt(run.begun)
        while True:
            error = error or self._steps()
            self.watch.end_rest(grace_s=REST_GRACE_S, look=tries.called_functions)
            error = tries.judge_leftovers(error)
            error = self._seal() if error is None else self._seal_failed(error)
            if error is not None or not self.frontier.waiting:
                return self.result(error)

    def kill(self) -> None:
        """End everything that runs, and what ended steps left behind."""
        self.watch.kill(self.running)
        for one in self.running:
            one.close()
        self.watch.end_rest(grace_s=0, look=self.tries.called_functions)
        self.tries.end_leftovers()

    def close(self) -> None:
        self.watch.close()
        self.records.close()

    def _resume(self, earlier: Sequence[str]) -> None:
        """Carry over what earlier attempts did."""
        past = resume.past(self.plan, earlier)
        if not past.lines:
            return
        self.done = resume.carry(past, self.run.work.folder, self.inline)
        self.records.begin(past.lines)
        self._join(past.steps[len(self.listed) :])
        self.added_by.update(past.added_by)
        for ended in self.done:
            self._skip(ended.id)

    def _adopt(self, begun: BegunCall) -> None:
        """Take over its only step, which already runs."""
        self.deadline_s, self.started_s = self.deadline_s + begun.started_s - self.started_s, begun.started_s
        if (step := self.frontier.take()) is not None:
            self.running.append(self.tries.adopt(step, begun.run, self.deadline_s))

    def _steps(self) -> ErrorInfo | None:
        """Run the steps, and those that are added meanwhile; return why the plan failed, or None.

        After a failure no more steps are started, or with `keep_going` only those that do not depend on the failed one.
        Running steps continue to their end, and count.
        """
        while True:
            while self._may_start():
                step = self.frontier.take()
                if step is None:
                    break
                self._try(step, 1)
            self._try_again()
            if (self.stopped or (self.delayed and self.stop.requested)) and not self.running:
                raise Interrupted(self.result(None))
            if not self.running and not self.delayed:
                return self.error
            looking = self.tries.confined is not None or any(self._reader_of(one) for one in self.running)
            at_most_s = min(_LOOK_S if looking else math.inf, self._delay_left_s())
            over = self.watch.until_one_is_over(self.running, at_most_s)
            for one in over:
                self._over(one)
            if not over:
                self._pipe_ahead()
            for one in self.tries.exceeding_limits(self.running):
                self.watch.cut_off(one, grace_s=0)

    def _seal(self) -> ErrorInfo | None:
        """Seal the task folder when every process is over, and check once more. Tasks that arrived become waiting
        steps."""
        folder = self.tries.task_folder
        late = folder.seal()
        error = self._grow_late(late)
        if late and error is None:
            folder.begin_again()
        return error

    def _seal_failed(self, error: ErrorInfo) -> ErrorInfo:
        """Seal the task folder of a failed plan: later adds are refused."""
        self.tries.task_folder.seal()
        return error

    def result(self, error: ErrorInfo | None) -> PlanResult:
        return PlanResult(
            success=error is None and len(self.done) == len(self.listed),
            step_results=tuple(self.done),
            steps_total=len(self.listed),
            duration_s=self.clock.monotonic_s() - self.started_s,
            error=error,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
            wait=self.wait,
            left_processes=tuple(sorted(self.watch.left)),
            task_files=tuple(self.tries.task_folder.files),
        )

    def _may_start(self) -> bool:
        full = sum(one.piped is None for one in self.running) + len(self.delayed) >= self.plan.parallel
        if self.halted or self.stopped or full or self.frontier.first is None:
            return False
        now_s = self.watch.tick_if_due()
        if self.stop.requested:
            if self.running:
                return False
            raise Interrupted(self.result(None))
        if now_s >= self.deadline_s:
            time_s = self.deadline_s - self.started_s
            message = f"the plan's time ({time_s:g} s) was over before step {self.frontier.first}"
            self._halt(ErrorInfo(category="timeout", message=message))
            return False
        return True

    def _try(self, step: Step, attempt: int) -> None:
        """Start a try of the step; if it cannot be started, that is its end."""
        beside = any(one.step.id == step.input_from_step for one in self.running)
        piped = PipedInput(self.tries.stdout(str(step.input_from_step))) if beside else None
        started = self.tries.start(step, attempt, self.deadline_s, piped)
        if isinstance(started, RunningTry):
            self.running.append(started)
        else:
            if piped is not None:
                piped.leave()
            self._ended(step, attempt, started, piped)

    def _reader_of(self, one: RunningTry) -> Step | None:
        """Return the one step that reads its output, if nothing else keeps it from starting."""
        readers = self.readers.get(one.step.id, ())
        if len(readers) != 1 or self.halted or self.stop.requested:
            return None
        return readers[0] if self.frontier.waits_only_for(readers[0], one.step.id) else None

    def _pipe_ahead(self) -> None:
        """Start the readers of steps that have written very much and go on: such a step may end only when its reader
        does."""
        for one in list(self.running):
            reader = self._reader_of(one)
            if reader is not None and self.tries.written_bytes(one.step.id) > self.run.work.ahead_bytes:
                self.frontier.take_early(reader)
                self._try(reader, 1)

    def _over(self, one: RunningTry) -> None:
        self.running.remove(one)
        one.close()
        if one.ending == "stopped":
            self.stopped = True
            return
        time_s = self.deadline_s - self.started_s
        tried = self.tries.judge(one, plan_deadline_s=self.deadline_s, plan_time_s=time_s)
        reader = next((other for other in self.running if other.step.input_from_step == one.step.id), None)
        had_enough = self.enough.pop(one.step.id, None)
        if had_enough is not None and one.ending == "cut off":
            tried = self.tries.read_enough(one.step, tried, had_enough)
        elif had_enough is not None and tried.error is not None:  # it failed by itself at the same moment
            error = f"its input, step {one.step.id}, failed"
            spoiled = replace(had_enough.tried, error=error, again=False)
            had_enough = replace(had_enough, tried=spoiled, to_blame=False)
            tried = replace(tried, again=False)
        elif reader is not None and tried.error is None:
            assert reader.piped is not None
            reader.piped.finish()
        elif reader is not None:
            tried = replace(tried, again=False)  # the reader has read this try's output
            self.watch.cut_off(reader)
        self._ended(one.step, one.attempt, tried, one.piped, had_enough)

    def _ended(
        self, step: Step, attempt: int, tried: TryResult, piped: PipedInput | None, had: FinishedReader | None = None
    ) -> None:
        """Handle a try that is over, or could not be started. If its input still runs, that is ended first."""
        source = next((other for other in self.running if other.step.id == step.input_from_step), None)
        if source is not None and not self._again(step, attempt, tried):
            self.watch.cut_off(source)
            passed_on = 0 if piped is None else piped.passed_on
            self.enough[source.step.id] = FinishedReader(step, attempt, tried, passed_on, tried.error is not None, had)
        else:
            self._record_ended(step, attempt, tried, had)

    def _record_ended(self, step: Step, attempt: int, tried: TryResult, had_enough: FinishedReader | None) -> None:
        """Record the end of a step and of its reader, in an order in which each success depends on an earlier one,
        and the first failure is the cause."""
        if had_enough is None:
            self._tried(step, attempt, tried)
            return
        own = (step, attempt, tried, None)
        read = (had_enough.step, had_enough.attempt, had_enough.tried, had_enough.had_enough)
        for one in (read, own) if had_enough.to_blame else (own, read):
            self._record_ended(*one)

    def _again(self, step: Step, attempt: int, tried: TryResult) -> bool:
        """Return whether it failed and is tried again."""
        more = tried.error is not None and tried.again and attempt <= step.retries
        return more and not self.halted and self.clock.monotonic_s() + step.pause_s(attempt) < self.deadline_s

    def _tried(self, step: Step, attempt: int, tried: TryResult) -> None:
        """Record the step's end, or schedule its next try."""
        if self._again(step, attempt, tried):
            if self.stop.requested:
                self.stopped = True
                return
            self.delayed.append(DelayedTry(step, attempt, tried, self.clock.monotonic_s() + step.pause_s(attempt)))
            self._try_again()
            return
        ended = self.tries.result(step, attempt, tried, self.inline, self.added_by.get(step.id))
        self.done.append(ended)
        added: list[AcceptedTask] | None = []
        if ended.success:
            self.succeeded.add(step.id)
            added = self._grow(self.tries.task_folder.take(self.succeeded))
            self.frontier.succeeded(step.id)
        else:
            if self.error is None:
                self.retryable, self.retry_after_s, self.wait = tried.passing, tried.retry_after_s, tried.wait
                category = tried.category or ("timeout" if ended.timed_out else "step_failed")
                self.error = ErrorInfo(category=category, message=f"step {step.id}: {ended.error}")
            self.halted = self.halted or not self.plan.keep_going
        # The result of a single step follows at once. A success with invalid tasks must not be resumed from.
        if len(self.listed) > 1 and added is not None:
            # The line of a failure is for progress displays only: a full disk may lose it.
            with contextlib.suppress(*(() if ended.success else (StorageTrouble, OSError))):
                self.records.step(ended, added)

    def _try_again(self) -> None:
        """Start tries whose delay is over. If no more steps are started, their last try was their end."""
        while self.delayed and (self.halted or self._delay_left_s() <= 0):
            one = min(self.delayed, key=lambda delayed: delayed.until_s)
            self.delayed.remove(one)
            if self.halted:
                self._ended(one.step, one.attempt, one.tried, None)
            elif self.stop.requested:
                self.stopped = True
            else:
                self.tries.put_aside(one.step, one.attempt)
                self._try(one.step, one.attempt + 1)

    def _delay_left_s(self) -> float:
        """Return how long until the first delay is over."""
        until_s = min((one.until_s for one in self.delayed), default=math.inf)
        return until_s - self.clock.monotonic_s()

    def _grow_late(self, came: list[AddedTask]) -> ErrorInfo | None:
        if added := self._grow(came):
            if not self.records.begun:  # a plan of one step that has grown
                self.records.step(self.done[0], ())
            self.records.late(added)
        return self.error

    def _grow(self, came: list[AddedTask]) -> list[AcceptedTask] | None:
        """Add tasks to the plan and return them. None: some are invalid, and the plan fails."""
        if not came:
            return []
        faults = [f"a task of step {task.added_by}: {task.fault}" for task in came if task.fault is not None]
        steps, problems = grown(self.listed, [task.data for task in came if task.fault is None])
        if faults or problems:
            message = "; ".join([*faults, *problems])
            self._halt(ErrorInfo(category="bad_task", message=message))
            return None
        self.added_by.update((step.id, task.added_by) for step, task in zip(steps, came, strict=True))
        self._join(steps)
        return [AcceptedTask(by=task.added_by, task=task.data, file=task.file) for task in came]

    def _halt(self, error: ErrorInfo) -> None:
        """Start no more steps; the plan fails for this reason, unless it has failed before."""
        self.error = self.error or error
        self.halted = True

    def _note_readers(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.input_from_step is not None:
                self.readers.setdefault(step.input_from_step, []).append(step)

    def _join(self, steps: Sequence[Step]) -> None:
        self._note_readers(steps)
        self.listed += steps
        self.frontier.add(steps)

    def _skip(self, step_id: str) -> None:
        self.succeeded.add(step_id)
        self.frontier.skip(step_id)
