"""A swarm under test: a bus, a controller that starts and ends, real processes, and all messages.

    def test_something(play: Play) -> None:           # on each bus
        async def act(demo: SwarmUnderTest) -> None:
            async with demo.controller():
                await demo.ask(Signal.TEMPLATE, plan)
        play(act)

`play` is a fixture of this suite. All messages that were sent while `act` ran are checked when it ends (capture).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farro.config.settings import ForeignSignals
from farro.documents import Document
from farro.errors import BadDocument
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.swarm import plan
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer
from farro.swarm.controller import Controller
from farro.swarm.controller.actions import ControllerContext
from farro.swarm.processes import environment
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal
from farro.worker.process_runtime import ProcessRuntime
from support import ROOT
from swarm.capture import Capture

PATIENCE_S = 90.0
SWARM = "demo"
Act = Callable[["SwarmUnderTest"], Awaitable[None]]
Play = Callable[[Act], None]


def bee(role: str, *, takes: str | None = None, gives: str | None = None, **more: Any) -> dict[str, Any]:
    work = {**({"in": takes} if takes else {}), **({"out": gives} if gives else {})}
    return {"role": role, "command": ["python", "-m", "swarm.bees", role], "work": work, **more}


PIPELINE = {
    "id": SWARM,
    "bees": [
        bee("sink", takes="done"),
        bee("processor", takes="raw", gives="done", instances=2),
        bee("generator", gives="raw"),
    ],
}


class SwarmUnderTest:
    """The bus, the processes, and all messages on the control exchange."""

    def __init__(self, address: str, folder: Path, bus: Bus, events: Consumer) -> None:
        self.address = address
        self.folder = folder
        self.bus = bus
        self.heard: list[tuple[str, dict[str, Any], str]] = []
        self._events = events
        self.sink = folder / "sink"
        self.sink.touch()
        self.runtime = ProcessRuntime(str(folder / "components"), SystemClock())
        self._came = asyncio.Condition()
        self.logged: list[tuple[str, str, dict[str, Any]]] = []  # by the controller
        self.capture: Capture
        self.away = False  # no orchestrator answers questions
        self.asked: list[dict[str, Any]] = []  # questions so far
        self.sent: set[str] = set()  # correlation ids of signals that it sent as the orchestrator
        self.members: set[tuple[str, str]] = {(names.CONTROLLER, "demo-marshal")}
        self.suffixes: set[str] = set()

    def _log(self, level: str, message: str, fields: Any) -> None:
        self.logged.append((level, message, dict(fields)))

    async def listen(self) -> None:
        async for delivery in self._events:
            message = delivery.message
            with contextlib.suppress(ValueError):  # a test may send invalid JSON
                said = json.loads(message.body)
                if message.key.startswith("sig."):
                    await self._answer(said)
                    await delivery.ack()
                    continue
                async with self._came:
                    self.heard.append((message.key, said if isinstance(said, dict) else {}, message.message_id))
                    self._came.notify_all()
            await delivery.ack()

    async def _answer(self, question: dict[str, Any]) -> None:
        """Answer a controller's question as the orchestrator does."""
        async with self._came:
            self.asked.append(question)
            self._came.notify_all()
        if self.away:
            return
        asked = question["args"]["correlationId"]
        report = messages.StatusReport(
            kind="status-full",
            message_id=str(uuid.uuid4()),
            timestamp=now(),
            role=names.ORCHESTRATOR,
            instance=question["instance"],
            swarm_id=SWARM,
            enabled=True,
            state="Ready",
            watermark=now(),
            max_staleness_sec=0.0,
            totals=messages.Totals(total=1, desired=1, healthy=1, running=1, enabled=1),
            queues=messages.StatusQueues(),
            data={
                "health": "UP",
                "correlationId": question["correlationId"],
                "asked": asked,
                "known": asked in self.sent,
            },
        )
        await ControlPublisher(self.bus, now).status(report)

    async def questions(self, count: int) -> None:
        """Wait until the controller has asked so many questions."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) >= count)

    async def back(self) -> None:
        """Answer all questions that waited."""
        self.away, waiting, self.asked = False, self.asked, []
        for question in waiting:
            await self._answer(question)

    def broke(self, task: asyncio.Task[None]) -> None:
        """Cancel the test: the controller ended by an exception, so nothing will arrive any more."""
        self.failure = task.exception()
        for other in asyncio.all_tasks():
            if other is not task:
                other.cancel(f"the controller broke: {self.failure!r}")

    async def until(self, wanted: Callable[[str, dict[str, Any]], bool], after: int = 0) -> dict[str, Any]:
        async with self._came:
            while True:
                for key, body, _ in self.heard[after:]:
                    if wanted(key, body):
                        return body
                await self._came.wait()

    @asynccontextmanager
    async def controller(self, foreign_signals: ForeignSignals = "refuse") -> AsyncIterator[Controller]:
        """Run a controller; its components go on after it."""
        home = self.folder / "swarm"
        (home / "logs").mkdir(parents=True, exist_ok=True)
        context = ControllerContext(
            swarm=SWARM,
            instance="demo-marshal",
            bus_address=self.address,
            folder=str(home),
            cwd=ROOT,
            env={**environment(), "SINK": str(self.sink), "PYTHONPATH": f"{ROOT}/tests:{ROOT}/src"},
            foreign_signals=foreign_signals,
        )
        bus = await open_bus(self.address, durable=False)
        made = Controller(context, bus, self.runtime, log=self._log, now=now, durable=False)
        before = len(self.heard)
        running = asyncio.create_task(made.run())
        running.add_done_callback(lambda task: task.cancelled() or task.exception() is None or self.broke(task))
        try:
            await self.until(lambda key, body: key == "ev.ready.swarm-controller.demo-marshal", after=before)
            yield made
        finally:
            made.stop()
            await asyncio.gather(running)
            await bus.close()

    async def send(
        self, sig: Signal, args: dict[str, Any] | None = None, *, key: str | None = None, **scope: str
    ) -> str:
        """Send a signal as the orchestrator does, and return its correlation id."""
        correlation = str(uuid.uuid4())
        self.sent.add(correlation)
        self._note(sig, args)
        about = Scope(swarm=SWARM, **scope)
        body = messages.ControlSignal(
            correlation_id=correlation,
            idempotency_key=key or correlation,
            signal=sig.value,
            timestamp=now(),
            swarm_id=SWARM,
            role=about.role,
            instance=about.instance,
            args=args,
        )
        of_key = Scope(role=about.role, instance=about.instance) if sig.of_component else Scope(swarm=SWARM)
        await ControlPublisher(self.bus, now).send(names.signal_key(sig, of_key), body, correlation)
        return correlation

    async def forge(self, key: str, body: bytes | dict[str, Any], message_id: str | None = None) -> None:
        """Send any body under any key."""
        own = message_id or str(uuid.uuid4())
        self.capture.forged(own)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.bus.publish(names.CONTROL, BusMessage(key=key, body=data, message_id=own))

    async def status(self, role: str, instance: str) -> dict[str, Any]:
        """Request the status of a component."""
        own = await self.send(Signal.STATUS, role=role, instance=instance)
        return await self.until(lambda key, body: body.get("data", {}).get("correlationId") == own)

    def _note(self, sig: Signal, args: dict[str, Any] | None) -> None:
        """Note the components and queues of a plan, to remove them afterwards."""
        if sig is Signal.TEMPLATE:
            with contextlib.suppress(BadDocument):
                wanted = plan.load(Document(args, "template"))
                self.members |= {(one.role, one.instance) for one in wanted.members()}
                self.suffixes |= {one for bee in wanted.bees for one in (*bee.work.inputs, *bee.work.outputs)}

    def queues(self) -> list[str]:
        work = [names.work_queue(SWARM, suffix) for suffix in sorted(self.suffixes)]
        return [*work, *map(names.dead_letters, work), *(names.control_queue(*one) for one in sorted(self.members))]

    async def ask(self, sig: Signal, args: dict[str, Any] | None = None, **scope: str) -> dict[str, Any]:
        """Send a signal and return its confirmation."""
        correlation = await self.send(sig, args, **scope)
        return await self.confirmed(correlation)

    async def confirmed(self, correlation: str) -> dict[str, Any]:
        return await self.until(lambda key, body: body.get("correlationId") == correlation and _confirms(key))

    async def updates_confirmed(self) -> None:
        """Wait until all config updates so far are confirmed, also the controller's own."""
        await self.capture.settle()
        for one in self.capture.messages:
            if one.key.startswith("sig.config-update."):
                await self.confirmed(json.loads(one.body)["correlationId"])

    def confirmations(self, correlation: str) -> list[str]:
        """Return the distinct confirmations, by their message ids."""
        found = [own for key, body, own in self.heard if _confirms(key) and body.get("correlationId") == correlation]
        return sorted(set(found))


def _confirms(key: str) -> bool:
    return key.startswith(("ev.ready.", "ev.error."))


def now() -> str:
    return timestamp(datetime.now(UTC))


def run_test(act: Act, address: str, folder: Path, *, queen: str | None = None, capture: str | None = None) -> None:
    """Run a test with a time limit, and leave nothing behind. `queen` and `capture` are other addresses of the same
    bus, for the sender of signals and for the listener."""

    async def bounded() -> None:
        bus = await open_bus(queen or address, durable=False)
        listener = names.control_queue("listener", uuid.uuid4().hex[:8])
        questions = names.question_key("demo-marshal")
        await bus.declare(listener, [Binding(names.CONTROL, "ev.#"), Binding(names.CONTROL, questions)])
        demo = SwarmUnderTest(address, folder, bus, await bus.consume(listener, prefetch=200))
        listening = asyncio.create_task(demo.listen())
        try:
            async with asyncio.timeout(PATIENCE_S), Capture.of(capture or address, [SWARM]) as demo.capture:
                await act(demo)
                await demo.capture.check()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            demo.runtime.stop([seen.name for seen in demo.runtime.list()], 5)
            for queue in (listener, *demo.queues()):
                await bus.delete(queue)
            await bus.close()

    asyncio.run(bounded())
