"""`farro stats --alerts`: the pager triggers of SPEC-1's appendix A, computed from the real data of a root."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from farro.jobs.times import timestamp
from flows.program import Program, steps


def told(farro: Program, code: int) -> dict[str, Any]:
    answer = farro.call("stats", "--alerts", "--json", code=code).json
    return {f"{alert['name']} {alert['role'] or ''}".strip(): alert for alert in answer["alerts"]}


def log(farro: Program, minutes_ago: float, event: str, **codes: Any) -> None:
    moment = timestamp(datetime.now(UTC) - timedelta(minutes=minutes_ago))
    with (farro.path / "logs" / "audit.log").open("a") as lines:
        lines.write(json.dumps({"ts": moment, "event": event, **codes}) + "\n")


def test_quiet_root_raises_no_alert(farro: Program) -> None:
    assert not any(alert["firing"] for alert in told(farro, 0).values())
    page = farro.call("stats", "--alerts", code=0).out.splitlines()
    assert [line.split()[:2] for line in page] == [
        ["ok", "requeues"],
        ["ok", "accounts"],
        ["ok", "audit_errors"],
        ["ok", "log_quota"],
        ["ok", "depth"],
    ]


def test_alerts_refuse_the_window_options_of_stats(farro: Program) -> None:
    for option in (("--csv",), ("--since", "5m")):
        assert "leave out" in farro.call("stats", "--alerts", *option, code=2).err
    assert "no role Nobody here" in farro.call("stats", "--alerts", "--role", "Nobody", code=2).err


def test_full_queue_raises_an_alert_with_advice_after_half_an_hour(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"capacity": {"role_cap": 5}}')
    for number in range(5):
        farro.enqueue(steps(["true"]), "--id", f"j{number}", "--role", "DocWriter")
    assert not told(farro, 0)["depth DocWriter"]["firing"]  # the queue has only just filled
    log_file = farro.path / "logs" / "audit.log"
    earlier = timestamp(datetime.now(UTC) - timedelta(minutes=40))
    lines = [json.dumps({**json.loads(line), "ts": earlier}) for line in log_file.read_text().splitlines()]
    log_file.write_text("\n".join(lines) + "\n")
    firing = told(farro, 1)["depth DocWriter"]
    assert firing["firing"]
    assert (firing["value"], firing["bar"]) == (5, 4)
    page = farro.call("stats", "--alerts", code=1).out
    assert "FIRES  depth" in page
    assert "farro ls --role DocWriter" in page
    assert not told(farro, 1)["depth Manager"]["firing"]


def test_many_recovery_requeues_raise_an_alert(farro: Program) -> None:
    for number in range(21):
        log(
            farro,
            1,
            "requeued",
            actor="manager.0.0a",
            job_id=f"j{number}",
            role="Runner",
            status="queued",
            **{"from": "stale"},
        )
    assert told(farro, 1)["requeues"]["value"] == 21


def test_requeues_by_recovery_are_counted_and_manual_ones_are_not(farro: Program) -> None:
    farro.enqueue(steps(["sh", "-c", "kill -9 $PPID"]), "--id", "poison")
    for by in (("manager", "--once"), ("requeue", "poison")):
        farro.run("worker", "--drain")
        farro.run("watchdog", "--once", code=0)
        farro.run(*by, code=0)
    assert farro.job("poison")["status"] == "queued"
    assert told(farro, 0)["requeues"]["value"] == 1


def test_file_removed_by_a_quota_raises_an_alert(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"audit": {"max_bytes": 300, "keep": 10, "quota_bytes": 500}}')
    for number in range(8):
        farro.enqueue(steps(["true"]), "--id", f"j{number}")
    assert told(farro, 1)["log_quota"]["firing"]


def test_unwritable_audit_log_and_its_missed_lines_raise_alerts(farro: Program) -> None:
    logs = farro.path / "logs"
    for kind in ("now", "afterwards"):
        if kind == "now":
            os.rename(logs, farro.path / "away")
            logs.write_text("a file is in the way")
            alert = told(farro, 1)["audit_errors"]
            assert "cannot be written now" in alert["what"]
            logs.unlink()
            os.rename(farro.path / "away", logs)
        else:
            since = timestamp(datetime.now(UTC) - timedelta(minutes=2))
            log(farro, 1, "audit_missed", actor="worker/Runner", lines=40, since=since)
            assert told(farro, 1)["audit_errors"]["value"] == 40
    assert not (logs / f".probe-{os.getpid()}").exists()
