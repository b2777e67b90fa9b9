"""A root with a real orchestrator, real controllers and components as processes, on either bus, and a listener."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farro.config import reader
from farro.doctor import root as roots
from farro.swarm import requests, service
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Binding, Bus, BusMessage
from farro.swarm.conformance import Captured, check
from farro.swarm.files import SwarmFiles
from farro.swarm.requests import CommandReceipt, CommandRequest
from farro.swarm.views import CommandView
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from support import ROOT
from swarm.capture import END, schema_faults

PATIENCE_S = 90.0
SWARM = "demo"


def bee(role: str, *, takes: str | None = None, gives: str | None = None, **more: Any) -> dict[str, Any]:
    work = {**({"in": takes} if takes else {}), **({"out": gives} if gives else {})}
    return {"role": role, "command": ["python", "-m", "swarm.bees", role], "work": work, **more}


def pipeline(sink: Path) -> dict[str, Any]:
    return {
        "id": SWARM,
        "bees": [
            bee("sink", takes="done", env={"SINK": str(sink)}),
            bee("processor", takes="raw", gives="done"),
            bee("generator", gives="raw"),
        ],
    }


class RunningRoot:
    """`address` is that of the bus, with its password."""

    def __init__(self, root: Path, address: str, bus: Bus) -> None:
        self.root = root
        self.address = address
        self.bus = bus
        self.sink = root / "sink"
        self.heard: list[Captured] = []
        self.settings = reader.load(str(root))
        self.files: SwarmFiles = service.files(str(root), self.settings)
        self.runtime = service.runtime(str(root))
        self.orchestrator: subprocess.Popen[bytes] | None = None

    def env(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
        return {
            **own,
            "PYTHONPATH": f"{ROOT}/tests:{ROOT}/src",
            "BROKER_PASSWORD": urlsplit(self.address).password or "",
        }

    def begin(self) -> None:
        """Start the orchestrator."""
        with (self.root / "orchestrator.log").open("ab") as log:
            self.orchestrator = subprocess.Popen(
                [sys.executable, "-m", "farro", "orchestrator", "--root", str(self.root)],
                env=self.env(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self.orchestrator is not None
        self.orchestrator.send_signal(signal.SIGKILL)
        self.orchestrator.wait(PATIENCE_S)

    def farro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "farro", *arguments, "--root", str(self.root)],
            env=self.env(),
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def ask(self, wanted: Signal, swarm: str | None = SWARM, **more: Any) -> CommandReceipt:
        request = CommandRequest(signal=wanted, swarm=swarm, **more)
        return requests.submit(self.files.folder, request, durable=False)

    async def end(self, asked: CommandReceipt) -> CommandView:
        found = await asyncio.to_thread(requests.wait, self.files.folder, asked.correlation_id, PATIENCE_S)
        assert found is not None, (self.root / "orchestrator.log").read_text()
        return found

    async def done(self, wanted: Signal, **more: Any) -> CommandView:
        """Submit a command and wait for its end."""
        return await self.end(self.ask(wanted, **more))

    async def until(self, seen: Callable[[], bool]) -> None:
        limit_s = time.monotonic() + PATIENCE_S
        while not seen():
            assert time.monotonic() < limit_s, (self.root / "orchestrator.log").read_text()
            await asyncio.sleep(0.05)

    async def heard_end(self, key: str, correlation_id: str) -> dict[str, Any]:
        """Wait for the confirmation of a signal under that key, and return its body."""

        def found() -> list[dict[str, Any]]:
            bodies = [json.loads(one.body) for one in self.heard if one.key == key]
            return [body for body in bodies if body.get("correlationId") == correlation_id]

        await self.until(lambda: bool(found()))
        return found()[0]

    def alive(self) -> dict[str, int | None]:
        return {seen.name: seen.pid for seen in self.runtime.list() if seen.alive}

    def confirmations(self, asked: CommandReceipt) -> list[str]:
        """Return the keys of the distinct confirmations."""
        found = {}
        for one in self.heard:
            about = json.loads(one.body).get("correlationId")
            if one.key.startswith(("ev.ready.", "ev.error.")) and about == asked.correlation_id:
                found[one.message_id] = one.key
        return list(found.values())

    async def judge(self, *, complete: bool = True) -> None:
        """Check all messages against their schemas and the rules, once all have arrived."""
        own = str(uuid.uuid4())
        await self.bus.publish(names.CONTROL, BusMessage(key=END, body=b"{}", message_id=own))
        await self.until(lambda: any(one.message_id == own for one in self.heard))
        trace = [one for one in self.heard if one.key != END]
        wrong = [fault for one in trace for fault in schema_faults(one)]
        wrong += map(str, check(trace, complete=complete, swarms=[SWARM]))
        assert not wrong, "\n".join(wrong[:20])

    def stop(self) -> None:
        if self.orchestrator is not None:
            self.orchestrator.terminate()
            self.orchestrator.wait(PATIENCE_S)
        own = [seen.name for seen in self.runtime.list()]
        self.runtime.stop([name for name in own if name.endswith("-marshal") or name == "orchestrator"], 10)
        self.runtime.stop([seen.name for seen in self.runtime.list()], 10)


@asynccontextmanager
async def running_root(root: Path, address: str, **more: Any) -> AsyncIterator[RunningRoot]:
    """Make a root and its bus; `more` are further keys of its config."""
    parts = urlsplit(address)
    config: dict[str, Any] = {"version": "1.0.0", "durability": "process", "bus": address, **more}
    if parts.scheme == "amqp":
        config |= {
            "bus": f"amqp://{parts.hostname}:{parts.port}{parts.path}",
            "amqp": {"user": parts.username, "password": "${BROKER_PASSWORD}"},
        }
    root.mkdir(exist_ok=True)
    (root / "agents-config.json").write_text(json.dumps(config))
    roots.init(str(root), reader.load(str(root)))
    bus = await open_bus(address, durable=False)
    await bus.declare("listener", [Binding(names.CONTROL, "#")])
    events = await bus.consume("listener", prefetch=500)
    made = RunningRoot(root, address, bus)

    async def listen() -> None:
        async for delivery in events:
            one = delivery.message
            made.heard.append(
                Captured(
                    at_s=time.time(), exchange=names.CONTROL, key=one.key, body=one.body, message_id=one.message_id
                )
            )
            await delivery.ack()

    listening = asyncio.create_task(listen())
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield made
            await asyncio.sleep(0)
    finally:
        await asyncio.to_thread(made.stop)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        for queue in _queues(made):
            await bus.delete(queue)
        await bus.close()


def _queues(made: RunningRoot) -> list[str]:
    """Return the queues of the root's swarms, to delete them on a broker that other tests use too."""
    work = [names.work_queue(SWARM, name) for name in ("raw", "done")]
    members = [(role, f"{SWARM}-{role}") for role in ("generator", "processor", "sink", "dies")]
    control = [names.control_queue(*one) for one in (*members, (names.CONTROLLER, f"{SWARM}-marshal"))]
    about = Path(made.files.orchestrator, "about.json")
    own = [json.loads(about.read_text())["instance"]] if about.exists() else []
    mine = [names.control_queue("orchestrator", name) for name in own]
    return ["listener", *work, *map(names.dead_letters, work), *control, *mine]
