"""Read a captured trace: decode every message, check its envelope, and index the messages by subject.

A trace is sorted by the times that the messages state. The index holds each message once, however often it was sent.
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
from farro.lazy_dataclass import dataclass
from farro.swarm import plan
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal, Duplicate, Error, Ready, StatusReport
from farro.swarm.wire.names import Key, Signal

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


def read(trace: Iterable[Captured]) -> tuple[list[TraceMessage], list[WorkItem], list[Violation]]:
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

CONTROLLER_ORIGIN = "controller"  # signals of a controller to its own components are not confirmed


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
            if body.correlation_id in self.signals:
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
        """Yield the signals that must be confirmed."""
        for one in self.signals.values():
            assert isinstance(one.body, ControlSignal)
            if one.body.origin != CONTROLLER_ORIGIN:
                yield one, one.body


def violation(rule: str, one: TraceMessage, why: str) -> Violation:
    return Violation(rule=rule, key=one.name, why=why)
