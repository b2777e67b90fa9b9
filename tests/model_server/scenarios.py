"""What the model does: a scenario is a list of turns, and the prompt names one of them.

A turn is the reply to one request. The last turn of a scenario is repeated. Tests may add scenarios of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

MARKER = re.compile(r"SCENARIO:\s*([a-z][a-z-]*)(?:[ \t]+(\d+))?")
DEFAULT = "ok"

FailKind = Literal["usage_limit", "rate_limited", "no_credit", "server_error", "overloaded", "bad_key", "bad_request"]


@dataclass(frozen=True, kw_only=True)
class Say:
    """The model answers with text; anything but text is sent as a JSON block."""

    content: Any
    pieces: int = 4  # events of a stream that carry the text
    delay_s: float = 0.0  # before each of them

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else f"```json\n{json.dumps(self.content, indent=1)}\n```"


@dataclass(frozen=True, kw_only=True)
class WriteFile:
    """The model asks for the program's own tool that writes a file."""

    path: str  # relative to the folder in which the program works
    text: str


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """The model asks for the program's own shell."""

    command: str


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The service refuses, in the words of the real one."""

    kind: FailKind
    wait_s: int | None = None  # until a limit resets or another try may succeed; None: the service does not say
    in_stream: bool = False  # the answer begins well, and the error is an event of the stream


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The service goes silent: after the beginning of an answer, or before it."""

    begun: bool = True


@dataclass(frozen=True, kw_only=True)
class BreakOff:
    """The answer ends in the middle: the connection is cut, or the stream ends without its last events."""

    cut: bool = True


Turn = Say | WriteFile | RunCommand | Fail | Hang | BreakOff
Turns = Sequence[Turn]

DONE = {"summary": "Added hello().", "tests": "none"}
HELLO = WriteFile(path="src/hello.py", text='def hello(name: str) -> str:\n    return f"Hello, {name}"\n')
PROSE = Say(content="I have done it, and all is well.")

# The number behind a name in the prompt is `wait_s` of its first turn.
SCENARIOS: Mapping[str, Turns] = {
    DEFAULT: [Say(content="OK")],
    "edit": [HELLO, Say(content=DONE)],
    "command": [RunCommand(command="id -u; pwd; ls"), Say(content="I looked around.")],
    "several-turns": [
        RunCommand(command="pwd"),
        HELLO,
        WriteFile(path="src/more.py", text="MORE = 1\n"),
        RunCommand(command="ls src"),
        Say(content=DONE),
    ],
    "denied": [WriteFile(path="../outside.txt", text="not allowed\n"), Say(content="It was not allowed.")],
    "usage-limit": [Fail(kind="usage_limit", wait_s=10_800)],
    "usage-limit-later": [HELLO, Fail(kind="usage_limit", wait_s=10_800)],
    "usage-limit-unknown": [Fail(kind="usage_limit")],
    "rate-limit": [Fail(kind="rate_limited", wait_s=2)],
    "rate-limit-unknown": [Fail(kind="rate_limited")],
    "no-credit": [Fail(kind="no_credit")],
    "server-error": [Fail(kind="server_error")],
    "overloaded": [Fail(kind="overloaded")],
    "overloaded-in-stream": [Fail(kind="overloaded", in_stream=True)],
    "bad-key": [Fail(kind="bad_key")],
    "bad-request": [Fail(kind="bad_request")],
    "hang": [Hang()],
    "silent": [Hang(begun=False)],
    "half-edit": [WriteFile(path="src/half.py", text="def half(:\n"), Hang()],
    "cut": [BreakOff()],
    "cut-later": [HELLO, BreakOff()],
    "ends-early": [BreakOff(cut=False)],
    "empty": [Say(content="")],
    "prose": [PROSE],
    "wrong-form": [PROSE, Say(content=DONE)],
    "long": [Say(content="word " * 400, pieces=100, delay_s=0.01)],
}


def named_in(text: str) -> tuple[str, int | None, str] | None:
    """Return the last scenario that a text names, its number, and the text after it."""
    names = list(MARKER.finditer(text))
    if not names:
        return None
    last = names[-1]
    return last[1], None if last[2] is None else int(last[2]), text[last.end() :]


def turn_of(turns: Turns, number: int, wait_s: int | None) -> Turn:
    turn = turns[min(number, len(turns) - 1)]
    return replace(turn, wait_s=wait_s) if isinstance(turn, Fail) and wait_s is not None else turn


_TURNS: Mapping[str, type[Turn]] = {
    "say": Say,
    "write": WriteFile,
    "run": RunCommand,
    "fail": Fail,
    "hang": Hang,
    "break_off": BreakOff,
}


def read_scenarios(text: str) -> dict[str, Turns]:
    """Read scenarios from JSON: {"name": [{"write": {"path": "a.py", "text": "…"}}, {"say": {"content": "done"}}]}."""
    return {
        name: [_TURNS[what](**fields) for turn in turns for what, fields in turn.items()]
        for name, turns in json.loads(text).items()
    }
