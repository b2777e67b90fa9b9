"""Runs a plan inside the worker: its steps in order, or several at once, from files into files.

What a plan is lives in plans; one try of one step, in tries; waiting, in watch; what came of it, in results; what an
earlier attempt has done, in resume.

However a plan ends, its processes are over before `run_plan` returns or raises (R6). A process that a successful step
leaves behind (a server for the steps after it) lives until the plan ends. What a step adds (added.py) joins the plan
when that step has succeeded; the plan is over when its processes are, its tasks are sealed, and nothing came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from farro.execution import resume
from farro.execution.added_steps import Task, TaskFolder
from farro.execution.piped_input import Along
from farro.execution.process_watch import REST_GRACE_S, Watch
from farro.execution.records import Added, Records
from farro.execution.results import Inline, PlanResult, StepResult
from farro.execution.retry_delays import Resting
from farro.execution.step import Begun, Enough, Running, Tried, Tries, input_of
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Tools
from farro.host import processes
from farro.host.clock import Clock
from farro.jobs.outcomes import ErrorInfo
from farro.lazy_dataclass import dataclass
from farro.plans.frontier import Frontier
from farro.plans.growth import grown
from farro.plans.model import AHEAD_BYTES, DEFAULT_TIMEOUT_S, Plan, Step

if TYPE_CHECKING:
    from farro.execution.confined import Confined

_LOOK_S = 0.25  # how often it is looked whether a step has said very much


def run_plan(
    plan: Plan,
    *,
    attempt_dir: str,
    job_id: str,
    base_env: Mapping[str, str],
    cwd: str,
    tools: Tools,
    claim_marker: str,
    tick: Callable[[], None],
    tick_every_s: float,
    stop: Stop,
    clock: Clock,
    root: str | None = None,
    step_timeout_s: float = DEFAULT_TIMEOUT_S,
    term_grace_s: float = processes.GRACE_S,
    earlier: Sequence[str] = (),
    durable: bool = True,
    ahead_bytes: int = AHEAD_BYTES,
    confined: Confined | None = None,
    make: Callable[[], None] | None = None,
    begun: Begun | None = None,
) -> PlanResult:
    """Run every step, or up to the first that fails. A failed step is a result; only these are raised:

    - what `tick` raises (ClaimLost): the tree was killed at once; write nothing;
    - Interrupted: `stop` was requested and the plan is not done; what ended before is in it;
    - StorageTrouble or OSError: the attempt's folder does not take files.

    `tick` is called at least every `tick_every_s`, on this thread. `claim_marker` must be this attempt's alone: every
    process that carries it is ended. `root` is what steps see as FARRO_ROOT, `step_timeout_s` the timeout of a step
    that names none. `earlier` are folders of earlier attempts, oldest first: what succeeded there is not run again.
    `durable`: successes survive a power cut. `ahead_bytes`: a step that has said more and goes on is read along by the
    step that reads it; when that one has enough, it is ended, and has succeeded. `confined`: what its steps may touch.
    `begun`: its only step, which is under way (row.py).
    """
    watch = Watch(
        marker=claim_marker,
        tick=tick,
        tick_every_s=tick_every_s,
        stop=stop,
        clock=clock,
        term_grace_s=term_grace_s,
    )
    own_env = {"FARRO_JOB": job_id, processes.MARKER: claim_marker}
    if root is not None:
        own_env["FARRO_ROOT"] = root
    tries = Tries(
        attempt_dir=attempt_dir,
        job_id=job_id,
        base_env=base_env,
        own_env=own_env,
        cwd=cwd,
        tools=tools,
        task_folder=TaskFolder(attempt_dir, clock.sleep, make),
        step_timeout_s=step_timeout_s,
        clock=clock,
        confined=confined,
        input_of=input_of(plan, attempt_dir),
    )
    tries = tries if begun is None else begun.tries
    records = Records(attempt_dir, durable=durable)
    run = _Run(plan=plan, tries=tries, records=records, watch=watch, stop=stop, clock=clock, ahead_bytes=ahead_bytes)
    try:
        if earlier:
            run.resume(earlier)
        error = tries.missing(plan, run.succeeded, run.frontier.first) if begun is None else run.adopt(begun)
        while True:
            error = error or run.steps()
            watch.end_rest(grace_s=REST_GRACE_S, look=tries.called_functions)
            error = tries.rest_judged(error)
            error = run.over() if error is None else run.sealed(error)
            if error is not None or not run.frontier.waiting:
                return run.result(error)
    except BaseException:
        run.kill()
        watch.end_rest(grace_s=0, look=tries.called_functions)
        tries.end_strays()
        raise
    finally:
        watch.close()
        records.close()


@dataclass(kw_only=True)
class _Run:
    """One run of one plan."""

    plan: Plan
    tries: Tries
    records: Records
    watch: Watch
    stop: Stop
    clock: Clock
    ahead_bytes: int

    def __post_init__(self) -> None:
        self.listed = list(self.plan.steps)  # and those that were added
        self.frontier = Frontier(self.plan.steps)
        self.readers: dict[str, list[Step]] = {}
        self._note_readers(self.plan.steps)
        self.enough: dict[str, Enough] = {}  # id of a step that is being ended → the one that read it
        self.running: list[Running] = []
        self.resting = Resting(self.clock)
        self.done: list[StepResult] = []
        self.error: ErrorInfo | None = None  # why nothing more is started
        self.stopped = False  # a step was, or is not tried again because of a stop
        self.added_by: dict[str, str] = {}
        self.succeeded: set[str] = set()
        self.inline = Inline()
        self.retryable = False
        self.retry_after_s: float | None = None
        self.started_s = self.clock.monotonic_s()
        # Without a time of its own a plan has the sum of its steps', which they keep themselves, each try its own.
        self.deadline_s = self.started_s + (math.inf if self.plan.timeout is None else self.plan.timeout)

    def resume(self, earlier: Sequence[str]) -> None:
        """Take over what earlier attempts have done."""
        past = resume.past(self.plan, earlier)
        if not past.lines:
            return
        self.done = resume.carry(past, self.tries.attempt_dir, self.inline)
        self.records.begin(past.lines)
        self._join(past.steps[len(self.listed) :])
        self.added_by.update(past.added_by)
        for ended in self.done:
            self._skip(ended.id)

    def adopt(self, begun: Begun) -> ErrorInfo | None:
        """Its only step runs already."""
        self.deadline_s, self.started_s = self.deadline_s + begun.started_s - self.started_s, begun.started_s
        if (step := self.frontier.take()) is not None:
            self.running.append(self.tries.adopt(step, begun.run, self.deadline_s))
        return None

    def steps(self) -> ErrorInfo | None:
        """Run them into `done`, and those that come meanwhile; why the plan failed, or None.

        A failure starts nothing more; what runs then goes on to its end, and counts.
        """
        while True:
            while self._may_start():
                step = self.frontier.take()
                if step is None:
                    break
                self._try(step, 1)
            self._try_again()
            if (self.stopped or (self.resting and self.stop.requested)) and not self.running:
                raise Interrupted(self.result(None))
            if not self.running and not self.resting:
                return self.error
            looking = self.tries.confined is not None or any(self._reader_of(one) for one in self.running)
            at_most_s = min(_LOOK_S if looking else math.inf, self.resting.left_s)
            over = self.watch.until_one_is_over([one.watched for one in self.running], at_most_s)
            for watched in over:
                self._over(next(one for one in self.running if one.watched is watched))
            if not over:
                self._read_along()
            for one in self.tries.in_the_way(self.running):
                self.watch.cut_off(one.watched, grace_s=0)

    def kill(self) -> None:
        """Whatever happened, nothing of it goes on."""
        self.watch.kill([one.watched for one in self.running])
        for one in self.running:
            one.close()

    def over(self) -> ErrorInfo | None:
        """The end, when every process is over: seal, and look once more. What came is waiting."""
        folder = self.tries.task_folder
        error = self._grow_late(folder.take(self.succeeded))
        if error is None and not self.frontier.waiting:
            late = folder.seal()
            error = self._grow_late(late)
            if late and error is None:
                folder.begin_again()
        return self.sealed(error) if error is not None else None

    def sealed(self, error: ErrorInfo) -> ErrorInfo:
        """The plan failed: nothing more is taken, and whoever still adds is told so."""
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
            left_processes=tuple(sorted(self.watch.left)),
            task_files=tuple(self.tries.task_folder.files),
        )

    def _may_start(self) -> bool:
        full = sum(one.along is None for one in self.running) + len(self.resting) >= self.plan.parallel
        if self.error is not None or self.stopped or full or self.frontier.first is None:
            return False
        now_s = self.watch.tick_if_due()
        if self.stop.requested:
            if self.running:
                return False
            raise Interrupted(self.result(None))
        if now_s >= self.deadline_s:
            time_s = self.deadline_s - self.started_s
            message = f"the plan's time ({time_s:g} s) was over before step {self.frontier.first}"
            self.error = ErrorInfo(category="timeout", message=message)
            return False
        return True

    def _try(self, step: Step, attempt: int) -> None:
        """Start a try of the step; when it cannot be started that is its end already."""
        beside = any(one.step.id == step.input_from_step for one in self.running)
        along = Along(self.tries.stdout(str(step.input_from_step))) if beside else None
        started = self.tries.start(step, attempt, self.deadline_s, along)
        if isinstance(started, Running):
            self.running.append(started)
        else:
            if along is not None:
                along.leave()
            self._ended(step, attempt, started, along)

    def _reader_of(self, one: Running) -> Step | None:
        """The one step that reads it, if nothing else keeps that from starting."""
        readers = self.readers.get(one.step.id, ())
        if len(readers) != 1 or self.error is not None or self.stop.requested:
            return None
        return readers[0] if self.frontier.waits_only_for(readers[0], one.step.id) else None

    def _read_along(self) -> None:
        """Start the readers of those that have said very much and go on: perhaps they end only when nobody reads."""
        for one in list(self.running):
            reader = self._reader_of(one)
            if reader is not None and self.tries.said_bytes(one.step.id) > self.ahead_bytes:
                self.frontier.take_early(reader)
                self._try(reader, 1)

    def _over(self, one: Running) -> None:
        self.running.remove(one)
        one.close()
        if one.watched.ending == "stopped":
            self.stopped = True
            return
        time_s = self.deadline_s - self.started_s
        tried = self.tries.judge(one, plan_deadline_s=self.deadline_s, plan_time_s=time_s)
        reader = next((other for other in self.running if other.step.input_from_step == one.step.id), None)
        had_enough = self.enough.pop(one.step.id, None)
        if had_enough is not None and one.watched.ending == "cut off":
            tried = self.tries.read_enough(one.step, tried, had_enough)
        elif had_enough is not None and tried.error is not None:  # it failed by itself, in the same moment
            error = f"its input, step {one.step.id}, failed"
            spoiled = replace(had_enough.tried, error=error, again=False)
            had_enough = replace(had_enough, tried=spoiled, to_blame=False)
            tried = replace(tried, again=False)
        elif reader is not None and tried.error is None:
            assert reader.along is not None
            reader.along.finish()
        elif reader is not None:
            tried = replace(tried, again=False)  # what was read is of this try
            self.watch.cut_off(reader.watched)
        self._ended(one.step, one.attempt, tried, one.along, had_enough)

    def _ended(self, step: Step, attempt: int, tried: Tried, along: Along | None, had: Enough | None = None) -> None:
        """A try is over, or could not be started. What it reads runs still: it read along, and that is ended first."""
        source = next((other for other in self.running if other.step.id == step.input_from_step), None)
        if source is not None and not self._again(step, attempt, tried):
            self.watch.cut_off(source.watched)
            passed_on = 0 if along is None else along.passed_on
            self.enough[source.step.id] = Enough(step, attempt, tried, passed_on, tried.error is not None, had)
        else:
            self._told(step, attempt, tried, had)

    def _told(self, step: Step, attempt: int, tried: Tried, had_enough: Enough | None) -> None:
        """The end of a step and of those that read along, in an order in which each success rests on an earlier one,
        and the first failure is the one that is to blame."""
        if had_enough is None:
            self._tried(step, attempt, tried)
            return
        own = (step, attempt, tried, None)
        read = (had_enough.step, had_enough.attempt, had_enough.tried, had_enough.had_enough)
        for one in (read, own) if had_enough.to_blame else (own, read):
            self._told(*one)

    def _again(self, step: Step, attempt: int, tried: Tried) -> bool:
        """Whether it failed and is tried once more."""
        more = tried.error is not None and tried.again and attempt <= step.retries
        return more and self.error is None and self.clock.monotonic_s() + step.pause_s(attempt) < self.deadline_s

    def _tried(self, step: Step, attempt: int, tried: Tried) -> None:
        """The step's end, or its next try."""
        if self._again(step, attempt, tried):
            if self.stop.requested:
                self.stopped = True
                return
            self.resting.add(step, attempt, tried)
            self._try_again()
            return
        ended = self.tries.result(step, attempt, tried, self.inline, self.added_by.get(step.id))
        self.done.append(ended)
        added: list[Added] | None = []
        if ended.success:
            self.succeeded.add(step.id)
            added = self._grow(self.tries.task_folder.take(self.succeeded))
            self.frontier.succeeded(step.id)
        elif self.error is None:
            self.retryable, self.retry_after_s = tried.passing, tried.retry_after_s
            category = tried.category or ("timeout" if ended.timed_out else "step_failed")
            self.error = ErrorInfo(category=category, message=f"step {step.id}: {ended.error}")
        # The result of a single step follows at once. A success whose tasks are wrong is not one to go on from.
        if len(self.listed) > 1 and added is not None:
            self.records.step(ended, added)

    def _try_again(self) -> None:
        """Those that have rested. Where nothing is started any more their last try was their end."""
        while one := self.resting.take(all_of_them=self.error is not None):
            if self.error is not None:
                self._ended(one.step, one.attempt, one.tried, None)
            elif self.stop.requested:
                self.stopped = True
            else:
                self.tries.put_aside(one.step, one.attempt)
                self._try(one.step, one.attempt + 1)

    def _grow_late(self, came: list[Task]) -> ErrorInfo | None:
        if added := self._grow(came):
            if not self.records.begun:  # a plan of one step, which is none any more
                self.records.step(self.done[0], ())
            self.records.late(added)
        return self.error

    def _grow(self, came: list[Task]) -> list[Added] | None:
        """Take tasks into the plan; what is wrong with them fails it. Those that were taken; None: they are wrong."""
        if not came:
            return []
        faults = [f"a task of step {task.added_by}: {task.fault}" for task in came if task.fault is not None]
        steps, problems = grown(self.listed, [task.data for task in came if task.fault is None])
        if faults or problems:
            message = "; ".join([*faults, *problems])
            self.error = self.error or ErrorInfo(category="bad_task", message=message)
            return None
        self.added_by.update((step.id, task.added_by) for step, task in zip(steps, came, strict=True))
        self._join(steps)
        return [Added(by=task.added_by, task=task.data, file=task.file) for task in came]

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
