"""The manager's seat: one lease, so that two managers never both act, and the heartbeat that workers look at.

What a manager does lives in manager; what a worker does while nobody sits here lives in handover.

    agents/Manager/.lease       flock'd while a manager acts; the kernel drops it at its death. Its text says who
    agents/Manager/.heartbeat   written every ten seconds; its time says how long the manager has been silent
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from farro.kernel.moments import timestamp
from farro.ports.clock import Clock
from farro.system import fs, leases

LEASE = "agents/Manager/.lease"
HEARTBEAT = "agents/Manager/.heartbeat"
BEAT_S = 10.0
AWAY_S = 30.0  # SPEC-1 §12
_LIMIT = 4096


@dataclass(kw_only=True)
class Seat:
    root: str
    clock: Clock
    name: str = "manager"
    _lease: leases.Lease | None = None
    _beat_s: float = field(default=float("-inf"))

    def take(self) -> bool:
        """Whether this process has the seat, from now on or already."""
        if self._lease is not None:
            return True
        path = f"{self.root}/{LEASE}"
        if not fs.exists(path):
            os.close(fs.open_append(path))
        try:
            self._lease = leases.take(path)
        except FileNotFoundError:  # somebody tidied up between the two calls: the next turn makes it anew
            return False
        return self._lease is not None

    def holder(self) -> str:
        """Who has it, for people."""
        try:
            told = json.loads(fs.read_bytes(f"{self.root}/{HEARTBEAT}", _LIMIT))
            return f"pid {told['pid']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def beat(self) -> None:
        """Say that the manager lives, at most every ten seconds."""
        now_s = self.clock.monotonic_s()
        if self._lease is None or now_s - self._beat_s < BEAT_S:
            return
        told = {"pid": os.getpid(), "name": self.name, "at": timestamp(self.clock.now())}
        fs.write_atomic(f"{self.root}/{HEARTBEAT}", json.dumps(told).encode() + b"\n", sync=False)
        self._beat_s = now_s

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat while something runs whose time is bounded, and which the loop has to wait for."""
        over = threading.Event()

        def beats() -> None:
            while not over.wait(BEAT_S / 10):
                with contextlib.suppress(OSError):
                    self.beat()

        thread = threading.Thread(target=beats, name="beats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def drop(self) -> None:
        lease, self._lease = self._lease, None
        self._beat_s = float("-inf")
        if lease is not None:
            lease.drop()


def silent_s(root: str, clock: Clock) -> float | None:
    """How long the manager has been silent; None: there never was one."""
    try:
        beat_s = fs.lstat(f"{root}/{HEARTBEAT}").st_mtime
    except OSError:
        return None
    return max(0.0, clock.now().timestamp() - beat_s)
