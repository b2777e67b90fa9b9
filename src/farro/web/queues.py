"""Queues as a whole: one is paused, and goes on. What that means is said in ports.queues.

How many jobs each holds is told by `overview`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from farro.documents.constraints import Length
from farro.lazy_dataclass import dataclass
from farro.queue import pause as pausing
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, Nothing, post
from farro.web.errors import Wrong
from farro.web.state import House


@dataclass(frozen=True, kw_only=True)
class PauseWish:
    why: Annotated[str, Length(pausing.LONGEST_WHY)] | None = None


@dataclass(frozen=True, kw_only=True)
class QueueSwitched:
    role: str
    changed: bool  # false: it was so before, and stays as it was
    paused: answers.PausedTold | None


def pause(house: House, asked: Asked) -> Any:
    role = _known(house, asked)
    changed = role not in house.store.paused()
    why = (asked.body.why or "").strip() or None
    told = pausing.pause(house.store, [role], by=house.person, why=why, clock=house.clock).get(role)
    return {"role": role, "changed": changed, "paused": None if told is None else asdict(told)}


def resume(house: House, asked: Asked) -> Any:
    role = _known(house, asked)
    return {"role": role, "changed": bool(pausing.resume(house.store, [role], by=house.person)), "paused": None}


def _known(house: House, asked: Asked) -> str:
    role = asked.path["queue"]
    if role not in house.store.roles():
        raise Wrong(404, "unknown_role", f"no role {role[:60]} here; GET /api/roles lists those that are")
    return role


ENDPOINTS: tuple[Endpoint, ...] = (
    post("/api/queues/{queue}/pause", pause, "Give out no job.", QueueSwitched, body=PauseWish, tag="overview"),
    post("/api/queues/{queue}/resume", resume, "Give out jobs again.", QueueSwitched, body=Nothing, tag="overview"),
)
