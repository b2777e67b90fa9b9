"""The orchestrator (the seed's Queen): one a root. It takes what was asked for, knows what is wanted of each swarm, has
controllers launched, sends them signals, and hears how those end.

Commands live in commanding, controllers in tending, the files in operations.swarm_place.

- A wish is in the ledger before its file goes; an event is acknowledged when what follows from it is written. Killed at
  any moment, the next one goes on: wishes, commands and their time, swarms and their controllers.
  [test_an_orchestrator_killed_between_any_two_steps_confirms_once]
- It hears controllers and the ends of commands, never the status of components (but of one that a command asks).
- Nothing is deleted but by `swarm-remove`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from farro.errors import BusTrouble, FarroError, InputError, StorageTrouble, TryAgain
from farro.host import fs, inotify
from farro.swarm.bus.port import Consumer, Delivery
from farro.swarm.component.lost_queue import Ears
from farro.swarm.files import controller
from farro.swarm.ledger import End
from farro.swarm.orchestrator.commands import Commands, agrees
from farro.swarm.orchestrator.controllers import Tending
from farro.swarm.orchestrator.state import Realm
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Key, Signal

BUSY_S, IDLE_S = 0.2, 1.0  # how long a turn waits at most for news
_LISTS: Mapping[str, type] = {"components": dict, "errors": dict, "queues": dict, "warnings": str}  # of a status
_LINE: Mapping[str, type | tuple[type, ...]] = {  # of a component in it
    "starts": int,
    "tps": (int, float),
    "stalenessSec": (int, float),
    "told": dict,
    "failure": str,
    "lastEnd": dict,
}
_WORDS, _DETAILS = 4000, 16_000  # characters of a confirmation that are kept


class Orchestrator:
    def __init__(self, realm: Realm) -> None:
        self._realm = realm
        self._tending = Tending(realm)
        self._commands = Commands(realm, self._tending)
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._turning = asyncio.Lock()  # a turn and what is heard change the same ledger, one after the other
        self._control: Consumer | None = None

    # --- life ---

    async def run(self) -> None:
        """Until `stop`. Controllers and their swarms go on."""
        await self.open()
        assert self._control is not None
        listening = asyncio.create_task(self._listen(self._control))
        watching, ears = self._watch_wishes(), Ears(self._realm.bus, self._realm.queue)
        try:
            while not self._stopped.is_set():
                self._woken.clear()
                await self.turn()
                await ears.check_sometimes(self._realm.clock.monotonic_s())
                if listening.done():
                    listening.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BUSY_S if self._realm.ledger.open() else IDLE_S):
                        await self._woken.wait()
        finally:
            asyncio.get_running_loop().remove_reader(watching.fileno())
            watching.close()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self._control.close()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    async def open(self) -> None:
        """Be heard of, and hear, before anything is done; controllers that live say how they are."""
        await self._realm.bus.declare(self._realm.queue)
        for swarm, desired in self._realm.swarms.items():
            if desired.there:
                await self._tending.bind(swarm)
        self._control = await self._realm.bus.consume(self._realm.queue, prefetch=64)
        for swarm, desired in self._realm.swarms.items():
            if desired.there and self._tending.alive(swarm):
                await self._realm.request_status(swarm)

    async def turn(self) -> None:
        """Take what was asked for, go on with what is under way, and see that controllers live."""
        async with self._turning:
            try:
                await self._take_wishes()
                await self._commands.advance()
                await self._tending.tend(self._commands.creating())
            except TryAgain as error:  # the bus is away, the disk is full: what was not done is done in a later turn
                self._realm.log("error", str(error), {})
            except FarroError as error:  # a file that cannot be read: the next turn sees to the others
                self._realm.log("error", f"{type(error).__name__}: {error}", {})

    def _watch_wishes(self) -> inotify.Inotify:
        watching = inotify.Inotify()
        watching.watch(self._realm.place.wishes, inotify.MOVED_TO)

        def hear() -> None:
            watching.read(0)
            self._woken.set()

        asyncio.get_running_loop().add_reader(watching.fileno(), hear)
        return watching

    async def _take_wishes(self) -> None:
        for path, told in self._realm.place.wished():
            if told is None:
                self._realm.trail(None).note("ignored", reason="a wish that is no command", file=path.rsplit("/", 1)[1])
            else:
                await self._commands.receive(told)
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)

    # --- hearing ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            await self.hear(delivery)
            self._woken.set()

    async def hear(self, delivery: Delivery) -> None:
        """One event; what is no event of ours is noted, and nothing else follows from it."""
        async with self._turning:
            try:
                key = names.read_key(delivery.message.key)
                await self._event(key, delivery.message.body)
            except InputError as error:
                self._ignore(delivery.message.key, str(error))
            except BusTrouble as error:  # what it had to say is owed, and said in a turn
                self._realm.log("error", str(error), {})
            except StorageTrouble as error:
                self._realm.log("error", str(error), {})
                await delivery.reject(requeue=True)
                await asyncio.sleep(IDLE_S)
                return
            await delivery.ack()

    async def _event(self, key: Key, body: bytes) -> None:
        match key.kind:
            case "controller-up" | "status":
                await self._status(key, messages.decode(messages.Status, body))
            case "outcome" if key.outcome in ("ready", "error"):
                shape: Any = messages.Ready if key.outcome == "ready" else messages.Error
                await self._outcome(key, messages.decode(shape, body))
            case "outcome" if key.outcome == "warning":
                told = messages.decode(messages.Warning, body)
                self._realm.trail(told.scope.swarm_id).note("warning", told.correlation_id, message=told.message)

    async def _outcome(self, key: Key, body: messages.Ready | messages.Error) -> None:
        said = body.scope
        entry = self._commands.of(body.correlation_id)
        own = (key.scope.swarm or said.swarm_id, key.scope.role, key.scope.instance)
        if body.signal != key.signal or own != (said.swarm_id, said.role, said.instance):
            raise InputError("its body is about something else than its routing key")
        if entry is None or not agrees(entry, body) or body.idempotency_key != entry.key:
            raise InputError(f"it confirms {body.correlation_id}, which was not asked for here")
        good = isinstance(body, messages.Ready)
        effect = messages.state_of(Signal(entry.signal))
        if isinstance(body, messages.Ready) and effect is not None and body.state != effect:
            raise InputError(f"its state is none that {entry.signal} leads to")
        if entry.end is not None:
            if entry.end.good != good:
                self._realm.trail(entry.swarm).note("late", body.correlation_id, signal=body.signal, key=_text(key))
            return
        if isinstance(body, messages.Ready):
            end = End(good=True, state=body.state[:_WORDS], notes=None if body.notes is None else body.notes[:_WORDS])
        else:
            end = End(
                good=False,
                phase=body.phase,
                code=body.code,
                message=body.message[:_WORDS],
                retryable=body.retryable,
                details=body.details if len(str(body.details)) <= _DETAILS else None,  # the ledger is read as a whole
            )
        await self._commands.end(entry, end, confirmed=body.correlation_id)

    async def _status(self, key: Key, told: messages.Status) -> None:
        if (told.role, told.instance) != (key.scope.role, key.scope.instance):
            raise InputError("its body is about something else than its routing key")
        swarm = told.swarm_id
        asked = told.data.get("correlationId")
        if isinstance(asked, str) and key.status == "status-full":
            entry = self._commands.of(asked)
            if entry is not None and entry.signal == Signal.STATUS and entry.end is None:
                if (entry.swarm, entry.role, entry.instance) != (swarm, told.role, told.instance):
                    raise InputError(f"it answers {asked}, which was asked of {entry.instance}")
                await self._commands.end(entry, End(good=True, state=told.state or "Healthy"))
        if told.role != names.CONTROLLER:
            return
        if swarm is None or swarm not in self._realm.swarms or told.instance != controller(swarm):
            raise InputError("no controller of ours has that name")
        if not self._realm.swarms[swarm].there:
            return
        if key.kind == "controller-up":
            self._realm.trail(swarm).note("controller-up", instance=told.instance)
        else:
            self._keep_status(swarm, told)
        await self._commands.handshake(swarm, told.timestamp)

    def _keep_status(self, swarm: str, told: messages.Status) -> None:
        """A delta leaves what it does not tell; of components it tells those that changed."""
        place = self._realm.place
        before = (place.status(swarm) or {}).get("data") or {}
        data = {name: value for name, value in told.data.items() if name not in _LISTS} | _lists(told.data)
        if told.kind == "status-delta":
            lines = {line["instance"]: line for line in before.get("components") or []}
            lines |= {line["instance"]: line for line in data.get("components") or []}
            data = {**before, **data, "components": list(lines.values())}
            if "reason" not in told.data:
                data.pop("reason", None)
        totals = told.totals
        place.keep_status(
            swarm,
            {
                "heard_at": self._realm.now(),
                "state": told.state,
                "watermark": told.watermark,
                "max_staleness_s": told.max_staleness_sec,
                "totals": None
                if totals is None
                else {
                    "desired": totals.desired,
                    "healthy": totals.healthy,
                    "running": totals.running,
                    "enabled": totals.enabled,
                },
                "data": data,
            },
        )

    def _ignore(self, key: str, why: str) -> None:
        """Forged, broken, or somebody else's: noted where it claims to belong."""
        with contextlib.suppress(FarroError):
            about = names.read_key(key).scope.swarm
            self._realm.trail(about).note("ignored", key=key, reason=why)
            return
        self._realm.trail(None).note("ignored", key=ascii(key)[:200], reason=why)


def _lists(data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What a status lists, as far as it is what it must be: whoever reads it later relies on that."""
    found: dict[str, list[Any]] = {}
    for name, shape in _LISTS.items():
        told = data.get(name)
        if isinstance(told, list):
            found[name] = [one for one in told if isinstance(one, shape)]
    if "components" in found:
        found["components"] = [one for one in found["components"] if _is_line(one)]
    return found


def _is_line(line: Mapping[str, Any]) -> bool:
    """Of a component: the kinds of what is told of it."""
    return isinstance(line.get("instance"), str) and all(
        isinstance(line[name], kind) for name, kind in _LINE.items() if line.get(name) is not None
    )


def _text(key: Key) -> str:
    return f"{key.outcome or key.status} {key.signal or ''} {key.scope.words}"
