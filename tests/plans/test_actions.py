"""Fill an action's input into the arguments of its plan, and refuse an input that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from farro.documents import Document
from farro.errors import BadDocument
from farro.plans import actions

PLAN = {
    "plan_id": "resize",
    "steps": [
        {
            "step_number": 1,
            "tool": "unix",
            "command": "convert",
            "args": ["{{input.path}}", "{{ input.size.w }}x{{input.size.h}}"],
        }
    ],
}


def args(plan: dict[str, Any]) -> list[str]:
    told: list[str] = plan["steps"][0]["args"]
    return told


def test_an_input_stands_in_the_arguments() -> None:
    filled = actions.filled(PLAN, {"path": "a b.png", "size": {"w": 3, "h": 4.5}})
    assert args(filled) == ["a b.png", "3x4.5"]
    assert args(PLAN)[0] == "{{input.path}}"  # the plan itself stays


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (1, "1"),
        (True, "true"),
        ([1, "é"], '[1,"é"]'),
        ({"a": 1}, '{"a":1}'),
        ("{{input.b}}", "{{input.b}}"),
        ("", ""),
    ],
)
def test_a_value_is_its_text_and_never_filled_in_again(value: Any, text: str) -> None:
    plan = {"steps": [{"step_number": 1, "command": "echo", "args": ["{{input.a}}"]}]}
    assert args(actions.filled(plan, {"a": value, "b": "no"})) == [text]


def test_an_input_that_is_no_object_is_meant_as_a_whole() -> None:
    plan = {"steps": [{"step_number": 1, "command": "echo", "args": ["<{{input}}>", "{{input.1}}"]}]}
    assert args(actions.filled(plan, ["a", "b"])) == ['<["a","b"]>', "b"]


def test_a_missing_input_value_is_named_with_its_place() -> None:
    found = actions.problems(
        PLAN, ({"path": "a", "size": {"w": 1, "h": 2}}, {"path": None, "size": {"w": 1}}), "resize"
    )
    assert [(problem.path, problem.message) for problem in found] == [
        ("inputs[1]", "has no path, which steps[0].args[0] of plan resize wants"),
        ("inputs[1]", "has no size.h, which steps[0].args[1] of plan resize wants"),
    ]
    assert actions.fields(PLAN) == ["path", "size.w", "size.h"]


def test_a_placeholder_outside_of_arguments_is_a_mistake() -> None:
    plan = {"steps": [{"step_number": 1, "command": "{{input.program}}", "env": {"A": "{{input.a}}"}}]}
    found = actions.problems(plan, ({"program": "x", "a": "y"},), "p")
    assert [problem.path for problem in found] == ["steps[0].command", "steps[0].env.A"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"inputs": [{}]}, "plan_id: is required"),
        ({"plan_id": "p", "inputs": []}, "inputs: must have at least 1"),
        ({"plan_id": "p", "inputs": [{}] * 101}, "inputs: may have at most 100"),
        ({"plan_id": "p", "inputs": [{}], "input": 1}, "input: is not a known field"),
        ({"plan_id": "../p", "inputs": [{}]}, "plan_id: "),
        ([], "must be an object"),
    ],
)
def test_an_invalid_action_says_why(data: Any, told: str) -> None:
    with pytest.raises(BadDocument, match="x: ") as caught:
        actions.load(Document(data, "x"))
    assert told in str(caught.value)
