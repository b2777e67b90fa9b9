"""Format tables, durations, sizes and progress for people."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import click

from farro.cli.terminal import draws, say
from farro.jobs.times import parse_duration
from farro.jobs.times import span as span


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse the value of an option that is a duration: 90s, 10m, 2h, 1d."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Align columns; those in `right` to the right. The last one is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def show_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> None:
    say(table(rows, right=right, indent=indent))


def shortened(title: str, most: int = 40) -> str:
    """Shorten a text, such as a job's command, for a column."""
    return title if len(title) <= most else f"{title[: most - 1]}…"


def size(count: int) -> str:
    """Format bytes: 512 B, 3.4 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def bar(done: int, total: int, width: int = 10) -> str:
    """Draw progress in plain characters. It is full only when everything is done."""
    filled = width * min(done, total) // total if total else 0
    return f"[{'#' * filled}{'.' * (width - filled)}]"


class Bar:
    """A progress bar on stderr, where that is a terminal and the work is long enough."""

    _WIDTH = 30

    def __init__(self, label: str, total: int, *, least: int = 4) -> None:
        self._label = label
        self._total = total
        self._stream = sys.stderr if total >= least and draws(sys.stderr) else None

    def draw(self, done: int) -> None:
        filled = self._WIDTH * min(done, self._total) // max(1, self._total)
        self._write(f"\r\x1b[K{self._label} [{'#' * filled}{'.' * (self._WIDTH - filled)}] {done}/{self._total}")

    def clear(self) -> None:
        """Erase the bar: before another line is printed, and at the end."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(text)
                self._stream.flush()


def indented(text: str, width: int) -> str:
    """Indent the lines after the first of a note, such as a review's findings."""
    return f"\n{' ' * width}".join(text.splitlines())
