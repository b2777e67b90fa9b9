"""Dead letters: shown, resent and dropped, on each bus and from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.documents import Document
from farro.errors import InputError
from farro.swarm import dead_letters, plan
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Bus, BusMessage
from farro.swarm.cli.inspect import LogReader
from farro.swarm.controller import actions
from farro.swarm.wire import names
from flows.program import Program
from servers import RabbitServer
from support import eventually
from swarm.swarm_under_test import SWARM

BEES: dict[str, Any] = {
    "id": SWARM,
    "bees": [{"role": "sink", "command": ["true"], "work": {"in": ["raw", "rare"]}}],
}
PLAN = plan.load(Document(BEES, "plan"))


Act = Callable[[Bus], Awaitable[None]]


@pytest.fixture(params=["files", "amqp"])
def on_bus(request: pytest.FixtureRequest, shm: Path) -> Callable[[Act], None]:
    """Run on each bus, with the queues of the plan."""
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None

    async def run(act: Act) -> None:
        bus = await open_bus(f"files:{shm}" if server is None else server.url, durable=False)
        try:
            async with asyncio.timeout(60):
                await actions.declare_queues(bus, PLAN)
                await act(bus)
        finally:
            await actions.delete_queues(bus, PLAN)
            await bus.close()

    return lambda act: asyncio.run(run(act))


async def dead(bus: Bus, queue: str, *items: Any) -> None:
    """Make dead letters."""
    for number, item in enumerate(items):
        body = item if isinstance(item, bytes) else json.dumps(item).encode()
        own = BusMessage(key=queue, body=body, message_id=f"{queue}-{number}")
        await bus.publish(names.work_exchange(SWARM), own)
    consumer = await bus.consume(names.work_queue(SWARM, queue), prefetch=len(items))
    given = aiter(consumer)
    for _ in items:
        await (await anext(given)).reject(requeue=False)
    await consumer.close()
    await counted(bus, queue, len(items))


async def counted(bus: Bus, queue: str, wanted: int, *, work: int = 0) -> None:
    """Wait for the counts: a broker counts a moment later than it confirms."""
    whole = names.work_queue(SWARM, queue)
    while True:
        letters, ready = await bus.depth(names.dead_letters(whole)), await bus.depth(whole)
        assert letters is not None
        assert ready is not None
        if (letters.ready, ready.ready) == (wanted, work):
            return
        await asyncio.sleep(0.02)


def test_showing_dead_letters_changes_nothing(on_bus: Callable[[Act], None]) -> None:
    async def act(bus: Bus) -> None:
        await dead(bus, "raw", {"n": 1}, b"no json", {"n": 3})
        for _ in range(3):
            rare, raw = await dead_letters.look(bus, SWARM, ["rare", "raw"], limit=2)
            assert (rare.count, rare.letters) == (0, ())
            assert (raw.count, [letter.message_id for letter in raw.letters]) == (3, ["raw-0", "raw-1"])
            assert raw.letters[1].body == b"no json"
            await counted(bus, "raw", 3)

    on_bus(act)


def test_dead_letters_are_resent_or_dropped_all_or_some(on_bus: Callable[[Act], None]) -> None:
    async def act(bus: Bus) -> None:
        await dead(bus, "raw", *({"n": number} for number in range(5)))
        (some,) = await dead_letters.resolve(bus, SWARM, ["raw"], "resend", only={"raw-1", "raw-3"})
        assert [letter.message_id for letter in some.letters] == ["raw-1", "raw-3"]
        await counted(bus, "raw", 3, work=2)
        (dropped,) = await dead_letters.resolve(bus, SWARM, ["raw"], "drop", only={"raw-0"})
        assert len(dropped.letters) == 1
        await counted(bus, "raw", 2, work=2)
        (rest,) = await dead_letters.resolve(bus, SWARM, ["raw"], "resend")
        assert [letter.message_id for letter in rest.letters] == ["raw-2", "raw-4"]
        await counted(bus, "raw", 0, work=4)
        consumer = await bus.consume(names.work_queue(SWARM, "raw"), prefetch=9)
        given = aiter(consumer)
        again = [(await anext(given)).message for _ in range(4)]
        assert [(one.message_id, json.loads(one.body)) for one in again] == [
            (f"raw-{number}", {"n": number}) for number in (1, 3, 2, 4)
        ]
        await consumer.close()
        await actions.delete_queues(bus, PLAN)
        with pytest.raises(InputError, match="would be lost"):
            await dead_letters.resolve(bus, SWARM, ["raw"], "resend")

    on_bus(act)


def test_a_queue_is_known_by_each_of_its_names() -> None:
    assert dead_letters.queues(PLAN) == ["rare", "raw"]
    for name in ("raw", "ph.demo.raw", "ph.demo.raw.dlq"):
        assert dead_letters.queues(PLAN, name) == ["raw"]
    with pytest.raises(InputError, match="it has rare, raw"):
        dead_letters.queues(PLAN, "row")


def test_a_log_is_followed_across_its_rotation(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    reading = LogReader.at_end(str(log), 2)
    assert reading.run_once() == ()  # nothing is written yet
    log.write_bytes(b"a\nb\nc\nhal")
    reading = LogReader.at_end(str(log), 2)
    assert (reading.run_once(), reading.rest()) == (["c"], "hal")
    with log.open("ab") as more:
        more.write(b"f\n")
    assert (reading.run_once(), reading.rest()) == (["half"], "")
    log.write_bytes(b"new\n")  # truncated, while its component writes
    assert reading.run_once() == ["new"]
    log.rename(tmp_path / "one.log.1")  # rotated at a start
    log.write_bytes(b"newer, and longer than before\n")
    assert reading.run_once() == ["newer, and longer than before"]


MILL = """
import sys
from farro.component import Component, Drop
bee = Component("mill")
@bee.sink
def grind(item):
    print("got", item, flush=True)
    if "grain" not in item:
        raise Drop("no grain")
bee.run()
"""


@pytest.fixture
def farro(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    made.run("init", code=0)
    yield made
    made.run("swarm", "stop", "demo")
    made.run("swarm", "remove", "demo")
    left = made.run("down")
    made.clean_up()
    assert left.code == 0, left.err


def test_dead_letters_and_logs_from_the_command_line(farro: Program) -> None:
    """The components are healthy but process nothing: the status shows that first, with what to do."""
    (farro.path / "mill.py").write_text(MILL)
    bees = [{"role": "mill", "command": ["python", "mill.py"], "work": {"in": "sacks"}}]
    (farro.path / "demo.json").write_text(json.dumps({"id": "demo", "bees": bees}))
    farro.run("swarm", "apply", "demo.json", code=0)
    farro.run("swarm", "start", "demo", code=0)

    async def sent() -> None:
        bus = await open_bus(f"files:{farro.path}/bus")
        for number in range(3):
            body = json.dumps({"stones": number}).encode()
            await bus.publish("ph.demo.hive", BusMessage(key="sacks", body=body, message_id=f"sack-{number}"))
        await bus.close()

    asyncio.run(sent())
    eventually(
        lambda: farro.run("swarm", "dead", "demo", "--json", code=0).json["queues"][0]["count"] == 3, "none is given up"
    )
    shown = farro.run("swarm", "dead", "demo", "--limit", "2", code=0)
    assert [line.split(None, 2) for line in shown.out.splitlines()] == [
        ["QUEUE", "LETTER", "ITEM"],
        ["sacks", "sack-0", '{"stones": 0}'],
        ["sacks", "sack-1", '{"stones": 1}'],
    ]
    assert "sacks has 3; the first 2 are shown" in shown.err
    words = "dead letters: 3 of sacks; look: farro swarm dead demo"
    eventually(lambda: words in farro.run("swarm", "status", "demo", code=0).out.splitlines(), "nobody tells of them")
    assert farro.run("swarm", "status", "demo", code=0).out.splitlines()[:2] == ["demo  Running, Healthy", words]
    assert f"swarm demo: {words}" in farro.run("ps", code=0).out.splitlines()

    log = farro.run("swarm", "logs", "demo", "demo-mill", "--tail", "2", code=0).out
    assert log == "got {'stones': 1}\ngot {'stones': 2}\n"
    both = farro.run("swarm", "logs", "demo", "--json", code=0).out
    assert {json.loads(line)["instance"] for line in both.splitlines()} == {"demo-mill", "demo-marshal"}
    assert "demo-mill    | got {'stones': 0}" in farro.run("swarm", "logs", "demo", code=0).out
    wrong = farro.run("swarm", "logs", "demo", "mill", code=2)
    assert "known: demo-mill, demo-marshal" in wrong.err

    assert farro.run("swarm", "dead", "demo", "--resend", "--id", "sack-1", code=0).out == "sacks: 1 sent again\n"
    eventually(
        lambda: farro.run("swarm", "logs", "demo", "demo-mill", "-n", "1").out == "got {'stones': 1}\n",
        "it is not given to anybody",
    )
    eventually(
        lambda: farro.run("swarm", "dead", "demo", "--json", code=0).json["queues"][0]["count"] == 3, "it is lost"
    )
    shown = farro.run("swarm", "dead", "demo", "sacks", "--drop", "--json", code=0).json["queues"]
    assert (shown[0]["done"], sorted(shown[0]["letters"])) == ("drop", ["sack-0", "sack-1", "sack-2"])
    assert farro.run("swarm", "dead", "demo", code=0).out == "no dead letters in sacks\n"
    assert farro.run("swarm", "dead", "demo", "--drop", "--id", "nobody").code == 2
    assert farro.run("swarm", "dead", "demo", "--drop", "--resend").code == 2
    assert farro.run("swarm", "dead", "nobody").code == 2
    audit = (farro.path / "swarms/demo/audit.jsonl").read_text()
    assert ('"letters-dropped"' in audit, '"letters-sent-again"' in audit) == (True, True)

    farro.run("swarm", "config", "mill", "demo-mill", "--disable", code=0)
    eventually(
        lambda: farro.run("ps", "--json", code=0).json["components"][0]["state"] == "Stopped",
        "it is told as healthy, and was told to stop",
    )
