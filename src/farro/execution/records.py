"""What an attempt has done so far: `steps.jsonl` in its folder, a line for each step that ended.

Read by the next attempt, which starts after the steps that succeeded (resume.py), and by whoever looks on. What came of
the whole is in result.json.

    {"version": 1, "boot": "…", "carried": 1}                   the first line; so many of the next were carried over
    {"id": "fetch", "success": true, …, "added": […]}            a step that ended, and the steps that it added
    {"added": […]}                                               steps that came from what an ended step left running
    {"synced": true}                                             everything above is on the disk, with its files

A line is one write: a kill leaves it whole or not at all. A success and what it added are one line, so neither is known
without the other. After a power cut only what is synced counts; that is done once a second of work would be lost, not
at each step. Decided in docs/decisions/a-retry-resumes-after-finished-steps.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from farro.documents.encoding import encoder
from farro.execution.results import StepResult
from farro.host import fs
from farro.host.process_table import boot_id
from farro.lazy_dataclass import dataclass

NAME = "steps.jsonl"
LIMIT = 64 << 20  # bytes: a thousand steps with tasks of the usual size are under one
_WORK_S = 1.0  # so much may be lost with the power
_SHARE = 100.0  # … and syncing takes at most a hundredth of the work

Line = Mapping[str, Any]
_encode = encoder(allow_nan=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """A task as it was taken into the plan."""

    by: str
    task: Mapping[str, Any]
    file: str  # where it was handed over, relative to its attempt's folder

    def to_json(self) -> dict[str, Any]:
        return {"by": self.by, "task": self.task, "file": self.file}


class Records:
    """The file of one attempt, made when there is something to say."""

    def __init__(self, attempt_dir: str, *, durable: bool) -> None:
        self._attempt_dir = attempt_dir
        self._path = f"{attempt_dir}/{NAME}"
        self._durable = durable
        self._fd: int | None = None
        self._loose: list[str] = []  # files of this attempt that no sync covers yet
        self._loose_s = 0.0  # the work that they are
        self._sync_s = 0.0  # what the last sync took

    @property
    def begun(self) -> bool:
        return self._fd is not None

    def begin(self, carried: Sequence[Line] = ()) -> None:
        """The first line, with what is carried over: one write, so that it is there whole or not at all."""
        self._fd = fs.retried(lambda: fs.open_append(self._path), self._path, time.sleep)
        self._append(head(carried), *carried)
        # Their files have new names here, and perhaps nobody synced them under the old ones.
        self._loose += [path for line in carried for path in paths(line)]

    def step(self, ended: StepResult, added: Iterable[Added]) -> None:
        sizes = {"stdout_bytes": self._size(ended.stdout_path), "stderr_bytes": self._size(ended.stderr_path)}
        self._say({**ended.to_json(said=False), **sizes}, added)
        self._loose += [path for path in (ended.stdout_path, ended.stderr_path) if path is not None]
        self._loose_s += ended.duration_s
        if self._durable and self._loose_s >= max(_WORK_S, _SHARE * self._sync_s):
            self._sync()

    def late(self, added: Iterable[Added]) -> None:
        """Steps that came when every step was over."""
        self._say({}, added)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _say(self, data: dict[str, Any], added: Iterable[Added]) -> None:
        tasks = [one.to_json() for one in added]
        if self._fd is None:
            self.begin()
        self._append({**data, "added": tasks} if tasks else data)

    def _append(self, *lines: Line) -> None:
        assert self._fd is not None
        fs.write(self._fd, text(lines))

    def _sync(self) -> None:
        """All that the lines so far rest on, then the line that says so."""
        assert self._fd is not None
        began_s = time.monotonic()
        folders = dict.fromkeys(os.path.dirname(path) for path in self._loose)
        attempts = os.path.dirname(self._attempt_dir)
        fs.sync_all(
            [
                *(f"{self._attempt_dir}/{path}" for path in (*self._loose, *folders, *(("steps",) if folders else ()))),
                self._path,
                self._attempt_dir,
                attempts,
                os.path.dirname(attempts),
            ]
        )
        self._append({"synced": True})
        fs.sync_descriptor(self._fd, self._path)
        self._loose, self._loose_s, self._sync_s = [], 0.0, time.monotonic() - began_s

    def _size(self, path: str | None) -> int | None:
        return None if path is None else fs.lstat(f"{self._attempt_dir}/{path}").st_size


def head(carried: Sequence[Line]) -> Line:
    """The first line, before these."""
    return {"version": 1, "boot": boot_id(), "carried": len(carried)}


def paths(line: Line) -> Iterator[str]:
    """The files of a step, relative to its attempt's folder."""
    for stream in ("stdout", "stderr"):
        if (path := line.get(f"{stream}_path")) is not None:
            yield path


def text(lines: Iterable[Line]) -> bytes:
    return "".join([_encode(line) + "\n" for line in lines]).encode("utf-8", "surrogatepass")


def read(folder: str) -> list[Line]:
    """The lines of that attempt, up to the first that is none: a crash tears only the last."""
    lines: list[Line] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        for line in fs.read_regular(f"{folder}/{NAME}", LIMIT).split(b"\n")[:-1]:
            data = json.loads(line)
            if not isinstance(data, dict):
                break
            lines.append(data)
    return lines


def trusted(folder: str) -> list[Line] | None:
    """The lines, without the first, that the next attempt may build on; None: not even what was carried over."""
    lines = read(folder)
    if not lines or lines[0].get("version") != 1:
        return None
    if lines[0].get("boot") != boot_id():  # nobody knows how the machine went down: what is on the disk counts
        synced = max((place for place, line in enumerate(lines) if line.get("synced") is True), default=0)
        lines = lines[:synced]
    carried = lines[0].get("carried") if lines else None
    if not isinstance(carried, int) or len(lines) <= carried:
        return None
    return lines[1:]
