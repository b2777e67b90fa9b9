"""Find programs by name: those that farro knows, and those of installed packages.

A package adds one as an entry point in the group `farro.programs`, which names an AgentProgram:

    [project.entry-points."farro.programs"]
    acme = "acme_farro:ACME"

`program: acme` in the config then means that object. docs/providers.md shows a complete program.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from farro.agents.programs.port import AgentProgram
from farro.documents import did_you_mean
from farro.errors import InputError
from farro.roles.provider_rules import PROGRAM_ENTRY_POINTS

BUILT_IN = {
    "claude": "farro.agents.programs.claude:CLAUDE",
    "codex": "farro.agents.programs.codex:CODEX",
    "gemini": "farro.agents.programs.gemini:GEMINI",
    "opencode": "farro.agents.programs.opencode:OPENCODE",
    "goose": "farro.agents.programs.goose:GOOSE",
    "aider": "farro.agents.programs.aider:AIDER",
    "cursor-agent": "farro.agents.programs.cursor_agent:CURSOR_AGENT",
    "amp": "farro.agents.programs.amp:AMP",
    "generic": "farro.agents.programs.generic:GENERIC",
}


def find_program(name: str) -> AgentProgram:
    """Return the program of that name. Raises InputError if there is none, or if its package cannot be loaded."""
    if name in BUILT_IN:
        return _load(BUILT_IN[name])
    offered = _installed()
    if name not in offered:
        known = (*BUILT_IN, *sorted(offered))
        hint = did_you_mean(name, known)
        raise InputError(f"farro does not know the program {name}; {hint}{hint and ' '}It knows {', '.join(known)}")
    try:
        return _load(offered[name])
    except Exception as error:  # a package may raise anything while it is imported
        message = f"the program {name} cannot be loaded from {offered[name]}: {type(error).__name__}: {error}"
        raise InputError(message) from error


def _load(reference: str) -> AgentProgram:
    module, _, attribute = reference.partition(":")
    return cast(AgentProgram, getattr(importlib.import_module(module), attribute))


def _installed() -> Mapping[str, str]:
    from importlib.metadata import entry_points  # imported late: slow, and the built-in programs do not need it

    return {entry.name: entry.value for entry in entry_points(group=PROGRAM_ENTRY_POINTS)}
