"""Whose word counts: of a component that lives, not of the process before it, nor of who got its port."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from farro.host.clock import ManualClock
from farro.jobs.times import timestamp
from farro.swarm.component.health import HealthServer
from farro.swarm.controller.observed import LATE_S, STEADY_S, Watch
from farro.swarm.status import Seen
from farro.swarm.wire import messages
from swarm.fake_cluster import MemoryBus, Puppets

BORN = datetime(2026, 11, 16, 12, tzinfo=UTC)


def said(after_s: float, **data: object) -> messages.Status:
    return messages.Status(
        kind="status-full",
        message_id=str(uuid.uuid4()),
        timestamp=timestamp(BORN + timedelta(seconds=after_s)),
        role="generator",
        instance="demo-generator",
        swarm_id="demo",
        enabled=True,
        data=dict(data),
    )


def watched() -> Watch:
    watch = Watch(Puppets(MemoryBus(), ManualClock()))
    watch.put("demo-generator", Seen(launched=True, alive=True, launched_s=0.0, starts=2))
    return watch


@pytest.mark.parametrize(("after_s", "counts"), [(-0.5, False), (-60, False), (0.0, True), (-LATE_S - 1, True)])
def test_the_last_words_of_a_dead_process_are_not_those_of_the_next(after_s: float, counts: bool) -> None:
    """A start must not be confirmed by what a dead one said. Much older: somebody set the clock, and it counts."""
    watch = watched()
    watch.hear(said(-1), 0.0)
    watch.launching("demo-generator", timestamp(BORN))
    watch.put("demo-generator", Seen(launched=True, alive=True, launched_s=0.0, starts=2))
    assert watch.hear(said(after_s), 1.0) is counts
    assert watch.of("demo-generator").enabled is (True if counts else None)
    assert ("demo-generator" in watch.said) is counts


def test_starts_are_counted_in_all_though_patience_begins_anew() -> None:
    """One that dies every 90 s is not one that never died. And the next controller knows it, too."""
    puppets = Puppets(MemoryBus(), ManualClock())
    watch = Watch(puppets)
    watch.put("demo-generator", Seen(launched=True, alive=True, launched_s=0.0, starts=4, launches=4))
    watch.hear(said(90), STEADY_S + 1)
    assert (watch.of("demo-generator").starts, watch.of("demo-generator").launches) == (1, 4)
    puppets.alive["demo-generator"] = True
    puppets.launches = 4
    adopting = Watch(puppets)
    adopting.look(["demo-generator"], 0.0)
    assert (adopting.of("demo-generator").starts, adopting.of("demo-generator").launches) == (1, 4)


@pytest.mark.parametrize(("who", "healthy"), [("demo-generator", True), ("demo-sink", None)])
def test_who_got_the_port_of_a_dead_component_does_not_speak_for_it(who: str, healthy: bool | None) -> None:
    async def act() -> None:
        server = HealthServer(lambda: (True, {"instance": who, "enabled": True}))
        port = await server.open("127.0.0.1", 0)
        watch = watched()
        watch.hear(said(1, healthUrl=f"http://127.0.0.1:{port}/actuator/health"), 0.0)
        watch.put("demo-generator", Seen(launched=True, alive=True, launched_s=0.0, starts=2))
        await watch.poll("demo-generator", 5.0)
        assert watch.of("demo-generator").healthy is healthy
        await server.close()

    asyncio.run(act())
