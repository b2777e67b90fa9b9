"""A worker posts no larger result than agq accepts, however much its steps printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farro.agq.client import result_document
from farro.agq.memo_jobs import RESULT_BYTES
from farro.jobs.outcomes import Report, Succeeded


def said(text: str, steps: int) -> dict[str, Any]:
    told = [
        {"step_number": number, "stdout": text, "stderr": text, "exit_code": 0, "success": True}
        for number in range(1, steps + 1)
    ]
    return {"step_results": told}


@pytest.mark.parametrize("char", ["x", "\0", "\\", "\N{GRINNING FACE}"])
def test_output_of_many_steps_is_cut_to_the_limit_of_agq(char: str) -> None:
    """A tar on stdout is mostly NUL bytes, each six characters in JSON; such a result was once refused for ever."""
    outcome = Succeeded(report=Report(result=said(char * (256 << 10), 20), markdown=""))
    text = result_document("a", "p", "/nowhere", outcome, inline_bytes=256 << 10)
    assert len(text) <= RESULT_BYTES
    assert len(json.loads(text)["step_results"]) == 20
    assert json.loads(text)["step_results"][0]["stdout"].startswith(char * 1000)
