"""Write answers and errors to stdout and stderr, also when the reader or the terminal is gone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

from farro.errors import FarroError
from farro.jobs.times import parse_duration
from farro.jobs.times import span as span
from farro.log.structured import printable

if TYPE_CHECKING:
    import click

program = "farro"  # as it was called: an alias uses its own name in errors


class ReaderGone(FarroError):
    """The reader of stdout has ended (`farro ls | head -1`): no error, and nothing is printed."""

    exit_code = 141  # as of a command that SIGPIPE ended


def answer(data: Any) -> None:
    """Print one JSON document on stdout."""
    _echo(json.dumps(data, default=str, ensure_ascii=False))


def reply(as_json: bool, data: Any, text: str) -> None:
    """Print the data as JSON, or the text for a person."""
    if as_json:
        answer(data)
    else:
        say(text)


def say(text: str = "") -> None:
    """Print lines for a person, with control characters of files and arguments escaped."""
    _echo(printable(text, keep="\n\t"))


def note(text: str) -> None:
    """Print on stderr what a person may want to know beside the answer."""
    with contextlib.suppress(OSError):
        _write(sys.stderr, printable(text, keep="\n\t"))


def at_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def draws(stream: TextIO | None) -> bool:
    """Tell whether the stream is a terminal that can move its cursor, which a dumb one cannot."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def raw(data: bytes) -> None:
    """Write bytes to stdout as they are. For a terminal the caller escapes them first."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def complain(text: str) -> None:
    """Print an error on stderr, with --json too: stdout holds one document or nothing."""
    with contextlib.suppress(OSError):
        for line in text.splitlines():
            _write(sys.stderr, f"{program}: {printable(line)}")


def flush() -> None:
    """Flush stdout; raise OSError when it could not be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None


def forget_stdout() -> None:
    forget("stdout")


def forget(name: str) -> None:
    """Discard what could not be written, or the interpreter would try again when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())  # noqa: TID251 - no file of farro's


def make_encodable() -> None:
    """Escape what the terminal's encoding cannot show, and file names that are not text, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _echo(text: str) -> None:
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        raise ReaderGone from None


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:  # None: it was closed before this program started
        stream.write(f"{text}\n")
        stream.flush()


def guarded(act: Callable[[], object]) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong use or bad input, 3 refused. A user's mistake
    prints no traceback."""
    try:
        answered = act()
        flush()
        return answered if isinstance(answered, int) else 0
    except KeyboardInterrupt:
        complain("stopped")
        return 130
    except ReaderGone as gone:
        forget_stdout()
        return gone.exit_code
    except FarroError as error:
        complain(str(error))
        return error.exit_code
    except OSError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # something was closed twice while it unwound
            complain("stopped")
            return 130
        if error.filename is not None:
            complain(f"{error.filename}: {error.strerror or error}")
        elif _nowhere():
            complain("the working folder was removed; change to another one (cd) and try again")
        else:
            forget_stdout()
            complain(f"the answer could not be written: {error.strerror or error}")
        return 1


def _nowhere() -> bool:
    """Tell whether the working folder was removed, which makes os.getcwd fail without a file name."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def usage_error(message: str) -> click.UsageError:
    """Return the error of a command line that click read without one."""
    import click

    return click.UsageError(message)


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse the value of an option that is a duration: 90s, 10m, 2h, 1d."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        import click

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
