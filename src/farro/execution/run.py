"""Runs a plan inside the worker: its steps in order, or several at once, from files into files.

What a plan is lives in plans; one try of one step, in tries; waiting, in watch; what came of it, in results; what an
earlier attempt has done, in resume.

However a plan ends, its processes are over before `run_plan` returns or raises (R6). A process that a successful step
leaves behind (a server for the steps after it) lives until the plan ends. What a step adds (added.py) joins the plan
when that step has succeeded; the plan is over when its processes are, its tasks are sealed, and nothing came. Tests:
tests/execution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farro.execution import results, resume
from farro.execution.added import Task, TaskFolder
from farro.execution.commands import Missing
from farro.execution.records import Added, Records
from farro.execution.results import Inline, PlanResult, StepResult
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Tools
from farro.execution.tries import Running, Tried, Tries
from farro.execution.watch import REST_GRACE_S, Watch
from farro.kernel.outcome import ErrorInfo
from farro.plans.frontier import Frontier
from farro.plans.growth import grown
from farro.plans.model import DEFAULT_TIMEOUT_S, Plan, Step
from farro.ports.clock import Clock
from farro.system import processes


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
) -> PlanResult:
    """Run every step, or up to the first that fails. A failed step is a result; only these are raised:

    - what `tick` raises (ClaimLost): the tree was killed at once; write nothing;
    - Interrupted: `stop` was requested and the plan is not done; what ended before is in it;
    - StorageTrouble or OSError: the attempt's folder does not take files.

    `tick` is called at least every `tick_every_s`, on this thread. `claim_marker` must be this attempt's alone: every
    process that carries it is ended. `root` is what steps see as FARRO_ROOT, `step_timeout_s` the timeout of a step
    that names none. `earlier` are folders of earlier attempts, oldest first: what succeeded there is not run again.
    `durable`: successes survive a power cut.
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
        task_folder=TaskFolder(attempt_dir, clock.sleep),
        step_timeout_s=step_timeout_s,
        clock=clock,
    )
    records = Records(attempt_dir, durable=durable)
    run = _Run(plan=plan, tries=tries, records=records, watch=watch, stop=stop, clock=clock)
    try:
        if earlier:
            run.resume(earlier)
        error = run.missing()
        while True:
            error = error or run.steps()
            watch.end_rest(grace_s=REST_GRACE_S, look=tries.called_functions)
            error = run.over() if error is None else run.sealed(error)
            if error is not None or not run.frontier.waiting:
                return run.result(error)
    except BaseException:
        run.kill()
        watch.end_rest(grace_s=0, look=tries.called_functions)
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

    def __post_init__(self) -> None:
        self.listed = list(self.plan.steps)  # and those that were added
        self.frontier = Frontier(self.plan.steps)
        self.running: list[Running] = []
        self.done: list[StepResult] = []
        self.error: ErrorInfo | None = None  # why nothing more is started
        self.stopped = False  # a step was, or is not tried again because of a stop
        self.added_by: dict[str, str] = {}
        self.succeeded: set[str] = set()
        self.inline = Inline()
        self.retryable = False
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

    def missing(self) -> ErrorInfo | None:
        """What cannot be executed, told before anything is."""
        places = {step.id: place for place, step in enumerate(self.plan.steps)}
        first = self.frontier.first
        missing = [
            f"steps[{places[step.id]}] ({step.id}): {found.message}"
            for step in self.plan.steps
            if step.id not in self.succeeded
            and isinstance(found := self.tries.find(step, may_appear=step.id != first), Missing)
        ]
        return ErrorInfo(category="missing_tool", message="; ".join(missing)) if missing else None

    def steps(self) -> ErrorInfo | None:
        """Run them into `done`, and those that come meanwhile; why the plan failed, or None.

        A failure starts nothing more; what runs then goes on to its end, and counts.
        """
        while True:
            while (
                self.error is None and not self.stopped and len(self.running) < self.plan.parallel and self._may_start()
            ):
                step = self.frontier.take()
                if step is None:
                    break
                self._try(step, 1)
            if self.stopped and not self.running:
                raise Interrupted(self.result(None))
            if not self.running:
                return self.error
            over = self.watch.until_one_is_over([one.watched for one in self.running])
            for watched in over:
                self._over(next(one for one in self.running if one.watched is watched))

    def kill(self) -> None:
        """Whatever happened, nothing of it goes on."""
        self.watch.kill([one.watched for one in self.running])
        for one in self.running:
            one.watched.close()

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
            left_processes=tuple(sorted(self.watch.left)),
            task_files=tuple(self.tries.task_folder.files),
        )

    def _may_start(self) -> bool:
        full = len(self.running) >= self.plan.parallel
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
        started = self.tries.start(step, attempt, self.deadline_s)
        if isinstance(started, Running):
            self.running.append(started)
        else:
            self._tried(step, attempt, started)

    def _over(self, one: Running) -> None:
        self.running.remove(one)
        one.watched.close()
        if one.watched.ending == "stopped":
            self.stopped = True
            return
        time_s = self.deadline_s - self.started_s
        tried = self.tries.judge(one, plan_deadline_s=self.deadline_s, plan_time_s=time_s)
        self._tried(one.step, one.attempt, tried)

    def _tried(self, step: Step, attempt: int, tried: Tried) -> None:
        """The step's end, or its next try."""
        again = tried.error is not None and tried.again and attempt <= step.retries
        if again and self.error is None and self.clock.monotonic_s() < self.deadline_s:
            if self.stop.requested:
                self.stopped = True
                return
            self.tries.put_aside(step, attempt)
            self._try(step, attempt + 1)
            return
        ended = self._result(step, attempt, tried)
        self.done.append(ended)
        added: list[Added] | None = []
        if ended.success:
            self.succeeded.add(step.id)
            added = self._grow(self.tries.task_folder.take(self.succeeded))
            self.frontier.succeeded(step.id)
        elif self.error is None:
            self.retryable = tried.passing
            category = "timeout" if ended.timed_out else "step_failed"
            self.error = ErrorInfo(category=category, message=f"step {step.id}: {ended.error}")
        # The result of a single step follows at once. A success whose tasks are wrong is not one to go on from.
        if len(self.listed) > 1 and added is not None:
            self.records.step(ended, added)

    def _result(self, step: Step, attempt: int, tried: Tried) -> StepResult:
        folder, relative = self.tries.attempt_dir, f"steps/{step.id}"
        stdout = self.inline.said(folder, f"{relative}/stdout")
        stderr = self.inline.said(folder, f"{relative}/stderr")
        paths = [f"{folder}/{relative}/stderr", f"{folder}/{relative}/stdout"]
        return StepResult(
            step_number=step.step_number,
            id=step.id,
            stdout=stdout.text,
            stderr=stderr.text,
            stdout_truncated=stdout.truncated,
            stderr_truncated=stderr.truncated,
            stdout_path=stdout.path,
            stderr_path=stderr.path,
            exit_code=tried.exit.code,
            success=tried.error is None,
            timed_out=tried.timed_out,
            duration_s=tried.exit.duration_s,
            user_s=tried.exit.user_s,
            system_s=tried.exit.system_s,
            max_rss_kb=tried.exit.max_rss_kb,
            attempts=attempt,
            error=tried.error,
            last_words="" if tried.error is None else results.last_words(paths),
            added_by=self.added_by.get(step.id),
        )

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

    def _join(self, steps: Sequence[Step]) -> None:
        self.listed += steps
        self.frontier.add(steps)

    def _skip(self, step_id: str) -> None:
        self.succeeded.add(step_id)
        self.frontier.skip(step_id)
