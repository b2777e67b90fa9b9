"""Draw a plan as a list of levels, for graphs that are too large for boxes: every step, its command, its needs.

The level of a step is the length of its longest dependency chain: steps of one level never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farro.plans.drawing.labels import command_line
from farro.plans.drawing.layers import ranks
from farro.plans.drawing.widths import cut, width
from farro.plans.model import Plan, Step

_WIDEST_ID = 40
_LEAST_COMMAND = 12


def draw(plan: Plan, *, columns: int, ascii_only: bool = False, marks: Mapping[str, str] | None = None) -> str:
    """Return lines of at most `columns` where names allow it; no step is left out."""
    rank = ranks(plan)
    marks = marks or {}
    ellipsis = ".." if ascii_only else "…"
    names = {step.id: f"{marks[step.id]} {step.id}" if step.id in marks else step.id for step in plan.steps}
    wide = min(max(map(width, names.values())), _WIDEST_ID)
    room = max(_LEAST_COMMAND, min(columns - wide - 30, 40))
    room = min(room, max(width(command_line(step)) for step in plan.steps))
    lines: list[str] = []
    for level in range(max(rank.values()) + 1):
        members = [step for step in plan.steps if rank[step.id] == level]
        lines.append(f"level {level + 1}" + (f", {len(members)} steps" if len(members) > 1 else ""))
        for step in members:
            command = cut(command_line(step), room, ellipsis)
            head = f"  {_padded(names[step.id], wide)}  {_padded(command, room)}"
            lines += _with_needs(head, step, columns, ascii_only)
    return "\n".join(lines)


def _with_needs(head: str, step: Step, columns: int, ascii_only: bool) -> Iterator[str]:
    """Return the lines of a step and its needs."""
    data, after = ("<=", "<-") if ascii_only else ("⇐", "←")
    words = [] if step.input_from_step is None else [f"{data} {step.input_from_step}"]
    plain = [need for need in step.depends_on if need != step.input_from_step]
    words += [f"{after} {need}" if index == 0 else need for index, need in enumerate(plain)]
    line, begun = head + " ", False
    for index, word in enumerate(words):
        comma = "," if index + 1 < len(words) and not words[index + 1].startswith((data, after)) else ""
        if begun and width(line) + 1 + width(word + comma) > columns:
            yield line.rstrip()
            line = " " * (width(head) + 1 + width(after) + 1)
        line += f" {word}{comma}"
        begun = True
    yield line.rstrip()


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))
