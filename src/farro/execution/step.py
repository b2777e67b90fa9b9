"""One try of one step: find → start → (watch) → judge, from files into files.

Which step, how often and what comes of the plan is run.py; waiting is watch.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from farro.execution import commands, results, task_file
from farro.execution.added_steps import Environment, TaskFolder
from farro.execution.commands import Command, Executable, InWorker, Missing
from farro.execution.function_streams import CallFiles
from farro.execution.functions import FunctionRun
from farro.execution.piped_input import Along
from farro.execution.process_watch import Watched
from farro.execution.results import StepResult
from farro.execution.tools import Call, Late, Tools
from farro.host import fs, processes
from farro.host.clock import Clock
from farro.host.processes import Exit, NotStarted, Process
from farro.jobs.outcomes import PATH_VIOLATION, ErrorInfo
from farro.lazy_dataclass import dataclass
from farro.plans.model import Plan, Step

if TYPE_CHECKING:
    from farro.execution.confined import Confined

TRY = "FARRO_TRY"  # the environment of one try's processes: what is ended with it, and with no other step


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What came of one try."""

    exit: Exit
    error: str | None
    timed_out: bool = False
    again: bool = True  # another try may end otherwise
    passing: bool = False  # the machine's trouble
    category: str | None = None  # of the error, where it is not the usual one
    retry_after_s: float | None = None  # another attempt of the job is of no use before


@dataclass(kw_only=True, slots=True)
class Running:
    """A try that was started."""

    step: Step
    attempt: int
    watched: Watched
    along: Along | None = None  # it reads what another step says that runs beside it
    trouble: ErrorInfo | None = None  # why it was cut off, when that is its own doing

    def close(self) -> None:
        self.watched.close()
        if self.along is not None:
            self.along.leave()


@dataclass(frozen=True, slots=True)
class Enough:
    """A step that is over and read along: what it read is being ended, and is told first."""

    step: Step
    attempt: int
    tried: Tried
    passed_on: int
    to_blame: bool  # it failed by itself
    had_enough: Enough | None  # who read along with this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """The first try of a plan of one function, which was begun before anyone watched it."""

    tries: Tries
    run: FunctionRun
    started_s: float
    over: bool  # it has ended, and is not tried again: what is left is to tell of it


@dataclass(kw_only=True)
class Tries:
    """What all tries of one run share."""

    attempt_dir: str
    job_id: str
    base_env: Mapping[str, str]
    own_env: Mapping[str, str]
    cwd: str
    tools: Tools
    task_folder: TaskFolder
    step_timeout_s: float
    clock: Clock
    confined: Confined | None = None
    input_of: tuple[str, str] | None = None  # the step that reads the plan's input, and the file that it is

    def __post_init__(self) -> None:
        self.called_functions = False
        self._found: dict[str, Command] = {}
        self._known: commands.Known = {}
        self._made: set[str] = set()  # folders of this attempt

    def find(self, step: Step, *, may_appear: bool) -> Command | Missing:
        """What the step executes. `may_appear`: an earlier step may still make it."""
        found = commands.find(
            step,
            tools=self.tools,
            env=step.env if "PATH" in step.env else self.base_env,  # farro's own say nothing of it
            cwd=self._cwd(step),
            attempt_dir=self.attempt_dir,
            may_appear=may_appear,
            confined=self.confined is not None,
            known=self._known,
        )
        if isinstance(found, InWorker) or (isinstance(found, Executable) and found.file is not None):
            self._found[step.id] = found
        return found

    def missing(self, plan: Plan, succeeded: Collection[str], first: str | None) -> ErrorInfo | None:
        """What cannot be executed, told before anything is."""
        if self.input_of is not None and plan.reader.id not in succeeded and not fs.exists(self.input_of[1]):
            return ErrorInfo(category="missing_input", message=f"`input`: the job brought no file {plan.input}")
        missing = [
            f"steps[{place}] ({step.id}): {found.message}"
            for place, step in enumerate(plan.steps)
            if step.id not in succeeded and isinstance(found := self.find(step, may_appear=step.id != first), Missing)
        ]
        return ErrorInfo(category="missing_tool", message="; ".join(missing)) if missing else None

    def adopt(self, step: Step, begun: FunctionRun, plan_deadline_s: float) -> Running:
        """As `start`, of one that is under way."""
        self.called_functions = True
        return self._running(step, 1, begun, plan_deadline_s)

    def start(self, step: Step, attempt: int, plan_deadline_s: float, along: Along | None = None) -> Running | Tried:
        """A try that runs, or what came of it already. `along` is what it reads when that is not over yet."""
        command = self._found.get(step.id) or self.find(step, may_appear=False)
        if isinstance(command, Missing):
            if along is not None:
                os.close(along.fd)  # else whoever fills the pipe would wait for a reader for ever
            return Tried(exit=_no_exit(127), error=command.message, again=False)
        started = self._start(step, command, attempt, along)
        if isinstance(started, NotStarted):
            passing, category = started.passing, PATH_VIOLATION if started.reason == "refused" else None
            exit_ = _no_exit(started.code)
            return Tried(exit=exit_, error=started.message, again=passing, passing=passing, category=category)
        return self._running(step, attempt, started, plan_deadline_s, along)

    def _running(
        self,
        step: Step,
        attempt: int,
        started: Process | FunctionRun,
        plan_deadline_s: float,
        along: Along | None = None,
    ) -> Running:
        deadline_s = self.clock.monotonic_s() + step.timeout_s(self.step_timeout_s)
        marker = f"{TRY}={self._marker(step, attempt)}"
        watched = Watched(started, marker=marker, deadline_s=min(deadline_s, plan_deadline_s))
        return Running(step=step, attempt=attempt, watched=watched, along=along)

    def judge(self, running: Running, *, plan_deadline_s: float, plan_time_s: float) -> Tried:
        """What came of a try that is over, and was not stopped."""
        tried = self._judged(running, plan_deadline_s, plan_time_s)
        if self.confined is None:
            return tried
        failed = tried.error is not None and running.watched.ending == "by itself"
        stderr = f"{self.attempt_dir}/steps/{running.step.id}/stderr"
        violation = self.confined.violation(stderr if failed else None)
        if violation is None:
            hit = self.confined.hit() if failed else None
            return tried if hit is None else replace(tried, error=f"{tried.error}: {hit}")
        return Tried(exit=tried.exit, error=violation, timed_out=tried.timed_out, again=False, category=PATH_VIOLATION)

    def _judged(self, running: Running, plan_deadline_s: float, plan_time_s: float) -> Tried:
        step, watched = running.step, running.watched
        ended = watched.started.exit or _no_exit(137)  # killed, and still not gone: it is in `watch.left`
        if running.trouble is not None:
            why = running.trouble
            return Tried(exit=ended, error=why.message, again=False, category=why.category)
        if watched.ending == "cut off":
            return Tried(exit=ended, error=f"its input, step {step.input_from_step}, failed", again=False)
        if watched.ending == "timed out":
            own = watched.deadline_s < plan_deadline_s
            timeout_s = step.timeout_s(self.step_timeout_s)
            key = " (runners.task_timeout)" if step.timeout is None else ""  # a prompt for agents can name none
            whose = f"the step's timeout of {timeout_s:g} s{key}" if own else f"the plan's timeout of {plan_time_s:g} s"
            return Tried(exit=ended, timed_out=True, error=f"ended after {whose}", again=own)
        failure = watched.started.failure if isinstance(watched.started, FunctionRun) else None
        if failure is not None:
            more, category, wait_s = failure.retryable, failure.category, failure.retry_after_s
            error = str(failure)
            return Tried(exit=ended, error=error, again=more, passing=more, category=category, retry_after_s=wait_s)
        if ended.code in step.ok_exit_codes:
            return Tried(exit=ended, error=None)
        return Tried(exit=ended, error=f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}")

    def in_the_way(self, running: Sequence[Running]) -> list[Running]:
        """Those that use up what others need too, and have to be ended: what they did is told in their `trouble`."""
        found: list[Running] = []
        if self.confined is None:
            return found
        for one in running:
            started = one.watched.started
            if one.trouble is None and isinstance(started, Process):
                one.trouble = self.confined.trouble(started)
                if one.trouble is not None:
                    found.append(one)
        return found

    def rest_judged(self, error: ErrorInfo | None) -> ErrorInfo | None:
        """What confined steps left running is ended too; did it touch what it may not?"""
        if self.confined is None:
            return error
        self.confined.end_strays()
        violation = self.confined.violation(None)
        if violation is None or error is not None:
            return error
        return ErrorInfo(category=PATH_VIOLATION, message=f"what the steps left running: {violation}")

    def end_strays(self) -> None:
        if self.confined is not None:
            self.confined.end_strays()

    def put_aside(self, step: Step, attempt: int) -> None:
        """A failed try makes room for the next: the names without a number are those of the try that counts."""
        self.task_folder.drop(step.id)
        folder = f"{self.attempt_dir}/steps/{step.id}"
        for name in ("stdout", "stderr"):
            with contextlib.suppress(FileNotFoundError):
                fs.move(f"{folder}/{name}", f"{folder}/{name}.{attempt}")

    def read_enough(self, step: Step, tried: Tried, had: Enough) -> Tried:
        """What came of a step that was ended because the one that read it is over: the same as of that one."""
        if had.tried.error is not None:
            return replace(tried, error=f"ended, because step {had.step.id}, which read it, failed", again=False)
        self._cut_stdout(step.id, had.passed_on)  # the rest was for nobody
        return Tried(exit=tried.exit, error=None)

    def result(
        self, step: Step, attempt: int, tried: Tried, inline: results.Inline, added_by: str | None
    ) -> StepResult:
        """What the plan's result says of the step."""
        folder, relative = self.attempt_dir, f"steps/{step.id}"
        stdout, stderr = (inline.said(folder, f"{relative}/{stream}") for stream in ("stdout", "stderr"))
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
            added_by=added_by,
        )

    def stdout(self, step_id: str) -> str:
        return f"{self.attempt_dir}/steps/{step_id}/stdout"

    def said_bytes(self, step_id: str) -> int:
        """How much it has said so far."""
        try:
            return fs.lstat(self.stdout(step_id)).st_size
        except FileNotFoundError:
            return 0

    def _cut_stdout(self, step_id: str, size: int) -> None:
        fd = fs.open_append(self.stdout(step_id))
        try:
            fs.truncate(fd, size)
        finally:
            os.close(fd)

    def _start(
        self, step: Step, command: Command, attempt: int, along: Along | None
    ) -> Process | FunctionRun | NotStarted:
        source = step.input_from_step
        stdin: str | int | None = None if source is None else self.stdout(source)
        if self.input_of is not None and step.id == self.input_of[0]:
            stdin = self.input_of[1]
        if along is not None:
            stdin = along.fd
        elif isinstance(stdin, str) and source is not None and not fs.exists(stdin):
            stdin = None  # a function that said nothing
        folder = f"{self.attempt_dir}/steps/{step.id}"
        stdout, stderr = f"{folder}/stdout", f"{folder}/stderr"
        cwd = self._cwd(step)
        if isinstance(command, Executable):
            env = self._env(step, attempt)
            self.task_folder.make()
            self._mkdir(f"{self.attempt_dir}/steps")
            self._mkdir(folder)
            self.task_folder.open()
            if self.confined is not None:
                tasks_dir = self.task_folder.path
                return self.confined.start(
                    command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, tasks=tasks_dir
                )
            return processes.start(
                command.argv, executable=command.file, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env
            )
        return self.call(step, command, attempt, stdin)

    def call(
        self, step: Step, command: InWorker, attempt: int, stdin: str | int | None, *, begin: bool = True
    ) -> FunctionRun:
        """`begin` False: it is made among others."""
        self.called_functions = True
        tasks_path = self.task_folder.path  # another one later, should a tool that could not be ended ask for it

        def call(files: CallFiles) -> Call:
            return Late(
                files,
                self.task_folder.make,
                command=step.command,
                args=tuple(step.args),
                env=Environment(lambda: {**self._env(step, attempt), task_file.FOLDER: tasks_path}, self.task_folder),
                cwd=self._cwd(step),
                job_id=self.job_id,
                attempt_dir=self.attempt_dir,
            )

        folder = f"{self.attempt_dir}/steps/{step.id}"
        stdout, stderr = f"{folder}/stdout", f"{folder}/stderr"
        make = self.task_folder.make
        return FunctionRun(command.function, call, stdin=stdin, stdout=stdout, stderr=stderr, make=make, begin=begin)

    def _env(self, step: Step, attempt: int) -> dict[str, str]:
        # farro's own come last: a step that could replace FARRO_CLAIM would not be found when its tree is ended.
        return {
            **self.base_env,
            **step.env,
            **self.own_env,
            TRY: self._marker(step, attempt),
            task_file.FOLDER: self.task_folder.path,
            task_file.STEP: step.id,
        }

    def _marker(self, step: Step, attempt: int) -> str:
        return f"{self.own_env[processes.MARKER]}/{step.id}/{attempt}"

    def _cwd(self, step: Step) -> str:
        return self.cwd if step.cwd is None else os.path.join(self.cwd, step.cwd)

    def _mkdir(self, path: str) -> None:
        if path not in self._made:
            with contextlib.suppress(FileExistsError):
                fs.retried(lambda: fs.mkdir(path), path, self.clock.sleep)
            self._made.add(path)


def input_of(plan: Plan, attempt_dir: str) -> tuple[str, str] | None:
    """The step that reads the plan's input, and the file that it is: one of the job's payload."""
    return None if plan.input is None else (plan.reader.id, f"{attempt_dir.rsplit('/', 2)[0]}/payload/{plan.input}")


def _no_exit(code: int) -> Exit:
    return Exit(code=code, signal=None, duration_s=0.0, user_s=0.0, system_s=0.0, max_rss_kb=0)
