"""Runs a plan inside the worker: one step after the other, from files into files.

What a plan is lives in plans; how a process is started and ended lives in system; what came of it, in results.

One step is one pipeline: find → start → watch → read what it said → judge. While it runs, `_watch` is the only
loop: it keeps four times (the tick, the step's and the plan's timeout, the grace of a stop) and sleeps in the kernel
between them. However a plan ends, its processes are over before `run_plan` returns or raises (R6).

A process that a successful step leaves behind (a server for the steps after it) lives until the plan ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from farro import plans
from farro.execution import commands, results
from farro.execution.commands import Command, Executable, InWorker, Missing
from farro.execution.functions import FunctionRun
from farro.execution.results import PlanResult, StepResult
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Call, Tools
from farro.kernel.outcome import ErrorInfo
from farro.plans import Plan, Step
from farro.ports.clock import Clock
from farro.system import fs, processes
from farro.system.processes import Exit, NotStarted, Process

STEP_TIMEOUT_S = 1800.0
TERM_GRACE_S = processes.GRACE_S  # after a timeout: SIGTERM, this, SIGKILL
REST_GRACE_S = 2.0  # after a stop's own grace, and for what is left when the plan is over: a daemon leaves within 10 s


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
    term_grace_s: float = TERM_GRACE_S,
) -> PlanResult:
    """Run every step, or up to the first that fails. A failed step is a result; only these are raised:

    - what `tick` raises (ClaimLost): the tree was killed at once; write nothing;
    - Interrupted: `stop` was requested and the plan is not done; what ended before is in it;
    - StorageTrouble or OSError: the attempt's folder does not take files.

    `tick` is called at least every `tick_every_s`, on this thread. `claim_marker` must be this attempt's alone.
    """
    run = _Run(
        plan=plan,
        attempt_dir=attempt_dir,
        job_id=job_id,
        base_env=base_env,
        cwd=cwd,
        tools=tools,
        marker=claim_marker,
        tick=tick,
        tick_every_s=tick_every_s,
        stop=stop,
        clock=clock,
        root=root,
        term_grace_s=term_grace_s,
    )
    return run.run()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """One try of one step."""

    exit: Exit
    timed_out: bool = False
    error: str | None = None
    final: bool = False  # another try would end the same
    passing: bool = False


class _PlanTimeout(Exception):
    """The plan's own time is over and no step is running."""


@dataclass(kw_only=True)
class _Run:
    """One run of one plan: what the pipeline's stages share."""

    plan: Plan
    attempt_dir: str
    job_id: str
    base_env: Mapping[str, str]
    cwd: str
    tools: Tools
    marker: str
    tick: Callable[[], None]
    tick_every_s: float
    stop: Stop
    clock: Clock
    root: str | None
    term_grace_s: float

    def __post_init__(self) -> None:
        self.steps = list(plans.order(self.plan))
        self.numbers = {step.id: number for number, step in enumerate(self.plan.steps, 1)}
        self.done: list[StepResult] = []
        self.left: set[int] = set()
        self.called_functions = False
        self.started_s = self.ticked_s = self.clock.monotonic_s()
        total_s = sum(_timeout_s(step) * (1 + step.retries) for step in self.steps)
        self.deadline_s = self.started_s + (total_s if self.plan.timeout is None else self.plan.timeout)

    def run(self) -> PlanResult:
        try:
            result = self._run_steps()
        except BaseException:
            self._end_rest(grace_s=0)
            raise
        self._end_rest(grace_s=REST_GRACE_S)
        return result

    def _run_steps(self) -> PlanResult:
        missing = [
            f"steps[{self.numbers[step.id] - 1}]: {found.message}"
            for index, step in enumerate(self.steps)
            if isinstance(found := self._find(step, first=index == 0), Missing)
        ]
        if missing:
            return self._result(ErrorInfo(category="missing_tool", message="; ".join(missing)))
        fs.retried(lambda: fs.mkdir(f"{self.attempt_dir}/steps"), self.attempt_dir, self.clock.sleep)
        for step in self.steps:
            try:
                judged, passing = self._step(step)
            except _PlanTimeout:
                message = f"the plan's time ({self.deadline_s - self.started_s:g} s) was over before step {step.id}"
                return self._result(ErrorInfo(category="timeout", message=message))
            self.done.append(judged)
            if not judged.success:
                category = "timeout" if judged.timed_out else "step_failed"
                return self._result(ErrorInfo(category=category, message=f"step {step.id}: {judged.error}"), passing)
        return self._result(None)

    def _step(self, step: Step) -> tuple[StepResult, bool]:
        folder = f"steps/{step.id}"
        path = f"{self.attempt_dir}/{folder}"
        fs.retried(lambda: fs.mkdir(path), path, self.clock.sleep)
        attempt = 0
        while True:
            attempt += 1
            self._may_start()
            ended = self._try(step, path)
            success = ended.error is None
            if success or ended.final or attempt > step.retries or self.clock.monotonic_s() >= self.deadline_s:
                break
            for name in ("stdout", "stderr"):  # the files without a number are those of the try that counts
                fs.move(f"{path}/{name}", f"{path}/{name}.{attempt}")
        stdout, stdout_truncated = results.inline(f"{path}/stdout")
        stderr, stderr_truncated = results.inline(f"{path}/stderr")
        return StepResult(
            step_number=self.numbers[step.id] if step.step_number is None else step.step_number,
            id=step.id,
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=stdout_truncated,
            stderr_truncated=stderr_truncated,
            stdout_path=f"{folder}/stdout",
            stderr_path=f"{folder}/stderr",
            exit_code=ended.exit.code,
            success=success,
            timed_out=ended.timed_out,
            duration_s=ended.exit.duration_s,
            user_s=ended.exit.user_s,
            system_s=ended.exit.system_s,
            max_rss_kb=ended.exit.max_rss_kb,
            attempts=attempt,
            error=ended.error,
            last_words="" if success else results.last_words([f"{path}/stderr", f"{path}/stdout"]),
        ), ended.passing

    def _try(self, step: Step, path: str) -> _Ended:
        command = self._find(step, first=True)
        if isinstance(command, Missing):
            started: Process | FunctionRun | NotStarted = NotStarted(reason="not_found", message=command.message)
            for name in ("stdout", "stderr"):
                fs.create(f"{path}/{name}", b"")
        else:
            started = self._start(step, command, path)
        if isinstance(started, NotStarted):
            failed = Exit(code=started.code, signal=None, duration_s=0.0, user_s=0.0, system_s=0.0, max_rss_kb=0)
            return _Ended(exit=failed, error=started.message, final=not started.passing, passing=started.passing)
        try:
            return self._judge(step, started)
        finally:
            if isinstance(started, FunctionRun):
                started.close()

    def _start(self, step: Step, command: Command, path: str) -> Process | FunctionRun | NotStarted:
        source = step.input_from_step
        stdin = None if source is None else f"{self.attempt_dir}/steps/{source}/stdout"
        env, cwd = self._env(step), self._cwd(step)
        if isinstance(command, Executable):
            return processes.start(
                command.argv,
                executable=command.file,
                stdin=stdin,
                stdout=f"{path}/stdout",
                stderr=f"{path}/stderr",
                cwd=cwd,
                env=env,
            )
        assert isinstance(command, InWorker)
        self.called_functions = True

        def call(stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO) -> Call:
            return Call(
                command=step.command,
                args=tuple(step.args),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=cwd,
                job_id=self.job_id,
                attempt_dir=self.attempt_dir,
            )

        return FunctionRun(command.function, call, stdin=stdin, stdout=f"{path}/stdout", stderr=f"{path}/stderr")

    def _judge(self, step: Step, started: Process | FunctionRun) -> _Ended:
        timeout_s = _timeout_s(step)
        step_deadline_s = self.clock.monotonic_s() + timeout_s
        timed_out = not self._watch(started, min(step_deadline_s, self.deadline_s))
        exit = started.exit or _UNENDED
        if timed_out:
            whose, limit_s = "step", timeout_s
            if self.deadline_s < step_deadline_s:
                whose, limit_s = "plan", self.deadline_s - self.started_s
            return _Ended(exit=exit, timed_out=True, error=f"ended after the {whose}'s timeout of {limit_s:g} s")
        if exit.code in step.ok_exit_codes:
            return _Ended(exit=exit)
        how = f"exit code {exit.code}" if exit.signal is None else f"ended by signal {exit.signal}"
        return _Ended(exit=exit, error=how)

    def _watch(self, started: Process | FunctionRun, deadline_s: float) -> bool:
        """Wait for its end: True when it ended by itself, False when its time was over and it was ended."""
        try:
            while True:
                now_s = self._tick_if_due()
                # Once stop is requested its descriptor stays readable: polling it again would spin.
                stop_at_s = self.stop.deadline_s
                if now_s >= deadline_s:
                    self._end(started, self.term_grace_s)
                    return False
                if stop_at_s is not None and now_s >= stop_at_s:
                    self._end(started, REST_GRACE_S)
                    raise self._interrupted()
                until_s = min(self.ticked_s + self.tick_every_s, deadline_s)
                until_s = until_s if stop_at_s is None else min(until_s, stop_at_s)
                if started.wait(until_s - now_s, self.stop.fd if stop_at_s is None else None) is not None:
                    return True
        except BaseException:
            if started.exit is None:
                started.end(self.marker, grace_s=0)
            raise

    def _end(self, started: Process | FunctionRun, grace_s: float) -> None:
        every_s = self.tick_every_s
        self.left.update(started.end(self.marker, grace_s=grace_s, while_waiting=self._tick_now, every_s=every_s))

    def _end_rest(self, grace_s: float) -> None:
        if self.called_functions or processes.any_left():
            tick = self._tick_now if grace_s else None
            self.left.update(
                processes.end_marked(self.marker, grace_s, while_waiting=tick, every_s=self.tick_every_s)
            )

    def _may_start(self) -> None:
        self._tick_if_due()
        if self.stop.requested:
            raise self._interrupted()
        if self.clock.monotonic_s() >= self.deadline_s:
            raise _PlanTimeout

    def _tick_if_due(self) -> float:
        now_s = self.clock.monotonic_s()
        if now_s - self.ticked_s >= self.tick_every_s:
            self._tick_now()
        return now_s

    def _tick_now(self) -> None:
        self.ticked_s = self.clock.monotonic_s()
        self.tick()

    def _interrupted(self) -> Interrupted:
        return Interrupted(self._result(None))

    def _find(self, step: Step, *, first: bool) -> Command | Missing:
        return commands.find(
            step,
            tools=self.tools,
            env=self._env(step),
            cwd=self._cwd(step),
            attempt_dir=self.attempt_dir,
            first=first,
        )

    def _env(self, step: Step) -> dict[str, str]:
        # farro's own come last: a step that could replace FARRO_CLAIM would not be found when its tree is ended.
        env = {**self.base_env, **step.env, "FARRO_JOB": self.job_id, "FARRO_STEP": step.id}
        env[processes.MARKER] = self.marker
        if self.root is not None:
            env["FARRO_ROOT"] = self.root
        return env

    def _cwd(self, step: Step) -> str:
        return self.cwd if step.cwd is None else os.path.join(self.cwd, step.cwd)

    def _result(self, error: ErrorInfo | None, retryable: bool = False) -> PlanResult:
        return PlanResult(
            success=error is None and len(self.done) == len(self.steps),
            step_results=tuple(self.done),
            steps_total=len(self.steps),
            duration_s=self.clock.monotonic_s() - self.started_s,
            error=error,
            retryable=retryable,
            left_processes=tuple(sorted(self.left)),
        )


_UNENDED = Exit(code=137, signal=9, duration_s=0.0, user_s=0.0, system_s=0.0, max_rss_kb=0)  # killed, and still not gone


def _timeout_s(step: Step) -> float:
    return STEP_TIMEOUT_S if step.timeout is None else float(step.timeout)
