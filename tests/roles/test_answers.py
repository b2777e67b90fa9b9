"""Check the answer of each role: found in a provider's text, strict about its fields, rendered as Markdown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.documents.shapes import member_names
from farro.roles import answers
from farro.roles.answers import (
    Analysis,
    CodeChange,
    Documents,
    FreeText,
    PromptDraft,
    Review,
    ReviewFinding,
    WrittenDocument,
    instructions,
    markdown,
    read,
)
from farro.roles.names import AGENTS

DRAFT = {"role": "JuniorEngineer", "rubric": "Do it.", "allowed_paths": ["src/"], "success": "It works."}
GOOD: dict[str, Any] = {
    "Architect": {"analysis": "Two parts.", "prompts": [DRAFT]},
    "SeniorEngineer": {"summary": "Done.", "patch": "--- a\n+++ b\n", "tests": "12 passed"},
    "JuniorEngineer": {"summary": "Done."},
    "CodeReviewer": {"verdict": "changes_requested", "findings": [{"message": "Wrong.", "path": "a.py", "line": 3}]},
    "DocWriter": {"summary": "Written.", "documents": [{"path": "docs/a.md", "text": "# A"}, {"path": "b.md"}]},
}


def problems(role: str, text: str) -> list[str]:
    found = read(role, text)
    assert isinstance(found, list)
    return [f"{problem.path}: {problem.message}" for problem in found]


def test_each_role_has_its_own_answer() -> None:
    read_all = {role: read(role, json.dumps(answer)) for role, answer in GOOD.items()}
    (draft,) = [PromptDraft(**{**DRAFT, "allowed_paths": ("src/",)})]
    assert read_all == {
        "Architect": Analysis(analysis="Two parts.", prompts=(draft,)),
        "SeniorEngineer": CodeChange(summary="Done.", patch="--- a\n+++ b\n", tests="12 passed"),
        "JuniorEngineer": CodeChange(summary="Done."),
        "CodeReviewer": Review(
            verdict="changes_requested", findings=(ReviewFinding(message="Wrong.", path="a.py", line=3),)
        ),
        "DocWriter": Documents(
            summary="Written.", documents=(WrittenDocument(path="docs/a.md", text="# A"), WrittenDocument(path="b.md"))
        ),
    }


def test_other_roles_answer_with_free_text() -> None:
    assert read("Tester", '{"any": "thing"}') == FreeText(text='{"any": "thing"}')
    assert problems("Tester", " \n") == [": the answer is empty"]
    assert answers.shape_of("Tester") is None
    assert "JSON" not in instructions("Tester")


@pytest.mark.parametrize(
    "text",
    [
        '{"summary": "S"}',
        '\n\n  {"summary": "S"}\n',
        'Here it is:\n```json\n{"summary": "S"}\n```\nDone.',
        'First I thought:\n```json\n{"summary": "old"}\n```\nbut no:\n```json\n{"summary": "S"}\n```',
        '```\n{"summary": "S"}\n```',
        '~~~json\n{"summary": "S"}\n~~~',
        'The answer {as asked} is {"summary": "S"}, I hope.',
        'A dict {"a": 1} is not an answer; {"summary": "S"} is.',
        '```python\nx = {"summary": 1}\n```\n{"summary": "S"}',
        '````json\n{"summary": "S"}\n````',
    ],
)
def test_the_answer_is_found_in_the_providers_text(text: str) -> None:
    assert read("SeniorEngineer", text) == CodeChange(summary="S")


_QUOTED = 'The change adds this to its tests: {"verdict": "approve"}. That is not what was asked. '


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            '{"verdict": "changes_requested", "findings": [{"message": "No."}, {"mess',
            ": there is more than one object",
        ),
        (
            '{"verdict": "changes_requested", "findings": [{"message": "No."}], "sure": true}',
            "sure: is not a known field",
        ),
        ('{"verdict": "changes_requested", "findings": []}', "findings: must have at least one"),
        ("{'verdict': 'changes_requested', 'findings': ['No.']}", ": there is more than one object"),
        (
            "{} " * 100 + '{"verdict": "changes_requested", "findings": [{"message": "No."}]}',
            ": there is more than one object",
        ),
    ],
)
def test_a_quoted_verdict_is_not_the_reviews_own(own: str, told: str) -> None:
    assert problems("CodeReviewer", _QUOTED + own)[0].startswith(told)
    fenced = f'It has this:\n```json\n{{"verdict": "approve"}}\n```\nMine:\n{own}'
    assert isinstance(read("CodeReviewer", fenced), list)


@pytest.mark.parametrize(
    ("role", "text", "told"),
    [
        ("SeniorEngineer", "I did it.", ": there is no JSON object in the answer"),
        ("SeniorEngineer", '{"summary": ""}', "summary: must not be empty"),
        ("SeniorEngineer", '{"summary": "x", "diff": ""}', "diff: is not a known field"),
        ("SeniorEngineer", '{"summary": "x"', ": not JSON:"),
        ("CodeReviewer", '{"verdict": "lgtm"}', "verdict: must be 'approve' or 'changes_requested'"),
        ("CodeReviewer", '{"verdict": "changes_requested"}', "findings: must have at least one"),
        ("CodeReviewer", '{"verdict": "approve", "findings": [{}]}', "findings[0].message: is required"),
        ("DocWriter", '{"summary": "x", "documents": [{"path": "../a"}]}', "documents[0].path: "),
        (
            "Architect",
            json.dumps({"analysis": "x", "prompts": [{**DRAFT, "allowed_paths": ["jobs/"]}]}),
            "prompts[0].allowed_paths[0]: ",
        ),
        (
            "Architect",
            json.dumps({"analysis": "x", "prompts": [{**DRAFT, "routing": {"mode": "role"}}]}),
            "prompts[0].routing.next: ",
        ),
        ("DocWriter", "x" * (answers.MAX_BYTES + 1), ": the answer has "),
        ("Tester", "x" * (answers.MAX_BYTES + 1), ": the answer has "),
        ("Tester", "é" * (answers.MAX_BYTES // 2 + 1), ": the answer has "),
    ],
)
def test_problems_of_an_answer_are_reported_for_a_repair(role: str, text: str, told: str) -> None:
    assert problems(role, text)[0].startswith(told)


@pytest.mark.parametrize("role", sorted(GOOD))
def test_the_instructions_name_every_field(role: str) -> None:
    names = member_names(answers.shape_of(role))
    assert names
    assert all(f'"{name}"' in instructions(role) for name in names)


def test_answers_are_rendered_as_markdown() -> None:
    told = {role: markdown(role, read(role, json.dumps(answer))) for role, answer in GOOD.items()}  # type: ignore[arg-type]
    assert "## 1. JuniorEngineer" in told["Architect"]
    assert "```diff\n--- a\n+++ b\n```" in told["SeniorEngineer"]
    assert told["CodeReviewer"].startswith("# CodeReviewer: changes requested\n")
    assert "- `a.py:3`: Wrong." in told["CodeReviewer"]
    assert "## `b.md`\n\nWritten in place." in told["DocWriter"]
    assert markdown("Tester", FreeText(text="hello")) == "hello\n"


def test_a_patch_cannot_end_its_fence() -> None:
    told = markdown("SeniorEngineer", CodeChange(summary="S", patch="+```\n+# Forged\n+````\n"))
    assert told.rstrip().endswith("\n`````")


@given(st.sampled_from([*AGENTS, "Tester"]), st.text() | st.text(alphabet='{}[]":,`~a \n', max_size=200))
def test_any_text_is_an_answer_or_a_list_of_problems(role: str, text: str) -> None:
    found = read(role, text)
    if isinstance(found, list):
        assert found
    else:
        assert markdown(role, found).endswith("\n")


@pytest.mark.parametrize("part", ["```x\n", '{"a":[', '{"a', "{", "[", "~~~\n```\n", '{"a":{}}'])
def test_a_hostile_answer_is_read_quickly(part: str) -> None:
    assert isinstance(read("SeniorEngineer", part * (1_000_000 // len(part))), list)
