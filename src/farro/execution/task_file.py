"""Add a step to the running plan: write its file, and hand it over so that it is never lost.

Nothing but `os` and `time` is imported: `farro task add` should start as quickly as the interpreter does.

A step finds its attempt's task folder in FARRO_TASKS (R6: a path, never a lookup). One file per task, named
`<time>-<random>-<step that adds>`:

    .tmp-…   being written
    ….new    handed over: the adder renames it to this
    ….json   taken: the runner renames it to this, and then reads it

At the end of the plan the runner seals the folder: it removes it if it is empty, else renames it to `<folder>.sealed`,
and looks once more. A worker renames it first, and moves it away if it is empty (host.trees). A kernel that resolved a
path finishes its call even if a folder on it was renamed meanwhile, so a file may still arrive in the sealed folder.
So the adder checks afterwards: the file is where it was put, or was taken, and both are before the last look; else it
is withdrawn by an unlink, and only one of this and the runner's rename can win.
[test_every_accepted_task_is_in_the_result]
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # like typing's, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypedDict, Unpack

    class CallStepOptions(TypedDict, total=False):
        """Options of a step that a running step adds."""

        id: str | None
        needs: Iterable[str]
        input_from: str | None
        timeout: float | None
        cwd: str | None
        env: Mapping[str, str] | None
        retries: int
        retry_delay: float
        retry_backoff: float
        tool: str

    class AddedStepOptions(CallStepOptions, total=False):
        """The same, and where to add it."""

        environ: Mapping[str, str] | None


FOLDER = "FARRO_TASKS"
STEP = "FARRO_STEP"
NEW, TAKEN, SEALED, TEMPORARY = ".new", ".json", ".sealed", ".tmp-"
LIMIT = 1 << 20  # bytes of one task

OUTSIDE = (
    "a task is added from inside a running step, and this is none: it becomes one more step of the same job, run after "
    "the step that adds it. To queue a job of its own: farro enqueue -- make test"
)

# Set by function_calls, where functions run on threads of the worker: returns the environment and the folder of the
# step that this thread runs; None on any other thread.
inside: Callable[[], tuple[Mapping[str, str], str] | None] | None = None

_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {ord('"'): '\\"', ord("\\"): "\\\\"}


_OPTIONS: Mapping[str, object] = {
    "id": None,
    "needs": (),
    "input_from": None,
    "timeout": None,
    "cwd": None,
    "env": None,
    "retries": 0,
    "retry_delay": 0,
    "retry_backoff": 1,
    "tool": "unix",
    "environ": None,
}


def add_task(command: str, args: Iterable[str] = (), **options: Unpack[AddedStepOptions]) -> str:
    """Add a step to the plan of the running step, and return its id.

    It runs when the step that adds it has succeeded, after those that it `needs` and those added before it; in this
    folder unless `cwd` names another. InputError: no step is running here, or a value is wrong. Refused: the plan is
    over; nothing was added. StorageTrouble: the disk refused it; nothing was added. `environ` is for a Python tool
    inside the worker, whose environment is not the process's own (`Call.add_task`).
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"add_task() got an unexpected keyword argument {name!r}")
    given: dict[str, Any] = {**_OPTIONS, **options}
    environ, cwd, env = given["environ"], given["cwd"], given["env"]
    around, here = (inside and environ is None and inside()) or (os.environ if environ is None else environ, "")
    folder, added_by = around.get(FOLDER), around.get(STEP)
    if not folder or not added_by:
        raise _wrong(OUTSIDE)
    unique = os.urandom(8).hex()
    task: dict[str, object] = {
        "id": _id("id", f"task-{unique}" if given["id"] is None else given["id"]),
        "tool": _text("tool", given["tool"]),
        "command": _text("command", command),
        "args": _texts("args", args),
        "needs": [_id("needs", need) for need in _texts("needs", given["needs"])],
        "cwd": _text("cwd", os.path.join(here or _beside(cwd), cwd or "")),
    }
    if given["input_from"] is not None:
        task["input_from_step"] = _id("input_from", given["input_from"])
    if env:
        task["env"] = {_text("env", name): _text(f"env.{name}", value) for name, value in env.items()}
    check_limits(given)
    task |= {name: given[name] for name in _LIMITS if given[name] != _OPTIONS[name]}
    if not command:
        raise _wrong("there is no command; for example: farro task add -- make test")
    try:
        data = _json(task).encode() + b"\n"
    except UnicodeEncodeError:
        raise _wrong("a task is text, and this one holds bytes that are not UTF-8") from None
    if len(data) > LIMIT:
        raise _wrong(f"a task may have {LIMIT} bytes, and this one has {len(data)}; hand a file over instead")
    _hand_over(folder, f"{time.time_ns():020d}-{unique}-{_id(STEP, added_by)}", data)
    return str(task["id"])


_LIMITS = ("timeout", "retries", "retry_delay", "retry_backoff")


def check_limits(given: Mapping[str, Any]) -> None:
    """Check the limits of a step: `timeout`, `retries`, `retry_delay`, `retry_backoff`. Raise InputError."""
    timeout, retries = given.get("timeout"), given["retries"]
    if timeout is not None and not (_is_number(timeout) and 0 < timeout <= 365 * 86_400):
        raise _wrong(f"timeout: {_shown(timeout)} must be positive and at most a year, in seconds")
    if not _is_number(retries) or retries not in range(101):
        raise _wrong(f"retries: {_shown(retries)} is not a whole number from 0 to 100")
    delay, backoff = given["retry_delay"], given["retry_backoff"]
    if not (_is_number(delay) and 0 <= delay <= 3600):
        raise _wrong(f"retry_delay: {_shown(delay)} must not be negative, and at most an hour, in seconds")
    if not (_is_number(backoff) and 1 <= backoff <= 10):
        raise _wrong(f"retry_backoff: {_shown(backoff)} is not a number from 1 to 10")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def is_id(text: str) -> bool:
    """Return whether the text matches plans.model.ID_PATTERN, without importing `re`. Test:
    test_ids_of_tasks_are_ids_of_steps."""
    return 0 < len(text) <= 64 and text[0] in _FIRST and all(char in _FIRST or char in "_-" for char in text)


def _hand_over(folder: str, name: str, data: bytes) -> None:
    temporary = f"{folder}/{TEMPORARY}{name}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.rename(temporary, f"{folder}/{name}{NEW}")
    except (FileNotFoundError, NotADirectoryError):
        raise _over() from None
    except OSError as error:
        from farro.errors import StorageTrouble

        _unlinked(temporary)
        raise StorageTrouble(f"{folder}: {error.strerror}; the task was not added") from error
    _make_sure(folder, name)


def _make_sure(folder: str, name: str) -> None:
    """Return when the runner has the file, or will have it. Checks in the order in which the file can move, so that
    nothing is missed."""
    attempt = os.path.dirname(folder)
    if os.path.lexists(f"{folder}/{name}{NEW}") or os.path.lexists(f"{folder}/{name}{TAKEN}"):
        return
    if _unlinked(f"{folder}{SEALED}/{name}{NEW}"):
        raise _over()
    if not os.path.lexists(f"{folder}{SEALED}/{name}{TAKEN}"):
        if not os.path.lexists(folder) and not os.path.lexists(f"{folder}{SEALED}") and os.path.lexists(attempt):
            raise _over()  # sealed, with nothing taken, and the job is still there
        from farro.errors import FarroError

        raise FarroError("the job went on while the task was added, and it is unknown whether the task was taken")


def _unlinked(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _json(value: object) -> str:
    """Encode texts, numbers, lists and dicts; importing `json` would cost a third of the start-up."""
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return repr(value)  # a number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(name: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):  # its characters would pass as items
        raise _wrong(f"{name}: {values!r} is a string; give a list of strings")
    return [_text(f"{name}[{place}]", value) for place, value in enumerate(values)]


def _text(name: str, value: object) -> str:
    """Check that it is text. Any other value would fail the plan when the task is taken, far from the code that
    added it."""
    if not isinstance(value, str):
        raise _wrong(f"{name}: {value!r} is not text")
    if "\0" in value:
        raise _wrong(f"{name}: {value!r} holds a NUL, which no argument, variable or path can carry; take it out")
    return value


def _beside(cwd: str | None) -> str:
    """Return the folder that a relative `cwd` refers to."""
    if cwd and os.path.isabs(cwd):
        return ""
    try:
        return os.getcwd()
    except OSError as error:
        raise _wrong(
            f"cwd: the folder that this runs in cannot be had ({error.strerror}), and the task would run there; name "
            "another by its whole path"
        ) from None


def _id(name: str, value: object) -> str:
    if isinstance(value, str) and is_id(value):
        return value
    raise _wrong(f"{name}: {value!r} is not an id: at most 64 letters, digits, _ and -, the first a letter or a digit")


def _wrong(message: str) -> Exception:
    from farro.errors import InputError  # here: slow to import, and most tasks are valid

    return InputError(message)


def _over() -> Exception:
    from farro.errors import Refused

    return Refused("the job's plan is already over; nothing was added. To queue a job of its own: farro enqueue -- …")
