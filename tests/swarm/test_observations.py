"""Which reports count: those of a living component, not those of the process before it, or of one that got its port."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from farro.host.clock import ManualClock
from farro.jobs.times import timestamp
from farro.swarm.component.run import HealthServer
from farro.swarm.controller.observed import LATE_S, ComponentObserver
from farro.swarm.lifecycle import Observation
from farro.swarm.wire import messages
from farro.worker.restarts import STEADY_S
from swarm.fake_cluster import FakeControllers, MemoryBus

BORN = datetime(2026, 11, 16, 12, tzinfo=UTC)


def said(after_s: float, **data: object) -> messages.StatusReport:
    return messages.StatusReport(
        kind="status-full",
        message_id=str(uuid.uuid4()),
        timestamp=timestamp(BORN + timedelta(seconds=after_s)),
        role="generator",
        instance="demo-generator",
        swarm_id="demo",
        enabled=True,
        data=dict(data),
    )


def watched() -> ComponentObserver:
    observer = ComponentObserver(FakeControllers(MemoryBus(), ManualClock()))
    observer.put("demo-generator", Observation(launched=True, alive=True, launched_s=0.0, starts=2))
    return observer


@pytest.mark.parametrize(("after_s", "counts"), [(-0.5, False), (-60, False), (0.0, True), (-LATE_S - 1, True)])
def test_the_last_status_of_a_dead_process_does_not_count_for_the_next(after_s: float, counts: bool) -> None:
    """A start must not be confirmed by a report of a dead process. A much older one counts: the clock was set."""
    observer = watched()
    observer.hear(said(-1), 0.0)
    observer.launching("demo-generator", timestamp(BORN))
    observer.put("demo-generator", Observation(launched=True, alive=True, launched_s=0.0, starts=2))
    assert observer.hear(said(after_s), 1.0) is counts
    assert observer.of("demo-generator").enabled is (True if counts else None)
    assert ("demo-generator" in observer.reports) is counts


def test_all_starts_are_counted_though_restart_pauses_begin_anew() -> None:
    """A component that dies every 90 s has died, and the next controller knows that too."""
    controllers = FakeControllers(MemoryBus(), ManualClock())
    observer = ComponentObserver(controllers)
    observer.put("demo-generator", Observation(launched=True, alive=True, launched_s=0.0, starts=4, launches=4))
    observer.hear(said(90), STEADY_S + 1)
    assert (observer.of("demo-generator").starts, observer.of("demo-generator").launches) == (1, 4)
    controllers.alive["demo-generator"] = True
    controllers.launches = 4
    adopting = ComponentObserver(controllers)
    adopting.look(["demo-generator"], 0.0)
    assert (adopting.of("demo-generator").starts, adopting.of("demo-generator").launches) == (1, 4)


@pytest.mark.parametrize(("who", "healthy"), [("demo-generator", True), ("demo-sink", None)])
def test_a_process_that_got_the_port_of_a_dead_component_does_not_answer_for_it(who: str, healthy: bool | None) -> None:
    async def act() -> None:
        server = HealthServer(lambda: (True, {"instance": who, "enabled": True}))
        port = await server.open("127.0.0.1", 0)
        observer = watched()
        observer.hear(said(1, healthUrl=f"http://127.0.0.1:{port}/actuator/health"), 0.0)
        observer.put("demo-generator", Observation(launched=True, alive=True, launched_s=0.0, starts=2))
        await observer.poll("demo-generator", 5.0)
        assert observer.of("demo-generator").healthy is healthy
        await server.close()

    asyncio.run(act())
