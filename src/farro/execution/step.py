"""Run one try of one step: find the command, start it, and judge how it ended."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from farro.errors import NoFolder, StorageTrouble
from farro.execution import find_program, results, task_file
from farro.execution.added_steps import Environment, TaskFolder
from farro.execution.find_program import Command, Executable, InWorker, Missing
from farro.execution.functions import CallFiles, FunctionRun
from farro.execution.process_watch import RunningTry
from farro.execution.results import StepResult
from farro.execution.runner import Work
from farro.execution.tools import Call, LazyCall, Tools
from farro.host import fs, process_tree, processes
from farro.host.clock import Clock
from farro.host.processes import Exit, Launch, NotStarted, Process
from farro.jobs.outcomes import PATH_VIOLATION, AccountWait, ErrorInfo
from farro.lazy_dataclass import dataclass, replace
from farro.plans.model import Plan, Step

if TYPE_CHECKING:
    from farro.execution.confined import Confined

_PIECE = 1 << 20
_PAUSE_S = 0.01  # at the end of the output so far


class PipedInput:
    """Pipe the output of a running step into its reader: the file from its beginning, as it grows, through a pipe.

    Hardly ever needed, because a step starts when its input has succeeded. But a step that writes without end (`yes`)
    may be read by one that stops early (`head`), and would otherwise never be ended. `fd` is for the reader, and is
    closed by the code that starts it.
    """

    def __init__(self, path: str) -> None:
        self._source = fs.open_read(path)
        self.fd, self._pipe = os.pipe()
        self.passed_on = 0  # bytes
        self._whole = threading.Event()  # the output is complete
        self._left = False
        self._thread = threading.Thread(target=self._fill, name="piped-input", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Declare the output complete: the reader gets the rest, then the end."""
        self._whole.set()

    def leave(self) -> None:
        """Declare that nothing reads any more."""
        self._left = True
        self._whole.set()

    def _fill(self) -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                while not self._left:
                    whole = self._whole.is_set()  # before the read: everything written until then is read
                    piece = os.read(self._source, _PIECE)
                    if piece:
                        self._pass_on(piece)
                    elif whole:
                        return
                    else:
                        self._whole.wait(_PAUSE_S)
        finally:
            os.close(self._pipe)
            os.close(self._source)

    def _pass_on(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            # Not fs.write: a pipe is not a file, so no crash is injected here.
            written = os.write(self._pipe, view)  # noqa: TID251
            self.passed_on += written
            view = view[written:]


TRY = "FARRO_TRY"  # in the environment of one try's processes: they are ended with it, and with no other step


@dataclass(frozen=True, kw_only=True, slots=True)
class TryResult:
    """The result of one try."""

    exit: Exit
    error: str | None
    timed_out: bool = False
    again: bool = True  # another try may succeed
    passing: bool = False  # the machine's fault: a later attempt may succeed
    category: str | None = None  # of the error, if not the usual one
    retry_after_s: float | None = None  # no attempt of the job can succeed before that
    wait: AccountWait | None = None  # the job waits for these accounts


@dataclass(frozen=True, slots=True)
class FinishedReader:
    """A step that is over and read piped input: its input is being ended, and is recorded first."""

    step: Step
    attempt: int
    tried: TryResult
    passed_on: int
    to_blame: bool  # it failed on its own
    had_enough: FinishedReader | None  # the reader of this one


@dataclass(frozen=True, kw_only=True, slots=True)
class BegunCall:
    """The first try of a plan of one function, which was begun before it was running."""

    tries: Tries
    run: FunctionRun
    started_s: float
    over: bool  # it has ended, and is not tried again: only its result is missing


class Tries:
    """The state that all tries of one run share.

    `input_of`: the step that reads the plan's input, and the input's path.
    """

    def __init__(
        self,
        work: Work,
        tools: Tools,
        clock: Clock,
        *,
        confined: Confined | None = None,
        input_of: tuple[str, str] | None = None,
    ) -> None:
        self.work = work
        self.tools = tools
        self.clock = clock
        self.confined = confined
        self.input_of = input_of
        self.task_folder = TaskFolder(work.folder, clock.sleep, work.make)
        self.called_functions = False
        self._found: dict[str, Command] = {}
        self._known: find_program.Known = {}
        self._made: set[str] = set()  # folders of this attempt

    def find(self, step: Step) -> Command | Missing:
        """Find what the step executes."""
        found = find_program.find(
            step,
            tools=self.tools,
            env=step.env if "PATH" in step.env else self.work.env,  # farro's own variables do not set it
            cwd=self._cwd(step),
            attempt_dir=self.work.folder,
            may_appear=False,
            confined=self.confined is not None,
            known=self._known,
        )
        if isinstance(found, InWorker) or (isinstance(found, Executable) and found.file is not None):
            self._found[step.id] = found
        return found

    def missing_input(self, plan: Plan, succeeded: Collection[str]) -> ErrorInfo | None:
        """Return why the plan's input cannot be read, before any step runs."""
        if self.input_of is None or plan.reader.id in succeeded or fs.exists(self.input_of[1]):
            return None
        return ErrorInfo(category="missing_input", message=f"`input`: the job has no file {plan.input}")

    def adopt(self, step: Step, begun: FunctionRun, plan_deadline_s: float) -> RunningTry:
        """Watch a call that is already running; else like `start`."""
        self.called_functions = True
        return self._running(step, 1, begun, plan_deadline_s)

    def start(
        self, step: Step, attempt: int, plan_deadline_s: float, piped: PipedInput | None = None
    ) -> RunningTry | TryResult:
        """Start a try; return its result if it could not be started. `piped`: its input, if that still runs."""
        command = self._found.get(step.id) or self.find(step)
        if isinstance(command, Missing):
            if piped is not None:
                os.close(piped.fd)  # else the thread that fills the pipe would wait forever for a reader
            self._write_reason(step, command.message)
            return TryResult(exit=_no_exit(127), error=command.message, again=False, category="missing_tool")
        try:
            started = self._start(step, command, attempt, piped)
        except StorageTrouble as error:
            if isinstance(error, NoFolder):
                raise
            return TryResult(exit=_no_exit(126), error=str(error), again=False, passing=True, category="storage")
        if isinstance(started, NotStarted):
            passing, category = started.passing, PATH_VIOLATION if started.reason == "refused" else None
            exit_ = _no_exit(started.code)
            self._write_reason(step, started.message)
            return TryResult(exit=exit_, error=started.message, again=passing, passing=passing, category=category)
        return self._running(step, attempt, started, plan_deadline_s, piped)

    def _write_reason(self, step: Step, message: str) -> None:
        """Write to its stderr why a step could not be started, as a shell does, so that its logs are not empty."""
        with contextlib.suppress(OSError, StorageTrouble):  # a full disk: the step's result has the reason, too
            self._make_folder(step)
            fd = fs.open_append(f"{self.work.folder}/steps/{step.id}/stderr")
            try:
                fs.write(fd, f"farro: {message}\n".encode("utf-8", "backslashreplace"))
            finally:
                os.close(fd)

    def _make_folder(self, step: Step) -> None:
        self.task_folder.make()
        self._mkdir(f"{self.work.folder}/steps")
        self._mkdir(f"{self.work.folder}/steps/{step.id}")

    def _running(
        self,
        step: Step,
        attempt: int,
        started: Process | FunctionRun,
        plan_deadline_s: float,
        piped: PipedInput | None = None,
    ) -> RunningTry:
        deadline_s = self.clock.monotonic_s() + step.timeout_s(self.work.step_timeout_s)
        marker = f"{TRY}={self._marker(step, attempt)}"
        deadline_s = min(deadline_s, plan_deadline_s)
        return RunningTry(step, attempt, started, marker=marker, deadline_s=deadline_s, piped=piped)

    def judge(self, running: RunningTry, *, plan_deadline_s: float, plan_time_s: float) -> TryResult:
        """Return the result of a try that is over and was not stopped."""
        tried = self._judged(running, plan_deadline_s, plan_time_s)
        if self.confined is None:
            return tried
        failed = tried.error is not None and running.ending == "by itself"
        stderr = f"{self.work.folder}/steps/{running.step.id}/stderr"
        violation = self.confined.violation(stderr if failed else None)
        if violation is None:
            hit = self.confined.hit() if failed else None
            return tried if hit is None else replace(tried, error=f"{tried.error}: {hit}")
        return TryResult(
            exit=tried.exit, error=violation, timed_out=tried.timed_out, again=False, category=PATH_VIOLATION
        )

    def _judged(self, running: RunningTry, plan_deadline_s: float, plan_time_s: float) -> TryResult:
        step = running.step
        ended = running.started.exit or _no_exit(137)  # killed, and still there: it is in `watch.left`
        if running.trouble is not None:
            why = running.trouble
            return TryResult(exit=ended, error=why.message, again=False, category=why.category)
        if running.ending == "cut off":
            return TryResult(exit=ended, error=f"its input, step {step.input_from_step}, failed", again=False)
        if running.ending == "timed out":
            own = running.deadline_s < plan_deadline_s
            timeout_s = step.timeout_s(self.work.step_timeout_s)
            key = " (runners.task_timeout)" if step.timeout is None and timeout_s == self.work.step_timeout_s else ""
            whose = f"the step's timeout of {timeout_s:g} s{key}" if own else f"the plan's timeout of {plan_time_s:g} s"
            return TryResult(exit=ended, timed_out=True, error=f"ended after {whose}", again=own)
        failure = running.started.failure if isinstance(running.started, FunctionRun) else None
        if failure is not None:
            more = failure.retryable
            return TryResult(
                exit=ended,
                error=str(failure),
                again=more,
                passing=more,
                category=failure.category,
                retry_after_s=failure.retry_after_s,
                wait=failure.wait,
            )
        if ended.code in step.ok_exit_codes:
            return TryResult(exit=ended, error=None)
        return TryResult(
            exit=ended, error=f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        )

    def exceeding_limits(self, running: Sequence[RunningTry]) -> list[RunningTry]:
        """Return tries that exceed a shared limit and must be ended; their `trouble` says why."""
        found: list[RunningTry] = []
        if self.confined is None:
            return found
        for one in running:
            started = one.started
            if one.trouble is None and isinstance(started, Process):
                one.trouble = self.confined.trouble(started)
                if one.trouble is not None:
                    found.append(one)
        return found

    def judge_leftovers(self, error: ErrorInfo | None) -> ErrorInfo | None:
        """End the processes that confined steps left running, and check whether they changed forbidden files."""
        if self.confined is None:
            return error
        self.confined.end_leftovers()
        violation = self.confined.violation(None)
        if violation is None or error is not None:
            return error
        return ErrorInfo(category=PATH_VIOLATION, message=f"what the steps left running: {violation}")

    def end_leftovers(self) -> None:
        if self.confined is not None:
            self.confined.end_leftovers()

    def put_aside(self, step: Step, attempt: int) -> None:
        """Rename a failed try's files for the next: the names without a number belong to the try that counts."""
        self.task_folder.drop(step.id)
        folder = f"{self.work.folder}/steps/{step.id}"
        for name in ("stdout", "stderr"):
            with contextlib.suppress(FileNotFoundError):
                fs.move(f"{folder}/{name}", f"{folder}/{name}.{attempt}")

    def read_enough(self, step: Step, tried: TryResult, had: FinishedReader) -> TryResult:
        """Return the result of a step that was ended because its reader is over: the same as the reader's."""
        if had.tried.error is not None:
            return replace(tried, error=f"ended, because step {had.step.id}, which read it, failed", again=False)
        self._cut_stdout(step.id, had.passed_on)  # nothing read the rest
        return TryResult(exit=tried.exit, error=None)

    def result(
        self, step: Step, attempt: int, tried: TryResult, inline: results.Inline, added_by: str | None
    ) -> StepResult:
        """Return the step's entry in the plan's result."""
        folder, relative = self.work.folder, f"steps/{step.id}"
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
        return f"{self.work.folder}/steps/{step_id}/stdout"

    def written_bytes(self, step_id: str) -> int:
        """Return how much it has written so far."""
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
        self, step: Step, command: Command, attempt: int, piped: PipedInput | None
    ) -> Process | FunctionRun | NotStarted:
        source = step.input_from_step
        stdin: str | int | None = None if source is None else self.stdout(source)
        if self.input_of is not None and step.id == self.input_of[0]:
            stdin = self.input_of[1]
        if piped is not None:
            stdin = piped.fd
        elif isinstance(stdin, str) and source is not None and not fs.exists(stdin):
            stdin = None  # a function that wrote nothing
        folder = f"{self.work.folder}/steps/{step.id}"
        stdout, stderr = f"{folder}/stdout", f"{folder}/stderr"
        cwd = self._cwd(step)
        if isinstance(command, Executable):
            env = self._env(step, attempt)
            try:
                self._make_folder(step)
                self.task_folder.open()
            except StorageTrouble:
                if piped is not None:
                    os.close(piped.fd)
                raise
            launch = Launch(
                argv=command.argv,
                executable=command.file,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
            )
            if self.confined is not None:
                return self.confined.start(launch, tasks=self.task_folder.path)
            return processes.start(launch)
        return self.call(step, command, attempt, stdin)

    def call(
        self, step: Step, command: InWorker, attempt: int, stdin: str | int | None, *, begin: bool = True
    ) -> FunctionRun:
        """Prepare the call of a function. `begin` False: it is begun later, with others."""
        self.called_functions = True
        tasks_path = self.task_folder.path  # read now: a tool that could not be ended may ask after the folder changed

        def call(files: CallFiles) -> Call:
            return LazyCall(
                files,
                self.task_folder.make,
                command=step.command,
                args=tuple(step.args),
                env=Environment(lambda: {**self._env(step, attempt), task_file.FOLDER: tasks_path}, self.task_folder),
                cwd=self._cwd(step),
                job_id=self.work.job_id,
                attempt_dir=self.work.folder,
            )

        folder = f"{self.work.folder}/steps/{step.id}"
        stdout, stderr = f"{folder}/stdout", f"{folder}/stderr"
        make = self.task_folder.make
        return FunctionRun(command.function, call, stdin=stdin, stdout=stdout, stderr=stderr, make=make, begin=begin)

    def _env(self, step: Step, attempt: int) -> dict[str, str]:
        # farro's own come last: a step that replaced FARRO_CLAIM would not be found when its processes are ended.
        return {
            **self.work.env,
            **step.env,
            "FARRO_JOB": self.work.job_id,
            process_tree.MARKER: self.work.marker,
            "FARRO_ROOT": self.work.root,
            TRY: self._marker(step, attempt),
            task_file.FOLDER: self.task_folder.path,
            task_file.STEP: step.id,
        }

    def _marker(self, step: Step, attempt: int) -> str:
        return f"{self.work.marker}/{step.id}/{attempt}"

    def _cwd(self, step: Step) -> str:
        return self.work.cwd if step.cwd is None else os.path.join(self.work.cwd, step.cwd)

    def _mkdir(self, path: str) -> None:
        if path not in self._made:
            with contextlib.suppress(FileExistsError):
                fs.retried(lambda: fs.mkdir(path), path, self.clock.sleep)
            self._made.add(path)


def input_of(plan: Plan, attempt_dir: str) -> tuple[str, str] | None:
    """Return the step that reads the plan's input, and the input's path among the job's payload."""
    return None if plan.input is None else (plan.reader.id, f"{attempt_dir.rsplit('/', 2)[0]}/payload/{plan.input}")


def _no_exit(code: int) -> Exit:
    return Exit(code=code, signal=None, duration_s=0.0, user_s=0.0, system_s=0.0, max_rss_kb=0)
