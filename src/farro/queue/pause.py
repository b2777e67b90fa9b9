"""Pause queues and resume them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.errors import InputError
from farro.host.clock import Clock
from farro.jobs.times import timestamp
from farro.queue import find_job
from farro.store.port import QueuePause, Store

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
