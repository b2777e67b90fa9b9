"""The controller of a swarm: the seed's sequences with real processes, on each bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from typing import Any

from farro.swarm import plan
from farro.swarm.controller.hang_detection import Attention
from farro.swarm.status import Seen
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from swarm.hive import PIPELINE, SWARM, Hive, Play, bee

STATUS = "ev.status-delta.generator.demo-generator"


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


def test_a_component_that_hangs_is_ended_and_started_again(play: Play) -> None:
    """It lives, and neither says anything nor answers. One that shall never be started again is left as it is."""
    bees = [bee("generator", gives="raw"), bee("sink", takes="raw", restart="never")]
    swarm = {"id": SWARM, "bees": bees, "timeouts": {"silent": 5}}

    async def act(hive: Hive) -> None:
        async with hive.controller():
            assert (await hive.ask(Signal.TEMPLATE, swarm))["state"] == "Ready"
            assert (await hive.ask(Signal.START))["state"] == "Running"
            pids = {seen.name: seen.pid or 0 for seen in hive.runtime.list()}
            before = len(hive.heard)
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)

            def started_again(key: str, body: dict[str, Any]) -> bool:
                lines = body.get("data", {}).get("components", []) if key.endswith(".demo-marshal") else []
                return any(one["instance"] == "demo-generator" and one["starts"] == 2 for one in lines)

            told = await hive.until(started_again, after=before)
            (line,) = [one for one in told["data"]["components"] if one["instance"] == "demo-generator"]
            assert line["lastEnd"]["how"].startswith("by force: it said nothing for ")
            assert any(one["reason"].startswith("ended by force: it said") for one in told["data"]["errors"])
            await hive.until(lambda key, body: key == STATUS and body["enabled"], after=before)
            living = {seen.name: seen.pid for seen in hive.runtime.list() if seen.alive}
            assert living["demo-generator"] != pids["demo-generator"]
            assert living["demo-sink"] == pids["demo-sink"]
            trail = [json.loads(one) for one in (hive.folder / "swarm/audit.jsonl").read_text().splitlines()]
            assert [one["instance"] for one in trail if one["what"] == "hung"] == ["demo-generator"]

    play(act)


def test_what_a_controller_slept_through_is_nobody_elses_silence() -> None:
    """A machine that stood still, a controller that was stopped: silence counts from when it is there again."""
    limits, one = plan.Timeouts(silent=60), plan.Bee(role="sink")
    attention = Attention()
    began_s = attention.since_s
    seen = Seen(launched=True, alive=True, launched_s=began_s, word_s=began_s)

    def judged(second: float, what: plan.Bee = one) -> tuple[float, bool]:
        attention.turn(began_s + second, limits)
        return (
            round(seen.silence_s(began_s + second, attention.since_s)),
            attention.hangs(seen, what, limits, began_s + second),
        )

    for second in range(0, 60, 5):
        assert judged(second) == (second, False)
    assert judged(60) == (60, True)
    assert judged(60, plan.Bee(role="sink", restart="never")) == (60, False)
    assert judged(3600) == (0, False)
    assert judged(3601) == (1, False)
