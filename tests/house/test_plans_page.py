"""Check docs/plans.md: it names every field of a plan with its default, and farro accepts each example."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from farro import documents
from farro.plans.loading import load, load_data
from farro.plans.model import Metadata, Plan, Step
from farro.queue.submit import Options, contradictions
from support import ROOT

PAGE = Path(ROOT, "docs", "plans.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \| `(.+)` \|$", re.MULTILINE)


def rows(title: str) -> dict[str, tuple[str, str]]:
    """Map each field in the table under that heading to its default and example."""
    part = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = {name: (default, example) for name, default, example in ROW.findall(part)}
    assert len(found) == part.count("\n| `")
    return found


TABLES = {"The plan": Plan, "A step": Step, "metadata": Metadata}
EXAMPLES = [(title, name, example) for title in TABLES for name, (_, example) in rows(title).items()]


@pytest.mark.parametrize("title", TABLES)
def test_every_field_of_the_model_is_on_the_page_with_its_default(title: str) -> None:
    told, fields = rows(title), dataclasses.fields(TABLES[title])
    missing = {field.name for field in fields} - set(told)
    assert not missing, f"docs/plans.md, {title}: fields without a row"
    if title != "metadata":  # metadata accepts more fields than its model declares
        assert set(told) == {field.name for field in fields}
    for field in fields:
        if field.default not in (dataclasses.MISSING, None):
            shown = field.default if isinstance(field.default, str | int | float) else list(field.default)
            assert told[field.name][0].strip("`") == str(shown), field.name


@pytest.mark.parametrize(("title", "name", "example"), EXAMPLES, ids=lambda text: text.split(" ")[-1])
def test_every_example_of_a_field_is_accepted(title: str, name: str, example: str) -> None:
    said: dict[str, Any] = json.loads(f"{{{example}}}")
    assert list(said) == [name]
    first: dict[str, Any] = {"id": "a", "command": "true"}
    plan: dict[str, Any] = {"steps": [first]}
    if title == "The plan":
        plan |= said
    elif title == "metadata":
        plan["metadata"] = said
    elif name == "step_number":
        plan["steps"] = [{"step_number": 1, "command": "true"}, {"command": "true", **said}]
    else:
        plan["steps"].append({"id": "b", "command": "true", **said})
    load_data(plan, name)
    assert not [*contradictions(documents.Document(plan, name), Options())]


def test_the_plan_at_the_top_is_the_same_in_both_spellings() -> None:
    as_json, as_yaml = (PAGE.split(f"```{kind}\n")[1].split("```")[0].encode() for kind in ("json", "yaml"))
    assert load(documents.parse(as_json, "a.json")) == load(documents.parse(as_yaml, "a.yaml"))
