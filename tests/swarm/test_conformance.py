"""The checker of traces: it accepts what a good swarm sends, and finds each mutation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.documents import Document
from farro.jobs.times import timestamp
from farro.swarm import conformance, plan
from farro.swarm.conformance import Captured

BEGUN = datetime(2026, 11, 16, 12, tzinfo=UTC)
STATES = {"template": "Ready", "start": "Running", "stop": "Stopped", "remove": "Removed"}


def pipeline(swarm: str, instances: int, stages: int) -> dict[str, Any]:
    """Build generator → s1 → s2 …, listed in reverse: the order must come from the queues."""
    bees: list[dict[str, Any]] = [{"role": "generator", "command": ["g"], "work": {"out": ["q0"]}}]
    for number in range(1, stages):
        work = {"in": [f"q{number - 1}"], "out": [f"q{number}"]}
        bees.append({"role": f"s{number}", "command": ["s"], "work": work, "instances": instances})
    return {"id": swarm, "bees": bees[::-1]}


@dataclass
class Wire:
    """Write the messages of a swarm that keeps every rule, a millisecond apart."""

    swarm: str = "demo"
    seed: int = 0
    trace: list[Captured] = field(default_factory=list)
    enabled: dict[str, bool] = field(default_factory=dict)
    _now: datetime = BEGUN
    _count: int = 0

    def uuid(self) -> str:
        self._count += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.swarm}/{self.seed}/{self._count}"))

    def tick(self) -> str:
        self._now += timedelta(milliseconds=1)
        return timestamp(self._now)

    def send(self, key: str, body: dict[str, Any], own: str | None = None, exchange: str = "ph.control") -> None:
        data = json.dumps(body).encode()
        at_s = self._now.timestamp()
        self.trace.append(
            Captured(
                at_s=at_s, exchange=exchange, key=key, body=data, message_id=own or body.get("messageId") or self.uuid()
            )
        )

    def status(self, role: str, instance: str, *, kind: str = "status-delta", up: bool = False, **data: Any) -> None:
        at = self.tick()
        on = self.enabled.get(instance, role == "swarm-controller")
        body = {
            "event": "status", "kind": kind, "version": "1.0", "messageId": self.uuid(), "timestamp": at,
            "role": role, "instance": instance, "swarmId": self.swarm, "enabled": on, "state": "Running",
            "watermark": at, "maxStalenessSec": 0.0, "queues": {"inputs": [], "outputs": []},
            "totals": {"total": 1, "desired": 1, "healthy": 1, "running": int(on), "enabled": int(on)},
            "data": {"health": "UP", **data},
        }  # fmt: skip
        self.send(f"ev.ready.{role}.{instance}" if up else f"ev.{kind}.{role}.{instance}", body)

    def signal(self, action: str, key: str, args: Any = None, scope: dict[str, str] | None = None, **more: Any) -> str:
        own = self.uuid()
        words = f"{scope['role']}.{scope['instance']}" if scope else self.swarm
        body = {
            "correlationId": own, "idempotencyKey": key, "signal": action, "messageId": own, "timestamp": self.tick(),
            "swarmId": self.swarm, **(scope or {}), **({} if args is None else {"args": args}), **more,
        }  # fmt: skip
        self.send(f"sig.{action}.{words}", body)
        return own

    def confirm(self, action: str, correlation: str, key: str, state: str | None, scope: dict[str, str] | None) -> None:
        words = f"{scope['role']}.{scope['instance']}" if scope else self.swarm
        body = {"ts": self.tick(), "correlationId": correlation, "idempotencyKey": key, "signal": action}
        body["scope"] = {"swarmId": self.swarm, **(scope or {})}  # type: ignore[assignment]
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, correlation))
        if state is not None:
            self.send(f"ev.ready.{action}.{words}", {**body, "result": "success", "state": state}, own)
        else:
            phase = {"config-update": "runtime"}.get(action, action.removeprefix("swarm-"))
            wrong = {"result": "error", "phase": phase, "code": "NO", "message": "no", "retryable": False}
            self.send(f"ev.error.{action}.{words}", {**body, **wrong}, own)

    def duplicate(self, action: str, correlation: str, original: str, key: str) -> None:
        body = {"ts": self.tick(), "correlationId": correlation, "originalCorrelationId": original}
        more = {"idempotencyKey": key, "signal": action, "scope": {"swarmId": self.swarm}}
        self.send(f"ev.duplicate.{action}.{self.swarm}", {**body, **more})


@dataclass(frozen=True)
class Story:
    """The commands that a swarm gets."""

    instances: int
    stages: int
    commands: tuple[str, ...]
    again: frozenset[int]  # commands that are sent twice
    resent: frozenset[int]  # commands whose confirmation is sent twice
    fail: frozenset[int]
    swarm: str = "demo"

    def tell(self) -> Wire:
        wire = Wire(self.swarm)
        wanted = pipeline(self.swarm, self.instances, self.stages)
        read = plan.load(Document(wanted, "plan"))
        stages = plan.start_order(read).stages
        members = [[one for one in read.members() if one.bee in stage] for stage in stages]
        wire.status("swarm-controller", f"{self.swarm}-marshal", kind="status-full", up=True)
        wire.confirm("swarm-create", wire.uuid(), wire.uuid(), "Ready", None)
        key = wire.uuid()
        first = wire.signal("swarm-template", key, {"plan": wanted})
        for stage in members:
            for one in stage:
                wire.status(one.role, one.instance, kind="status-full")
        wire.confirm("swarm-template", first, key, "Ready", None)
        for number, command in enumerate(self.commands):
            self._command(wire, number, command, members)
        wire.status("swarm-controller", f"{self.swarm}-marshal", kind="status-full", health="Healthy")
        return wire

    def _command(self, wire: Wire, number: int, command: str, members: list[list[plan.Member]]) -> None:
        key = wire.uuid()
        scope = None
        action = f"swarm-{command}"
        if command == "config":
            one = members[0][0]
            scope, action = {"role": one.role, "instance": one.instance}, "config-update"
        correlation = wire.signal(action, key, {"rate": 5} if scope else None, scope)
        good = number not in self.fail
        if command in ("start", "stop") and good:
            for stage in members if command == "start" else members[::-1]:
                asked = []
                for one in stage:
                    about, own = {"role": one.role, "instance": one.instance}, wire.uuid()
                    args = {"enabled": command == "start"}
                    asked.append((wire.signal("config-update", own, args, about, origin="controller"), own, about))
                for one in stage:
                    wire.enabled[one.instance] = command == "start"
                    wire.status(one.role, one.instance)
                for correlation_id, own, about in asked:
                    wire.confirm("config-update", correlation_id, own, STATES[command], about)
        state = STATES.get(command, "Running") if good else None
        wire.confirm(action, correlation, key, state, scope)
        if number in self.resent:
            wire.trace.append(wire.trace[-1])
        if number in self.again and scope is None:
            second = wire.signal(action, key)
            wire.duplicate(action, second, correlation, key)
            wire.confirm(action, second, key, state, scope)


numbers = st.frozensets(st.integers(0, 4), max_size=3)
stories = st.builds(
    Story,
    instances=st.integers(1, 3),
    stages=st.integers(2, 4),
    commands=st.lists(st.sampled_from(["start", "stop", "config"]), min_size=1, max_size=5).map(tuple),
    again=numbers,
    resent=numbers,
    fail=numbers,
)
GOOD = Story(2, 3, ("start", "config", "stop"), frozenset({0}), frozenset(), frozenset())


@settings(max_examples=30)
@given(stories)
def test_a_good_trace_has_no_violations(story: Story) -> None:
    assert conformance.check(story.tell().trace, swarms=["demo"], crashes=True) == []


@settings(max_examples=30)
@given(stories, stories)
def test_two_good_swarms_beside_each_other_are_good(one: Story, other: Story) -> None:
    trace = one.tell().trace + replace(other, swarm="other").tell().trace
    assert conformance.check(sorted(trace, key=lambda each: each.at_s), swarms=["demo", "other"], crashes=True) == []


@settings(max_examples=30)
@given(stories, st.randoms())
def test_the_order_of_arrival_does_not_matter(story: Story, chance: Any) -> None:
    trace = story.tell().trace
    chance.shuffle(trace)
    assert conformance.check(trace, crashes=True) == []


# --- mutations ---


def where(trace: list[Captured], fits: Callable[[Captured], bool]) -> list[int]:
    return [index for index, one in enumerate(trace) if fits(one)]


def changed(one: Captured, **fields: Any) -> Captured:
    """Change fields of the body; None removes one."""
    body = {**json.loads(one.body), **fields}
    return replace(one, body=json.dumps({name: value for name, value in body.items() if value is not None}).encode())


def _is(one: Captured, *starts: str) -> bool:
    return one.key.startswith(starts)


def _drop(trace: list[Captured], at: int) -> None:
    same = trace[at].message_id
    trace[:] = [one for one in trace if one.message_id != same]


def _confirmations(one: Captured) -> bool:
    return _is(one, "ev.ready.swarm-s", "ev.ready.swarm-t", "ev.ready.config", "ev.error.")


def _status(one: Captured) -> bool:
    return _is(one, "ev.status-")


def _set(**fields: Any) -> Callable[[list[Captured], int], None]:
    def mutate(trace: list[Captured], at: int) -> None:
        trace[at] = changed(trace[at], **fields)

    return mutate


def _double(trace: list[Captured], at: int) -> None:
    trace.append(replace(trace[at], message_id=str(uuid.uuid4())))


def _otherwise(trace: list[Captured], at: int) -> None:
    trace.append(changed(trace[at], notes="otherwise", message="otherwise"))


def _rekey(trace: list[Captured], at: int) -> None:
    trace[at] = replace(trace[at], key=trace[at].key.replace("demo", "other"))


def _forge(trace: list[Captured], at: int) -> None:
    trace[at] = replace(trace[at], body=b"[" * 5)


def _nameless(trace: list[Captured], at: int) -> None:
    trace[at] = replace(trace[at], message_id="")


def _move(trace: list[Captured], at: int) -> None:
    trace[at] = replace(trace[at], key="ev.ready.swarm-start.*")


def _other_exchange(trace: list[Captured], at: int) -> None:
    trace[at] = replace(trace[at], exchange="ph.events")


def _other_work(trace: list[Captured], at: int) -> None:
    trace.append(replace(trace[at], exchange="ph.other.hive", key="q0"))


def _early(trace: list[Captured], at: int) -> None:
    trace[at] = changed(trace[at], ts="2026-11-16T11:00:00.000Z")


MUTATIONS: dict[str, tuple[Callable[[Captured], bool], Callable[[list[Captured], int], None], set[str]]] = {
    "a confirmation is dropped": (_confirmations, _drop, {"confirmed"}),
    "a confirmation is sent again": (_confirmations, lambda trace, at: trace.append(trace[at]), {"confirmed"}),
    "a confirmation is sent under another id": (_confirmations, _double, {"confirmed"}),
    "a confirmation is sent again and says otherwise": (_confirmations, _otherwise, {"resent"}),
    "a confirmation of nobody's signal": (
        _confirmations, _set(correlationId=str(uuid.uuid4())), {"correlation", "confirmed"}),
    "another idempotency key": (_confirmations, _set(idempotencyKey=str(uuid.uuid4())), {"correlation", "resent"}),
    "another swarm in the scope": (_confirmations, _set(scope={"swarmId": "other"}), {"agree"}),
    "another swarm in the key": (lambda one: _is(one, "ev.ready.swarm-s"), _rekey, {"agree"}),
    "no correlation id": (_confirmations, _set(correlationId=None), {"envelope"}),
    "no scope": (_confirmations, _set(scope=None), {"envelope"}),
    "no result": (lambda one: _is(one, "ev.ready.swarm-s"), _set(result="error"), {"envelope"}),
    "a state that is none": (lambda one: _is(one, "ev.ready.swarm-s"), _set(state="Ready"), {"state", "resent"}),
    "not JSON": (lambda one: True, _forge, {"envelope"}),
    "no message id": (lambda one: True, _nameless, {"envelope"}),
    "a wildcard in a key": (lambda one: True, _move, {"key"}),
    "another exchange": (lambda one: True, _other_exchange, {"namespace"}),
    "work on another swarm's exchange": (lambda one: True, _other_work, {"namespace"}),
    "a signal comes twice with other ids": (lambda one: _is(one, "sig.swarm"), _double, {"agree"}),
    "a signal is dropped": (lambda one: _is(one, "sig.swarm-stop"), _drop, {"correlation"}),
    "a duplicate is not told": (lambda one: _is(one, "ev.duplicate"), _drop, {"idempotency"}),
    "a duplicate of nothing": (
        lambda one: _is(one, "ev.duplicate"), _set(correlationId=str(uuid.uuid4())), {"idempotency"}),
    "a duplicate with another original": (
        lambda one: _is(one, "ev.duplicate"), _set(originalCorrelationId=str(uuid.uuid4())), {"idempotency"}),
    "a controller asks for a start": (lambda one: _is(one, "sig.swarm-start"), _set(origin="controller"), {"origin"}),
    "no handshake": (lambda one: _is(one, "ev.ready.swarm-controller"), _drop, {"handshake"}),
    "created before the handshake": (lambda one: _is(one, "ev.ready.swarm-create"), _early, {"handshake"}),
    "a status of another swarm": (lambda one: _is(one, "ev.status-delta.s"), _set(swarmId="other"), {"namespace"}),
    "a status of nobody's component": (
        lambda one: _is(one, "ev.status-delta.s"),
        lambda trace, at: trace.append(
            replace(changed(trace[at], instance="demo-x"), key=f"{trace[at].key.rpartition('.')[0]}.demo-x")
        ), {"namespace"}),
    "a watermark in the future": (_status, _set(watermark="2026-11-16T13:00:00.000Z"), {"watermark"}),
    "a staleness that is not": (_status, _set(maxStalenessSec=29.0), {"watermark"}),
    "more running than there are": (
        _status, _set(totals={"total": 1, "healthy": 1, "running": 2, "enabled": 1}), {"watermark"}),
    "no total": (_status, _set(totals={"desired": 1, "healthy": 1, "running": 1, "enabled": 1}), {"status"}),
    "a phase that the document has not": (lambda one: _is(one, "ev.error."), _set(phase="config"), {"envelope"}),
    **{
        f"no {name} in a status": (_status, _set(**{name: None}), {"status", "envelope", "watermark"})
        for name in ("kind", "messageId", "timestamp", "role", "instance", "swarmId", "enabled", "state", "watermark",
                     "maxStalenessSec", "totals", "queues", "data")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_found(name: str) -> None:
    fits, mutate, rules = MUTATIONS[name]
    trace = replace(GOOD, fail=frozenset({1})).tell().trace
    places = where(trace, fits)
    assert places
    for at in places:
        broken = list(trace)
        mutate(broken, at)
        found = {one.rule for one in conformance.check(broken, swarms=["demo"])}
        assert found & rules, f"{name} at {trace[at].key}: {found}"


@pytest.mark.parametrize("command", ["start", "stop"])
def test_another_order_of_enabling_is_found(command: str) -> None:
    """Two signals of different stages, with their times exchanged."""
    trace = GOOD.tell().trace
    wanted = command == "start"
    asks = where(trace, lambda one: _is(one, "sig.config-update") and json.loads(one.body).get("origin") is not None)
    asks = [at for at in asks if json.loads(trace[at].body)["args"]["enabled"] is wanted]
    stages = {at: trace[at].key.split(".")[2] for at in asks}
    for one in asks:
        for other in asks:
            if stages[one] < stages[other]:
                broken = list(trace)
                times = [json.loads(trace[at].body)["timestamp"] for at in (one, other)]
                broken[one] = changed(trace[one], timestamp=times[1])
                broken[other] = changed(trace[other], timestamp=times[0])
                assert "order" in {each.rule for each in conformance.check(broken)}


def test_a_start_without_an_observed_effect_is_found() -> None:
    trace = [
        one for one in GOOD.tell().trace if not (_is(one, "ev.status-delta.s2") and b'"enabled": true' in one.body)
    ]
    assert "observed" in {one.rule for one in conformance.check(trace)}


def test_an_open_command_is_no_violation_in_an_incomplete_trace() -> None:
    trace = GOOD.tell().trace
    cut = where(trace, lambda one: _is(one, "ev.ready.swarm-start"))[0]
    assert conformance.check(trace[:cut], complete=False) == []
    assert {one.rule for one in conformance.check(trace[:cut])} == {"confirmed"}


def test_a_violation_says_what_and_where() -> None:
    trace = GOOD.tell().trace
    _drop(trace, where(trace, lambda one: _is(one, "ev.ready.swarm-stop"))[0])
    (found,) = conformance.check(trace)
    assert str(found).startswith("confirmed: sig.swarm-stop.demo: has 0 distinct confirmations, not 1")
