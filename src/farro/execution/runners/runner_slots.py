"""Bound the number of live runners of a root on this machine: one lock file per slot, with a record of its holder.

There is no counter that a crash could leave wrong. A slot is a file `jobs/.runners/<n>` under flock, held by the worker
and by its runner (one lock, inherited): the kernel frees it when both are gone, however they ended. Its content is for
people (`records`); a record whose slot is not held is a dead runner's, and is emptied by the next worker that takes the
slot, or by a watchdog (`sweep`). Files are never removed: a lock on a removed file protects nothing. A process that
frees a slot touches `.freed` afterwards, so that waiters sleep in the kernel; a slot that a crash freed is found at
their next tick. Tests: tests/execution/test_runner_slots.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from farro.execution.stop import Stop
from farro.host import fs, inotify, leases, process_identity
from farro.host.thread_turns import RESTING
from farro.lazy_dataclass import dataclass

FOLDER = "jobs/.runners"
_BELL = ".freed"
_RECORD_LIMIT = 64 * 1024
_LOOK_S = 0.25  # without inotify


@dataclass(slots=True)
class RunnerSlot:
    """A slot that this process holds."""

    path: str
    lease: leases.Lease

    def note(self, record: Mapping[str, Any]) -> None:
        """Record the holder. Best effort: a full disk is no reason not to run a job."""
        with contextlib.suppress(OSError):
            _write(self.path, json.dumps(record).encode() + b"\n")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            if fs.lstat(self.path).st_size:
                _write(self.path, b"")

    def free(self) -> None:
        self.clear()
        self.lease.drop()
        with contextlib.suppress(OSError):
            fd = fs.open_append(f"{os.path.dirname(self.path)}/{_BELL}")
            try:
                fs.touch(fd)
            finally:
                os.close(fd)


class RunnerSlots:
    """The slots of one root."""

    def __init__(self, root: str, limit: int) -> None:
        self._folder = f"{root}/{FOLDER}"
        self._limit = limit
        self._bell: _Bell | None = None  # made when a thread has to wait
        self._making = threading.Lock()

    def take(self, *, tick: Callable[[], None], every_s: float, stop: Stop) -> RunnerSlot | None:
        """Take a free slot, waiting for one with a tick at least every `every_s`. None: the worker was stopped
        first."""
        found = self._try()
        if found is not None:
            return found
        bell = self._bell_to_wait_for()
        ticked_s = time.monotonic()
        while True:
            seen = bell.rung  # before the check: a slot freed after it is noticed
            found = self._try()
            if found is not None or stop.requested:
                return found
            bell.wait(seen, max(0.0, ticked_s + every_s - time.monotonic()))
            if time.monotonic() - ticked_s >= every_s:
                ticked_s = time.monotonic()
                tick()

    def _bell_to_wait_for(self) -> _Bell:
        with self._making:
            if self._bell is None:
                self._bell = _Bell(self._folder)
            return self._bell

    def _try(self) -> RunnerSlot | None:
        for number in range(self._limit):
            path = f"{self._folder}/{number}"
            try:
                lease = leases.take(path)
            except FileNotFoundError:
                _make(self._folder, path)
                lease = leases.take(path)
            if lease is not None:
                place = RunnerSlot(path, lease)
                place.clear()
                return place
        return None


def records(root: str) -> list[Mapping[str, Any]]:
    """Return the runners that are alive. One that was just started may be missing."""
    return [record for path in _paths(root) if leases.is_held(path) and (record := _read(path))]


def sweep(root: str) -> list[Mapping[str, Any]]:
    """Empty the records of dead runners, and return them."""
    swept = []
    for path in _paths(root):
        with contextlib.suppress(OSError):
            lease = leases.take(path)
            if lease is None:
                continue
            try:
                record = _read(path)
                if record:
                    # It released its slot but is still alive: no process waits for it any more.
                    process_identity.kill_identified(record)
                    swept.append(record)
                RunnerSlot(path, lease).clear()
            finally:
                lease.drop()
    return swept


def _paths(root: str) -> list[str]:
    folder = f"{root}/{FOLDER}"
    try:
        return [f"{folder}/{name}" for name in sorted(fs.listdir(folder)) if name.isdigit()]
    except FileNotFoundError:
        return []


def _make(folder: str, path: str) -> None:
    with contextlib.suppress(FileExistsError):
        fs.mkdir(folder)
    os.close(fs.open_append(path))


def _read(path: str) -> Mapping[str, Any]:
    try:
        data = json.loads(fs.read_bytes(path, _RECORD_LIMIT))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: str, data: bytes) -> None:
    fd = fs.open_append(path)
    try:
        fs.truncate(fd, 0)
        fs.write(fd, data)
    finally:
        os.close(fd)


class _Bell:
    """Wake the waiting threads of a worker when a slot was freed.

    One of them reads for all: a kernel allows few inotify instances per user, and a worker may have many slots.
    """

    def __init__(self, folder: str) -> None:
        self.rung = 0
        self._inotify: inotify.Inotify | None = None
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        with contextlib.suppress(OSError):  # not this platform, or none left
            self._inotify = inotify.Inotify()
            self._inotify.watch(folder, inotify.ATTRIB)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until it was rung since `seen`, or for `timeout_s`; may return early."""
        with RESTING:
            if self._inotify is None:
                time.sleep(min(timeout_s, _LOOK_S))
            elif self._reading.acquire(blocking=False):
                try:
                    rung = bool(self._inotify.read(timeout_s))
                finally:
                    self._reading.release()
                with self._changed:  # also after a timeout: another thread has to read now
                    self.rung += rung
                    self._changed.notify_all()
            else:
                with self._changed:
                    if self.rung == seen:
                        self._changed.wait(timeout_s)
