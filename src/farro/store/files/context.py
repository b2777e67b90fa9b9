"""What every part of the file store stands on: the root's folders, the policy, the clock, randomness, the log.

Nothing here moves a job.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from farro.errors import AgentLost, NotARoot, UnknownRole
from farro.host import fs
from farro.host.clock import Clock
from farro.host.leases import Lease
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, no_audit, tell_all
from farro.log.structured import Log
from farro.store.files.journal import Journal
from farro.store.files.journal_entry import Begun, Entry
from farro.store.files.journal_records import Record
from farro.store.files.own_submissions import Fresh
from farro.store.port import Agent, StorePolicy


def no_log(level: str, message: str, fields: Mapping[str, Any]) -> None:
    """For callers that keep no log."""


@dataclass(kw_only=True, slots=True)
class Held:
    """An agent of this process with its lease and its folder: the only place where it may edit jobs (R1)."""

    agent: Agent
    lease: Lease
    folder: str
    last_beat_s: float = float("-inf")
    claims: dict[str, int] = field(default_factory=dict)  # job id → the attempt that may still be committed
    unwritten: set[str] = field(default_factory=set)  # of these, those whose job.json says what it said in the queue
    # Jobs in `folder` with which a pass of recovery had trouble: job id → (the dead agent, its role). The next pass
    # finishes them; without this they would be stranded for as long as this agent lives.
    leftovers: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def forget(self, job_id: str) -> None:
        """A claim that is over."""
        self.claims.pop(job_id, None)
        self.unwritten.discard(job_id)


@dataclass(kw_only=True)
class Ground:
    """Shared by the store's parts. `reap` ends the processes that a dead agent's attempts left behind."""

    root: str
    policy: StorePolicy
    clock: Clock
    reap: Callable[[list[str], Mapping[str, Any]], None]
    kill_hung: Callable[[Mapping[str, Any]], bool]
    identity: Callable[[], Mapping[str, Any]]
    journal: Journal | None = None  # durability `power`: what stands for the syncs of enqueues and commits
    log: Log = no_log
    audit: Audit = no_audit
    random_bits: Callable[[int], int] = random.SystemRandom().getrandbits
    uniform: Uniform = random.uniform
    held: dict[str, Held] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards mint, held and last_entry_ns
    foreign: set[str] = field(default_factory=set)  # jobs of another schema version that were logged already
    last_entry_ns: int = 0  # the entry time that this process gave last; see draft.keep_order

    def __post_init__(self) -> None:
        self._roles: set[str] = set()  # those that were found
        self.fresh = Fresh(self.clock.monotonic_s)
        self._anchor = (self.clock.now(), self.clock.boottime_s())
        self.mint = IdMint(self.clock.now, self.random_bits)
        self.staging = f"{self.root}/jobs/.staging"
        self.registry = f"{self.root}/jobs/.ids"
        self.holds = f"{self.root}/jobs/.held"

    @cached_property
    def scope(self) -> str:
        """The root itself, by whatever path it is reached."""
        status = os.stat(self.root)
        return f"{status.st_dev:x}.{status.st_ino:x}"

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def incoming(self, role: str) -> str:
        return f"{self.root}/agents/{role}/incoming"

    def in_progress(self, role: str) -> str:
        return f"{self.root}/agents/{role}/in-progress"

    def due_now(self) -> datetime:
        """The time by which delays are judged: the wall clock, but never behind what has passed since we started.

        A clock that is set back by a day would otherwise hold every delayed job for that day (RELIABILITY 18).
        """
        began, boot_s = self._anchor
        return max(self.clock.now(), began + timedelta(seconds=self.clock.boottime_s() - boot_s))

    def roles(self) -> list[str]:
        return sorted(name for name in fs.subdirectories(self.path("agents")) if ids.ROLE.fullmatch(name))

    def check_role(self, role: str) -> str:
        """A role that was there is not looked for again: should its queue vanish, the move into it says so."""
        if role in self._roles:
            return role
        if not fs.exists(self.incoming(ids.check_role(role))):
            raise UnknownRole(
                f"{self.root} has no role {role}; it has {', '.join(self.roles())}. "
                f"Declare it under `roles` in the config and run `farro init` again"
            )
        self._roles.add(role)
        return role

    def sync(self, paths: Iterable[str]) -> None:
        """On the disk before we go on, where the durability is `power`; nothing where it is `process`."""
        if self.policy.durable:
            fs.sync_all(paths)

    @cached_property
    def boot_id(self) -> str:
        return str(self.identity().get("boot_id") or "")

    def journalled(self, records: Sequence[Record]) -> Entry | None:
        """On the disk, as records: what is written after this needs no sync. None: it does."""
        if self.journal is None or not self.policy.durable:
            return None
        return self.journal.write(records)

    def begun(self, make: Callable[[], Sequence[Record]]) -> Begun | None:
        """As `journalled`, while the caller makes the folder. None: not so, but perhaps `journalled` can."""
        if self.journal is None or not self.policy.durable:
            return None
        return self.journal.begin(make)

    def journals(self) -> bool:
        """Whether `journalled` will do it, nearly always; and then a journal of this boot is there already."""
        return self.journal is not None and self.policy.durable and self.journal.ready()

    def tell_foreign(self, job_id: str, why: str) -> None:
        """A job of another schema version: said once, then left alone (DESIGN §3.3)."""
        if job_id not in self.foreign:
            self.foreign.add(job_id)
            self.log("critical", "schema version unknown, job left where it lies", {"job_id": job_id, "why": why})

    def tell(self, lifecycle: Lifecycle) -> None:
        """A transition to the audit log, once it is acknowledged: a kill in between leaves it untold, and hops[] have
        it. [test_every_transition_is_told]"""
        self.tell_all((lifecycle,))

    def tell_all(self, lifecycles: Iterable[Lifecycle]) -> None:
        """As `tell` of each: jobs of a row share a moment."""
        tell_all(self.audit, list(lifecycles))

    def mine(self, agent: Agent) -> Held:
        held = self.held.get(agent.id)
        if held is None:
            raise AgentLost(f"{agent.id} has left; the slot joins again under a new name")
        return held


def check_root(root: str) -> None:
    for name in ("agents", "jobs/.staging", "jobs/.ids", "jobs/.held", "jobs/stale"):
        if not os.path.isdir(f"{root}/{name}"):
            raise NotARoot(f"{root} is not a whole farro root: {name} is missing; `farro init --root {root}` makes it")
