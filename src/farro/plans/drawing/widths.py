"""Measure and cut text by terminal columns. An ambiguous character counts as one column."""

from __future__ import annotations

import unicodedata


def width(text: str) -> int:
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
