"""The signals that the document (seed 003) describes, typed as it describes them, on each bus.

Each one is obeyed or gets its one `ev.error`, is confirmed once, and is reported as a duplicate when it comes again."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from farro.host.clock import SystemClock
from farro.swarm import lifecycle
from farro.swarm.bus.port import BusMessage
from farro.swarm.conformance import Captured, check
from farro.swarm.controller import confirmations
from farro.swarm.files import SwarmFiles, read_json
from farro.swarm.lifecycle import Observation
from farro.swarm.orchestrator import unheard as unheard_signals
from farro.swarm.orchestrator.state import LaunchOptions, OrchestratorContext
from farro.swarm.orchestrator.unheard import UnheardSignals
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal
from swarm.fake_cluster import PLAN, Act, FakeCluster, ready
from swarm.swarm_under_test import PIPELINE, SWARM, Play, SwarmUnderTest

KEY = "sig.config-update.generator.demo-generator"
TYPED = {"swarmId": SWARM, "role": "generator", "instance": "demo-generator", "args": {"enabled": True}}


async def type_signal(demo: SwarmUnderTest, key: str, **fields: Any) -> dict[str, Any]:
    """Send a signal with exactly the document's fields, and return its body."""
    own = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4()), **fields}
    await send(demo, key, own)
    return own


async def send(demo: SwarmUnderTest, key: str, body: dict[str, Any]) -> None:
    message = BusMessage(key=key, body=json.dumps(body).encode(), message_id=str(uuid.uuid4()))
    await demo.bus.publish(names.CONTROL, message)


async def duplicate_of(demo: SwarmUnderTest, correlation: str, count: int = 1) -> dict[str, Any]:
    def told(key: str, body: dict[str, Any]) -> bool:
        found = [
            one for heard, one, _ in demo.heard
            if heard.startswith("ev.duplicate.") and one["correlationId"] == correlation
        ]  # fmt: skip
        return len(found) >= count and body is found[-1]

    return await demo.until(told)


def confirmed(demo: SwarmUnderTest, correlation: str) -> list[str]:
    """Return the keys of all confirmations of a signal, copies too."""
    return [
        key
        for key, body, _ in demo.heard
        if key.startswith(("ev.ready.", "ev.error.")) and body.get("correlationId") == correlation
    ]


def test_a_config_update_of_the_document_is_obeyed_and_confirmed_once(play: Play) -> None:
    """§3.1, §9: config-update; the same redelivered; the same idempotency key with a new correlation id."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            first = await type_signal(demo, KEY, **TYPED)
            end = await demo.confirmed(first["correlationId"])
            assert (end["result"], end["state"], end["scope"]) == (
                "success", "Running", {"swarmId": SWARM, "role": "generator", "instance": "demo-generator"},
            )  # fmt: skip
            assert end["idempotencyKey"] == first["idempotencyKey"]
            for count in (1, 2):
                await send(demo, KEY, first)
                told = await duplicate_of(demo, first["correlationId"], count)
                assert told["originalCorrelationId"] == first["correlationId"]
            retry = {**first, "correlationId": str(uuid.uuid4())}
            await send(demo, KEY, retry)
            assert (await duplicate_of(demo, retry["correlationId"]))["originalCorrelationId"] == first["correlationId"]
            assert (await demo.confirmed(retry["correlationId"]))["state"] == "Running"
            report = await demo.status("generator", "demo-generator")
            assert report["data"]["refused"]["count"] == 3  # the component itself obeyed it once
            for one in (first, retry):
                assert confirmed(demo, one["correlationId"]) == ["ev.ready.config-update.generator.demo-generator"]

    play(act)


def test_two_updates_at_once_are_both_confirmed(play: Play) -> None:
    """Also when the component reports both between two turns of the controller."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            sent = [await type_signal(demo, KEY, **{**TYPED, "args": {"enabled": on}}) for on in (True, False, True)]
            ends = [await demo.confirmed(one["correlationId"]) for one in sent]
            assert [one["result"] for one in ends] == ["success"] * 3

    play(act)


def test_a_signal_that_cannot_be_obeyed_gets_one_error(play: Play) -> None:
    """§1: every control signal results in exactly one success or error."""
    stop = "sig.swarm-stop.demo"
    wrong = [
        (KEY, {**TYPED, "args": {"enabled": "yes"}}, "CONFIG_REFUSED", "runtime"),
        (KEY, {**TYPED, "args": [True]}, "BAD_SIGNAL", "runtime"),
        (KEY, {**TYPED, "swarmId": "other"}, "BAD_SIGNAL", "runtime"),
        (KEY, {**TYPED, "instance": "demo-sink"}, "BAD_SIGNAL", "runtime"),
        (stop, {"swarmId": "other"}, "BAD_SIGNAL", "stop"),
        (stop, {"swarmId": SWARM, "signal": "swarm-start"}, "BAD_SIGNAL", "stop"),
        ("sig.swarm-template.demo", {}, "BAD_SIGNAL", "template"),
    ]

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            for key, fields, code, phase in wrong:
                body = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4()), **fields}
                await demo.forge(key, body)
                end = await demo.confirmed(body["correlationId"])
                assert (end["result"], end["code"], end["phase"]) == ("error", code, phase)
                assert end["idempotencyKey"] == body["idempotencyKey"]
                await demo.forge(key, body)
                await duplicate_of(demo, body["correlationId"])
                assert len(confirmed(demo, body["correlationId"])) == 1

    play(act)


# --- whose signal is it ---


def test_a_lifecycle_signal_of_somebody_else_is_refused(play: Play) -> None:
    """§11: only the orchestrator issues swarm lifecycle signals; what a message says of its origin does not count."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            await demo.ask(Signal.START)
            for signal in (Signal.STOP, Signal.REMOVE, Signal.TEMPLATE):
                foreign = await type_signal(
                    demo, f"sig.{signal}.{SWARM}", swarmId=SWARM, origin="orchestrator", args={"plan": PIPELINE}
                )
                end = await demo.confirmed(foreign["correlationId"])
                assert (end["code"], end["phase"], end["retryable"]) == ("NOT_ORCHESTRATOR", signal.phase, False)
            report = await demo.status(names.CONTROLLER, "demo-marshal")
            assert (report["state"], report["totals"]["running"]) == ("Running", report["totals"]["total"])
            assert (await demo.ask(Signal.STOP))["state"] == "Stopped"

    play(act)


def test_a_signal_waits_for_an_orchestrator_that_is_away(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused if none answers; one that comes back answers the question that is asked again."""
    monkeypatch.setattr(confirmations, "ASK_AGAIN_S", 0.2)

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            demo.away = True
            waiting = await demo.send(Signal.TEMPLATE, PIPELINE)
            await demo.questions(3)
            await demo.back()
            assert (await demo.confirmed(waiting))["state"] == "Ready"
            demo.away = True
            monkeypatch.setattr(confirmations, "ASK_S", 0.5)
            refused = await demo.confirmed(await demo.send(Signal.START))
            assert (refused["code"], "no orchestrator" in refused["message"]) == ("NOT_ORCHESTRATOR", True)
            await demo.back()

    play(act)


def test_a_foreign_signal_is_obeyed_where_the_config_accepts_it(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller("accept"):
            for name, args, state in (("template", {"plan": PIPELINE}, "Ready"), ("start", None, "Running")):
                fields = {"swarmId": SWARM} if args is None else {"swarmId": SWARM, "args": args}
                foreign = await type_signal(demo, f"sig.swarm-{name}.{SWARM}", **fields)
                assert (await demo.confirmed(foreign["correlationId"]))["state"] == state
            demo._note(Signal.TEMPLATE, PIPELINE)

    play(act)


def test_the_orchestrator_knows_its_own_signals_and_no_others(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        sent = next(one for one in cluster.bus.said if one.key == "sig.swarm-template.demo")
        own = json.loads(sent.body)["correlationId"]
        questions = [(own, "swarm-template"), (own, "swarm-stop"), (str(uuid.uuid4()), "swarm-template")]
        for asked, signal in questions:
            scope = names.Scope(swarm=SWARM, role=names.ORCHESTRATOR, instance="demo-marshal")
            args = {"correlationId": asked, "signal": signal}
            await cluster.controllers.publisher.signal(
                Signal.STATUS, scope, args, origin="controller", correlation_id=str(uuid.uuid4())
            )
        await cluster.settle()
        answers = [
            json.loads(one.body) for one in cluster.bus.said if one.key.startswith("ev.status-full.orchestrator.")
        ]
        assert [one["data"]["known"] for one in answers] == [True, False, False]
        assert [one["data"]["asked"] for one in answers] == [asked for asked, _ in questions]

    run_in_cluster(act)


async def report(cluster: FakeCluster, state: str) -> None:
    """Send the status of the swarm's controller."""
    status = messages.StatusReport(
        kind="status-full",
        message_id=str(uuid.uuid4()),
        timestamp=cluster.controllers.publisher.now(),
        role=names.CONTROLLER,
        instance="demo-marshal",
        swarm_id=SWARM,
        enabled=True,
        state=state,
        totals=messages.Totals(total=1, desired=1, healthy=1, running=1, enabled=1),
        queues=messages.StatusQueues(),
        data={"health": "Healthy"},
    )
    await cluster.controllers.publisher.status(status)
    await cluster.settle()


@pytest.mark.parametrize("state", ["Running", "Stopped", "Removed", "Failed"])
def test_the_orchestrator_adopts_what_foreign_signals_did(run_in_cluster: Callable[[Act], None], state: str) -> None:
    """Within one heartbeat, where the config accepts such signals; else its own desired state stays."""

    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        await report(cluster, state)
        assert cluster.desired().state == "Ready"
        cluster.foreign_signals = "accept"
        await cluster.begin()
        await report(cluster, state)
        desired = cluster.desired()
        assert (desired.state, desired.enabled) == (state, state == "Running")
        gone = state == "Removed"
        assert desired.there is not gone
        await cluster.pass_s(1)
        assert ("demo-marshal" in cluster.controllers.alive) is not gone  # and the controller goes with its swarm

    run_in_cluster(act)


def test_the_orchestrator_adopts_a_foreign_plan(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        cluster.foreign_signals = "accept"
        await cluster.begin()
        await ready(cluster)
        other = {"id": SWARM, "bees": [{**PLAN["bees"][0], "role": "sink"}]}  # type: ignore[index,dict-item]
        path = cluster.root / "swarms" / SWARM / "controller.json"
        path.write_text(json.dumps({"plan": other}))
        await report(cluster, "Ready")
        plan = cluster.files.plan(SWARM)
        assert plan is not None
        assert [bee.role for bee in plan.bees] == ["sink"]

    run_in_cluster(act)


# --- words and counts of the document ---


def test_states_phases_and_totals_are_those_of_the_document(run_in_cluster: Callable[[Act], None]) -> None:
    """§12: state is Ready, Running, Stopped or Removed; phase create, template, start, stop, remove or runtime.
    §10: an aggregate counts total, healthy, running and enabled; farro adds desired."""

    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        for signal in (Signal.START, Signal.STOP, Signal.REMOVE):
            cluster.ask(signal)
            await cluster.settle()
        ends = [json.loads(one.body) for one in cluster.bus.said if one.key.startswith("ev.ready.swarm-")]
        states = {one["signal"]: one["state"] for one in ends if "state" in one and "signal" in one}
        assert states == {
            "swarm-create": "Ready",
            "swarm-template": "Ready",
            "swarm-start": "Running",
            "swarm-stop": "Stopped",
            "swarm-remove": "Removed",
        }

    run_in_cluster(act)
    assert {one: one.phase for one in Signal} == {
        Signal.CREATE: "create",
        Signal.TEMPLATE: "template",
        Signal.START: "start",
        Signal.STOP: "stop",
        Signal.REMOVE: "remove",
        Signal.CONFIG: "runtime",
        Signal.STATUS: "runtime",
    }
    off = Observation(launched=True, alive=True, healthy=True, enabled=False, reported_s=100.0)
    seen = {
        "off": off,
        "on": replace(off, enabled=True),
        "on too": replace(off, enabled=True),
        "ill": replace(off, enabled=True, healthy=False),
        "silent": replace(off, enabled=True, reported_s=0.0),
    }
    totals = lifecycle.aggregate([*seen, "not launched"], seen, now_s=100.0).totals
    assert json.loads(messages.encode(totals)) == {"total": 6, "desired": 6, "healthy": 3, "running": 2, "enabled": 3}


def test_the_config_updates_of_the_controller_are_confirmed_too(play: Play) -> None:
    """§1, §7.2: every signal, also those by which the controller enables its components."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            await demo.ask(Signal.START)
            await demo.ask(Signal.STOP)
            await demo.capture.settle()
            asked = [json.loads(one.body) for one in demo.capture.messages if one.key.startswith("sig.config-update.")]
            assert len(asked) == 8  # four components, enabled and disabled
            for one in asked:
                (key,) = confirmed(demo, one["correlationId"])
                assert key == f"ev.ready.config-update.{one['role']}.{one['instance']}"
            full = await demo.status(names.CONTROLLER, "demo-marshal")
            assert full["totals"]["total"] == 4
            ledger = read_json(str(demo.folder / "swarm" / "controller.json"))
            assert ledger["switched"] == {}  # its own updates are no command to a single component

    play(act)


def test_the_checker_finds_a_second_confirmation_of_a_signal() -> None:
    ids = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4()), "signal": "swarm-stop"}
    now = "2026-11-16T12:00:00.000Z"
    ready_ = {**ids, "ts": now, "scope": {"swarmId": SWARM}, "result": "success", "state": "Stopped"}
    own = str(uuid.uuid4())

    def captured(key: str, body: dict[str, Any], message_id: str) -> Captured:
        data = json.dumps(body).encode()
        return Captured(at_s=0.0, exchange=names.CONTROL, key=key, body=data, message_id=message_id)

    trace = [
        captured("sig.swarm-stop.demo", {**ids, "swarmId": SWARM, "timestamp": now}, str(uuid.uuid4())),
        captured("ev.ready.swarm-stop.demo", ready_, own),
    ]
    assert check(trace) == []
    trace.append(trace[-1])
    assert [one.rule for one in check(trace)] == ["confirmed"]
    assert check(trace, crashes=True) == []  # a sender that died may have sent it again


# --- signals to nobody ---


@asynccontextmanager
async def orchestrator(demo: SwarmUnderTest) -> AsyncIterator[None]:
    """Answer signals to nobody as the orchestrator of a root without swarms does."""
    options = LaunchOptions(program=("farro",), root=str(demo.folder), env={})
    files = SwarmFiles(str(demo.folder / "swarms"), durable=False)
    context = OrchestratorContext(
        files, demo.bus, demo.runtime, options, log=demo._log, clock=SystemClock(), durable=False
    )
    unheard = UnheardSignals(context)
    signals = await unheard.open()
    listening = asyncio.create_task(unheard.listen(signals))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await signals.close()
        await demo.bus.delete(unheard_signals.QUEUE)


@pytest.mark.parametrize(
    ("key", "fields", "phase"),
    [
        ("sig.swarm-start.ghost", {"swarmId": "ghost"}, "start"),
        ("sig.swarm-remove.ghost", {"swarmId": "ghost"}, "remove"),
        ("sig.config-update.sink.ghost", {"role": "sink", "instance": "ghost", "args": {"enabled": True}}, "runtime"),
        ("sig.status-request.sink.ghost", {"role": "sink", "instance": "ghost"}, "runtime"),
    ],
)
def test_a_signal_to_nobody_gets_one_error(play: Play, key: str, fields: dict[str, Any], phase: str) -> None:
    """§1: every control signal results in exactly one success or error, also where no queue is bound to it."""

    async def act(demo: SwarmUnderTest) -> None:
        async with orchestrator(demo), orchestrator(demo):  # two roots on one bus answer once
            body = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4()), **fields}
            await demo.forge(key, body)
            end = await demo.confirmed(body["correlationId"])
            assert (end["result"], end["code"], end["phase"]) == ("error", "NO_TARGET", phase)
            assert end["message"].startswith("there is no ")
            assert len(confirmed(demo, body["correlationId"])) == 1

    play(act)


def test_a_signal_that_is_received_is_not_answered_for_its_target(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with orchestrator(demo), demo.controller():
            await demo.ask(Signal.TEMPLATE, PIPELINE)
            first = await type_signal(demo, KEY, **TYPED)
            assert (await demo.confirmed(first["correlationId"]))["state"] == "Running"
            foreign = await type_signal(demo, "sig.swarm-stop.demo", swarmId=SWARM)
            assert (await demo.confirmed(foreign["correlationId"]))["code"] == "NOT_ORCHESTRATOR"
            ghost = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4()), "swarmId": "ghost"}
            await demo.forge("sig.swarm-stop.ghost", ghost)  # after it all others were judged
            assert (await demo.confirmed(ghost["correlationId"]))["code"] == "NO_TARGET"
            for one in (first, foreign):
                assert len(confirmed(demo, one["correlationId"])) == 1

    play(act)
