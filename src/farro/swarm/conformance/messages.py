"""What was heard on the wire, read: each message with its key, its envelope and the time that it tells.

Whether the messages together keep the rules is judged in commands, speaking and walking.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from farro.errors import BadName, InputError
from farro.lazy_dataclass import dataclass
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal, Duplicate, Error, Ready, Status
from farro.swarm.wire.names import Key, Scope, Signal

Envelope = ControlSignal | Ready | Error | Duplicate | messages.Warning | Status
_UUID = re.compile(messages.UUID)


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """As it came. `at_s`: seconds since 1970 when it was heard, which is not the order in which things were said."""

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
class Heard:
    """A message whose envelope holds. `at_s` is what it tells of itself, where it does."""

    key: Key
    name: str  # the key as it was
    body: Envelope
    message_id: str
    at_s: float

    @property
    def swarm(self) -> str | None:
        return self.body.swarm_id if isinstance(self.body, ControlSignal | Status) else self.body.scope.swarm_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A work item on a swarm's own exchange."""

    swarm: str
    queue: str


def read(trace: Iterable[Captured]) -> tuple[list[Heard], list[Item], list[Violation]]:
    """In the order in which it was said; what is no message of a swarm is told."""
    heard: list[Heard] = []
    items: list[Item] = []
    wrong: list[Violation] = []
    for one in trace:
        try:
            if one.exchange == names.CONTROL:
                heard.append(_control(one))
            else:
                items.append(_item(one))
        except _Wrong as error:
            wrong.append(Violation(rule=error.rule, key=one.key, why=str(error)))
    heard.sort(key=lambda one: one.at_s)  # stable: what was said in the same millisecond stays as it came
    return heard, items, wrong


class _Wrong(Exception):
    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule


def _item(one: Captured) -> Item:
    found = re.fullmatch(rf"ph\.({names.NAME_PATTERN})\.hive", one.exchange)
    if found is None:
        raise _Wrong("namespace", f"{one.exchange} is no exchange of a swarm")
    try:
        return Item(swarm=found[1], queue=names.check_name(one.key, "queue"))
    except BadName as error:
        raise _Wrong("key", str(error)) from error


def _control(one: Captured) -> Heard:
    try:
        key = names.read_key(one.key)
    except BadName as error:
        raise _Wrong("key", str(error)) from error
    if _UUID.fullmatch(one.message_id) is None:
        raise _Wrong("envelope", "it has no message id by which one that is sent again is known")
    try:
        body = _body(key, one.body)
    except InputError as error:
        raise _Wrong("envelope", str(error)) from error
    fault = _disagreement(key, body, one.message_id)
    if fault is not None:
        raise _Wrong("agree", fault)
    said = body.timestamp if isinstance(body, ControlSignal | Status) else body.ts
    at_s = one.at_s if said is None else moment_s(said)
    return Heard(key=key, name=one.key, body=body, message_id=one.message_id, at_s=at_s)


def moment_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


_OUTCOMES = {"ready": Ready, "error": Error, "duplicate": Duplicate, "warning": messages.Warning}


def _body(key: Key, data: bytes) -> Envelope:
    if key.kind == "signal":
        return messages.decode(ControlSignal, data)
    if key.kind == "outcome":
        shape: type[Ready | Error | Duplicate | messages.Warning] = _OUTCOMES[str(key.outcome)]
        return messages.decode(shape, data)
    return messages.decode(Status, data)


def _disagreement(key: Key, body: Envelope, message_id: str) -> str | None:
    """What a key and the body under it say differently."""
    if isinstance(body, Status):
        if key.kind == "status" and body.kind != key.status:
            return f"the body is a {body.kind}"
        if body.message_id != message_id:
            return "the body has another message id than its message"
        said = Scope(swarm=body.swarm_id, role=body.role, instance=body.instance)
    else:
        if body.signal != key.signal:
            return f"the body says {body.signal}"
        try:
            said = body.scope if isinstance(body, ControlSignal) else _scope(body)
        except BadName as error:
            return str(error)
        if isinstance(body, ControlSignal) and body.message_id not in (None, message_id):
            return "the body has another message id than its message"
    if Signal(key.signal).of_component if key.signal is not None else True:
        named, told = (key.scope.role, key.scope.instance), (said.role, said.instance)
    else:
        named, told = (key.scope.swarm, None), (said.swarm, said.role)
    return None if named == told else f"the body is about {said.words}, of swarm {said.swarm}"


def _scope(body: Ready | Error | Duplicate | messages.Warning) -> Scope:
    return Scope(swarm=body.scope.swarm_id, role=body.scope.role, instance=body.scope.instance)
