"""Who is there to work: every slot of every worker, on whatever machine, and what it announced of itself.

Who is alive is the store's to say; what a worker announces is app's; printing lives in cli.
"""

from __future__ import annotations

from collections.abc import Iterable

from farro.lazy_dataclass import dataclass
from farro.store.port import AgentView

KEEPERS = frozenset({None, "Manager"})  # roles of those who look after jobs, and work none


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """One slot. What it did not announce, or what cannot be read, is None or empty."""

    id: str
    role: str | None  # None: no worker, but a watchdog, a manager or a person's command
    host: str | None
    pid: int | None
    tags: tuple[str, ...]
    tools: tuple[str, ...]
    job: str | None  # the one in its hands
    since: str | None  # when it joined
    alive: bool  # False: dead, and its job waits for a watchdog


def listed(agents: Iterable[AgentView], *, everyone: bool = False) -> list[WorkerLine]:
    """Workers in the order of their roles and names; `everyone`: the keepers of the house too."""
    found = [_line(agent) for agent in agents if everyone or agent.role not in KEEPERS]
    return sorted(found, key=lambda line: (line.role or "", line.id))


def _line(agent: AgentView) -> WorkerLine:
    told = agent.identity
    host, pid, since = told.get("host"), told.get("pid"), told.get("started_at")
    return WorkerLine(
        id=agent.id,
        role=agent.role,
        host=host if isinstance(host, str) else None,
        pid=pid if isinstance(pid, int) else None,
        tags=_texts(told.get("tags")),
        tools=_texts(told.get("tools")),
        job=agent.jobs[0] if agent.jobs else None,
        since=since if isinstance(since, str) else None,
        alive=agent.alive,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()
