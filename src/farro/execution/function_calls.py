"""Call functions that are marked with @farro.task: the built-in tool `function`.

    {"tool": "function", "command": "shop.mail:send", "args": ["{\"args\": [\"ann\"], \"kwargs\": {\"copy\": true}}"]}

The module is imported from the worker's own path and then from the root's folder. Only marked functions are called: a
plan may name anything importable, and `os:system` was not written to be called by everyone who may queue a plan. The
return value is the step's stdout, as JSON, so that it can be the input of the next step; None writes nothing. What the
function prints is the step's stderr. An exception fails the step: its traceback goes to stderr, and its type and
message to stdout as JSON, for callers that ask for the result. Decided in
docs/decisions/a-python-task-is-a-one-step-plan.md.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from farro.execution import function_output, task_file
from farro.execution.tools import FUNCTION, Call, import_from

TOOL = FUNCTION
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_CURRENT: ContextVar[Call | None] = ContextVar("farro_call", default=None)
_MESSAGE_LIMIT = 8_000
CHUNK = 30_000  # characters of one argument: the kernel allows 128 KiB each, and a UTF-8 character has up to four bytes


class Marked:
    """A function that plans may call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class CannotCall(Exception):
    """The step names something that cannot be called, or its arguments or value are invalid; the message says what
    would help."""

    def __init__(self, message: str, kind: str = "CannotCall") -> None:
        self.kind = kind  # the error's type in the result
        super().__init__(message)


def call_data(args: list[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call as data, without empty parts."""
    return {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value}


def arguments(args: list[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the step's `args` for a call. ValueError, TypeError or RecursionError: not JSON."""
    data = call_data(args, kwargs)
    if not data:
        return []
    text = json.dumps(data, allow_nan=False)
    return [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]


def current() -> Call | None:
    """Return the step that this function runs as; None outside of one."""
    return _CURRENT.get()


def _around() -> tuple[Mapping[str, str], str] | None:
    call = _CURRENT.get()
    return None if call is None else (call.env, call.cwd)


task_file.inside = _around  # so that `farro.add_task` works on a worker's thread, where os.environ is not the step's


def run(call: Call) -> int | None:
    """Run the tool `function`."""
    stdout = _own_stdout(call)
    token = _CURRENT.set(call)
    try:
        with function_output.redirected(call.stderr, lambda: call.stdin):
            try:
                said = _said(call.command, _value(call))
            except CannotCall as trouble:
                sys.stderr.write(f"farro: {trouble}\n")
                return _failed(stdout, trouble.kind, str(trouble))
            except Exception as error:  # noqa: BLE001 - any exception of a function fails its step
                sys.stderr.write("".join(traceback.format_exception(_without_ours(error))))
                return _failed(stdout, _type_name(error), _message(error))
        stdout(said)
        return None
    finally:
        _CURRENT.reset(token)


def _own_stdout(call: Call) -> Callable[[bytes], object]:
    """Return the writer for the value. In a child process, what the function starts inherits descriptor 1: redirect
    that to stderr, as what the function prints is."""
    if call.stdout is not getattr(sys.stdout, "buffer", None) or call.stdout.fileno() != 1:
        return call.stdout.write
    kept = os.dup(1)
    os.dup2(2, 1)

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(kept, rest) :]  # noqa: TID251 - a step's output, not a file of farro's

    return write


def _value(call: Call) -> Any:
    marked = _find(call.command, call.env.get("FARRO_ROOT"))
    args, kwargs = _arguments(call)
    value = marked.function(*args, **kwargs)
    if inspect.isawaitable(value):
        import asyncio  # here: most functions do not need it, and it is slow to import

        return asyncio.run(_awaited(value))
    return value


async def _awaited(value: Any) -> Any:
    return await value


def _find(reference: str, root: str | None) -> Marked:
    if _NAME.fullmatch(reference) is None:
        raise CannotCall(f"{reference!r} does not name a function; write module:function")
    module_name, _, name = reference.partition(":")
    found = getattr(_module(module_name, root), name, None)
    if isinstance(found, Marked):
        return found
    if found is None:
        raise CannotCall(f"{module_name} has no {name}; a worker keeps the code that it started with: restart it")
    raise CannotCall(f"{reference} is not marked with @farro.task, and nothing else is called by a plan")


def _module(name: str, root: str | None) -> Any:
    if root is not None:
        import_from(root)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module was found, but not one that it imports; the traceback says where
    importlib.invalidate_caches()  # it may have just been written
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise CannotCall(
            f"no module {error.name} for this worker: it looks in its own Python ({sys.prefix}), in PYTHONPATH, and in "
            f"the root's folder ({root}); put the module there, or start the worker with PYTHONPATH"
        ) from None


def _arguments(call: Call) -> tuple[list[Any], dict[str, Any]]:
    text = "".join(call.args)
    try:
        data = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise CannotCall(f"the arguments of {call.command} are not JSON: {error}") from None
    members = data if isinstance(data, dict) and not data.keys() - {"args", "kwargs"} else {"args": None}
    args, kwargs = members.get("args", []), members.get("kwargs", {})
    if isinstance(args, list) and isinstance(kwargs, dict):
        return args, kwargs
    raise CannotCall(f'the arguments of {call.command} must be {{"args": [ … ], "kwargs": {{ … }}}}, not {text[:80]}')


def _said(reference: str, value: Any) -> bytes:
    if value is None:
        return b""
    try:
        return json.dumps(value, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise CannotCall(f"what {reference} returned is not JSON: {error}", "TypeError") from None


def _failed(stdout: Callable[[bytes], object], kind: str, message: str) -> int:
    error = {"type": kind, "message": message[:_MESSAGE_LIMIT]}
    stdout(json.dumps({"error": error}).encode() + b"\n")
    return 1


def _type_name(error: BaseException) -> str:
    """Return the type's name as a traceback shows it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - str() of an exception may fail, too; its traceback says where it was
        return "<exception str() failed>"


def _without_ours(error: Exception) -> Exception:
    """Cut farro's own frames off the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)
