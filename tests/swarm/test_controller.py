"""The controller of a swarm: the seed's sequences with real processes, on each bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from typing import Any

from farro.swarm import plan
from farro.swarm.controller.observed import HangDetector
from farro.swarm.lifecycle import Observation
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from swarm.swarm_under_test import PIPELINE, SWARM, Play, SwarmUnderTest, bee

STATUS = "ev.status-delta.generator.demo-generator"


def test_the_sequences_of_the_seed(play: Play) -> None:
    """7.1 to 7.5: template, start, a single component, stop, remove, in the order of the queues."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller() as controller:
            ready = await demo.ask(Signal.TEMPLATE, PIPELINE)
            assert (ready["result"], ready["state"], ready["scope"]) == ("success", "Ready", {"swarmId": SWARM})
            assert len(demo.runtime.list()) == 4
            assert demo.sink.read_text() == ""  # nothing works before the start
            before = len(demo.heard)
            started = await demo.ask(Signal.START)
            assert (started["result"], started["state"]) == ("success", "Running")
            on: list[str] = []
            # By the times they state: messages of two senders may reach two listeners in different orders.
            report = [body for _, body, _ in demo.heard[before:] if body.get("event") == "status" and body["enabled"]]
            for body in sorted(report, key=lambda body: str(body["timestamp"])):
                if body["role"] not in (names.CONTROLLER, names.ORCHESTRATOR, *on):
                    on.append(body["role"])
            assert on == ["generator", "processor", "sink"]
            while len(demo.sink.read_text().splitlines()) < 5:
                await asyncio.sleep(0.05)
            off = await demo.ask(Signal.CONFIG, {"enabled": False}, role="generator", instance="demo-generator")
            assert (off["result"], off["scope"]["instance"]) == ("success", "demo-generator")
            off = await demo.ask(Signal.STOP)
            assert (off["result"], off["state"]) == ("success", "Stopped")
            assert len([seen for seen in demo.runtime.list() if seen.alive]) == 4  # stop is not remove
            gone = await demo.ask(Signal.REMOVE)
            assert (gone["result"], gone["state"]) == ("success", "Removed")
            assert demo.runtime.list() == []
            while not controller.removed:
                await asyncio.sleep(0.01)

    play(act)


def test_a_failure_is_confirmed_once_and_deletes_nothing(play: Play) -> None:
    """7.6: a component that never comes up."""
    swarm = {
        "id": SWARM,
        "bees": [bee("generator", gives="raw"), {**bee("dies"), "restart": "never"}],
    }

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            error = await demo.ask(Signal.TEMPLATE, swarm)
            assert (error["result"], error["code"], error["phase"]) == ("error", "COMPONENT_FAILED", "template")
            assert error["message"].startswith("demo-dies ended")
            assert [seen.name for seen in demo.runtime.list() if seen.alive] == ["demo-generator"]
            refused = await demo.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [{"role": "a.b"}]})
            assert refused["code"] == "BAD_PLAN"
            assert "bees[0].role" in refused["message"]
            again = await demo.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [bee("generator", gives="raw")]})
            assert again["state"] == "Ready"

    play(act)


def test_a_swarm_that_is_not_ready_in_its_time_is_reported_and_kept(play: Play) -> None:
    """§8: the limit of the swarm ends before that of the component, which says nothing."""
    swarm = {"id": SWARM, "bees": [bee("late")], "timeouts": {"ready": 0.2, "provision": 5}}

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            error = await demo.ask(Signal.TEMPLATE, swarm)
            assert (error["result"], error["code"], error["phase"]) == ("error", "READY_TIMEOUT", "template")
            assert error["message"] == "demo-late was not healthy when the swarm's 0.2 s were over"
            assert [seen.name for seen in demo.runtime.list() if seen.alive] == ["demo-late"]

    play(act)


def test_a_cycle_of_queues_is_warned_of_by_an_event(play: Play) -> None:
    bees = [bee("processor", takes="raw", gives="raw"), bee("sink", takes="raw")]

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            ready = await demo.ask(Signal.TEMPLATE, {"id": SWARM, "bees": bees})
            assert ready["state"] == "Ready"
            (warning,) = [body for key, body, _ in demo.heard if key == "ev.warning.swarm-template.demo"]
            assert (warning["correlationId"], warning["signal"]) == (ready["correlationId"], "swarm-template")
            assert warning["message"].startswith("work flows in a circle (processor → processor); they are started in")

    play(act)


def test_a_swarm_goes_through_every_state_from_creating_to_removed(play: Play) -> None:
    """§5.1, as its controller reports them."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [bee("generator", gives="raw")]})
            for sig in (Signal.START, Signal.STOP, Signal.REMOVE):
                await demo.ask(sig)
        told = [body["state"] for _, body, _ in demo.heard if body.get("role") == names.CONTROLLER and "state" in body]
        states = [state for state, before in zip(told, [None, *told], strict=False) if state != before]
        assert states == [
            "Creating",
            "Ready",
            "Starting",
            "Running",
            "Stopping",
            "Stopped",
            "Removing",
            "Removed",
        ]

    play(act)


def test_a_new_controller_adopts_the_components_of_a_dead_one(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
        pids = {seen.name: seen.pid for seen in demo.runtime.list()}
        start = await demo.send(Signal.START, key=(key := str(uuid.uuid4())))  # while no controller listens
        async with demo.controller():
            assert (await demo.confirmed(start))["state"] == "Running"
            assert {seen.name: seen.pid for seen in demo.runtime.list()} == pids  # adopted, not started again
            again = await demo.send(Signal.START, key=key)  # a retry of the same command
            assert (await demo.confirmed(again))["state"] == "Running"
            await demo.until(lambda name, body: name == f"ev.duplicate.swarm-start.{SWARM}")
            victim = pids["demo-processor-1"]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await demo.until(
                lambda name, body: name == "ev.status-delta.processor.demo-processor-1" and body["enabled"],
                after=len(demo.heard),
            )
            assert {seen.pid for seen in demo.runtime.list() if seen.name == "demo-processor-1"} != {victim}
            assert [len(demo.confirmations(one)) for one in (start, again)] == [1, 1]
            await demo.updates_confirmed()

    play(act)


def test_a_hanging_component_is_killed_and_restarted(play: Play) -> None:
    """It lives, but neither reports nor answers. One with `restart: never` is left alone."""
    bees = [bee("generator", gives="raw"), bee("sink", takes="raw", restart="never")]
    swarm = {"id": SWARM, "bees": bees, "timeouts": {"silent": 5}}

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, swarm))["state"] == "Ready"
            assert (await demo.ask(Signal.START))["state"] == "Running"
            pids = {seen.name: seen.pid or 0 for seen in demo.runtime.list()}
            before = len(demo.heard)
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)

            def started_again(key: str, body: dict[str, Any]) -> bool:
                lines = body.get("data", {}).get("components", []) if key.endswith(".demo-marshal") else []
                return any(one["instance"] == "demo-generator" and one["starts"] == 2 for one in lines)

            report = await demo.until(started_again, after=before)
            (line,) = [one for one in report["data"]["components"] if one["instance"] == "demo-generator"]
            assert line["lastEnd"]["how"].startswith("by force: it said nothing for ")
            assert any(one["reason"].startswith("ended by force: it said") for one in report["data"]["errors"])
            await demo.until(lambda key, body: key == STATUS and body["enabled"], after=before)
            living = {seen.name: seen.pid for seen in demo.runtime.list() if seen.alive}
            assert living["demo-generator"] != pids["demo-generator"]
            assert living["demo-sink"] == pids["demo-sink"]
            audit = [json.loads(one) for one in (demo.folder / "swarm/audit.jsonl").read_text().splitlines()]
            assert [one["instance"] for one in audit if one["what"] == "hung"] == ["demo-generator"]
            await demo.updates_confirmed()

    play(act)


def test_time_without_an_observing_controller_is_no_silence() -> None:
    """After a suspended machine or a stopped controller, silence counts from the time that the controller is back."""
    limits, one = plan.Timeouts(silent=60), plan.Bee(role="sink")
    detector = HangDetector()
    began_s = detector.since_s
    seen = Observation(launched=True, alive=True, launched_s=began_s, reported_s=began_s)

    def judged(second: float, what: plan.Bee = one) -> tuple[float, bool]:
        detector.turn(began_s + second, limits)
        return (
            round(seen.silence_s(began_s + second, detector.since_s)),
            detector.hangs(seen, what, limits, began_s + second),
        )

    for second in range(0, 60, 5):
        assert judged(second) == (second, False)
    assert judged(61) == (61, True)
    assert judged(61, plan.Bee(role="sink", restart="never")) == (61, False)
    assert judged(3600) == (0, False)
    assert judged(3601) == (1, False)
