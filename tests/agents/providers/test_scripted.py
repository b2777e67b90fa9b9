"""Check answers from a file: which request gets which answer, and what is reported about a wrong file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from farro.agents.providers.port import ChatMessage, Provider, ProviderTrouble, Request
from farro.agents.providers.registry import make_provider
from farro.agents.providers.scripted import ScriptedProvider
from farro.config.settings import ProviderSettings
from farro.testing.provider import request

Script = Callable[..., Provider]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def made(*entries: dict[str, Any]) -> Provider:
        (tmp_path / "answers.json").write_text(json.dumps({"answers": entries}))
        settings = ProviderSettings(kind="scripted", file="answers.json", model="m")
        return make_provider("play", settings, root=str(tmp_path), environ={})

    return made


def asked(text: str = "hello", *, call: int = 1, attempt: int = 1, role: str = "") -> Request:
    made = request(call, role=role)
    return replace(made, key=f"job/{attempt}/step/{call}", messages=(ChatMessage(author="user", text=text),))


def trouble_of(provider: Provider, request: Request) -> ProviderTrouble:
    with pytest.raises(ProviderTrouble) as raised:
        provider.answer(request)
    return raised.value


def test_the_first_matching_entry_is_the_answer(script: Script) -> None:
    provider = script(
        {"role": "Architect", "answer": "a plan"},
        {"match": "review", "answer": "looks good"},
        {"pattern": r"\bfix\w* the \w+", "answer": "fixed"},
        {"answer": "whatever"},
    )
    assert provider.answer(asked("draw", role="Architect")).text == "a plan"
    assert provider.answer(asked("please review this")).text == "looks good"
    assert provider.answer(asked("now fixing the bug")).text == "fixed"
    assert provider.answer(asked("else")).text == "whatever"


def test_times_counts_the_calls_of_an_attempt(script: Script) -> None:
    provider = script(
        {"error": {"kind": "limited", "retry_after_s": 2}, "times": 2},
        {"answer": "not JSON", "times": 1},
        {"answer": {"ok": True}},
    )
    assert [trouble_of(provider, asked(call=call)).kind for call in (1, 2)] == ["limited"] * 2
    assert provider.answer(asked(call=3)).text == "not JSON"
    assert json.loads(provider.answer(asked(call=4)).text) == {"ok": True}
    assert json.loads(provider.answer(asked(call=9)).text) == {"ok": True}


def test_the_answer_depends_on_the_request_alone(script: Script) -> None:
    entries = ({"answer": "one", "times": 1}, {"answer": "two", "times": 1}, {"answer": "three"})
    first = [script(*entries).answer(asked(call=call)).text for call in (3, 1, 2, 1)]
    provider = script(*entries)
    assert [provider.answer(asked(call=call)).text for call in (3, 1, 2, 1)] == first == ["three", "one", "two", "one"]


def test_an_attempt_can_have_answers_of_its_own(script: Script) -> None:
    provider = script({"attempt": 1, "error": {"kind": "overloaded"}}, {"answer": "at last"})
    assert trouble_of(provider, asked(attempt=1)).retryable
    assert provider.answer(asked(attempt=2)).text == "at last"


def test_every_field_of_an_entry_is_in_the_answer(script: Script) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "cache_read_tokens": 1, "cache_write_tokens": 2}
    answer = script({"answer": "x", "usage": usage, "model": "m2", "cost_usd": 0.25, "whole": False}).answer(asked())
    assert answer.usage is not None
    assert answer.usage.to_json() == usage
    assert (answer.model, answer.cost_usd, answer.whole) == ("m2", Decimal("0.25"), False)


def test_an_answer_costs_nothing_unless_it_says_so(script: Script) -> None:
    assert script({"answer": "x"}).answer(asked()).cost_usd == 0


def test_a_delay_is_waited_for_in_slices_and_ends_with_the_calls_timeout(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"answers": [{"match": "slow", "delay_s": 9, "answer": ""}, {"answer": "x"}]}')
    waits: list[float] = []
    provider = ScriptedProvider("play", ProviderSettings(file="a.json"), str(tmp_path), wait=waits.append)
    trouble = trouble_of(provider, replace(asked("slow"), timeout_s=1.0))
    assert (trouble.kind, trouble.retryable) == ("timed_out", True)
    assert max(waits) <= 0.05
    assert sum(waits) == pytest.approx(1.0)


def test_a_request_without_a_matching_entry_is_reported(script: Script) -> None:
    trouble = trouble_of(script({"answer": "x", "times": 1}), asked(call=2, role="DocWriter"))
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("failed", False, False)
    assert "no answer for call 2 of attempt 1 of role DocWriter" in str(trouble)


def test_every_problem_of_a_file_is_reported_with_its_position(tmp_path: Path) -> None:
    (tmp_path / "answers.yaml").write_text(
        "answers:\n"
        "  - match: [no]\n"
        "    answer: x\n"
        "  - pattern: '('\n"
        "    answer: x\n"
        "  - tmies: 3\n"
        "    answer: x\n"
        "  - error: {kind: bored}\n"
    )
    provider = make_provider(
        "play", ProviderSettings(kind="scripted", file="answers.yaml"), root=str(tmp_path), environ={}
    )
    message = str(trouble_of(provider, asked()))
    path = f"{tmp_path}/answers.yaml"
    assert f"{path}:2:12: answers[0].match: must be text, not a list" in message
    assert f"{path}:4:14: answers[1].pattern: is not a regular expression" in message
    assert f"{path}:6:5: answers[2].tmies: is not a known field; did you mean times?" in message
    assert "answers[3].error.kind: must be 'limited'" in message


@pytest.mark.parametrize("entry", [{}, {"answer": "x", "error": {"kind": "overloaded"}}, {"times": 2}])
def test_an_entry_has_either_an_answer_or_an_error(script: Script, entry: dict[str, Any]) -> None:
    assert "answers[0]: must have either an answer or an error" in str(trouble_of(script(entry), asked()))


def test_null_is_an_answer(script: Script) -> None:
    assert script({"answer": None}).answer(asked()).text == "null"


@pytest.mark.parametrize("file", [None, "gone.json", "."])
def test_a_missing_file_is_a_trouble_of_kind_missing(tmp_path: Path, file: str | None) -> None:
    provider = make_provider("play", ProviderSettings(kind="scripted", file=file), root=str(tmp_path), environ={})
    trouble = trouble_of(provider, asked())
    assert (trouble.kind, trouble.retryable) == ("failed", False)


def test_a_changed_file_is_read_again(script: Script, tmp_path: Path) -> None:
    provider = script({"answer": "old"})
    assert provider.answer(asked()).text == "old"
    script({"answer": "new, and longer"})
    os.utime(tmp_path / "answers.json")
    assert provider.answer(asked()).text == "new, and longer"
