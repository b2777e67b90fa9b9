"""What every part of the Redis store stands on: the server and its scripts, the policy, the clock, randomness, the log.

Nothing here moves a job.
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
from farro.host.clock_port import Clock
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, no_audit, tell_all
from farro.log.structured import Log
from farro.store.port import Agent, StorePolicy
from farro.store.redis import scripts
from farro.store.redis.keys import Keys
from farro.store.redis.records import Seen, line, milliseconds, moment
from farro.store.redis.server import Address, Arg, Server
from farro.store.workspace import Workspace

CHUNK = 500  # jobs that one call looks at: a script keeps everybody else waiting


def no_log(level: str, message: str, fields: Mapping[str, Any]) -> None:
    """For callers that keep no log."""


@dataclass(kw_only=True)
class Ground:
    """Shared by the store's parts."""

    root: str
    name: str  # of this store's keys in the server
    address: Address
    roles: Collection[str]
    policy: StorePolicy
    clock: Clock
    workspace: Workspace
    lease_s: float = 30.0
    beat_s: float | None = None  # how often a heartbeat asks the server; None: as seldom as it may
    keep_changes: int = 65536
    keep_audit: int = 1_000_000
    own_time: bool = False  # the clock above stands for the server's: for tests
    identity: Callable[[], Mapping[str, Any]] = dict
    # Ends the processes that a dead agent's attempts left behind on this machine.
    reap: Callable[[list[str], Mapping[str, Any]], None] = lambda markers, identity: None
    actor: str = "submitter"  # who enqueues, for the common audit log
    log: Log = no_log
    audit: Audit = no_audit
    random_bits: Callable[[int], int] = random.SystemRandom().getrandbits
    uniform: Uniform = random.uniform
    beats: dict[str, float] = field(default_factory=dict)  # agent → when the server last heard of it

    # agent → the correlation ids of its claims that are under way, or not yet committed. Whatever else the server says
    # that it holds, it knows nothing of.
    claims: dict[str, set[str]] = field(default_factory=dict)

    # agent → of its last claim, when it found nothing: the last entry into its queue, and when the next falls due (ms)
    idle: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)

    # agent → jobs that were taken from it, and whose folders it still has
    lost: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles = tuple(sorted(map(ids.check_role, self.roles)))
        self._known = frozenset(self.roles)
        self.keys = Keys(self.name)
        self.server = Server(self.address, self.keys.prefix, self.clock)
        self.scripts = scripts.load(
            lease_ms=int(self.lease_s * 1000), keep_changes=self.keep_changes, keep_audit=self.keep_audit
        )
        self._mint = IdMint(self.clock.now, self.random_bits)
        self._lock = threading.Lock()
        self.foreign: set[str] = set()  # jobs of another schema version that were logged already
        self.ahead = timedelta(0)  # of the server's clock before this machine's
        self.scope = hashlib.sha256(f"{self.address.url} {self.name}".encode()).hexdigest()[:12]

    # --- time: the server's, because machines differ ---

    def time(self) -> str:
        """The first argument of every script."""
        if not self.own_time:
            return ""
        return f"{milliseconds(self.clock.now())}:{int(self.clock.monotonic_s() * 1000)}"

    def now(self) -> datetime:
        """The server's clock, as far as this process has heard of it."""
        return self.clock.now() + self.ahead

    def heard(self, at_ms: int) -> None:
        if not self.own_time:
            self.ahead = moment(at_ms) - self.clock.now()

    # --- names ---

    def check_role(self, role: str) -> str:
        if role not in self._known:
            ids.check_role(role)
            raise UnknownRole(f"no role {role}; there is {', '.join(self.roles)}")
        return role

    def mint(self) -> str:
        with self._lock:
            return self._mint.mint()

    def token(self) -> str:
        """Tells one call from every other, so that a repeated one is known."""
        return f"{self.random_bits(64):016x}"

    # --- asking ---

    def look(self, job_ids: Sequence[str], *, prompts: bool = False, agent: Agent | None = None) -> list[Seen | None]:
        """`agent`: who asks; a dead one is told so, whatever it asks for."""
        found: list[Seen | None] = []
        for start in range(0, len(job_ids), CHUNK):
            some = job_ids[start : start + CHUNK]
            args: list[Arg] = [self.time(), "" if agent is None else agent.id, int(prompts), *some]
            rows = self.server.run(self.scripts.look, *args)
            if rows == b"lost":
                assert agent is not None
                raise agent_lost(agent)
            found += [Seen.of(job_id, row) for job_id, row in zip(some, rows, strict=True)]
        return found

    # --- telling ---

    def tell(self, lifecycle: Lifecycle) -> None:
        """A transition to this process's audit log; the common one has it already, by the same script."""
        tell_all(self.audit, [lifecycle])

    def write(self, event: str, codes: Mapping[str, Any]) -> None:
        """A line of the common audit log that is no transition. A server that is away keeps nobody from his work."""
        with contextlib.suppress(TryAgain):
            told = {"event": event, **codes, "actor": codes.get("actor") or self.actor}
            self.server.run(self.scripts.note, self.time(), line(told), self.token())

    def tell_foreign(self, job_id: str) -> None:
        if job_id not in self.foreign:
            self.foreign.add(job_id)
            self.log("critical", "schema version unknown, job left where it lies", {"job_id": job_id})


def agent_lost(agent: Agent) -> AgentLost:
    return AgentLost(f"{agent.id} left or was declared dead; the slot joins again under a new name")


def claim_lost(job_id: str, agent: Agent) -> ClaimLost:
    return ClaimLost(f"{job_id}: taken from {agent.id} (recovered or killed)")
