"""Record the workers that use this server, the jobs that they hold, and the agents that claimed those."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Any

from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field
from farro.store.port import Agent, Claim

ANONYMOUS = "agq"
WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")

AgentKind = tuple[str, str, frozenset[str]]  # name, role, tags


@dataclass(kw_only=True, eq=False)
class ClaimingAgent:
    """An agent of the store, and how many jobs it holds for clients. It claims again when they have ended."""

    agent: Agent
    kind: AgentKind
    held: int = 0
    batch: bool = False  # its jobs were claimed as a batch
    retired: bool = False  # it lost a job, and leaves when the others have ended


@dataclass(kw_only=True, eq=False)
class HeldJob:
    """A job that a worker holds."""

    claim: Claim
    claimer: ClaimingAgent
    text: bytes  # as the worker got it
    worker: RemoteWorker
    since_s: float = 0.0
    recorded: bool = False  # the store shows its whole claim, if it did not at once
    stdout: str = ""
    stderr: str = ""
    success: bool | None = None  # what a status said before, or instead of, a result
    timer: asyncio.TimerHandle | None = None
    busy: bool = False  # it is being committed or handed back
    dropped: bool = False  # it is no longer held here
    connection: Any = None  # the one that delivered it, or last named it; None: that connection is gone
    unconfirmed_s: float | None = None  # since when its worker claims on without having named it

    @property
    def job_id(self) -> str:
        return self.claim.job_id

    @property
    def role(self) -> str:
        return self.claimer.kind[1]

    def cancel_timer(self) -> None:
        """Cancel what would happen to the job after a time."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(kw_only=True, eq=False)
class RemoteWorker:
    id: str | None
    seen_s: float
    ttl_s: float
    connections: set[Any] = field(default_factory=set)
    held: dict[str, HeldJob] = field(default_factory=dict)
    # job → digest of its result, for the latest ones
    posted: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    facts: dict[str, str] = field(default_factory=dict)  # what it announced: tools, tags, …
    gone: bool = False

    @property
    def tags(self) -> frozenset[str]:
        text = self.facts.get("tags", "")
        if not text:
            return frozenset()
        words = re.split(r"[\s,\[\]\"']+", text)
        return frozenset(tag for tag in words if ids.TAG.fullmatch(tag))

    @property
    def agent_name(self) -> str:
        if self.id is None:
            return ANONYMOUS
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.id)[:32]

    def remaining_s(self, now_s: float) -> float:
        """Return how long the worker still counts as alive."""
        return self.ttl_s if self.connections else max(0.0, self.seen_s + self.ttl_s - now_s)
