"""The schema files match the models. test_schemas_validated.py checks them with an independent validator."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from farro.doctor.schemas import schemas
from farro.documents.json_schema import DIALECT
from support import ROOT

FOLDER = Path(ROOT, "schemas")


@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_schema_files_match_the_models(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == schemas()[name], "run: make schemas"


def test_each_kind_of_document_has_a_schema_with_its_version() -> None:
    named = {name: json.loads(text) for name, text in schemas().items()}
    assert set(named) == {f"{kind}.schema.json" for kind in ("prompt", "agents-config", "job", "task", "plan")}
    # Includes the documents of the wire formats and of HTTP, which no root holds.
    written = runpy.run_path(str(Path(ROOT, "scripts", "schemas.py")))["files"]()
    assert {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()} == written, "run: make schemas"
    for name, document in named.items():
        assert document["$id"] == f"{name}@1.0.0"
        assert document["$schema"] == DIALECT


def test_fields_that_spec_1_requires_are_required() -> None:
    config = json.loads(schemas()["agents-config.schema.json"])
    assert config["required"] == ["version", "providers", "security"]
    assert config["properties"]["security"]["required"] == ["max_job_bytes", "payload_allowlist"]
    asked = json.loads(schemas()["prompt.schema.json"])
    assert asked["required"] == ["role", "rubric", "allowed_paths", "success", "routing"]
    assert asked["additionalProperties"] is False
