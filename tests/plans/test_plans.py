"""Plans: the three forms, every refusal with its place, and the order of a run. `test_documents` covers parsing."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.documents import Document, parse_json, parse_yaml
from farro.errors import BadDocument
from farro.plans.graph import order
from farro.plans.loading import load, load_data
from farro.plans.metadata import required_tags
from farro.plans.model import Plan

MEMO = {
    "id": "job-123",
    "plan_id": "plan-456",
    "steps": [
        {"step_number": 1, "tool": "unix", "command": "ls", "args": ["-la", "/tmp"], "timeout": 30},
        {"step_number": 2, "tool": "unix", "command": "grep", "args": ["pattern"], "input_from_step": 1, "timeout": 30},
        {"step_number": 3, "tool": "agx-ocr", "command": "process-image", "input_from_step": 2, "timeout": 120},
    ],
}
TASKS = [
    {
        "id": "task-001",
        "job_name": "job-name",
        "command": "air-executor",
        "args": ["run-task"],
        "dependencies": ["task-002"],
        "status": "pending",
        "created_at": "2025-10-02T10:00:00Z",
        "started_at": None,
        "completed_at": None,
        "error": None,
    },
    {"id": "task-002", "job_name": "job-name", "command": "true", "dependencies": [], "status": "failed"},
]


def refused(data: Any) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        load_data(data, "p")
    return str(caught.value).split("\n")


def steps(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"id": f"s{index}", "command": "true", **change} for index, change in enumerate(changes)]}


def numbered(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"step_number": index, "command": "true", **c} for index, c in enumerate(changes, start=1)]}


def ids(plan: Plan) -> list[str]:
    return [step.id for step in order(plan)]


# --- the three forms


def test_the_memo_form_loads() -> None:
    plan = load_data(MEMO, "p")
    assert (plan.id, plan.plan_id, plan.timeout_s(), plan.parallel) == ("job-123", "plan-456", 180, 1)
    assert [(step.id, step.step_number, step.depends_on) for step in plan.steps] == [
        ("1", 1, ()),
        ("2", 2, ("1",)),
        ("3", 3, ("2",)),
    ]
    assert plan.steps[0].args == ("-la", "/tmp")
    assert ids(plan) == ["1", "2", "3"]


@pytest.mark.parametrize("data", [TASKS, {"tasks": TASKS}])
def test_a_task_list_loads_without_the_state_of_its_last_run(data: Any) -> None:
    plan = load_data(data, "p")
    assert plan.name == "job-name"
    assert [(step.id, step.step_number, step.needs) for step in plan.steps] == [
        ("task-001", 1, ("task-002",)),
        ("task-002", 2, ()),
    ]
    assert ids(plan) == ["task-002", "task-001"]


def test_farros_own_form_loads_from_yaml_with_its_defaults() -> None:
    text = b"steps:\n  - {id: build, command: make, needs: [fetch]}\n  - {id: fetch, command: git, dependencies: []}\n"
    plan = load(parse_yaml(text, source="p.yaml"))
    build = plan.steps[0]
    assert (build.tool, build.timeout_s(), build.ok_exit_codes, build.retries) == ("unix", 1800, (0,), 0)
    assert (build.cwd, build.env, build.input_from_step) == (None, {}, None)
    assert plan.timeout_s() == 3600
    assert plan.timeout_s(60) == 120
    assert ids(plan) == ["fetch", "build"]


def test_a_step_may_be_called_invalid() -> None:
    assert ids(load_data(steps({"id": "a", "needs": ["invalid"]}, {"id": "invalid"}), "p")) == ["invalid", "a"]


def test_numbered_steps_run_in_the_order_of_the_list() -> None:
    assert ids(load_data(numbered({"step_number": 5}, {"step_number": 2, "needs": [5]}), "p")) == ["5", "2"]


def test_the_plans_own_timeout_holds_over_the_sum() -> None:
    assert load_data({**steps({}), "timeout": 5}, "p").timeout_s() == 5


def test_loading_leaves_the_given_data_as_it_was() -> None:
    before = json.dumps([MEMO, TASKS])
    load_data(MEMO, "p")
    load_data(TASKS, "p")
    assert json.dumps([MEMO, TASKS]) == before


def test_a_plan_cannot_be_changed() -> None:
    plan = load_data(MEMO, "p")
    with pytest.raises(FrozenInstanceError):
        plan.steps[0].command = "rm"  # type: ignore[misc]


# --- what is refused, and where


def test_the_old_single_step_job_is_refused_with_the_new_form() -> None:
    old = {"id": "job-123", "plan_id": "plan-456", "step_number": 1, "tool": "unix", "command": "ls", "timeout": 30}
    assert refused(old) == [
        "p: this is the old single-step job; a job holds its whole plan: "
        '{"id": …, "plan_id": …, "steps": [{"step_number": 1, "tool": …, "command": …, "args": […]}]}'
    ]


def begins_as(told: list[str], expected: list[str]) -> None:
    """Check that each line names the expected error and place; advice (test_advice.py) may follow."""
    assert len(told) == len(expected), told
    for line, beginning in zip(told, expected, strict=True):
        assert line.startswith(beginning)
        assert line[len(beginning) :][:1] in ("", ";", ",", ":"), line


ID_RULE = "is not an id; it must match [A-Za-z0-9][A-Za-z0-9_-]{0,63}"
NUL_RULE = "holds a NUL, which no argument, variable or path can carry; take it out"


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        (5, ["must be an object, not the number 5"]),
        (None, ["must be an object, not null"]),
        ({}, ["steps: is required"]),
        ([], ["must have at least 1; it has 0"]),
        ({"steps": []}, ["steps: must have at least 1; it has 0"]),
        ({"steps": {}}, ["steps: must be a list, not an object"]),
        ({"tasks": 1}, ["tasks: must be a list, not the number 1"]),
        ({"steps": [1]}, ["steps[0]: must be an object, not the number 1"]),
        (steps(*[{}] * 101), ["steps: may have at most 100; it has 101"]),
        ({**steps({}), "tasks": []}, ["tasks: steps and tasks mean the same; keep one"]),
        ({"steps": [{"id": "a"}]}, ["steps[0].command: is required"]),
        ({"steps": [{"command": "a"}]}, ["steps[0].id: is required (or step_number, in every step)"]),
        (
            {"steps": [{"step_number": 1, "command": "a"}, {"command": "a"}]},
            ["steps[1].step_number: is required: other steps of this plan are numbered"],
        ),
        (
            {"steps": [{"step_number": 1, "id": "a", "command": "a"}]},
            ["steps[0].id: a step has either id or step_number, and all steps of a plan the same"],
        ),
        (steps({"status": "x"})["steps"] + [{"id": "b", "command": "c", "state": 1}], None),
        (steps({"comand": "x"}), ["steps[0].comand: is not a known field; did you mean command?"]),
        (
            {**steps({}), "zzz": 1},
            [
                "zzz: is not a known field; known: id, plan_id, name, role, steps, timeout, parallel, keep_going, "
                "allowed_paths, "
                "input, metadata"
            ],
        ),
        (steps({"id": "../x"}), [f"steps[0].id: {ID_RULE}"]),
        (steps({"id": "a" * 65}), [f"steps[0].id: {ID_RULE}"]),
        (steps({"id": "a\n"}), [f"steps[0].id: {ID_RULE}"]),
        ({**steps({}), "id": "a/b"}, [f"id: {ID_RULE}"]),
        ({**steps({}), "plan_id": ""}, [f"plan_id: {ID_RULE}"]),
        ({**steps({}), "role": "a.lock"}, [f"role: {ID_RULE}"]),
        (steps({"id": "a"}, {"id": "a"}), ['steps[1].id: "a" is also steps[0]; ids are unique in a plan']),
        (numbered({}, {"step_number": 1}), ["steps[1].step_number: 1 is also steps[0]; ids are unique in a plan"]),
        (numbered({}, {}, {"input_from_step": 7}), ["steps[2].input_from_step: 7 is not an earlier step"]),
        (numbered({}, {"input_from_step": 2}), ["steps[1].input_from_step: 2 is not an earlier step"]),
        (numbered({"needs": [2]}, {}), ["steps[0].needs[0]: 2 is not an earlier step"]),
        (
            numbered({}, {"input_from_step": "1"}),
            ['steps[1].input_from_step: must be the number of an earlier step, not "1"'],
        ),
        (
            numbered({}, {"input_from_step": True}),
            ["steps[1].input_from_step: must be the number of an earlier step, not true"],
        ),
        (numbered({"step_number": "1"}), ["steps[0].step_number: must be a whole number, not text"]),
        (numbered({"step_number": True}), ["steps[0].step_number: must be a whole number, not true"]),
        (numbered({"step_number": 0}), ["steps[0].step_number: must be at least 1, not 0"]),
        (steps({"needs": ["s11"]}, {}), ['steps[0].needs[0]: "s11" is not a step of this plan; did you mean "s1"?']),
        (steps({"needs": ["zz"]}), ['steps[0].needs[0]: "zz" is not a step of this plan']),
        (steps({"input_from_step": 1}), ["steps[0].input_from_step: must be text, not the number 1"]),
        (
            steps({"needs": [], "dependencies": []}),
            ["steps[0].dependencies: needs and dependencies mean the same; keep one"],
        ),
        (
            [{"id": "a", "command": "b", "dependencies": ["c", 1]}],
            [
                '[0].dependencies[0]: "c" is not a step of this plan',
                "[0].dependencies[1]: must be text, not the number 1",
            ],
        ),
        (
            [{"id": "a", "command": "b", "job_name": "x"}, {"id": "b", "command": "b", "job_name": "y"}],
            ['[1].job_name: "y" is another job than "x"; one list is one job'],
        ),
        (
            steps({"needs": ["s2"]}, {"needs": ["s0"]}, {"input_from_step": "s1"}),
            ["steps[0].needs[0]: steps wait for each other: s0 → s2 → s1 → s0 (each needs the next)"],
        ),
        (
            steps({"input_from_step": "s0"}),
            ['steps[0].input_from_step: "s0" is this step itself, which would wait for ever; take it out'],
        ),
        (steps({"command": ""}), ["steps[0].command: must not be empty"]),
        (steps({"command": "a\0b"}), [f"steps[0].command: {NUL_RULE}"]),
        (steps({"args": ["a", "b\0"]}), [f"steps[0].args[1]: {NUL_RULE}"]),
        (steps({"args": "ls"}), ["steps[0].args: must be a list, not text"]),
        (steps({"args": [1]}), ["steps[0].args[0]: must be text, not the number 1"]),
        (steps({"cwd": "\0"}), [f"steps[0].cwd: {NUL_RULE}"]),
        (steps({"env": {"A": "\0"}}), [f"steps[0].env.A: {NUL_RULE}"]),
        (steps({"env": {"A": 1}}), ["steps[0].env.A: must be text, not the number 1"]),
        (
            steps({"env": {"A=B": "x"}}),
            ['steps[0].env["A=B"]: is not a variable\'s name; it must match [A-Za-z_][A-Za-z0-9_]{0,254}'],
        ),
        (
            steps({"tool": "a/b"}),
            ["steps[0].tool: is not a tool's name; it must match [A-Za-z0-9][A-Za-z0-9_.-]{0,63}"],
        ),
        (steps({"timeout": "1"}), ["steps[0].timeout: must be a number, not text"]),
        (steps({"timeout": True}), ["steps[0].timeout: must be a number, not true"]),
        (steps({"timeout": 0}), ["steps[0].timeout: must be more than 0, not 0"]),
        (steps({"timeout": float("inf")}), ["steps[0].timeout: must be a finite number"]),
        (steps({"timeout": float("nan")}), ["steps[0].timeout: must be a finite number"]),
        (steps({"timeout": 1e300}), ["steps[0].timeout: must be at most 31536000, not 1e+300"]),
        (steps({"ok_exit_codes": []}), ["steps[0].ok_exit_codes: must have at least 1; it has 0"]),
        (
            steps({"tags": ["a b"]}),
            ["steps[0].tags[0]: is not a tag; it must match [A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"],
        ),
        (steps({"ok_exit_codes": [256]}), ["steps[0].ok_exit_codes[0]: must be at most 255, not 256"]),
        (steps({"retries": -1}), ["steps[0].retries: must be at least 0, not -1"]),
        (steps({"retries": 1.0}), ["steps[0].retries: must be a whole number, not the number 1.0"]),
        ({**steps({}), "parallel": 65}, ["parallel: must be at most 64, not 65"]),
        ({**steps({}), "parallel": 0}, ["parallel: must be at least 1, not 0"]),
        ({**steps({}), "allowed_paths": []}, ["allowed_paths: must have at least 1; it has 0"]),
        ({**steps({}), "metadata": []}, ["metadata: must be an object, not a list"]),
        (
            {**steps({}), "metadata": {"tags": ["gpu", "a b"]}},
            ["metadata.tags[1]: is not a tag; it must match [A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"],
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_the_place(data: Any, problems: list[str] | None) -> None:
    if problems is None:  # state keys pass in a task list, anything else does not
        assert [line.split(";")[0] for line in refused(data)] == ["p: [1].state: is not a known field"]
    else:
        begins_as(refused(data), [f"p: {problem}" for problem in problems])


def test_state_keys_are_unknown_fields_outside_a_task_list() -> None:
    assert refused(steps({"status": "done"}))[0].startswith("p: steps[0].status: is not a known field")


def test_all_problems_are_reported_together_with_line_and_column() -> None:
    text = b"""{"id": "a b",
 "steps": [
  {"step_number": 1, "command": "ls", "timeout": "5"},
  {"step_number": 2, "comand": "x"},
  {"step_number": 3, "command": "wc", "input_from_step": 7}],
 "metadata": {"tags": ["!"]}}"""
    with pytest.raises(BadDocument) as caught:
        load(parse_json(text, source="p.json"))
    expected = [
        f"p.json:1:8: id: {ID_RULE}",
        "p.json:3:50: steps[0].timeout: must be a number, not text",
        "p.json:4:3: steps[1].command: is required",
        "p.json:4:22: steps[1].comand: is not a known field; did you mean command?",
        "p.json:5:58: steps[2].input_from_step: 7 is not an earlier step",
        "p.json:6:24: metadata.tags[0]: is not a tag; it must match [A-Za-z0-9][A-Za-z0-9_.:-]{0,63}",
    ]
    begins_as(str(caught.value).split("\n"), expected)


def test_two_cycles_are_both_named() -> None:
    problems = refused(steps({"needs": ["s1"]}, {"needs": ["s0"]}, {"needs": ["s3"]}, {"needs": ["s2"]}))
    assert [problem.split(": ")[3].split(" (")[0] for problem in problems] == ["s0 → s1 → s0", "s2 → s3 → s2"]


def test_the_text_of_a_variable_is_never_repeated_in_a_message() -> None:
    assert "hunter2" not in "\n".join(refused(steps({"env": {"A": "hunter2\0"}, "timeout": "hunter2"})))


# --- tags


def test_required_tags_are_read_from_the_raw_prompt() -> None:
    assert required_tags({"metadata": {"tags": ["gpu", "linux"]}}) == {"gpu", "linux"}
    assert load_data({**steps({}), "metadata": {"tags": ["gpu"], "note": [1]}}, "p").metadata.tags == ("gpu",)


def test_a_plan_requires_the_tags_of_all_its_steps() -> None:
    tagged = [{"id": "a", "command": "a", "tags": ["gpu"]}, {"id": "b", "command": "b", "tags": ["big", "gpu"]}]
    assert required_tags({"steps": tagged, "metadata": {"tags": ["linux"]}}) == {"gpu", "big", "linux"}
    assert required_tags({"tasks": tagged}) == required_tags(tagged) == {"gpu", "big"}
    assert load_data({"steps": tagged}, "p").steps[1].tags == ("big", "gpu")
    assert required_tags({"steps": [{"tags": "gpu"}, {"tags": [1]}, 7]}) == frozenset()


@pytest.mark.parametrize("prompt", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"tags": "gpu"}}, []])
def test_a_prompt_without_tags_requires_none(prompt: Any) -> None:
    assert required_tags(prompt) == frozenset()


# --- properties


@st.composite
def graphs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps in any order whose needs have no cycle: each needs only those before it in a hidden order."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 12)))]
    members = []
    for index, name in enumerate(names):
        earlier = st.sampled_from(names[:index]) if index else st.nothing()
        step: dict[str, Any] = {"id": name, "command": "true"}
        step["needs"] = draw(st.lists(earlier, max_size=3)) if index else []
        if index and draw(st.booleans()):
            step["input_from_step"] = draw(earlier)
        members.append(step)
    return draw(st.permutations(members))


@given(graphs())
def test_order_respects_needs_and_otherwise_the_list(members: list[dict[str, Any]]) -> None:
    plan = load_data({"steps": members}, "p")
    remaining = list(plan.steps)
    done: set[str] = set()
    for step in order(plan):
        # Of the steps whose needs are met, the first of the list runs.
        assert step == next(each for each in remaining if done.issuperset(each.depends_on))
        remaining.remove(step)
        done.add(step.id)
    assert not remaining


VALUES = st.sampled_from([None, True, 0, 1, 2, -1, 1.5, "", "a", "1", "b\0", "0", [], ["a"], [1], [[]], {}, {"a": 1}])
STEP = st.dictionaries(
    st.sampled_from(["id", "step_number", "command", "args", "needs", "dependencies", "input_from_step", "timeout"])
    | st.sampled_from(["env", "retries", "tool", "cwd", "ok_exit_codes", "status", "job_name", "zz"]),
    VALUES,
)
PLAN = st.dictionaries(
    st.sampled_from(["id", "name", "role", "timeout", "parallel", "allowed_paths", "metadata", "command", "zz"])
    | st.sampled_from(["steps", "tasks"]),
    VALUES | st.lists(STEP | VALUES, max_size=4),
)


def verdict(document: Document) -> Plan | BadDocument:
    try:
        return load(document)
    except BadDocument as bad:
        return bad


@settings(max_examples=400, deadline=None)
@given(PLAN | st.lists(STEP | VALUES, max_size=4) | VALUES)
def test_any_data_is_a_plan_or_a_bad_document_with_places(data: Any) -> None:
    found = verdict(parse_json(json.dumps(data).encode(), source="p"))
    if isinstance(found, BadDocument):
        assert all(problem.line is not None for problem in found.problems)
    else:
        assert len(order(found)) == len(found.steps)


# AGEniX's later form of the memo's plan
LATER = {
    "job_id": "job-123",
    "plan_id": "plan-456",
    "plan_description": "Find the pattern",
    "tasks": [
        {"task_number": 1, "command": "ls", "args": ["-la", "/tmp"], "timeout_secs": 30},
        {"task_number": 2, "command": "grep", "args": ["pattern"], "timeout_secs": 30, "input_from_task": 1},
    ],
}


def test_the_later_form_of_a_memo_plan_loads_like_the_memos() -> None:
    steps = [{key: value for key, value in step.items() if key != "tool"} for step in MEMO["steps"][:2]]
    memos = {"id": "job-123", "plan_id": "plan-456", "name": "Find the pattern", "steps": steps}
    assert load_data(LATER, "p") == load_data(memos, "p")


def test_a_fault_of_the_later_form_is_reported_by_its_own_names() -> None:
    first, second = LATER["tasks"]
    assert refused({**LATER, "tasks": [first, {**second, "input_from_task": 7}]})[0].startswith(
        "p: tasks[1].input_from_task: 7 is not an earlier step"
    )
    assert refused({**LATER, "tasks": [{**first, "timeout_secs": 0}, second]})[0].startswith(
        "p: tasks[0].timeout_secs: "
    )
    assert refused({**LATER, "job_id": "not an id"})[0].startswith("p: job_id: ")
