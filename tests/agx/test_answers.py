"""Every answer of a model is checked before it is shown as steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agx.conftest import step
from farro.agx.propose import PlanAnswer, read_answer

GOOD = {"steps": [step(1, "sort", "names.txt")]}


def said(data: Any, **how: Any) -> PlanAnswer:
    return read_answer(data if isinstance(data, str) else json.dumps(data), after=0, **how)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        f"Here is your plan:\n\n```json\n{json.dumps(GOOD, indent=2)}\n```\nEnjoy!",
        f"```\n{json.dumps(GOOD)}\n```",
        f"Sure. {json.dumps(GOOD)} That is all.",
        f"\n\n  {json.dumps(GOOD)}  \n",
    ],
)
def test_answer_is_found_inside_surrounding_text(text: str) -> None:
    assert said(text).steps == tuple(GOOD["steps"])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "no JSON object"),
        ("I would rather not.", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ("{" * 50_000, "answer"),
        ('{"steps": ' + "[" * 5_000, "answer"),
        ('{"a":' * 2_000 + "1" + "}" * 2_000, "answer"),
        ({"steps": []}, "at least one step"),
        ({"steps": "sort"}, "at least one step"),
        ({"steps": ["sort"]}, "must be an object"),
        ({"steps": [step(2, "sort")]}, "must be 1"),
        ({"steps": [step(1, "a"), step(1, "b")]}, "must be 2"),
        ({"steps": [step(1, "a", shell=True)]}, "not a field of a step"),
        ({"steps": [step(1, "a")], "role": "Manager"}, "not a field of the answer"),
        ({"steps": [step(1, "a")], "metadata": {"after": ["x"]}}, "not a field of the answer"),
        ({"steps": [step(n + 1, "a") for n in range(101)]}, "at most 100"),
        ({"steps": [step(1, "echo", "\x1b[2J")]}, "x1b"),
        ({"steps": [step(1, "echo", "a\u202eb")]}, "u202e"),
        ({"steps": [step(1, "echo", "a\u200bb")]}, "u200b"),
        ({"steps": [step(1, "echo", env={"A\r": "b"})]}, "\\r"),
        ('{"steps": [], "steps": []}', "answer"),
        ('{"steps": NaN}', "answer"),
    ],
)
def test_answer_without_a_list_of_steps_is_refused_with_the_reason(data: Any, why: str) -> None:
    refused = said(data)
    assert refused.problems
    assert not refused.steps
    assert why in " ".join(refused.problems)


def test_an_answer_of_ten_megabytes_is_not_read() -> None:
    (why,) = said("x" * 10_000_000).problems
    assert "10000000 characters" in why


def test_newlines_and_tabs_in_arguments_are_fine() -> None:
    assert said({"steps": [step(1, "printf", "a\tb\n")]}).steps


def test_model_may_decline() -> None:
    assert said({"cannot": "there is no\nprinter \x1b here"}).cannot == "there is no printer \x1b here"
    assert len(said({"cannot": "x" * 9_000}).cannot or "") == 500


def test_review_approves_or_returns_steps() -> None:
    assert said({"ok": True}, review=True).ok is True
    corrected = said({"ok": False, "problems": ["wrong file"], **GOOD}, review=True)
    assert corrected.ok is False
    assert corrected.objections == ("wrong file",)
    assert corrected.steps == tuple(GOOD["steps"])
    assert said({"ok": "maybe"}, review=True).problems
    assert said({"ok": False, "problems": ["wrong"]}, review=True).problems
    assert said({"ok": False, "problems": [7, None], **GOOD}, review=True).objections == ()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda kids: st.lists(kids) | st.dictionaries(st.text(), kids),
    )
)
def test_any_json_yields_steps_or_a_refusal(data: Any) -> None:
    for answer in (data, {"steps": data}, {"steps": [data]}, {"ok": False, "problems": data, "steps": data}):
        for review in (False, True):
            found = said(answer, review=review)
            assert found.problems or found.steps or found.ok or found.cannot is not None


@given(st.text())
def test_any_text_yields_steps_or_a_refusal(text: str) -> None:
    found = said(text)
    assert found.problems or found.steps or found.cannot is not None
