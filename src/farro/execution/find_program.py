"""Find what each step of a plan will execute, before the first one runs.

A missing command is reported before anything was done, unless an earlier step may still create it: a command given as a
path (`./configure`), or searched on a PATH that the step sets itself (`.venv/bin`), is looked up when the step starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from farro.documents import did_you_mean
from farro.execution.tools import Function, Program, Python, Tools, ToolTrouble, child_command_line
from farro.host.programs import which
from farro.lazy_dataclass import dataclass
from farro.plans.model import AGENT as AGENT
from farro.plans.model import Step

UNIX = "unix"
_SEE = "`farro tools` lists what there is"


@dataclass(frozen=True, kw_only=True, slots=True)
class Executable:
    """A program to start. `file` None: look it up when the step starts."""

    argv: tuple[str, ...]
    file: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class InWorker:
    """A Python function to call."""

    function: Function


Command = Executable | InWorker
Known = dict[tuple[str, str | None, str], str]  # name, PATH, cwd → file: most steps start the same few


@dataclass(frozen=True, slots=True)
class CommandSearch:
    """The places to search for programs, and the programs found so far."""

    path: str | None
    cwd: str
    known: Known

    def file(self, name: str) -> str | None:
        key = (name, self.path, self.cwd)
        found = self.known.get(key) or which(*key)
        if found is not None:
            self.known[key] = found
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """There is nothing to execute; the message says why, and what would help."""

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
    """Return what `step` executes with this environment and cwd.

    `may_appear`: an earlier step may still create it. `confined`: in a process of its own, because a thread of the
    worker cannot be confined to allowed_paths. `known`: a cache of found programs.
    """
    look = CommandSearch(env.get("PATH"), cwd, {} if known is None else known)
    if step.tool == UNIX:
        return _program((step.command, *step.args), step, look, may_appear)
    try:
        tool = tools.find(step.tool)
    except ToolTrouble as trouble:
        return Missing(message=f"tool {step.tool} is registered but cannot be used: {trouble}; {_SEE}")
    if isinstance(tool, Program):
        # No step creates a program at a path that the config names; only the step's own PATH may change.
        grows = may_appear and os.sep not in tool.argv[0]
        found = _program((*tool.argv, step.command, *step.args), step, look, grows)
        if isinstance(found, Missing):
            return Missing(message=f"tool {step.tool}: {found.message}; the config's `tools` names it")
        return found
    if isinstance(tool, Python):
        if tool.reference is None and confined and step.tool != AGENT:  # each call of an agent is confined by itself
            return Missing(
                message=f"tool {step.tool} is a function inside the worker, which cannot be confined to allowed_paths; "
                'register it by reference ("package.module:function"), or remove allowed_paths'
            )
        if tool.reference is not None and (confined or step.timeout is not None):  # explicitly set, not the default
            argv = child_command_line(tool.reference, step.command, step.args, attempt_dir)
            return Executable(argv=tuple(argv), file=argv[0])
        return InWorker(function=tool.function)
    if step.tool == AGENT:
        return Missing(message="agent steps need a provider, and this worker has none")
    found = _program((step.tool, step.command, *step.args), step, look, may_appear)
    if isinstance(found, Missing):
        return Missing(message=_no_tool(step.tool, tools.names()))
    return found


def _no_tool(name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, [UNIX, *known])
    return f"tool {name} is neither registered nor a program on the PATH; {hint}{hint and ' '}{_SEE}"


def _program(argv: tuple[str, ...], step: Step, look: CommandSearch, may_appear: bool) -> Executable | Missing:
    name = argv[0]
    file = look.file(name)
    if file is None and not (may_appear and (os.sep in name or "PATH" in step.env)):
        where = "was not found" if os.sep in name else "was not found on the PATH"
        hint = "; a command is one program: put its arguments into args" if " " in name.strip() else ""
        return Missing(message=f"{name} {where}, or is not executable{hint}")
    return Executable(argv=argv, file=file)
