"""Hold what all parts of the Redis store share: the client and the scripts, policy, clock, randomness, log.

Nothing here changes a job.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from farro.errors import AgentLost, ClaimLost, TryAgain, UnknownRole
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, no_audit, tell_all
from farro.log.structured import Log
from farro.store.port import Agent, StorePolicy
from farro.store.redis import scripts
from farro.store.redis.client import Arg, RedisAddress, RedisClient
from farro.store.redis.records import JobRecord, audit_line, from_ms, to_ms
from farro.store.redis.scripts import RedisKeys
from farro.store.workspace import Workspace

CHUNK = 500  # jobs read by one call: the server runs nothing else during a script


def no_log(level: str, message: str, fields: Mapping[str, Any]) -> None:
    """Discard log events, for callers that keep no log."""


@dataclass(kw_only=True)
class RedisContext:
    """Shared by the parts of one store."""

    root: str
    name: str  # of this store's keys in the server
    address: RedisAddress
    roles: Collection[str]
    policy: StorePolicy
    clock: Clock
    workspace: Workspace
    lease_s: float = 30.0
    beat_s: float | None = None  # how often a heartbeat asks the server; None: as rarely as the lease allows
    keep_changes: int = 65536
    keep_audit: int = 1_000_000
    own_time: bool = False  # for tests: use `clock` instead of the server's clock
    identity: Callable[[], Mapping[str, Any]] = dict
    # Ends the processes that a dead agent's attempts left on this machine.
    reap: Callable[[list[str], Mapping[str, Any]], None] = lambda markers, identity: None
    actor: str = "submitter"  # names the submitter in the common audit log
    log: Log = no_log
    audit: Audit = no_audit
    random_bits: Callable[[int], int] = random.SystemRandom().getrandbits
    uniform: Uniform = random.uniform
    last_heard_s: dict[str, float] = field(default_factory=dict)  # agent → when the server last answered it

    # agent → the correlation ids of its claims that are open or being made. The agent knows of no other job that the
    # server counts as its own.
    open_claims: dict[str, set[str]] = field(default_factory=dict)

    # agent → for its last claim, if that found nothing: the last entry into its queue, and when the next job is due
    # (ms)
    empty_claims: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)

    # agent → jobs that it lost, and whose folders it still has
    lost_jobs: dict[str, list[str]] = field(default_factory=dict)

    # agent that death_watch found dead → until when its lease is, as the server wrote it
    early_dead: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles = tuple(sorted(map(ids.check_role, self.roles)))
        self._known = frozenset(self.roles)
        self.keys = RedisKeys(self.name)
        self.client = RedisClient(self.address, self.keys.prefix, self.clock)
        self.scripts = scripts.load(
            lease_ms=int(self.lease_s * 1000), keep_changes=self.keep_changes, keep_audit=self.keep_audit
        )
        self._mint = IdMint(self.clock.now, self.random_bits)
        self._lock = threading.Lock()
        self.foreign: set[str] = set()  # jobs of another schema version that were logged already
        self.clock_offset = timedelta(0)  # how far the server's clock is ahead of this machine's
        self.scope = hashlib.sha256(f"{self.address.url} {self.name}".encode()).hexdigest()[:12]

    # --- time: the server's, because the clocks of machines differ ---

    def script_time(self) -> str:
        """Return the first argument of every script."""
        if not self.own_time:
            return ""
        return f"{to_ms(self.clock.now())}:{int(self.clock.monotonic_s() * 1000)}"

    def now(self) -> datetime:
        """Return the server's time, estimated by its last answer."""
        return self.clock.now() + self.clock_offset

    def note_server_time(self, at_ms: int) -> None:
        if not self.own_time:
            self.clock_offset = from_ms(at_ms) - self.clock.now()

    # --- names ---

    def check_role(self, role: str) -> str:
        if role not in self._known:
            ids.check_role(role)
            raise UnknownRole(f"no role {role}; known: {', '.join(self.roles)}")
        return role

    def mint(self) -> str:
        with self._lock:
            return self._mint.mint()

    def token(self) -> str:
        """Return a random token, by which a repeated call is recognised."""
        return f"{self.random_bits(64):016x}"

    # --- reading ---

    def read_jobs(
        self, job_ids: Sequence[str], *, prompts: bool = False, agent: Agent | None = None
    ) -> list[JobRecord | None]:
        """Read jobs. With `agent`, raise AgentLost if that agent is dead."""
        found: list[JobRecord | None] = []
        for start in range(0, len(job_ids), CHUNK):
            some = job_ids[start : start + CHUNK]
            args: list[Arg] = [self.script_time(), "" if agent is None else agent.id, int(prompts), *some]
            rows = self.client.run(self.scripts.look, *args)
            if rows == b"lost":
                assert agent is not None
                raise agent_lost(agent)
            found += [JobRecord.of(job_id, row) for job_id, row in zip(some, rows, strict=True)]
        return found

    # --- logging ---

    def audit_transition(self, lifecycle: Lifecycle) -> None:
        """Write a transition to this process's audit log. The script already wrote it to the common one."""
        tell_all(self.audit, [lifecycle])

    def write_audit(self, event: str, codes: Mapping[str, Any]) -> None:
        """Write a line that is not a transition to the common audit log. If the server is away, drop the line:
        work goes on."""
        with contextlib.suppress(TryAgain):
            fields = {"event": event, **codes, "actor": codes.get("actor") or self.actor}
            self.client.run(self.scripts.note, self.script_time(), audit_line(fields), self.token())

    def log_foreign(self, job_id: str) -> None:
        if job_id not in self.foreign:
            self.foreign.add(job_id)
            self.log("critical", "schema version unknown, job left where it lies", {"job_id": job_id})


def agent_lost(agent: Agent) -> AgentLost:
    return AgentLost(f"{agent.id} left or was declared dead; the slot joins again under a new name")


def claim_lost(job_id: str, agent: Agent) -> ClaimLost:
    return ClaimLost(f"{job_id} no longer belongs to {agent.id}: it was recovered or killed")
