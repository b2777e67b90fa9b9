"""A store of another package serves the everyday commands: examples/sqlite_store in a root of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flows.program import Program
from support import ROOT


@pytest.fixture
def sqlite(farro: Program) -> Program:
    shutil.copy(Path(ROOT, "examples", "sqlite_store", "sqlite_store.py"), farro.path)
    (farro.path / "agents-config.json").write_text(json.dumps({"store": "sqlite_store:open_store"}))
    return farro


def test_everyday_commands_work_on_a_store_of_another_package(sqlite: Program) -> None:
    assert sqlite.run("run", "--", "echo", "at once", code=0).out == "at once\n"
    job = sqlite.run("enqueue", "--id", "later", "--", "echo", "from the queue", code=0).out.strip()
    assert job == "later"
    sqlite.run("enqueue", "--after", "later", "--id", "nightly", "--", "false", code=0)
    assert {line["job_id"] for line in listed(sqlite, "queued")} == {"later", "nightly"}
    assert "later" in sqlite.run("explain", "nightly").out
    sqlite.run("worker", "--drain", code=0)
    assert sqlite.run("logs", "later", code=0).out.endswith("from the queue\n")
    shown = sqlite.run("show", "later", "--json", code=0).json
    assert (shown["status"], shown["attempt"]) == ("succeeded", 1)
    assert sqlite.run("show", "nightly", "--json", code=0).json["status"] == "failed"
    assert [attempt["outcome"] for attempt in sqlite.run("history", "later", "--json", code=0).json["attempts"]] == [
        "succeeded"
    ]
    retried = sqlite.run("retry", "nightly", code=0).out
    assert retried
    assert len(listed(sqlite)) == 4
    lines = [json.loads(line) for line in sqlite.run("stats", "--json", code=0).out.splitlines()]
    assert {line["role"]: line["failed"] for line in lines}["Runner"] == 1
    pruned = sqlite.run("prune", "--keep", "0", "--json", code=0).json
    assert pruned["jobs"] == 3
    assert [line["status"] for line in listed(sqlite)] == ["queued"]


def test_jobs_move_to_a_store_of_another_package_and_back(sqlite: Program) -> None:
    sqlite.run("enqueue", "--store", "files", "--id", "moved", "--", "true", code=0)
    assert listed(sqlite) == []
    sqlite.run("migrate", "--from", "files", "--to", "custom", code=0)
    assert [line["job_id"] for line in listed(sqlite)] == ["moved"]
    sqlite.run("migrate", "--from", "custom", "--to", "files", code=0)
    assert listed(sqlite) == []


def test_a_factory_that_does_not_exist_is_reported(sqlite: Program) -> None:
    (sqlite.path / "agents-config.json").write_text(json.dumps({"store": "sqlite_store:nothing"}))
    said = sqlite.run("ls", code=2)
    assert "store: sqlite_store:nothing" in said.err
    assert "docs/adapters.md" in said.err


def listed(farro: Program, *statuses: str) -> list[dict[str, str]]:
    options = [option for status in statuses for option in ("--status", status)]
    found: list[dict[str, str]] = farro.run("ls", *options, "--json", code=0).json["jobs"]
    return found
