"""`farro stats`: queue depth and speed of each role, as text and JSON, with a limited number of reads."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from farro.app import App
from farro.config.settings import Settings
from farro.queue.stats import COLUMNS, StatsLimits, stats
from flows.program import Program, steps


def told(farro: Program, *args: str) -> dict[str, dict[str, Any]]:
    lines = farro.call("stats", "--json", *args, code=0).out.splitlines()
    return {line["role"]: line for line in map(json.loads, lines)}


def edit(farro: Program, job: str, **changes: Any) -> None:
    path = farro.folder(job) / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}).replace('":"', '": "'))


def test_stats_are_one_json_object_a_line_and_the_same_as_csv(farro: Program) -> None:
    for name, command in (("good", "true"), ("fine", "true"), ("bad", "false")):
        farro.enqueue(steps([command]), "--id", name)
    farro.worked()
    farro.enqueue(steps(["true"]), "--id", "queued")
    farro.enqueue(steps(["true"]), "--id", "later")
    edit(farro, "later", not_before=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    lines = told(farro)
    runner = lines["Runner"]
    assert (runner["queued"], runner["delayed"], runner["in_progress"], runner["stale"]) == (1, 1, 0, 0)
    assert (runner["succeeded"], runner["failed"], runner["killed"]) == (2, 1, 0)
    assert runner["failure_rate"] == 0.333
    assert 0 <= runner["wait_p50_s"] <= runner["latency_p50_s"] <= runner["latency_p95_s"]
    assert runner["oldest_queued_s"] >= 0
    assert runner["throughput_per_min"] == 0.05
    assert lines["*"]["succeeded"] == 2
    rows = list(csv.DictReader(io.StringIO(farro.call("stats", "--csv", code=0).out)))
    assert tuple(rows[0]) == COLUMNS
    assert [row["role"] for row in rows] == list(lines)
    assert {row["role"]: row["failed"] for row in rows}["Runner"] == "1"
    assert farro.call("stats", "--csv", "--json").code == 2


def test_stats_table_shows_roles_with_jobs(farro: Program) -> None:
    assert "nothing queued or running" in farro.call("stats", code=0).out
    farro.enqueue(steps(["true"]), "--id", "one")
    head, runner = farro.call("stats", code=0).out.splitlines()
    assert head.split()[:3] == ["ROLE", "QUEUED", "DELAYED"]
    assert runner.split()[:2] == ["Runner", "1"]
    farro.enqueue(steps(["true"]), "--id", "two", "--role", "DocWriter")
    assert [line.split()[0] for line in farro.call("stats", code=0).out.splitlines()] == [
        "ROLE",
        "DocWriter",
        "Runner",
        "all",
    ]
    assert list(told(farro, "--role", "DocWriter")) == ["DocWriter"]
    assert "no role Nobody here" in farro.call("stats", "--role", "Nobody", code=2).err


def test_stats_exclude_jobs_that_ended_before_the_window(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "old")
    farro.worked()
    edit(farro, "old", finalized_at="2026-01-01T00:00:00.000Z")
    assert told(farro)["Runner"]["succeeded"] == 0
    assert told(farro, "--since", "5000d")["Runner"]["succeeded"] == 1
    assert "must be positive" in farro.call("stats", "--since", "0", code=2).err


def test_stats_read_a_limited_number_of_jobs_and_say_so(farro: Program) -> None:
    for number in range(6):
        farro.enqueue(steps(["true"]), "--id", f"done-{number}")
    farro.worked()
    for number in range(4):
        farro.enqueue(steps(["true"]), "--id", f"queued-{number}")
    store = App().open_store(str(farro.path), Settings())
    now = datetime.now(UTC)
    whole = stats(store, now=now, window_s=3600)[-1]
    assert (whole.succeeded, whole.queued, whole.bounded, whole.window_s) == (6, 4, False, 3600)
    cut = stats(store, now=now, window_s=3600, limits=StatsLimits(finished=3, queued=2))[-1]
    assert 0 < cut.succeeded <= 3
    assert (cut.queued, cut.bounded) == (4, True)
    assert cut.window_s < 3600
    store.close()
