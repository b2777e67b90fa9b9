"""`agx` alone at a terminal: lines are read and run as commands, with history and completion. Never a shell.

What the commands do lives in the files beside this one; what Tab offers is what click and cli.completion know of them.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import shlex
from collections.abc import Sequence
from typing import Any

from farro.agx.cli.completion import Completer
from farro.agx.cli.context import Place, state_folder
from farro.agx.cli.group import ALIAS, PLACES, agx
from farro.agx.draft_files import make_folder, write_private
from farro.cli import terminal
from farro.cli.main import run
from farro.errors import FarroError, InputError
from farro.host import fs, leases
from farro.log.structured import printable
from farro.plans import command_text

HISTORY_LINES = 2000
_HISTORY_BYTES = 1 << 20
_LEAVE = ("exit", "quit", "q")
_MORE = "…> "

readline: Any = None  # where Python has none, lines are read without it
with contextlib.suppress(ImportError):
    readline = importlib.import_module("readline")


def read_lines(given: Sequence[str]) -> int:
    """Until Ctrl-D or `exit`. `given`: options of the program that hold for every line."""
    place = Place.of_options(given)
    history = History(f"{state_folder()}/history")
    history.begin()
    if readline is not None:
        readline.set_completer(Completer(given, readline).complete)
        readline.set_completer_delims(" \t\n")
        readline.parse_and_bind("tab: complete")
    terminal.note("agx: `help` lists the commands, Tab completes, Ctrl-D ends")
    try:
        while True:
            try:
                line = _line(prompt(place))
            except EOFError:
                terminal.say()
                return 0
            except KeyboardInterrupt:  # what was typed is dropped
                terminal.say()
                continue
            if not line.strip():
                continue
            history.add(line)
            if line.strip() in _LEAVE:
                return 0
            _run(line, given)
    finally:
        history.keep()


def prompt(place: Place) -> str:
    """`agx backup (3)> `: the draft, and how many steps it has now, also when another terminal added some."""
    try:
        draft = place.drafts.read()
    except FarroError:
        return "agx ?> "
    name = draft.name or "draft"
    return f"agx {printable(name)[:24]} ({len(draft.steps)})> "


def _line(first: str) -> str:
    """One line, or several: a backslash at the end, or quotes that are open, go on in the next."""
    text = input(first)
    while True:
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1] + " " + input(_MORE).lstrip()
            continue
        if not _open(text):
            return text
        text += "\n" + input(_MORE)


def _open(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError as error:
        return "quotation" in str(error) and not _in_words(text)
    return False


def _in_words(text: str) -> bool:
    """`add don't forget the header`: an apostrophe in prose opens nothing."""
    return text.startswith("add ") and " -- " not in f"{text} " and text.count("'") == 1 and '"' not in text


def _run(line: str, given: Sequence[str]) -> int:
    """One line as a command. Whatever it does, the next can be typed."""
    try:
        arguments = parsed(line)
    except InputError as error:
        terminal.complain(str(error))
        return error.exit_code
    if arguments[0] == "agx":  # a habit
        del arguments[0]
    if not arguments or arguments[0] in ("help", "?"):
        wanted = arguments[1:] if arguments else []
        return run([*given, *wanted, "--help"], program="agx", command=agx)
    if arguments[0] not in (*PLACES, ALIAS) and not arguments[0].startswith("-"):
        near = difflib.get_close_matches(arguments[0], PLACES, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "`help` lists the commands"
        terminal.complain(f"no command {arguments[0]!r}; {hint}")
        return 2
    return run([*given, *arguments], program="agx", command=agx)


def parsed(line: str) -> list[str]:
    """A line as the words of a command. What stands after ` -- ` stays one text: the rules of commands read it."""
    head, dashes, rest = f"{line.strip()} ".partition(" -- ")
    try:
        arguments = shlex.split(head)
    except ValueError:
        if not _in_words(head):
            raise InputError("a quote is not closed") from None
        arguments = ["add", head.removeprefix("add ").strip()]
    if not dashes:
        return arguments
    if "--literal" in arguments:  # each word as it stands, signs too
        try:
            return [*arguments, "--", *shlex.split(rest)]
        except ValueError:
            raise InputError("a quote is not closed") from None
    typed = command_text.line(rest.strip())
    only = typed.commands[0][0] if [len(command) for command in typed.commands] == [1] else ""
    if arguments[:1] == ["add"] and len(only.split()) > 1:
        return [*arguments, "--", only]  # a line in quotes, as it is typed in a shell and as help shows it
    if len(typed.commands) == 1 and not typed.reads_last:
        return (
            [*arguments, "--literal", "--", *typed.commands[0]]
            if arguments[:1] == ["add"]
            else [*arguments, "--", rest]
        )
    return [*arguments, "--", rest.strip()]


class History:
    """The lines of this person, 0600. Two terminals both keep theirs; a line that begins with a space is not kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._new: list[str] = []

    def begin(self) -> None:
        if readline is None:
            return
        readline.set_auto_history(False)
        readline.clear_history()
        for line in self._read():
            readline.add_history(line)

    def add(self, line: str) -> None:
        if readline is None or line.startswith(" "):
            return
        flat = " ".join(line.splitlines())
        if not self._new or self._new[-1] != flat:
            readline.add_history(flat)
            self._new.append(flat)

    def keep(self) -> None:
        if not self._new:
            return
        with contextlib.suppress(OSError, FarroError):  # a full disk is no reason to fail when leaving
            make_folder(os.path.dirname(self._path))
            with leases.exclusively(f"{self._path}.lock", listening=True):
                lines = [*self._read(), *self._new][-HISTORY_LINES:]
                write_private(self._path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

    def _read(self) -> list[str]:
        try:
            text = fs.read_bytes(self._path, _HISTORY_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return []
        return [line for line in text.split("\n") if line]
