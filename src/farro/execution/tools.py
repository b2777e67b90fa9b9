"""Tools that are not programs: Python callables by name, from the config, from code, or from installed packages.

Programs are found on the PATH (commands.py); what a callable is handed and may return is said here, at `Call`.

    def resize(call: Call) -> int | None:
        width = int(call.args[0])
        call.stdout.write(shrink(call.stdin.read(), width))

registered as `Tools({"resize": "pkg.mod:resize"})` or as an entry point of the group `farro.tools`, and used by a step
`{"tool": "resize", "command": "png", "args": ["640"]}`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from farro.execution import task_file
from farro.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from farro.execution.function_streams import CallFiles

GROUP = "farro.tools"
FUNCTION = "function"  # calls what is marked with @farro.task
BUILT_IN = {FUNCTION: "farro.execution.function_calls:run"}


class ToolTrouble(Exception):
    """A tool is registered, but its function cannot be had; the message says why."""


class StepFailure(Exception):
    """Raised by a tool that knows why its step fails: the job's error says it in these words, without a traceback."""

    def __init__(
        self,
        category: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        exit_code: int = 1,
    ) -> None:
        self.category = category  # from a small set, for audit and metrics
        self.retryable = retryable  # a later attempt of the job may succeed
        self.retry_after_s = retry_after_s  # … and not before that
        self.exit_code = exit_code
        super().__init__(message)

    def saying(self, message: str) -> StepFailure:
        """The same in other words."""
        return StepFailure(
            self.category,
            message,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
            exit_code=self.exit_code,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One step, as a Python tool gets it.

    The function returns None (success) or an exit code; an exception is a failed step, its traceback in the stderr. The
    three files are binary and are closed afterwards. `print` goes to the worker, not to the step. Processes that it
    starts must get `env`, else they are not found when the tree is ended.

    It runs on a thread of the worker; with a timeout on the step, in a child process if it is known by reference.
    """

    command: str
    args: tuple[str, ...]
    stdin: BinaryIO  # the stdout of `input_from_step`, else empty
    stdout: BinaryIO
    stderr: BinaryIO
    env: Mapping[str, str]
    cwd: str
    job_id: str
    attempt_dir: str  # the place for files of its own; (job id, attempt) is the key for side effects elsewhere

    @property
    def attempt(self) -> int:
        return int(self.attempt_dir.rsplit("/", 1)[-1])

    def add_task(
        self,
        command: str,
        args: Iterable[str] = (),
        *,
        id: str | None = None,  # noqa: A002 - the name of the step's own field
        needs: Iterable[str] = (),
        input_from: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 0,
        retry_delay: float = 0,
        retry_backoff: float = 1,
        tool: str = "unix",
    ) -> str:
        """`farro.add_task` for this step: one more step of its plan. Inside the worker the process's own environment
        is not the step's, and its folder is not either."""
        return task_file.add_task(
            command,
            args,
            id=id,
            needs=needs,
            input_from=input_from,
            timeout=timeout,
            cwd=os.path.join(self.cwd, cwd or ""),
            env=env,
            retries=retries,
            retry_delay=retry_delay,
            retry_backoff=retry_backoff,
            tool=tool,
            environ=self.env,
        )


class Late(Call):
    """A call whose files and `attempt_dir` are made when the function asks for them: most never do."""

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
    """A tool that is a function. `reference` is `pkg.mod:function`, None for an object that only this process has."""

    function: Function
    reference: str | None


@dataclass(frozen=True, slots=True)
class Program:
    """A tool that is a program at a place the config names; the step's command and args follow these."""

    argv: tuple[str, ...]


class Tools:
    """Names → tools. A value is a callable, "pkg.mod:function", or a list that starts a command line. What the mapping
    names is stronger than what is built in.

    Installed entry points are asked only for names that are not in the mapping: reading them takes milliseconds.
    With a root their modules are found in its folder, too, by this process and all that are handed its path.
    """

    def __init__(
        self, mapping: Mapping[str, str | Function | Sequence[str]] | None = None, root: str | None = None
    ) -> None:
        self.declared = dict(mapping or {})  # for a runner of its own, which finds the installed ones by itself
        self._mapping: dict[str, str | Function | Sequence[str]] = {**BUILT_IN, **self.declared}
        if root is not None and any(isinstance(value, str) for value in self.declared.values()):
            import_from(root)
        self._installed: dict[str, str] | None = None
        self._resolved: dict[str, Python | Program] = {}

    def with_one(self, name: str, function: Function) -> Tools:
        """These, and one more that only the present plan has."""
        more = Tools({**self._mapping, name: function})
        more._installed = self._installed
        more._resolved = {known: tool for known, tool in self._resolved.items() if known != name}
        return more

    def find(self, name: str) -> Python | Program | None:
        """The tool of that name; None when there is none here. ToolTrouble when it cannot be imported."""
        if name not in self._resolved:
            value = self.named(name)
            if value is None:
                return None
            self._resolved[name] = _resolve(name, value)
        return self._resolved[name]

    def named(self, name: str) -> str | Function | Sequence[str] | None:
        """What is registered under that name, as it was given; nothing is imported."""
        return self._mapping[name] if name in self._mapping else self._from_packages().get(name)

    def names(self) -> list[str]:
        """Every name that is registered or installed."""
        return sorted({*self._mapping, *self._from_packages()})

    def _from_packages(self) -> dict[str, str]:
        if self._installed is None:
            from importlib.metadata import entry_points  # here: slow to import, and most plans name no such tool

            self._installed = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        return self._installed


def load(reference: str) -> Function:
    """The function that `pkg.mod:function` names. ToolTrouble says what is wrong with it."""
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise ToolTrouble(f"{reference!r} does not name a function; write pkg.mod:function")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported, and may want to leave
        raise ToolTrouble(f"{reference}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ToolTrouble(f"{reference} is not callable")
    function: Function = found
    return function


def import_from(root: str) -> None:
    """Have modules found in a root's folder, too: after all others, for a file of the root must not stand in for a
    module that the worker itself needs."""
    if root not in sys.path:
        sys.path.append(root)


def exit_code(returned: object) -> int:
    """What a tool returned, as an exit code."""
    if returned is None:
        return 0
    if isinstance(returned, int) and not isinstance(returned, bool):  # True as an exit code would mean failure
        return returned & 0xFF
    raise TypeError(f"a tool returns None or an exit code, not {returned!r}")


def left_with(leaving: SystemExit) -> tuple[int, str]:
    """What `sys.exit` in a tool means, as for a program: the exit code, and what is to be said on its stderr."""
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
