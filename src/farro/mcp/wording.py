"""Translate shell commands in messages into tool names: `farro wait JOB` becomes `wait_for_jobs`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

_COMMAND = re.compile(r"`(farro [^`]+)`")
_SHELL = " in a shell"  # appended when no offered tool does the same
# Command words → the tool that does the same, and its argument for the word that follows.
TOOLS = {
    "ls": ("list_jobs", None),
    "job list": ("list_jobs", None),
    "show": ("show_job", "job"),
    "wait": ("wait_for_jobs", "jobs"),
    "logs": ("read_log", "job"),
    "explain": ("explain_job", "job"),
    "history": ("job_history", "job"),
    "stats": ("stats", None),
    "stats --alerts": ("alerts", None),
    "workers": ("list_workers", None),
    "inbox": ("inbox", None),
    "plan list": ("list_plans", None),
    "plan show": ("show_plan", "plan_id"),
    "swarm status": ("list_swarms", None),
    "swarm ls": ("list_swarms", None),
    "doctor": ("doctor", None),
    "enqueue --prompt-json": ("enqueue_agent_task", None),
    "retry": ("retry_job", "job"),
    "requeue": ("requeue_job", "job"),
    "kill": ("kill_job", "job"),
    "provider resume": ("resume_account", "account"),
    "approve": ("approve_job", "job"),
    "refuse": ("refuse_job", "job"),
}
# A command with any other option stays a command: a tool that does something else would mislead.
_ROLE, _FROM_START, _FOLLOW = "--role", "--from-start", "--follow"


def for_agents(text: str, offered: Collection[str]) -> str:
    """Replace every command by its tool. `offered`: the tools of this server."""
    return _COMMAND.sub(lambda found: _as_tool(found[1], offered) or f"{found[0]}{_SHELL}", text)


def fix_for_agents(fix: str, offered: Collection[str]) -> str:
    """Translate an advice, which is a command or a sentence."""
    return for_agents(f"`{fix}`" if fix.startswith("farro ") else fix, offered)


def _as_tool(command: str, offered: Collection[str]) -> str | None:
    words = command.split()[1:]
    for count in (2, 1):
        tool, argument = TOOLS.get(" ".join(words[:count]), ("", None))
        if tool in offered:
            arguments = _arguments(words[count:], argument)
            if arguments is None:
                return None
            shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
            return f"`{tool}({shown})`" if shown else f"`{tool}`"
    return None


def _arguments(words: list[str], positional: str | None) -> dict[str, Any] | None:
    """Return the tool's arguments; None when an option has no counterpart."""
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if word == _ROLE:
            found["roles"] = [next(left, "ROLE")]
        elif word == _FROM_START:
            found["from_start"] = True
        elif word.startswith("-") and word != _FOLLOW:  # --follow has no counterpart; the rest has
            return None
        elif not word.startswith("-") and positional is not None:
            found[positional] = [word] if positional == "jobs" else word
    return found
