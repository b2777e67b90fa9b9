"""Write answers and errors to stdout and stderr, also when the reader or the terminal is gone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from io import TextIOWrapper
from typing import Any, TextIO

import click

from farro.errors import FarroError
from farro.log.structured import printable

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
        click.echo(printable(text, keep="\n\t"), err=True)


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
            click.echo(f"{program}: {printable(line)}", err=True)


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
        click.echo(text)
    except BrokenPipeError:  # click would turn it into exit code 1
        raise ReaderGone from None
