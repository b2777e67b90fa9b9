"""Check tasks/<id>.json: the roles that a piece of work goes through."""

from __future__ import annotations

from typing import Any

import pytest

from farro.documents import Document
from farro.errors import BadDocument
from farro.roles import task
from farro.roles.names import ROLES

GOOD: dict[str, Any] = {
    "id": "task-0001",
    "title": "A greeting",
    "workflow": [
        {"role": "SeniorEngineer", "rubric": "Write it.", "allowed_paths": ["src/"], "success": "It greets."},
        {"role": "CodeReviewer", "rubric": "Judge it."},
    ],
    "allowed_paths": ["docs/"],
    "success": "It is approved.",
}


def refused(data: Any, **options: Any) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        task.load(Document(data, "t"), **options)
    return [line.removeprefix("t: ") for line in str(caught.value).split("\n")]


def test_a_task_lists_roles_in_order_each_with_its_rubric() -> None:
    found = task.load(Document(GOOD, "t"), name="task-0001", roles=ROLES, allow_absolute=False)
    assert [(hop.role, hop.rubric) for hop in found.workflow] == [
        ("SeniorEngineer", "Write it."),
        ("CodeReviewer", "Judge it."),
    ]
    assert found.review_rounds == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"workflow": []}, "workflow: must have at least 1"),
        ({"review_rounds": 4}, "review_rounds: must be at most 3, not 4"),
        ({"workflow": [{"role": "Nobody", "rubric": "x"}]}, "workflow[0].role: Nobody is not a role here"),
        ({"allowed_paths": ["jobs/"]}, 'allowed_paths[0]: "jobs/" belongs to the queue'),
        ({"id": "other"}, "id: is other, but the file is called task-0001"),
        ({"steps": []}, "steps: is not a known field"),
    ],
)
def test_a_mistake_is_told_with_its_place(change: dict[str, Any], told: str) -> None:
    assert refused({**GOOD, **change}, name="task-0001", roles=ROLES)[0].startswith(told)


def test_title_and_workflow_alone_are_a_task() -> None:
    data = {"title": "A greeting", "workflow": [{"role": "SeniorEngineer"}, {"role": "CodeReviewer"}]}
    found = task.load(Document(data, "t"), name="task-0007", roles=ROLES, allow_absolute=False)
    assert found.id == "task-0007"
    assert [hop.rubric for hop in found.workflow] == ["A greeting", "A greeting"]
