"""List the tools that steps may use here, each with its description of itself.

They are built in, from the config, from installed packages, or programs on the PATH. The description is the JSON of
`<tool> --describe`, or a Python function's docstring. It is optional, and a wrong one breaks nothing: what cannot be
understood is left out and reported.

    {"name": "agx-ocr", "version": "1.2", "description": "Reads text from images.",
     "commands": [{"name": "read", "args": ["FILE"], "description": "Prints the text of an image."}]}
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from farro.documents import did_you_mean
from farro.errors import InputError
from farro.execution.find_program import UNIX
from farro.execution.tools import FUNCTION, Tools, ToolTrouble, load
from farro.host.fs import listdir
from farro.host.programs import ask, which
from farro.lazy_dataclass import dataclass, field, replace

PREFIXES = ("agx-", "farro-")
PATIENCE_S = 2.0
PYTHON_PATIENCE_S = 10.0  # a heavy library takes seconds to import, and the worker waits for that, too
LIMIT = 256 * 1024  # bytes of a description
_AT_ONCE = 8
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolInfo:
    """A tool, where it comes from, and its own description."""

    name: str
    kind: str  # built in, program, python
    comes_from: str  # farro, config, package, PATH
    where: str  # the file, or pkg.mod:function
    usable: bool = True
    said: Description = field(default_factory=Description)
    trouble: str | None = None  # why it cannot be used, or has no description


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSearch:
    """The places to search for programs."""

    env: Mapping[str, str]
    cwd: str


def listed(tools: Tools, search: ProgramSearch, *, configured: Sequence[str], on_path: bool = False) -> list[ToolInfo]:
    """List every tool with its description. A tool that misbehaves does not keep the others from being listed."""
    built_in = {name: tool for name, tool in _BUILT_IN.items() if name not in configured}
    asks: list[Callable[[], ToolInfo]] = [partial(_built_in, name) for name in built_in]
    for name in sorted(set(tools.names()) - set(built_in), key=lambda name: (name not in configured, name)):
        asks.append(_registered(tools, name, "config" if name in configured else "package", search))
    if on_path:
        known = set(tools.names())
        asks += [_program(name, (file,), "PATH", search) for name, file in _on_path(search) if name not in known]
    from concurrent.futures import (
        ThreadPoolExecutor,  # here: slow to import, and the child that describes a function has no use for it
    )

    with ThreadPoolExecutor(_AT_ONCE, "describe") as threads:
        return list(threads.map(lambda describe: describe(), asks))


def names(tools: Tools, search: ProgramSearch) -> list[str]:
    """Return the tools that a worker here offers, without running any: built in, registered, and on the PATH."""
    return sorted({*_BUILT_IN, *tools.names(), *(name for name, _ in _on_path(search))})


def one(tools: Tools, search: ProgramSearch, name: str, *, configured: Sequence[str]) -> ToolInfo:
    """Return the tool that a step of that name would use. InputError says which there are."""
    if name in _BUILT_IN and name not in configured:
        return _built_in(name)
    if name in tools.names():
        return _registered(tools, name, "config" if name in configured else "package", search)()
    file = which(name, search.env.get("PATH"), search.cwd) if os.sep not in name else None
    if file is None:
        known = [UNIX, *tools.names(), *(found for found, _ in _on_path(search))]
        hint = did_you_mean(name, known)
        raise InputError(f"no tool {name} here; {hint}{hint and ' '}`farro tools --path` lists what there is")
    return _program(name, (file,), "PATH", search)()


_BUILT_IN = {
    UNIX: "Runs any program; the command is found on the PATH.",
    FUNCTION: "Calls the @farro.task function that the command names.",
}


def _built_in(name: str) -> ToolInfo:
    said = Description(description=_BUILT_IN[name])
    return ToolInfo(name=name, kind="built in", comes_from="farro", where="", said=said)


def _registered(tools: Tools, name: str, comes_from: str, search: ProgramSearch) -> Callable[[], ToolInfo]:
    value = tools.named(name)
    if isinstance(value, str):
        return _python(name, value, comes_from, search)
    if callable(value):
        found = ToolInfo(name=name, kind="python", comes_from=comes_from, where=repr(value))
        return lambda: _described(found, _of_function(value))
    return _program(name, value or (name,), comes_from, search)


def _python(name: str, reference: str, comes_from: str, search: ProgramSearch) -> Callable[[], ToolInfo]:
    found = ToolInfo(name=name, kind="python", comes_from=comes_from, where=reference)

    def describe() -> ToolInfo:
        asked = _child_command_line(reference)
        answer = ask(asked, timeout_s=PYTHON_PATIENCE_S, limit=LIMIT, cwd=search.cwd, env=search.env)
        if answer.trouble is not None:
            return replace(found, usable=False, trouble=f"importing it {answer.trouble}")
        said, usable = _from_child(answer.stdout)
        return replace(_described(found, said), usable=usable)

    return describe


def _program(name: str, argv: Sequence[str], comes_from: str, search: ProgramSearch) -> Callable[[], ToolInfo]:
    file = which(argv[0], search.env.get("PATH"), search.cwd)
    found = ToolInfo(name=name, kind="program", comes_from=comes_from, where=file or argv[0])
    if file is None:
        missing = replace(found, usable=False, trouble=f"{argv[0]} was not found, or is not executable")
        return lambda: missing

    def describe() -> ToolInfo:
        asked = [file, *argv[1:], "--describe"]
        answer = ask(asked, timeout_s=PATIENCE_S, limit=LIMIT, cwd=search.cwd, env=search.env)
        if answer.trouble is not None:
            return replace(found, trouble=f"--describe {answer.trouble}")
        said = _parsed(answer.stdout)
        return _described(found, f"--describe {said}" if isinstance(said, str) else said)

    return describe


def _described(tool: ToolInfo, said: Description | str) -> ToolInfo:
    return replace(tool, trouble=said) if isinstance(said, str) else replace(tool, said=said)


def _on_path(search: ProgramSearch) -> Iterator[tuple[str, str]]:
    """Yield programs with their files, each where the PATH has it first."""
    seen: set[str] = set()
    for folder in search.env.get("PATH", os.defpath).split(os.pathsep):
        where = os.path.join(search.cwd, folder or ".")
        try:
            names = sorted(listdir(where))
        except OSError:
            continue
        for name in names:
            file = os.path.join(where, name)
            if name.startswith(PREFIXES) and name not in seen and os.path.isfile(file) and os.access(file, os.X_OK):
                seen.add(name)
                yield name, file


# --- what a tool says of itself ---


def _parsed(text: bytes) -> Description | str:
    """Return the description, or why this is none."""
    if not text.strip():
        return "said nothing"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "did not answer in JSON"
    return _of_data(data)


def _of_data(data: Any) -> Description | str:
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


def _of_function(function: Callable[..., Any]) -> Description | str:
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
        return _of_data(answer)
    lines = (inspect.getdoc(function) or "").strip().splitlines()
    return Description(description=_text(lines[0]) if lines else "")


# The child imports from where the worker does, whatever its cwd and PYTHONPATH are.
_BOOT = "import json,sys;sys.path[:]=json.loads(sys.argv[1]);from farro.execution.tool_catalog import main;main()"


def _child_command_line(reference: str) -> list[str]:
    """Return the command that describes the function of that name, in a child: a module may do anything while it is
    imported."""
    return [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), reference]


def main() -> None:
    """Run in that child. What the module prints is discarded; the answer is one JSON object."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        said = _of_function(load(sys.argv[2]))
    except ToolTrouble as trouble:
        answer: dict[str, Any] = {"unusable": str(trouble)}
    else:
        answer = {"trouble": said} if isinstance(said, str) else {"said": asdict(said)}
    with os.fdopen(stdout, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


def _from_child(text: bytes) -> tuple[Description | str, bool]:
    """Decode what `main` wrote: the description or what is wrong, and whether the function can be used."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return "importing it ended the interpreter", False
    if "unusable" in answer:
        return str(answer["unusable"]), False
    return (str(answer["trouble"]), True) if "trouble" in answer else (_of_data(answer.get("said")), True)


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
