"""The rules of swarms: names, plans, messages, order, lifecycles."""

from __future__ import annotations

import json
import re
from typing import Any

import asyncapi
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.documents import Document
from farro.errors import BadDocument, BadName, IllegalTransition, InputError
from farro.swarm import lifecycle, plan
from farro.swarm.lifecycle import SwarmState
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

words = st.from_regex(names.NAME_PATTERN, fullmatch=True)
UUID = "123e4567-e89b-12d3-a456-426614174000"
NOW = "2026-11-16T12:34:56.789Z"


# --- names ---


@given(st.text(max_size=70))
def test_a_name_is_one_word_of_a_key(text: str) -> None:
    try:
        names.check_name(text, "swarm")
    except BadName:
        return
    assert re.fullmatch(r"[a-z0-9-]+", text)
    assert len(text) <= 63


@pytest.mark.parametrize("text", ["", "a.b", "*", "#", "a*", "A", "ü", "-a", "a-", "a" * 64, "a b", "a\n", "../x"])
def test_wildcards_and_dots_are_not_valid_in_names(text: str) -> None:
    for make in (names.work_exchange, lambda name: names.work_queue("demo", name), names.controller_up_key):
        with pytest.raises(BadName):
            make(text)
    with pytest.raises(BadName):
        names.signal_key(Signal.START, Scope(swarm=text))
    with pytest.raises(BadName):
        names.status_key("status-full", "generator", text)


def test_keys_and_queues_are_those_of_the_seed() -> None:
    demo, one = Scope(swarm="demo"), Scope(swarm="demo", role="generator", instance="demo-generator")
    assert names.signal_key(Signal.TEMPLATE, demo) == "sig.swarm-template.demo"
    assert names.signal_key(Signal.START, demo) == "sig.swarm-start.demo"
    assert names.signal_key(Signal.STOP, demo) == "sig.swarm-stop.demo"
    assert names.signal_key(Signal.REMOVE, demo) == "sig.swarm-remove.demo"
    assert names.signal_key(Signal.CONFIG, one) == "sig.config-update.generator.demo-generator"
    assert names.signal_key(Signal.STATUS, one) == "sig.status-request.generator.demo-generator"
    assert names.event_key("ready", Signal.CREATE, demo) == "ev.ready.swarm-create.demo"
    assert names.event_key("error", Signal.CONFIG, one) == "ev.error.config-update.generator.demo-generator"
    assert names.controller_up_key("demo-marshal") == "ev.ready.swarm-controller.demo-marshal"
    assert names.status_key("status-delta", "generator", "g1") == "ev.status-delta.generator.g1"
    assert (names.work_exchange("demo"), names.work_queue("demo", "items")) == ("ph.demo.hive", "ph.demo.items")
    with pytest.raises(BadName):
        names.signal_key(Signal.CREATE, demo)
    with pytest.raises(BadName):
        names.signal_key(Signal.START, one)
    with pytest.raises(BadName):
        names.signal_key(Signal.CONFIG, demo)
    with pytest.raises(BadName):
        names.work_queue("demo", "hive")


@given(st.sampled_from(list(Signal)), words, words, words, st.sampled_from(["ready", "error", "duplicate", "warning"]))
def test_a_routing_key_is_parsed_as_it_was_built(
    signal: Signal, swarm: str, role: str, instance: str, outcome: Any
) -> None:
    scope = Scope(role=role, instance=instance) if signal.of_component else Scope(swarm=swarm)
    assert names.read_key(names.event_key(outcome, signal, scope)) == names.Key(
        kind="outcome", outcome=outcome, signal=signal, scope=scope
    )
    if signal is not Signal.CREATE:
        read = names.read_key(names.signal_key(signal, scope))
        assert read == names.Key(kind="signal", signal=signal, scope=scope)


@pytest.mark.parametrize(
    "key",
    ["", "sig", "sig.swarm-create.demo", "sig.swarm-start", "sig.swarm-start.a.b", "sig.config-update.a", "sig.no.demo",
     "ev.ready.swarm-start.*", "ev.ready.swarm-start.#", "ev.status-full.a", "ev.maybe.swarm-start.demo", "x.y.z"],
)  # fmt: skip
def test_an_unknown_routing_key_is_refused(key: str) -> None:
    with pytest.raises(BadName):
        names.read_key(key)


@pytest.mark.parametrize(
    ("binding", "key", "fits"),
    [
        ("sig.swarm-start.demo", "sig.swarm-start.demo", True),
        ("sig.*.demo", "sig.swarm-start.demo", True),
        ("sig.*", "sig.swarm-start.demo", False),
        ("sig.#", "sig.swarm-start.demo", True),
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#.z", "a.z", True),
        ("a.#.z", "a.b.c.z", True),
        ("a.#.z", "a.b.c", False),
        ("#.z.#", "a.z.b", True),
        ("*.#", "a", True),
        ("*", "a.b", False),
    ],
)
def test_a_binding_matches_as_amqp_specifies(binding: str, key: str, fits: bool) -> None:
    assert names.matches(binding, key) is fits


@given(st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=6), st.lists(st.sampled_from(["a", "b"]), max_size=6))
def test_a_binding_matches_like_a_pattern_of_words(binding: list[str], key: list[str]) -> None:
    pattern = "".join({"*": r"(?:\.[^.]+)", "#": r"(?:\.[^.]+)*"}.get(word, rf"(?:\.{word})") for word in binding)
    if binding and key:
        expected = re.fullmatch(pattern, "".join(f".{word}" for word in key)) is not None
        assert names.matches(".".join(binding), ".".join(key)) is expected


# --- the plan ---

BEES = [
    {"role": "generator", "command": ["gen"], "work": {"out": ["raw"]}, "config": {"rate": 5}},
    {"role": "processor", "command": ["pro"], "work": {"in": ["raw"], "out": "done"}, "instances": 2},
    {"role": "sink", "image": "sink:1", "work": {"in": "done"}},
]


def load(**data: Any) -> plan.SwarmPlan:
    return plan.load(Document({"id": "demo", "bees": BEES, **data}, "swarm.yaml"))


def test_a_plan_names_its_members_the_same_each_time() -> None:
    found = load()
    assert [member.instance for member in found.members()] == [
        "demo-generator",
        "demo-processor-1",
        "demo-processor-2",
        "demo-sink",
    ]
    assert (found.bees[1].work.inputs, found.bees[1].work.outputs) == (("raw",), ("done",))
    twice = load(bees=[*BEES, {"role": "generator", "command": ["gen2"]}])
    assert [m.instance for m in twice.members() if m.role == "generator"] == ["demo-generator-1", "demo-generator-2"]


def bee(role: str = "a", **more: Any) -> dict[str, Any]:
    return {"role": role, "command": ["x"], **more}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"id": "De.mo"}, "id: "),
        ({"bees": []}, "bees: "),
        ({"bees": [{"role": "a"}]}, "bees[0]: needs either command or image"),
        ({"bees": [bee(image="y")]}, "bees[0]: needs either"),
        ({"bees": [{"role": "a", "command": []}]}, "bees[0].command: "),
        ({"bees": [bee("swarm-controller")]}, "bees[0].role: swarm-controller is reserved"),
        ({"bees": [bee(work={"in": ["a.b"]})]}, "bees[0].work.in[0]: "),
        ({"bees": [bee(work={"out": ["#"]})]}, "bees[0].work.out[0]: "),
        ({"bees": [bee(work={"inputs": ["q"]})]}, "bees[0].work.inputs: is not a known"),
        ({"bees": [bee(work={"in": ["hive"]})]}, "bees[0].work.in[0]: hive is"),
        ({"bees": [bee(work={"in": ["q", "q"]})]}, "bees[0].work.in[1]: q is in the list"),
        ({"bees": [bee(instances=0)]}, "bees[0].instances: "),
        ({"bees": [bee(instances=600)] * 2}, "bees: have 1200 instances in all"),
        ({"bees": [bee("a" * 60)]}, "longer than the 63 characters"),
        ({"bees": [bee(instances=2), bee("a-1")]}, "makes demo-a-1, as"),
        ({"swarm": 1}, "swarm: is not a known field"),
    ],
)  # fmt: skip
def test_an_invalid_plan_names_the_position(data: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadDocument, match=r"swarm\.yaml") as caught:
        load(**data)
    assert expected in str(caught.value)


# --- order ---


@st.composite
def plans(draw: st.DrawFn) -> plan.SwarmPlan:
    queues = ["q0", "q1", "q2", "q3"]
    bees = tuple(
        plan.Bee(
            role=f"r{number}",
            command=("x",),
            work=plan.BeeQueues(
                inputs=tuple(draw(st.lists(st.sampled_from(queues), unique=True, max_size=2))),
                outputs=tuple(draw(st.lists(st.sampled_from(queues), unique=True, max_size=2))),
            ),
        )
        for number in range(draw(st.integers(1, 7)))
    )
    return plan.SwarmPlan(id="demo", bees=bees)


def reaches(swarm: plan.SwarmPlan) -> dict[int, set[int]]:
    """Return for each bee those after it, by brute force."""
    bees = swarm.bees
    numbers = range(len(bees))
    after = {a: {b for b in numbers if set(bees[a].work.outputs) & set(bees[b].work.inputs)} for a in numbers}
    for _ in bees:
        for a in after:
            after[a] = after[a].union(*(after[b] for b in after[a]))
    return after


@given(plans())
def test_writers_come_before_readers_except_in_a_cycle(swarm: plan.SwarmPlan) -> None:
    found, after = plan.start_order(swarm), reaches(swarm)
    assert sorted(bee for bees in found.stages for bee in bees) == list(range(len(swarm.bees)))
    stage = {bee: number for number, bees in enumerate(found.stages) for bee in bees}
    for a, readers in after.items():
        for b in readers:
            assert stage[a] < stage[b] or a in after[b]
    circles = {frozenset({a} | {b for b in after[a] if a in after[b]}) for a in after if a in after[a]}
    assert len(found.warnings) == len(circles)
    assert all(list(bees) == sorted(bees) for bees in found.stages)  # ties in the plan's order
    assert plan.start_order(swarm) == found


def test_the_warning_of_a_cycle_names_its_path() -> None:
    bees = [
        {"role": "a", "command": ["x"], "work": {"in": "back", "out": "on"}},
        {"role": "b", "command": ["x"], "work": {"in": "on", "out": ["back", "end"]}},
        {"role": "c", "command": ["x"], "work": {"in": "end"}},
    ]
    found = plan.start_order(load(bees=bees))
    assert found.stages == ((0, 1), (2,))
    assert found.warnings == (
        "work flows in a circle (a → b → a); they are started in the order of the plan, and stopped in reverse",
    )


def test_a_chain_may_be_longer_than_the_recursion_limit() -> None:
    bees = tuple(
        plan.Bee(role=f"r{n}", command=("x",), work=plan.BeeQueues(inputs=(f"q{n}",), outputs=(f"q{n + 1}",)))
        for n in reversed(range(200))
    )
    assert plan.start_order(plan.SwarmPlan(id="demo", bees=bees)).stages == tuple(
        (bee,) for bee in reversed(range(200))
    )


# --- messages ---


def signal(**changes: Any) -> dict[str, Any]:
    return {"correlationId": UUID, "idempotencyKey": UUID, "signal": "swarm-start", "swarmId": "demo", **changes}


def test_a_signal_is_encoded_and_decoded_as_in_the_seed() -> None:
    body = json.dumps(signal(role=None, instance=None, args=None, later="more")).encode()
    found = messages.read(names.read_key("sig.swarm-start.demo"), body)
    assert (found.correlation_id, found.swarm_id, found.role, found.args) == (UUID, "demo", None, None)
    assert json.loads(messages.encode(found)) == signal()  # absent, never null
    config = messages.ControlSignal(
        correlation_id=UUID, idempotency_key=UUID, signal="config-update", swarm_id="demo", role="a", instance="b",
        args={"enabled": False, "someKey": {"other_key": None}},
    )  # fmt: skip
    again = messages.read(names.read_key("sig.config-update.a.b"), messages.encode(config))
    assert again == config  # the caller's own names are unchanged


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "it is not valid JSON"),
        (b"[" * 100_000, "it is not valid JSON"),
        (b"[]", "must be an object"),
        (b'{"correlationId": NaN}', "it is not valid JSON"),
        (b" " * (messages.MAX_BYTES + 1), "bytes; a message may have"),
        (json.dumps(signal(correlationId="x")).encode(), "correlationId "),
        (json.dumps({"signal": "swarm-start"}).encode(), "correlationId is required; idempotencyKey is required"),
        (json.dumps(signal(signal="swarm-stop")).encode(), "the body says swarm-stop, its routing key swarm-start"),
        (json.dumps(signal(swarmId="other")).encode(), "the body is about other, its routing key about demo"),
        (json.dumps(signal(swarmId="a.b")).encode(), "swarmId "),
        (json.dumps(signal(role="a")).encode(), "by its role and its instance together"),
    ],
)
def test_a_forged_or_broken_signal_is_refused_with_the_reason(body: bytes, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        messages.read(names.read_key("sig.swarm-start.demo"), body)
    assert expected in str(caught.value)


json_data = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.binary(max_size=200) | json_data.map(lambda data: json.dumps(data).encode()))
def test_no_body_breaks_the_reader(body: bytes) -> None:
    for shape in (messages.ControlSignal, messages.Ready, messages.Error, messages.StatusReport):
        with pytest.raises(InputError):
            messages.decode(shape, body)


def examples() -> list[Any]:
    scope = messages.scope_body(Scope(swarm="demo"))
    common = {"ts": NOW, "correlation_id": UUID, "idempotency_key": UUID, "signal": "swarm-start", "scope": scope}
    return [
        messages.ControlSignal(correlation_id=UUID, idempotency_key=UUID, signal="swarm-stop", swarm_id="demo"),
        messages.Ready(**common, state=str(SwarmState.RUNNING), notes="quick"),
        messages.Error(**common, phase="start", code="START_TIMEOUT", message="late", retryable=True, details={"a": 1}),
        messages.Duplicate(**common, original_correlation_id=UUID),
        messages.Warning(ts=NOW, signal="swarm-template", scope=scope, message="in a circle"),
        messages.StatusReport(
            kind="status-full", message_id=UUID, timestamp=NOW, role="swarm-controller", instance="demo-marshal",
            swarm_id="demo", enabled=True, state="Running", watermark=NOW, max_staleness_sec=0.5,
            totals=messages.Totals(total=1, desired=1, healthy=1, running=1, enabled=1),
            queues=messages.StatusQueues(inputs=("ph.demo.raw",)), data={"tps": 3},
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("message", examples(), ids=lambda message: type(message).__name__)
def test_every_message_fits_its_schema_and_round_trips(message: Any) -> None:
    body = messages.encode(message)
    schema = asyncapi.schema(type(message))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(body), schema)
    assert messages.decode(type(message), body) == message
    assert not re.search(r'"[a-z]+_[a-z]+"\s*:', body.decode())


def test_a_confirmation_has_the_form_of_the_seed() -> None:
    ready = json.loads(messages.encode(examples()[1]))
    assert ready == {
        "ts": NOW,
        "correlationId": UUID,
        "idempotencyKey": UUID,
        "signal": "swarm-start",
        "scope": {"swarmId": "demo"},
        "result": "success",
        "state": "Running",
        "notes": "quick",
    }
    error = json.loads(messages.encode(examples()[2]))
    assert {"phase", "code", "message", "retryable", "details", "result"} <= error.keys()


# --- lifecycles ---


def test_every_state_allows_a_command() -> None:
    """So a failure is never final, and a removed swarm may be created again."""
    for state in SwarmState:
        assert any(state in allowed for signal, allowed in lifecycle.ALLOWED.items() if not signal.of_component)
    assert SwarmState.FAILED in lifecycle.ALLOWED[Signal.START] & lifecycle.ALLOWED[Signal.REMOVE]


def test_a_refused_command_names_the_allowed_ones() -> None:
    lifecycle.check_allowed(Signal.START, SwarmState.READY, "demo")
    with pytest.raises(IllegalTransition, match="swarm demo is Running, and swarm-remove is not allowed then; stop it"):
        lifecycle.check_allowed(Signal.REMOVE, SwarmState.RUNNING, "demo")
    with pytest.raises(IllegalTransition, match="allowed are swarm-create"):
        lifecycle.check_allowed(Signal.START, SwarmState.NEW, "demo")
    for signal_, states in lifecycle.ALLOWED.items():
        assert states, signal_
