"""What reaches the terminal: answers, complaints, and what becomes of both when nobody can take them.

What is said lives in the commands.
"""

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

program = "farro"  # as it was called: an alias complains in its own name


class ReaderGone(FarroError):
    """Whoever read the answer has left (`farro ls | head -1`): no error, and nobody to tell."""

    exit_code = 141  # as a shell says of a command that SIGPIPE ended


def answer(data: Any) -> None:
    """JSON on stdout, one document."""
    _echo(json.dumps(data, default=str, ensure_ascii=False))


def say(text: str = "") -> None:
    """A line, or several, for a person; what files and arguments brought into it cannot steer the terminal."""
    _echo(printable(text, keep="\n\t"))


def note(text: str) -> None:
    """What a person may want to know beside the answer, on stderr."""
    with contextlib.suppress(OSError):
        click.echo(printable(text, keep="\n\t"), err=True)


def at_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def draws(stream: TextIO | None) -> bool:
    """A terminal that can go back over what it shows: not an editor's shell or a script's, which calls itself dumb."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def raw(data: bytes) -> None:
    """Bytes on stdout as they are: into a pipe or a file. What shall be seen at a terminal is made harmless first."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def complain(text: str) -> None:
    """What went wrong, on stderr; with --json too, so that stdout holds one document or nothing."""
    with contextlib.suppress(OSError):
        for line in text.splitlines():
            click.echo(f"{program}: {printable(line)}", err=True)


def flush() -> None:
    """The answer is out; OSError when it could not be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None


def forget_stdout() -> None:
    forget("stdout")


def forget(name: str) -> None:
    """What could not be written to `stdout` or `stderr` must not be tried again when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())  # noqa: TID251 - no file of farro's


def make_encodable() -> None:
    """What the terminal's encoding, or a file name that is not text, cannot say is escaped; it is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:  # caught here: click would turn it into exit code 1
        raise ReaderGone from None
