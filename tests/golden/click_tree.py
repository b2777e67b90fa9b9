"""Print every command of one program with its arguments and options, a line each.

Run as `python click_tree.py PROGRAM` in a separate process, because an alias changes the command that it renames.
The program starts through its script's entry point and is stopped before it runs its click command, so that this file
names no module of farro except the entry points.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


class Reached(BaseException):
    """Raised when the program reaches its click command."""

    def __init__(self, command: click.Command) -> None:
        self.command = command


def entry_point(program: str) -> Callable[[], Any]:
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts.get(program, "farro.__main__:main").partition(":")
    found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    return found


def command_of(program: str) -> click.Command:
    def reach(command: click.Command, *_args: Any, **_options: Any) -> NoReturn:
        raise Reached(command)

    click.Command.main = reach  # type: ignore[assignment,method-assign]
    sys.argv = [program]
    try:
        entry_point(program)()
    except Reached as reached:
        return reached.command
    raise AssertionError(f"{program} ran no click command")


def lines(name: str, command: click.Command) -> Iterator[str]:
    hidden = " (hidden)" if command.hidden else ""
    yield f"{name}{hidden}"
    for parameter in command.params:
        yield f"{name}  {described(parameter)}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from lines(f"{name} {inner}", found)


def described(parameter: click.Parameter) -> str:
    told = parameter.to_info_dict()
    is_option = isinstance(parameter, click.Option)
    spelled = "/".join((*parameter.opts, *parameter.secondary_opts)) if is_option else f"<{parameter.name}>"
    words = [spelled, kind(told)]
    if parameter.nargs != 1:
        words.append(f"nargs={parameter.nargs}")
    words += [word for word in ("required", "multiple", "count", "hidden") if told.get(word)]
    if parameter.envvar:
        words.append(f"envvar={parameter.envvar}")
    default = told["default"]
    if default is not None and default is not False and not callable(default) and "Sentinel" not in repr(default):
        words.append(f"default={default!r}")
    return " ".join(words)


def kind(told: dict[str, Any]) -> str:
    if told.get("is_flag"):
        return "flag"
    type_ = told["type"]
    if "choices" in type_:
        return "|".join(map(str, type_["choices"]))
    limits = [f"{name}={type_[name]}" for name in ("min", "max") if type_.get(name) is not None]
    return " ".join([str(type_["name"]), *limits])


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1], command_of(sys.argv[1]))))
