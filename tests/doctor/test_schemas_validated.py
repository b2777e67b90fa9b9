"""The schemas are valid JSON Schema and agree with farro's own checks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.config.reader import settings_of
from farro.doctor.root import first_config
from farro.doctor.schemas import schemas
from farro.documents import Document
from farro.documents.json_schema import schema
from farro.errors import BadDocument
from farro.jobs.envelope import Lifecycle
from farro.plans import loading
from farro.roles import answers, prompt, task

jsonschema = pytest.importorskip("jsonschema")

PROMPT: dict[str, Any] = {
    "role": "SeniorEngineer",
    "rubric": "Implement the change and produce a PR-ready diff.",
    "allowed_paths": ["src/", "docs/", "tests/"],
    "success": "Tests pass; reviewer rubric satisfied.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
    "context_md": "prompt.md",
    "inputs": {"task_id": "task-0001"},
    "metadata": {"priority": "P2"},
}


def accepts(name: str, data: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(json.loads(schemas()[name])).is_valid(data))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_each_schema_is_valid_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schemas()[name]))


def test_the_answers_schemas_are_json_schema_and_take_good_answers() -> None:
    good: dict[str, Any] = {
        "Architect": {"analysis": "x", "prompts": [{key: PROMPT[key] for key in list(PROMPT)[:5]}]},
        "SeniorEngineer": {"summary": "x", "patch": "y"},
        "CodeReviewer": {"verdict": "approve", "findings": [{"message": "x", "severity": "note"}]},
        "DocWriter": {"summary": "x", "documents": [{"path": "a.md"}]},
    }
    for role, answer in good.items():
        made = schema(answers.shape_of(role))
        jsonschema.Draft202012Validator.check_schema(made)
        jsonschema.Draft202012Validator(made).validate(answer)
        assert not isinstance(answers.read(role, json.dumps(answer)), list)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ROUTING = st.fixed_dictionaries(
    {},
    optional={"mode": st.sampled_from(["manager", "role", "x"]), "next": st.sampled_from(["Architect", "x y", None])},
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["Architect", "Tester", "lower", "", 3, None]),
        "rubric": st.sampled_from(["x", "", "  ", "x" * 10_000, "x" * 10_001, 3]),
        "success": st.sampled_from(["x", "x" * 5_001, None]),
        "allowed_paths": st.lists(st.sampled_from(["a", "b/", "", "c\x00", 3]), max_size=3) | JSON,
        "routing": ROUTING | JSON,
        "context_md": st.sampled_from(["a.md", "../a", "a/b", "", None, 3]),
        "inputs": JSON,
        "metadata": JSON | st.fixed_dictionaries({"tags": st.lists(st.sampled_from(["a", "a b"]))}),
        "$schema": st.sampled_from(["x", 3]),
        "more": JSON,
    },
)


@given(CHANGES, st.sets(st.sampled_from(sorted(PROMPT)), max_size=2))
def test_schema_and_checker_agree_about_prompts(changes: dict[str, Any], without: set[str]) -> None:
    data = {key: value for key, value in {**PROMPT, **changes}.items() if key not in without}
    try:
        prompt.load(Document(data, "p"))
        ours = True
    except BadDocument:
        ours = False
    assert accepts("prompt.schema.json", data) == ours


def test_the_config_of_a_new_root_fits_its_schema() -> None:
    assert accepts("agents-config.schema.json", first_config())
    settings_of(Document(first_config(), "c"), {}, pytest.fail)
    assert not accepts("agents-config.schema.json", {"version": "1.0.0"})
    assert not accepts("agents-config.schema.json", {**first_config(), "providers": {"a": {"api_key": "sk-1"}}})


@pytest.mark.parametrize(
    ("plan", "good"),
    [
        ({"steps": [{"id": "a", "command": "make", "needs": []}]}, True),
        (
            {"id": "j", "plan_id": "p", "steps": [{"step_number": 1, "command": "x", "tool": "unix", "args": ["a"]}]},
            True,
        ),
        (
            {"steps": [{"step_number": 1, "command": "x"}, {"step_number": 2, "command": "y", "input_from_step": 1}]},
            True,
        ),
        ([{"id": "a", "command": "x", "dependencies": [], "status": "pending", "job_name": "n"}], True),
        ({"tasks": [{"id": "a", "command": "x"}]}, True),
        ({"steps": []}, False),
        ({"steps": [{"command": "x"}]}, False),
        ({"steps": [{"id": "a", "command": "x", "needs": [], "dependencies": []}]}, False),
        ({"steps": [{"id": "a", "comand": "x"}]}, False),
        ({}, False),
    ],
)
def test_schema_and_checker_agree_about_plans(plan: Any, good: bool) -> None:
    assert accepts("plan.schema.json", plan) is good
    try:
        loading.load_data(plan, "p")
        assert good
    except BadDocument:
        assert not good


def test_a_job_as_farro_writes_it_fits_its_schema() -> None:
    moment = "2026-11-16T06:19:20.315Z"
    made = Lifecycle.from_json(
        json.dumps(
            {
                "schema_version": "1.0.0",
                "job_id": "one",
                "role": "Runner",
                "status": "queued",
                "created_at": moment,
                "enqueued_at": moment,
                "updated_at": moment,
            }
        ).encode()
    )
    assert accepts("job.schema.json", json.loads(made.to_json()))
    assert schema(Lifecycle)["properties"]["status"]["enum"] == [
        "queued",
        "in_progress",
        "succeeded",
        "failed",
        "stale",
        "killed",
    ]


def test_a_task_fits_its_schema() -> None:
    data = {
        "$schema": "../schemas/task.schema.json",
        "id": "task-1",
        "title": "x",
        "workflow": [{"role": "Architect", "rubric": "x"}],
        "allowed_paths": ["a/"],
        "success": "x",
    }
    assert accepts("task.schema.json", data)
    task.load(Document(data, "t"), name="task-1")
