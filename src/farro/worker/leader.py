"""Elect the manager: one lease, so that two managers never act at once, and the heartbeat that others check.

    agents/Manager/.lease       under flock while a manager acts; the kernel drops it at its death
    agents/Manager/.heartbeat   written every ten seconds; its time says how long the manager has been silent

In a store that several machines share, the lease is kept by the server's clock (`FleetLeadership`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

from farro.errors import FarroError
from farro.host import fs, leases, process_identity
from farro.host.clock import Clock
from farro.jobs.explain_rules import MANAGER_AWAY_S
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, field
from farro.store.fleet import Fleet
from farro.store.port import AgentView, Store


class Leadership(Protocol):
    """The port: which process manages. One acts at a time, also across machines."""

    def take(self) -> bool:
        """Return whether this process leads, from now on or still."""

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
        return silent_s(self.root, self.clock.now())

    def drop(self) -> None:
        lease, self._lease = self._lease, None
        self._beat_s = float("-inf")
        if lease is not None:
            lease.drop()


@dataclass(kw_only=True)
class FleetLeadership:
    """Leadership across all machines that share a store.

    Its lease is longer than an agent's: a manager that slept through it has lost its agents, too, so nothing that it
    was about to do is accepted. Invariant: `_until_s` counts from before the request that granted it, so it ends here
    before it ends on the server.
    """

    fleet: Fleet
    clock: Clock
    me: str  # host, pid and random digits: unique
    lease_s: float = AWAY_S
    name: str = NAME
    _until_s: float = field(default=float("-inf"))
    _beat_s: float = field(default=float("-inf"))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self._lock:
            now_s = self.clock.boottime_s()
            if now_s - self._beat_s < BEAT_S and now_s < self._until_s:
                return True
            has = self.fleet.take_leadership(self.name, self.me, lease_s=self.lease_s)
            self._until_s = now_s + self.lease_s if has else float("-inf")
            self._beat_s = now_s if has else float("-inf")
            return has

    def stands(self) -> bool:
        return self.clock.boottime_s() < self._until_s

    def holder(self) -> str:
        told = self.fleet.leader_status(self.name)
        return "another process" if told is None else told.holder

    def beat(self) -> None:
        if self.stands():
            self.take()

    def silent_s(self) -> float | None:
        told = self.fleet.leader_status(self.name)
        return None if told is None else told.silent_s

    def drop(self) -> None:
        had, self._until_s, self._beat_s = self.stands(), float("-inf"), float("-inf")
        if had:
            with contextlib.suppress(FarroError):  # the server is away: the lease runs out by itself
                self.fleet.release_leadership(self.name, self.me)


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


def elected(store: Store, clock: Clock, *, lease_s: float) -> Leadership:
    """Make the election of the manager: among the processes of this root, or of all machines that share its store.
    `lease_s`: of the agents of a shared store."""
    if not isinstance(store, Fleet):
        return FileLeadership(root=store.root, clock=clock)
    here = process_identity.identity()
    me = f"pid {here['pid']} on {here['host']} ({random.SystemRandom().getrandbits(32):08x})"
    # Longer than an agent's lease: a machine that slept through this one has no agent left to act with.
    return FleetLeadership(fleet=store, clock=clock, me=me, lease_s=max(AWAY_S, lease_s))


def silent_s(root: str, now: datetime) -> float | None:
    """Return how long this root's manager has been silent; None: there never was one."""
    try:
        beat_s = fs.lstat(f"{root}/{HEARTBEAT}").st_mtime
    except OSError:
        return None
    return max(0.0, now.timestamp() - beat_s)


def manager_silent_s(store: Store, *, now: datetime, agents: Sequence[AgentView] | None = None) -> float | None:
    """Return how long ago a manager last gave a sign of life, or None if there is none.

    The age of its heartbeat; where none is written, whether an agent of it is alive.
    """
    if isinstance(store, Fleet):
        status = store.leader_status(NAME)
        silent = None if status is None else status.silent_s
    else:
        silent = silent_s(store.root, now)
    if silent is not None:
        return silent
    known = store.agents() if agents is None else agents
    named = (agent for agent in known if agent.role is None and agent.id.split(".", 1)[0] == NAME)
    return 0.0 if any(agent.alive for agent in named) else None
