"""Define the envelope of a job: prompt (frozen), lifecycle (job.json), runtime (never on disk)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from farro.documents.json_text import encoder
from farro.errors import Damaged, UnknownSchema
from farro.jobs.ids import ROLE
from farro.jobs.states import Reason, Status, check_transition, is_terminal
from farro.lazy_dataclass import dataclass, field, fields, required_fields

SCHEMA_VERSION = "1.0.0"
P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One decision about the job: what was decided, about which attempt, by which agent, and why."""

    at: str
    role: str  # the role of the job before the decision
    attempt: int  # the highest attempt at that time
    reason: Reason
    to: str  # the destination folder
    by: str  # the deciding agent
    note: str | None = None  # free text; the audit log has codes only
    # A routing decision: `code` (roles.workflow), `step` of the workflow, `round` of a review. Absent in job.json when
    # None: most jobs are never routed.
    route: Mapping[str, Any] | None = None
    claimed_at: str | None = None  # when the attempt was claimed; absent where the decision ended none


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to the job after `attempt`. While no higher attempt exists, recovery only carries it out."""

    attempt: int
    reason: Reason
    to: str
    not_before: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """job.json. Times are UTC with milliseconds and Z."""

    schema_version: str = SCHEMA_VERSION
    job_id: str
    role: str  # the role of its current or last queue
    status: Status
    attempt: int = 0  # executions so far; the folders attempts/NNNN are the counter
    retry_count: int = 0  # stale requeues
    hops: tuple[Hop, ...] = ()
    created_at: str
    enqueued_at: str  # time of entry into the current queue
    updated_at: str
    first_claimed_at: str | None = None
    finalized_at: str | None = None
    not_before: str | None = None
    routing: Mapping[str, Any] | None = None
    agent: str | None = None  # the agent that wrote this
    correlation_id: str | None = None  # new per attempt
    requeued_from: Status | None = None
    retry_of: str | None = None
    policy_version: str | None = None
    result_sha256: str | None = None
    error: Mapping[str, str] | None = None  # {category, message}
    decision: Decision | None = None

    @property
    def terminal(self) -> bool:
        return is_terminal(self.status, finalized=self.finalized_at is not None)

    @property
    def hop_start(self) -> int:
        """Return the attempt after which the current hop began."""
        return max((hop.attempt for hop in self.hops if hop.reason in _BEGINS_A_HOP), default=0)

    @property
    def first_role(self) -> str:
        """Return the role that the job was submitted to."""
        return self.hops[0].role if self.hops else self.role

    def check_transition(self, after: Status, reason: Reason) -> None:
        """Raise IllegalTransition unless the job may change to that status for that reason."""
        check_transition(self.job_id, self.status, after, reason, finalized=self.finalized_at is not None)

    def attempts_in_hop(self, highest: int) -> int:
        """Count the attempts of this hop; a graceful release does not count."""
        start = self.hop_start
        released = sum(1 for hop in self.hops if hop.reason is Reason.RELEASED and hop.attempt > start)
        return highest - start - released

    @property
    def requeues_in_hop(self) -> int:
        return sum(1 for hop in self.hops if hop.reason is Reason.REQUEUED and hop.attempt >= self.hop_start)

    def changed(self, **changes: Any) -> Lifecycle:
        """Return a changed copy. Ten times faster than `dataclasses.replace`: every claim and commit makes one."""
        made = _made(self.__dict__, changes)
        assert len(made.__dict__) == len(_NAMES), changes.keys() - _NAMES
        return made

    def to_data(self) -> dict[str, Any]:
        """Return the content of job.json as data."""
        data: dict[str, Any] = json.loads(self.to_json())
        return data

    def to_json(self) -> bytes:
        """Return job.json, one field a line, so that `cat job.json` reads well. Built by hand: every claim and commit
        writes one, and the standard encoder takes six times as long."""
        hops = "[]"
        if self.hops:
            inside = ",\n    ".join([_hop_text(hop) for hop in self.hops])
            hops = f"[\n    {inside}\n  ]"
        text = (
            f'{{\n  "schema_version": {_quote(self.schema_version)},\n'
            f'  "job_id": {_quote(self.job_id)},\n'
            f'  "role": {_quote(self.role)},\n'
            f'  "status": {_quote(self.status)},\n'
            f'  "attempt": {self.attempt},\n'
            f'  "retry_count": {self.retry_count},\n'
            f'  "hops": {hops},\n'
            f'  "created_at": {_quote(self.created_at)},\n'
            f'  "enqueued_at": {_quote(self.enqueued_at)},\n'
            f'  "updated_at": {_quote(self.updated_at)},\n'
            f'  "first_claimed_at": {_text(self.first_claimed_at)},\n'
            f'  "finalized_at": {_text(self.finalized_at)},\n'
            f'  "not_before": {_text(self.not_before)},\n'
            f'  "routing": {"null" if self.routing is None else _encode(self.routing)},\n'
            f'  "agent": {_text(self.agent)},\n'
            f'  "correlation_id": {_text(self.correlation_id)},\n'
            f'  "requeued_from": {_text(self.requeued_from)},\n'
            f'  "retry_of": {_text(self.retry_of)},\n'
            f'  "policy_version": {_text(self.policy_version)},\n'
            f'  "result_sha256": {_text(self.result_sha256)},\n'
            f'  "error": {"null" if self.error is None else _encode(self.error)},\n'
            f'  "decision": {"null" if self.decision is None else _decision_text(self.decision)}\n}}\n'
        )
        return _bytes(text)

    def to_line(self) -> bytes:
        """Return a compact form in half the bytes, for programs only: empty fields are left out."""
        text = (
            f'{{"schema_version":{_quote(self.schema_version)},"job_id":{_quote(self.job_id)},'
            f'"role":{_quote(self.role)},"status":{_quote(self.status)},"attempt":{self.attempt},'
            f'"retry_count":{self.retry_count},"created_at":{_quote(self.created_at)},'
            f'"enqueued_at":{_quote(self.enqueued_at)},"updated_at":{_quote(self.updated_at)}'
        )
        values = self.__dict__
        for name in _MAY_BE_NONE:
            if (value := values[name]) is not None:
                text += f',"{name}":{_quote(value)}'
        if self.hops:
            text += f',"hops":[{",".join([_hop_text(hop) for hop in self.hops])}]'
        if self.routing is not None:
            text += f',"routing":{_encode(self.routing)}'
        if self.error is not None:
            text += f',"error":{_encode(self.error)}'
        if self.decision is not None:
            text += f',"decision":{_decision_text(self.decision)}'
        return _bytes(text + "}")

    @classmethod
    def from_json(cls, text: bytes) -> Lifecycle:
        """Parse what to_json or to_line wrote. Raise UnknownSchema for another version, Damaged for anything else.

        The version is checked first: a newer farro may have changed everything else.
        """
        try:
            data = _decode(text.decode())
        except (ValueError, RecursionError) as error:
            raise Damaged(f"job.json cannot be parsed: {error}") from error
        if not isinstance(data, dict):
            raise Damaged("job.json is not an object")
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            said = "job.json has no schema_version" if version is None else f"schema_version {ascii(version)[:40]}"
            raise UnknownSchema(f"{said}; this farro knows {SCHEMA_VERSION} alone")
        try:
            return _from_data(data)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Damaged(f"job.json is not a lifecycle: {type(error).__name__}: {error}") from error


@dataclass(kw_only=True, slots=True)
class Envelope(Generic[P]):
    """A job in memory. `runtime` (lease, paths, pid) belongs to the store and never reaches the disk."""

    prompt: P
    lifecycle: Lifecycle
    runtime: Any = field(default=None, repr=False)


_NAMES = frozenset(item.name for item in fields(Lifecycle))
_DEFAULTS = {item.name: item.default for item in fields(Lifecycle) if item.name not in required_fields(Lifecycle)}
_encode = encoder()
_quote = json.encoder.encode_basestring


def _made(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Lifecycle:
    """Build a lifecycle without `__init__`, which sets each field of a frozen class by a separate call."""
    made = object.__new__(Lifecycle)
    made.__dict__.update(values)
    made.__dict__.update(changes)
    return made


_BEGINS_A_HOP = frozenset({Reason.ROUTED, Reason.ANSWERED, Reason.REROUTED})


def _hop_text(hop: Hop) -> str:
    more = "" if hop.route is None else f', "route": {_encode(hop.route)}'
    more += "" if hop.claimed_at is None else f', "claimed_at": {_quote(hop.claimed_at)}'
    return (
        f'{{"at": {_quote(hop.at)}, "role": {_quote(hop.role)}, "attempt": {hop.attempt}, '
        f'"reason": {_quote(hop.reason)}, "to": {_quote(hop.to)}, "by": {_quote(hop.by)}, '
        f'"note": {_text(hop.note)}{more}}}'
    )


def _decision_text(decision: Decision) -> str:
    return (
        f'{{"attempt": {decision.attempt}, "reason": {_quote(decision.reason)}, "to": {_quote(decision.to)}, '
        f'"not_before": {_text(decision.not_before)}}}'
    )


def _bytes(text: str) -> bytes:
    # A lone surrogate (from a file name that is not UTF-8, in an error message) becomes its JSON escape: without this
    # the job could not be committed.
    return text.encode("utf-8", "backslashreplace")


def _text(value: str | None) -> str:
    return "null" if value is None else _quote(value)


_TEXT = ("job_id", "role", "created_at", "enqueued_at", "updated_at")
_OPTIONAL_TEXT = (
    "first_claimed_at",
    "finalized_at",
    "not_before",
    "agent",
    "correlation_id",
    "retry_of",
    "policy_version",
    "result_sha256",
)
_MAY_BE_NONE = (*_OPTIONAL_TEXT, "requeued_from")


def _no_constant(token: str) -> float:
    raise ValueError(f"{token} is not JSON")  # to_json cannot write it back


_decode = json.JSONDecoder(parse_constant=_no_constant).decode  # built once; json.loads would build one per call


def _from_data(data: dict[str, Any]) -> Lifecycle:
    if not data.keys() <= _NAMES:
        data = {name: value for name, value in data.items() if name in _NAMES}
    known = {**_DEFAULTS, **data}
    for name in _TEXT:
        if not isinstance(known[name], str):
            raise TypeError(f"{name} is not a string")
    for name in _OPTIONAL_TEXT:
        if (value := known[name]) is not None and not isinstance(value, str):
            raise TypeError(f"{name} is not a string")
    for name in ("attempt", "retry_count"):
        value = known[name]
        if type(value) is not int or value < 0:  # type(): True is not a count
            raise TypeError(f"{name} is not a count")
    for name in ("routing", "error"):
        if (value := known[name]) is not None and not isinstance(value, dict):
            raise TypeError(f"{name} is not an object")
    # Fields that decisions and paths are built from are checked here, once: a worker that met `not_before: "soon"`
    # later would stop because of one job (RELIABILITY 26).
    if ROLE.fullmatch(known["role"]) is None:
        raise ValueError(f"{ascii(known['role'])[:100]} is not a role")
    if known["not_before"] is not None and datetime.fromisoformat(known["not_before"]).utcoffset() is None:
        raise ValueError("not_before has no time zone")
    known["status"] = Status.parse(known["status"])
    if known["requeued_from"] is not None:
        known["requeued_from"] = Status.parse(known["requeued_from"])
    known["hops"] = tuple([_hop(item) for item in known["hops"]])
    if known["decision"] is not None:
        known["decision"] = _decision(known["decision"])
    return _made(known, {})


def _hop(data: dict[str, Any]) -> Hop:
    return Hop(
        at=str(data["at"]),
        role=str(data["role"]),
        attempt=int(data["attempt"]),
        reason=Reason(data["reason"]),
        to=str(data["to"]),
        by=str(data["by"]),
        note=_text_or_none(data.get("note")),
        route=_object_or_none(data.get("route")),
        claimed_at=_text_or_none(data.get("claimed_at")),
    )


def _object_or_none(value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, dict | None):
        raise TypeError(f"{type(value).__name__} instead of an object")
    return value


def _decision(data: dict[str, Any]) -> Decision:
    return Decision(
        attempt=int(data["attempt"]),
        reason=Reason(data["reason"]),
        to=str(data["to"]),
        not_before=_text_or_none(data.get("not_before")),
    )


def _text_or_none(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value
