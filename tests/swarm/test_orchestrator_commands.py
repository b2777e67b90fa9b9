"""Commands in the orchestrator's hands, without processes and without waiting: their order, ends, times and replays."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from farro.errors import BadName, IllegalTransition, InputError, Refused
from farro.swarm import audit, requests, timeouts
from farro.swarm.audit import Trail
from farro.swarm.bus.port import Message
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal
from swarm.fake_cluster import PLAN, SWARM, Act, Court, Delivery, marshal, ready


def test_a_swarm_goes_through_its_life(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        asked = [court.ask(Signal.CREATE), court.ask(Signal.TEMPLATE, args=PLAN), court.ask(Signal.START)]
        await court.settle()
        assert [court.ended(one).state for one in asked] == ["Creating", "Ready", "Running"]
        view = requests.look(court.place.folder, SWARM, court.clock)
        assert (view.state, view.id, sorted(view.durations)) == ("Running", SWARM, ["provision", "ready", "start"])
        more = [court.ask(Signal.STOP), court.ask(Signal.REMOVE)]
        await court.settle()
        assert [court.ended(one).state for one in more] == ["Stopped", "Removed"]
        assert court.puppets.list() == []  # upon ev.ready.swarm-remove the controller goes
        assert [len(court.confirmations(one)) for one in asked + more] == [1] * 5
        assert requests.list_(court.place.folder) == []
        assert court.violations() == []
        again = court.ask(Signal.CREATE)  # a name may be used once more
        await court.settle()
        assert court.ended(again).result == "success"

    court(act)


def test_everything_is_audited_with_its_correlation_id(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        asked = court.ask(Signal.START, origin="somebody")
        await court.settle()
        told = [line["what"] for line in court.audit() if line.get("correlationId") == asked.correlation_id]
        assert told == ["asked", "sent", "ready"]

    court(act)


def test_a_command_that_is_asked_again_gets_the_same_end_and_is_not_done_twice(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        key = str(uuid.uuid4())
        await ready(court)
        first = court.ask(Signal.START, idempotency_key=key)
        second = court.ask(Signal.START, idempotency_key=key)  # before the first is over
        await court.settle()
        third = court.ask(Signal.START, idempotency_key=key)  # and after it
        await court.settle()
        signals = [one for one in court.bus.said if one.key == f"sig.swarm-start.{SWARM}"]
        assert len(signals) == 1
        for asked in (first, second, third):
            ((confirmed, body),) = court.confirmations(asked)
            assert (confirmed, body["state"], body["idempotencyKey"]) == (
                f"ev.ready.swarm-start.{SWARM}",
                "Running",
                key,
            )
            assert court.ended(asked).correlation_id == first.correlation_id
        dups = [json.loads(one.body) for one in court.bus.said if one.key == f"ev.duplicate.swarm-start.{SWARM}"]
        assert [one["correlationId"] for one in dups] == [second.correlation_id, third.correlation_id]
        assert {one["originalCorrelationId"] for one in dups} == {first.correlation_id}
        court.ask(Signal.STOP)
        removed = court.ask(Signal.REMOVE, idempotency_key=key)  # a key is of one action
        await court.settle()
        replayed = court.ask(Signal.REMOVE, idempotency_key=key)  # when nobody is there any more
        await court.settle()
        assert [court.confirmations(one)[0][1]["state"] for one in (removed, replayed)] == ["Removed", "Removed"]
        assert court.violations() == []

    court(act)


def test_a_silent_controller_is_given_up_with_one_error(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.mute = True
        asked = court.ask(Signal.START)
        await court.settle()
        limit_s = timeouts.limit_s(Signal.START, court.place.plan(SWARM))
        assert asked.timeout_ms == limit_s * 1000
        await court.pass_s(limit_s - 1)
        assert court.ended(asked).result is None
        assert court.confirmations(asked) == []
        await court.pass_s(2)
        assert court.place.given_up(SWARM) == [asked.correlation_id]  # forbidden to its controller, before it is told
        assert court.confirmations(asked) == []
        await court.pass_s(3)
        end = court.ended(asked)
        assert (end.result, end.code, end.retryable) == ("error", "CONTROLLER_SILENT", True)
        assert str(end.message).endswith(f"Its log: swarms/{SWARM}/logs/{marshal()}.log")
        view = requests.look(court.place.folder, SWARM, court.clock)
        assert (view.state, view.failures) == ("Failed", {"CONTROLLER_SILENT": 1})
        assert marshal() in court.puppets.alive  # nothing is deleted
        court.puppets.mute = False  # a controller that does not keep to it speaks after all
        await court.settle()
        assert court.ended(asked) == end
        assert [line["what"] for line in court.audit() if line.get("correlationId") == asked.correlation_id][
            -1
        ] == "late"
        once_more = court.ask(Signal.START)
        await court.settle()
        assert court.ended(once_more).state == "Running"

    court(act)


def test_the_time_of_a_command_goes_on_over_a_restart(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.mute = True
        asked = court.ask(Signal.START)
        await court.settle()
        limit_s = timeouts.limit_s(Signal.START, court.place.plan(SWARM))
        court.clock.advance(limit_s - 10)
        await court.begin()
        await court.settle()
        await court.pass_s(8)
        assert court.ended(asked).result is None
        await court.pass_s(3)
        await court.pass_s(3)
        assert court.ended(asked).code == "CONTROLLER_SILENT"
        assert len(court.confirmations(asked)) == 1

    court(act)


@pytest.mark.parametrize(
    ("trouble", "code", "phase"),
    [
        ("refuse", "LAUNCH_FAILED", "runtime"),
        ("silent", "HANDSHAKE_TIMEOUT", "create"),
        ("dies", "CONTROLLER_DIED", "create"),
    ],
)
def test_a_create_whose_controller_does_not_come_up_fails_and_may_be_tried_again(
    court: Callable[[Act], None], trouble: str, code: str, phase: str
) -> None:
    async def act(court: Court) -> None:
        court.puppets.refuse = "no such program" if trouble == "refuse" else None
        court.puppets.dumb = True
        asked = court.ask(Signal.CREATE)
        await court.settle()
        if trouble == "dies":
            court.puppets.alive[marshal()] = False
            await court.settle()
        if trouble == "silent":
            await court.pass_s(timeouts.HANDSHAKE_S + 1)
        ((key, body),) = court.confirmations(asked)
        assert key == f"ev.error.swarm-create.{SWARM}"
        assert (body["code"], body["phase"], body["retryable"]) == (code, phase, True)
        assert requests.look(court.place.folder, SWARM, court.clock).state == "Failed"
        refused = court.ask(Signal.TEMPLATE, args=PLAN)
        await court.settle()
        assert court.ended(refused).code == "ILLEGAL_STATE"
        court.puppets.refuse, court.puppets.dumb = None, False
        court.puppets.alive.pop(marshal(), None)
        again = court.ask(Signal.CREATE)
        await court.settle()
        assert court.ended(again).result == "success"
        assert len(court.confirmations(asked)) == 1

    court(act)


def test_a_swarm_that_never_came_up_can_be_removed(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        court.puppets.refuse = "no such program"
        court.ask(Signal.CREATE)
        await court.settle()
        gone = court.ask(Signal.REMOVE)
        await court.settle()
        assert court.ended(gone).state == "Removed"

    court(act)


def test_a_controller_that_died_is_launched_again_later_and_later(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        for _ in range(4):
            court.puppets.alive[marshal()] = False
            await court.pass_s(0.1)
        assert court.puppets.launched == [marshal()] * 2  # not at every look
        await court.pass_s(60)
        assert court.puppets.alive[marshal()]

    court(act)


def test_running_swarms_are_adopted_after_a_restart(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.ask(Signal.START)
        await court.settle()
        launched = list(court.puppets.launched)
        await court.begin()
        await court.settle()
        assert court.puppets.launched == launched
        assert requests.look(court.place.folder, SWARM, court.clock).state == "Running"
        asked = court.ask(Signal.STOP)
        await court.settle()
        assert court.ended(asked).state == "Stopped"

    court(act)


def test_a_stop_does_not_wait_for_a_start(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.mute = True
        court.ask(Signal.START)
        await court.settle()
        court.ask(Signal.STOP)
        court.ask(Signal.START)  # this one waits
        await court.settle()
        sent = [one.key for one in court.bus.said if one.key.startswith("sig.swarm-st")]
        assert sent == [f"sig.swarm-start.{SWARM}", f"sig.swarm-stop.{SWARM}"]

    court(act)


def test_what_can_be_seen_to_be_wrong_is_refused_at_once(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)

        def config(role: str, instance: str) -> object:
            return court.ask(Signal.CONFIG, None, role=role, instance=instance, args={})

        wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (Refused, "is there already", lambda: court.ask(Signal.CREATE)),
            (BadName, "is no swarm", lambda: court.ask(Signal.CREATE, "a.b")),
            (BadName, "is no swarm", lambda: court.ask(Signal.CREATE, "*")),
            (BadName, "is no swarm", lambda: court.ask(Signal.START, "#")),
            (BadName, "a folder of farro's own", lambda: court.ask(Signal.CREATE, "components")),
            (BadName, "too long", lambda: court.ask(Signal.CREATE, "x" * 60)),
            (IllegalTransition, "there is no swarm other", lambda: court.ask(Signal.START, "other")),
            (InputError, "is of swarm demo, not of other", lambda: court.ask(Signal.TEMPLATE, "other", args=PLAN)),
            (InputError, "no component x y", lambda: court.ask(Signal.CONFIG, SWARM, role="x", instance="y", args={})),
            (InputError, "no swarm here has", lambda: config("x", "y")),
            (InputError, "did you mean generator demo-generator", lambda: config("generator", "demo-generatr")),
            (InputError, "demo-generator is no sink: its role is generator", lambda: config("sink", "demo-generator")),
            (InputError, "is no UUID", lambda: court.ask(Signal.START, idempotency_key="1")),
            (InputError, "bees", lambda: court.ask(Signal.TEMPLATE, args={"id": SWARM, "bees": []})),
        ]
        for kind, text, call in wrong:
            with pytest.raises(kind, match=text):
                call()
        assert court.place.wished() == []

    court(act)


def test_two_swarms_have_no_component_of_one_name(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.ask(Signal.CREATE, "a")
        await court.settle()
        clash = {"id": "a", "bees": [{"role": "marshal", "command": ["true"]}]}
        with pytest.raises(InputError, match="a-marshal would be a component of a"):
            court.ask(Signal.TEMPLATE, "a", args=clash)
        court.ask(Signal.TEMPLATE, "a", args={"id": "a", "bees": [{"role": "b-c", "command": ["true"]}]})
        court.ask(Signal.CREATE, "a-b")
        await court.settle()
        with pytest.raises(InputError, match="a-b-c would be a component of a-b and is one of swarm a"):
            court.ask(Signal.TEMPLATE, "a-b", args={"id": "a-b", "bees": [{"role": "c", "command": ["true"]}]})

    court(act)


def test_a_component_is_configured_and_asked_for_its_status(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        about = {"role": "generator", "instance": "demo-generator"}
        asked = court.ask(Signal.CONFIG, None, args={"enabled": False}, **about)
        await court.settle()
        assert (court.ended(asked).state, court.ended(asked).scope) == ("Stopped", {"swarmId": SWARM, **about})
        heard = court.bus.queues[court.queue].bindings
        before = list(heard)
        status = court.ask(Signal.STATUS, None, **about)
        await court.settle()
        told = ControlSignal(
            correlation_id=status.correlation_id,
            idempotency_key=status.idempotency_key,
            signal="status-request",
            swarm_id=SWARM,
            **about,
        )
        assert [one.key for one in heard if one not in before] == [status.watch["successTopic"]]
        await court.puppets.confirm(told)  # as the component answers
        await court.settle()
        assert court.ended(status).result == "success"
        assert heard == before  # the orchestrator hears no component's status longer than it must
        late = court.ask(Signal.STATUS, None, **about)
        await court.settle()
        await court.pass_s(timeouts.STATUS_S + 1)
        assert court.ended(late).code == "STATUS_TIMEOUT"

    court(act)


def test_forged_and_strange_events_are_ignored_and_audited(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.mute = True
        asked = court.ask(Signal.START)
        await court.settle()
        good = {
            "ts": "2026-11-16T12:00:00Z",
            "correlationId": asked.correlation_id,
            "idempotencyKey": asked.idempotency_key,
            "signal": "swarm-start",
            "scope": {"swarmId": SWARM},
            "result": "success",
            "state": "Running",
        }
        key = f"ev.ready.swarm-start.{SWARM}"
        up = {
            "event": "status",
            "kind": "status-full",
            "messageId": str(uuid.uuid4()),
            "timestamp": "2026-11-16T12:00:00Z",
            "role": names.CONTROLLER,
            "instance": marshal(),
            "swarmId": "other",
            "enabled": True,
        }
        forged: list[tuple[str, object]] = [
            (key, "no JSON"),
            (key, {**good, "scope": {"swarmId": "other"}}),
            (key, {**good, "signal": "swarm-stop"}),
            (key, {**good, "correlationId": str(uuid.uuid4())}),
            (key, {**good, "idempotencyKey": str(uuid.uuid4())}),
            (f"ev.ready.swarm-stop.{SWARM}", good),
            (f"ev.ready.swarm-controller.{marshal()}", up),
            (f"ev.ready.swarm-controller.{marshal()}", {**up, "instance": "other"}),
            ("ev.nonsense", good),
        ]
        assert court.orchestrator is not None
        for name, body in forged:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            delivery = Delivery(Message(key=name, body=data, message_id=str(uuid.uuid4())))
            await court.orchestrator.hear(delivery)
            assert delivery.acknowledged
        assert court.ended(asked).result is None
        ignored = [*court.audit(), *court.audit(None)]
        assert len([line for line in ignored if line["what"] == "ignored"]) == len(forged)
        real = Message(key=key, body=json.dumps(good).encode(), message_id=str(uuid.uuid4()))
        await court.orchestrator.hear(Delivery(real))
        assert court.ended(asked).state == "Running"

    court(act)


def test_wishes_keep_their_order_when_somebody_sets_the_clock_back(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        asked = [court.ask(Signal.CREATE)]
        court.clock.jump(-3600)
        asked.append(court.ask(Signal.TEMPLATE, args=PLAN))
        assert [told.signal for _, told in court.place.wished() if told] == ["swarm-create", "swarm-template"]
        await court.settle()

    court(act)


def test_a_wish_that_is_no_command_is_ignored_and_audited(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        path = Path(court.place.wishes, f"{1:020d}.{uuid.uuid4()}.json")
        path.write_text("{}")
        await court.settle()
        assert not path.exists()
        assert [line["what"] for line in court.audit(None)] == ["ignored"]

    court(act)


def test_a_failed_command_leaves_everything_and_says_why(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.error = "START_TIMEOUT"
        asked = court.ask(Signal.START)
        await court.settle()
        assert (court.ended(asked).code, court.ended(asked).message) == ("START_TIMEOUT", "as the test wants")
        view = requests.look(court.place.folder, SWARM, court.clock)
        assert (view.state, view.health, view.reason) == ("Failed", "Degraded", "as the test wants")
        assert view.failures == {"START_TIMEOUT": 1}
        assert court.puppets.alive == {marshal(): True}
        assert court.violations() == []

    court(act)


def test_the_trail_of_a_swarm_is_bounded(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LIMIT", 300)
    trail = Trail(str(shm), "test", lambda: "2026-11-16T12:00:00Z", lambda *_: None)
    for number in range(40):
        trail.note("asked", str(uuid.uuid4()), number=number)
    files = sorted(path.name for path in shm.glob("audit.jsonl*"))
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    assert json.loads((shm / "audit.jsonl").read_text().splitlines()[-1])["number"] == 39
    assert max(path.stat().st_size for path in shm.glob("audit.jsonl*")) < messages.MAX_BYTES
