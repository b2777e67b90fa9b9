"""A plan that grows while it runs: tasks become steps under the same rules."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from farro.execution.task_file import is_id
from farro.plans.loading import MAX_STEPS_GROWN, grown, load_data
from farro.plans.model import ID_PATTERN

PLAN = load_data([{"id": "a", "command": "x"}, {"id": "b", "command": "x", "needs": ["a"]}], "test")


@given(st.text(alphabet=st.sampled_from("aZ09_-. /é\n"), max_size=70))
def test_ids_of_tasks_are_ids_of_steps(text: str) -> None:
    assert is_id(text) == (re.fullmatch(ID_PATTERN, text) is not None)


def test_tasks_become_steps_and_are_numbered_on() -> None:
    steps, problems = grown(PLAN.steps, [{"id": "c", "command": "x", "needs": ["d", "a"]}, {"id": "d", "command": "x"}])
    assert problems == []
    assert [(step.id, step.step_number, step.depends_on) for step in steps] == [("c", 3, ("d", "a")), ("d", 4, ())]


def test_all_faults_of_added_tasks_are_reported_together() -> None:
    _, problems = grown(
        PLAN.steps,
        [
            {"id": "c", "comand": "x", "needs": ["e"]},
            {"id": "a", "command": "x"},
            {"id": "c", "command": "x", "timeout": -1},
            7,
        ],
    )
    assert len(problems) >= 6
    told = "\n".join(problems)
    for part in ("task c: comand", "task c: needs[0]", "task a: id", "task c: timeout", "task 7"):
        assert part in told


def test_a_plan_does_not_grow_without_end() -> None:
    room = MAX_STEPS_GROWN - len(PLAN.steps)
    tasks = [{"id": f"t{number}", "command": "x"} for number in range(room + 1)]
    steps, problems = grown(PLAN.steps, tasks[:-1])
    assert len(steps) == room
    assert problems == []
    assert grown(PLAN.steps, tasks)[1] == [
        f"task t{room}: a plan may grow to 1000 steps; with these it would have 1001"
    ]
