"""What a tool says of itself: the JSON of `<tool> --describe`, and what a Python function tells by its docstring.

Asking lives in operations.tools. A tool owes nobody a description, and a wrong one breaks nothing: what cannot be
understood is left out, and said.

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
class CommandTold:
    name: str
    args: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Everything is optional; unknown members are let through by being left out."""

    name: str = ""
    version: str = ""
    description: str = ""
    commands: tuple[CommandTold, ...] = ()


def parse(text: bytes) -> Description | str:
    """The description, or why this is none."""
    if not text.strip():
        return "said nothing"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "did not answer in JSON"
    return of_data(data)


def of_data(data: Any) -> Description | str:
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
    """Its `describe` attribute (text, an object, or a function that answers one of them), else its docstring."""
    told = getattr(function, "describe", None)
    if callable(told):
        try:
            told = told()
        except Exception as error:  # noqa: BLE001 - a tool's own code
            return f"describe() raised {type(error).__name__}"
    if isinstance(told, str):
        return Description(description=_text(told))
    if told is not None:
        return of_data(told)
    lines = (inspect.getdoc(function) or "").strip().splitlines()
    return Description(description=_text(lines[0]) if lines else "")


# As execution.child: imported from where the worker does, whatever the child's cwd and PYTHONPATH are.
_BOOT = "import json,sys;sys.path[:]=json.loads(sys.argv[1]);from farro.execution.tool_descriptions import main;main()"


def command_line(reference: str) -> list[str]:
    """What to execute to have the function of that name described: a module may do anything while it is imported."""
    return [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), reference]


def main() -> None:
    """Runs in that child. What the module prints goes nowhere; the answer is one JSON object."""
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        said = of_function(load(sys.argv[2]))
    except ToolTrouble as trouble:
        told: dict[str, Any] = {"unusable": str(trouble)}
    else:
        told = {"trouble": said} if isinstance(said, str) else {"said": asdict(said)}
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(told, stream)


def from_child(text: bytes) -> tuple[Description | str, bool]:
    """What `main` told: the description or what is wrong, and whether the function can be used."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        return "importing it ended the interpreter", False
    if "unusable" in told:
        return str(told["unusable"]), False
    return (str(told["trouble"]), True) if "trouble" in told else (of_data(told.get("said")), True)


def _command(data: Any) -> CommandTold:
    if not isinstance(data, dict):
        return CommandTold(name=_text(data))
    args = data.get("args")
    return CommandTold(
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
