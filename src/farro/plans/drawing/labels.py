"""Label the steps of a picture: id, command, mark of the state; and measure text by terminal columns."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

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


def width(text: str) -> int:
    """Return the columns of a text. An ambiguous character counts as one."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int, ellipsis: str = "…") -> str:
    """Cut text to at most that many columns, with an ellipsis."""
    text = plain(text)
    if width(text) <= columns:
        return text
    room, kept = columns - width(ellipsis), ""
    for char in text:
        room -= char_width(char)
        if room < 0:
            break
        kept += char
    return (kept + ellipsis) if columns >= width(ellipsis) else ""


def plain(text: str) -> str:
    """Return text on one line, without control characters."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
