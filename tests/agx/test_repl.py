"""`agx` alone at a terminal: a real one (a pty), with history, completion, Ctrl-C, Ctrl-D and continued lines."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.agx.cli.repl import parsed
from farro.errors import InputError
from flows.program import FARRO, PATIENCE_S, Program

PROMPT = r"agx [\w-]+ \(\d+\)> $"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07")


class Terminal:
    """The program at its own terminal."""

    def __init__(self, farro: Program, *args: str, editor: str = "true") -> None:
        self._fd, slave = pty.openpty()
        env = {**farro.env, "TERM": "dumb", "EDITOR": editor, "COLUMNS": "160", "INPUTRC": os.devnull}
        self.process = subprocess.Popen(
            [FARRO, "agx", *args],
            cwd=farro.path,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.said = ""

    def until(self, pattern: str, patience_s: float = PATIENCE_S) -> str:
        """Read the output until the pattern appears, and return it."""
        deadline = time.monotonic() + patience_s
        while not re.search(pattern, self.said):
            assert time.monotonic() < deadline, f"{pattern!r} did not appear:\n{self.said}"
            if select.select([self._fd], [], [], 0.1)[0]:
                data = b""
                with contextlib.suppress(OSError):  # its other side is closed
                    data = os.read(self._fd, 65536)
                assert data, f"it ended before {pattern!r}:\n{self.said}"
                self.said += _ESCAPES.sub("", data.decode())
        said, self.said = self.said, ""
        return said

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def line(self, text: str) -> str:
        """Type a line; return the output before the next prompt."""
        self.type(f"{text}\n")
        return self.until(PROMPT)

    def interrupt(self) -> str:
        """Press Ctrl-C; return the output before the next prompt. Python misses one that comes while it reads a key."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                return self.until(PROMPT, patience_s=3)
        raise AssertionError(f"Ctrl-C does nothing: {self.said}")

    def end(self) -> int:
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], PATIENCE_S)[0] and os.read(self._fd, 65536):
                pass
        return self.process.wait(PATIENCE_S)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("add --literal -- echo a | b", ["add", "--literal", "--", "echo", "a", "|", "b"]),
        ("add --literal -- grep x > y", ["add", "--literal", "--", "grep", "x", ">", "y"]),
        ("add --literal -- echo 'a | b' \\$HOME", ["add", "--literal", "--", "echo", "a | b", "$HOME"]),
        ("add -- echo a | b", ["add", "--", "echo a | b"]),
    ],
)
def test_line_is_split_into_words(line: str, words: list[str]) -> None:
    assert parsed(line) == words


def test_open_quote_is_reported() -> None:
    with pytest.raises(InputError, match="a quote is not closed"):
        parsed("add --literal -- echo 'a")


@pytest.fixture
def terminals(farro: Program) -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for one in made:
        one.clean_up()


def opened(farro: Program, terminals: list[Terminal], *args: str, editor: str = "true") -> Terminal:
    made = Terminal(farro, *args, editor=editor)
    terminals.append(made)
    made.until(PROMPT)
    return made


def test_a_session_from_the_first_line_to_ctrl_d(farro: Program, terminals: list[Terminal]) -> None:
    (farro.path / "names.txt").write_text("b\na\n")
    at = opened(farro, terminals)
    assert "agx mine (0)>" in at.line("new mine")
    said = at.line("add -- sort names.txt | head -1")
    assert "head -1" in said
    assert "reads 1" in said
    assert "agx mine (2)>" in said
    assert "mine: 2 steps" in at.line("preview")
    assert "no shell runs a step" in at.line("add -- sort > x")
    assert re.search(r"\d+ +tr a z +reads", at.line("add -- 'echo a | tr a z'")), "in quotes, as in a shell"
    assert re.search(r"'a b\|c'", at.line("add --literal -- 'a b|c'"))
    assert "no command 'perview'; did you mean" in at.line("perview")
    assert "providers" in at.line("add don't forget the header")
    assert "Submit the draft" in at.line("help")
    assert "--input-from" in at.line("help add")
    at.line("")
    at.type("\x04")
    assert at.end() == 0


def test_exit_ends_the_session(farro: Program, terminals: list[Terminal]) -> None:
    at = opened(farro, terminals)
    at.type("exit\n")
    assert at.end() == 0


def test_ctrl_c_drops_the_line_and_the_next_can_be_typed(farro: Program, terminals: list[Terminal]) -> None:
    at = opened(farro, terminals)
    at.type("new half-typ")
    at.until("half-typ")
    at.interrupt()
    assert "agx draft (1)>" in at.line("add -- true")


def test_ctrl_c_ends_the_wait_and_not_the_program(farro: Program, terminals: list[Terminal]) -> None:
    at = opened(farro, terminals)
    at.line("add -- true")
    at.type("submit --wait\n")
    at.until("no worker is alive")
    assert "goes on" in at.interrupt()
    assert "queued" in at.line("jobs")


def test_lines_continue_after_a_backslash_and_inside_quotes(farro: Program, terminals: list[Terminal]) -> None:
    at = opened(farro, terminals)
    at.type("add -- sort \\\n")
    at.until("…> $")
    assert "sort -u" in at.line("-u")
    at.type("add -- printf 'a\n")
    at.until("…> $")
    assert "agx draft (2)>" in at.line("b'")
    plan = farro.call("agx", "preview", code=0).json["plan"]
    assert [one["args"] for one in plan["steps"]] == [["-u"], ["a\nb"]]


def test_history_is_saved_readable_by_its_owner_only(farro: Program, terminals: list[Terminal]) -> None:
    at = opened(farro, terminals)
    at.line("add -- true")
    at.line(" add -- echo secret")
    at.type("\x04")
    at.end()
    file = Path(farro.env["XDG_STATE_HOME"], "farro", "agx", "history")
    assert file.read_text() == "add -- true\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = opened(farro, terminals)
    again.type("\x1b[A")
    again.until(r"add -- true$")
    again.type("\n")
    assert "agx draft (3)>" in again.until(PROMPT)


def test_two_terminals_share_one_draft_and_keep_both_histories(farro: Program, terminals: list[Terminal]) -> None:
    one, two = opened(farro, terminals), opened(farro, terminals)
    one.line("add -- true")
    assert "agx draft (2)>" in two.line("add -- false")
    assert "agx draft (2)>" in one.line("")
    for at in (one, two):
        at.type("\x04")
        at.end()
    file = Path(farro.env["XDG_STATE_HOME"], "farro", "agx", "history")
    assert sorted(file.read_text().splitlines()) == ["add -- false", "add -- true"]


def test_tab_completes_commands_options_plans_jobs_and_files(farro: Program, terminals: list[Terminal]) -> None:
    farro.call("agx", "add", "--", "true", code=0)
    farro.call("agx", "save", "nightly", code=0)
    farro.call("agx", "submit", "--id", "unmistakable", code=0)
    (farro.path / "measurements.csv").write_text("")
    at = opened(farro, terminals)
    for typed, completed in [
        ("prev\t", "preview "),
        ("job sta\t", "job status "),
        ("job status unm\t", "job status unmistakable "),
        ("get nig\t", "get nightly "),
        ("submit --pri\t", "submit --priority "),
        ("add -- wc mea\t", "add -- wc measurements.csv "),
        ("add --tool un\t", "add --tool unix "),
        ("plan pre\t", "plan preview "),
    ]:
        at.type(typed)
        at.until(re.escape(completed) + "$")
        at.type("\x15\n")  # the line is dropped
        at.until(PROMPT)


def test_the_draft_is_edited_in_an_editor(farro: Program, terminals: list[Terminal]) -> None:
    editor = farro.path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/sort/tac/ "$1"\n')
    editor.chmod(0o755)
    at = opened(farro, terminals, editor=str(editor))
    at.line("add -- sort names.txt")
    assert "tac names.txt" in at.line("edit")
    assert "nothing was changed" in at.line("edit")
    assert not list(Path(farro.env["XDG_STATE_HOME"], "farro", "agx").glob("edit-*"))


def test_invalid_edit_can_be_edited_again_or_is_kept(farro: Program, terminals: list[Terminal]) -> None:
    editor = farro.path / "editor"
    editor.write_text("#!/bin/sh\necho '{' > \"$1\"\n")
    editor.chmod(0o755)
    at = opened(farro, terminals, editor=str(editor))
    at.line("add -- sort")
    at.type("edit\n")
    at.until(r"Edit again\?")
    at.type("n\n")
    assert "is kept in" in at.until(PROMPT)
    assert "sort" in at.line("preview")


def test_an_edit_does_not_overwrite_what_another_terminal_added(farro: Program, terminals: list[Terminal]) -> None:
    editor = farro.path / "editor"
    editor.write_text(f'#!/bin/sh\n{FARRO} agx add -- date > /dev/null\nsed -i s/sort/tac/ "$1"\n')
    editor.chmod(0o755)
    at = opened(farro, terminals, editor=str(editor))
    at.line("add -- sort")
    said = at.line("edit")
    assert "changed elsewhere" in said
    assert "is kept in" in said
    assert "date" in at.line("preview")


def test_output_of_jobs_is_escaped_at_the_terminal(farro: Program, terminals: list[Terminal]) -> None:
    made = farro.call("enqueue", "--", "printf", "\x1b]0;owned\x07", code=0).out.strip()
    farro.worked()
    at = opened(farro, terminals)
    at.type(f"job stdout {made}\n")
    said = at.until(PROMPT)
    assert r"\x1b]0;owned\x07" in said
