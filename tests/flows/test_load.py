"""`make load`: a small load meets every limit, and a missed limit is named. Speed is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import load
import pytest

from farro.roles.names import AGENTS
from flows.program import PATIENCE_S, Program
from support import ROOT


def test_a_load_over_all_roles_keeps_the_bars_and_meets_a_cap(empty: Program) -> None:
    done = subprocess.run(
        [sys.executable, f"{ROOT}/scripts/load.py", "--jobs", "24", "--json"],
        env={**empty.env, "TMPDIR": str(empty.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["misses"] == []
    assert {line["role"] for line in told["roles"]} == set(AGENTS)
    # Each role worked its own four; the manager took on all 24, and those of its own queue a second time.
    assert {line["role"]: line["succeeded"] for line in told["roles"]} == {**dict.fromkeys(AGENTS, 4), "Manager": 28}
    assert told["refused"] >= len(AGENTS)  # at least one for each role, before the workers started
    assert told["deepest"] == told["cap"] == 2
    assert list(empty.path.iterdir()) == []


def line(role: str = "DocWriter", **changes: Any) -> dict[str, Any]:
    return {"role": role, "latency_p95_s": 1.0, "failure_rate": 0.0, **changes}


def kept(**changes: Any) -> load.Load:
    good: dict[str, Any] = {"jobs": 100, "cap": 10, "refused": 1, "deepest": 10, "seconds": 60.0, "roles": [line()]}
    return load.Load(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"roles": [line(latency_p95_s=301.0)]}, "DocWriter: P95 is 301 s"),
        ({"roles": [line(latency_p95_s=None)]}, "P95 is unknown"),
        ({"roles": [line(failure_rate=0.021)]}, "2.1% failed"),
        ({"unfinished": 2}, "2 jobs have not ended"),
        ({"seconds": 100_000.0}, "86 jobs a day"),
        ({"refused": 0}, "backpressure was not observed"),
        ({"deepest": 11}, "a role had 11 jobs"),
    ],
)
def test_every_bar_that_is_missed_is_named(changes: dict[str, Any], said: str) -> None:
    assert kept().misses() == []
    assert [said in miss for miss in kept(**changes).misses()] == [True]


def test_too_few_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load.main(["--jobs", "6"])
    assert "at least 12" in capsys.readouterr().err
