"""Messages that are not obeyed: forged, broken and replayed ones, on each bus, against a controller and its
components."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from farro.documents import Document
from farro.errors import BadDocument, BadName
from farro.swarm import plan
from farro.swarm.bus.port import BusMessage
from farro.swarm.component.run import REMEMBERED, RefusedSignals
from farro.swarm.conformance import Captured
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal
from flows.program import Program
from swarm.swarm_under_test import PIPELINE, SWARM, Play, SwarmUnderTest, bee, now

GENERATOR = ("generator", "demo-generator")
KEY = "sig.config-update.generator.demo-generator"


def signal(sig: str = "swarm-start", **changes: Any) -> dict[str, Any]:
    own = str(uuid.uuid4())
    body = {"correlationId": own, "idempotencyKey": own, "signal": sig, "timestamp": now(), "swarmId": SWARM, **changes}
    return {name: value for name, value in body.items() if value is not None}


def update(**changes: Any) -> dict[str, Any]:
    about = {"role": GENERATOR[0], "instance": GENERATOR[1], "args": {"enabled": True}}
    return signal("config-update", **{**about, **changes})


def big(body: dict[str, Any]) -> bytes:
    return json.dumps({**body, "args": {"much": "x" * messages.MAX_BYTES}}).encode()


SIGNALS: dict[str, bytes | dict[str, Any]] = {
    "another swarm": signal(swarmId="other"),
    "no swarm": signal(swarmId=None),
    "another signal": signal("swarm-remove"),
    "a wildcard": signal(swarmId="*"),
    "a dotted name": signal(swarmId="demo.x"),
    "a number for an id": signal(correlationId=5),
    "no id": signal(correlationId=None),
    "no UUID": signal(idempotencyKey="../../etc/passwd"),
    "a list": b"[]",
    "no JSON": b"{",
    "nothing": b"",
    "not a number": json.dumps(signal(args={"x": 1})).replace("1}", "NaN}").encode(),
    "too deep": b'{"args":' * 5000 + b"1" + b"}" * 5000,
    "too large": big(signal()),
}
UPDATES: dict[str, bytes | dict[str, Any]] = {
    "another swarm": update(swarmId="other"),
    "another role": update(role="sink"),
    "another instance": update(instance="demo-sink"),
    "no role": update(role=None, instance=None),
    "another signal": update(signal="status-request"),
    "a list": update(args=[True]),
    "no JSON": b"\xff\xfe",
    "too large": big(update()),
}


async def state(demo: SwarmUnderTest) -> tuple[str, int]:
    report = await demo.status(names.CONTROLLER, "demo-marshal")
    return report["state"], report["totals"]["enabled"]


def audit(demo: SwarmUnderTest) -> list[dict[str, Any]]:
    """Read the swarm's audit log."""
    return [json.loads(line) for line in (demo.folder / "swarm" / "audit.jsonl").read_text().splitlines()]


def test_forged_signals_are_ignored_and_reported(play: Play) -> None:
    """By the controller in its log and the swarm's audit log, by a component in its own log and its status."""

    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
            for body in SIGNALS.values():
                await demo.forge("sig.swarm-start.demo", body)
            for body in UPDATES.values():
                await demo.forge(KEY, body)
            # Also a component's status from another sender: the controller would take the component for enabled.
            spoken = await demo.status(*GENERATOR)
            await demo.forge("ev.status-delta.sink.demo-sink", {**spoken, "kind": "status-delta", "enabled": True})
            await demo.forge(
                "ev.status-full.sink.demo-sink", {**spoken, "role": "sink", "instance": "demo-sink", "swarmId": 3}
            )
            said = await demo.status(*GENERATOR)
            assert said["enabled"] is False
            refused = said["data"]["refused"]
            assert (refused["count"], refused["lastKey"]) == (len(UPDATES), KEY)
            assert refused["lastReason"].startswith("ControlSignal: ")
            assert await state(demo) == ("Ready", 0)
            ignored = [fields["key"] for level, what, fields in demo.logged if (level, what) == ("warning", "ignored")]
            assert ignored.count("sig.swarm-start.demo") == len(SIGNALS)
            assert ignored.count(KEY) == len(UPDATES)
            assert [key for key in ignored if key.startswith("ev.")] == [
                "ev.status-delta.sink.demo-sink",
                "ev.status-full.sink.demo-sink",
            ]
            noted = [line for line in audit(demo) if line["what"] == "ignored"]
            assert sorted(line["key"].strip("'") for line in noted) == sorted(ignored)
            log = (demo.folder / "swarm" / "logs" / "demo-generator.log").read_text()
            assert log.count('"ignored"') == len(UPDATES)
            assert "xxxx" not in log  # nothing of a body is repeated
            assert (await demo.ask(Signal.START))["state"] == "Running"  # and all still listen

    play(act)


def test_a_replayed_signal_changes_nothing_and_is_reported(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
            assert (await demo.ask(Signal.START))["state"] == "Running"
            assert (await demo.ask(Signal.STOP))["state"] == "Stopped"
            await demo.capture.settle()
            start = next(one for one in demo.capture.messages if one.key == "sig.swarm-start.demo")
            correlation = json.loads(start.body)["correlationId"]
            ours = [one for one in demo.capture.messages if one.key == KEY and b'"enabled":true' in one.body]
            before = len(demo.heard)
            await demo.bus.publish(names.CONTROL, _again(start))
            # A duplicate and no second confirmation; nothing is started.
            key = "ev.duplicate.swarm-start.demo"
            await demo.until(lambda heard, body: heard == key and body["correlationId"] == correlation, after=before)
            assert len(demo.confirmations(correlation)) == 1
            for one in ours:  # what the controller sent to enable it
                await demo.bus.publish(names.CONTROL, _again(one))
            report = await demo.status(*GENERATOR)
            assert (report["enabled"], report["data"]["refused"]["count"]) == (False, len(ours))
            assert "received and obeyed before" in report["data"]["refused"]["lastReason"]
            assert await state(demo) == ("Stopped", 0)
            assert [line["instance"] for line in audit(demo) if line["what"] == "refused"] == ["demo-generator"]

    play(act)


def _again(one: Captured) -> BusMessage:
    return BusMessage(key=one.key, body=one.body, message_id=one.message_id)


BAD = ["a.b", "*", "#", "a*", "../a", "A", "", "x" * 64, "ph.control", "a b", "ä"]


@pytest.mark.parametrize("name", BAD)
def test_a_plan_with_an_invalid_name_is_refused_with_its_position(name: str) -> None:
    def refused(where: str, **data: Any) -> None:
        with pytest.raises(BadDocument, match=where):
            plan.load(Document({"id": SWARM, "bees": [bee("generator")], **data}, "plan"))

    refused("id", id=name)
    refused(r"bees\[0\].role", bees=[bee(name)])
    refused(r"bees\[0\].work.in\[0\]", bees=[bee("sink", takes=None) | {"work": {"in": [name]}}])
    refused(r"bees\[0\].work.out\[0\]", bees=[bee("sink") | {"work": {"out": [name]}}])


def test_a_plan_of_another_swarm_is_refused_and_changes_nothing(play: Play) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            for wanted in ({**PIPELINE, "id": "other"}, {**PIPELINE, "id": "*"}, {"id": SWARM, "bees": [bee("a.b")]}):
                end = await demo.ask(Signal.TEMPLATE, wanted)
                assert (end["result"], end["code"]) == ("error", "BAD_PLAN")
            assert demo.runtime.list() == []
            assert await demo.bus.depth("ph.other.raw") is None

    play(act)


@pytest.mark.parametrize("name", BAD)
def test_no_key_queue_or_exchange_is_made_of_an_invalid_name(name: str) -> None:
    for make in (
        lambda: names.work_exchange(name),
        lambda: names.work_queue(SWARM, name),
        lambda: names.control_queue("generator", name),
        lambda: names.component_keys(name, "demo-generator"),
        lambda: names.controller_up_key(name),
        lambda: names.Scope(swarm=name),
        lambda: names.read_key(f"sig.swarm-start.{name}.x"),
    ):
        with pytest.raises(BadName):
            make()


def test_a_flood_of_forged_messages_needs_little_memory() -> None:
    """The number of remembered signals is bounded."""
    refusals = RefusedSignals("demo-generator")
    ids = [f"id-{number}" for number in range(3 * REMEMBERED)]
    assert all(refusals.first(one) for one in ids)
    assert not refusals.first(ids[-1])
    assert refusals.first(ids[0])  # so old that it counts as new
    assert refusals.status() == {}


def test_an_invalid_name_is_refused_by_every_command(tmp_path: Path) -> None:
    farro, file = Program(tmp_path), tmp_path / "plan.json"
    farro.run("init", code=0)
    for name in ("a.b", "*"):
        file.write_text(json.dumps({**PIPELINE, "id": name}))
        for words in (("create", name, "--plan", str(file)), ("start", name), ("stop", name), ("status", name)):
            said = farro.call("swarm", *words, code=2).err
            assert "lower-case letters, digits and -" in said, said
        assert "not a valid role" in farro.call("swarm", "config", name, "x", "a=1", code=2).err
    assert not any((tmp_path / "swarms").glob("orchestrator/wishes/*"))
