"""Reading the audit log: the lines of one job, oldest first; the newest lines of all. Writing lives in observe.audit.

Lines that are torn, foreign or no JSON are passed over: a log that cannot be read whole still tells the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from farro.host import fs
from farro.jobs.times import parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass
from farro.log.audit import files

BLOCK = 1 << 20
LIMIT = 256 << 20  # bytes that one question reads; older files are left out then
_TORN = 64 << 10  # no line is longer: a block without a newline for so long is no log


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvents:
    lines: tuple[Mapping[str, Any], ...]
    whole: bool  # False: older files were left out


def trail(folder: str, job_id: str, *, since_s: float = 0.0, limit: int = LIMIT) -> JobEvents:
    """What the log says of a job. Files that were written last before `since_s` (Unix time) cannot name it."""
    chosen: list[str] = []
    whole, left = True, limit
    try:
        names = files(folder)
    except FileNotFoundError:
        return JobEvents(lines=(), whole=True)
    for name in reversed(names):  # the newest first: what is left out is what is oldest
        with contextlib.suppress(FileNotFoundError):  # rotated away meanwhile
            status = fs.lstat(f"{folder}/{name}")
            if status.st_mtime < since_s:
                continue
            left -= status.st_size
            if left < 0:
                whole = False
                break
            chosen.append(f"{folder}/{name}")
    found: list[Mapping[str, Any]] = []
    for path in reversed(chosen):
        with contextlib.suppress(OSError):
            found += _of_job(path, job_id)
    return JobEvents(lines=tuple(found), whole=whole)


def _of_job(path: str, job_id: str) -> Iterator[Mapping[str, Any]]:
    wanted = json.dumps(job_id).encode()
    for block in _blocks(path):
        if wanted not in block:  # a look at the whole block: most of the log is about others
            continue
        for line in block.split(b"\n"):
            if wanted in line:
                with contextlib.suppress(ValueError, RecursionError):
                    data = json.loads(line)
                    if isinstance(data, dict) and data.get("job_id") == job_id:
                        yield data


def _blocks(path: str) -> Iterator[bytes]:
    """The file in pieces that end with a line."""
    fd = fs.open_read(path)
    try:
        rest = b""
        while chunk := os.read(fd, BLOCK):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            yield whole + newline
            if len(rest) > _TORN:
                rest = b""
        yield rest
    finally:
        os.close(fd)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentEvents:
    lines: tuple[Mapping[str, Any], ...]  # the newest first, as nearly as writers that buffer for a second keep to it
    whole: bool  # False: there was more than was read
    since: datetime | None  # how far back that reaches, where it is not whole


def recent(folder: str, *, since: datetime, holding: Collection[bytes] = (), limit: int = LIMIT) -> RecentEvents:
    """What the log says since then, read backwards from its end; with `holding` only lines that have one of these.

    Lines of different writers are out of order by as long as they buffer, so reading goes on for a block after the
    first line that is too old.
    """
    begin = timestamp(since)
    found: list[Mapping[str, Any]] = []
    left, oldest = limit, None
    for block in backwards(folder):
        left -= len(block)
        lines = block.split(b"\n")
        for line in reversed(lines):
            if line and (not holding or any(mark in line for mark in holding)):
                with contextlib.suppress(ValueError, RecursionError):
                    data = json.loads(line)
                    if isinstance(data, dict) and isinstance(data.get("ts"), str) and data["ts"] >= begin:
                        found.append(data)
        oldest = moment_of(lines[0]) or oldest
        if oldest is not None and oldest < since:
            return RecentEvents(lines=tuple(found), whole=True, since=None)
        if left <= 0:
            return RecentEvents(lines=tuple(found), whole=False, since=oldest)
    return RecentEvents(lines=tuple(found), whole=True, since=None)


def backwards(folder: str) -> Iterator[bytes]:
    """The whole lines of all files in blocks, from the newest on. A file that is rotated meanwhile is read once."""
    seen: set[int] = set()
    try:
        names = files(folder)
    except OSError:
        return
    for name in reversed(names):
        try:
            fd = fs.open_read(f"{folder}/{name}")
        except OSError:
            continue
        try:
            status = os.fstat(fd)
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                yield from _blocks_backwards(fd, status.st_size)
        finally:
            os.close(fd)


def _blocks_backwards(fd: int, size: int) -> Iterator[bytes]:
    rest = b""  # the end of a line whose beginning lies in the block before
    while size > 0:
        start = max(0, size - BLOCK)
        data = fs.read_at(fd, size - start, start) + rest
        head, _, whole = data.partition(b"\n") if start else (b"", b"", data)
        rest = head if len(head) <= _TORN else b""
        yield whole
        size = start


def moment_of(line: bytes) -> datetime | None:
    try:
        return parse_timestamp(line[8 : line.index(b'"', 8)].decode()) if line.startswith(b'{"ts": "') else None
    except (ValueError, OverflowError):
        return None
