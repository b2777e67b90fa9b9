"""The audit log page by page, the newest lines first, from any moment backwards.

What a line says of queues is operations.past; the lines of one job in full are observe.audit_reading.

A page ends where the next begins, whatever is written meanwhile: lines are ordered by their time and then by their
text, and a cursor names the last one that was told. Lines of different writers lie out of order by as long as they
buffer, so a little more is read than is told.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from farro.errors import InputError
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.log import audit_reader
from farro.queue.fleet import LINES
from farro.queue.times import moment_or_none
from farro.store.fleet import Fleet
from farro.store.port import Store

LIMIT = 64 << 20  # bytes that one page reads
SLACK_S = 5.0  # by how much lines of different writers lie out of order


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    limit: int
    cursor: str | None = None
    job_id: str | None = None
    since: str | None = None  # timestamps, both included
    until: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    lines: list[Mapping[str, Any]]
    next: str | None
    whole: bool  # False: there may be more than was read


def page(store: Store, wanted: Wanted) -> Page:
    before = None if wanted.cursor is None else _place(wanted.cursor)
    newest = wanted.until if before is None else before[0]
    found: list[tuple[str, str]] = []  # time and text
    whole = True
    source = _common(store, wanted) if isinstance(store, Fleet) else _lines(f"{store.root}/logs", newest)
    enough: str | None = None
    for line in source:
        if line is None:
            whole = False
            break
        told = _told(line, wanted)
        if told is None:
            continue
        if wanted.since is not None and told[0] < _earlier(wanted.since):
            break
        if enough is not None and told[0] < enough:
            break
        late = (wanted.until is not None and told[0] > wanted.until) or (before is not None and told >= before)
        if late or (wanted.since is not None and told[0] < wanted.since) or not _of(told[1], wanted.job_id):
            continue
        found.append(told)
        if enough is None and len(found) > wanted.limit:
            enough = _earlier(min(found)[0])
    found.sort(reverse=True)
    shown = found[: wanted.limit]
    cursor = _cursor(shown[-1]) if len(found) > wanted.limit else None
    return Page(lines=[json.loads(text) for _, text in shown], next=cursor, whole=whole)


def _lines(folder: str, newest: str | None) -> Iterator[bytes | None]:
    """Backwards; blocks that are newer than anybody asks for are passed over whole. None: too much was read."""
    left = LIMIT
    bound = None if newest is None else moment_or_none(newest)
    for block in audit_reader.backwards(folder):
        lines = block.split(b"\n")
        first = audit_reader.moment_of(lines[0])
        if bound is not None and first is not None and first > bound + timedelta(seconds=SLACK_S):
            continue
        yield from (line for line in reversed(lines) if line)
        left -= len(block)
        if left <= 0:
            yield None


def _common(store: Fleet, wanted: Wanted) -> Iterable[bytes | None]:
    since = None if wanted.since is None else moment_or_none(wanted.since)
    since_ms = 0 if since is None else max(0, int(since.timestamp() * 1000))
    kept = deque(store.audit_lines(since_ms, wanted.job_id), maxlen=LINES)
    return (json.dumps(line).encode() for line in reversed(kept))


def _told(line: bytes, wanted: Wanted) -> tuple[str, str] | None:
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(line)
        if isinstance(data, dict) and isinstance(data.get("ts"), str):
            return data["ts"], line.decode("utf-8", "replace")
    return None


def _of(text: str, job_id: str | None) -> bool:
    return job_id is None or json.loads(text).get("job_id") == job_id


def _earlier(text: str) -> str:
    moment = moment_or_none(text)
    return "" if moment is None else timestamp(moment - timedelta(seconds=SLACK_S))


def _cursor(told: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode("\n".join(told).encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[str, str]:
    try:
        at, _, text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("\n")
    except (ValueError, binascii.Error):
        at, text = "", ""
    if moment_or_none(at) is None:
        raise InputError("the cursor is none that this answered; begin without one")
    return at, text
