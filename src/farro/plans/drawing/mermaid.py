"""Write a plan as Mermaid text, for README files, wikis and issues."""

from __future__ import annotations

from collections.abc import Mapping

from farro.plans.drawing.labels import MARKS, StepState, command_line
from farro.plans.drawing.layers import edges
from farro.plans.drawing.widths import cut
from farro.plans.model import Plan

_COLOURS = {
    StepState.WAITING: "stroke-dasharray:4 3",
    StepState.RUNNING: "stroke:#0969da,stroke-width:3px",
    StepState.SUCCEEDED: "stroke:#1a7f37,stroke-width:2px",
    StepState.FAILED: "stroke:#cf222e,stroke-width:3px",
    StepState.SKIPPED: "stroke-dasharray:1 3",
}
_LONGEST = 48


def draw(plan: Plan, states: Mapping[str, StepState] | None = None) -> str:
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
