"""The controller of a swarm: the seed's sequences with real processes, on each bus."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid

from farro.swarm import names
from farro.swarm.names import Signal
from swarms.hive import PIPELINE, SWARM, Hive, Play, bee


def test_the_sequences_of_the_seed(play: Play) -> None:
    """7.1 to 7.5: template, start, a single component, stop, remove, in the order of the queues."""

    async def act(hive: Hive) -> None:
        async with hive.controller() as controller:
            ready = await hive.ask(Signal.TEMPLATE, PIPELINE)
            assert (ready["result"], ready["state"], ready["scope"]) == ("success", "Ready", {"swarmId": SWARM})
            assert len(hive.runtime.list()) == 4
            assert hive.sink.read_text() == ""  # nothing works before it is started
            before = len(hive.heard)
            started = await hive.ask(Signal.START)
            assert (started["result"], started["state"]) == ("success", "Running")
            on: list[str] = []
            # By when they were said: what two senders say may reach two listeners in different orders.
            told = [body for _, body, _ in hive.heard[before:] if body.get("event") == "status" and body["enabled"]]
            for body in sorted(told, key=lambda body: str(body["timestamp"])):
                if body["role"] not in (names.CONTROLLER, *on):
                    on.append(body["role"])
            assert on == ["generator", "processor", "sink"]
            while len(hive.sink.read_text().splitlines()) < 5:
                await asyncio.sleep(0.05)
            off = await hive.ask(Signal.CONFIG, {"enabled": False}, role="generator", instance="demo-generator")
            assert (off["result"], off["scope"]["instance"]) == ("success", "demo-generator")
            off = await hive.ask(Signal.STOP)
            assert (off["result"], off["state"]) == ("success", "Stopped")
            assert len([seen for seen in hive.runtime.list() if seen.alive]) == 4  # stop is not remove
            gone = await hive.ask(Signal.REMOVE)
            assert (gone["result"], gone["state"]) == ("success", "Removed")
            assert hive.runtime.list() == []
            while not controller.removed:
                await asyncio.sleep(0.01)

    play(act)


def test_a_failure_is_told_once_and_deletes_nothing(play: Play) -> None:
    """7.6: a component that never comes up."""
    swarm = {
        "id": SWARM,
        "bees": [bee("generator", gives="raw"), {**bee("dies"), "restart": "never"}],
    }

    async def act(hive: Hive) -> None:
        async with hive.controller():
            error = await hive.ask(Signal.TEMPLATE, swarm)
            assert (error["result"], error["code"], error["phase"]) == ("error", "COMPONENT_FAILED", "template")
            assert error["message"].startswith("demo-dies ended")
            assert [seen.name for seen in hive.runtime.list() if seen.alive] == ["demo-generator"]
            refused = await hive.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [{"role": "a.b"}]})
            assert refused["code"] == "BAD_PLAN"
            assert "bees[0].role" in refused["message"]
            again = await hive.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [bee("generator", gives="raw")]})
            assert again["state"] == "Ready"

    play(act)


def test_a_controller_that_dies_is_followed_by_one_that_adopts(play: Play) -> None:
    async def act(hive: Hive) -> None:
        async with hive.controller():
            assert (await hive.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
        pids = {seen.name: seen.pid for seen in hive.runtime.list()}
        start = await hive.send(Signal.START, key=(key := str(uuid.uuid4())))  # while nobody listens
        async with hive.controller():
            assert (await hive.confirmed(start))["state"] == "Running"
            assert {seen.name: seen.pid for seen in hive.runtime.list()} == pids  # adopted, not started again
            again = await hive.send(Signal.START, key=key)  # a retry of the same command
            assert (await hive.confirmed(again))["state"] == "Running"
            await hive.until(lambda name, body: name == f"ev.duplicate.swarm-start.{SWARM}")
            victim = pids["demo-processor-1"]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await hive.until(
                lambda name, body: name == "ev.status-delta.processor.demo-processor-1" and body["enabled"],
                after=len(hive.heard),
            )
            assert {seen.pid for seen in hive.runtime.list() if seen.name == "demo-processor-1"} != {victim}
            assert [len(hive.confirmations(one)) for one in (start, again)] == [1, 1]

    play(act)
