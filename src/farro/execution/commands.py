"""Finds what each step of a plan will execute, before the first one runs.

Finding only: starting is in run.py, what a registered tool is in tools.py.

A missing command is told before anything was done, except where an earlier step may still make it: a command given as a
path (`./configure`), or looked for on a PATH that the step sets itself (`.venv/bin`), is first looked for when its
turn comes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from farro.execution import child
from farro.execution.tools import Function, Program, Python, Tools, ToolTrouble
from farro.lazy_dataclass import dataclass
from farro.plans.model import Step

UNIX = "unix"
AGENT = "agent"
_SEE = "`farro tools` lists what there is"


@dataclass(frozen=True, kw_only=True, slots=True)
class Executable:
    """A program to start. `file` None: to be looked for when its turn comes."""

    argv: tuple[str, ...]
    file: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class InWorker:
    """A Python function to call."""

    function: Function


Command = Executable | InWorker
Known = dict[tuple[str, str | None, str], str]  # name, PATH, cwd → the file: most steps of a plan start the same few


@dataclass(frozen=True, slots=True)
class Look:
    """Where a name is looked for, and what was found so far."""

    path: str | None
    cwd: str
    known: Known

    def file(self, name: str) -> str | None:
        asked = (name, self.path, self.cwd)
        found = self.known.get(asked) or which(*asked)
        if found is not None:
            self.known[asked] = found
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Nothing to execute; why, and what would help."""

    message: str


def find(
    step: Step,
    *,
    tools: Tools,
    env: Mapping[str, str],
    cwd: str,
    attempt_dir: str,
    may_appear: bool,
    confined: bool = False,
    known: Known | None = None,
) -> Command | Missing:
    """What `step` executes with this environment and cwd. `may_appear`: an earlier step may still make it. `confined`:
    in a process of its own, for a thread of the worker cannot be held to allowed_paths. `known` is asked first."""
    look = Look(env.get("PATH"), cwd, {} if known is None else known)
    if step.tool == UNIX:
        return _program((step.command, *step.args), step, look, may_appear)
    try:
        tool = tools.find(step.tool)
    except ToolTrouble as trouble:
        return Missing(message=f"tool {step.tool} is registered but cannot be used: {trouble}; {_SEE}")
    if isinstance(tool, Program):
        # Where the config says that it is, no step will put it: only a PATH of the step's own may still grow.
        grows = may_appear and os.sep not in tool.argv[0]
        found = _program((*tool.argv, step.command, *step.args), step, look, grows)
        if isinstance(found, Missing):
            return Missing(message=f"tool {step.tool}: {found.message}; the config's `tools` names it")
        return found
    if isinstance(tool, Python):
        if tool.reference is None and confined and step.tool != AGENT:  # whose calls are confined each by itself
            return Missing(
                message=f"tool {step.tool} is a function inside the worker, which cannot be held to allowed_paths; "
                'register it by reference ("package.module:function"), or take allowed_paths out'
            )
        if tool.reference is not None and (confined or step.timeout is not None):  # asked for, not the default
            argv = child.command_line(tool.reference, step.command, step.args, attempt_dir)
            return Executable(argv=tuple(argv), file=argv[0])
        return InWorker(function=tool.function)
    if step.tool == AGENT:
        return Missing(message="agent steps need a provider, and this worker has none")
    found = _program((step.tool, step.command, *step.args), step, look, may_appear)
    if isinstance(found, Missing):
        return Missing(message=_no_tool(step.tool, tools.names()))
    return found


def function_of(step: Step, tools: Tools) -> Function | None:
    """What `find` would tell of a step that is not confined, where that is a function inside the worker. None: it is
    something else, or nothing."""
    if step.tool in (UNIX, AGENT):
        return None
    try:
        tool = tools.find(step.tool)
    except ToolTrouble:
        return None
    apart = isinstance(tool, Python) and tool.reference is not None and step.timeout is not None
    return tool.function if isinstance(tool, Python) and not apart else None


def _no_tool(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # here: most plans name what there is

    near = get_close_matches(name, [UNIX, *known], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"tool {name} is neither registered nor a program on the PATH; {hint}{_SEE}"


def _program(argv: tuple[str, ...], step: Step, look: Look, may_appear: bool) -> Executable | Missing:
    name = argv[0]
    file = look.file(name)
    if file is None and not (may_appear and (os.sep in name or "PATH" in step.env)):
        where = "was not found" if os.sep in name else "was not found on the PATH"
        hint = "; a command is one program: put its words into args" if " " in name.strip() else ""
        return Missing(message=f"{name} {where}, or is not executable{hint}")
    return Executable(argv=argv, file=file)


def which(name: str, path: str | None, cwd: str) -> str | None:
    """The file that `name` executes, as execvp finds it: a path as it is, a bare name along `path`, both from `cwd`."""
    if os.sep in name:
        places = [name]
    else:
        folders = (os.defpath if path is None else path).split(os.pathsep)
        places = [os.path.join(folder or ".", name) for folder in folders]
    for place in places:
        file = os.path.join(cwd, place)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    return None
