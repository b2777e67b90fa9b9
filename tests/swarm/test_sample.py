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
from swarm.hive import SWARM, Hive, Play

FILE = Path(ROOT, "examples", "swarm", "plan.yaml")
GENERATOR, TARGET, POSTPROCESSOR = "demo-generator", "demo-target", "demo-postprocessor"


def sample(**rate: float) -> dict[str, Any]:
    """The plan as it is, on a port of its own."""
    text, port = FILE.read_text(encoding="utf-8"), free_port()
    told: dict[str, Any] = parse(text.replace("8098", str(port)).encode(), str(FILE)).data
    told["bees"][1]["config"] |= rate
    return told


def test_the_plan_of_the_sample_is_one() -> None:
    read = plan.load(parse(FILE.read_bytes(), str(FILE)))
    for bee in read.bees:
        assert bee.command is not None
        assert Path(ROOT, bee.command[1]).is_file()
    assert [bee.role for bee in read.bees] == ["target", "generator", "moderator", "processor", "postprocessor"]


async def status(hive: Hive, instance: str) -> dict[str, Any]:
    return await hive.status(instance.removeprefix("demo-"), instance)


async def configured(hive: Hive, instance: str, **args: Any) -> None:
    role = instance.removeprefix("demo-")
    end = await hive.ask(Signal.CONFIG, args, role=role, instance=instance)
    assert end["result"] == "success", end


async def answers(hive: Hive) -> int:
    told = (await status(hive, POSTPROCESSOR))["data"].get("told", {})
    assert told.get("errors", 0) == 0
    return int(told.get("answers", 0)) + int(told.get("repeated", 0))


async def dead(hive: Hive) -> int:
    found = await hive.bus.depth(names.dead_letters(names.work_queue(SWARM, "moderated")))
    return 0 if found is None else found.ready


async def pace(hive: Hive) -> float:
    """Items a second, by what the generator itself tells, over ten of them or more."""
    first = await status(hive, GENERATOR)
    while True:
        await asyncio.sleep(0.2)
        second = await status(hive, GENERATOR)
        made = second["data"]["done"] - first["data"]["done"]
        if made >= 10:
            return float(made / (second["data"]["uptimeSec"] - first["data"]["uptimeSec"]))


def test_the_sample_works_takes_a_new_rate_and_loses_nothing(play: Play) -> None:
    async def act(hive: Hive) -> None:
        async with hive.controller():
            assert (await hive.ask(Signal.TEMPLATE, sample(rate=5)))["state"] == "Ready"
            assert (await hive.ask(Signal.START))["state"] == "Running"
            while await answers(hive) < 5:
                await asyncio.sleep(0.1)
            told = (await status(hive, POSTPROCESSOR))["data"]["told"]
            assert 5 <= told["p50Ms"] <= told["p95Ms"] <= told["maxMs"]  # the target takes five milliseconds

            assert await pace(hive) < 7
            await configured(hive, GENERATOR, rate=60)
            assert await pace(hive) > 10
            refused = await hive.ask(Signal.CONFIG, {"rate": "fast"}, role="generator", instance=GENERATOR)
            assert (refused["result"], refused["code"]) == ("error", "CONFIG_REFUSED")
            await configured(hive, GENERATOR, rate=4)

            await configured(hive, TARGET, enabled=False)  # nobody answers any more
            while await dead(hive) < 2:
                await asyncio.sleep(0.1)
            await configured(hive, GENERATOR, enabled=False)
            made = (await status(hive, GENERATOR))["data"]["done"]
            while (found := (await answers(hive), await dead(hive))) and sum(found) < made:
                await asyncio.sleep(0.2)
            assert sum(found) == made  # answered, or a dead letter: none is lost

            await configured(hive, TARGET, enabled=True)
            await configured(hive, GENERATOR, enabled=True)
            before = found[0]
            while await answers(hive) < before + 3:
                await asyncio.sleep(0.1)
            assert (await hive.ask(Signal.STOP))["state"] == "Stopped"
            assert (await hive.ask(Signal.REMOVE))["state"] == "Removed"

    play(act)


def test_an_answer_that_comes_twice_is_counted_once() -> None:
    scope = runpy.run_path(str(FILE.parent / "postprocessor.py"), run_name="postprocessor")
    config = scope["Config"](window=2)
    for number, took_ms in ((1, 10.0), (1, 10.0), (2, 20.0), (3, 40.0)):
        scope["reckon"]({"id": number, "status": 404 if number == 2 else 200, "latency_ms": took_ms}, config)
    told = scope["bee"].told
    assert (told["answers"], told["errors"], told["repeated"]) == (3, 1, 1)
    assert (told["meanMs"], told["maxMs"]) == (30.0, 40.0)  # of the last two
