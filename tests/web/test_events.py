"""Server-Sent Events: every viewer receives all changes in order, also after a reconnect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from farro.host.clock import SystemClock
from farro.queue.catalog.catalog import Catalog
from farro.web import events
from http_stage import PATIENCE_S, TOKEN, Events, ManualWorker, WebStage, submission
from support import eventually


def test_every_change_is_sent_in_order(any_front: WebStage) -> None:
    viewer = any_front.events()
    job_id = any_front.store.enqueue(submission())
    hands = ManualWorker(any_front.store)
    eventually(lambda: hands.one() == job_id)
    told: list[str] = []
    for job, status in viewer.changes():
        if job == job_id:
            told.append(status)
        if status == "succeeded":
            break
    assert told in (["queued", "in_progress", "succeeded"], ["in_progress", "succeeded"], ["queued", "succeeded"])
    kind, data = viewer.until(lambda kind, data: kind == "counts")
    assert kind == "counts"
    assert {line["role"] for line in data["queues"]} >= {"Runner"}
    viewer.close()
    hands.leave()


def test_reconnecting_viewer_receives_the_events_it_missed(front: WebStage) -> None:
    viewer = front.events()
    first = front.store.enqueue(submission())
    assert next(viewer.changes()) == (first, "queued")
    last = viewer.last
    viewer.close()
    missed = [
        job.id for job in front.store.enqueue_many([submission() for _ in range(450)])
    ]  # more than fit into one event
    back = front.events(last=last)
    seen = []
    for job, _ in back.changes():
        seen.append(job)
        if len(seen) == len(missed):
            break
    assert sorted(seen) == sorted(missed)
    back.close()


@pytest.mark.parametrize("last", ["other.5", "nonsense", "x.99999999999999999999", "."])
def test_event_id_of_another_server_leads_to_a_gap(front: WebStage, last: str) -> None:
    back = front.events(last=last)
    told = iter(back)
    assert next(told)[0] == "hello"
    assert next(told) == ("gap", {"why": "restart"})
    back.close()


def test_viewer_that_falls_too_far_behind_receives_a_gap(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RING_EVENTS", 3)
    viewer = front.events()
    front.store.enqueue(submission())
    next(viewer.changes())
    last = viewer.last
    viewer.close()
    for _ in range(6):
        before = front.web.hub.last if front.web.hub else 0
        front.store.enqueue(submission())
        eventually(lambda before=before: front.web.hub is not None and front.web.hub.last > before)  # type: ignore[misc]
    back = front.events(last=last)
    assert back.until(lambda kind, data: kind == "gap") == ("gap", {"why": "behind"})
    back.close()


def test_hundred_viewers_share_one_change_follower(front: WebStage) -> None:
    asked: list[Any] = []
    real = front.store.changes
    front.store.changes = lambda *a, **k: (asked.append(threading.get_ident()), real(*a, **k))[1]  # type: ignore[method-assign]
    viewers = [front.events() for _ in range(100)]
    assert front.web.hub is not None
    eventually(lambda: front.web.hub is not None and front.web.hub.viewers == 100)
    job_id = front.store.enqueue(submission())
    for viewer in viewers:
        assert next(viewer.changes()) == (job_id, "queued")
    eventually(lambda: asked)  # the call that waited when the watch on them was set is not among them
    assert len(set(asked)) == 1
    assert front.get("/api/jobs").status == 200
    for viewer in viewers:
        viewer.close()
    eventually(lambda: front.web.hub is not None and front.web.hub.viewers == 0)


def test_viewer_that_reads_nothing_is_disconnected(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEND_TIMEOUT_S", 0.5)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", front.port))
        deaf.sendall(
            f"GET /api/events HTTP/1.1\r\nHost: {front.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        eventually(lambda: front.web.hub is not None and front.web.hub.viewers == 1)
        deadline = time.monotonic() + PATIENCE_S
        while front.web.hub is not None and front.web.hub.viewers and time.monotonic() < deadline:
            front.web.hub.publish(("noise", {"x": "y" * 100_000}))
            time.sleep(0.01)
        assert front.web.hub is not None
        assert front.web.hub.viewers == 0


def test_quiet_streams_send_heartbeats(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.1)
    viewer = front.events()
    assert viewer.until(lambda kind, data: kind == "beat") == ("beat", {})  # an event: a page cannot see comments
    viewer.close()
    job_id = front.store.enqueue(submission())
    said = front.events(f"/api/jobs/{job_id}/logs/stream")
    assert said.until(lambda kind, data: kind == "beat") == ("beat", {})
    said.close()


def test_streams_end_when_the_server_stops(make_front: Callable[..., WebStage]) -> None:
    front = make_front()
    viewer: Events = front.events()
    front._server.stop()
    assert viewer.until(lambda kind, data: kind == "bye") == ("bye", {})
    viewer.close()


def test_restarted_server_lists_earlier_jobs(make_front: Callable[..., WebStage]) -> None:
    front = make_front("same")
    hands = ManualWorker(front.store)
    front.store.enqueue_many([submission() for _ in range(3)])
    front.store.enqueue(submission(job_id="chosen"))
    hands.one()
    hands.leave()
    eventually(lambda: len(front.listed()) == 4 and len(front.listed("?status=succeeded")) == 1)
    before = front.listed()
    front.close()
    again = make_front("same")
    assert again.listed() == before
    front.close = lambda: None  # type: ignore[method-assign]


def test_joining_worker_is_announced_without_a_job_change(front: WebStage) -> None:
    viewer = front.events()
    front.store.join("hands", role="Runner")
    assert viewer.until(lambda kind, data: kind == "workers")
    viewer.close()


def test_failure_while_reading_changes_leads_to_a_gap_and_not_to_the_end(
    front: WebStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the follower thread died silently, no page would ever be updated again."""
    catalog = front.web._state.catalog
    whole, faults = catalog.fill, [RuntimeError("ours")]

    def fill(most: int) -> int:
        if faults:
            raise faults.pop()
        return whole(most)

    viewer = front.events()
    monkeypatch.setattr(catalog, "fill", fill)
    first = front.store.enqueue(submission())
    assert viewer.until(lambda kind, data: kind == "gap") == ("gap", {"why": "store"})
    second = front.store.enqueue(submission())
    assert viewer.until(lambda kind, data: kind == "changes" and data["jobs"][0]["job_id"] == second)
    assert {row["job_id"] for row in front.listed()} == {first, second}
    assert [told for told in front.log if told[1] == "changes cannot be followed"]
    viewer.close()


def test_burst_of_changes_names_each_job_once(front: WebStage) -> None:
    catalog = Catalog(front.store, SystemClock())
    catalog.load()
    hands = ManualWorker(front.store)
    queued = [job.id for job in front.store.enqueue_many([submission() for _ in range(60)])]
    told = [*catalog.follow(PATIENCE_S)]
    ended = [hands.one() for _ in range(60)]
    while len(told) < 2 * len(queued):
        told += catalog.follow(PATIENCE_S)
    hands.leave()
    assert sorted(ended) == sorted(queued)
    assert [one.job_id for one in told if one.status == "succeeded"] == ended, "in the order in which they ended"
    assert {(one.was, one.status) for one in told if one.was} == {("queued", "succeeded")}, "120 changes in one read"
    sums = catalog.sums()["Runner"]
    assert sums.ended == {"succeeded": 60}
    assert len(catalog._curves._slot("Runner", catalog.now_ms()).waits) in range(1, 61), "when they began is known"


def test_event_without_viewers_is_not_encoded(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    spelled: list[str] = []
    spell = events._change_data
    monkeypatch.setattr(events, "_change_data", lambda one: spelled.append(one.job_id) or spell(one))
    seen = front.events()
    job_id = front.store.enqueue(submission())
    assert next(seen.changes()) == (job_id, "queued")
    last = seen.last
    seen.close()
    eventually(lambda: front.web.hub is not None and front.web.hub.viewers == 0)
    before = len(spelled)
    missed = front.store.enqueue(submission())
    eventually(lambda: any(job["job_id"] == missed for job in front.listed()))
    eventually(lambda: front.web.hub is not None and not last.endswith(f".{front.web.hub.last}"))
    assert spelled[before:] == []
    backs = [front.events(last=last) for _ in range(3)]
    for back in backs:
        assert next(back.changes()) == (missed, "queued")
        back.close()
    assert spelled[before:] == [missed], "encoded once for all viewers"
