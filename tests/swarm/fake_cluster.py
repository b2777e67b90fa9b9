"""An orchestrator without processes and without time: a bus in memory, controllers that are puppets, a clock by hand.

Nothing happens by itself: `Court.settle` lets everybody say what he has to say, in one fixed order, until all is quiet.
What a life of the orchestrator knows only in memory is gone with it; the bus, the puppets and the files stay.
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

from farro.errors import AlreadyRunning, BusTrouble, InputError
from farro.host.clock import ManualClock
from farro.jobs.times import timestamp
from farro.swarm import requests
from farro.swarm.bus.port import Binding, Depth, Message
from farro.swarm.conformance import Captured, check
from farro.swarm.files import Place, controller
from farro.swarm.ledger import End, Entry
from farro.swarm.orchestrator.orchestrator import Orchestrator
from farro.swarm.orchestrator.state import Launching, Realm
from farro.swarm.publish import Voice
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal, matches
from farro.worker.runtime import Component, Seen, Stopped

SWARM = "demo"
PLAN = {"id": SWARM, "bees": [{"role": "generator", "command": ["true"], "work": {"out": "raw"}}]}


@dataclass
class Queue:
    bindings: list[Binding] = field(default_factory=list)
    messages: deque[Message] = field(default_factory=deque)


class MemoryBus:
    """As much of the Bus port as these tests need. `said`: all that was ever published; `away`: nothing works."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.said: list[Message] = []
        self.away = False

    async def declare(
        self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None, exclusive: bool = False
    ) -> None:
        self._there()
        known = self.queues.setdefault(queue, Queue()).bindings
        known += [one for one in bindings if one not in known]

    async def unbind(self, queue: str, binding: Binding) -> None:
        self._there()
        if queue in self.queues and binding in self.queues[queue].bindings:
            self.queues[queue].bindings.remove(binding)

    async def delete(self, queue: str) -> None:
        self.queues.pop(queue, None)

    async def publish(self, exchange: str, message: Message) -> None:
        self._there()
        self.said.append(message)
        for queue in self.queues.values():
            if any(one.exchange == exchange and matches(one.key, message.key) for one in queue.bindings):
                queue.messages.append(message)

    async def consume(self, queue: str, *, prefetch: int = 1) -> Nobody:
        return Nobody()

    async def depth(self, queue: str) -> Depth | None:
        return None

    async def close(self) -> None: ...

    def _there(self) -> None:
        if self.away:
            raise BusTrouble("as the test wants")


class Nobody:
    """A consumer that is never asked: the court hands deliveries on by itself."""

    def __aiter__(self) -> AsyncIterator[Any]:
        raise AssertionError("the court gives deliveries by hand")

    async def close(self) -> None: ...


@dataclass
class Delivery:
    message: Message
    redelivered: bool = False
    acknowledged: bool = False

    async def ack(self) -> None:
        self.acknowledged = True

    def ack_soon(self) -> None:
        self.acknowledged = True

    async def reject(self, *, requeue: bool) -> None:
        self.acknowledged = not requeue


class Puppets:
    """Port: Runtime, and the controllers that it starts. `mute`: they say nothing; `dumb`: they do not even come up."""

    def __init__(self, bus: MemoryBus, clock: ManualClock) -> None:
        self.voice = Voice(bus, lambda: _now(clock))
        self.bus = bus
        self.launched: list[str] = []
        self.alive: dict[str, bool] = {}
        self.mute = False
        self.dumb = False
        self.refuse: str | None = None
        self.error: str | None = None  # code with which signals are answered
        self.launches = 1
        self._up: list[str] = []

    def launch(self, component: Component) -> Seen:
        if self.refuse is not None:
            raise InputError(self.refuse)
        if self.alive.get(component.name):
            raise AlreadyRunning(f"{component.name} runs already")
        self.alive[component.name] = True
        self.launched.append(component.name)
        self._up.append(component.name)
        return self._seen(component.name)

    def look(self, name: str) -> Seen | None:
        return self._seen(name) if name in self.alive else None

    def list(self) -> Sequence[Seen]:
        return [self._seen(name) for name in sorted(self.alive)]

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        return [Stopped(name=name, how="stopped") for name in names if self.alive.pop(name, None) is not None]

    def kill(self, name: str) -> bool:
        lived, self.alive[name] = self.alive[name], False
        return lived

    def tidy(self) -> None: ...

    def _seen(self, name: str) -> Seen:
        at, alive = "2026-11-16T12:00:00Z", self.alive[name]
        return Seen(name=name, alive=alive, pid=1, argv=(), log="/dev/null", launched_at=at, launches=self.launches)

    async def speak(self) -> bool:
        """What those that live have to say; whether it was anything."""
        if self.dumb:
            return False
        up, self._up = self._up, []
        for name in up:
            if self.alive.get(name):
                swarm = name.removesuffix("-marshal")
                queue = names.control_queue(names.CONTROLLER, name)
                await self.bus.declare(queue, [Binding(names.CONTROL, f"sig.{Signal.CONFIG}.*.*")])
                await self.voice.up(swarm, name)
        for name in [name for name, alive in self.alive.items() if alive and not self.mute]:
            queue = self.bus.queues.get(names.control_queue(names.CONTROLLER, name))
            while queue is not None and queue.messages:
                await self.obey(name, queue.messages[0])
                queue.messages.popleft()
                up = [name]
        return bool(up)

    async def obey(self, name: str, message: Message) -> None:
        key = names.read_key(message.key)
        if key.signal is None:
            return
        told = messages.read_signal(message.body, key.signal, key.scope)
        await self.confirm(told)

    async def confirm(self, told: messages.ControlSignal) -> None:
        """As a controller does: the same again for the same signal."""
        if told.signal == Signal.STATUS:
            status = messages.Status(
                kind="status-full",
                message_id=str(uuid.uuid4()),
                timestamp=self.voice.now(),
                role=str(told.role),
                instance=str(told.instance),
                swarm_id=told.swarm_id,
                enabled=True,
                state="Creating",
                totals=messages.Totals(desired=0, healthy=0, running=0, enabled=0),
                queues=messages.Queues(),
                data={"health": "Healthy", "correlationId": told.correlation_id},
            )
            await self.voice.status(status)
            return
        state = messages.state_of(Signal(told.signal))
        good = End(good=True, state=str(state or "Stopped"))
        end = good if self.error is None else End(good=False, code=self.error, message="as the test wants")
        entry = Entry(
            key=told.idempotency_key,
            signal=told.signal,
            swarm=told.swarm_id,
            role=told.role,
            instance=told.instance,
            end=end,
        )
        await self.voice.confirm(entry, told.correlation_id)


class Court:
    """`orchestrator` is one life of it: `begin` starts another, which knows only what is on the disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.clock = ManualClock()
        self.bus = MemoryBus()
        self.puppets = Puppets(self.bus, self.clock)
        self.place = Place(str(folder / "swarms"), durable=False)
        self.root = folder
        self.orchestrator: Orchestrator | None = None
        self.queue = ""

    async def begin(self) -> Orchestrator:
        how = Launching(program=("farro",), root=str(self.root), env={})
        realm = Realm(self.place, self.bus, self.puppets, how, log=_no_log, clock=self.clock, durable=False)
        self.queue = realm.queue
        self.orchestrator = Orchestrator(realm)
        await self.orchestrator.open()
        return self.orchestrator

    async def settle(self) -> None:
        """Until nobody has anything to say any more."""
        assert self.orchestrator is not None
        for _ in range(200):
            self.clock.advance(0.001)
            await self.orchestrator.turn()
            spoke = await self.puppets.speak()
            heard = self.bus.queues[self.queue].messages
            while heard:
                delivery = Delivery(heard[0])
                await self.orchestrator.hear(delivery)  # what is not acknowledged is given to the next life
                assert delivery.acknowledged
                heard.popleft()
                spoke = True
            if not spoke and not self.place.wished():
                return
        raise AssertionError("they talk for ever")

    async def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    def ask(self, signal: Signal, swarm: str | None = SWARM, **more: Any) -> requests.Asked:
        self.clock.advance(0.001)
        return requests.ask(self.place.folder, signal, swarm, clock=self.clock, durable=False, **more)

    def ended(self, asked: requests.Asked) -> requests.CommandView:
        found = requests.command(self.place.folder, asked.correlation_id)
        assert found is not None
        return found

    def confirmations(self, asked: requests.Asked) -> list[tuple[str, dict[str, Any]]]:
        """Distinct ones, by their message ids."""
        found = {}
        for message in self.bus.said:
            body = json.loads(message.body)
            if message.key.startswith(("ev.ready.", "ev.error.")) and body.get("correlationId") == asked.correlation_id:
                found[message.message_id] = (message.key, body)
        return list(found.values())

    def audit(self, swarm: str | None = SWARM) -> list[dict[str, Any]]:
        folder = self.place.orchestrator if swarm is None else self.place.of(swarm)
        path = Path(folder, "audit.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def violations(self) -> list[str]:
        """Of the seed's promises, in all that was said; of those about components, which are not there, none."""
        trace = [
            Captured(at_s=0.0, exchange=names.CONTROL, key=one.key, body=one.body, message_id=one.message_id)
            for one in self.bus.said
        ]
        return [str(one) for one in check(trace) if one.rule not in ("order", "observed")]


def marshal(swarm: str = SWARM) -> str:
    return controller(swarm)


def _now(clock: ManualClock) -> str:
    return timestamp(clock.now())


def _no_log(level: str, message: str, fields: Any) -> None: ...


Act = Callable[[Court], Awaitable[None]]


def held(act: Act, folder: Path) -> None:
    """A court in that folder, for as long as the act takes."""

    async def bounded() -> None:
        court = Court(folder)
        await court.begin()
        async with asyncio.timeout(60):
            await act(court)

    asyncio.run(bounded())


async def ready(court: Court) -> None:
    """A swarm with its plan applied."""
    court.ask(Signal.CREATE)
    court.ask(Signal.TEMPLATE, args=PLAN)
    await court.settle()
