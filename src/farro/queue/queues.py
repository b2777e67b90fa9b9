"""Pause queues and resume them, and list the workers of all machines with what each announced about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farro.errors import InputError
from farro.host.clock import Clock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.store.port import AgentView, QueuePause, Store

LONGEST_WHY = 500


def pause(store: Store, roles: Sequence[str], *, by: str, why: str | None, clock: Clock) -> Mapping[str, QueuePause]:
    """Pause the queues and return the paused ones of these. A queue that was paused before keeps its record."""
    if why is not None and len(why) > LONGEST_WHY:
        raise InputError(f"the reason has {len(why)} characters; at most {LONGEST_WHY} are allowed")
    find_job.roles(store, roles)  # check all before changing one
    for role in roles:
        if store.pause(role, QueuePause(by=by, at=timestamp(clock.now()), why=why)):
            store.note("queue_paused", actor=by, role=role)
    found = store.paused()
    return {role: found[role] for role in roles if role in found}


def resume(store: Store, roles: Sequence[str], *, by: str) -> list[str]:
    """Resume the queues and return those that were paused."""
    find_job.roles(store, roles)  # check all before changing one
    done = []
    for role in roles:
        if store.resume(role):
            store.note("queue_resumed", actor=by, role=role)
            done.append(role)
    return done


def words(role: str, paused: QueuePause) -> str:
    """Describe a paused queue."""
    since = f" since {paused.at}" if paused.at else ""
    return f"the queue of {role} is paused by {paused.by}{since}" + (f": {paused.why}" if paused.why else "")


def lines(paused: Mapping[str, QueuePause]) -> list[str]:
    """Describe each paused queue, with the command that resumes it."""
    return [f"{words(role, paused[role])} (`farro resume {role}`)" for role in sorted(paused)]


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
