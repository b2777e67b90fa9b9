"""farro's own services as components of a swarm: real processes, with the test as their controller."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farro.swarm.bus.files import FilesBus
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer
from farro.swarm.component.declare import ComponentEnvironment
from flows.program import Program, endless, marked, shell
from support import eventually

PATIENCE_S = 90.0


class MemberProcess:
    """One component and its messages."""

    def __init__(self, bus: Bus, says: Consumer, about: ComponentEnvironment, process: subprocess.Popen[bytes]) -> None:
        self._bus = bus
        self._says = says
        self._about = about
        self.process = process

    async def heard(self) -> dict[str, Any]:
        delivery = await anext(aiter(self._says))
        await delivery.ack()
        report: dict[str, Any] = json.loads(delivery.message.body)
        return report

    async def ask(self, signal: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        own, about = str(uuid.uuid4()), self._about
        body = {"correlationId": own, "idempotencyKey": own, "signal": signal, "swarmId": about.swarm}
        body |= {"role": about.role, "instance": about.instance, **({"args": args} if args else {})}
        key = f"sig.{signal}.{about.role}.{about.instance}"
        await self._bus.publish("ph.control", BusMessage(key=key, body=json.dumps(body).encode(), message_id=own))
        while True:
            report = await self.heard()
            if own in ((report["data"].get("update") or {}).get("correlationId"), report["data"].get("correlationId")):
                return report

    async def switch(self, enabled: bool) -> dict[str, Any]:
        return await self.ask("config-update", {"enabled": enabled})


@pytest.fixture
def farro(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    made.run("init", code=0)
    yield made
    made.clean_up()


@pytest.fixture
def rig(farro: Program, shm: Path) -> MemberRig:
    return MemberRig(farro, shm)


class MemberRig:
    def __init__(self, farro: Program, bus: Path) -> None:
        self.farro = farro
        self.bus = bus

    @asynccontextmanager
    async def member(self, role: str, *words: str) -> AsyncIterator[MemberProcess]:
        about = ComponentEnvironment(bus=f"files:{self.bus}", swarm="farro", role=role, instance=f"farro-{role}")
        bus = FilesBus(str(self.bus), durable=False)
        await bus.declare("listener", [Binding("ph.control", "ev.#")])
        says = await bus.consume("listener", prefetch=100)
        command = [sys.executable, "-P", "-m", "farro", "member", *words, "--root", str(self.farro.path)]
        with (self.farro.path / f"{role}.log").open("wb") as log:
            process = subprocess.Popen(command, env={**self.farro.env, **about.to_env()}, stdout=log, stderr=log)
        try:
            one = MemberProcess(bus, says, about, process)
            async with asyncio.timeout(PATIENCE_S):
                assert not (await one.heard())["enabled"]
                yield one
                process.terminate()
                assert await asyncio.to_thread(process.wait) == 0, self.said(role)
        finally:
            process.kill()
            process.wait()
            await bus.close()

    def said(self, role: str) -> str:
        return (self.farro.path / f"{role}.log").read_text()


def test_a_worker_claims_nothing_while_it_is_disabled(rig: MemberRig) -> None:
    first, second = (rig.farro.enqueue(shell("echo hi")) for _ in range(2))

    async def play() -> None:
        async with rig.member("worker", "worker", "--role", "Runner") as one:
            report = await one.ask("status-request")
            assert (report["kind"], report["enabled"], report["data"]["health"]) == ("status-full", False, "UP")
            assert rig.farro.run("workers", "--json", code=0).json["workers"] == []
            assert rig.farro.status(first) == "queued"
            assert (await one.switch(True))["enabled"]
            for job in (first, second):
                becomes(rig.farro, job, "succeeded")
            report = await one.switch(False)
            assert (report["enabled"], report["data"]["done"]) == (False, 2)
            third = rig.farro.enqueue(shell("echo hi"))
            await one.ask("status-request")
            assert rig.farro.status(third) == "queued"

    asyncio.run(play())
    assert rig.said("worker").count("worker started") == rig.said("worker").count("worker stopped") == 1


def becomes(farro: Program, job_id: str, status: str) -> None:
    eventually(lambda: farro.status(job_id) == status, f"{job_id} does not become {status}")


@pytest.mark.parametrize("how", ["disabled", "terminated"])
def test_a_worker_that_is_stopped_hands_its_job_back(rig: MemberRig, how: str) -> None:
    rig.farro.enqueue(endless(), "--id", "long")

    async def play() -> None:
        async with rig.member("worker", "worker", "--role", "Runner", "--runner", "process") as one:
            await one.switch(True)
            await asyncio.to_thread(eventually, (rig.farro.path / "started").exists, "the step did not start")
            if how == "disabled":
                assert not (await one.switch(False))["enabled"]
                assert rig.farro.job("long")["hops"][-1]["reason"] == "released"

    asyncio.run(play())
    assert marked(rig.farro.path) == []
    job = rig.farro.job("long")
    assert (job["status"], job["hops"][-1]["reason"]) == ("queued", "released")


def test_a_member_that_cannot_work_reports_why_and_is_down(rig: MemberRig) -> None:
    files = rig.farro.path / "agents/Runner/in-progress"
    files.rmdir()
    files.write_text("in the way")

    async def play() -> None:
        async with rig.member("worker", "worker", "--role", "Runner") as one:
            await one.switch(True)
            while (report := await one.heard())["data"]["health"] != "DOWN":
                pass
            assert "in-progress" in report["data"]["lastError"]
            files.unlink()
            files.mkdir()
            while (await one.heard())["data"]["health"] != "UP":
                pass

    asyncio.run(play())


@pytest.mark.parametrize("role", ["manager", "watchdog"])
def test_manager_and_watchdog_are_members_too(rig: MemberRig, role: str) -> None:
    def there() -> bool:
        report = rig.farro.run("status", "--json", code=0).json["alive"]
        return bool(report[role])

    async def play() -> None:
        async with rig.member(role, role) as one:
            assert not there()
            await one.switch(True)
            await asyncio.to_thread(eventually, there, f"there is no {role}")
            assert not (await one.switch(False))["enabled"]
            assert not there()

    asyncio.run(play())
