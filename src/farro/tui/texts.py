"""Make text safe and short for drawing: any field of a job becomes plain characters on one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farro.jobs.states import Status
from farro.jobs.times import moment_or_none, span
from farro.log.structured import printable

# The style of each status: component classes of boards.Board.
TONES: Mapping[Status, str] = {
    Status.QUEUED: "plain",
    Status.IN_PROGRESS: "busy",
    Status.SUCCEEDED: "good",
    Status.FAILED: "bad",
    Status.STALE: "warn",
    Status.KILLED: "quiet",
}
WORDS: Mapping[Status, str] = {
    Status.QUEUED: "queued",
    Status.IN_PROGRESS: "running",
    Status.SUCCEEDED: "ok",
    Status.FAILED: "failed",
    Status.STALE: "stale",
    Status.KILLED: "killed",
}
_BARS = " ▁▂▃▄▅▆▇█"


def plain(text: object) -> str:
    """Return one line without control characters; drawn as `Text`, it is never read as markup."""
    return printable(" ".join(str(text).split("\n")).strip())


def lines(text: str) -> str:
    """Return many lines without control characters."""
    return printable(text.replace("\r\n", "\n").expandtabs(4), keep="\n")


def age(now: datetime, stamp: str | None) -> str:
    """Format how long ago, in one or two units."""
    moment = moment_or_none(stamp)
    if moment is None:
        return "-"
    return whole(max(0.0, (now - moment).total_seconds()))


def ending(text: str, length: int) -> str:
    """Return the end of a path, which says more than its beginning."""
    told = plain(text)
    return told if len(told) <= length else f"…{told[len(told) - length + 1 :]}" if length > 8 else ""


def short_id(job_id: str, size: int) -> str:
    """Shorten an id. A minted one loses its common prefix, then keeps date, time and its distinguishing end; any other
    id keeps both ends."""
    told = job_id[8:] if re.match(r"job-\d{8}-\d{6}-", job_id) else job_id
    if len(told) <= size or told is job_id:
        return middle(told, size)
    head = told[: len("MMDD-hhmmss")]
    return f"{head}…{told[len(told) - (size - len(head) - 1) :]}" if size > len(head) + 4 else middle(told, size)


def middle(text: str, size: int) -> str:
    """Keep both ends of a name: components of a swarm begin alike and are numbered at the end."""
    if len(text) <= size or size < 5:
        return text
    end = (size - 1) // 2
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"


def whole(seconds: float | None) -> str:
    """Format a running duration, without tenths that flicker."""
    return "-" if seconds is None else f"{int(seconds)}s" if seconds < 60 else span(seconds)


def spark(counts: list[int]) -> str:
    """Draw a sparkline, scaled to its maximum."""
    most = max(counts, default=0)
    if not most:
        return _BARS[1] * len(counts) if counts else ""
    return "".join(_BARS[max(1, round(count / most * (len(_BARS) - 1)))] for count in counts)


def commands(prompt: Mapping[str, Any]) -> dict[str, str]:
    """Return the command of each step of a plan, by id."""
    steps = prompt.get("steps") or prompt.get("tasks")
    return {
        str(step.get("id") or step.get("step_number")): plain(_words(step)[:300])[:60]
        for step in (steps if isinstance(steps, list) else ())
        if isinstance(step, dict)
    }


def _words(step: Mapping[str, Any]) -> str:
    args = step.get("args")
    return " ".join(str(word) for word in (step.get("command"), *(args if isinstance(args, list) else ())) if word)


def about(prompt: Mapping[str, Any]) -> str:
    """Return the title of a job: its plan's name, its first command, or the rubric of an agent prompt."""
    if isinstance(name := prompt.get("name"), str) and name.strip():
        return plain(name)[:200]
    if isinstance(rubric := prompt.get("rubric"), str):
        return plain(rubric[:400])[:200]
    steps = prompt.get("steps") or prompt.get("tasks")
    first = steps[0] if isinstance(steps, list) and steps and isinstance(steps[0], dict) else {}
    more = f" … ({len(steps)} steps)" if isinstance(steps, list) and len(steps) > 1 else ""
    return plain(_words(first)[:300])[:180] + more
