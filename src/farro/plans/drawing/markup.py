"""Write a plan as markup: a Mermaid diagram for README files, wikis and issues, an HTML table for notebooks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape

from farro.plans.drawing.labels import MARKS, StepState, command_line, cut
from farro.plans.drawing.layout import edges
from farro.plans.model import Plan, Step

_COLOURS = {
    StepState.WAITING: "stroke-dasharray:4 3",
    StepState.RUNNING: "stroke:#0969da,stroke-width:3px",
    StepState.SUCCEEDED: "stroke:#1a7f37,stroke-width:2px",
    StepState.FAILED: "stroke:#cf222e,stroke-width:3px",
    StepState.SKIPPED: "stroke-dasharray:1 3",
}
_LONGEST = 48


def mermaid(plan: Plan, states: Mapping[str, StepState] | None = None) -> str:
    """Return the diagram. A thick arrow carries output to input, a thin one only orders."""
    states = states or {}
    names = {step.id: f"s{index}" for index, step in enumerate(plan.steps)}  # an id may be a Mermaid keyword
    lines = ["flowchart TD"]
    for step in plan.steps:
        state = states.get(step.id)
        head = f"{MARKS[state]} {step.id}" if state else step.id
        lines.append(f'    {names[step.id]}["<b>{_text(head)}</b><br/>{_text(cut(command_line(step), _LONGEST))}"]')
    for edge in edges(plan):
        lines.append(f"    {names[edge.source]} {'==>' if edge.data else '-->'} {names[edge.target]}")
    for state in StepState:
        members = [names[step_id] for step_id, found in states.items() if found is state and step_id in names]
        if members:
            lines += [f"    classDef {state} {_COLOURS[state]}", f"    class {','.join(members)} {state}"]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Escape by number everything that Mermaid, Markdown or HTML could interpret."""
    return "".join(char if char.isalnum() or char in " -_./,…" else f"#{ord(char)};" for char in text)


_LONGEST_CELL = 200


def html_table(plan: Plan) -> str:
    """Return the steps as a table. All text is escaped."""
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
    return f"<td>{escape(text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + '…')}</td>"
