"""Readers understand what the real programs wrote: recorded by tests/real_agents/record.py.

FARRO_WRITE_REPORTS=1 writes reports.json of each program anew. Read the difference: it is what a run means to farro.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import Any

import pytest

from agents.programs.transcripts import FOLDER, Transcript, described, transcripts

ALL = transcripts()

# The trouble of each scenario, whatever the program; None: it answers.
KINDS: dict[str, str | None] = {
    "edit": None,
    "several-turns": None,
    "denied": None,
    "prose": None,
    "resumed": None,
    "read-only": None,
    "usage-limit": "limited",
    "usage-limit-later": "limited",
    "usage-limit-login": "limited",
    "rate-limit": "limited",
    "no-credit": "refused",
    "bad-key": "refused",
    "server-error": "overloaded",
    "overloaded": "overloaded",
    "cut": "cut",
    "ends-early": "cut",
    "half-edit": "cut",
    "empty": "failed",
}
# What a program says does not tell the real trouble. The gateway knows it.
UNKNOWING: dict[tuple[str, str], str] = {
    ("goose", "no-credit"): "limited",
    ("goose", "ends-early"): "failed",
}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Return the reports as they are written down, by program and scenario."""
    if os.environ.get("FARRO_WRITE_REPORTS"):
        made: dict[str, dict[str, Any]] = defaultdict(dict)
        for transcript in ALL:
            made[transcript.program][transcript.scenario] = described(*transcript.read())
        for program, found in made.items():
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / program / "reports.json").write_text(text)
    return {path.parent.name: json.loads(path.read_text()) for path in FOLDER.glob("*/reports.json")}


@pytest.mark.parametrize("transcript", ALL, ids=str)
def test_a_recorded_run_is_read_as_written_down(transcript: Transcript, reports: dict[str, dict[str, Any]]) -> None:
    assert described(*transcript.read()) == reports[transcript.program][transcript.scenario]


@pytest.mark.parametrize("transcript", ALL, ids=str)
def test_a_run_is_read_alike_in_any_pieces(transcript: Transcript) -> None:
    assert described(*transcript.read(piece=97)) == described(*transcript.read())


@pytest.mark.parametrize("transcript", ALL, ids=str)
def test_each_trouble_has_its_kind_whatever_the_exit_code(transcript: Transcript) -> None:
    report, _ = transcript.read()
    expected = UNKNOWING.get((transcript.program, transcript.scenario), KINDS[transcript.scenario])
    assert (report.trouble and report.trouble.kind) == expected, report
