"""Readers raise nothing, whatever a program writes: a next version, an agent, or half a line."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.programs.transcripts import RUN, Transcript, reader_at, transcripts
from farro.agents.programs.output import LONGEST_LINE
from farro.agents.programs.registry import BUILT_IN, find_program
from farro.lazy_dataclass import replace

ALL = transcripts()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
LONG = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


def read(program: str, data: bytes, code: int = 0, stderr: str = "") -> None:
    for resume in (False, True):
        run = replace(RUN, resume=resume, session_id="a-session" if resume else None)
        progress: list[str] = []
        reader = reader_at(find_program(program), run, progress, ALL[0].at)
        reader.feed(data)
        report = reader.end(code, stderr)
        assert report.trouble is not None or report.text
        assert not any("\n" in line or "\x1b" in line for line in progress)


def changed(data: Any, change: random.Random, values: list[Any]) -> Any:
    """Return the data with some members replaced by anything."""
    if change.random() < 0.03:
        return change.choice(values)
    if isinstance(data, dict):
        return {name: changed(value, change, values) for name, value in data.items() if change.random() > 0.02}
    if isinstance(data, list):
        return [changed(value, change, values) for value in data]
    return data


@pytest.mark.parametrize("program", BUILT_IN)
@LONG
@given(data=st.binary(max_size=400), code=st.integers(-70, 300), stderr=st.text(max_size=200))
def test_any_bytes_are_read(program: str, data: bytes, code: int, stderr: str) -> None:
    read(program, data, code, stderr)


@pytest.mark.parametrize("transcript", ALL, ids=str)
@settings(LONG, max_examples=8)
@given(seed=st.integers(0, 2**32), values=st.lists(JSON, min_size=1, max_size=5))
def test_events_with_other_members_are_read(transcript: Transcript, seed: int, values: list[Any]) -> None:
    change, lines = random.Random(seed), []
    for line in transcript.stdout.decode().splitlines():
        event = json.loads(line) if line.startswith("{") else line
        lines.append(json.dumps(changed(event, change, values)))
    read(transcript.program, "\n".join(lines).encode("utf-8", "replace"), transcript.code, transcript.stderr)


@pytest.mark.parametrize("transcript", ALL, ids=str)
@settings(LONG, max_examples=8)
@given(share=st.floats(0, 1))
def test_output_that_breaks_off_anywhere_is_read(transcript: Transcript, share: float) -> None:
    read(transcript.program, transcript.stdout[: int(share * len(transcript.stdout))], 137)


@pytest.mark.parametrize("program", BUILT_IN)
def test_deep_and_endless_lines_are_dropped(program: str) -> None:
    read(program, b'{"a":' * 100_000 + b"\n")
    read(program, b"x" * (LONGEST_LINE + 10) + b"\n")
    read(program, b'{"type": "result", "n": ' + b"9" * 10_000 + b"}\n", 1)
