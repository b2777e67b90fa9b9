"""Queue caps on the command line: exit 3, advice, and nothing queued."""

from __future__ import annotations

import json

from flows.program import Program, listing, steps


def plan(role: str, count: int) -> str:
    return "\n".join(json.dumps(steps(("true",), role=role)) for _ in range(count))


def test_full_queue_of_a_role_refuses_a_job_with_advice(farro: Program) -> None:
    farro.call("enqueue", "--many", "-", stdin=plan("Architect", 200), code=0)
    before = listing(farro.path / "agents")
    done = farro.call("enqueue", "-", stdin=plan("Architect", 1), code=3)
    assert "no room for 1 more job: Architect has 200 of at most 200 jobs queued or in progress" in done.err
    assert "capacity.role_cap" in done.err
    assert "--force" in done.err
    assert done.out == ""
    assert listing(farro.path / "agents") == before
    farro.call("run", "--detach", "--role", "Architect", "--", "true", code=3)
    farro.call("enqueue", "-", stdin=plan("CodeReviewer", 1), code=0)
    assert '"event": "cap_refused"' in (farro.path / "logs" / "audit.log").read_text()


def test_total_cap_refuses_a_batch_as_a_whole(farro: Program) -> None:
    config = json.loads((farro.path / "agents-config.json").read_text())
    (farro.path / "agents-config.json").write_text(json.dumps({**config, "roles": {"Packer": {}}}))
    farro.call("init", code=0)
    for role in ("Architect", "CodeReviewer", "DocWriter", "SeniorEngineer"):
        farro.call("enqueue", "--many", "-", stdin=plan(role, 200), code=0)
    farro.call("enqueue", "--many", "-", stdin=plan("JuniorEngineer", 190), code=0)
    done = farro.call("enqueue", "--many", "-", stdin=plan("Packer", 11), code=3)
    assert "all capped roles together have 990 of at most 1000" in done.err
    assert farro.call("ls", "--role", "Packer", "--json", code=0).json["jobs"] == []
    farro.call("enqueue", "--many", "-", stdin=plan("Packer", 10), code=0)


def test_the_role_of_command_plans_has_no_cap(farro: Program) -> None:
    farro.call("enqueue", "--many", "-", stdin=plan("Runner", 1001), code=0)
    farro.call("enqueue", "--many", "-", stdin=plan("Architect", 200), code=0)


def test_force_without_permission_is_refused(farro: Program) -> None:
    done = farro.call("enqueue", "-", "--force", stdin=plan("Architect", 1), code=3)
    assert "may not exceed the caps" in done.err
    assert "capacity.force" in done.err
