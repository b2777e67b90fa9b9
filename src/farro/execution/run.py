"""Runs a plan inside the worker: one step after the other, from files into files.

What a plan is lives in plans; how a process is started and ended, in system; waiting, in watch; what came of it, in
results.

One step is one pipeline: find → start → watch → judge → read what it said. However a plan ends, its processes are over
before `run_plan` returns or raises (R6). A process that a successful step leaves behind (a server for the steps after
it) lives until the plan ends. What a step adds (added.py) joins the plan when that step has succeeded; the plan is over
when its processes are, its tasks are sealed, and nothing came. Tests: tests/execution.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from farro import tasks
from farro.execution import commands, results
from farro.execution.added import Environment, Task, TaskFolder
from farro.execution.commands import Command, Executable, InWorker, Missing
from farro.execution.functions import FunctionRun
from farro.execution.results import PlanResult, StepResult
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Call, Tools
from farro.execution.watch import REST_GRACE_S, Watch
from farro.kernel.outcome import ErrorInfo
from farro.plans.graph import order
from farro.plans.growth import grown
from farro.plans.model import DEFAULT_TIMEOUT_S, Plan, Step
from farro.ports.clock import Clock
from farro.system import fs, processes
from farro.system.processes import Exit, NotStarted, Process


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
) -> PlanResult:
    """Run every step, or up to the first that fails. A failed step is a result; only these are raised:

    - what `tick` raises (ClaimLost): the tree was killed at once; write nothing;
    - Interrupted: `stop` was requested and the plan is not done; what ended before is in it;
    - StorageTrouble or OSError: the attempt's folder does not take files.

    `tick` is called at least every `tick_every_s`, on this thread. `claim_marker` must be this attempt's alone: every
    process that carries it is ended. `root` is what steps see as FARRO_ROOT, `step_timeout_s` the timeout of a step
    that names none.
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
    run = _Run(
        plan=plan,
        attempt_dir=attempt_dir,
        job_id=job_id,
        base_env=base_env,
        own_env=own_env,
        cwd=cwd,
        tools=tools,
        step_timeout_s=step_timeout_s,
        watch=watch,
        stop=stop,
        clock=clock,
    )
    try:
        error = run.missing()
        while True:
            error = error or run.steps_in_order()
            watch.end_rest(grace_s=REST_GRACE_S, look=run.called_functions)
            error = run.over() if error is None else run.sealed(error)
            if error is not None or not run.waiting:
                return run.result(error)
    except BaseException:
        watch.end_rest(grace_s=0, look=run.called_functions)
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Try:
    """One try of one step."""

    exit: Exit
    error: str | None
    timed_out: bool = False
    again: bool = True  # another try may end otherwise
    passing: bool = False  # the machine's trouble


class _PlanTimeout(Exception):
    """The plan's own time is over, and no step is running."""


@dataclass(kw_only=True)
class _Run:
    """One run of one plan: what the stages of the pipeline share."""

    plan: Plan
    attempt_dir: str
    job_id: str
    base_env: Mapping[str, str]
    own_env: Mapping[str, str]
    cwd: str
    tools: Tools
    step_timeout_s: float
    watch: Watch
    stop: Stop
    clock: Clock

    def __post_init__(self) -> None:
        self.steps = list(self.plan.steps)  # and those that were added
        self.waiting = list(order(self.plan))  # added ones come last, and may wait for one another
        self.added_by: dict[str, str] = {}
        self.tasks = TaskFolder(self.attempt_dir, self.clock.sleep)
        self.found: dict[str, Command] = {}
        self.made: set[str] = set()  # folders of this attempt
        self.done: list[StepResult] = []
        self.called_functions = False
        self.retryable = False
        self.started_s = self.clock.monotonic_s()
        self.deadline_s = self.started_s + self.plan.timeout_s(self.step_timeout_s)

    def missing(self) -> ErrorInfo | None:
        """What cannot be executed, told before anything is."""
        places = {step.id: place for place, step in enumerate(self.plan.steps)}
        missing = [
            f"steps[{places[step.id]}] ({step.id}): {found.message}"
            for index, step in enumerate(self.waiting)
            if isinstance(found := self._find(step, may_appear=index > 0), Missing)
        ]
        return ErrorInfo(category="missing_tool", message="; ".join(missing)) if missing else None

    def steps_in_order(self) -> ErrorInfo | None:
        """Run them into `done`, and those that come meanwhile; why the plan failed, or None."""
        while self.waiting:
            step = self._next()
            try:
                ended = self._step(step)
            except _PlanTimeout:
                time_s = self.deadline_s - self.started_s
                return ErrorInfo(
                    category="timeout", message=f"the plan's time ({time_s:g} s) was over before step {step.id}"
                )
            self.done.append(ended)
            if not ended.success:
                category = "timeout" if ended.timed_out else "step_failed"
                return ErrorInfo(category=category, message=f"step {step.id}: {ended.error}")
            if (error := self._grow(self.tasks.take())) is not None:
                return error
        return None

    def over(self) -> ErrorInfo | None:
        """The end, when every process is over: seal, and look once more. What came is in `waiting`."""
        error = self._grow(self.tasks.take())
        if error is None and not self.waiting:
            error = self._grow(self.tasks.seal())
            if self.waiting:
                self.tasks.begin_again()
        return self.sealed(error) if error is not None else None

    def sealed(self, error: ErrorInfo) -> ErrorInfo:
        """The plan failed: nothing more is taken, and whoever still adds is told so."""
        self.tasks.seal()
        return error

    def result(self, error: ErrorInfo | None) -> PlanResult:
        return PlanResult(
            success=error is None and len(self.done) == len(self.steps),
            step_results=tuple(self.done),
            steps_total=len(self.steps),
            duration_s=self.clock.monotonic_s() - self.started_s,
            error=error,
            retryable=self.retryable,
            left_processes=tuple(sorted(self.watch.left)),
            task_files=tuple(self.tasks.files),
        )

    def _next(self) -> Step:
        """The first that waits for nobody; there is one, because no steps wait for each other."""
        over = {ended.id for ended in self.done}
        place = next(place for place, step in enumerate(self.waiting) if over.issuperset(step.depends_on))
        return self.waiting.pop(place)

    def _grow(self, came: list[Task]) -> ErrorInfo | None:
        """Take tasks into the plan; what is wrong with them fails it."""
        if not came:
            return None
        faults = [f"a task of step {task.added_by}: {task.fault}" for task in came if task.fault is not None]
        steps, problems = grown(self.steps, [task.data for task in came if task.fault is None])
        if faults or problems:
            return ErrorInfo(category="bad_task", message="; ".join([*faults, *problems]))
        self.steps += steps
        self.waiting += steps
        self.added_by.update((step.id, task.added_by) for step, task in zip(steps, came, strict=True))
        if self.plan.timeout is None:  # else the plan has a time of its own
            self.deadline_s += sum(step.timeout_s(self.step_timeout_s) for step in steps)
        return None

    def _step(self, step: Step) -> StepResult:
        relative = f"steps/{step.id}"
        folder = f"{self.attempt_dir}/{relative}"
        attempt = 1
        while True:
            self._may_start()
            tried = self._try(step, folder)
            if tried.error is None or not tried.again or attempt > step.retries:
                break
            self.tasks.drop(step.id)
            for name in ("stdout", "stderr"):  # the names without a number are those of the try that counts
                with contextlib.suppress(FileNotFoundError):
                    fs.move(f"{folder}/{name}", f"{folder}/{name}.{attempt}")
            attempt += 1
        self.retryable = tried.passing
        stdout = results.said(self.attempt_dir, f"{relative}/stdout")
        stderr = results.said(self.attempt_dir, f"{relative}/stderr")
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
            last_words="" if tried.error is None else results.last_words([f"{folder}/stderr", f"{folder}/stdout"]),
            added_by=self.added_by.get(step.id),
        )

    def _may_start(self) -> None:
        self.watch.tick_if_due()
        if self.stop.requested:
            raise Interrupted(self.result(None))
        if self.clock.monotonic_s() >= self.deadline_s:
            raise _PlanTimeout

    def _try(self, step: Step, folder: str) -> _Try:
        command = self.found.get(step.id) or self._find(step, may_appear=False)
        if isinstance(command, Missing):
            return _Try(exit=_no_exit(127), error=command.message, again=False)
        started = self._start(step, command, folder)
        if isinstance(started, NotStarted):
            passing = started.passing
            return _Try(exit=_no_exit(started.code), error=started.message, again=passing, passing=passing)
        try:
            return self._judge(step, started)
        finally:
            if isinstance(started, FunctionRun):
                started.close()

    def _start(self, step: Step, command: Command, folder: str) -> Process | FunctionRun | NotStarted:
        source = step.input_from_step
        stdin = None if source is None else f"{self.attempt_dir}/steps/{source}/stdout"
        if stdin is not None and not fs.exists(stdin):
            stdin = None  # a function that said nothing
        stdout, stderr = f"{folder}/stdout", f"{folder}/stderr"
        env, cwd = self._env(step), self._cwd(step)
        if isinstance(command, Executable):
            self._mkdir(f"{self.attempt_dir}/steps")
            self._mkdir(folder)
            self.tasks.open()
            return processes.start(
                command.argv, executable=command.file, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env
            )
        self.called_functions = True

        def call(stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO) -> Call:
            return Call(
                command=step.command,
                args=tuple(step.args),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=Environment(env, self.tasks),
                cwd=cwd,
                job_id=self.job_id,
                attempt_dir=self.attempt_dir,
            )

        return FunctionRun(command.function, call, stdin=stdin, stdout=stdout, stderr=stderr)

    def _judge(self, step: Step, started: Process | FunctionRun) -> _Try:
        timeout_s = step.timeout_s(self.step_timeout_s)
        deadline_s = self.clock.monotonic_s() + timeout_s
        ending = self.watch.until_end(started, min(deadline_s, self.deadline_s))
        ended = started.exit or _no_exit(137)  # killed, and still not gone: it is in `watch.left`
        if ending == "stopped":
            raise Interrupted(self.result(None))
        if ending == "timed out":
            whose = f"the step's timeout of {timeout_s:g} s"
            if self.deadline_s < deadline_s:
                whose = f"the plan's timeout of {self.deadline_s - self.started_s:g} s"
            return _Try(exit=ended, timed_out=True, error=f"ended after {whose}", again=self.deadline_s > deadline_s)
        if ended.code in step.ok_exit_codes:
            return _Try(exit=ended, error=None)
        return _Try(exit=ended, error=f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}")

    def _find(self, step: Step, *, may_appear: bool) -> Command | Missing:
        found = commands.find(
            step,
            tools=self.tools,
            env=self._env(step),
            cwd=self._cwd(step),
            attempt_dir=self.attempt_dir,
            may_appear=may_appear,
        )
        if isinstance(found, InWorker) or (isinstance(found, Executable) and found.file is not None):
            self.found[step.id] = found
        return found

    def _env(self, step: Step) -> dict[str, str]:
        # farro's own come last: a step that could replace FARRO_CLAIM would not be found when its tree is ended.
        return {
            **self.base_env,
            **step.env,
            **self.own_env,
            tasks.FOLDER: self.tasks.path,
            tasks.STEP: step.id,
        }

    def _cwd(self, step: Step) -> str:
        return self.cwd if step.cwd is None else os.path.join(self.cwd, step.cwd)

    def _mkdir(self, path: str) -> None:
        if path not in self.made:
            with contextlib.suppress(FileExistsError):
                fs.retried(lambda: fs.mkdir(path), path, self.clock.sleep)
            self.made.add(path)


def _no_exit(code: int) -> Exit:
    return Exit(code=code, signal=None, duration_s=0.0, user_s=0.0, system_s=0.0, max_rss_kb=0)
