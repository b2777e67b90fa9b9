"""Reading the audit log: the lines of one job, from all its files, the oldest first. Writing lives in observe.audit.

Lines that are torn, foreign or no JSON are passed over: a log that cannot be read whole still tells the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farro.observe.audit import files
from farro.system import fs

BLOCK = 1 << 20
LIMIT = 256 << 20  # bytes that one question reads; older files are left out then
_TORN = 64 << 10  # no line is longer: a block without a newline for so long is no log


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    lines: tuple[Mapping[str, Any], ...]
    whole: bool  # False: older files were left out


def trail(folder: str, job_id: str, *, since_s: float = 0.0, limit: int = LIMIT) -> Trail:
    """What the log says of a job. Files that were written last before `since_s` (Unix time) cannot name it."""
    chosen: list[str] = []
    whole, left = True, limit
    try:
        names = files(folder)
    except FileNotFoundError:
        return Trail(lines=(), whole=True)
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
    return Trail(lines=tuple(found), whole=whole)


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
