"""Carry out commands: begin them in order, send them to controllers, and end them by a confirmation or a timeout.

- One command of a swarm runs at a time; stop and remove do not wait for a start or a template, which they end. Commands
  for components run beside it.
- The first end that is written is the end of the command. A controller's confirmation ends it. Without one in time, the
  controller is forbidden to confirm the command any more (given-up.json) and killed, and only then the orchestrator
  confirms it as an error: there are never two confirmations. [test_a_silent_controller_is_given_up_with_one_error]
- A signal that repeats a command (same idempotency key) is not sent: the orchestrator answers it with ev.duplicate and
  the confirmation of the first.
"""

from __future__ import annotations

from farro.errors import FarroError, IllegalTransition, InputError, TryAgain
from farro.jobs.times import parse_timestamp
from farro.swarm import lifecycle, reconcile, requests
from farro.swarm.bus.port import Binding
from farro.swarm.files import FOLDER, controller_instance
from farro.swarm.ledger import CommandEnd, LedgerEntry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.orchestrator.state import ORIGIN, ControllerLauncher, OrchestratorContext
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal
from farro.worker.process_runtime import last_lines

SETTLE_S = 2.0  # after a controller was killed: its last messages are read before it counts as silent
_DURATIONS = {Signal.CREATE: "provision", Signal.TEMPLATE: "ready", Signal.START: "start"}
_OVERTAKING = (Signal.STOP, Signal.REMOVE)


class CommandRunner:
    """Carry out commands of the ledger.

    What only this process knows of an entry (deadlines, what it has carried out) is kept in memory by the entry's
    `id()`, and is lost with the process.
    """

    def __init__(self, context: OrchestratorContext, controllers: ControllerLauncher) -> None:
        self._context = context
        self._controllers = controllers
        self._until_s: dict[int, float] = {}  # deadlines of commands that this process began or resumed
        self._carried_out: set[int] = set()  # commands for which this process has done all that it can
        self._silenced_s: dict[int, float] = {}
        self._unused_keys: set[str] = set()  # routing keys that no command needs any more, still bound

    # --- receiving ---

    async def receive(self, signal: ControlSignal) -> None:
        """Note a requested command; one that was requested before is answered as before."""
        context, audit = self._context, self._context.audit(signal.swarm_id)
        kind, entry = context.ledger.receive(signal, context.now())
        if kind == "redelivered":
            return  # an earlier process noted it and died before it removed the request's file
        audit.note("asked", signal.correlation_id, signal=signal.signal, scope=signal.scope.words, origin=signal.origin)
        if kind != "new":
            audit.note("duplicate", signal.correlation_id, signal=signal.signal, original=entry.correlations[0])

    # --- a turn ---

    async def run_once(self) -> None:
        """Begin, resume or time out every open command, and send confirmations that are still owed."""
        for entry in self._context.ledger.open():
            try:
                if entry.started_at is None:
                    if not self._must_wait(entry):
                        await self._begin(entry)
                elif id(entry) not in self._carried_out:
                    await self._resume(entry)
                else:
                    await self._check_time(entry)
            except TryAgain:
                raise
            except FarroError as error:  # a file of its swarm is unreadable: commands of other swarms go on
                self._context.log("error", f"{entry.signal} {entry.scope.words}: {error}", {"swarm": entry.swarm})
        for key in list(self._unused_keys):
            await self._unbind(key)
        for entry, correlation in self._context.ledger.owed():
            await self._confirm(entry, correlation)

    def creating(self) -> set[str]:
        """Return the swarms whose controller is being launched by a command."""
        return {str(one.swarm) for one in self._context.ledger.open() if one.signal == Signal.CREATE}

    def _must_wait(self, entry: LedgerEntry) -> bool:
        """Return whether an earlier command of the swarm is in progress that this one must not overtake."""
        signal = Signal(entry.signal)
        for other in self._context.ledger.open():
            if other is entry:
                return False
            before = Signal(other.signal)
            if other.swarm != entry.swarm or before.of_component:
                continue
            if signal.of_component and before in (Signal.START, Signal.STOP):
                continue
            if signal in _OVERTAKING and before in (Signal.TEMPLATE, Signal.START) and other.started_at is not None:
                continue
            return True
        return False

    async def _begin(self, entry: LedgerEntry) -> None:
        context, signal, swarm = self._context, Signal(entry.signal), str(entry.swarm)
        try:
            requests.check_state(context.files, signal, swarm, context.state(swarm))
            if signal is Signal.CREATE:
                if context.state(swarm) is SwarmState.REMOVED:
                    await self._controllers.clean(swarm)
                    context.change(swarm, created_at=context.now(), durations={}, failures={}, reason=None)
                await self._start(entry, reconcile.limit_s(signal, None))
                return
            if not context.swarms[swarm].there and signal is not Signal.REMOVE:
                raise IllegalTransition(f"the controller of swarm {swarm} could not be started; create it again")
            self._check_arguments(entry, signal, swarm)
            limit_s = reconcile.limit_s(signal, context.files.plan(swarm))
        except TryAgain:
            raise  # not the command's fault: it goes on in a later turn
        except FarroError as error:
            code = "BAD_REQUEST" if isinstance(error, InputError) else "ILLEGAL_STATE"
            await self.end(entry, CommandEnd(good=False, code=code, message=str(error)), keep_state=True)
            return
        if signal is Signal.REMOVE and not context.swarms[swarm].there:  # there is no controller that could do it
            await self.end(entry, CommandEnd(good=True, state=str(SwarmState.REMOVED)))
            return
        await self._start(entry, limit_s)

    def _check_arguments(self, entry: LedgerEntry, signal: Signal, swarm: str) -> None:
        files = self._context.files
        if signal is Signal.TEMPLATE:
            data = (entry.args or {}).get("plan", entry.args)
            requests.check_plan(files, swarm, requests.read_plan(data))
            files.write_plan(swarm, data)
        elif signal is Signal.CONFIG or (signal is Signal.STATUS and entry.role != names.CONTROLLER):
            requests.check_member(files, swarm, str(entry.role), str(entry.instance))

    async def _start(self, entry: LedgerEntry, limit_s: float) -> None:
        self._context.ledger.start(entry, self._context.now(), limit_s)
        self._until_s[id(entry)] = self._context.clock.monotonic_s() + limit_s
        await self._resume(entry)

    async def _resume(self, entry: LedgerEntry) -> None:
        """Carry out a command that was begun, perhaps by an earlier process that died. Its time limit goes on."""
        if id(entry) not in self._until_s:
            limit_s = entry.limit_s or 0.0
            spent_s = (self._context.clock.now() - parse_timestamp(str(entry.started_at))).total_seconds()
            self._until_s[id(entry)] = self._context.clock.monotonic_s() + limit_s - min(max(0.0, spent_s), limit_s)
        await self._carry_out(entry)
        if entry.end is None:
            self._carried_out.add(id(entry))

    async def _carry_out(self, entry: LedgerEntry) -> None:
        """Do all steps of a command. Safe to repeat after a restart: each step finds that it was done, or does it."""
        context, signal, swarm = self._context, Signal(entry.signal), str(entry.swarm)
        if signal is Signal.CREATE:
            context.files.make_swarm(swarm)
            context.change(swarm, state=SwarmState.CREATING, there=True, enabled=False, reason=None)
            context.audit(swarm).note("creating", entry.correlations[0])
            await self._launch(entry, swarm)
            return
        if signal in lifecycle.DURING:
            context.change(swarm, state=lifecycle.DURING[signal], enabled=signal is Signal.START)
        await self._send(entry)

    async def _launch(self, entry: LedgerEntry, swarm: str) -> None:
        await self._controllers.bind(swarm)
        adopted = self._controllers.alive(swarm)
        why = await self._controllers.launch(swarm)
        if why is not None:
            message = f"the controller of {swarm} could not be started: {why}"
            end = CommandEnd(good=False, phase="runtime", code="LAUNCH_FAILED", message=message, retryable=True)
            await self.end(entry, end)
        elif adopted:
            await self._context.request_status(swarm)  # its controller-up message went to an earlier process

    async def _send(self, entry: LedgerEntry) -> None:
        """Send a command to its controller or component. If it is sent again, it has the same message id."""
        context, signal = self._context, Signal(entry.signal)
        keys = _answer_keys(entry)
        if keys:
            await context.bus.declare(context.queue, [Binding(names.CONTROL, key) for key in keys])
        context.audit(entry.swarm).note("sent", entry.correlations[0], signal=entry.signal, scope=entry.scope.words)
        await context.publisher.signal(
            signal,
            entry.scope,
            entry.args,
            origin=ORIGIN,
            correlation_id=entry.correlations[0],
            idempotency_key=entry.key,
        )

    # --- timeouts ---

    async def _check_time(self, entry: LedgerEntry) -> None:
        swarm, now_s = str(entry.swarm), self._context.clock.monotonic_s()
        signal = Signal(entry.signal)
        over = now_s >= self._until_s[id(entry)]
        if signal is Signal.CREATE:
            if over or self._controllers.alive(swarm) is False:
                await self.end(entry, self._no_handshake(swarm, over, entry.limit_s))
        elif signal is Signal.STATUS:
            if over:
                message = f"{entry.instance} did not answer in {entry.limit_s:g} s"
                await self.end(entry, CommandEnd(good=False, code="STATUS_TIMEOUT", message=message, retryable=True))
        elif entry.given_up and id(entry) in self._silenced_s:
            if now_s >= self._silenced_s[id(entry)] + SETTLE_S and await self._queue_is_read():
                message = (
                    f"the controller of {swarm} did not confirm {entry.signal} in {entry.limit_s:g} s; everything was "
                    f"kept, and a new controller goes on. Its log: {FOLDER}/{swarm}/logs/"
                    f"{controller_instance(swarm)}.log"
                )
                await self.end(entry, CommandEnd(good=False, code="CONTROLLER_SILENT", message=message, retryable=True))
        elif over:
            await self._give_up(entry, swarm)

    async def _give_up(self, entry: LedgerEntry, swarm: str) -> None:
        """Forbid the controller to confirm a command, then kill it."""
        context = self._context
        known = context.files.given_up(swarm)
        more = [one for one in entry.correlations if one not in known]
        context.files.write_given_up(swarm, [*known, *more][-1000:])
        context.ledger.give_up(entry)
        context.audit(swarm).note("given-up", entry.correlations[0], signal=entry.signal)
        await self._controllers.silence(swarm)
        self._silenced_s[id(entry)] = context.clock.monotonic_s()

    async def _queue_is_read(self) -> bool:
        """Return whether no message waits: a confirmation sent before the controller was killed still counts."""
        depth = await self._context.bus.depth(self._context.queue)
        return depth is None or (depth.ready == 0 and not depth.taken)

    def _no_handshake(self, swarm: str, over: bool, limit_s: float | None) -> CommandEnd:
        log = last_lines(self._context.controller_spec(swarm).log, lines=20)
        why = f"was not up after {limit_s:g} s" if over else "ended before it was up"
        return CommandEnd(
            good=False,
            code="HANDSHAKE_TIMEOUT" if over else "CONTROLLER_DIED",
            message=f"the controller of {swarm} {why}" + (f"; it said: {log.splitlines()[-1]}" if log else ""),
            retryable=True,
            details={"log": log} if log else None,
        )

    # --- ends ---

    async def handshake(self, swarm: str, at: str) -> None:
        """End the create command of a swarm whose controller reported at the time `at`."""
        now = self._context.now()
        for entry in self._context.ledger.open():
            began = entry.started_at
            if (entry.signal, entry.swarm) != (Signal.CREATE, swarm) or began is None:
                continue
            if at >= began or began > now:  # not a message of an earlier controller; or the clock was set back
                await self.end(entry, CommandEnd(good=True, state=str(SwarmState.CREATING)))

    async def end(
        self, entry: LedgerEntry, end: CommandEnd, *, confirmed: str | None = None, keep_state: bool = False
    ) -> None:
        """End a command and confirm it.

        `confirmed` is the correlation id whose confirmation a controller has sent; the others are sent here. The
        desired state is written first: a process that dies in between ends the command again, in the same way.
        """
        context, signal, swarm = self._context, Signal(entry.signal), str(entry.swarm)
        if not signal.of_component and not keep_state:
            self._change_state(entry, end, signal, swarm)
        elif not end.good and swarm in context.swarms:
            self._count_failure(swarm, end)
        answered = entry.correlations if signal is Signal.STATUS and end.good else [confirmed] if confirmed else []
        context.ledger.end(entry, end, context.now(), confirmed=answered)
        self._until_s.pop(id(entry), None)
        self._carried_out.discard(id(entry))
        self._silenced_s.pop(id(entry), None)
        context.audit(swarm).note(
            "ready" if end.good else "error",
            entry.correlations[0],
            signal=entry.signal,
            scope=entry.scope.words,
            state=end.state,
            code=end.code,
            message=end.message,
        )
        if signal is Signal.REMOVE and end.good:  # before anything is published, which may fail
            self._controllers.removed(swarm)
        for correlation in list(entry.unsent):
            await self._confirm(entry, correlation)
        self._unused_keys.update(_answer_keys(entry))
        for key in list(self._unused_keys):
            await self._unbind(key)

    async def _unbind(self, key: str) -> None:
        """Remove a binding that no open command needs; tried again in each turn until it succeeds."""
        if not any(key in _answer_keys(other) for other in self._context.ledger.open()):
            await self._context.bus.unbind(self._context.queue, Binding(names.CONTROL, key))
        self._unused_keys.discard(key)

    async def _confirm(self, entry: LedgerEntry, correlation: str) -> None:
        if correlation != entry.correlations[0]:
            await self._context.publisher.duplicate(entry, correlation)
        await self._context.publisher.confirm(entry, correlation)
        self._context.ledger.sent(entry, correlation)

    def _change_state(self, entry: LedgerEntry, end: CommandEnd, signal: Signal, swarm: str) -> None:
        """Write what the end of a command means for the desired state of its swarm."""
        context = self._context
        if not end.good:
            self._count_failure(swarm, end)
            there = context.swarms[swarm].there and signal is not Signal.CREATE
            if end.code != "SUPERSEDED":  # then another command is in progress and decides the state
                context.change(swarm, state=SwarmState.FAILED, reason=end.message, there=there)
            return
        changes: dict[str, object] = {"state": SwarmState(str(end.state)), "reason": None}
        if signal in _DURATIONS and entry.started_at is not None:
            took_s = (context.clock.now() - parse_timestamp(entry.started_at)).total_seconds()
            changes["durations"] = {**context.swarms[swarm].durations, _DURATIONS[signal]: round(max(0.0, took_s), 3)}
        if signal is Signal.REMOVE:
            changes |= {"there": False, "enabled": False}
        context.change(swarm, **changes)

    def _count_failure(self, swarm: str, end: CommandEnd) -> None:
        failures = self._context.swarms[swarm].failures
        code = end.code or "FAILED"
        self._context.change(swarm, failures={**failures, code: failures.get(code, 0) + 1})


def _answer_keys(entry: LedgerEntry) -> list[str]:
    """Return the routing keys that are bound only while a command for a component is in progress."""
    scope = Scope(role=entry.role, instance=entry.instance) if entry.role is not None else None
    if scope is None or entry.role == names.CONTROLLER:
        return []
    if entry.signal == Signal.STATUS:
        return [names.status_key("status-full", str(entry.role), str(entry.instance))]
    return [names.event_key(outcome, Signal.CONFIG, scope) for outcome in ("ready", "error")]


def confirms(body: messages.Ready | messages.Error, entry: LedgerEntry) -> bool:
    """Return whether a confirmation is about that command."""
    return body.signal == entry.signal and messages.scope_of(body) == entry.scope
