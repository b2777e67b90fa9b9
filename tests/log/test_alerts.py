"""The pager triggers read the audit log; each fires above its threshold and not at it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from farro.jobs.times import timestamp
from farro.log import audit_reader
from farro.log.audit_reader import recent
from farro.queue import alerts
from farro.queue.alerts import QueueDepth

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def event(name: str, ago_s: float, **codes: Any) -> dict[str, Any]:
    return {"ts": timestamp(NOW - timedelta(seconds=ago_s)), "event": name, **codes}


def requeued(ago_s: float, actor: str = "manager.0.a1") -> dict[str, Any]:
    return event("requeued", ago_s, **{"actor": actor, "from": "stale", "status": "queued", "role": "R"})


def test_more_than_twenty_requeues_in_five_minutes_page() -> None:
    few = [requeued(ago_s) for ago_s in range(20)]
    assert not alerts.requeues(few, NOW).firing
    assert alerts.requeues([*few, requeued(299)], NOW).firing
    assert not alerts.requeues([*few, requeued(301)], NOW).firing
    by_hand = [requeued(ago_s, "cli-ann.0.a1") for ago_s in range(30)]
    assert not alerts.requeues([*few, *by_hand], NOW).firing
    assert alerts.requeues([], NOW).value == 0
    advice = " ".join(alerts.requeues(few, NOW).next)
    assert ("farro ps" in advice, "logs/farro-supervisor.log" in advice) == (True, True)


def test_a_queue_that_was_deep_for_half_an_hour_pages_and_one_that_has_just_filled_does_not() -> None:
    def judged(now: int, least: int) -> bool:
        queue = QueueDepth(role="R", cap=200, now=now, least=least, since=NOW - timedelta(minutes=30))
        return alerts.depth(queue, NOW).firing

    assert judged(now=190, least=161)
    assert not judged(now=190, least=160)
    filled = [event("enqueued", 60, job_id=f"j{number}", role="R", status="queued") for number in range(100)]
    since = NOW - timedelta(minutes=30)
    assert alerts.least(190, "R", alerts.changes(filled, ["R"]), since) == 90
    assert alerts.least(190, "R", [], since) == 190


def test_a_dip_inside_the_window_counts_and_one_before_it_does_not() -> None:
    def dip(ago_s: float) -> list[dict[str, Any]]:
        went = [
            event("committed", ago_s, job_id=f"w{n}", role="R", **{"from": "in_progress", "status": "succeeded"})
            for n in range(50)
        ]
        came = [event("enqueued", ago_s - 10, job_id=f"c{n}", role="R", status="queued") for n in range(50)]
        return [*came, *went]

    since = NOW - timedelta(minutes=30)
    assert alerts.least(190, "R", alerts.changes(dip(600), ["R"]), since) == 140
    assert alerts.least(190, "R", alerts.changes(dip(2000), ["R"]), since) == 190


def test_a_routed_job_leaves_one_queue_for_another_and_a_waiting_one_enters_once() -> None:
    life = [
        event("enqueued", 90, job_id="j", role="A", status="queued"),
        event("enqueued", 80, job_id="j", role="A", status="queued"),  # its dependency has ended
        event("claimed", 70, job_id="j", role="A", **{"from": "queued", "status": "in_progress"}),
        event("routed", 60, job_id="j", role="A", next="B", **{"from": "in_progress", "status": "queued"}),
        event("agent_died", 50, job_id="j", role="B", **{"from": "in_progress", "status": "stale"}),
        event("requeued", 40, job_id="j", role="B", **{"from": "stale", "status": "queued"}),
        event("cap_refused", 30, role="B"),
        event("killed", 20, job_id="j", role="B", **{"from": "queued", "status": "killed"}),
    ]
    told = [(role, by) for _, role, by in alerts.changes(life, ["A", "B"])]
    assert told == [("A", 1), ("A", -1), ("B", 1), ("B", -1), ("B", 1), ("B", -1)]
    assert alerts.changes(life, ["A", "B"], aside=["j"]) == []


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40), st.integers(0, 300))
def test_the_least_depth_is_between_zero_and_the_current_depth(moves: list[tuple[int, bool]], now: int) -> None:
    changed = [(NOW - timedelta(seconds=ago_s), "R", 1 if came else -1) for ago_s, came in moves]
    assert 0 <= alerts.least(now, "R", changed, NOW - timedelta(minutes=30)) <= now


def test_an_audit_log_that_misses_lines_pages_and_so_does_one_that_cannot_be_written() -> None:
    def missed(lines: int, lasted_s: float) -> dict[str, Any]:
        return event("audit_missed", 10, lines=lines, since=timestamp(NOW - timedelta(seconds=10 + lasted_s)))

    assert not alerts.audit_errors([], None, NOW).firing
    assert not alerts.audit_errors([missed(3, 1)], None, NOW).firing
    assert alerts.audit_errors([missed(4, 1)], None, NOW).firing
    assert not alerts.audit_errors([missed(30, 600)], None, NOW).firing  # three a minute
    assert alerts.audit_errors([], "logs: No space left on device", NOW).firing


def test_a_log_over_its_quota_pages_even_after_a_file_was_deleted() -> None:
    deleted = event("audit_deleted", 600, file="audit.log.9", bytes=1)
    assert not alerts.log_quota([], 512 << 20, 512 << 20, NOW).firing
    assert alerts.log_quota([], (512 << 20) + 1, 512 << 20, NOW).firing
    assert alerts.log_quota([deleted], 1, 512 << 20, NOW).firing
    assert not alerts.log_quota([event("audit_deleted", 3700)], 1, 512 << 20, NOW).firing


# --- the newest part of the log ------------------------------------------------------------------------------------


def written(path: Path, events: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(json.dumps(item).encode() + b"\n" for item in events))


def test_the_newest_lines_are_read_backwards_through_the_files_and_no_older_ones(tmp_path: Path) -> None:
    written(tmp_path / "audit.log.2", [event("x", 9000)])
    written(tmp_path / "audit.log.1", [event("x", 4000), event("requeued", 50)])
    written(tmp_path / "audit.log", [event("claimed", 40), event("requeued", 30)])
    read = recent(str(tmp_path), since=NOW - timedelta(minutes=1))
    assert [item["event"] for item in read.lines] == ["requeued", "claimed", "requeued"]
    assert read.whole
    only = recent(str(tmp_path), since=NOW - timedelta(minutes=1), holding=[b'"claimed"'])
    assert [item["event"] for item in only.lines] == ["claimed"]
    assert recent(str(tmp_path / "none"), since=NOW).lines == ()


def test_lines_across_blocks_are_whole_and_torn_ones_are_passed_over(tmp_path: Path) -> None:
    many = [event("x", 50, job_id=f"job-{number}") for number in range(30_000)]
    written(tmp_path / "audit.log", many)
    with (tmp_path / "audit.log").open("ab") as log:
        log.write(b'{"ts": "2026-11-16T11:59')
    assert (tmp_path / "audit.log").stat().st_size > 2 * audit_reader.BLOCK
    read = recent(str(tmp_path), since=NOW - timedelta(minutes=1))
    assert [item["job_id"] for item in read.lines] == [item["job_id"] for item in reversed(many)]
    cut = recent(str(tmp_path), since=NOW - timedelta(minutes=1), limit=audit_reader.BLOCK)
    assert not cut.whole
    assert 0 < len(cut.lines) < len(many)
    assert cut.since == NOW - timedelta(seconds=50)
