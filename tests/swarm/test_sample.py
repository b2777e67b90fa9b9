"""The sample swarm of examples/swarm: real HTTP work on each bus, as its page says."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

from farro.documents import parse
from farro.swarm import plan
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from servers import free_port
from support import ROOT
from swarm.swarm_under_test import SWARM, Play, SwarmUnderTest

FILE = Path(ROOT, "examples", "swarm", "plan.yaml")
GENERATOR, TARGET, POSTPROCESSOR = "demo-generator", "demo-target", "demo-postprocessor"


def sample(**rate: float) -> dict[str, Any]:
    """Return the plan with a free port."""
    text, port = FILE.read_text(encoding="utf-8"), free_port()
    values: dict[str, Any] = parse(text.replace("8098", str(port)).encode(), str(FILE)).data
    values["bees"][1]["config"] |= rate
    return values


def test_the_plan_of_the_sample_is_valid() -> None:
    read = plan.load(parse(FILE.read_bytes(), str(FILE)))
    for bee in read.bees:
        assert bee.command is not None
        assert Path(ROOT, bee.command[1]).is_file()
    assert [bee.role for bee in read.bees] == ["target", "generator", "moderator", "processor", "postprocessor"]


async def status(demo: SwarmUnderTest, instance: str) -> dict[str, Any]:
    return await demo.status(instance.removeprefix("demo-"), instance)


async def configured(demo: SwarmUnderTest, instance: str, **args: Any) -> None:
    role = instance.removeprefix("demo-")
    end = await demo.ask(Signal.CONFIG, args, role=role, instance=instance)
    assert end["result"] == "success", end


async def answers(demo: SwarmUnderTest) -> int:
    values = (await status(demo, POSTPROCESSOR))["data"].get("told", {})
    assert values.get("errors", 0) == 0
    return int(values.get("answers", 0)) + int(values.get("repeated", 0))


async def dead(demo: SwarmUnderTest) -> int:
    found = await demo.bus.depth(names.dead_letters(names.work_queue(SWARM, "moderated")))
    return 0 if found is None else found.ready


async def pace(demo: SwarmUnderTest) -> float:
    """Return the items per second, by the generator's own count, over ten items or more."""
    first = await status(demo, GENERATOR)
    while True:
        await asyncio.sleep(0.2)
        second = await status(demo, GENERATOR)
        made = second["data"]["done"] - first["data"]["done"]
        if made >= 10:
            return float(made / (second["data"]["uptimeSec"] - first["data"]["uptimeSec"]))


def test_the_sample_works_takes_a_new_rate_and_loses_nothing(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, sample(rate=5)))["state"] == "Ready"
            assert (await demo.ask(Signal.START))["state"] == "Running"
            while await answers(demo) < 5:
                await asyncio.sleep(0.1)
            values = (await status(demo, POSTPROCESSOR))["data"]["told"]
            assert 5 <= values["p50Ms"] <= values["p95Ms"] <= values["maxMs"]  # the target takes five milliseconds

            assert await pace(demo) < 7
            await configured(demo, GENERATOR, rate=60)
            assert await pace(demo) > 10
            refused = await demo.ask(Signal.CONFIG, {"rate": "fast"}, role="generator", instance=GENERATOR)
            assert (refused["result"], refused["code"]) == ("error", "CONFIG_REFUSED")
            await configured(demo, GENERATOR, rate=4)

            await configured(demo, TARGET, enabled=False)  # no target answers any more
            while await dead(demo) < 2:
                await asyncio.sleep(0.1)
            await configured(demo, GENERATOR, enabled=False)
            made = (await status(demo, GENERATOR))["data"]["done"]
            while (found := (await answers(demo), await dead(demo))) and sum(found) < made:
                await asyncio.sleep(0.2)
            assert sum(found) == made  # answered, or a dead letter: none is lost

            await configured(demo, TARGET, enabled=True)
            await configured(demo, GENERATOR, enabled=True)
            before = found[0]
            while await answers(demo) < before + 3:
                await asyncio.sleep(0.1)
            assert (await demo.ask(Signal.STOP))["state"] == "Stopped"
            assert (await demo.ask(Signal.REMOVE))["state"] == "Removed"

    play(act)


def test_an_answer_that_arrives_twice_is_counted_once() -> None:
    scope = runpy.run_path(str(FILE.parent / "postprocessor.py"), run_name="postprocessor")
    config = scope["Config"](window=2)
    for number, took_ms in ((1, 10.0), (1, 10.0), (2, 20.0), (3, 40.0)):
        scope["reckon"]({"id": number, "status": 404 if number == 2 else 200, "latency_ms": took_ms}, config)
    values = scope["bee"].told
    assert (values["answers"], values["errors"], values["repeated"]) == (3, 1, 1)
    assert (values["meanMs"], values["maxMs"]) == (30.0, 40.0)  # of the last two
