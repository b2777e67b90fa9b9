"""Commands in the orchestrator, without processes and without waiting: their order, ends, time limits and
repetitions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from farro.errors import BadName, IllegalTransition, InputError, Refused
from farro.swarm import publish, reconcile, views
from farro.swarm.bus.port import BusMessage
from farro.swarm.publish import SwarmAudit
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal
from swarm.fake_cluster import PLAN, SWARM, Act, Delivery, FakeCluster, controller_name, ready


def test_a_swarm_goes_through_its_life(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        asked = [cluster.ask(Signal.CREATE), cluster.ask(Signal.TEMPLATE, args=PLAN), cluster.ask(Signal.START)]
        await cluster.settle()
        assert [cluster.ended(one).state for one in asked] == ["Creating", "Ready", "Running"]
        view = views.swarm(cluster.files.folder, SWARM, cluster.clock)
        assert (view.state, view.id, sorted(view.durations)) == ("Running", SWARM, ["provision", "ready", "start"])
        more = [cluster.ask(Signal.STOP), cluster.ask(Signal.REMOVE)]
        await cluster.settle()
        assert [cluster.ended(one).state for one in more] == ["Stopped", "Removed"]
        assert cluster.controllers.list() == []  # after ev.ready.swarm-remove the controller is removed
        assert [len(cluster.confirmations(one)) for one in asked + more] == [1] * 5
        assert views.swarms(cluster.files.folder) == []
        assert cluster.violations() == []
        again = cluster.ask(Signal.CREATE)  # a name may be used again
        await cluster.settle()
        assert cluster.ended(again).result == "success"

    run_in_cluster(act)


def test_the_orchestrator_shows_a_swarm_as_stopping_and_removing_meanwhile(
    run_in_cluster: Callable[[Act], None],
) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        assert cluster.orchestrator is not None
        for signal, meanwhile, after in (
            (Signal.START, "Starting", "Running"),
            (Signal.STOP, "Stopping", "Stopped"),
            (Signal.REMOVE, "Removing", "Removed"),
        ):
            cluster.ask(signal)
            await cluster.orchestrator.run_once()  # the controller has not obeyed yet
            assert cluster.desired().state == meanwhile
            assert views.swarm(cluster.files.folder, SWARM, cluster.clock).state == meanwhile
            await cluster.settle()
            assert cluster.desired().state == after

    run_in_cluster(act)


def test_everything_is_audited_with_its_correlation_id(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        asked = cluster.ask(Signal.START, origin="somebody")
        await cluster.settle()
        shown = [line["what"] for line in cluster.audit() if line.get("correlationId") == asked.correlation_id]
        assert shown == ["asked", "sent", "ready"]

    run_in_cluster(act)


def test_a_repeated_command_gets_the_same_result_and_runs_once(
    run_in_cluster: Callable[[Act], None],
) -> None:
    async def act(cluster: FakeCluster) -> None:
        key = str(uuid.uuid4())
        await ready(cluster)
        first = cluster.ask(Signal.START, idempotency_key=key)
        second = cluster.ask(Signal.START, idempotency_key=key)  # before the first has ended
        await cluster.settle()
        third = cluster.ask(Signal.START, idempotency_key=key)  # and after it
        await cluster.settle()
        signals = [one for one in cluster.bus.said if one.key == f"sig.swarm-start.{SWARM}"]
        assert len(signals) == 1
        for asked in (first, second, third):
            ((confirmed, body),) = cluster.confirmations(asked)
            assert (confirmed, body["state"], body["idempotencyKey"]) == (
                f"ev.ready.swarm-start.{SWARM}",
                "Running",
                key,
            )
            assert cluster.ended(asked).correlation_id == first.correlation_id
        dups = [json.loads(one.body) for one in cluster.bus.said if one.key == f"ev.duplicate.swarm-start.{SWARM}"]
        assert [one["correlationId"] for one in dups] == [second.correlation_id, third.correlation_id]
        assert {one["originalCorrelationId"] for one in dups} == {first.correlation_id}
        cluster.ask(Signal.STOP)
        removed = cluster.ask(Signal.REMOVE, idempotency_key=key)  # a key is of one action
        await cluster.settle()
        replayed = cluster.ask(Signal.REMOVE, idempotency_key=key)  # when there is no controller any more
        await cluster.settle()
        assert [cluster.confirmations(one)[0][1]["state"] for one in (removed, replayed)] == ["Removed", "Removed"]
        assert cluster.violations() == []

    run_in_cluster(act)


def test_a_silent_controller_is_given_up_with_one_error(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.mute = True
        asked = cluster.ask(Signal.START)
        await cluster.settle()
        limit_s = reconcile.limit_s(Signal.START, cluster.files.plan(SWARM))
        assert asked.timeout_ms == limit_s * 1000
        await cluster.pass_s(limit_s - 1)
        assert cluster.ended(asked).result is None
        assert cluster.confirmations(asked) == []
        await cluster.pass_s(2)
        assert cluster.files.given_up(SWARM) == [asked.correlation_id]  # forbidden to its controller, before it is told
        assert cluster.confirmations(asked) == []
        await cluster.pass_s(3)
        end = cluster.ended(asked)
        assert (end.result, end.code, end.retryable) == ("error", "CONTROLLER_SILENT", True)
        assert str(end.message).endswith(f"Its log: swarms/{SWARM}/logs/{controller_name()}.log")
        view = views.swarm(cluster.files.folder, SWARM, cluster.clock)
        assert (view.state, view.failures) == ("Failed", {"CONTROLLER_SILENT": 1})
        assert controller_name() in cluster.controllers.alive  # nothing is deleted
        cluster.controllers.mute = False  # a controller that confirms it nevertheless
        await cluster.settle()
        assert cluster.ended(asked) == end
        assert [line["what"] for line in cluster.audit() if line.get("correlationId") == asked.correlation_id][
            -1
        ] == "late"
        once_more = cluster.ask(Signal.START)
        await cluster.settle()
        assert cluster.ended(once_more).state == "Running"

    run_in_cluster(act)


def test_the_time_of_a_command_goes_on_over_a_restart(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.mute = True
        asked = cluster.ask(Signal.START)
        await cluster.settle()
        limit_s = reconcile.limit_s(Signal.START, cluster.files.plan(SWARM))
        cluster.clock.advance(limit_s - 10)
        await cluster.begin()
        await cluster.settle()
        await cluster.pass_s(8)
        assert cluster.ended(asked).result is None
        await cluster.pass_s(3)
        await cluster.pass_s(3)
        assert cluster.ended(asked).code == "CONTROLLER_SILENT"
        assert len(cluster.confirmations(asked)) == 1

    run_in_cluster(act)


@pytest.mark.parametrize(
    ("trouble", "code", "phase"),
    [
        ("refuse", "LAUNCH_FAILED", "runtime"),
        ("silent", "HANDSHAKE_TIMEOUT", "create"),
        ("dies", "CONTROLLER_DIED", "create"),
    ],
)
def test_a_create_whose_controller_does_not_come_up_fails_and_may_be_tried_again(
    run_in_cluster: Callable[[Act], None], trouble: str, code: str, phase: str
) -> None:
    async def act(cluster: FakeCluster) -> None:
        cluster.controllers.refuse = "no such program" if trouble == "refuse" else None
        cluster.controllers.dumb = True
        asked = cluster.ask(Signal.CREATE)
        await cluster.settle()
        if trouble == "dies":
            cluster.controllers.alive[controller_name()] = False
            await cluster.settle()
        if trouble == "silent":
            await cluster.pass_s(reconcile.HANDSHAKE_S + 1)
        ((key, body),) = cluster.confirmations(asked)
        assert key == f"ev.error.swarm-create.{SWARM}"
        assert (body["code"], body["phase"], body["retryable"]) == (code, phase, True)
        assert views.swarm(cluster.files.folder, SWARM, cluster.clock).state == "Failed"
        refused = cluster.ask(Signal.TEMPLATE, args=PLAN)
        await cluster.settle()
        assert cluster.ended(refused).code == "ILLEGAL_STATE"
        cluster.controllers.refuse, cluster.controllers.dumb = None, False
        cluster.controllers.alive.pop(controller_name(), None)
        again = cluster.ask(Signal.CREATE)
        await cluster.settle()
        assert cluster.ended(again).result == "success"
        assert len(cluster.confirmations(asked)) == 1

    run_in_cluster(act)


def test_a_swarm_that_never_came_up_can_be_removed(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        cluster.controllers.refuse = "no such program"
        cluster.ask(Signal.CREATE)
        await cluster.settle()
        gone = cluster.ask(Signal.REMOVE)
        await cluster.settle()
        assert cluster.ended(gone).state == "Removed"

    run_in_cluster(act)


def test_a_dead_controller_is_restarted_with_growing_pauses(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        for _ in range(4):
            cluster.controllers.alive[controller_name()] = False
            await cluster.pass_s(0.1)
        assert cluster.controllers.launched == [controller_name()] * 2  # not at every look
        await cluster.pass_s(60)
        assert cluster.controllers.alive[controller_name()]

    run_in_cluster(act)


def test_running_swarms_are_adopted_after_a_restart(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.ask(Signal.START)
        await cluster.settle()
        launched = list(cluster.controllers.launched)
        await cluster.begin()
        await cluster.settle()
        assert cluster.controllers.launched == launched
        assert views.swarm(cluster.files.folder, SWARM, cluster.clock).state == "Running"
        asked = cluster.ask(Signal.STOP)
        await cluster.settle()
        assert cluster.ended(asked).state == "Stopped"

    run_in_cluster(act)


def test_a_stop_does_not_wait_for_a_start(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.mute = True
        cluster.ask(Signal.START)
        await cluster.settle()
        cluster.ask(Signal.STOP)
        cluster.ask(Signal.START)  # this one waits
        await cluster.settle()
        sent = [one.key for one in cluster.bus.said if one.key.startswith("sig.swarm-st")]
        assert sent == [f"sig.swarm-start.{SWARM}", f"sig.swarm-stop.{SWARM}"]

    run_in_cluster(act)


def test_visibly_wrong_commands_are_refused_at_once(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)

        def config(role: str, instance: str) -> object:
            return cluster.ask(Signal.CONFIG, None, role=role, instance=instance, args={})

        wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (Refused, "exists already", lambda: cluster.ask(Signal.CREATE)),
            (BadName, "is not a valid swarm", lambda: cluster.ask(Signal.CREATE, "a.b")),
            (BadName, "is not a valid swarm", lambda: cluster.ask(Signal.CREATE, "*")),
            (BadName, "is not a valid swarm", lambda: cluster.ask(Signal.START, "#")),
            (BadName, "a reserved folder", lambda: cluster.ask(Signal.CREATE, "components")),
            (BadName, "too long", lambda: cluster.ask(Signal.CREATE, "x" * 60)),
            (IllegalTransition, "there is no swarm other", lambda: cluster.ask(Signal.START, "other")),
            (InputError, "is for swarm demo, not other", lambda: cluster.ask(Signal.TEMPLATE, "other", args=PLAN)),
            (
                InputError,
                "no component x y",
                lambda: cluster.ask(Signal.CONFIG, SWARM, role="x", instance="y", args={}),
            ),
            (InputError, "no swarm here has", lambda: config("x", "y")),
            (InputError, "did you mean generator demo-generator", lambda: config("generator", "demo-generatr")),
            (InputError, "is not a sink: its role is generator", lambda: config("sink", "demo-generator")),
            (InputError, "is not a UUID", lambda: cluster.ask(Signal.START, idempotency_key="1")),
            (InputError, "bees", lambda: cluster.ask(Signal.TEMPLATE, args={"id": SWARM, "bees": []})),
        ]
        for kind, text, call in wrong:
            with pytest.raises(kind, match=text):
                call()
        assert cluster.files.pending_requests() == []

    run_in_cluster(act)


def test_two_swarms_cannot_have_a_component_of_the_same_name(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.ask(Signal.CREATE, "a")
        await cluster.settle()
        clash = {"id": "a", "bees": [{"role": "marshal", "command": ["true"]}]}
        with pytest.raises(InputError, match="a-marshal would be a component of a"):
            cluster.ask(Signal.TEMPLATE, "a", args=clash)
        cluster.ask(Signal.TEMPLATE, "a", args={"id": "a", "bees": [{"role": "b-c", "command": ["true"]}]})
        cluster.ask(Signal.CREATE, "a-b")
        await cluster.settle()
        with pytest.raises(InputError, match="a-b-c would be a component of a-b and is one of swarm a"):
            cluster.ask(Signal.TEMPLATE, "a-b", args={"id": "a-b", "bees": [{"role": "c", "command": ["true"]}]})

    run_in_cluster(act)


def test_a_component_is_configured_and_asked_for_its_status(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        about = {"role": "generator", "instance": "demo-generator"}
        asked = cluster.ask(Signal.CONFIG, None, args={"enabled": False}, **about)
        await cluster.settle()
        assert (cluster.ended(asked).state, cluster.ended(asked).scope) == ("Stopped", {"swarmId": SWARM, **about})
        heard = cluster.bus.queues[cluster.queue].bindings
        before = list(heard)
        status = cluster.ask(Signal.STATUS, None, **about)
        await cluster.settle()
        shown = ControlSignal(
            correlation_id=status.correlation_id,
            idempotency_key=status.idempotency_key,
            signal="status-request",
            swarm_id=SWARM,
            **about,
        )
        assert [one.key for one in heard if one not in before] == [status.watch["successTopic"]]
        await cluster.controllers.confirm(shown)  # as the component answers
        await cluster.settle()
        assert cluster.ended(status).result == "success"
        assert heard == before  # the orchestrator receives a component's status only while a command needs it
        late = cluster.ask(Signal.STATUS, None, **about)
        await cluster.settle()
        await cluster.pass_s(reconcile.STATUS_S + 1)
        assert cluster.ended(late).code == "STATUS_TIMEOUT"

    run_in_cluster(act)


def test_forged_and_strange_events_are_ignored_and_audited(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.mute = True
        asked = cluster.ask(Signal.START)
        await cluster.settle()
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
            "instance": controller_name(),
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
            (f"ev.ready.swarm-controller.{controller_name()}", up),
            (f"ev.ready.swarm-controller.{controller_name()}", {**up, "instance": "other"}),
            ("ev.nonsense", good),
        ]
        assert cluster.orchestrator is not None
        for name, body in forged:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            delivery = Delivery(BusMessage(key=name, body=data, message_id=str(uuid.uuid4())))
            await cluster.orchestrator.receive(delivery)
            assert delivery.acknowledged
        assert cluster.ended(asked).result is None
        ignored = [*cluster.audit(), *cluster.audit(None)]
        assert len([line for line in ignored if line["what"] == "ignored"]) == len(forged)
        real = BusMessage(key=key, body=json.dumps(good).encode(), message_id=str(uuid.uuid4()))
        await cluster.orchestrator.receive(Delivery(real))
        assert cluster.ended(asked).state == "Running"

    run_in_cluster(act)


def test_requests_keep_their_order_when_the_clock_is_set_back(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        asked = [cluster.ask(Signal.CREATE)]
        cluster.clock.jump(-3600)
        asked.append(cluster.ask(Signal.TEMPLATE, args=PLAN))
        assert [shown.signal for _, shown in cluster.files.pending_requests() if shown] == [
            "swarm-create",
            "swarm-template",
        ]
        await cluster.settle()

    run_in_cluster(act)


def test_a_request_that_is_no_command_is_ignored_and_audited(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        path = Path(cluster.files.requests, f"{1:020d}.{uuid.uuid4()}.json")
        path.write_text("{}")
        await cluster.settle()
        assert not path.exists()
        assert [line["what"] for line in cluster.audit(None)] == ["ignored"]

    run_in_cluster(act)


def test_a_failed_command_keeps_everything_and_gives_its_reason(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.error = "START_TIMEOUT"
        asked = cluster.ask(Signal.START)
        await cluster.settle()
        assert (cluster.ended(asked).code, cluster.ended(asked).message) == ("START_TIMEOUT", "as the test wants")
        view = views.swarm(cluster.files.folder, SWARM, cluster.clock)
        assert (view.state, view.health, view.reason) == ("Failed", "Degraded", "as the test wants")
        assert view.failures == {"START_TIMEOUT": 1}
        assert cluster.controllers.alive == {controller_name(): True}
        assert cluster.violations() == []

    run_in_cluster(act)


def test_the_audit_log_of_a_swarm_is_bounded(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "LIMIT", 300)
    log = SwarmAudit(str(shm), "test", lambda: "2026-11-16T12:00:00Z", lambda *_: None)
    for number in range(40):
        log.note("asked", str(uuid.uuid4()), number=number)
    files = sorted(path.name for path in shm.glob("audit.jsonl*"))
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    assert json.loads((shm / "audit.jsonl").read_text().splitlines()[-1])["number"] == 39
    assert max(path.stat().st_size for path in shm.glob("audit.jsonl*")) < messages.MAX_BYTES
