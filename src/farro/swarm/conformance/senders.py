"""Rules of who may speak for whom, and of what a status must say.

Signals and confirmations live in commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from farro.swarm.conformance.messages import Heard, Item, Violation, moment_s
from farro.swarm.conformance.trace import Known, told
from farro.swarm.status import TTL_S
from farro.swarm.wire import names
from farro.swarm.wire.messages import Status


def namespaces(
    heard: Sequence[Heard], items: Sequence[Item], known: Known, swarms: set[str] | None
) -> Iterator[Violation]:
    homes: dict[str, str] = {}  # instance → its swarm
    queues: dict[str, set[str]] = defaultdict(set)
    for swarm, plans in known.plans.items():
        for _, one in plans:
            homes |= {member.instance: swarm for member in one.members()}
            queues[swarm] |= {name for bee in one.bees for name in (*bee.work.inputs, *bee.work.outputs)}
    for said in heard:
        if swarms is not None and said.swarm is not None and said.swarm not in swarms:
            yield told("namespace", said, f"is of {said.swarm}, and there is no such swarm")
            continue
        body = said.body
        if isinstance(body, Status):
            if body.swarm_id is None:
                continue  # told by the rule of status
            if body.role == names.CONTROLLER:
                homes.setdefault(body.instance, body.swarm_id)
            if body.instance not in homes and body.swarm_id in known.plans:
                yield told("namespace", said, f"no plan of {body.swarm_id} has a {body.instance}")
        instance = said.key.scope.instance
        if instance in homes and said.swarm not in (None, homes[instance]):
            yield told("namespace", said, f"{instance} is of {homes[instance]}, and this says {said.swarm}")
    for item in items:
        if item.queue not in queues[item.swarm] and (item.swarm in known.plans or swarms is not None):
            key = f"{names.work_exchange(item.swarm)}/{item.queue}"
            yield Violation(rule="namespace", key=key, why="no plan of that swarm has such a queue")


# --- status ---


_FIELDS = ("swarm_id", "state", "watermark", "max_staleness_sec", "totals", "queues")


def statuses(heard: Sequence[Heard]) -> Iterator[Violation]:
    for one in heard:
        body = one.body
        if not isinstance(body, Status) or one.key.kind != "status":
            continue
        healthy = body.data.get("health") in ("Healthy", "UP")
        silent = not healthy or (body.totals is not None and body.totals.desired == 0)
        may_lack = ("watermark", "max_staleness_sec") if silent else ()  # somebody of the swarm never said anything
        lacks = [name for name in _FIELDS if getattr(body, name) is None and name not in may_lack]
        if lacks or not body.data:
            yield told("status", one, f"lacks {', '.join(lacks) or 'data'}")
        yield from _watermark(one, body, healthy)


def _watermark(one: Heard, body: Status, healthy: bool) -> Iterator[Violation]:
    if (body.watermark is None) != (body.max_staleness_sec is None):
        yield told("watermark", one, "has one of watermark and maxStalenessSec only")
    if body.watermark is not None and body.max_staleness_sec is not None:
        age_s = moment_s(body.timestamp) - moment_s(body.watermark)
        if abs(age_s - body.max_staleness_sec) > 0.1:
            yield told("watermark", one, f"is {age_s:g} s old by its watermark, and says {body.max_staleness_sec:g}")
        if healthy and body.max_staleness_sec > TTL_S:
            yield told("watermark", one, f"is Healthy by words that are {body.max_staleness_sec:g} s old")
    if body.role == names.CONTROLLER and not healthy and not body.data.get("reason"):
        yield told("watermark", one, "is not Healthy and says no reason")
    totals = body.totals
    if totals is not None and not totals.running <= min(totals.healthy, totals.enabled) <= totals.desired:
        yield told("watermark", one, "has totals that cannot be")
