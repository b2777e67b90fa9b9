"""Read the audit log: the events of one job, oldest first, or the newest events of all jobs.

Lines that are torn, foreign or no JSON are skipped.
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
LIMIT = 256 << 20  # bytes that one query reads; older files are skipped then
_TORN = 64 << 10  # no line is longer: a longer text without a newline is not a log


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvents:
    lines: tuple[Mapping[str, Any], ...]
    whole: bool  # False: older files were left out


def trail(folder: str, job_id: str, *, since_s: float = 0.0, limit: int = LIMIT) -> JobEvents:
    """Return the events of a job. Skips files last written before `since_s` (Unix time), when the job did not exist."""
    chosen: list[str] = []
    whole, left = True, limit
    try:
        names = files(folder)
    except FileNotFoundError:
        return JobEvents(lines=(), whole=True)
    for name in reversed(names):  # newest first, so that the oldest are left out
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
        if wanted not in block:  # most blocks do not mention the job
            continue
        for line in block.split(b"\n"):
            if wanted in line:
                with contextlib.suppress(ValueError, RecursionError):
                    data = json.loads(line)
                    if isinstance(data, dict) and data.get("job_id") == job_id:
                        yield data


def _blocks(path: str) -> Iterator[bytes]:
    """Yield the file in pieces that end with a line."""
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
    lines: tuple[Mapping[str, Any], ...]  # newest first, except that writers buffer for up to a second
    whole: bool  # False: the limit was reached
    since: datetime | None  # how far back the lines reach, if not whole


def recent(folder: str, *, since: datetime, holding: Collection[bytes] = (), limit: int = LIMIT) -> RecentEvents:
    """Return the events since then, read backwards from the end; with `holding` only lines that contain one of them.

    Writers buffer their lines, so lines of different writers are slightly out of order: reading continues to the end of
    the block that has the first line that is too old.
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
    """Yield the whole lines of all files in blocks, newest first. A file that is rotated meanwhile is read once."""
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
    rest = b""  # the end of a line that begins in the preceding block
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
