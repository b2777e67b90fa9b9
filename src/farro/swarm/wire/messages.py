"""Signals, confirmations and status messages on the wire (seed 003 §3.1, §12; DESIGN §11): encode and decode them.

Names on the wire are camelCase; absent values are left out, and null counts as absent. Unknown fields, which a later
version may add, are ignored. A message that lacks a required field is refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from farro.documents import shapes
from farro.documents.constraints import Bounds, Matching, Prose
from farro.errors import BadName, InputError
from farro.lazy_dataclass import dataclass, field, replace
from farro.swarm.wire.names import NAME_PATTERN, Key, Scope

NO_TARGET = "NO_TARGET"  # code of an error: the signal names a swarm or a component that does not exist
MAX_BYTES = 1 << 20

UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
Uuid = Annotated[str, Matching(UUID, "a UUID")]
Name = Annotated[str, Matching(NAME_PATTERN, "lower-case letters, digits and -")]
_TIME = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:Z|[+-]\d{2}:\d{2})"
Moment = Annotated[str, Matching(_TIME, "a time such as 2026-11-16T12:34:56Z")]
SignalName = Literal[
    "swarm-create", "swarm-template", "swarm-start", "swarm-stop", "swarm-remove", "config-update", "status-request"
]
Phase = Literal["create", "template", "start", "stop", "remove", "runtime"]
EndState = Literal["Ready", "Running", "Stopped", "Removed"]


class WireBody:
    """What a sender adds to a message is ignored: a later version may have more fields."""

    __slots__ = ()
    takes_more: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ScopeBody(WireBody):
    swarm_id: Name | None = None
    role: Name | None = None
    instance: Name | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlSignal(WireBody):
    """One shape for all signals. Its routing key says which signal it is; the body may repeat it."""

    correlation_id: Uuid  # new per attempt
    idempotency_key: Uuid  # stable across retries of the same action
    signal: SignalName | None = None  # never None after `read`
    message_id: Uuid | None = None
    timestamp: Moment | None = None
    swarm_id: Name | None = None
    role: Name | None = None
    instance: Name | None = None
    args: dict[str, Any] | None = None
    origin: Annotated[str, Prose(200)] | None = None

    @property
    def scope(self) -> Scope:
        return scope_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply(WireBody):
    """What every event about a signal says: it echoes both ids of the signal."""

    ts: Moment
    correlation_id: Uuid
    idempotency_key: Uuid
    signal: SignalName
    scope: ScopeBody


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready(Reply):
    """A command had its effect, which was observed."""

    result: Literal["success"] = "success"
    state: EndState
    notes: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Error(Reply):
    """A command failed; everything that exists was kept."""

    result: Literal["error"] = "error"
    phase: Phase
    code: Annotated[str, Matching(r"[A-Z][A-Z0-9_]{0,63}", "upper-case letters, digits and _")]
    message: str
    retryable: bool
    details: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicate(Reply):
    """A signal or its command was sent again, and nothing was done."""

    original_correlation_id: Uuid | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warning(WireBody):  # noqa: A001 - the seed's name
    ts: Moment
    correlation_id: Uuid | None = None
    signal: SignalName
    scope: ScopeBody
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals(WireBody):
    """Counts of components. `total` and `desired` are the same number: farro's first versions sent only `desired`."""

    total: Annotated[int, Bounds(at_least=0)] | None = None
    desired: Annotated[int, Bounds(at_least=0)] | None = None
    healthy: Annotated[int, Bounds(at_least=0)]
    running: Annotated[int, Bounds(at_least=0)]
    enabled: Annotated[int, Bounds(at_least=0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusQueues(WireBody):
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusReport(WireBody):
    """The status of a component, or of a swarm (from its controller): complete (`status-full`), or changes only."""

    event: Literal["status"] = "status"
    kind: Literal["status-full", "status-delta"]
    version: str = "1.0"
    message_id: Uuid
    timestamp: Moment
    role: Name
    instance: Name
    swarm_id: Name | None = None
    enabled: bool
    state: str | None = None
    watermark: Moment | None = None
    max_staleness_sec: Annotated[float, Bounds(at_least=0)] | None = None
    totals: Totals | None = None
    queues: StatusQueues | None = None
    data: dict[str, Any] = field(default_factory=dict)


M = TypeVar("M")


def encode(message: Any) -> bytes:
    """Encode a message as JSON, without absent values."""
    return json.dumps(_wire(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def decode(shape: type[M], data: bytes) -> M:
    """Decode a message. Raises InputError with all problems; nothing of a forged body is repeated in it."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{shape.__name__}: {len(data)} bytes; a message may have {MAX_BYTES}")
    try:
        document = _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shape.__name__}: it is not valid JSON ({type(error).__name__})") from error
    checked = shapes.check(shape, _snake(document))
    if checked.value is None or checked.faults:
        problems = [f"{'.'.join(camel(str(part)) for part in fault.path)} {fault.message}" for fault in checked.faults]
        raise InputError(f"{shape.__name__}: {'; '.join(problems[:5])}")
    return checked.value


Message = ControlSignal | Ready | Error | Duplicate | Warning | StatusReport
_OUTCOMES: Mapping[str, type[Message]] = {"ready": Ready, "error": Error, "duplicate": Duplicate, "warning": Warning}


class Disagreement(InputError):
    """The body of a message and its routing key differ."""


def read(key: Key, data: bytes) -> Message:
    """Decode the message under a routing key. Raises InputError if it is none, Disagreement if both differ."""
    shape: type[Message] = ControlSignal if key.kind == "signal" else StatusReport
    found = decode(_OUTCOMES.get(key.outcome or "", shape), data)
    name = type(found).__name__
    if isinstance(found, StatusReport):
        if key.status not in (None, found.kind):
            raise Disagreement(f"{name}: the body is a {found.kind}, its routing key of a {key.status}")
    elif isinstance(found, ControlSignal) and found.signal is None and key.signal is not None:
        found = replace(found, signal=key.signal.value)
    elif found.signal != key.signal:
        raise Disagreement(f"{name}: the body says {found.signal}, its routing key {key.signal}")
    try:
        stated, scope = scope_of(found), key.scope
    except BadName as error:
        raise Disagreement(f"{name}: {error}") from error
    for own, other in ((scope.swarm, stated.swarm), (scope.role, stated.role), (scope.instance, stated.instance)):
        if own is not None and own != other:
            raise Disagreement(f"{name}: the body is about {stated.words}, its routing key about {scope.words}")
    return found


class SignalIds(NamedTuple):
    """What is read of a signal whose body may be wrong otherwise."""

    correlation_id: str
    idempotency_key: str
    origin: str | None  # what it says of its sender


def ids(data: bytes) -> SignalIds | None:
    """Return the ids of a signal; None if it has none."""
    if len(data) > MAX_BYTES:
        return None
    try:
        document = _DECODER.decode(data.decode())
        found = document["correlationId"], document["idempotencyKey"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    if not all(isinstance(one, str) and re.fullmatch(UUID, one) for one in found):
        return None
    origin = document.get("origin")
    return SignalIds(*found, origin if isinstance(origin, str) else None)


def scope_of(message: Message) -> Scope:
    """Return the scope that a body states. Raises BadName if it is none."""
    body = message if isinstance(message, ControlSignal | StatusReport) else message.scope
    return Scope(swarm=body.swarm_id, role=body.role, instance=body.instance)


def scope_body(scope: Scope) -> ScopeBody:
    return ScopeBody(swarm_id=scope.swarm, role=scope.role, instance=scope.instance)


# --- names on the wire ---


def _wire(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        document = {}
        for each in fields(value):
            member = getattr(value, each.name)
            if member is not None and not (member == {} and each.default_factory is not MISSING):
                document[camel(each.name)] = _wire(member)
        return document
    if isinstance(value, tuple):
        return [_wire(item) for item in value]
    return value  # the sender's own data keeps its names


def _snake(document: Any) -> Any:
    """Convert our own names to snake_case; `args`, `data` and `details` keep the sender's names."""
    if not isinstance(document, Mapping):
        return document
    read = {}
    for name, value in document.items():
        if value is None:
            continue
        own = _snake_name(name)
        read[own] = _snake(value) if own in ("scope", "totals", "queues") else value
    return read


_WORDS = re.compile(r"(?<!^)[A-Z]")


@lru_cache(1024)
def _snake_name(name: str) -> str:
    return _WORDS.sub(lambda match: f"_{match[0].lower()}", name)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not valid JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # shared: a controller decodes hundreds of messages a second
