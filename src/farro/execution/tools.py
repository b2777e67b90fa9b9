"""Register and find tools that are not programs: Python callables by name, from the config, from code, or from
packages.

    def resize(call: Call) -> int | None:
        width = int(call.args[0])
        call.stdout.write(shrink(call.stdin.read(), width))

registered as `Tools({"resize": "pkg.mod:resize"})` or as an entry point of the group `farro.tools`, and used by a step
`{"tool": "resize", "command": "png", "args": ["640"]}`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

from farro.execution import task_file
from farro.jobs.outcomes import AccountWait
from farro.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from farro.execution.functions import CallFiles
    from farro.execution.task_file import AddedStepOptions, CallStepOptions

GROUP = "farro.tools"
FUNCTION = "function"  # calls functions marked with @farro.task
BUILT_IN = {FUNCTION: "farro.execution.function_calls:run"}


class ToolTrouble(Exception):
    """A tool is registered, but its function cannot be loaded; the message says why."""


class StepFailure(Exception):
    """Raised by a tool that knows why its step fails: the job's error has this message, without a traceback."""

    def __init__(
        self,
        category: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        wait: AccountWait | None = None,
        exit_code: int = 1,
    ) -> None:
        self.category = category  # from a small set, for audit and metrics
        self.retryable = retryable  # a later attempt of the job may succeed
        self.retry_after_s = retry_after_s  # no attempt can succeed before that
        self.wait = wait  # the job did not fail: it goes back to its queue and waits for these accounts
        self.exit_code = exit_code
        super().__init__(message)

    def saying(self, message: str) -> StepFailure:
        """Return the same failure with another message."""
        return StepFailure(
            self.category,
            message,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
            wait=self.wait,
            exit_code=self.exit_code,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One step, as a Python tool gets it.

    The function returns None (success) or an exit code; an exception fails the step, with its traceback in stderr. The
    three files are binary and are closed afterwards. `print` goes to the worker, not to the step. Processes that it
    starts must get `env`, else they are not found when the step's processes are ended.

    It runs on a thread of the worker; if the step has a timeout and the tool is known by reference, in a child process.
    """

    command: str
    args: tuple[str, ...]
    stdin: BinaryIO  # the stdout of `input_from_step`, else empty
    stdout: BinaryIO
    stderr: BinaryIO
    env: Mapping[str, str]
    cwd: str
    job_id: str
    attempt_dir: str  # for its own files; (job id, attempt) is the key for side effects elsewhere

    @property
    def attempt(self) -> int:
        return int(self.attempt_dir.rsplit("/", 1)[-1])

    def add_task(self, command: str, args: Iterable[str] = (), **options: Unpack[CallStepOptions]) -> str:
        """Add a step to this step's plan, like `farro.add_task`: inside the worker, neither the process's
        environment nor its working directory is the step's."""
        cwd = os.path.join(self.cwd, options.get("cwd") or "")
        given: AddedStepOptions = {**options, "cwd": cwd, "environ": self.env}
        return task_file.add_task(command, args, **given)


class LazyCall(Call):
    """A call whose files and `attempt_dir` are created when the function asks for them: most never do."""

    __slots__ = ("_files", "_make", "_place")
    _files: CallFiles
    _make: Callable[[], None]
    _place: str

    def __init__(
        self,
        files: CallFiles,
        make: Callable[[], None],
        *,
        command: str,
        args: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str,
        job_id: str,
        attempt_dir: str,
    ) -> None:
        given = object.__setattr__
        given(self, "command", command)
        given(self, "args", args)
        given(self, "env", env)
        given(self, "cwd", cwd)
        given(self, "job_id", job_id)
        given(self, "_files", files)
        given(self, "_make", make)
        given(self, "_place", attempt_dir)

    @property
    def stdin(self) -> BinaryIO:
        return self._files.stdin

    @property
    def stdout(self) -> BinaryIO:
        return self._files.stdout

    @property
    def stderr(self) -> BinaryIO:
        return self._files.stderr

    @property
    def attempt_dir(self) -> str:
        self._make()
        return self._place

    @property
    def attempt(self) -> int:
        return int(self._place.rsplit("/", 1)[-1])


Function = Callable[[Call], int | None]


@dataclass(frozen=True, slots=True)
class Python:
    """A tool that is a function. `reference` is `pkg.mod:function`; None for an object that only this process has."""

    function: Function
    reference: str | None


@dataclass(frozen=True, slots=True)
class Program:
    """A tool that is a program at a path from the config; the step's command and args are appended."""

    argv: tuple[str, ...]


class Tools:
    """Tools by name. A value is a callable, "pkg.mod:function", or a list that starts a command line. The mapping
    overrides built-in tools.

    Installed entry points are read only for names that are not in the mapping: that takes milliseconds. With a root,
    modules are also found in its folder, by this process and all that get its path.
    """

    def __init__(
        self, mapping: Mapping[str, str | Function | Sequence[str]] | None = None, root: str | None = None
    ) -> None:
        self.declared = dict(mapping or {})  # for a runner process, which finds installed tools by itself
        self._mapping: dict[str, str | Function | Sequence[str]] = {**BUILT_IN, **self.declared}
        if root is not None and any(isinstance(value, str) for value in self.declared.values()):
            import_from(root)
        self._installed: dict[str, str] | None = None
        self._resolved: dict[str, Python | Program] = {}

    def with_one(self, name: str, function: Function) -> Tools:
        """Return these and one more that only the present plan has."""
        more = Tools({**self._mapping, name: function})
        more._installed = self._installed
        more._resolved = {known: tool for known, tool in self._resolved.items() if known != name}
        return more

    def find(self, name: str) -> Python | Program | None:
        """Return the tool of that name; None if there is none. ToolTrouble: it cannot be imported."""
        if name not in self._resolved:
            value = self.named(name)
            if value is None:
                return None
            self._resolved[name] = _resolve(name, value)
        return self._resolved[name]

    def named(self, name: str) -> str | Function | Sequence[str] | None:
        """Return what is registered under that name, without importing it."""
        return self._mapping[name] if name in self._mapping else self._from_packages().get(name)

    def names(self) -> list[str]:
        """Return every registered or installed name."""
        return sorted({*self._mapping, *self._from_packages()})

    def _from_packages(self) -> dict[str, str]:
        if self._installed is None:
            from importlib.metadata import entry_points  # here: slow to import, and most plans use no such tool

            self._installed = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        return self._installed


def load(reference: str) -> Function:
    """Return the function that `pkg.mod:function` names. ToolTrouble says what is wrong with it."""
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise ToolTrouble(f"{reference!r} does not name a function; write pkg.mod:function")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported, or exit
        raise ToolTrouble(f"{reference}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ToolTrouble(f"{reference} is not callable")
    function: Function = found
    return function


def import_from(root: str) -> None:
    """Let modules be found in a root's folder, too: after all others, because a file of the root must not replace a
    module that the worker needs."""
    if root not in sys.path:
        sys.path.append(root)


def exit_code(returned: object) -> int:
    """Return what a tool returned as an exit code."""
    if returned is None:
        return 0
    if isinstance(returned, int) and not isinstance(returned, bool):  # True as an exit code would mean failure
        return returned & 0xFF
    raise TypeError(f"a tool returns None or an exit code, not {returned!r}")


def exit_of(leaving: SystemExit) -> tuple[int, str]:
    """Return what `sys.exit` in a tool means, as for a program: the exit code, and the text for its stderr."""
    if leaving.code is None:
        return 0, ""
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF, ""
    return 1, f"{leaving.code}\n"


def _resolve(name: str, value: str | Function | Sequence[str]) -> Python | Program:
    if isinstance(value, str):
        return Python(load(value), value)
    if callable(value):
        return Python(value, None)
    if not value:
        raise ToolTrouble(f"tool {name}: an empty command line")
    return Program(tuple(value))


# The child imports from where the worker does, whatever its cwd and PYTHONPATH are: -P, then the worker's own path.
_BOOT = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1])['path'];from farro.execution import tools;tools.run_child()"
)


def child_command_line(reference: str, command: str, args: Sequence[str], attempt_dir: str) -> list[str]:
    """Return the command that runs the function `reference` in a child process: a thread cannot be ended by force,
    so a step with a timeout runs like that."""
    spec = json.dumps({"reference": reference, "attempt_dir": attempt_dir, "path": sys.path})
    return [sys.executable, "-P", "-c", _BOOT, spec, command, *args]


def run_child() -> None:
    """Run in the child: stdin, stdout and stderr are already the step's files."""
    spec = json.loads(sys.argv[1])
    call = Call(
        command=sys.argv[2],
        args=tuple(sys.argv[3:]),
        stdin=sys.stdin.buffer,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
        env=dict(os.environ),
        cwd=os.getcwd(),
        job_id=os.environ.get("FARRO_JOB", ""),
        attempt_dir=spec["attempt_dir"],
    )
    sys.exit(exit_code(load(spec["reference"])(call)))
