"""The controller of one swarm (the seed's Marshal): apply the plan, start and stop in order, confirm observed effects.

- One swarm command runs at a time; config updates run beside it. A command begins when it is in the ledger, and only
  then is its signal acknowledged: a controller that dies goes on with it after its restart.
- A confirmation is sent when the effect was observed, once per signal (ledger.py).
- Components outlive their controller: the next one finds them in the runtime's records and by their status messages.
- Only `swarm-remove` deletes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.errors import BusTrouble, FarroError, IllegalTransition, InputError
from farro.lazy_dataclass import replace
from farro.log.structured import Log
from farro.swarm import lifecycle, reconcile
from farro.swarm import plan as plans
from farro.swarm.bus import LostQueueCheck
from farro.swarm.bus.port import Binding, Bus, Consumer, Delivery
from farro.swarm.controller import actions
from farro.swarm.controller.actions import ORIGIN, ComponentActions, ControllerContext
from farro.swarm.controller.confirmations import Confirmations
from farro.swarm.controller.observed import ComponentObserver, HangDetector
from farro.swarm.controller.state import ControllerState
from farro.swarm.controller.summary import Summary, queues_of, status_report
from farro.swarm.ledger import CommandEnd, CommandLedger, LedgerEntry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.reconcile import CONFIG_S, CommandGoal, ReconcileDecision, Target
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Key, Signal
from farro.worker.runtime import Runtime

_TARGETS = {
    Signal.TEMPLATE: Target.PROVISIONED,
    Signal.START: Target.ENABLED,
    Signal.STOP: Target.DISABLED,
    Signal.REMOVE: Target.GONE,
}
_STARTED_ONCE = (SwarmState.RUNNING, SwarmState.STOPPING, SwarmState.STOPPED)
_MAINTAINED = (SwarmState.READY, SwarmState.RUNNING, SwarmState.STOPPED)
LOOK_S = 1.0  # between two looks at the runtime, and between two while a command is in progress
LOOK_SOON_S = 0.2
SHARE = 0.05  # of its time that a controller may spend looking; with many components it looks less often
REST_S = 0.01  # between two turns at least, and four times what the last one took: many messages make one turn
BEAT_S = 1.0  # between two checks whether a heartbeat is due
TIDY_S = 30.0  # between two requests to the runtime to limit its logs


class Controller:
    def __init__(
        self,
        context: ControllerContext,
        bus: Bus,
        runtime: Runtime,
        *,
        log: Log,
        now: Callable[[], str],
        durable: bool = True,
    ) -> None:
        self._context = context
        self._bus = bus
        self._runtime = runtime
        self._log = log
        self._publisher = ControlPublisher(bus, now)
        self._ledger = CommandLedger(f"{context.folder}/commands.json", durable=durable)
        self._state = ControllerState.load(f"{context.folder}/controller.json", durable=durable)
        self._observer = ComponentObserver(runtime)
        self._audit = SwarmAudit(context.folder, ORIGIN, now, log)
        self._hang_detector = HangDetector()
        self._summary = Summary(self._observer, now, self._audit.note)
        self._confirmations = Confirmations(self._ledger, self._publisher, self._audit, context.folder)
        self._actions = ComponentActions(
            context, bus, runtime, self._state, self._observer, self._confirmations, self._publisher, self._audit
        )
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._began_s: dict[tuple[str, str], float] = {}  # signal and key of a command → monotonic time
        self._look_s = 0.0  # when the runtime is asked next
        self._planned: tuple[plans.SwarmPlan | None, dict[str, plans.Member]] = (None, {})
        self._last_reported: tuple[Any, ...] = ()
        self._reported_s = 0.0
        self._tidied_s = time.monotonic()
        self._removing = False  # the controller ends once the remove is confirmed

    @property
    def removed(self) -> bool:
        return self._removing and not self._ledger.owed()

    # --- running ---

    async def run(self) -> None:
        """Run until `stop`, or until the swarm was removed."""
        context = self._context
        queue = names.control_queue(names.CONTROLLER, context.instance)
        keys = names.controller_keys(context.swarm, context.instance)
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])
        await self._actions.resume()
        # Before the first message: a status of a component that is not known to be launched would be ignored.
        self._look(time.monotonic())
        control = await self._bus.consume(queue, prefetch=64)
        listening = asyncio.create_task(self._listen(control))
        await self._publisher.controller_up(context.swarm, context.instance)
        beating = asyncio.create_task(self._beat())
        for one in self._members().values():  # components of an earlier controller report at once
            await self._actions.request_status(one)
        lost_queue = LostQueueCheck(self._bus, queue)
        try:
            while not self._stopped.is_set() and not self.removed:
                self._woken.clear()
                began_s = time.monotonic()
                pause_s = await self._turn()
                took_s = time.monotonic() - began_s
                await lost_queue.check_if_due(began_s)
                if listening.done():
                    listening.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
                        if not self._stopped.is_set():
                            await asyncio.sleep(max(REST_S, 4 * took_s))
        finally:
            listening.cancel()
            beating.cancel()
            await asyncio.gather(listening, beating, return_exceptions=True)
            await self._actions.close()
            await control.close()
            self._ledger.close()

    def stop(self) -> None:
        """End the controller. Its components go on; the next controller finds them."""
        self._stopped.set()
        self._woken.set()

    # --- receiving ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            news = True
            try:
                news = await self._receive(delivery)
            except InputError as error:
                self._log("warning", "ignored", {"key": delivery.message.key, "why": str(error)})
                self._audit.note("ignored", key=ascii(delivery.message.key)[:200], reason=str(error))
            except BusTrouble as error:  # a turn confirms what is in the ledger; a lost status is requested again
                self._log("error", str(error), {})
            delivery.ack_soon()
            if news:
                self._woken.set()

    async def _receive(self, delivery: Delivery) -> bool:
        """Take a message. Return whether it needs a turn: a component's unchanged status does not."""
        key = names.read_key(delivery.message.key)
        try:
            received = messages.read(key, delivery.message.body)
            if isinstance(received, ControlSignal) and not self._is_ours(received):
                raise InputError(f"ControlSignal: it names another swarm than {self._context.swarm}")
        except InputError as error:
            await self._refuse(key, delivery.message.body, error)
            raise
        if isinstance(received, messages.StatusReport):
            if received.role == names.ORCHESTRATOR:
                return await self._take_answer(received)
            ours = received.swarm_id == self._context.swarm and received.role != names.CONTROLLER
            return ours and self._observer.hear(received, time.monotonic())
        if not isinstance(received, ControlSignal):
            return False
        if key.signal is Signal.STATUS:
            await self._report(full=True, correlation_id=received.correlation_id)
            return False
        allowed = key.signal is Signal.CONFIG or self._context.foreign_signals == "accept"
        return await self._confirmations.receive(replace(received, swarm_id=self._context.swarm), allowed=allowed)

    async def _refuse(self, key: Key, body: bytes, error: InputError) -> None:
        """Confirm a signal that cannot be read as an error, if it has the ids that a confirmation needs."""
        ids = messages.ids(body)
        if ids is None or key.kind != "signal" or key.signal in (None, Signal.STATUS):
            return
        scope = key.scope
        signal = ControlSignal(
            correlation_id=ids.correlation_id,
            idempotency_key=ids.idempotency_key,
            signal=str(key.signal),  # type: ignore[arg-type]
            swarm_id=self._context.swarm,
            role=scope.role,
            instance=scope.instance,
        )
        await self._confirmations.refuse(signal, "BAD_SIGNAL", str(error))

    async def _take_answer(self, report: messages.StatusReport) -> bool:
        refused = self._confirmations.answered(report)
        if refused is not None:
            await self._end_foreign(refused, "the orchestrator did not send it", retryable=False)
        return True

    async def _end_foreign(self, entry: LedgerEntry, why: str, *, retryable: bool) -> None:
        message = f"{entry.signal} is refused: {why} (swarm.foreign_signals)"
        await self._end(entry, CommandEnd(good=False, code="NOT_ORCHESTRATOR", message=message, retryable=retryable))

    def _is_ours(self, signal: messages.ControlSignal) -> bool:
        """Return whether a signal names this swarm in its body, or is for one of our components."""
        if signal.swarm_id is not None:
            return signal.swarm_id == self._context.swarm
        return signal.instance in self._members() or signal.instance == self._context.instance

    # --- a turn ---

    async def _turn(self) -> float:
        """Do what is due now, and return how long the next turn may wait."""
        now_s = time.monotonic()
        self._hang_detector.turn(now_s, plans.Timeouts() if self._state.plan is None else self._state.plan.timeouts)
        if now_s >= self._look_s or (self._ledger.open() and now_s >= self._look_s - LOOK_S + LOOK_SOON_S):
            self._look(now_s)
        try:
            await self._confirmations.confirm()
            if any(one in _TARGETS for one in self._confirmations.end_given_up()):
                self._state.change(state=SwarmState.FAILED)
            await self._check_updates(now_s)
            commands = [one for one in self._ledger.open() if Signal(one.signal) in _TARGETS]
            for entry in [one for one in commands if not one.allowed]:
                commands.remove(entry)
                if await self._confirmations.ask(entry, self._context.instance, ORIGIN, now_s):
                    await self._end_foreign(entry, "no orchestrator says that it sent it", retryable=True)
            while len(commands) > 1 and superseded(commands):
                message = f"{commands[1].signal} was requested while it was in progress"
                await self._end(commands.pop(0), CommandEnd(good=False, code="SUPERSEDED", message=message))
            if commands:
                await self._advance(commands[0], now_s)
            else:
                await self._maintain(now_s)
            await self._report_changes(now_s)
            if now_s - self._tidied_s >= TIDY_S:
                self._tidied_s = now_s
                await asyncio.to_thread(self._runtime.tidy)
        except BusTrouble as error:
            self._hang_detector.bus_failed()
            self._log("error", str(error), {})
        return 0.0 if self.removed else LOOK_SOON_S if self._ledger.open() else LOOK_S

    def _look(self, now_s: float) -> None:
        """Ask the runtime which components live."""
        self._observer.look(self._members(), now_s)
        self._look_s = time.monotonic() + max(LOOK_S, (time.monotonic() - now_s) / SHARE)

    async def _advance(self, entry: LedgerEntry, now_s: float) -> None:
        """Go on with the current command, and end it when its effect was observed or it failed."""
        signal = Signal(entry.signal)
        command = (entry.signal, entry.key)
        if command not in self._began_s:
            if not await self._begin(entry, signal):
                return
            self._began_s[command] = now_s - self._confirmations.spent_s(entry)
        state = lifecycle.EFFECTS[signal]
        if self._state.plan is None:  # only a remove gets here
            self._removing = True
            await self._end(entry, CommandEnd(good=True, state=str(state)))
            return
        goal = CommandGoal(
            plan=self._state.plan,
            target=_TARGETS[signal],
            begun_s=self._began_s[command],
        )
        decision = reconcile.reconcile(goal, self._observer.seen, now_s)
        await self._act(decision, now_s)
        if decision.failed is not None:
            self._state.change(state=SwarmState.FAILED)
            end = CommandEnd(good=False, code=decision.code, message=decision.failed, retryable=True)
            await self._end(entry, end)
        elif decision.done:
            if signal is Signal.REMOVE:
                await actions.delete_queues(self._bus, self._state.plan, self._state.former)
            self._state.change(state=state)
            await self._check_updates(now_s)  # before the confirmation, after which this process may be ended
            await self._report_changes(now_s)  # before it, so that its receiver sees the new state
            self._removing = signal is Signal.REMOVE
            forced = f"ended by force: {', '.join(decision.degraded)}" if decision.degraded else None
            await self._end(entry, CommandEnd(good=True, state=str(state), notes=forced))

    async def _begin(self, entry: LedgerEntry, signal: Signal) -> bool:
        """Check a command and record its goal before it is carried out. Return False if it was refused."""
        try:
            resumed = entry.started_at is not None or self._state.state is lifecycle.EFFECTS[signal]
            if not resumed:  # else it was begun, or had its effect, before its controller died
                lifecycle.check_allowed(signal, self._state.state, self._context.swarm)
            if entry.started_at is None:
                self._ledger.start(entry, self._publisher.now())
            if signal is Signal.TEMPLATE:
                await self._actions.apply(entry)
            elif self._state.plan is None and signal is not Signal.REMOVE:
                raise IllegalTransition(f"swarm {self._context.swarm} has no plan yet; send one with swarm-template")
            await self._actions.end_leaving()
        except BusTrouble:
            raise  # not the command's fault: it begins at the next turn
        except FarroError as error:
            code = "BAD_PLAN" if isinstance(error, InputError) else "ILLEGAL_STATE"
            await self._end(entry, CommandEnd(good=False, code=code, message=str(error)))
            return False
        self._state.change(state=lifecycle.DURING.get(signal, self._state.state), enabled=signal is Signal.START)
        for name, seen in list(self._observer.seen.items()):  # a new command tries everything again
            starts = seen.starts if seen.alive else 0
            seen = replace(seen, asked_s=None, failure=None, forced=False)
            self._observer.put(name, replace(seen, finished=None, starts=starts))
        return True

    async def _maintain(self, now_s: float) -> None:
        """Restart components that died or hang, and enable or disable those in the wrong state. Used while no command
        runs."""
        if self._state.plan is None or self._state.state not in _MAINTAINED:
            return
        limits = self._state.plan.timeouts
        for one in self._members().values():
            seen = self._observer.of(one.instance)
            shall_work = self._state.shall_work(one.instance)
            if seen.failure is not None or seen.finished is not None:
                continue
            if not seen.launched or not seen.alive:
                await self._actions.launch(one, now_s)
                continue
            if self._hang_detector.needs_poll(seen, limits, now_s):
                self._actions.poll(one.instance, now_s)
            if self._hang_detector.hangs(seen, self._state.plan.bees[one.bee], limits, now_s):
                await self._actions.end_hung(one.instance, seen.silence_s(now_s, self._hang_detector.since_s))
                continue
            asked = seen.asked_s is not None and now_s - seen.asked_s <= CONFIG_S
            if seen.healthy and seen.enabled not in (None, shall_work) and not asked:
                await self._actions.ask([(one, shall_work)], now_s)

    async def _act(self, decision: ReconcileDecision, now_s: float) -> None:
        """Do what `reconcile` decided, and restart components that died meanwhile."""
        assert self._state.plan is not None
        together = [one.instance for one in decision.do if one.what == "deprovision"]
        if together:
            await asyncio.to_thread(self._runtime.stop, together, self._state.plan.timeouts.stop)
            for name in together:
                self._observer.forget(name)
        members = self._members()
        asks = [
            (members[one.instance], one.what == "enable") for one in decision.do if one.what in ("enable", "disable")
        ]
        if asks:
            await self._actions.ask(asks, now_s)
        for one in decision.do:
            await self._actions.do(members[one.instance], one, now_s)
        if self._state.state is SwarmState.STOPPING:
            return  # a component that died meanwhile stays stopped
        for member in members.values():
            seen = self._observer.of(member.instance)
            if seen.launched and not seen.alive and seen.failure is None and seen.finished is None:
                await self._actions.launch(member, now_s)

    # --- config updates ---

    async def _check_updates(self, now_s: float) -> None:
        """End the config updates whose components reported a result, or will not."""
        updates = [one for one in self._ledger.open() if Signal(one.signal) is Signal.CONFIG]
        ends = [(entry, end) for entry in updates if (end := self._update_end(entry, now_s)) is not None]
        if ends:
            await self._end_all(ends)

    def _update_end(self, entry: LedgerEntry, now_s: float) -> CommandEnd | None:
        """Return the end of a config update; None if its component may still report a result under its signal's id."""
        began_s = self._began_s.setdefault((entry.signal, entry.key), now_s)
        instance = str(entry.instance)
        report = next(filter(None, map(self._observer.updates.get, entry.correlations)), None)
        if report is not None:
            wrong = report.data["update"].get("error")
            if wrong:
                return CommandEnd(good=False, code="CONFIG_REFUSED", message=str(wrong)[:1000])
            if not entry.own:
                more = {name: value for name, value in (entry.args or {}).items() if name != "enabled"}
                self._state.update(instance, report.enabled, more)
            return CommandEnd(good=True, state="Running" if report.enabled else "Stopped")
        seen = self._observer.of(instance)
        if entry.own and not (seen.launched and seen.alive):
            return CommandEnd(good=False, code="COMPONENT_GONE", message=f"{instance} ended first", retryable=True)
        if now_s - began_s >= CONFIG_S:
            message = f"{instance} reported no result for {CONFIG_S:g} s"
            return CommandEnd(good=False, code="CONFIG_TIMEOUT", message=message, retryable=True)
        return None

    # --- reporting ---

    async def _end(self, entry: LedgerEntry, end: CommandEnd) -> None:
        await self._end_all([(entry, end)])

    async def _end_all(self, ends: Sequence[tuple[LedgerEntry, CommandEnd]]) -> None:
        for entry, end in ends:
            if not end.good and not entry.own:
                member = self._members().get(str(entry.instance))
                self._summary.error(f"{entry.signal}: {end.message}", entry.correlations[0], member)
            self._began_s.pop((entry.signal, entry.key), None)
        await self._confirmations.end_all(ends)

    async def _report_changes(self, now_s: float) -> None:
        now = self._aggregate(now_s)
        ends = tuple((one.launches, one.end_s, one.switching) for one in map(self._observer.of, self._members()))
        what = (self._state.state, now.health, now.totals, ends)
        if what != self._last_reported:
            self._last_reported, self._reported_s = what, now_s
            await self._report(full=False)
        else:
            await self._report_if_due(now_s)

    async def _report_if_due(self, now_s: float) -> None:
        if now_s - self._reported_s >= lifecycle.HEARTBEAT_S:
            self._reported_s = now_s
            await self._report(full=True)

    async def _beat(self) -> None:
        """Send heartbeats beside the turns: a turn may wait for a component that does not end."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._report_if_due(time.monotonic())
            except BusTrouble:
                self._hang_detector.bus_failed()

    async def _report(self, *, full: bool, correlation_id: str | None = None) -> None:
        # Awaited first: the state that is reported must be that of the moment in which the report is sent.
        plan = self._state.plan
        depths = await actions.queue_depths(self._bus, plan) if full and plan is not None else []
        now_s, at = time.monotonic(), self._publisher.now()
        state, queues = self._state.state, queues_of(self._state.plan)
        report = status_report(
            self._context, state, self._aggregate(now_s), full=full, at=at, about=correlation_id, queues=queues
        )
        off = [name for name in self._members() if state in _STARTED_ONCE and not self._state.shall_work(name)]
        restarting = state is not SwarmState.FAILED
        lines = self._summary.lines(list(self._members().values()), now_s, off, restarting=restarting)
        changed = self._summary.changed(lines)
        report.data["components"] = lines if full else changed
        report.data["errors"] = self._summary.errors()
        if full and plan is not None:
            report.data["queues"] = depths
            report.data["warnings"] = list(plans.start_order(plan).warnings)
        await self._publisher.status(report)

    def _aggregate(self, now_s: float) -> lifecycle.Aggregate:
        return lifecycle.aggregate(self._members(), self._observer.seen, now_s)

    def _members(self) -> Mapping[str, plans.Member]:
        """Return the components by instance, in the order of the plan; computed once per plan."""
        known, members = self._planned
        if known is not self._state.plan and self._state.plan is not None:
            members = {one.instance: one for one in self._state.plan.members()}
            self._planned = (self._state.plan, members)
        return members


def superseded(commands: Sequence[LedgerEntry]) -> bool:
    """Return whether the first command is a start or template that a later stop or remove makes pointless."""
    overtaken = any(Signal(later.signal) in (Signal.STOP, Signal.REMOVE) for later in commands[1:])
    return overtaken and Signal(commands[0].signal) in (Signal.TEMPLATE, Signal.START)
