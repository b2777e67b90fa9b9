"""Check the agent prompt: every rule of SPEC-1 §3.1, all mistakes with their positions, and as a plan of one step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.documents import Document, parse_json
from farro.errors import BadDocument
from farro.plans import loading
from farro.roles import prompt
from farro.roles.names import ROLES
from farro.roles.prompt import AgentPrompt, PromptRouting

SEED: dict[str, Any] = {  # SPEC-1 §3.1, the strict example
    "role": "SeniorEngineer",
    "rubric": "Implement the change and produce a PR-ready diff.",
    "allowed_paths": ["src/", "docs/", "tests/"],
    "success": "Tests pass; reviewer rubric satisfied.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
    "context_md": "prompt.md",
    "inputs": {"task_id": "task-0001"},
    "metadata": {"priority": "P2"},
}


def read(data: Any, **options: Any) -> AgentPrompt:
    return prompt.load(Document(data, "p"), **{"roles": ROLES, "allow_absolute": False, **options})


def refused(data: Any, **options: Any) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        read(data, **options)
    return [line.removeprefix("p: ") for line in str(caught.value).split("\n")]


def test_the_example_of_the_specification_is_a_prompt() -> None:
    found = read(SEED)
    assert found.routing == PromptRouting(mode="role", next="CodeReviewer")
    assert found.allowed_paths == ("src/", "docs/", "tests/")
    assert found.inputs == {"task_id": "task-0001"}


def test_a_prompt_is_a_plan_of_one_agent_step() -> None:
    plan = prompt.load_any(Document(SEED, "p"))
    (step,) = plan.steps
    assert (step.id, step.step_number, step.tool, step.command) == ("1", 1, "agent", "SeniorEngineer")
    assert (plan.role, plan.allowed_paths) == ("SeniorEngineer", ("src/", "docs/", "tests/"))
    assert plan.name == "Implement the change and produce a PR-ready diff."
    assert loading.load_data(SEED, "p") == plan


def test_a_plan_is_not_taken_for_a_prompt() -> None:
    assert not prompt.is_agent_prompt({"steps": [], "routing": {}})
    assert not prompt.is_agent_prompt([SEED])
    plan = prompt.load_any(Document({"steps": [{"id": "a", "tool": "agent", "command": "Architect"}]}, "p"))
    assert plan.steps[0].command == "Architect"


@pytest.mark.parametrize("name", ["role", "rubric", "allowed_paths", "success", "routing"])
def test_each_missing_required_field_is_reported(name: str) -> None:
    (told,) = refused({key: value for key, value in SEED.items() if key != name})
    assert told.startswith(f"{name}: is required")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"role": "Tester"}, "role: Tester is not a role here; known: "),
        ({"role": "CodeReviewr"}, "role: CodeReviewr is not a role here; did you mean CodeReviewer?"),
        ({"role": "Runner"}, "role: Runner runs command plans, no agents"),
        ({"role": "a b"}, "role: is not a role; it must match"),
        ({"rubric": ""}, "rubric: must not be empty"),
        ({"rubric": " \n"}, "rubric: must not be empty"),
        ({"rubric": "x" * 10_001}, "rubric: may have at most 10000 characters; it has 10001"),
        ({"success": "x" * 5_001}, "success: may have at most 5000 characters; it has 5001"),
        ({"allowed_paths": []}, "allowed_paths: must have at least 1; it has 0"),
        ({"allowed_paths": "src/"}, "allowed_paths: must be a list, not text"),
        ({"allowed_paths": ["src/", 3]}, "allowed_paths[1]: must be text, not the number 3"),
        ({"allowed_paths": ["/etc"]}, 'allowed_paths[0]: "/etc" is absolute'),
        ({"allowed_paths": ["C:\\x"]}, 'allowed_paths[0]: "C:\\\\x" is absolute'),
        ({"allowed_paths": ["src", "../x"]}, 'allowed_paths[1]: "../x" leads out of the repository'),
        ({"allowed_paths": ["agents/"]}, 'allowed_paths[0]: "agents/" belongs to the queue'),
        ({"allowed_paths": ["src/.git/hooks"]}, 'allowed_paths[0]: "src/.git/hooks" belongs to the queue or to git'),
        ({"routing": {"mode": "boss"}}, "routing.mode: must be 'manager' or 'role', not another word"),
        ({"routing": {"mode": "role"}}, "routing.next: is required where the mode is role"),
        ({"routing": {"mode": "role", "next": "Nobody"}}, "routing.next: Nobody is not a role here"),
        (
            {"routing": {"mode": "manager", "next": "Architect"}},
            "routing.next: has no effect where the mode is manager",
        ),
        ({"routing": {"mode": "manager", "to": "x"}}, "routing.to: is not a known field"),
        ({"routing": "manager"}, "routing: must be an object, not text"),
        ({"context_md": "../prompt.md"}, "context_md: is not a plain file name, without folders"),
        ({"inputs": []}, "inputs: must be an object, not a list"),
        ({"metadata": {"tags": ["a b"]}}, "metadata.tags[0]: is not a tag"),
        ({"extra": 1}, "extra: is not a known field"),
        ({"instructions": "x"}, "instructions: is not a known field; farro calls it rubric"),
        ({"id": "x"}, "id: is not a known field; farro calls it --id"),
    ],
)
def test_each_mistake_is_reported_with_its_position(change: dict[str, Any], told: str) -> None:
    (only,) = refused({**SEED, **change})
    assert only.startswith(told)


def test_all_mistakes_are_reported_together_in_text_order() -> None:
    text = b"""{"role": "Nobody", "rubric": 1,
 "allowed_paths": ["/etc", "ok", "..", "a*"],
 "routing": {"mode": "role"}, "more": 0}"""
    with pytest.raises(BadDocument) as caught:
        prompt.load(parse_json(text, source="p"), roles=ROLES, allow_absolute=False)
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [
        (1, "success"),
        (1, "role"),
        (1, "rubric"),
        (2, "allowed_paths[0]"),
        (2, "allowed_paths[2]"),
        (2, "allowed_paths[3]"),
        (3, "routing.next"),
        (3, "more"),
    ]


def test_a_declared_role_is_a_role() -> None:
    assert read({**SEED, "role": "Tester"}, roles=(*ROLES, "Tester")).role == "Tester"


def test_absolute_paths_must_be_allowed_by_the_config() -> None:
    absolute = {**SEED, "allowed_paths": ["/srv/out"]}
    assert read(absolute, allow_absolute=True).allowed_paths == ("/srv/out",)
    inside = {**SEED, "allowed_paths": ["/repo/agents/x"]}
    (told,) = refused(inside, allow_absolute=True, root="/repo")
    assert "belongs to the queue" in told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*SEED, "x"]) | st.text(), JSON, max_size=8))
def test_every_prompt_is_read_or_refused(change: dict[str, Any]) -> None:
    data = {**SEED, **change}
    document = parse_json(json.dumps(data).encode(), source="p")
    bad = None
    try:
        found = prompt.load(document, roles=ROLES, allow_absolute=False)
    except BadDocument as error:
        bad = error
    else:
        assert loading.load(document).allowed_paths == found.allowed_paths  # what is accepted is a plan, too
    assert bad is None or (bad.problems and all(problem.line for problem in bad.problems))


@given(JSON)
def test_data_of_any_kind_is_refused_without_a_crash(data: Any) -> None:
    with pytest.raises(BadDocument):
        read(data)
