"""The command line of `farro task add`, parsed without click, whose import takes longer than everything else here."""

from __future__ import annotations

import os
import sys

from farro.execution.task_file import FOLDER, add_task

TYPE_CHECKING = False  # as typing has it, which is slow to import
if TYPE_CHECKING:
    from typing import NoReturn

USAGE = "Usage: farro task add [OPTIONS] -- COMMAND [ARGS]..."
OPTIONS = (  # name, value, help
    ("--id", "ID", "Its id; default: a generated one."),
    ("--needs", "ID,ID", "Steps that must have succeeded before; repeatable."),
    ("--input-from", "ID", "The step whose output it reads."),
    ("--timeout", "DURATION", "End it after this time, such as 90s, 10m or 2h."),
    ("--cwd", "DIR", "Where it runs; default: this folder."),
    ("--env", "NAME=VALUE", "Set a variable for it; repeatable."),
    ("--retries", "N", "How often it is tried again when it fails."),
    ("--retry-delay", "DURATION", "How long to wait before a retry, such as 10s."),
    ("--retry-backoff", "N", "The factor by which that grows with each retry."),
    ("--tool", "TOOL", "The tool; default: the command is a program."),
    ("--root", "DIR", "The farro root; it can only be the job's own."),
)
_FLAGS = (("--json", "", "Answer as JSON."), ("-h, --help", "", "Show this message and exit."))
_LINES = "\n".join(f"  {name} {value}".ljust(26) + text for name, value, text in (*OPTIONS, *_FLAGS))
HELP = f"""{USAGE}

  Add a step to the plan that is running, from inside one of its steps, and
  print the new step's id.

  It runs in this folder when the step that adds it has succeeded: after the
  plan's own steps and those added before it, and after those that it needs.

Options:
{_LINES}

Exit codes: 0 added, 2 wrong use or no step is running, 3 the plan is over.
"""

_TAKES = tuple(name for name, _, _ in OPTIONS)
MANY = ("--needs", "--env")


class _Mistake(Exception):
    """The command line is wrong; the message says what would be right."""


def run(arguments: list[str]) -> int:
    """Add the step; return the exit code."""
    try:
        options, command = _read(arguments)
        if "--help" in options:
            _answer(HELP)
            return 0
        task_id = _add(options, command)
    except _Mistake as mistake:
        _complain(f"{USAGE}\nTry 'farro task add --help' for help.\n\nError: {mistake}")
        return 2
    except Exception as error:  # sorted out below: farro.errors is slow to import
        from farro.errors import FarroError

        if not isinstance(error, FarroError):
            raise
        _complain(f"farro: {_as_option(str(error))}")
        return error.exit_code
    try:
        _answer(f'{{"task_id": "{task_id}"}}\n' if "--json" in options else f"{task_id}\n")
    except OSError as error:  # the step was added all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # noqa: TID251 - no file of farro's
        if not isinstance(error, BrokenPipeError):
            _complain(f"farro: {task_id} was added, but its id could not be written: {error.strerror}")
    return 0


def _read(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options, each with its values, and the words after `--`."""
    options: dict[str, list[str]] = {}
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            command = list(rest)
            if not command:
                raise _Mistake("there is no command after --; for example: farro task add -- make test")
            return options, command
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            return {"--help": []}, []
        if word == "--json":
            options[word] = []
        elif name in _TAKES:
            given = value if equals else next(rest, None)
            if given is None or (given == "--" and not equals):
                raise _Mistake(f"{name} needs a value")
            if name in options and name not in MANY:
                raise _Mistake(f"{name} was given twice; keep one")
            options.setdefault(name, []).append(given)
        elif word.startswith("-"):
            _no_option(name)
        else:
            raise _Mistake(f"a command stands after --; write: farro task add -- {' '.join([word, *rest])}")
    raise _Mistake("there is no command; for example: farro task add -- make test")


def _add(options: dict[str, list[str]], command: list[str]) -> str:
    env = dict(_pair(text) for text in options.get("--env", ()))
    timeout = _only(options, "--timeout")
    delay = _only(options, "--retry-delay")
    cwd = _only(options, "--cwd")
    if cwd == "":  # an unset variable in a script must not mean the working folder
        raise _Mistake("--cwd: it is empty; name a folder, or leave it out")
    root = _only(options, "--root")
    if root is not None and os.environ.get(FOLDER) and not _same(root, os.environ.get("FARRO_ROOT", "")):
        raise _Mistake(f"--root: this step's job is in {os.environ.get('FARRO_ROOT')}; a task joins that job")
    return add_task(
        command[0],
        command[1:],
        id=_only(options, "--id"),
        needs=[need for text in options.get("--needs", ()) for need in text.replace(",", " ").split()],
        input_from=_only(options, "--input-from"),
        timeout=None if timeout is None else _seconds("--timeout", timeout),
        cwd=cwd,
        env=env,
        retries=_count(_only(options, "--retries") or "0"),
        retry_delay=0 if delay is None else _seconds("--retry-delay", delay),
        retry_backoff=_factor(_only(options, "--retry-backoff") or "1"),
        tool=_only(options, "--tool") or "unix",
    )


def _only(options: dict[str, list[str]], name: str) -> str | None:
    return options[name][0] if name in options else None


def _seconds(name: str, text: str) -> float:
    from farro.jobs.times import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise _Mistake(f"{name}: {error}") from error


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _Mistake(f"--retry-backoff: {text!r} is not a number from 1 to 10") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise _Mistake(f"--retries: {text!r} is not a whole number from 0 to 100")
    return int(text)


def _as_option(message: str) -> str:
    """Spell a field of the step as the option that set it."""
    name, colon, rest = message.partition(": ")
    option = f"--{name.replace('_', '-')}"
    return f"{option}: {rest}" if colon and option in _TAKES else message


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isascii() or not name.isidentifier():
        raise _Mistake(f"--env: {text!r} is not NAME=VALUE, where NAME consists of letters, digits and _")
    return name, value


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _no_option(name: str) -> NoReturn:
    from difflib import get_close_matches

    near = get_close_matches(name, [*_TAKES, "--json", "--help"], n=1)
    hint = f"did you mean {near[0]}?" if near else "farro task add --help lists them"
    raise _Mistake(f"no such option {name!r}; {hint}")


def _answer(text: str) -> None:
    if sys.stdout is not None:  # None: it was closed before this program started
        sys.stdout.write(text)
        sys.stdout.flush()


def _complain(text: str) -> None:
    """Print to stderr, with control characters escaped."""
    plain = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    try:
        sys.stderr.write(f"{plain}\n")
        sys.stderr.flush()
    except (OSError, AttributeError):  # stderr is closed
        pass
