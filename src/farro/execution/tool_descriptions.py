"""Read a tool's description of itself: the JSON of `<tool> --describe`, or a Python function's docstring.

A description is optional, and a wrong one breaks nothing: what cannot be understood is left out and reported.

    {"name": "agx-ocr", "version": "1.2", "description": "Reads text from images.",
     "commands": [{"name": "read", "args": ["FILE"], "description": "Prints the text of an image."}]}
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from farro.execution.tools import ToolTrouble, load
from farro.lazy_dataclass import dataclass

_LONGEST = 400  # characters of one text
_MOST = 100  # commands


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandDescription:
    """One command of a tool."""

    name: str
    args: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A tool's description. Everything is optional; unknown members are ignored."""

    name: str = ""
    version: str = ""
    description: str = ""
    commands: tuple[CommandDescription, ...] = ()


def parse(text: bytes) -> Description | str:
    """Return the description, or why this is none."""
    if not text.strip():
        return "said nothing"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "did not answer in JSON"
    return of_data(data)


def of_data(data: Any) -> Description | str:
    """Return the description in decoded JSON, or why this is none."""
    if not isinstance(data, dict):
        return "did not answer with a JSON object"
    commands = data.get("commands")
    return Description(
        name=_text(data.get("name")),
        version=_text(data.get("version")),
        description=_text(data.get("description")),
        commands=tuple(_command(each) for each in (commands if isinstance(commands, list) else ())[:_MOST]),
    )


def of_function(function: Callable[..., Any]) -> Description | str:
    """Return the function's `describe` attribute (text, an object, or a function that returns one), else its
    docstring."""
    answer = getattr(function, "describe", None)
    if callable(answer):
        try:
            answer = answer()
        except Exception as error:  # noqa: BLE001 - a tool's own code
            return f"describe() raised {type(error).__name__}"
    if isinstance(answer, str):
        return Description(description=_text(answer))
    if answer is not None:
        return of_data(answer)
    lines = (inspect.getdoc(function) or "").strip().splitlines()
    return Description(description=_text(lines[0]) if lines else "")


# The child imports from where the worker does, whatever its cwd and PYTHONPATH are.
_BOOT = "import json,sys;sys.path[:]=json.loads(sys.argv[1]);from farro.execution.tool_descriptions import main;main()"


def command_line(reference: str) -> list[str]:
    """Return the command that describes the function of that name, in a child: a module may do anything while it is
    imported."""
    return [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), reference]


def main() -> None:
    """Run in that child. What the module prints is discarded; the answer is one JSON object."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        said = of_function(load(sys.argv[2]))
    except ToolTrouble as trouble:
        answer: dict[str, Any] = {"unusable": str(trouble)}
    else:
        answer = {"trouble": said} if isinstance(said, str) else {"said": asdict(said)}
    with os.fdopen(stdout, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


def from_child(text: bytes) -> tuple[Description | str, bool]:
    """Decode what `main` wrote: the description or what is wrong, and whether the function can be used."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return "importing it ended the interpreter", False
    if "unusable" in answer:
        return str(answer["unusable"]), False
    return (str(answer["trouble"]), True) if "trouble" in answer else (of_data(answer.get("said")), True)


def _command(data: Any) -> CommandDescription:
    if not isinstance(data, dict):
        return CommandDescription(name=_text(data))
    args = data.get("args")
    return CommandDescription(
        name=_text(data.get("name")),
        args=tuple(_argument(each) for each in (args if isinstance(args, list) else ())[:_MOST]),
        description=_text(data.get("description")),
    )


def _argument(data: Any) -> str:
    return _text(data.get("name") if isinstance(data, dict) else data)


def _text(value: Any) -> str:
    if isinstance(value, bool | dict | list) or value is None:
        return ""
    return " ".join(str(value).split())[:_LONGEST]
