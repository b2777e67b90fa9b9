"""`farro archive` from the command line: every command finds archived jobs, and other stores refuse."""

from __future__ import annotations

import json
import os

import pytest

from flows.program import Program, steps


@pytest.fixture
def worked(farro: Program) -> Program:
    """Make a job that succeeded, one that failed, and one that runs after both."""
    farro.enqueue(steps(["echo", "hello"]), "--id", "good")
    farro.enqueue(steps(["ls", "/nowhere"]), "--id", "bad")
    farro.worked()
    return farro


QUERIES = (
    ("ls", "--json"),
    ("ls", "--last", "1", "--json"),
    ("ls", "--status", "failed", "--json"),
    ("show", "good", "--json"),
    ("show", "bad"),
    ("logs", "good"),
    ("logs", "bad", "--stderr"),
    ("history", "good", "--json"),
    ("explain", "bad"),
    ("stats", "--json"),
    ("wait", "good"),
)
UNSTEADY = ("throughput_per_min", "window_s", "age", "generated_at", "now", "at")


def steady(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in UNSTEADY}


def answers(farro: Program) -> dict[str, object]:
    found: dict[str, object] = {}
    for query in QUERIES:
        ran = farro.call(*query)
        said: object = ran.out
        if "--json" in query:
            assert ran.out, f"{query}: {ran.err}"
            said = [json.loads(line, object_hook=steady) for line in ran.out.splitlines()]
        found[" ".join(query)] = (ran.code, said)
    return found


def test_every_command_answers_as_before(worked: Program) -> None:
    before = answers(worked)
    assert worked.call("archive", "--keep", "0", "--dry-run", "--json", code=0).json["jobs"] == 2
    assert worked.call("archive", "--keep", "0", "--json", code=0).json["jobs"] == 2
    assert not list((worked.path / "agents/Runner/completed").glob("*/*"))
    after = answers(worked)
    for query, said in before.items():
        assert after[query] == said, query
    assert worked.call("archive", "--keep", "0").out == "nothing to archive\n"
    assert worked.call("retry", "bad", code=0)
    assert worked.enqueue(steps(["echo", "hello"]), "--id", "good") == "good"
    worked.enqueue(steps(["true"]), "--id", "later", "--after", "good")
    assert worked.status("later") == "queued"
    assert "archive" in worked.call("doctor").out
    exported = worked.path.parent / "exported"
    assert worked.call("archive", "--export", str(exported), "--json", code=0).json["jobs"] == 2
    assert sorted(os.listdir(exported / "agents/Runner/completed/failed")) == ["bad"]
    assert worked.call("prune", "--keep", "0", "--json", code=0).json["jobs"] == 2
    assert worked.call("show", "good").code == 2


def test_it_has_to_be_said_what_to_archive(worked: Program) -> None:
    told = worked.call("archive", code=2)
    assert "retention.archive_after" in told.err
    config = worked.path / "agents-config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "retention": {"archive_after": "1h"}}))
    assert worked.call("archive", code=0).out == "nothing to archive\n"
    config.write_text(json.dumps({**settings, "retention": {"archive_after": "1m"}}))
    for folder in (worked.path / "agents/Runner/completed").glob("*/*"):
        os.utime(folder, (folder.stat().st_mtime - 3600,) * 2)
    worked.call("manager", "--once", code=0)
    assert not list((worked.path / "agents/Runner/completed").glob("*/*"))
    assert worked.status("good") == "succeeded"
