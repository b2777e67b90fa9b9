"""Components that are services: a function that runs while enabled, on a thread or in the loop; and cron sources."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.swarm.component import Component, workload
from farro.swarm.component import run as running
from farro.swarm.component.declare import ComponentEnvironment
from farro.swarm.component.testing import trial
from swarm.component.harness import get, run


@pytest.fixture
def folder(shm: Path) -> str:
    return str(shm / "bus")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_service_runs_while_it_is_enabled(folder: str, kind: str) -> None:
    bee: Component[Any] = Component("keeper")
    log: list[str] = []

    if kind == "plain":

        @bee.service
        def keep(stop: threading.Event, config: dict[str, Any]) -> None:
            assert threading.current_thread() is not threading.main_thread()
            log.append(f"began {config['word']}")
            bee.count(3)
            bee.tell(place="here")
            stop.wait()
            log.append("ended")

    else:

        @bee.service
        async def keep_async(stop: asyncio.Event, config: dict[str, Any]) -> None:
            log.append(f"began {config['word']}")
            bee.count(3)
            bee.tell(place="here")
            await stop.wait()
            log.append("ended")

    async def play() -> None:
        async with trial(bee, folder, config={"word": "a"}) as it:
            assert (await it.ask()).data["done"] == 0
            assert log == []
            for word in ("a", "b"):
                assert (await it.enable()).enabled
                while log[-1:] != [f"began {word}"]:
                    await asyncio.sleep(0.01)
                await it.enable()  # it is enabled already
                status = await it.ask()
                assert (status.data["told"], status.data["health"]) == ({"place": "here"}, "UP")
                assert not (await it.update(enabled=False, word="b")).enabled
                assert log[-1] == "ended"
            assert log == ["began a", "ended", "began b", "ended"]
            assert (await it.ask()).data["done"] == 6
            await it.enable()
        assert log[-1] == "ended"  # the end of the component ends the service too

    run(play)


def test_a_failed_service_is_run_again_and_is_down_meanwhile(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(workload, "SETTLED_S", 0.05)
    bee: Component[Any] = Component("keeper")
    broken, mended, runs = asyncio.Event(), threading.Event(), []

    @bee.service
    def keep(stop: threading.Event) -> None:
        runs.append(1)
        if len(runs) == 2:
            return  # returning early counts like raising
        if not mended.is_set():
            raise RuntimeError("no")
        stop.wait()

    async def play() -> None:
        async with trial(bee, folder) as it:
            url = (await it.ask()).data["healthUrl"]
            await it.enable()
            while (status := await it.status()).data["health"] != "DOWN":
                pass
            assert status.enabled
            assert status.data["lastError"] == "RuntimeError: no"
            broken.set()
            while (await it.status()).data["lastError"] != "ended though it was not told to":
                pass
            assert (await asyncio.to_thread(get, url))[0] == 503
            mended.set()
            while (status := await it.status()).data["health"] != "UP":
                pass
            assert status.data["failed"] >= 2
            assert (await asyncio.to_thread(get, url))[0] == 200
            assert not (await it.disable()).enabled

    run(play)


@pytest.mark.parametrize("well", [True, False])
def test_a_service_with_says_ready_is_enabled_once_it_is_ready(folder: str, well: bool) -> None:
    bee: Component[Any] = Component("keeper")
    go_on = threading.Event()

    @bee.service(says_ready=True)
    def keep(stop: threading.Event) -> None:
        go_on.wait()
        if not well:
            raise RuntimeError("not today")
        bee.ready()
        stop.wait()

    async def play() -> None:
        async with trial(bee, folder) as it:
            enabling = asyncio.create_task(it.enable())
            await asyncio.sleep(0.1)
            assert not enabling.done()
            go_on.set()
            report = await enabling
            assert report.enabled
            assert report.data["health"] == ("UP" if well else "DOWN")  # its health is known by then
            assert report.data.get("lastError") == (None if well else "RuntimeError: not today")

    run(play)


def test_a_service_that_ignores_its_event_is_reported(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "DRAIN_S", 0.05)
    bee: Component[Any] = Component("keeper")
    free, began = threading.Event(), threading.Event()

    @bee.service
    def keep(stop: threading.Event) -> None:
        began.set()
        free.wait()

    async def play() -> None:
        async with trial(bee, folder) as it:
            await it.enable()
            await asyncio.to_thread(began.wait)
            report = await it.disable()
            assert not report.enabled
            assert report.data["update"]["notes"].startswith("items in progress did not end")
            again = await it.enable()
            assert again.data["update"]["error"] == "keeper must end and has not ended yet"
            assert not again.enabled
            free.set()
            while not (await it.enable()).enabled:
                await asyncio.sleep(0.02)

    run(play)


def test_status_is_sent_while_a_service_ends(folder: str) -> None:
    bee: Component[Any] = Component("keeper")
    ending, free = asyncio.Event(), asyncio.Event()

    @bee.service
    async def keep(stop: asyncio.Event) -> None:
        await stop.wait()
        ending.set()
        await free.wait()

    async def play() -> None:
        async with trial(bee, folder) as it:
            await it.enable()
            disabling = asyncio.create_task(it._bus.publish(*_off(it)))
            await disabling
            await ending.wait()
            assert (await it.ask()).enabled  # it answers, and is still running
            free.set()
            while (await it.status()).enabled:
                pass

    run(play)


def _off(it: Any) -> tuple[str, Any]:
    import json

    from farro.swarm.bus.port import BusMessage

    uuid = "123e4567-e89b-12d3-a456-426614174000"
    body = {"correlationId": uuid, "idempotencyKey": uuid, "signal": "config-update", "swarmId": "trial"}
    body |= {"role": "keeper", "instance": "trial-keeper", "args": {"enabled": False}}
    key = "sig.config-update.keeper.trial-keeper"
    return "ph.control", BusMessage(key=key, body=json.dumps(body).encode(), message_id="off")


PROGRAM = """
    import sys, threading
    from farro.component import Component
    from farro.swarm.component import run as running

    running.DRAIN_S = 0.2
    bee = Component("keeper")

    @bee.service
    def keep(stop):
        print("began", flush=True)
        if sys.argv[1] == "leaves":
            sys.exit(7)
        if sys.argv[1] == "deaf":
            threading.Event().wait()
        stop.wait()

    bee.run()
"""


@pytest.mark.parametrize(("how", "code"), [("polite", 0), ("deaf", 1), ("leaves", 7)])
def test_a_program_ends_even_if_its_service_does_not(folder: str, how: str, code: int) -> None:
    about = ComponentEnvironment(bus=f"files:{folder}", swarm="trial", role="keeper", instance="trial-keeper")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), how]

    async def play() -> None:
        from farro.swarm.bus.files import FilesBus
        from farro.swarm.bus.port import Binding

        bus = FilesBus(folder, durable=False)
        await bus.declare("watch", [Binding("ph.control", "ev.#")])
        watch = await bus.consume("watch", prefetch=10)
        program = subprocess.Popen(command, env={**os.environ, **about.to_env()}, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        await anext(aiter(watch))
        key, message = _off(None)
        body = message.body.replace(b"false", b"true")
        await bus.publish(key, type(message)(key=message.key, body=body, message_id="on"))
        assert await asyncio.to_thread(program.stdout.readline) == "began\n"
        if how != "leaves":
            program.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(program.wait) == code
        program.stdout.close()
        await bus.close()

    run(play)


def test_a_source_with_a_cron_line_is_called_at_its_minutes(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime.now(UTC)

    class Soon(datetime):
        """A clock a moment before the minute."""

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 1, 8, 59, 59, 800_000, tzinfo=UTC) + (datetime.now(UTC) - start)

    bee: Component[Any] = Component("clock")

    @bee.source(cron="0 9 * * *")
    def ring() -> str:
        return "nine"

    async def play() -> None:
        nonlocal start
        async with trial(bee, folder, outputs=["bells"]) as it:
            monkeypatch.setattr(workload, "datetime", Soon)
            start = datetime.now(UTC)
            await it.enable()
            assert await it.next("bells") == "nine"
            assert datetime.now(UTC) - start >= timedelta(milliseconds=200)
            assert (await it.ask()).data["done"] == 1
            assert await it.depth("bells") == 0  # the next one is tomorrow

    run(play)
