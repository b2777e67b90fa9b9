"""List the slots of all workers on all machines, with what each announced about itself."""

from __future__ import annotations

from collections.abc import Iterable

from farro.lazy_dataclass import dataclass
from farro.store.port import AgentView

SUPPORT_ROLES = frozenset({None, "Manager"})  # agents that manage jobs and run none


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """One slot. What it did not announce, or what cannot be read, is None or empty."""

    id: str
    role: str | None  # None: no worker, but a watchdog, a manager or a person's command
    host: str | None
    pid: int | None
    tags: tuple[str, ...]
    tools: tuple[str, ...]
    job: str | None  # the job it holds
    since: str | None  # when it joined
    alive: bool  # False: dead, and its job waits for a watchdog


def listed(agents: Iterable[AgentView], *, everyone: bool = False) -> list[WorkerLine]:
    """Return workers sorted by role and name; `everyone`: also managers, watchdogs and commands."""
    found = [_line(agent) for agent in agents if everyone or agent.role not in SUPPORT_ROLES]
    return sorted(found, key=lambda line: (line.role or "", line.id))


def _line(agent: AgentView) -> WorkerLine:
    identity = agent.identity
    host, pid, since = identity.get("host"), identity.get("pid"), identity.get("started_at")
    return WorkerLine(
        id=agent.id,
        role=agent.role,
        host=host if isinstance(host, str) else None,
        pid=pid if isinstance(pid, int) else None,
        tags=_texts(identity.get("tags")),
        tools=_texts(identity.get("tools")),
        job=agent.jobs[0] if agent.jobs else None,
        since=since if isinstance(since, str) else None,
        alive=agent.alive,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()
