"""Read the audit log page by page, newest lines first, from any moment backwards.

Pages stay exact while the log grows: lines are ordered by time and then by text, and a cursor names the last line that
was returned. Lines of different writers may be out of order by as long as they buffer, so slightly more is read than is
returned.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from farro.errors import InputError
from farro.jobs.times import moment_or_none, timestamp
from farro.lazy_dataclass import dataclass
from farro.store.audit_events import SLACK_S
from farro.store.port import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPageQuery:
    """A filter for the lines to return."""

    limit: int
    cursor: str | None = None
    job_id: str | None = None
    since: str | None = None  # timestamps, both inclusive
    until: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPage:
    """One page of lines, and the cursor of the next page."""

    lines: list[Mapping[str, Any]]
    next: str | None
    whole: bool  # False: the log may hold more than was read


def page(store: Store, wanted: AuditPageQuery) -> AuditPage:
    """Return one page of the audit log."""
    before = None if wanted.cursor is None else _decode_cursor(wanted.cursor)
    newest = wanted.until if before is None else before[0]
    found: list[tuple[str, str]] = []  # time and text
    whole = True
    since = None if wanted.since is None else moment_or_none(wanted.since)
    source = store.audit_events().backwards(newest=newest, since=since, job_id=wanted.job_id)
    enough: str | None = None
    for line in source:
        if line is None:
            whole = False
            break
        event = _time_and_text(line, wanted)
        if event is None:
            continue
        if wanted.since is not None and event[0] < _earlier(wanted.since):
            break
        if enough is not None and event[0] < enough:
            break
        late = (wanted.until is not None and event[0] > wanted.until) or (before is not None and event >= before)
        if late or (wanted.since is not None and event[0] < wanted.since) or not _is_of_job(event[1], wanted.job_id):
            continue
        found.append(event)
        if enough is None and len(found) > wanted.limit:
            enough = _earlier(min(found)[0])
    found.sort(reverse=True)
    shown = found[: wanted.limit]
    cursor = _cursor(shown[-1]) if len(found) > wanted.limit else None
    return AuditPage(lines=[json.loads(text) for _, text in shown], next=cursor, whole=whole)


def _time_and_text(line: bytes, wanted: AuditPageQuery) -> tuple[str, str] | None:
    """Return the time and the text of a line; None if it is not an event."""
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(line)
        if isinstance(data, dict) and isinstance(data.get("ts"), str):
            return data["ts"], line.decode("utf-8", "replace")
    return None


def _is_of_job(text: str, job_id: str | None) -> bool:
    """Return whether the line belongs to the job, or no job was asked for."""
    return job_id is None or json.loads(text).get("job_id") == job_id


def _earlier(text: str) -> str:
    moment = moment_or_none(text)
    return "" if moment is None else timestamp(moment - timedelta(seconds=SLACK_S))


def _cursor(event: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode("\n".join(event).encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        at, _, text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("\n")
    except (ValueError, binascii.Error):
        at, text = "", ""
    if moment_or_none(at) is None:
        raise InputError("the cursor is invalid; start without one")
    return at, text
