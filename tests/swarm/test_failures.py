"""A failing component: its last log line is shown by every command, and shown once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flows.program import Program
from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
from support import eventually

FAILS = "import sys; print('no licence found'); sys.exit(7)"


@pytest.fixture
def swarms(farro: Program) -> Iterator[Program]:  # noqa: F811
    yield farro
    farro.run("down", "--kill")
    for name in ("loop", "once"):
        farro.run("swarm", "remove", name)
    farro.run("down")


def apply(farro: Program, name: str, *bees: dict[str, object]) -> None:  # noqa: F811
    plan = {"id": name, "bees": [{"command": ["python", "-c", FAILS], **bee} for bee in bees]}
    (farro.path / f"{name}.json").write_text(json.dumps(plan))
    farro.run("swarm", "apply", f"{name}.json", "--no-wait", code=0)
    eventually(lambda: farro.run("swarm", "status", name).code == 0, "nobody made it")


def line(text: str, instance: str) -> str:
    return next((one for one in text.splitlines() if one.startswith(f"{instance} ")), "")


def test_the_last_log_line_of_a_component_that_keeps_dying_is_reported(swarms: Program) -> None:
    apply(swarms, "loop", {"role": "bad"})
    how = "ended with exit code 7 at "

    def shown() -> bool:
        row = line(swarms.run("swarm", "status", "loop", code=0).out, "loop-bad")
        return "Provisioning" in row and how in row and row.endswith(": no licence found")

    eventually(shown, "the status says nothing of why it dies")
    page = swarms.run("swarm", "status", "loop", code=0).out
    again = [one for one in page.splitlines() if "started again" in one]
    assert len(again) == 1
    assert again[0].endswith("; its log ended with: no licence found")
    (said,) = swarms.run("ps", "--json", code=0).json["components"]
    assert said["last_end"]["words"] == "no licence found"


def test_a_failure_is_reported_once_and_a_dead_component_that_is_not_restarted_is_failed(swarms: Program) -> None:
    apply(swarms, "once", {"role": "last", "restart": "never"}, {"role": "other"})

    def failed() -> bool:
        view = swarms.run("swarm", "status", "once", "--json", code=0).json
        return view["state"] == "Failed" and {one["state"] for one in view["components"]} == {"Failed"}

    eventually(failed, "it did not fail")
    page = swarms.run("swarm", "status", "once", code=0).out
    why = "ended with exit code 7, and restarts never; swarms/once/logs/once-last.log ends with: no licence found"
    assert page.splitlines()[0] == f"once  Failed, Degraded: once-last {why}"
    assert page.count(why) == 1
    assert "swarm-template failed (COMPONENT_FAILED): see above" in page
    listed = swarms.run("ps", code=0).out
    assert listed.count(why) == 1
    assert "swarm once: Failed, Degraded" in listed.splitlines()
