"""The orchestrator (the seed's Queen), one per root: take requested commands, launch controllers, send signals.

- A requested command is in the ledger before its file is removed; an event is acknowledged when its consequences are
  written. Killed at any moment, the next orchestrator goes on with requests, commands, swarms and controllers.
  [test_an_orchestrator_killed_between_any_two_steps_confirms_once]
- It receives the status of controllers and the confirmations of commands, but not the status of components (except of
  one that a command asks).
- Only `swarm-remove` deletes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farro.errors import BusTrouble, FarroError, InputError, StorageTrouble, TryAgain
from farro.host import fs, inotify
from farro.swarm import lifecycle, requests
from farro.swarm.bus import LostQueueCheck, wait
from farro.swarm.bus.port import Consumer, Delivery
from farro.swarm.files import controller_instance
from farro.swarm.ledger import CommandEnd
from farro.swarm.lifecycle import SwarmState
from farro.swarm.orchestrator.commands import CommandRunner, confirms
from farro.swarm.orchestrator.state import ControllerLauncher, OrchestratorContext
from farro.swarm.orchestrator.unheard import QUEUE, UnheardSignals
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Key, Signal

BUSY_S, IDLE_S = 0.2, 1.0  # the longest wait between two turns
_LISTS: Mapping[str, type] = {"components": dict, "errors": dict, "queues": dict, "warnings": str}  # in a status
_LINE: Mapping[str, type | tuple[type, ...]] = {  # of a component in a status
    "starts": int,
    "tps": (int, float),
    "stalenessSec": (int, float),
    "told": dict,
    "failure": str,
    "lastEnd": dict,
}
_ADOPTED = frozenset(SwarmState) - {SwarmState.NEW, SwarmState.CREATING}  # states to which a foreign signal can lead
_TEXT, _DETAILS = 4000, 16_000  # characters of a confirmation that are kept


class Orchestrator:
    def __init__(self, context: OrchestratorContext) -> None:
        self._context = context
        self._controllers = ControllerLauncher(context)
        self._commands = CommandRunner(context, self._controllers)
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._turning = asyncio.Lock()  # turns and received events both change the ledger
        self._control: Consumer | None = None
        self.unheard = UnheardSignals(context)

    # --- running ---

    async def run(self) -> None:
        """Run until `stop`. Controllers and their swarms go on after it."""
        await self.open()
        assert self._control is not None
        signals = await self.unheard.open()
        listening = [asyncio.create_task(one) for one in (self._listen(self._control), self.unheard.listen(signals))]
        watching = self._watch_requests()
        lost_queues = [LostQueueCheck(self._context.bus, queue) for queue in (self._context.queue, QUEUE)]
        try:
            while not self._stopped.is_set():
                self._woken.clear()
                await self.run_once()
                for lost_queue in lost_queues:
                    await lost_queue.check_if_due(self._context.clock.monotonic_s())
                for task in listening:
                    if task.done():
                        task.result()
                await wait(self._woken, BUSY_S if self._context.ledger.open() else IDLE_S)
        finally:
            asyncio.get_running_loop().remove_reader(watching.fileno())
            watching.close()
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
            await self._control.close()
            await signals.close()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    async def open(self) -> None:
        """Declare the queues and consume before anything else; running controllers are asked for their status."""
        await self._context.bus.declare(self._context.queue)
        for swarm, desired in self._context.swarms.items():
            if desired.there:
                await self._controllers.bind(swarm)
        self._control = await self._context.bus.consume(self._context.queue, prefetch=64)
        for swarm, desired in self._context.swarms.items():
            if desired.there and self._controllers.alive(swarm):
                await self._context.request_status(swarm)

    async def run_once(self) -> None:
        """Take requested commands, go on with open ones, and restart dead controllers."""
        async with self._turning:
            try:
                await self._take_requests()
                await self._commands.run_once()
                await self._controllers.run_once(self._commands.creating())
            except TryAgain as error:  # an unreachable bus or a full disk: a later turn does the rest
                self._context.log("error", str(error), {})
            except FarroError as error:  # an unreadable file: the next turn sees to the others
                self._context.log("error", f"{type(error).__name__}: {error}", {})

    def _watch_requests(self) -> inotify.Inotify:
        watching = inotify.Inotify()
        watching.watch(self._context.files.requests, inotify.MOVED_TO)

        def wake() -> None:
            watching.read(0)
            self._woken.set()

        asyncio.get_running_loop().add_reader(watching.fileno(), wake)
        return watching

    async def _take_requests(self) -> None:
        for path, signal in self._context.files.pending_requests():
            if signal is None:
                file = path.rsplit("/", 1)[1]
                self._context.audit(None).note("ignored", reason="a request that is not a command", file=file)
            else:
                await self._commands.receive(signal)
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)

    # --- events ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            await self.receive(delivery)
            self._woken.set()

    async def receive(self, delivery: Delivery) -> None:
        """Take one event; a message that is not an event for this orchestrator is noted in the audit log."""
        async with self._turning:
            try:
                key = names.read_key(delivery.message.key)
                await self._event(key, delivery.message.body)
            except InputError as error:
                self._ignore(delivery.message.key, str(error))
            except BusTrouble as error:  # a turn publishes what is owed
                self._context.log("error", str(error), {})
            except StorageTrouble as error:
                self._context.log("error", str(error), {})
                await delivery.reject(requeue=True)
                await asyncio.sleep(IDLE_S)
                return
            await delivery.ack()

    async def _event(self, key: Key, body: bytes) -> None:
        message = messages.read(key, body)
        if isinstance(message, messages.StatusReport):
            await self._status(key, message)
        elif isinstance(message, messages.Ready | messages.Error):
            await self._outcome(key, message)
        elif isinstance(message, messages.ControlSignal):
            await self._answer(message)
        elif isinstance(message, messages.Warning):
            audit = self._context.audit(message.scope.swarm_id)
            audit.note("warning", message.correlation_id, message=message.message)

    async def _answer(self, question: messages.ControlSignal) -> None:
        """Tell a controller whether this orchestrator sent a lifecycle signal."""
        swarm, args = question.swarm_id, question.args or {}
        if swarm is None or question.instance != controller_instance(swarm):
            raise InputError("it is a question of no controller")
        asked = str(args.get("correlationId"))
        entry = self._context.ledger.by_correlation(asked)
        known = entry is not None and (entry.swarm, entry.signal) == (swarm, args.get("signal"))
        now = self._context.now()
        report = messages.StatusReport(
            kind="status-full",
            message_id=str(uuid.uuid4()),
            timestamp=now,
            role=names.ORCHESTRATOR,
            instance=question.instance,
            swarm_id=swarm,
            enabled=True,
            state=str(self._context.state(swarm)),
            watermark=now,
            max_staleness_sec=0.0,
            totals=messages.Totals(total=1, desired=1, healthy=1, running=1, enabled=1),
            queues=messages.StatusQueues(),
            data={"health": "UP", "correlationId": question.correlation_id, "asked": asked, "known": known},
        )
        await self._context.publisher.status(report)

    async def _outcome(self, key: Key, body: messages.Ready | messages.Error) -> None:
        """End the command that a confirmation is about."""
        entry = self._context.ledger.by_correlation(body.correlation_id)
        if entry is None or not confirms(body, entry) or body.idempotency_key != entry.key:
            raise InputError(f"it confirms {body.correlation_id}, which was not asked for here")
        good = isinstance(body, messages.Ready)
        effect = lifecycle.EFFECTS.get(Signal(entry.signal))
        if isinstance(body, messages.Ready) and effect is not None and body.state != effect:
            raise InputError(f"its state is none that {entry.signal} leads to")
        if entry.end is not None:
            if entry.end.good != good:
                audit = self._context.audit(entry.swarm)
                audit.note("late", body.correlation_id, signal=body.signal, key=_key_text(key))
            return
        if isinstance(body, messages.Ready):
            notes = None if body.notes is None else body.notes[:_TEXT]
            end = CommandEnd(good=True, state=body.state[:_TEXT], notes=notes)
        else:
            end = CommandEnd(
                good=False,
                phase=body.phase,
                code=body.code,
                message=body.message[:_TEXT],
                retryable=body.retryable,
                details=body.details if len(str(body.details)) <= _DETAILS else None,  # the ledger is read as a whole
            )
        await self._commands.end(entry, end, confirmed=body.correlation_id)

    async def _status(self, key: Key, report: messages.StatusReport) -> None:
        """Keep a controller's status, and end the command that a status answers."""
        swarm = report.swarm_id
        correlation_id = report.data.get("correlationId")
        if isinstance(correlation_id, str) and key.status == "status-full":
            entry = self._context.ledger.by_correlation(correlation_id)
            if entry is not None and entry.signal == Signal.STATUS and entry.end is None:
                if (entry.swarm, entry.role, entry.instance) != (swarm, report.role, report.instance):
                    raise InputError(f"it answers {correlation_id}, which was asked of {entry.instance}")
                await self._commands.end(entry, CommandEnd(good=True, state=report.state or "Healthy"))
        if report.role != names.CONTROLLER:
            return
        if swarm is None or swarm not in self._context.swarms or report.instance != controller_instance(swarm):
            raise InputError("no controller of ours has that name")
        if not self._context.swarms[swarm].there:
            return
        if key.kind == "controller-up":
            self._context.audit(swarm).note("controller-up", instance=report.instance)
        else:
            self._keep_status(swarm, report)
        await self._commands.handshake(swarm, report.timestamp)
        if self._context.foreign_signals == "accept" and key.kind == "status":
            self._adopt(swarm, report)

    def _adopt(self, swarm: str, report: messages.StatusReport) -> None:
        """Take over what signals of others made of a swarm, unless a command of this orchestrator is in progress."""
        context = self._context
        if any(one.swarm == swarm and not Signal(one.signal).of_component for one in context.ledger.open()):
            return
        with contextlib.suppress(FarroError):  # an unreadable plan: the next report tries again
            plan = context.files.controller_plan(swarm)
            if plan is not None and requests.read_plan(plan) != context.files.plan(swarm):
                context.files.write_plan(swarm, plan)
        if report.state not in _ADOPTED or report.state == context.state(swarm):
            return
        state = SwarmState(report.state)
        context.audit(swarm).note("adopted", state=state, before=context.state(swarm))
        reason = str(report.data.get("reason", "a signal of another sender failed"))[:_TEXT]
        context.change(
            swarm,
            state=state,
            enabled=state in (SwarmState.STARTING, SwarmState.RUNNING),
            reason=reason if state is SwarmState.FAILED else None,
            there=state is not SwarmState.REMOVED,
        )
        if state is SwarmState.REMOVED:
            self._controllers.removed(swarm)

    def _keep_status(self, swarm: str, report: messages.StatusReport) -> None:
        """Write a status. A delta is merged into the last one: it has only the components that changed."""
        files = self._context.files
        before = (files.status(swarm) or {}).get("data") or {}
        data = {name: value for name, value in report.data.items() if name not in _LISTS} | _lists(report.data)
        if report.kind == "status-delta":
            lines = {line["instance"]: line for line in before.get("components") or []}
            lines |= {line["instance"]: line for line in data.get("components") or []}
            data = {**before, **data, "components": list(lines.values())}
            if "reason" not in report.data:
                data.pop("reason", None)
        files.write_status(
            swarm,
            {
                "heard_at": self._context.now(),
                "state": report.state,
                "watermark": report.watermark,
                "max_staleness_s": report.max_staleness_sec,
                "totals": None if report.totals is None else asdict(report.totals),
                "data": data,
            },
        )

    def _ignore(self, key: str, why: str) -> None:
        """Note a forged, broken or foreign message in the audit log of the swarm that it names."""
        with contextlib.suppress(FarroError):
            swarm = names.read_key(key).scope.swarm
            self._context.audit(swarm).note("ignored", key=key, reason=why)
            return
        self._context.audit(None).note("ignored", key=ascii(key)[:200], reason=why)


def _lists(data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the lists of a status, without elements of a wrong type: the readers of the file rely on the types."""
    found: dict[str, list[Any]] = {}
    for name, shape in _LISTS.items():
        value = data.get(name)
        if isinstance(value, list):
            found[name] = [one for one in value if isinstance(one, shape)]
    if "components" in found:
        found["components"] = [one for one in found["components"] if _is_component_line(one)]
    return found


def _is_component_line(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("instance"), str) and all(
        isinstance(line[name], kind) for name, kind in _LINE.items() if line.get(name) is not None
    )


def _key_text(key: Key) -> str:
    return f"{key.outcome or key.status} {key.signal or ''} {key.scope.words}"
