"""The controller of one swarm (the seed's Marshal): applies the plan, walks its order, confirms what it has seen.

What to do next is decided by swarm.reconcile; what is known lives in watching; what was asked for, in the ledger.

- One swarm command at a time; config updates beside it. A command begins when it is noted in the ledger, and only then
  is its signal acknowledged: a controller that dies goes on with it when it is started again.
- A confirmation is sent when the effect was observed, once per signal (ledger).
- Components outlive their controller: the next one finds them by the runtime's records and by what they say.
- Nothing is deleted but by `swarm-remove`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from farro.errors import BusTrouble, FarroError, IllegalTransition, InputError
from farro.log.structured import Log
from farro.swarm import lifecycle, order, plan, reconcile, status
from farro.swarm.audit import Trail
from farro.swarm.bus.port import Binding, Bus, Consumer, Delivery
from farro.swarm.component.lost_queue import Ears
from farro.swarm.controller import queues
from farro.swarm.controller.actions import ORIGIN, Ground, Hands
from farro.swarm.controller.apply_plan import Applying
from farro.swarm.controller.confirm import Answers, superseded
from farro.swarm.controller.hang_detection import Attention
from farro.swarm.controller.observed import Watch
from farro.swarm.controller.state import GivenUp, Kept
from farro.swarm.controller.summary import Summary
from farro.swarm.ledger import CommandLedger, End, Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import Voice, queues_of, report
from farro.swarm.reconcile import Target, Verdict, Wanted
from farro.swarm.timeouts import CONFIG_S
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Runtime

_TARGETS = {
    Signal.TEMPLATE: (Target.PROVISIONED, SwarmState.READY),
    Signal.START: (Target.ENABLED, SwarmState.RUNNING),
    Signal.STOP: (Target.DISABLED, SwarmState.STOPPED),
    Signal.REMOVE: (Target.GONE, SwarmState.REMOVED),
}
_DURING = {Signal.START: SwarmState.STARTING, Signal.STOP: SwarmState.STOPPING, Signal.REMOVE: SwarmState.REMOVING}
_STARTED_ONCE = (SwarmState.RUNNING, SwarmState.STOPPING, SwarmState.STOPPED)
LOOK_S = 1.0  # how often the runtime is asked who lives, and how often while something is on its way
LOOK_SOON_S = 0.2
SHARE = 0.05  # of its time that a controller may look; the more components, the rarer
REST_S = 0.01  # between two turns at least, and four times what the last one took: a storm of words is one turn
BEAT_S = 1.0  # how often it is looked whether a heartbeat is due
TIDY_S = 30.0  # how often the runtime is asked to keep logs within bounds


class Controller:
    def __init__(
        self, ground: Ground, bus: Bus, runtime: Runtime, *, log: Log, now: Callable[[], str], durable: bool = True
    ) -> None:
        self._ground = ground
        self._bus = bus
        self._runtime = runtime
        self._log = log
        self._voice = Voice(bus, now)
        self._ledger = CommandLedger(f"{ground.folder}/commands.json", durable=durable)
        self._kept = Kept.load(f"{ground.folder}/controller.json", durable=durable)
        self._watch = Watch(runtime)
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._begun: dict[tuple[str, str], float] = {}  # signal and key of a command → when, on our clock
        self._look_s = 0.0  # when the runtime is asked next
        self._known: tuple[plan.SwarmPlan | None, dict[str, plan.Member]] = (None, {})
        self._last_told: tuple[Any, ...] = ()
        self._told_s = 0.0
        self._tidied_s = time.monotonic()
        self._attention = Attention()
        self._summary = Summary(self._watch, now, lambda *what, **more: self._trail.note(*what, **more))
        self._trail = Trail(ground.folder, ORIGIN, now, log)
        self._applying = Applying(ground, bus, runtime, self._kept, self._watch, self._voice)
        self._hands = Hands(ground, runtime, self._watch, self._voice, self._trail, self._kept.config_of)
        self._answers = Answers(self._ledger, self._voice, self._trail, GivenUp(f"{ground.folder}/given-up.json"))
        self._removing = False  # … and this controller ends when that is confirmed

    @property
    def removed(self) -> bool:
        return self._removing and not self._ledger.owed()

    # --- life ---

    async def run(self) -> None:
        """Until `stop`, or until the swarm was removed."""
        ground = self._ground
        queue = names.control_queue(names.CONTROLLER, ground.instance)
        keys = names.controller_keys(ground.swarm, ground.instance)
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])
        await self._applying.resume()
        # Before anybody is heard: the word of one that was not launched, as far as we know, counts for nothing.
        self._look(time.monotonic())
        control = await self._bus.consume(queue, prefetch=64)
        listening = asyncio.create_task(self._listen(control))
        await self._voice.up(ground.swarm, ground.instance)
        beating = asyncio.create_task(self._beat())
        for one in self._members().values():  # those that a controller before us started tell at once how they are
            await self._hands.request_status(one)
        ears = Ears(self._bus, queue)
        try:
            while not self._stopped.is_set() and not self.removed:
                self._woken.clear()
                began_s = time.monotonic()
                pause_s = await self._turn()
                took_s = time.monotonic() - began_s
                await ears.check_sometimes(began_s)
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
            await self._hands.close()
            await control.close()
            self._ledger.close()

    def stop(self) -> None:
        """Components go on; the next controller finds them."""
        self._stopped.set()
        self._woken.set()

    # --- hearing ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            news = True
            try:
                news = await self._hear(delivery)
            except InputError as error:
                self._log("warning", "ignored", {"key": delivery.message.key, "why": str(error)})
                self._trail.note("ignored", key=ascii(delivery.message.key)[:200], reason=str(error))
            except (
                BusTrouble
            ) as error:  # what is in the ledger is confirmed in a turn; another answer is asked for again
                self._log("error", str(error), {})
            delivery.ack_soon()
            if news:
                self._woken.set()

    async def _hear(self, delivery: Delivery) -> bool:
        """Whether anything is to be done about it: a component that says the same as before is no news."""
        key = names.read_key(delivery.message.key)
        body = delivery.message.body
        if key.status is not None:
            told = messages.read_status(body, key.status, key.scope)
            ours = told.swarm_id == self._ground.swarm and told.role != names.CONTROLLER
            return ours and self._watch.hear(told, time.monotonic())
        if key.kind != "signal" or key.signal is None:
            return False
        signal = messages.read_signal(body, key.signal, key.scope)
        if not self._ours(signal):
            raise InputError(f"ControlSignal: it is of another swarm than {self._ground.swarm}")
        if signal.origin == ORIGIN:
            return False
        if key.signal is Signal.STATUS:
            await self._say(full=True, correlation_id=signal.correlation_id)
            return False
        return await self._answers.receive(signal)

    def _ours(self, signal: messages.ControlSignal) -> bool:
        """A component's signal names its swarm in the body, or is about one of our members."""
        if signal.swarm_id is not None:
            return signal.swarm_id == self._ground.swarm
        return signal.instance in self._members()

    # --- a turn ---

    async def _turn(self) -> float:
        """Do what is to be done now; how long nothing more is, at most."""
        now_s = time.monotonic()
        self._attention.turn(now_s, plan.Timeouts() if self._kept.plan is None else self._kept.plan.timeouts)
        if now_s >= self._look_s or (self._ledger.open() and now_s >= self._look_s - LOOK_S + LOOK_SOON_S):
            self._look(now_s)
        try:
            for entry, _ in self._ledger.owed():
                await self._answers.confirm(entry)
            if any(one in _TARGETS for one in self._answers.forget()):
                self._kept.change(state=SwarmState.FAILED)
            for entry in [one for one in self._ledger.open() if Signal(one.signal) is Signal.CONFIG]:
                await self._updated(entry, now_s)
            commands = [one for one in self._ledger.open() if Signal(one.signal) in _TARGETS]
            while len(commands) > 1 and superseded(commands):
                message = f"{commands[1].signal} was asked for while it went on"
                await self._end(commands.pop(0), End(good=False, code="SUPERSEDED", message=message))
            if commands:
                await self._advance(commands[0], now_s)
            else:
                await self._maintain(now_s)
            await self._say_if_changed(now_s)
            if now_s - self._tidied_s >= TIDY_S:
                self._tidied_s = now_s
                await asyncio.to_thread(self._runtime.tidy)
        except BusTrouble as error:
            self._attention.lapse()
            self._log("error", str(error), {})
        return 0.0 if self.removed else LOOK_SOON_S if self._ledger.open() else LOOK_S

    def _look(self, now_s: float) -> None:
        """Ask the runtime who lives."""
        self._watch.look(self._members(), now_s)
        self._look_s = time.monotonic() + max(LOOK_S, (time.monotonic() - now_s) / SHARE)

    async def _advance(self, entry: Entry, now_s: float) -> None:
        signal = Signal(entry.signal)
        command = (entry.signal, entry.key)
        if command not in self._begun:
            if not await self._begin(entry, signal):
                return
            self._begun[command] = now_s - self._answers.spent_s(entry)
        target, state = _TARGETS[signal]
        if self._kept.plan is None:  # only to be removed
            self._removing = True
            await self._end(entry, End(good=True, state=str(state)))
            return
        wanted = Wanted(
            plan=self._kept.plan, order=order.order(self._kept.plan), target=target, begun_s=self._begun[command]
        )
        verdict = reconcile.reconcile(wanted, self._watch.seen, now_s)
        await self._do(verdict, now_s)
        if verdict.failed is not None:
            self._kept.change(state=SwarmState.FAILED)
            await self._end(entry, End(good=False, code=verdict.code, message=verdict.failed, retryable=True))
        elif verdict.done:
            if signal is Signal.REMOVE:
                await queues.drop(self._bus, self._kept.plan, self._kept.former)
            self._kept.change(state=state)
            await self._say_if_changed(now_s)  # before the confirmation: whoever waited for it then sees the new state
            self._removing = signal is Signal.REMOVE
            forced = f"ended by force: {', '.join(verdict.degraded)}" if verdict.degraded else None
            await self._end(entry, End(good=True, state=str(state), notes=forced))

    async def _begin(self, entry: Entry, signal: Signal) -> bool:
        """Whether it can be done at all; then what it wants is written before anything is done."""
        try:
            resumed = entry.started_at is not None or self._kept.state is _TARGETS[signal][1]
            if not resumed:  # else it was begun, or had its effect, before its controller died
                lifecycle.check_allowed(signal, self._kept.state, self._ground.swarm)
            if entry.started_at is None:
                self._ledger.start(entry, self._voice.now())
            if signal is Signal.TEMPLATE:
                await self._applying.apply(entry)
            elif self._kept.plan is None and signal is not Signal.REMOVE:
                raise IllegalTransition(f"swarm {self._ground.swarm} has no plan yet; send one with swarm-template")
            await self._applying.part()
        except BusTrouble:
            raise  # not the command's fault: it begins at the next turn
        except FarroError as error:
            code = "BAD_PLAN" if isinstance(error, InputError) else "ILLEGAL_STATE"
            await self._end(entry, End(good=False, code=code, message=str(error)))
            return False
        self._kept.change(state=_DURING.get(signal, self._kept.state), enabled=signal is Signal.START)
        for name, seen in list(self._watch.seen.items()):  # a new command asks anew
            starts = seen.starts if seen.alive else 0  # … and one that was given up is tried again
            seen = replace(seen, asked_s=None, failure=None, forced=False)
            self._watch.put(name, replace(seen, finished=None, starts=starts))
        return True

    async def _maintain(self, now_s: float) -> None:
        """Nothing was asked for: what died is started again, and is as it was wanted."""
        if self._kept.plan is None or self._kept.state not in (
            SwarmState.READY,
            SwarmState.RUNNING,
            SwarmState.STOPPED,
        ):
            return
        limits = self._kept.plan.timeouts
        for one in self._members().values():
            seen = self._watch.of(one.instance)
            wants = self._kept.wants(one.instance)
            if seen.failure is not None or seen.finished is not None:
                continue
            if not seen.launched or not seen.alive:
                await self._hands.launch(self._kept.plan, one, now_s)
                continue
            if self._attention.asks(seen, limits, now_s):
                self._hands.poll(one.instance, now_s)
            if self._attention.hangs(seen, self._kept.plan.bees[one.bee], limits, now_s):
                await self._hands.end_hung(one.instance, seen.silence_s(now_s, self._attention.since_s))
                continue
            asked = seen.asked_s is not None and now_s - seen.asked_s <= CONFIG_S
            if seen.healthy and seen.enabled not in (None, wants) and not asked:
                await self._hands.ask(one, wants, now_s)

    # --- doing ---

    async def _do(self, verdict: Verdict, now_s: float) -> None:
        assert self._kept.plan is not None
        together = [one.instance for one in verdict.do if one.what == "deprovision"]
        if together:
            await asyncio.to_thread(self._runtime.stop, together, self._kept.plan.timeouts.stop)
            for name in together:
                self._watch.forget(name)
        members = self._members()
        asks = [one for one in verdict.do if one.what in ("enable", "disable")]
        await asyncio.gather(*(self._hands.do(self._kept.plan, members[one.instance], one, now_s) for one in asks))
        for one in verdict.do:
            if one.what not in ("deprovision", "enable", "disable"):
                await self._hands.do(self._kept.plan, members[one.instance], one, now_s)
        if self._kept.state is SwarmState.STOPPING:
            return  # who died meanwhile is stopped
        for member in members.values():
            seen = self._watch.of(member.instance)
            if seen.launched and not seen.alive and seen.failure is None and seen.finished is None:
                await self._hands.launch(self._kept.plan, member, now_s)

    # --- config updates of others ---

    async def _updated(self, entry: Entry, now_s: float) -> None:
        """The component says what it did with it, under the signal's correlation id."""
        begun = self._begun.setdefault((entry.signal, entry.key), now_s)
        said = self._watch.said.get(str(entry.instance))
        update = said.data.get("update") if said is not None else None
        if isinstance(update, dict) and update.get("correlationId") in entry.correlations and said is not None:
            wrong = update.get("error")
            if wrong:
                await self._end(entry, End(good=False, code="CONFIG_REFUSED", message=str(wrong)[:1000]))
                return
            more = {name: value for name, value in (entry.args or {}).items() if name != "enabled"}
            self._kept.change(switched=(str(entry.instance), said.enabled), configured=(str(entry.instance), more))
            await self._end(entry, End(good=True, state="Running" if said.enabled else "Stopped"))
        elif now_s - begun >= CONFIG_S:
            message = f"{entry.instance} said nothing about it for {CONFIG_S:g} s"
            await self._end(entry, End(good=False, code="CONFIG_TIMEOUT", message=message, retryable=True))

    # --- saying ---

    async def _end(self, entry: Entry, end: End) -> None:
        if not end.good:
            member = self._members().get(str(entry.instance))
            self._summary.error(f"{entry.signal}: {end.message}", entry.correlations[0], member)
        await self._answers.end(entry, end)
        self._begun.pop((entry.signal, entry.key), None)

    async def _say_if_changed(self, now_s: float) -> None:
        told = self._aggregate(now_s)
        counts = (told.desired, told.healthy, told.running, told.enabled)
        ends = tuple((one.launches, one.end_s) for one in map(self._watch.of, self._members()))
        what = (self._kept.state, told.health, counts, ends)
        if what != self._last_told:
            self._last_told, self._told_s = what, now_s
            await self._say(full=False)
        else:
            await self._say_if_due(now_s)

    async def _say_if_due(self, now_s: float) -> None:
        if now_s - self._told_s >= status.HEARTBEAT_S:
            self._told_s = now_s
            await self._say(full=True)

    async def _beat(self) -> None:
        """Beside the turns: one of them may wait for a component that does not end."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._say_if_due(time.monotonic())
            except BusTrouble:
                self._attention.lapse()

    async def _say(self, *, full: bool, correlation_id: str | None = None) -> None:
        now_s, at = time.monotonic(), self._voice.now()
        state, io = self._kept.state, queues_of(self._kept.plan)
        told = report(self._ground, state, self._aggregate(now_s), full=full, at=at, about=correlation_id, queues=io)
        off = [name for name in self._members() if state in _STARTED_ONCE and not self._kept.wants(name)]
        tended = state is not SwarmState.FAILED
        lines = self._summary.lines(list(self._members().values()), now_s, off, tended=tended)
        changed = self._summary.changed(lines)
        told.data["components"] = lines if full else changed
        told.data["errors"] = self._summary.errors()
        if full and self._kept.plan is not None:
            told.data["queues"] = await queues.depths(self._bus, self._kept.plan)
            told.data["warnings"] = list(order.order(self._kept.plan).warnings)
        await self._voice.status(told)

    def _aggregate(self, now_s: float) -> status.Aggregate:
        return status.aggregate(self._members(), self._watch.seen, now_s)

    def _members(self) -> Mapping[str, plan.Member]:
        """By instance, in the order of the plan; worked out once a plan."""
        known, members = self._known
        if known is not self._kept.plan and self._kept.plan is not None:
            members = {one.instance: one for one in self._kept.plan.members()}
            self._known = (self._kept.plan, members)
        return members
