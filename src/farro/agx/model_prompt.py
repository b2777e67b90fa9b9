"""The texts that are sent to a planning model: its instructions, the request, the review and the repair."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from farro.execution.tool_catalog import ToolInfo
from farro.host import machine

_TOLD = 4000  # characters of one tool's description
_FORM = """{"steps": [{"step_number": 3, "tool": "unix", "command": "sort", "args": ["-u"], "input_from_step": 2,
 "timeout": 60}]}"""

PLAN = f"""You turn a person's words into the steps of a plan. Each step runs one program.

Rules:
- Answer with exactly one JSON object and nothing else: {_FORM}
- Only the steps that are to be added; their step_number goes on after the draft's last one.
- `command` is one program, `args` its arguments, one word each. There is no shell: no pipes, redirections, globs,
  variables or && in arguments. To give one step's stdout to another step's stdin, set `input_from_step` to the number
  of an earlier step.
- `tool` is "unix" for programs on the PATH, else the name of a tool below, whose `command` is one of its commands.
- Steps run in order; the plan halts at the first that fails. `timeout` is in seconds, `ok_exit_codes` lists exit codes
  that are no failure (grep says 1 when nothing matches).
- Use as few steps as the words need. Never delete or overwrite what the words do not name.
- When it cannot be planned with these means, answer {{"cannot": "why, in one sentence"}}.
"""

REVIEW = f"""You review steps that another wrote for a person. Judge whether, together with the draft, they do what the
person's words ask for, and nothing else; whether each program is called with arguments that it has; whether each step
that needs input reads the right earlier one.

Answer with exactly one JSON object and nothing else: {{"ok": true}}, or
{{"ok": false, "problems": ["what is wrong"], "steps": [the steps to add, all of them, put right]}},
where a step looks as in {_FORM}
There is no shell: no pipes, redirections, globs, variables or && in arguments.
"""


def system(text: str, tools: Sequence[ToolInfo]) -> str:
    """The rules, with the tools that there are."""
    return f"{text}\nTools:\n{_tools(tools)}\n"


def request(wish: str, draft: Mapping[str, Any]) -> str:
    return "\n\n".join([*_situation(draft), f"# What is to be added\n\n{wish.strip()}"]) + "\n"


def review(wish: str, draft: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    asked = f"# What was asked for\n\n{wish.strip()}"
    return "\n\n".join([*_situation(draft), asked, f"# The steps to judge\n\n{_json({'steps': list(steps)})}"]) + "\n"


def repair(problems: Sequence[str]) -> str:
    listed = "\n".join(f"- {problem}" for problem in problems[:20])
    return (
        f"That cannot be used:\n\n{listed}\n\nAnswer again, whole, in the form that was asked for, and nothing else.\n"
    )


def _situation(draft: Mapping[str, Any]) -> list[str]:
    steps = draft.get("steps") or []
    so_far = _json({"steps": steps}) if steps else "There are no steps yet; the first has step_number 1."
    return [f"# The system\n\n{machine.description()}", f"# The draft so far\n\n{so_far}"]


def _tools(tools: Sequence[ToolInfo]) -> str:
    lines = []
    for tool in tools:
        if not tool.usable:
            continue
        said = tool.said
        about = f"- {tool.name}: {said.description or 'says nothing of itself'}"
        for command in said.commands:
            usage = " ".join((command.name, *command.args))
            about += f"\n  - {usage}: {command.description}".rstrip(": ")
        lines.append(about[:_TOLD])
    return "\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
