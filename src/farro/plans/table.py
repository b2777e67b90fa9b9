"""Render a plan as an HTML table of its steps, for notebooks. All text is escaped."""

from __future__ import annotations

import shlex
from html import escape

from farro.plans.model import Plan, Step

_LONGEST = 200


def plan_table(plan: Plan) -> str:
    title = " ".join(part for part in (plan.name, plan.id and f"({plan.id})") if part)
    head = "".join(f"<th>{name}</th>" for name in ("step", "tool", "command", "after", "timeout", "retries"))
    rows = "".join(f"<tr>{''.join(_cell(text) for text in _row(step))}</tr>" for step in plan.steps)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<p>{escape(title)}</p>{table}" if title else table


def _row(step: Step) -> tuple[str, ...]:
    timeout = "" if step.timeout is None else f"{step.timeout:g} s"
    command = shlex.join((step.command, *step.args))
    return step.id, step.tool, command, ", ".join(step.depends_on), timeout, str(step.retries or "")


def _cell(text: str) -> str:
    return f"<td>{escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…')}</td>"
