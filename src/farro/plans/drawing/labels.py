"""What a picture says of each step: its id, its command, the mark of its state. How it is drawn lives beside this."""

from __future__ import annotations

from enum import StrEnum

from farro.plans.drawing.widths import plain
from farro.plans.model import Step


class State(StrEnum):
    """How far a step is."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


MARKS = {
    State.WAITING: "○",
    State.RUNNING: "◐",
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.SKIPPED: "–",
}
ASCII_MARKS = {
    State.WAITING: "[ ]",
    State.RUNNING: "[~]",
    State.SUCCEEDED: "[ok]",
    State.FAILED: "[x]",
    State.SKIPPED: "[-]",
}


def command_line(step: Step) -> str:
    """What it runs, as a person would type it, more or less; on one line."""
    tool = () if step.tool == "unix" else (step.tool,)
    return " ".join(_quoted(plain(word)) for word in (*tool, step.command, *step.args))


def _quoted(word: str) -> str:
    return word if word and not any(char in word for char in " '\"") else "'" + word.replace("'", "’") + "'"
