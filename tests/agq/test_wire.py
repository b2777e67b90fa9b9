"""Bytes → commands and values → bytes: any input, cut anywhere, within bounds."""

from __future__ import annotations

import itertools
import time
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agq.stage import command
from farro.agq import resp
from farro.agq.keys import GlobPattern
from farro.agq.resp import (
    AUTHENTICATED,
    NO_ARRAY,
    UNAUTHENTICATED,
    CommandError,
    Malformed,
    Parser,
    PushMessage,
    SimpleString,
    encode,
)
from support import torture

SMALL = resp.CommandLimits(args=8, bulk=64, command=128, inline=32)
FUZZ_S = 20.0 if torture() else 3.0


def parsed(pieces: list[bytes], limits: resp.CommandLimits = AUTHENTICATED) -> list[list[bytes]]:
    parser = Parser(limits)
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (args := parser.next()) is not None:
            found.append(args)
    return found


WORDS = st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=6), max_size=5)


@given(commands=WORDS, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_commands_are_the_same_however_their_bytes_are_cut(commands: list[list[bytes]], cuts: list[int]) -> None:
    whole = b"".join(command(*words) for words in commands)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(places)]
    assert parsed(pieces) == commands


def test_any_input_is_parsed_or_malformed_within_bounds() -> None:
    """Runs as many examples as fit into some seconds."""
    until = time.monotonic() + FUZZ_S
    grain = st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"*", b"$", b"\r\n", b"\n", b"-1", b"*1\r\n", b"$4\r\nPING\r\n", b"99999999999", b"+OK\r\n", b"%1\r\n"]
        ),
        st.integers(-5, 200).map(lambda number: b"*%d\r\n" % number),
        st.integers(-5, 200).map(lambda number: b"$%d\r\n" % number),
    )

    @settings(max_examples=100_000 if torture() else 800)
    @given(st.lists(grain, max_size=30))
    def play(pieces: list[bytes]) -> None:
        if time.monotonic() > until:
            return
        parser = Parser(SMALL)
        for piece in pieces:
            parser.feed(piece)
            try:
                while (args := parser.next()) is not None:
                    assert len(args) <= SMALL.args or args == []
                    assert sum(map(len, args)) <= max(SMALL.command, SMALL.inline)
            except Malformed:
                return
            assert parser.waiting <= SMALL.bulk + 2 + 40 + 32

    play()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"*99999999\r\n", "invalid multibulk length"),
        (b"*-2\r\n", "invalid multibulk length"),
        (b"*1\r\n$99999999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$65\r\n", "invalid bulk length: at most 64 bytes"),
        (b"*3\r\n$60\r\n" + b"x" * 60 + b"\r\n$60\r\n" + b"x" * 60 + b"\r\n$60\r\n", "too big a command"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n\x00", "expected '$', got byte 0x00"),
        (b"*1\r\n$4\r\nPINGXX", "does not end where its length says"),
        (b"*1x\r\n", "is not a number"),
        (b"*+1\r\n", "is not a number"),
        (b"*" + b"1" * 40, "is not terminated"),
        (b"*1\r\n$" + b"1" * 40, "is not terminated"),
        (b"x" * 33, "too big inline request"),
        (b"a b c d e f g h i j\n", "too many words"),
        (b"POST / HTTP/1.1\r\n", "this is no HTTP server"),
        (b"GET /queue HTTP/1.1\r\n", "this is no HTTP server"),
        (b"Host: localhost\r\n", "this is no HTTP server"),
        (b"+OK\r\n", "not a RESP command"),
        (b"%1\r\n", "not a RESP command"),
        (b"\x16\x03\x01\x02\n", "not a RESP command"),
    ],
)
def test_invalid_commands_are_malformed(data: bytes, why: str) -> None:
    with pytest.raises(Malformed) as caught:
        parsed([data], SMALL)
    assert why in str(caught.value)


def test_a_length_is_refused_before_its_data_is_kept() -> None:
    parser = Parser(UNAUTHENTICATED)
    parser.feed(b"*2\r\n$4\r\nAUTH\r\n$4097\r\n")
    with pytest.raises(Malformed):
        parser.next()
    asked: list[int] = []
    parser = Parser(AUTHENTICATED, lambda size: asked.append(size) is None and len(asked) < 2)
    parser.feed(b"*3\r\n$1\r\nx\r\n$100000\r\n" + b"y" * 100000 + b"\r\n$100001\r\n")
    with pytest.raises(Malformed, match="too much input"):
        parser.next()
    assert asked == [100001, 100001]
    assert parser.reserved == 100001


def test_inline_commands_and_empty_lines() -> None:
    assert parsed([b"PING\r\n", b"\r\n", b"*0\r\n", b"get  job:a:status\n"]) == [
        [b"PING"],
        [],
        [],
        [b"get", b"job:a:status"],
    ]


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-(2**62), 2**62), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([2, 3]))
def test_hiredis_understands_the_replies(value: Any, proto: int) -> None:
    reader = hiredis.Reader()
    reader.feed(encode(value, proto))
    assert reader.gets() == value


def test_replies_of_both_protocols() -> None:
    assert encode({"a": True}, 2) == b"*2\r\n$1\r\na\r\n:1\r\n"
    assert encode({"a": True}, 3) == b"%1\r\n$1\r\na\r\n#t\r\n"
    assert encode(PushMessage((b"message", b"x")), 2)[:1] == b"*"
    assert encode(PushMessage((b"message", b"x")), 3)[:1] == b">"
    assert encode(NO_ARRAY, 2) == b"*-1\r\n"
    assert encode(NO_ARRAY, 3) == encode(None, 3) == b"_\r\n"
    assert encode(SimpleString("OK"), 2) == b"+OK\r\n"
    assert encode(CommandError("two\r\nlines"), 2) == b"-ERR two lines\r\n"
    with pytest.raises(TypeError):
        encode(object(), 2)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("job:*:result", "job:a:result", True),
        ("job:*:result", "job:a:status", False),
        ("a?c", "abc", True),
        ("a[a-c]c", "abc", True),
        ("a[^a-c]c", "abc", False),
        ("a[b", "ab", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a[b-]", "a-", True),
        ("abc", "ab", False),
        ("*" * 500 + "z", "a" * 1000, False),
        ("*a" * 300 + "z", "a" * 1000, False),
    ],
)
def test_patterns_match_like_redis(pattern: str, name: str, fits: bool) -> None:
    assert GlobPattern(pattern.encode()).fits(name.encode()) is fits
