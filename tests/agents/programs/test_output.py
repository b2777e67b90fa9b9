"""Lines, events and progress lines of programs' output."""

from __future__ import annotations

import math

import pytest

from farro.agents.programs.output import (
    LONGEST_LINE,
    SHOWN,
    Lines,
    at,
    count_at,
    json_object,
    number_at,
    objects_at,
    one_line,
    text_at,
    tool_line,
)


def lines_of(*pieces: bytes) -> list[str]:
    found: list[str] = []
    lines = Lines(found.append)
    for piece in pieces:
        lines.feed(piece)
    lines.end()
    return found


def test_lines_come_whole_however_they_are_cut() -> None:
    assert lines_of(b"one\ntw", b"o\r\n", b"\nthree") == ["one", "two", "", "three"]


def test_a_character_that_is_cut_in_two_stays_whole() -> None:
    assert lines_of("é".encode()[:1], "é\n".encode()[1:]) == ["é"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert lines_of(b"\xff\xfe\n") == ["\ufffd\ufffd"]


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_read() -> None:
    assert lines_of(b"x" * LONGEST_LINE, b"xx", b"x\nnext\n") == ["next"]


@pytest.mark.parametrize("text", ["", "[1]", "1", "{", '{"a"', "nonsense", "{'a': 1}", '"text"'])
def test_only_an_object_is_an_event(text: str) -> None:
    assert json_object(text) is None


DATA = {"a": {"b": [{"c": "text"}, 7]}, "n": 3, "flag": True, "big": 10**400, "nan": math.nan, "minus": -5}


def test_members_are_found_by_their_path() -> None:
    assert text_at(DATA, "a", "b", 0, "c") == "text"
    assert at(DATA, "a", "b", 5) is None
    assert at(DATA, "a", "b", "c") is None
    assert text_at(DATA, "n") == ""
    assert objects_at(DATA, "a", "b") == [{"c": "text"}]
    assert objects_at(DATA, "n") == []


@pytest.mark.parametrize(("name", "number"), [("n", 3), ("flag", None), ("big", None), ("nan", None), ("none", None)])
def test_only_a_finite_number_is_one(name: str, number: float | None) -> None:
    assert number_at(DATA, name) == number


def test_a_count_is_never_negative() -> None:
    assert (count_at(DATA, "minus"), count_at(DATA, "n"), count_at(DATA, "none")) == (0, 3, 0)


def test_a_progress_line_cannot_change_a_terminal() -> None:
    assert one_line("\x1b[2J\x1b]0;title\x07red\x1b[31m\u202ednuor\r\nnext") == "]0;title red dnuor next"


def test_a_progress_line_is_short() -> None:
    assert len(one_line("word " * 1000)) <= SHOWN
    assert one_line("word " * 1000).endswith("…")


def test_half_a_character_pair_is_replaced() -> None:
    assert one_line("a\ud800b") == "a?b"


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("Write", {"content": "x", "file_path": "src/a.py"}, "Write src/a.py"),
        ("shell", {"command": ["bash", "-lc", "ls"]}, "shell bash -lc ls"),
        ("Task", {"command": "", "description": "look around"}, "Task look around"),
        ("think", {"thought": "hm"}, "think"),
        ("think", None, "think"),
    ],
)
def test_a_call_of_a_tool_is_described_by_its_main_argument(name: str, arguments: object, line: str) -> None:
    assert tool_line(name, arguments) == line
