"""Commands in the orchestrator's hands: begun in their order, sent, ended by what was heard, or given up.

Hearing lives in orchestrator; the controllers' own lives in tending; what may follow what, in swarm.lifecycle.

- Of one swarm, one command at a time; stop and remove do not wait for a start or a template, which they end. What is
  for components goes beside it.
- The first end that is written is the command's end. A confirmation by the controller ends it; where there is none in
  time, the controller is forbidden to give one any more (given-up.json) and ended, and only then the orchestrator
  confirms the command as an error: never two. [test_a_silent_controller_is_given_up_with_one_error]
- A signal that repeats a command of the same idempotency key is not sent: the orchestrator answers it with ev.duplicate
  and the confirmation of the first.
"""

from __future__ import annotations

from farro.errors import FarroError, IllegalTransition, InputError, TryAgain
from farro.jobs.times import parse_timestamp
from farro.swarm import checks, timeouts
from farro.swarm.bus.port import Binding
from farro.swarm.files import FOLDER, controller
from farro.swarm.ledger import End, Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.logs import last_words
from farro.swarm.orchestrator.controllers import Tending
from farro.swarm.orchestrator.state import ORIGIN, Realm
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal

SETTLE_S = 2.0  # between silencing a controller and saying that it was silent: what it had said is heard first
_DURING = {Signal.START: SwarmState.STARTING, Signal.STOP: SwarmState.STOPPING, Signal.REMOVE: SwarmState.REMOVING}
_DURATIONS = {Signal.CREATE: "provision", Signal.TEMPLATE: "ready", Signal.START: "start"}
_HASTY = (Signal.STOP, Signal.REMOVE)


class Commands:
    def __init__(self, realm: Realm, tending: Tending) -> None:
        self._realm = realm
        self._tending = tending
        self._until_s: dict[int, float] = {}  # of a command that was sent in this life, by its identity: its deadline
        self._carried: set[int] = set()  # … and all that there is to be done about it was done in this life
        self._silenced_s: dict[int, float] = {}
        self._unheard: set[str] = set()  # keys of ends and answers that nobody waits for any more, still bound
        self._told_again: set[str] = set()  # correlation ids for which ev.duplicate was said in this life

    # --- taking ---

    async def receive(self, told: ControlSignal) -> None:
        """Note a wish; what was asked for before is answered as before."""
        realm, trail = self._realm, self._realm.trail(told.swarm_id)
        known = realm.ledger.find(told)
        if known is not None and told.correlation_id in known.correlations:
            return  # noted in a life before this one, which died before it took the wish away
        kind, entry = realm.ledger.receive(told, realm.now())
        trail.note("asked", told.correlation_id, signal=told.signal, scope=told.scope.words, origin=told.origin)
        if kind != "new":
            trail.note("duplicate", told.correlation_id, signal=told.signal, original=entry.correlations[0])
            await self._tell_duplicate(entry, told.correlation_id)

    # --- a turn ---

    async def advance(self) -> None:
        for entry in self._realm.ledger.open():
            try:
                if entry.started_at is None:
                    if not self._waits(entry):
                        await self._begin(entry)
                elif id(entry) not in self._carried:
                    await self._resume(entry)
                else:
                    await self._check_time(entry)
            except TryAgain:
                raise
            except FarroError as error:  # something of its swarm cannot be read: the others' go on
                self._realm.log("error", f"{entry.signal} {entry.scope.words}: {error}", {"swarm": entry.swarm})
        for key in list(self._unheard):
            await self._unbind(key)
        for entry, correlation in self._realm.ledger.owed():
            await self._confirm(entry, correlation)

    def creating(self) -> set[str]:
        """Swarms whose controller is being launched by a command."""
        return {str(one.swarm) for one in self._realm.ledger.open() if one.signal == Signal.CREATE}

    def _waits(self, entry: Entry) -> bool:
        """Whether an earlier command of its swarm goes on that it must not overtake."""
        signal = Signal(entry.signal)
        for other in self._realm.ledger.open():
            if other is entry:
                return False
            before = Signal(other.signal)
            if other.swarm != entry.swarm or before.of_component:
                continue
            if signal.of_component and before in (Signal.START, Signal.STOP):
                continue
            if signal in _HASTY and before in (Signal.TEMPLATE, Signal.START) and other.started_at is not None:
                continue
            return True
        return False

    async def _begin(self, entry: Entry) -> None:
        realm, signal, swarm = self._realm, Signal(entry.signal), str(entry.swarm)
        try:
            checks.check_state(realm.place, signal, swarm, realm.state(swarm))
            if signal is Signal.CREATE:
                if realm.state(swarm) is SwarmState.REMOVED:
                    await self._tending.clean(swarm)
                    realm.keep(swarm, created_at=realm.now(), durations={}, failures={}, reason=None)
                await self._start(entry, timeouts.limit_s(signal, None))
                return
            if not realm.swarms[swarm].there and signal is not Signal.REMOVE:
                raise IllegalTransition(f"the controller of swarm {swarm} could not be started; create it again")
            self._check_more(entry, signal, swarm)
            limit_s = timeouts.limit_s(signal, realm.place.plan(swarm))
        except TryAgain:
            raise  # not the command's fault: it goes on in a later turn
        except FarroError as error:
            code = "BAD_REQUEST" if isinstance(error, InputError) else "ILLEGAL_STATE"
            await self.end(entry, End(good=False, code=code, message=str(error)), keep_state=True)
            return
        if signal is Signal.REMOVE and not realm.swarms[swarm].there:  # nobody is there who could do it
            await self.end(entry, End(good=True, state=str(SwarmState.REMOVED)))
            return
        await self._start(entry, limit_s)

    def _check_more(self, entry: Entry, signal: Signal, swarm: str) -> None:
        if signal is Signal.TEMPLATE:
            data = (entry.args or {}).get("plan", entry.args)
            checks.check_plan(self._realm.place, swarm, checks.read_plan(data))
            self._realm.place.keep_plan(swarm, data)
        elif signal is Signal.CONFIG or (signal is Signal.STATUS and entry.role != names.CONTROLLER):
            checks.check_member(self._realm.place, swarm, str(entry.role), str(entry.instance))

    async def _start(self, entry: Entry, limit_s: float) -> None:
        self._realm.ledger.start(entry, self._realm.now(), limit_s)
        self._until_s[id(entry)] = self._realm.clock.monotonic_s() + limit_s
        await self._resume(entry)

    async def _carry_out(self, entry: Entry) -> None:
        """Also again, after a restart: every step finds that it was done, or does it."""
        realm, signal, swarm = self._realm, Signal(entry.signal), str(entry.swarm)
        if signal is Signal.CREATE:
            realm.place.make_swarm(swarm)
            realm.keep(swarm, state=SwarmState.CREATING, there=True, enabled=False, reason=None)
            realm.trail(swarm).note("creating", entry.correlations[0])
            await self._launch(entry, swarm)
            return
        if signal in _DURING:
            realm.keep(swarm, state=_DURING[signal], enabled=signal is Signal.START)
        await self._send(entry)

    async def _launch(self, entry: Entry, swarm: str) -> None:
        await self._tending.bind(swarm)
        adopted = self._tending.alive(swarm)
        why = await self._tending.launch(swarm)
        if why is not None:
            message = f"the controller of {swarm} could not be started: {why}"
            await self.end(
                entry, End(good=False, phase="runtime", code="LAUNCH_FAILED", message=message, retryable=True)
            )
        elif adopted:
            await self._realm.request_status(swarm)  # it said that it is up to somebody before us

    async def _send(self, entry: Entry) -> None:
        """One that is sent again is the same message, and its reader knows that."""
        realm, signal = self._realm, Signal(entry.signal)
        extra = _answers(entry)
        if extra:
            await realm.bus.declare(realm.queue, [Binding(names.CONTROL, key) for key in extra])
        realm.trail(entry.swarm).note("sent", entry.correlations[0], signal=entry.signal, scope=entry.scope.words)
        await realm.voice.signal(
            signal,
            entry.scope,
            entry.args,
            origin=ORIGIN,
            correlation_id=entry.correlations[0],
            idempotency_key=entry.key,
        )

    async def _resume(self, entry: Entry) -> None:
        """Begun, perhaps in a life before this one, which may have died at any moment of it, or while the bus was away:
        what is left is done, and its time goes on."""
        if id(entry) not in self._until_s:
            limit_s = entry.limit_s or 0.0
            spent_s = (self._realm.clock.now() - parse_timestamp(str(entry.started_at))).total_seconds()
            self._until_s[id(entry)] = self._realm.clock.monotonic_s() + limit_s - min(max(0.0, spent_s), limit_s)
        await self._carry_out(entry)
        if entry.end is None:
            self._carried.add(id(entry))

    async def _check_time(self, entry: Entry) -> None:
        realm, swarm, now_s = self._realm, str(entry.swarm), self._realm.clock.monotonic_s()
        signal = Signal(entry.signal)
        over = now_s >= self._until_s[id(entry)]
        if signal is Signal.CREATE:
            if over or self._tending.alive(swarm) is False:
                await self.end(entry, self._no_handshake(swarm, over, entry.limit_s))
        elif signal is Signal.STATUS:
            if over:
                message = f"{entry.instance} did not answer in {entry.limit_s:g} s"
                await self.end(entry, End(good=False, code="STATUS_TIMEOUT", message=message, retryable=True))
        elif entry.given_up and id(entry) in self._silenced_s:
            if now_s >= self._silenced_s[id(entry)] + SETTLE_S and await self._heard_all():
                message = (
                    f"the controller of {swarm} did not confirm {entry.signal} in {entry.limit_s:g} s; everything was "
                    f"kept, and a new controller goes on. Its log: {FOLDER}/{swarm}/logs/{controller(swarm)}.log"
                )
                await self.end(entry, End(good=False, code="CONTROLLER_SILENT", message=message, retryable=True))
        elif over:
            known = realm.place.given_up(swarm)
            more = [one for one in entry.correlations if one not in known]
            realm.place.keep_given_up(swarm, [*known, *more][-1000:])
            realm.ledger.give_up(entry)
            realm.trail(swarm).note("given-up", entry.correlations[0], signal=entry.signal)
            await self._tending.silence(swarm)
            self._silenced_s[id(entry)] = realm.clock.monotonic_s()

    async def _heard_all(self) -> bool:
        """Whether nothing waits to be heard: a confirmation that was sent before its controller was silenced counts."""
        depth = await self._realm.bus.depth(self._realm.queue)
        return depth is None or (depth.ready == 0 and not depth.taken)

    def _no_handshake(self, swarm: str, over: bool, limit_s: float | None) -> End:
        said = last_words(self._realm.component(swarm).log, lines=20)
        why = f"was not up after {limit_s:g} s" if over else "ended before it was up"
        return End(
            good=False,
            code="HANDSHAKE_TIMEOUT" if over else "CONTROLLER_DIED",
            message=f"the controller of {swarm} {why}" + (f"; it said: {said.splitlines()[-1]}" if said else ""),
            retryable=True,
            details={"log": said} if said else None,
        )

    # --- ends ---

    async def handshake(self, swarm: str, at: str) -> None:
        """Its controller is up: a create that launched it has had its effect."""
        now = self._realm.now()
        for entry in self._realm.ledger.open():
            began = entry.started_at
            if (entry.signal, entry.swarm) != (Signal.CREATE, swarm) or began is None:
                continue
            if at >= began or began > now:  # not the word of one before it; but somebody may have set the clock back
                await self.end(entry, End(good=True, state=str(SwarmState.CREATING)))

    def of(self, correlation_id: str) -> Entry | None:
        for entry in reversed(self._realm.ledger.entries.values()):
            if correlation_id in entry.correlations:
                return entry
        return None

    async def end(self, entry: Entry, end: End, *, confirmed: str | None = None, keep_state: bool = False) -> None:
        """`confirmed`: the correlation id whose confirmation was heard; else all of them are for us to send. What is
        wanted of the swarm is written first: whoever dies in between ends the command again, in the same way."""
        realm, signal, swarm = self._realm, Signal(entry.signal), str(entry.swarm)
        if not signal.of_component and not keep_state:
            self._remember(entry, end, signal, swarm)
        elif not end.good and swarm in realm.swarms:
            self._count(swarm, end)
        answered = entry.correlations if signal is Signal.STATUS and end.good else [confirmed] if confirmed else []
        realm.ledger.end(entry, end, realm.now(), confirmed=answered)
        self._until_s.pop(id(entry), None)
        self._carried.discard(id(entry))
        self._silenced_s.pop(id(entry), None)
        realm.trail(swarm).note(
            "ready" if end.good else "error",
            entry.correlations[0],
            signal=entry.signal,
            scope=entry.scope.words,
            state=end.state,
            code=end.code,
            message=end.message,
        )
        if signal is Signal.REMOVE and end.good:  # noted before anything is said, which may fail
            self._tending.removed(swarm)
        for correlation in list(entry.unsent):
            await self._confirm(entry, correlation)
        self._unheard.update(_answers(entry))
        for key in list(self._unheard):
            await self._unbind(key)

    async def _unbind(self, key: str) -> None:
        """Nobody asks that component any more; tried again in each turn until it is done."""
        if not any(key in _answers(other) for other in self._realm.ledger.open()):
            await self._realm.bus.unbind(self._realm.queue, Binding(names.CONTROL, key))
        self._unheard.discard(key)

    async def _tell_duplicate(self, entry: Entry, correlation: str) -> None:
        await self._realm.voice.duplicate(entry, correlation)
        self._told_again.add(correlation)

    async def _confirm(self, entry: Entry, correlation: str) -> None:
        if correlation != entry.correlations[0] and correlation not in self._told_again:
            await self._tell_duplicate(entry, correlation)  # a life before this one may have died before it did
        self._told_again.discard(correlation)
        await self._realm.voice.confirm(entry, correlation)
        self._realm.ledger.sent(entry, correlation)

    def _remember(self, entry: Entry, end: End, signal: Signal, swarm: str) -> None:
        """What the end of a command means for its swarm."""
        realm = self._realm
        if not end.good:
            self._count(swarm, end)
            there = realm.swarms[swarm].there and signal is not Signal.CREATE
            if end.code != "SUPERSEDED":  # another command goes on, and says how it ends
                realm.keep(swarm, state=SwarmState.FAILED, reason=end.message, there=there)
            return
        changes: dict[str, object] = {"state": SwarmState(str(end.state)), "reason": None}
        if signal in _DURATIONS and entry.started_at is not None:
            took_s = (realm.clock.now() - parse_timestamp(entry.started_at)).total_seconds()
            changes["durations"] = {**realm.swarms[swarm].durations, _DURATIONS[signal]: round(max(0.0, took_s), 3)}
        if signal is Signal.REMOVE:
            changes |= {"there": False, "enabled": False}
        realm.keep(swarm, **changes)

    def _count(self, swarm: str, end: End) -> None:
        failures = self._realm.swarms[swarm].failures
        code = end.code or "FAILED"
        self._realm.keep(swarm, failures={**failures, code: failures.get(code, 0) + 1})


def _answers(entry: Entry) -> list[str]:
    """Keys that are heard only while a command about a component goes on."""
    scope = Scope(role=entry.role, instance=entry.instance) if entry.role is not None else None
    if scope is None or entry.role == names.CONTROLLER:
        return []
    if entry.signal == Signal.STATUS:
        return [names.status_key("status-full", str(entry.role), str(entry.instance))]
    return [names.event_key(outcome, Signal.CONFIG, scope) for outcome in ("ready", "error")]


def agrees(entry: Entry, body: messages.Ready | messages.Error) -> bool:
    """Whether a confirmation is about that command."""
    said = body.scope
    own = (entry.swarm, entry.role, entry.instance)
    return body.signal == entry.signal and own == (said.swarm_id, said.role, said.instance)
