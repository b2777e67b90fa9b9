"""`agx` alone at a terminal: read lines and run them as commands, with history and completion. No shell is involved."""

from __future__ import annotations

import contextlib
import difflib
import glob
import importlib
import os
import shlex
from collections.abc import Sequence
from typing import Any

from farro.agx import command_text
from farro.agx.cli.context import AgxSession, state_folder
from farro.agx.cli.group import ALIAS, OF_A_PLAN, PLACES, agx
from farro.agx.drafting import make_folder, write_private
from farro.cli import terminal
from farro.cli.main import run
from farro.cli.options import application
from farro.errors import FarroError, InputError
from farro.host import fs, leases
from farro.log.structured import printable

HISTORY_LINES = 2000
_HISTORY_BYTES = 1 << 20
_LEAVE = ("exit", "quit", "q")
_MORE = "…> "

readline: Any = None  # None: this Python has no readline, and lines are read without it
with contextlib.suppress(ImportError):
    readline = importlib.import_module("readline")


def read_lines(given: Sequence[str]) -> int:
    """Read and run lines until Ctrl-D or `exit`. `given`: options of `agx` that hold for every line."""
    session = AgxSession.of_options(given)
    history = LineHistory(f"{state_folder()}/history")
    history.begin()
    if readline is not None:
        readline.set_completer(Completer(given, readline).complete)
        readline.set_completer_delims(" \t\n")
        readline.parse_and_bind("tab: complete")
    terminal.note("agx: `help` lists the commands, Tab completes, Ctrl-D ends")
    try:
        while True:
            try:
                line = _line(prompt(session))
            except EOFError:
                terminal.say()
                return 0
            except KeyboardInterrupt:  # drops the line
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


def prompt(session: AgxSession) -> str:
    """Return `agx backup (3)> `: the draft and its number of steps, read anew: another terminal may add some."""
    try:
        draft = session.drafts.read()
    except FarroError:
        return "agx ?> "
    name = draft.name or "draft"
    return f"agx {printable(name)[:24]} ({len(draft.steps)})> "


def _line(first: str) -> str:
    """Read one line, or several: a backslash at the end, or an open quote, continues in the next."""
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
    """Tell an apostrophe in prose from an opening quote: `add don't forget the header`."""
    return text.startswith("add ") and " -- " not in f"{text} " and text.count("'") == 1 and '"' not in text


def _run(line: str, given: Sequence[str]) -> int:
    """Run one line as a command. Its errors are printed, and the next line can be typed."""
    try:
        arguments = parsed(line)
    except InputError as error:
        terminal.complain(str(error))
        return error.exit_code
    if arguments[0] == "agx":  # typed out of habit
        del arguments[0]
    if not arguments or arguments[0] in ("help", "?"):
        wanted = arguments[1:] if arguments else []
        return run([*given, *wanted, "--help"], program="agx", command=agx)
    if arguments[0] not in (*PLACES, ALIAS, ALIAS.upper()) and not arguments[0].startswith("-"):
        near = difflib.get_close_matches(arguments[0], PLACES, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "`help` lists the commands"
        terminal.complain(f"no command {arguments[0]!r}; {hint}")
        return 2
    return run([*given, *arguments], program="agx", command=agx)


def parsed(line: str) -> list[str]:
    """Split a line into the words of a command. The text after ` -- ` stays whole: `add` parses it itself."""
    head, dashes, rest = f"{line.strip()} ".partition(" -- ")
    try:
        arguments = shlex.split(head)
    except ValueError:
        if not _in_words(head):
            raise InputError("a quote is not closed") from None
        arguments = ["add", head.removeprefix("add ").strip()]
    if not dashes:
        return arguments
    if "--literal" in arguments:  # each word as it is, operators too
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


class LineHistory:
    """Keep typed lines in a private file (0600). Two terminals both keep theirs; a line that begins with a space is not
    kept."""

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
        with contextlib.suppress(OSError, FarroError):  # a full disk must not turn leaving into an error
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


class Completer:
    """Offer commands, options, tools, plans, jobs and files for Tab. Must be quick and must not fail."""

    def __init__(self, given: Sequence[str], readline: Any) -> None:
        self._given = list(given)
        self._readline = readline
        self._found: list[str] = []

    def complete(self, text: str, state: int) -> str | None:
        if state == 0:
            try:
                line = self._readline.get_line_buffer()[: self._readline.get_begidx()]
                self._found = self.offered(line, text)
            except Exception:  # noqa: BLE001 - Tab must never end the program, whatever a config or a disk does
                self._found = []
        return self._found[state] if state < len(self._found) else None

    def offered(self, line: str, text: str) -> list[str]:
        before = line.split()
        if " -- " in f" {line}" or "--" in before:
            return _files(text)
        if before[:1] == ["agx"]:
            before = before[1:]
        if not before:
            return [f"{name} " for name in sorted((*PLACES, ALIAS, "help", "exit")) if name.startswith(text)]
        if before[0] == "help":
            return [f"{name} " for name in PLACES if name.startswith(text)]
        if before == [ALIAS]:
            return [f"{name} " for name in OF_A_PLAN if name.startswith(text)]
        if before[-1] == "--tool":
            return [f"{name} " for name in self._tools() if name.startswith(text)]
        return self._of_click(before, text)

    def _of_click(self, before: list[str], text: str) -> list[str]:
        from click.shell_completion import ShellComplete

        asked = ShellComplete(agx, {}, "agx", "_AGX_COMPLETE")
        found = [item.value for item in asked.get_completions([*self._given, *before], text) if item.type == "plain"]
        names = [f"{name} " for name in found]
        wants = self._argument(before)
        if wants is not None and not text.startswith("-"):
            names += [f"{name} " for name in self._kept(wants) if name.startswith(text)]
        return names or _files(text)

    def _argument(self, before: list[str]) -> str | None:
        """Return the kind of name that the command expects: of a plan or of an action."""
        verbs = [word for word in before if not word.startswith("-")]
        verbs = verbs[1:] if verbs[:1] == [ALIAS] else verbs
        if verbs[:1] in (["get"], ["delete"], ["submit"], ["preview"], ["validate"]) or verbs[:2] in (
            ["job", "submit"],
            ["action", "new"],
        ):
            return "plan"
        return "action" if verbs[:2] in (["action", "submit"], ["action", "get"], ["action", "delete"]) else None

    def _kept(self, kind: str) -> list[str]:
        session = AgxSession.of_options(self._given)
        try:
            lines: Sequence[Any] = session.client.plans()
            if kind == "action":
                lines = [*session.client.actions(), *lines]
            return [line.id for line in lines]
        finally:
            session.close()

    def _tools(self) -> list[str]:
        return ["unix", *application().tools(AgxSession.of_options(self._given).settings).names()]


def _files(text: str) -> list[str]:
    found = sorted(glob.glob(glob.escape(os.path.expanduser(text)) + "*"))[:200]
    return [f"{name}/" if os.path.isdir(name) else f"{name} " for name in found]
