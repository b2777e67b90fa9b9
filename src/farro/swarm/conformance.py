"""Check whether a trace of the wire keeps the promises of seed 003. The caller captures the trace.

    envelope, key, agree   every message has a known key and a valid body, and both agree
    confirmed              each signal has exactly one confirmation; a status-request has a status-full
    resent                 a message sent again under the same message id has the same content
    correlation            a confirmation echoes its signal; each attempt has its own correlation id
    idempotency            a repeated command gets the stored confirmation, and ev.duplicate
    order, observed        enabled as the work flows, disabled in reverse, each stage after the one before was observed
    namespace              no message is about an unknown swarm, or a component that is in no plan, but to say so
    status, watermark      status messages have all their fields, with possible values
    handshake              ev.ready.swarm-create comes after the controller's ev.ready.swarm-controller
    state, origin          a success has the state of its signal; only the orchestrator sends lifecycle commands

Messages are ordered by the times that they state, since those of two senders may arrive in another order. So the clocks
of several machines must agree to `skew_s`. [test_a_good_trace_has_no_violations, test_every_mutation_is_found]
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from farro.documents import Document
from farro.errors import BadName, FarroError, InputError
from farro.lazy_dataclass import dataclass, replace
from farro.swarm import lifecycle, plan
from farro.swarm.lifecycle import TTL_S
from farro.swarm.plan import SwarmPlan, member_stages
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import NO_TARGET, ControlSignal, Duplicate, Error, Ready, StatusReport
from farro.swarm.wire.names import Key, Scope, Signal

_UUID = re.compile(messages.UUID)


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """A captured message. `at_s` is the time of its arrival in seconds since 1970, which need not be the order of
    sending."""

    at_s: float
    exchange: str
    key: str
    body: bytes
    message_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    rule: str
    key: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key}: {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceMessage:
    """A message with a valid envelope. `at_s` is the time that it states, else that of its arrival."""

    key: Key
    name: str  # the routing key as text
    body: messages.Message
    message_id: str
    at_s: float

    @property
    def swarm(self) -> str | None:
        return self.body.swarm_id if isinstance(self.body, ControlSignal | StatusReport) else self.body.scope.swarm_id


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """A work item on a swarm's own exchange."""

    swarm: str
    queue: str


def check(
    trace: Iterable[Captured],
    *,
    complete: bool = True,
    swarms: Iterable[str] | None = None,
    skew_s: float = 0.0,
    crashes: bool = False,
) -> list[Violation]:
    """Return all violations in a trace.

    `complete` says that every command had time to end. `swarms` are the known swarms; None allows any. `crashes` says
    that a sender or the bus may have died: then a confirmation may come again as the same message.
    """
    decoded, items, wrong = read_trace(trace)
    index = TraceIndex(decoded)
    return [
        *wrong,
        *resent(decoded, crashes),
        *correlations(index),
        *confirmed(index, complete),
        *idempotency(index, complete),
        *states(index),
        *origins(index),
        *handshakes(decoded, skew_s),
        *namespaces(decoded, items, index, None if swarms is None else set(swarms)),
        *statuses(decoded),
        *orders(index, skew_s),
    ]


# --- commands: a signal, its one confirmation, and repetitions of both ---


def resent(decoded: Sequence[TraceMessage], crashes: bool) -> Iterator[Violation]:
    first: dict[str, TraceMessage] = {}
    for one in decoded:
        before = first.setdefault(one.message_id, one)
        if before is one:
            continue
        if before.name != one.name or _timeless(before) != _timeless(one):
            yield violation(
                "resent", one, f"message {one.message_id} was sent before with other content ({before.name})"
            )
        elif isinstance(one.body, Ready | Error) and not crashes:
            yield violation("confirmed", one, f"was sent before: {one.body.correlation_id} is confirmed already")


def _timeless(one: TraceMessage) -> Any:
    """Return the content without its time."""
    if isinstance(one.body, ControlSignal | StatusReport):
        return replace(one.body, timestamp=_EPOCH) if one.body.timestamp is not None else one.body
    return replace(one.body, ts=_EPOCH)


_EPOCH = "1970-01-01T00:00:00Z"


def correlations(index: TraceIndex) -> Iterator[Violation]:
    for one in index.repeated:
        yield violation("correlation", one, "its correlation id is that of another signal: each attempt needs its own")
    repeated = _repeated(index)
    for correlation, ends in index.ends.items():
        asked = index.signals.get(correlation)
        for end in ends:
            assert isinstance(end.body, Ready | Error)
            if asked is None:
                if correlation not in repeated and not _done_without_a_signal(end):
                    yield violation("correlation", end, f"confirms {correlation}, which was never sent")
                continue
            assert isinstance(asked.body, ControlSignal)
            if end.body.signal != asked.body.signal or end.body.idempotency_key != asked.body.idempotency_key:
                yield violation("correlation", end, f"does not echo the signal {asked.name} that it confirms")
            elif end.key.scope != asked.key.scope or (asked.swarm is not None and end.swarm != asked.swarm):
                yield violation(
                    "correlation", end, f"is about something else than the signal {asked.name} that it confirms"
                )


def _done_without_a_signal(end: TraceMessage) -> bool:
    """Return whether the orchestrator confirms this without a signal: it creates swarms itself, removes those without a
    controller, and refuses before it sends."""
    return end.key.signal in (Signal.CREATE, Signal.REMOVE) or isinstance(end.body, Error)


def _repeated(index: TraceIndex) -> set[str]:
    return {one.body.correlation_id for one in index.duplicates if isinstance(one.body, Duplicate)}


def confirmed(index: TraceIndex, complete: bool) -> Iterator[Violation]:
    for one, body in index.commands():
        if one.key.signal is Signal.STATUS:  # not a command: a repeated request is answered again
            answered = index.answers[body.correlation_id] or index.ends[body.correlation_id]
            later = [said for said in index.statuses[str(body.instance)] if said.at_s >= one.at_s]
            if complete and later and not answered:  # a component without later status is dead, which other rules find
                yield violation("confirmed", one, f"was answered by no status-full ({body.correlation_id})")
            continue
        count = len(index.ends[body.correlation_id])
        if count > 1 or (complete and count == 0):
            yield violation("confirmed", one, f"has {count} distinct confirmations, not 1 ({body.correlation_id})")
    for correlation, ends in index.ends.items():
        if correlation not in index.signals and len(ends) > 1:
            yield violation("confirmed", ends[0], f"is one of {len(ends)} distinct confirmations ({correlation})")


def idempotency(index: TraceIndex, complete: bool) -> Iterator[Violation]:
    """Check repeated commands. A command is known by its signal, scope and idempotency key. The orchestrator answers a
    repeated one itself: then there is no second signal, but a second confirmation."""
    attempts: dict[_Command, set[str]] = defaultdict(set)
    results: dict[_Command, set[tuple[str, str]]] = defaultdict(set)
    first: dict[_Command, TraceMessage] = {}
    for one, body in index.commands():
        if one.key.signal is not Signal.STATUS:
            attempts[_command(one)].add(body.correlation_id)
            first.setdefault(_command(one), one)
    for correlation, ends in index.ends.items():
        for end in ends:
            attempts[_command(end)].add(correlation)
            results[_command(end)].add(_result(end))
            first.setdefault(_command(end), end)
    repeated = _repeated(index)
    for command, again in attempts.items():
        if len(results[command]) > 1:
            yield violation(
                "idempotency", first[command], "was confirmed with different results, though it is one command"
            )
        if complete and len(again - repeated) > 1:
            yield violation("idempotency", first[command], "was sent again without an ev.duplicate")
    for one in index.duplicates:
        assert isinstance(one.body, Duplicate)
        if one.body.correlation_id not in attempts[_command(one)] and complete:
            yield violation("idempotency", one, "is about a command that was never sent")
        elif one.body.original_correlation_id not in {None, *attempts[_command(one)]}:
            yield violation("idempotency", one, "names an original that is another command")


_Command = tuple[str, str, Scope]


def _command(one: TraceMessage) -> _Command:
    assert isinstance(one.body, ControlSignal | Ready | Error | Duplicate)
    return (str(one.body.signal), one.body.idempotency_key, one.key.scope)


def _result(end: TraceMessage) -> tuple[str, str]:
    assert isinstance(end.body, Ready | Error)
    return (end.body.result, end.body.state if isinstance(end.body, Ready) else end.body.code)


def states(index: TraceIndex) -> Iterator[Violation]:
    for ends in index.ends.values():
        for end in ends:
            if isinstance(end.body, Ready):
                wanted = lifecycle.EFFECTS.get(Signal(end.body.signal))
                states = ("Running", "Stopped") if wanted is None else (str(wanted),)
                if end.key.signal is Signal.CREATE:
                    states = ("Ready",)  # as in the seed's example; its lifecycle says Creating
                if end.body.state not in states:
                    yield violation("state", end, f"{end.body.state} is not a state that {end.body.signal} leads to")


def origins(index: TraceIndex) -> Iterator[Violation]:
    for one in index.signals.values():
        assert isinstance(one.body, ControlSignal)
        if one.body.origin == CONTROLLER_ORIGIN and one.key.signal is not None and not one.key.signal.of_component:
            yield violation("origin", one, "only the orchestrator may send lifecycle commands")


def handshakes(decoded: Sequence[TraceMessage], skew_s: float) -> Iterator[Violation]:
    up: dict[str | None, float] = {}
    for one in decoded:
        if one.key.kind == "controller-up":
            up.setdefault(one.swarm, one.at_s)
    for one in decoded:
        created = one.key.outcome == "ready" and one.key.signal is Signal.CREATE
        if created and (one.swarm not in up or up[one.swarm] > one.at_s + skew_s):
            yield violation("handshake", one, "came before the controller reported that it is up")


# --- senders: which swarm and component a message may be about ---


def namespaces(
    decoded: Sequence[TraceMessage], items: Sequence[WorkItem], index: TraceIndex, swarms: set[str] | None
) -> Iterator[Violation]:
    homes: dict[str, str] = {}  # instance → its swarm
    queues: dict[str, set[str]] = defaultdict(set)
    for swarm, plans in index.plans.items():
        for _, one in plans:
            homes |= {member.instance: swarm for member in one.members()}
            queues[swarm] |= {name for bee in one.bees for name in (*bee.work.inputs, *bee.work.outputs)}
    for said in decoded:
        if isinstance(said.body, Error) and said.body.code == NO_TARGET:
            continue  # it says so itself
        if swarms is not None and said.swarm is not None and said.swarm not in swarms:
            yield violation("namespace", said, f"is of {said.swarm}, which is no known swarm")
            continue
        body = said.body
        if isinstance(body, StatusReport):
            if body.swarm_id is None:
                continue  # reported by the rule of status
            if body.role == names.CONTROLLER:
                homes.setdefault(body.instance, body.swarm_id)
            if body.instance not in homes and body.swarm_id in index.plans:
                yield violation("namespace", said, f"no plan of {body.swarm_id} has a {body.instance}")
        instance = said.key.scope.instance
        if instance in homes and said.swarm not in (None, homes[instance]):
            yield violation("namespace", said, f"{instance} is of {homes[instance]}, but the message says {said.swarm}")
    for item in items:
        if item.queue not in queues[item.swarm] and (item.swarm in index.plans or swarms is not None):
            key = f"{names.work_exchange(item.swarm)}/{item.queue}"
            yield Violation(rule="namespace", key=key, why="no plan of that swarm has such a queue")


# --- status ---


_FIELDS = ("swarm_id", "state", "watermark", "max_staleness_sec", "totals", "queues")


def statuses(decoded: Sequence[TraceMessage]) -> Iterator[Violation]:
    for one in decoded:
        body = one.body
        if not isinstance(body, StatusReport) or one.key.kind != "status":
            continue
        healthy = body.data.get("health") in ("Healthy", "UP")
        silent = not healthy or (body.totals is not None and body.totals.total == 0)
        may_lack = ("watermark", "max_staleness_sec") if silent else ()  # a component of the swarm never reported
        lacks = [name for name in _FIELDS if getattr(body, name) is None and name not in may_lack]
        if lacks or not body.data:
            yield violation("status", one, f"lacks {', '.join(lacks) or 'data'}")
        yield from _watermark(one, body, healthy)


def _watermark(one: TraceMessage, body: StatusReport, healthy: bool) -> Iterator[Violation]:
    if (body.watermark is None) != (body.max_staleness_sec is None):
        yield violation("watermark", one, "has only one of watermark and maxStalenessSec")
    if body.watermark is not None and body.max_staleness_sec is not None:
        age_s = moment_s(body.timestamp) - moment_s(body.watermark)
        if abs(age_s - body.max_staleness_sec) > 0.1:
            yield violation(
                "watermark", one, f"is {age_s:g} s old by its watermark, and says {body.max_staleness_sec:g}"
            )
        if healthy and body.max_staleness_sec > TTL_S:
            yield violation("watermark", one, f"is Healthy by reports that are {body.max_staleness_sec:g} s old")
    if body.role == names.CONTROLLER and not healthy and not body.data.get("reason"):
        yield violation("watermark", one, "is not Healthy and gives no reason")
    totals = body.totals
    if totals is not None and totals.total is None:
        yield violation("status", one, "has no totals.total")
    elif totals is not None and not totals.running <= min(totals.healthy, totals.enabled) <= (totals.total or 0):
        yield violation("watermark", one, "has impossible totals")


# --- order: stage by stage as the work flows ---


def orders(index: TraceIndex, skew_s: float) -> Iterator[Violation]:
    free_s: dict[str, float] = {}  # swarm → when its last command ended, since one runs at a time
    for one, body in index.commands():
        if one.key.signal not in (Signal.START, Signal.STOP) or body.swarm_id is None:
            continue
        ends = index.ends[body.correlation_id]
        plans = [made for at_s, made in index.plans.get(body.swarm_id, []) if at_s <= one.at_s + skew_s]
        if not ends or not isinstance(ends[0].body, Ready) or not plans:
            continue
        began_s = max(one.at_s, free_s.get(body.swarm_id, 0.0))
        ended_s = free_s[body.swarm_id] = max(ends[0].at_s, began_s)
        walk = _StageWalk(enabling=one.key.signal is Signal.START, began_s=began_s, ended_s=ended_s, skew_s=skew_s)
        yield from walk.faults(one, plans[-1], index)


@dataclass(kw_only=True)
class _StageWalk:
    """One start or stop: when the controller asked each component, and when each reported the effect."""

    enabling: bool
    began_s: float
    ended_s: float
    skew_s: float

    def faults(self, one: TraceMessage, wanted: SwarmPlan, index: TraceIndex) -> Iterator[Violation]:
        stages = [[one.instance for one in stage] for stage in member_stages(wanted)]
        asked: list[tuple[str, float]] = []  # in the stages before
        seen: list[tuple[str, float]] = []
        for stage in stages if self.enabling else reversed(stages):
            asks = {name: at_s for name in stage if (at_s := self._asked(index.asks[name])) is not None}
            for name, at_s in asks.items():
                early = [other for other, then_s in (*asked, *seen) if then_s > at_s + self.skew_s]
                if early:
                    word = "enabled" if self.enabling else "disabled"
                    yield violation("order", one, f"{name} was to be {word} before {early[0]} was")
            for name in stage:
                done_s = self._done(index.statuses[name])
                if done_s is None and self.enabling:
                    yield violation("observed", one, f"was confirmed though {name} never reported that it is enabled")
                if name in asks and done_s is not None:
                    seen.append((name, done_s))
            asked += asks.items()

    def _asked(self, asks: Sequence[TraceMessage]) -> float | None:
        for ask in asks:
            assert isinstance(ask.body, ControlSignal)
            if self._within(ask) and (ask.body.args or {}).get("enabled") is self.enabling:
                return ask.at_s
        return None

    def _done(self, statuses: Sequence[TraceMessage]) -> float | None:
        """Return when a component first reported the effect; earlier than the command if it was already so."""
        before = [one for one in statuses if one.at_s < self.began_s]
        if before and _enabled(before[-1]) is self.enabling:
            return before[-1].at_s
        return next((one.at_s for one in statuses if self._within(one) and _enabled(one) is self.enabling), None)

    def _within(self, one: TraceMessage) -> bool:
        return self.began_s - self.skew_s <= one.at_s <= self.ended_s + self.skew_s


def _enabled(one: TraceMessage) -> bool:
    assert isinstance(one.body, StatusReport)
    return one.body.enabled


# --- reading a trace ---


def read_trace(trace: Iterable[Captured]) -> tuple[list[TraceMessage], list[WorkItem], list[Violation]]:
    """Decode a trace in the order of sending; messages that are not of a swarm become violations."""
    decoded: list[TraceMessage] = []
    items: list[WorkItem] = []
    wrong: list[Violation] = []
    for one in trace:
        try:
            if one.exchange == names.CONTROL:
                decoded.append(_control(one))
            else:
                items.append(_item(one))
        except _Wrong as error:
            wrong.append(Violation(rule=error.rule, key=one.key, why=str(error)))
    decoded.sort(key=lambda one: one.at_s)  # stable: messages of the same millisecond keep their order
    return decoded, items, wrong


class _Wrong(Exception):
    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule


def _item(one: Captured) -> WorkItem:
    found = re.fullmatch(rf"ph\.({names.NAME_PATTERN})\.hive", one.exchange)
    if found is None:
        raise _Wrong("namespace", f"{one.exchange} is not an exchange of a swarm")
    try:
        return WorkItem(swarm=found[1], queue=names.check_name(one.key, "queue"))
    except BadName as error:
        raise _Wrong("key", str(error)) from error


def _control(one: Captured) -> TraceMessage:
    try:
        key = names.read_key(one.key)
    except BadName as error:
        raise _Wrong("key", str(error)) from error
    if _UUID.fullmatch(one.message_id) is None:
        raise _Wrong("envelope", "it has no message id, by which a repeated message is known")
    try:
        body = messages.read(key, one.body)
    except messages.Disagreement as error:
        raise _Wrong("agree", str(error)) from error
    except InputError as error:
        raise _Wrong("envelope", str(error)) from error
    if isinstance(body, ControlSignal | StatusReport) and body.message_id not in (None, one.message_id):
        raise _Wrong("agree", "the body has another message id than its message")
    if key.scope.role is None and messages.scope_of(body).role is not None:
        raise _Wrong("agree", f"the body is about {messages.scope_of(body).words}, of swarm {key.scope.swarm}")
    said = body.timestamp if isinstance(body, ControlSignal | StatusReport) else body.ts
    at_s = one.at_s if said is None else moment_s(said)
    return TraceMessage(key=key, name=one.key, body=body, message_id=one.message_id, at_s=at_s)


def moment_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# --- the index ---

CONTROLLER_ORIGIN = "controller"  # of the signals of a controller to its own components


def _attempt(one: TraceMessage) -> Any:
    """Return what a signal says, without the ids and times of its message."""
    assert isinstance(one.body, ControlSignal)
    return one.key, replace(one.body, message_id=None, timestamp=None)


class TraceIndex:
    """The messages of a trace by subject, each once, however often it was sent."""

    def __init__(self, decoded: Sequence[TraceMessage]) -> None:
        self.signals: dict[str, TraceMessage] = {}  # correlation id → its first signal
        self.repeated: list[TraceMessage] = []  # signals with the correlation id of another
        self.duplicates: list[TraceMessage] = []
        self.ends: dict[str, list[TraceMessage]] = defaultdict(list)  # correlation id → confirmations
        self.answers: dict[str, list[TraceMessage]] = defaultdict(list)  # correlation id → status-full
        self.statuses: dict[str, list[TraceMessage]] = defaultdict(list)  # instance → its status messages
        self.asks: dict[str, list[TraceMessage]] = defaultdict(list)  # instance → signals of its controller
        self.plans: dict[str, list[tuple[float, SwarmPlan]]] = defaultdict(list)
        seen: set[str] = set()
        for one in decoded:
            if one.message_id not in seen:
                seen.add(one.message_id)
                self._note(one)

    def _note(self, one: TraceMessage) -> None:
        body = one.body
        if isinstance(body, ControlSignal):
            before = self.signals.get(body.correlation_id)
            if before is not None:
                if _attempt(before) != _attempt(one):  # else it was delivered again
                    self.repeated.append(one)
                return
            self.signals[body.correlation_id] = one
            if one.key.signal is Signal.TEMPLATE and body.swarm_id is not None:
                self._plan(one, body)
            if one.key.signal is Signal.CONFIG and body.origin == CONTROLLER_ORIGIN:
                self.asks[str(body.instance)].append(one)
        elif isinstance(body, Ready | Error):
            self.ends[body.correlation_id].append(one)
        elif isinstance(body, Duplicate):
            self.duplicates.append(one)
        elif isinstance(body, StatusReport) and one.key.kind == "status":
            self.statuses[body.instance].append(one)
            about = body.data.get("correlationId")
            if isinstance(about, str) and body.kind == "status-full":
                self.answers[about].append(one)

    def _plan(self, one: TraceMessage, body: ControlSignal) -> None:
        data: Any = (body.args or {}).get("plan", body.args)
        with contextlib.suppress(FarroError):  # whether the controller refused a bad plan is checked by another rule
            self.plans[str(body.swarm_id)].append((one.at_s, plan.load(Document(data, one.name))))

    def commands(self) -> Iterator[tuple[TraceMessage, ControlSignal]]:
        """Yield the signals, which must all be confirmed."""
        for one in self.signals.values():
            assert isinstance(one.body, ControlSignal)
            yield one, one.body


def violation(rule: str, one: TraceMessage, why: str) -> Violation:
    return Violation(rule=rule, key=one.name, why=why)
