"""Elect the manager: one lease, so that two managers never act at once, and the heartbeat that others check.

    agents/Manager/.lease       under flock while a manager acts; the kernel drops it at its death
    agents/Manager/.heartbeat   written every ten seconds; its time says how long the manager has been silent

In the Redis store, which several machines share, the lease is kept by the server's clock (redis/leadership.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from farro.errors import FarroError
from farro.host import fs, leases
from farro.host.clock import Clock
from farro.jobs.explain_rules import MANAGER_AWAY_S
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, field

if TYPE_CHECKING:
    from farro.store.port import AgentView, Store


class Leadership(Protocol):
    """The port: which process manages. One acts at a time, also across machines."""

    def take(self) -> bool:
        """Become the leader if no process leads, or stay it. Return whether this process leads now."""

    def stands(self) -> bool:
        """Return whether it leads at this moment, without asking: checked before every action. A process that slept
        too long does not lead any more."""

    def holder(self) -> str:
        """Return the holder, for people."""

    def beat(self) -> None:
        """Write the manager's heartbeat, at most every ten seconds."""

    def silent_s(self) -> float | None:
        """Return how long the manager has been silent; None: there never was one."""

    def drop(self) -> None: ...


class NoRivals:
    """Leadership of a process that acts without an election."""

    def take(self) -> bool:
        return True

    def stands(self) -> bool:
        return True

    def holder(self) -> str:
        return "this process"

    def beat(self) -> None: ...

    def silent_s(self) -> float | None:
        return 0.0

    def drop(self) -> None: ...


LEASE = "agents/Manager/.lease"
HEARTBEAT = "agents/Manager/.heartbeat"
NAME = "manager"  # of a manager's agents and of its leadership
BEAT_S = 10.0
AWAY_S = MANAGER_AWAY_S
_LIMIT = 4096


@dataclass(kw_only=True)
class FileLeadership:
    """Leadership of one root on one machine."""

    root: str
    clock: Clock
    name: str = NAME
    _lease: leases.Lease | None = None
    _beat_s: float = field(default=float("-inf"))

    def take(self) -> bool:
        if self._lease is not None:
            return True
        path = f"{self.root}/{LEASE}"
        if not fs.exists(path):
            os.close(fs.open_append(path))
        try:
            self._lease = leases.take(path)
        except FileNotFoundError:  # removed between the two calls: the next turn creates it again
            return False
        return self._lease is not None

    def stands(self) -> bool:
        return self._lease is not None

    def holder(self) -> str:
        try:
            told = json.loads(fs.read_bytes(f"{self.root}/{HEARTBEAT}", _LIMIT))
            return f"pid {told['pid']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def beat(self) -> None:
        now_s = self.clock.monotonic_s()
        if self._lease is None or now_s - self._beat_s < BEAT_S:
            return
        told = {"pid": os.getpid(), "name": self.name, "at": timestamp(self.clock.now())}
        fs.write_atomic(f"{self.root}/{HEARTBEAT}", json.dumps(told).encode() + b"\n", sync=False)
        self._beat_s = now_s

    def silent_s(self) -> float | None:
        try:
            beat_s = fs.lstat(f"{self.root}/{HEARTBEAT}").st_mtime
        except OSError:
            return None
        return max(0.0, self.clock.now().timestamp() - beat_s)

    def drop(self) -> None:
        lease, self._lease = self._lease, None
        self._beat_s = float("-inf")
        if lease is not None:
            lease.drop()


@contextlib.contextmanager
def beating(leadership: Leadership) -> Iterator[None]:
    """Keep the heartbeat going while the loop waits for something of bounded time."""
    over = threading.Event()

    def beats() -> None:
        while not over.wait(BEAT_S / 10):
            with contextlib.suppress(OSError, FarroError):
                leadership.beat()

    thread = threading.Thread(target=beats, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def manager_silent_s(store: Store, *, agents: Sequence[AgentView] | None = None) -> float | None:
    """Return how long ago a manager last gave a sign of life, or None if there is none.

    The age of its heartbeat; where none is written, whether an agent of it is alive.
    """
    silent = store.leadership().silent_s()
    if silent is not None:
        return silent
    known = store.agents() if agents is None else agents
    named = (agent for agent in known if agent.role is None and agent.id.split(".", 1)[0] == NAME)
    return 0.0 if any(agent.alive for agent in named) else None
