"""Who works over this front, and what they hold: workers, jobs in their hands, and the agents that claimed those.

What happens with them lives in workers.
"""

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
    """An agent of the store, and how many jobs are in its hands. It claims again when they are over."""

    agent: Agent
    kind: AgentKind
    held: int = 0
    batch: bool = False  # what it holds was taken in a row
    retired: bool = False  # one of its jobs was lost: it leaves after the others


@dataclass(kw_only=True, eq=False)
class HeldJob:
    """A job in the hands of a worker."""

    claim: Claim
    claimer: ClaimingAgent
    text: bytes  # as it was given out
    worker: RemoteWorker
    since_s: float = 0.0
    recorded: bool = False  # the store shows all that it knows of it, if it did not at once
    stdout: str = ""
    stderr: str = ""
    success: bool | None = None  # what a status words, before or without a result
    timer: asyncio.TimerHandle | None = None
    busy: bool = False  # it is being committed or handed back
    dropped: bool = False  # it is nobody's here any more
    connection: Any = None  # over which its worker was told of it, or last spoke of it; None: that one is gone
    unconfirmed_s: float | None = None  # since when its worker pops on as if it had never heard of it

    @property
    def job_id(self) -> str:
        return self.claim.job_id

    @property
    def role(self) -> str:
        return self.claimer.kind[1]

    def cancel_timer(self) -> None:
        """Nothing happens to it by the clock any more."""
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
    posted: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # job → its result, as far as remembered
    facts: dict[str, str] = field(default_factory=dict)  # what it says of itself: tools, tags, …
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
        """How long it counts as alive."""
        return self.ttl_s if self.connections else max(0.0, self.seen_s + self.ttl_s - now_s)
