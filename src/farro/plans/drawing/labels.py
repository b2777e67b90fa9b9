"""Label the steps of a picture: id, command, mark of the state."""

from __future__ import annotations

from enum import StrEnum

from farro.plans.drawing.widths import plain
from farro.plans.model import Step


class StepState(StrEnum):
    """The state of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


MARKS = {
    StepState.WAITING: "○",
    StepState.RUNNING: "◐",
    StepState.SUCCEEDED: "✓",
    StepState.FAILED: "✗",
    StepState.SKIPPED: "–",
}
ASCII_MARKS = {
    StepState.WAITING: "[ ]",
    StepState.RUNNING: "[~]",
    StepState.SUCCEEDED: "[ok]",
    StepState.FAILED: "[x]",
    StepState.SKIPPED: "[-]",
}


def command_line(step: Step) -> str:
    """Return the command of a step on one line, about as a person would type it."""
    tool = () if step.tool == "unix" else (step.tool,)
    return " ".join(_quoted(plain(word)) for word in (*tool, step.command, *step.args))


def _quoted(word: str) -> str:
    return word if word and not any(char in word for char in " '\"") else "'" + word.replace("'", "’") + "'"
