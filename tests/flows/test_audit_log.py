"""logs/audit.log as the installed program writes it: every transition, codes only, also after kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from farro.host import machine
from flows.program import Program, endless, shell, steps
from support import eventually


def audited(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "logs" / "audit.log").read_text().splitlines()]


def told(root: Path, job_id: str) -> list[str]:
    return [line["event"] for line in audited(root) if line.get("job_id") == job_id]


def test_audit_log_records_every_transition_of_a_job(farro: Program) -> None:
    good = farro.enqueue(steps(("echo", "a secret")))
    bad = farro.enqueue(shell("exit 3"))
    killed = farro.enqueue(steps(("true",)))
    farro.run("kill", killed, code=0)
    farro.worked()
    assert told(farro.path, good) == ["enqueued", "claimed", "committed"]
    assert told(farro.path, killed) == ["enqueued", "killed"]
    last = [line for line in audited(farro.path) if line.get("job_id") == bad][-1]
    assert (last["from"], last["status"], last["error"], last["role"]) == (
        "in_progress",
        "failed",
        "step_failed",
        "Runner",
    )
    assert "a secret" not in (farro.path / "logs" / "audit.log").read_text()


def test_audit_log_records_the_last_claim_of_a_killed_worker(farro: Program) -> None:
    job_id = farro.enqueue(endless())
    worker = farro.start("worker")
    eventually(lambda: told(farro.path, job_id) == ["enqueued", "claimed"], "the claim was not logged")
    worker.kill()
    farro.run("watchdog", "--once", code=0)
    farro.run("manager", "--once", code=0)
    assert told(farro.path, job_id) == ["enqueued", "claimed", "agent_died", "requeued"]


def test_job_continues_when_the_audit_log_cannot_be_written(farro: Program) -> None:
    """Row 28: the job continues; the error is counted and reported."""
    (farro.path / "logs").rmdir()
    (farro.path / "logs").write_text("in the way")
    done = farro.run("enqueue", "-", stdin=json.dumps(steps(("true",))), code=0)
    assert "the audit log could not be written; jobs go on" in done.err
    farro.worked("--no-checks")
    assert farro.status(done.out.strip()) == "succeeded"


def test_the_audit_log_names_no_user_and_no_host(farro: Program) -> None:
    """SPEC-1 §8: audit logs must not store PII. The names stay in the job."""
    farro.env["LOGNAME"] = "ann-example"
    job_id = farro.run("enqueue", "--", "true", code=0).out.strip()
    killed = farro.run("enqueue", "--", "true", code=0).out.strip()
    farro.run("kill", killed, "--note", "not wanted", code=0)
    farro.run("pause", "--all", code=0)
    farro.run("resume", "--all", code=0)
    farro.worked()
    text = (farro.path / "logs" / "audit.log").read_text()
    assert "ann-example" not in text
    assert machine.node_name() not in text.replace(job_id, "").replace(killed, "")
    assert farro.job(killed)["hops"][-1]["by"].startswith("cli-ann-example.")
    events = {(line["job_id"], line["event"]): line["actor"] for line in audited(farro.path) if "job_id" in line}
    assert events[job_id, "claimed"] == events[job_id, "committed"], "one agent has one pseudonym"
    assert events[job_id, "enqueued"].startswith("cli-")
