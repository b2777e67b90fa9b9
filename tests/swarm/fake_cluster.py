"""An orchestrator without processes and without waiting: a bus in memory, fake controllers, a manual clock.

Nothing happens by itself: `FakeCluster.settle` lets every part send its messages, in a fixed order, until none is left.
`begin` starts a new orchestrator, which knows only what is on disk; the bus, the controllers and the files stay.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farro.config.settings import ForeignSignals
from farro.errors import AlreadyRunning, BusTrouble, InputError
from farro.host.clock import ManualClock
from farro.jobs.times import timestamp
from farro.swarm import lifecycle, requests, views
from farro.swarm.bus.port import Binding, BusMessage, BusQueueDepth
from farro.swarm.conformance import Captured, check
from farro.swarm.files import DesiredState, SwarmFiles, controller_instance
from farro.swarm.ledger import CommandEnd, LedgerEntry
from farro.swarm.orchestrator import Orchestrator
from farro.swarm.orchestrator.state import LaunchOptions, OrchestratorContext
from farro.swarm.publish import ControlPublisher
from farro.swarm.requests import CommandReceipt, CommandRequest
from farro.swarm.views import CommandView
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal, matches
from farro.worker.runtime import ProcessSpec, ProcessView, Stopped

SWARM = "demo"
PLAN = {"id": SWARM, "bees": [{"role": "generator", "command": ["true"], "work": {"out": "raw"}}]}


@dataclass
class Queue:
    bindings: list[Binding] = field(default_factory=list)
    messages: deque[BusMessage] = field(default_factory=deque)


class MemoryBus:
    """The part of the Bus port that these tests need. `said` holds all published messages; if `away`, every call
    fails."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.said: list[BusMessage] = []
        self.away = False

    async def declare(self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None) -> None:
        self._there()
        known = self.queues.setdefault(queue, Queue()).bindings
        known += [one for one in bindings if one not in known]

    async def unbind(self, queue: str, binding: Binding) -> None:
        self._there()
        if queue in self.queues and binding in self.queues[queue].bindings:
            self.queues[queue].bindings.remove(binding)

    async def delete(self, queue: str) -> None:
        self.queues.pop(queue, None)

    async def publish(self, exchange: str, message: BusMessage) -> None:
        self._there()
        self.said.append(message)
        for queue in self.queues.values():
            if any(one.exchange == exchange and matches(one.key, message.key) for one in queue.bindings):
                queue.messages.append(message)

    async def consume(self, queue: str, *, prefetch: int = 1) -> UnusedConsumer:
        return UnusedConsumer()

    async def depth(self, queue: str) -> BusQueueDepth | None:
        return None

    async def close(self) -> None: ...

    def _there(self) -> None:
        if self.away:
            raise BusTrouble("as the test wants")


class UnusedConsumer:
    """A consumer that is never iterated: the cluster hands deliveries over itself."""

    def __aiter__(self) -> AsyncIterator[Any]:
        raise AssertionError("the court gives deliveries by hand")

    async def close(self) -> None: ...


@dataclass
class Delivery:
    message: BusMessage
    redelivered: bool = False
    acknowledged: bool = False

    async def ack(self) -> None:
        self.acknowledged = True

    def ack_soon(self) -> None:
        self.acknowledged = True

    async def reject(self, *, requeue: bool) -> None:
        self.acknowledged = not requeue


class FakeControllers:
    """The Runtime port and the controllers that it starts. If `mute`, they send nothing; if `dumb`, they do not come
    up."""

    def __init__(self, bus: MemoryBus, clock: ManualClock) -> None:
        self.publisher = ControlPublisher(bus, lambda: _now(clock))
        self.bus = bus
        self.launched: list[str] = []
        self.alive: dict[str, bool] = {}
        self.mute = False
        self.dumb = False
        self.refuse: str | None = None
        self.error: str | None = None  # code of the errors that answer signals
        self.launches = 1
        self._up: list[str] = []

    def launch(self, component: ProcessSpec) -> ProcessView:
        if self.refuse is not None:
            raise InputError(self.refuse)
        if self.alive.get(component.name):
            raise AlreadyRunning(f"{component.name} runs already")
        self.alive[component.name] = True
        self.launched.append(component.name)
        self._up.append(component.name)
        return self._seen(component.name)

    def look(self, name: str) -> ProcessView | None:
        return self._seen(name) if name in self.alive else None

    def list(self) -> Sequence[ProcessView]:
        return [self._seen(name) for name in sorted(self.alive)]

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        return [Stopped(name=name, how="stopped") for name in names if self.alive.pop(name, None) is not None]

    def kill(self, name: str) -> bool:
        lived, self.alive[name] = self.alive[name], False
        return lived

    def tidy(self) -> None: ...

    def _seen(self, name: str) -> ProcessView:
        at, alive = "2026-11-16T12:00:00Z", self.alive[name]
        return ProcessView(
            name=name, alive=alive, pid=1, argv=(), log="/dev/null", launched_at=at, launches=self.launches
        )

    async def speak(self) -> bool:
        """Send what the living controllers have to send. Return whether there was anything."""
        if self.dumb:
            return False
        up, self._up = self._up, []
        for name in up:
            if self.alive.get(name):
                swarm = name.removesuffix("-marshal")
                queue = names.control_queue(names.CONTROLLER, name)
                await self.bus.declare(queue, [Binding(names.CONTROL, f"sig.{Signal.CONFIG}.*.*")])
                await self.publisher.controller_up(swarm, name)
        for name in [name for name, alive in self.alive.items() if alive and not self.mute]:
            queue = self.bus.queues.get(names.control_queue(names.CONTROLLER, name))
            while queue is not None and queue.messages:
                await self.obey(name, queue.messages[0])
                queue.messages.popleft()
                up = [name]
        return bool(up)

    async def obey(self, name: str, message: BusMessage) -> None:
        key = names.read_key(message.key)
        if key.signal is None:
            return
        received = messages.read(key, message.body)
        await self.confirm(received)

    async def confirm(self, received: messages.ControlSignal) -> None:
        """Confirm a signal as a controller does: the same message for the same signal."""
        if received.signal == Signal.STATUS:
            status = messages.StatusReport(
                kind="status-full",
                message_id=str(uuid.uuid4()),
                timestamp=self.publisher.now(),
                role=str(received.role),
                instance=str(received.instance),
                swarm_id=received.swarm_id,
                enabled=True,
                state="Creating",
                totals=messages.Totals(total=0, desired=0, healthy=0, running=0, enabled=0),
                queues=messages.StatusQueues(),
                data={"health": "Healthy", "correlationId": received.correlation_id},
            )
            await self.publisher.status(status)
            return
        state = lifecycle.EFFECTS.get(Signal(received.signal))
        good = CommandEnd(good=True, state=str(state or "Stopped"))
        end = good if self.error is None else CommandEnd(good=False, code=self.error, message="as the test wants")
        entry = LedgerEntry(
            key=received.idempotency_key,
            signal=received.signal,
            swarm=received.swarm_id,
            role=received.role,
            instance=received.instance,
            end=end,
        )
        await self.publisher.confirm(entry, received.correlation_id)


class FakeCluster:
    """`orchestrator` is the current one; `begin` starts another, which knows only what is on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.clock = ManualClock()
        self.bus = MemoryBus()
        self.controllers = FakeControllers(self.bus, self.clock)
        self.files = SwarmFiles(str(folder / "swarms"), durable=False)
        self.root = folder
        self.orchestrator: Orchestrator | None = None
        self.foreign_signals: ForeignSignals = "refuse"
        self.begun = 0  # orchestrators so far
        self.queue = ""

    async def begin(self) -> Orchestrator:
        how = LaunchOptions(program=("farro",), root=str(self.root), env={})
        context = OrchestratorContext(
            self.files,
            self.bus,
            self.controllers,
            how,
            log=_no_log,
            clock=self.clock,
            durable=False,
            foreign_signals=self.foreign_signals,
        )
        self.queue = context.queue
        self.begun += 1
        self.orchestrator = Orchestrator(context)
        await self.orchestrator.open()
        return self.orchestrator

    async def settle(self) -> None:
        """Run until no part has a message to send."""
        assert self.orchestrator is not None
        for _ in range(200):
            self.clock.advance(0.001)
            await self.orchestrator.run_once()
            spoke = await self.controllers.speak()
            heard = self.bus.queues[self.queue].messages
            while heard:
                delivery = Delivery(heard[0])
                await self.orchestrator.receive(delivery)  # what is not acknowledged goes to the next orchestrator
                assert delivery.acknowledged
                heard.popleft()
                spoke = True
            if not spoke and not self.files.pending_requests():
                return
        raise AssertionError("they talk for ever")

    async def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    def ask(self, signal: Signal, swarm: str | None = SWARM, **more: Any) -> CommandReceipt:
        self.clock.advance(0.001)
        request = CommandRequest(signal=signal, swarm=swarm, **more)
        return requests.submit(self.files.folder, request, clock=self.clock, durable=False)

    def desired(self) -> DesiredState:
        found = self.files.desired(SWARM)
        assert found is not None
        return found

    def ended(self, asked: CommandReceipt) -> CommandView:
        found = views.command(self.files.folder, asked.correlation_id)
        assert found is not None
        return found

    def confirmations(self, asked: CommandReceipt) -> list[tuple[str, dict[str, Any]]]:
        """Return the distinct confirmations, by their message ids."""
        found = {}
        for message in self.bus.said:
            body = json.loads(message.body)
            if message.key.startswith(("ev.ready.", "ev.error.")) and body.get("correlationId") == asked.correlation_id:
                found[message.message_id] = (message.key, body)
        return list(found.values())

    def audit(self, swarm: str | None = SWARM) -> list[dict[str, Any]]:
        folder = self.files.orchestrator if swarm is None else self.files.swarm_folder(swarm)
        path = Path(folder, "audit.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def violations(self) -> list[str]:
        """Return the violations of the seed's rules, except those about components, which do not exist here."""
        trace = [
            Captured(at_s=0.0, exchange=names.CONTROL, key=one.key, body=one.body, message_id=one.message_id)
            for one in self.bus.said
        ]
        return [str(one) for one in check(trace, crashes=self.begun > 1) if one.rule not in ("order", "observed")]


def controller_name(swarm: str = SWARM) -> str:
    return controller_instance(swarm)


def _now(clock: ManualClock) -> str:
    return timestamp(clock.now())


def _no_log(level: str, message: str, fields: Any) -> None: ...


Act = Callable[[FakeCluster], Awaitable[None]]


def run_in_cluster(act: Act, folder: Path) -> None:
    """Run a test with a cluster in that folder."""

    async def bounded() -> None:
        cluster = FakeCluster(folder)
        await cluster.begin()
        async with asyncio.timeout(60):
            await act(cluster)

    asyncio.run(bounded())


async def ready(cluster: FakeCluster) -> None:
    """Create a swarm and apply its plan."""
    cluster.ask(Signal.CREATE)
    cluster.ask(Signal.TEMPLATE, args=PLAN)
    await cluster.settle()
