"""Record what an attempt has done so far: `steps.jsonl` in its folder, one line for each ended step.

The next attempt reads it and starts after the steps that succeeded; progress displays read it, too.

    {"version": 1, "boot": "…", "carried": 1}                   the first line; so many of the next were carried over
    {"id": "fetch", "success": true, …, "added": […]}            a step that ended, and the steps that it added
    {"added": […]}                                               steps added by processes of an ended step
    {"synced": true}                                             everything above is on the disk, with its files

A line is one write: a kill leaves it whole or not at all. A success and what it added are one line, so neither is known
without the other. After a power cut only synced lines count; a sync is done when a second of work would be lost, not at
each step. Decided in docs/decisions/a-retry-resumes-after-finished-steps.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from farro.documents.json_text import encoder
from farro.execution.results import StepResult
from farro.host import fs
from farro.host.process_table import boot_id
from farro.lazy_dataclass import dataclass

NAME = "steps.jsonl"
LIMIT = 64 << 20  # bytes; a thousand steps with usual tasks take less than one MiB
_WORK_S = 1.0  # a power cut may lose so much work
_SHARE = 100.0  # syncing takes at most a hundredth of the work's time

Line = Mapping[str, Any]
_encode = encoder(allow_nan=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedTask:
    """A task as it was added to the plan."""

    by: str
    task: Mapping[str, Any]
    file: str  # where it was handed over, relative to its attempt's folder

    def to_json(self) -> dict[str, Any]:
        return {"by": self.by, "task": self.task, "file": self.file}


class Records:
    """The file of one attempt, created with the first line."""

    def __init__(self, attempt_dir: str, *, durable: bool) -> None:
        self._attempt_dir = attempt_dir
        self._path = f"{attempt_dir}/{NAME}"
        self._durable = durable
        self._fd: int | None = None
        self._loose: list[str] = []  # files of this attempt that are not synced yet
        self._loose_s = 0.0  # the work that they represent
        self._sync_s = 0.0  # how long the last sync took

    @property
    def begun(self) -> bool:
        return self._fd is not None

    def begin(self, carried: Sequence[Line] = ()) -> None:
        """Write the first line and the carried lines in one write, so that the file has all of them or none."""
        self._fd = fs.retried(lambda: fs.open_append(self._path), self._path, time.sleep)
        self._append(head(carried), *carried)
        # Their files have new names here, and may never have been synced under the old ones.
        self._loose += [path for line in carried for path in paths(line)]

    def step(self, ended: StepResult, added: Iterable[AcceptedTask]) -> None:
        sizes = {"stdout_bytes": self._size(ended.stdout_path), "stderr_bytes": self._size(ended.stderr_path)}
        self._say({**ended.to_json(said=False), **sizes}, added)
        self._loose += [path for path in (ended.stdout_path, ended.stderr_path) if path is not None]
        self._loose_s += ended.duration_s
        if self._durable and self._loose_s >= max(_WORK_S, _SHARE * self._sync_s):
            self._sync()

    def late(self, added: Iterable[AcceptedTask]) -> None:
        """Record steps that were added when every step was over."""
        self._say({}, added)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _say(self, data: dict[str, Any], added: Iterable[AcceptedTask]) -> None:
        tasks = [one.to_json() for one in added]
        if self._fd is None:
            self.begin()
        self._append({**data, "added": tasks} if tasks else data)

    def _append(self, *lines: Line) -> None:
        assert self._fd is not None
        fs.write(self._fd, text(lines))

    def _sync(self) -> None:
        """Sync everything that the lines so far depend on, then write the line that says so."""
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
    """Return the first line, for so many carried lines."""
    return {"version": 1, "boot": boot_id(), "carried": len(carried)}


def paths(line: Line) -> Iterator[str]:
    """Yield the files of a step, relative to its attempt's folder."""
    for stream in ("stdout", "stderr"):
        if (path := line.get(f"{stream}_path")) is not None:
            yield path


def text(lines: Iterable[Line]) -> bytes:
    return "".join([_encode(line) + "\n" for line in lines]).encode("utf-8", "surrogatepass")


def read(folder: str) -> list[Line]:
    """Return the lines of that attempt up to the first invalid one: a crash tears only the last."""
    lines: list[Line] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        for line in fs.read_regular(f"{folder}/{NAME}", LIMIT).split(b"\n")[:-1]:
            data = json.loads(line)
            if not isinstance(data, dict):
                break
            lines.append(data)
    return lines


def trusted(folder: str) -> list[Line] | None:
    """Return the lines, without the first, that the next attempt may build on; None: not even carried ones."""
    lines = read(folder)
    if not lines or lines[0].get("version") != 1:
        return None
    if lines[0].get("boot") != boot_id():  # the machine restarted, perhaps by a power cut: only synced lines count
        synced = max((place for place, line in enumerate(lines) if line.get("synced") is True), default=0)
        lines = lines[:synced]
    carried = lines[0].get("carried") if lines else None
    if not isinstance(carried, int) or len(lines) <= carried:
        return None
    return lines[1:]
