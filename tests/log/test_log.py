"""The log: one whole, unforgeable line for each event; an error of the log never stops the work."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

from farro.log.structured import grave_only, lines, printable, short_line

NOW = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)


class Fickle(io.StringIO):
    """A stream that raises while `broken`."""

    broken = False

    def write(self, text: str) -> int:
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().write(text)


def log_to(stream: Any, **more: Any) -> Any:
    return lines("worker/Runner", lambda: NOW, stream, **more)


def test_an_event_logged_later_keeps_its_time() -> None:
    out = io.StringIO()
    log_to(out)("info", "job claimed", {"timestamp": "2026-11-15T11:59:59.000Z"})
    assert json.loads(out.getvalue())["timestamp"] == "2026-11-15T11:59:59.000Z"


def test_an_event_is_one_json_line_with_the_fields_of_the_seed() -> None:
    out = io.StringIO()
    log_to(out)("info", "job claimed", {"job_id": "a\nb\x1b[31m", "event": {"type": "x"}})
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()
    assert json.loads(out.getvalue()) == {
        "timestamp": "2026-11-15T12:00:00.123Z",
        "level": "info",
        "message": "job claimed",
        "app": "farro",
        "actor": "worker/Runner",
        "job_id": "a\nb\x1b[31m",
        "event": {"type": "x"},
    }


def test_lines_below_the_level_are_not_written() -> None:
    for level, heard in (
        ("debug", ["debug", "info", "warning", "error", "critical"]),
        ("warning", ["warning", "error", "critical"]),
        ("error", ["error", "critical"]),
    ):
        out = io.StringIO()
        log = log_to(out, level=level)
        for each in ("debug", "info", "warning", "error", "critical"):
            log(each, "said", {})
        assert [json.loads(line)["level"] for line in out.getvalue().splitlines()] == heard


def test_a_line_that_cannot_be_written_is_counted_and_reported_later() -> None:
    out = Fickle()
    log = log_to(out)
    out.broken = True
    log("info", "lost", {})
    log("info", "lost too", {})
    out.broken = False
    log("info", "back", {})
    log("info", "again", {})
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["message"], line.get("dropped_lines")) for line in told] == [("back", 2), ("again", None)]


def test_a_closed_or_absent_stream_raises_no_error() -> None:
    out = io.StringIO()
    out.close()
    log_to(out)("info", "nobody hears", {})
    log_to(None)("info", "nobody hears", {})
    grave_only(None)("error", "nobody hears", {})


def test_a_terminal_gets_short_lines() -> None:
    out = io.StringIO()
    log = log_to(out, short=True)
    move = {"type": "state_transition", "from": "queued", "to": "in_progress"}
    log("info", "job claimed", {"job_id": "one", "attempt": 1, "event": move})
    log("info", "job status changed", {"job_id": "one", "attempt": 2, "event": {**move, "error": "timeout"}})
    log("warning", "evil \x1b[31m\nline", {})
    assert out.getvalue().splitlines() == [
        "12:00:00.123  one: queued → in_progress",
        "12:00:00.123  one (attempt 2): queued → in_progress (timeout)",
        "12:00:00.123  warning: evil \\x1b[31m\\nline",
    ]


def test_a_command_logs_only_errors() -> None:
    err = io.StringIO()
    log = grave_only(err)
    log("info", "nothing", {})
    log("warning", "job.json rebuilt", {"job_id": "one"})
    log("error", "recovery failed, will be tried again", {"name": "one", "why": "it is\nfull"})
    log("critical", "job quarantined", {"job_id": "two", "why": "twice"})
    assert err.getvalue().splitlines() == [
        "farro: one: recovery failed, will be tried again: it is\\nfull",
        "farro: two: job quarantined: twice",
    ]


def test_short_lines_take_any_line() -> None:
    assert short_line({"timestamp": "2026-11-15T12:00:00.123Z", "message": "hi", "level": "info", "event": None}) == (
        "12:00:00.123  hi"
    )
    assert printable("a→b\tc", keep="\t") == "a→b\tc"
