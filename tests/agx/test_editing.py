"""Steps of a draft: added, removed and renumbered, with correct references to each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.agx import command_text, drafting
from farro.documents import Document
from farro.errors import InputError
from farro.plans.loading import load


def added(steps: list[dict[str, Any]], text: str, **how: Any) -> list[dict[str, Any]]:
    return drafting.appended(steps, command_text.line(text), **how)


def shown(steps: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(step["step_number"], step["command"], step.get("input_from_step")) for step in steps]


def test_commands_of_a_pipe_read_each_other() -> None:
    assert shown(added([], "a | b | c")) == [(1, "a", None), (2, "b", 1), (3, "c", 2)]


def test_command_without_a_pipe_reads_no_input() -> None:
    assert shown(added(added([], "a"), "b")) == [(1, "a", None), (2, "b", None)]


def test_input_may_come_from_any_step() -> None:
    steps = added(added(added([], "a"), "b"), "c | d", input_from="1")
    assert shown(steps)[2:] == [(3, "c", 1), (4, "d", 3)]
    assert shown(added(steps, "e", input_from="last"))[-1] == (5, "e", 4)
    with pytest.raises(InputError, match="no step '9'; known: 1, 2, 3, 4"):
        added(steps, "e", input_from="9")


def test_a_leading_pipe_needs_a_step_before_it() -> None:
    with pytest.raises(InputError, match="no step before it"):
        added([], "| sort")


def test_removing_the_middle_of_a_pipe_joins_its_ends() -> None:
    assert shown(drafting.without(added([], "a | b | c"), "2")) == [(1, "a", None), (2, "c", 1)]
    assert shown(drafting.without(added([], "a | b"), "1")) == [(1, "b", None)]


def test_removing_a_step_updates_needs() -> None:
    steps = [
        *added([], "a"),
        {"step_number": 2, "command": "b", "needs": [1]},
        {"step_number": 3, "command": "c", "needs": [2]},
    ]
    assert [step.get("needs") for step in drafting.without(steps, "2")] == [None, [1]]


def test_named_steps_keep_their_names() -> None:
    steps = [{"id": "fetch", "command": "a"}, {"id": "build", "command": "b", "input_from_step": "fetch"}]
    longer = added(steps, "| c")
    assert longer[-1]["id"] == "step-3"
    assert longer[-1]["input_from_step"] == "build"
    assert drafting.without(longer, "build")[-1]["input_from_step"] == "fetch"


def test_steps_from_a_model_follow_the_naming_of_the_draft() -> None:
    steps = [{"id": "fetch", "command": "a"}]
    more = [{"step_number": 2, "command": "b", "input_from_step": 1}, {"step_number": 3, "command": "c", "needs": [2]}]
    joined = drafting.joined(steps, more)
    assert [step["id"] for step in joined] == ["fetch", "step-2", "step-3"]
    assert joined[1]["input_from_step"] == "fetch"
    assert joined[2]["needs"] == ["step-2"]
    assert drafting.as_numbered(joined)[2] == {"step_number": 3, "command": "c", "needs": [2]}


@given(st.lists(st.sampled_from(["a", "a | b", "| c", "a | b | c"]), min_size=1, max_size=8), st.data())
def test_any_additions_and_removals_leave_a_valid_plan(lines: list[str], data: st.DataObject) -> None:
    steps: list[dict[str, Any]] = []
    for line in lines:
        steps = added(steps, line.removeprefix("| ") if not steps else line)
    while len(steps) > 1:
        load(Document({"steps": steps}, "draft"))
        assert [step["step_number"] for step in steps] == list(range(1, len(steps) + 1))
        steps = drafting.without(steps, str(data.draw(st.integers(1, len(steps)))))
    load(Document({"steps": steps}, "draft"))


def test_agent_prompt_is_refused_as_a_draft() -> None:
    with pytest.raises(InputError, match="agent prompt"):
        drafting.steps_of({"role": "Architect", "rubric": "think", "success": "s", "routing": {}})
