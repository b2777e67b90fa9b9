"""Unreadable content, machines without room, differing clocks: one such job or machine affects no other."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.app import App
from farro.config.settings import Settings
from farro.errors import BadName, InputError, StorageTrouble
from farro.execution.stop import Stop
from farro.host.clock import ManualClock, SystemClock
from farro.jobs.outcomes import ErrorInfo, Succeeded, Unroutable
from farro.jobs.states import Status
from farro.store.port import Submission
from farro.store.redis import RedisStore
from farro.store.redis.workspace import LocalWorkspace
from farro.store.workspace import JobFiles
from farro.worker.worker import Slot, WorkerSetup
from one_job import claim_one, commit_one
from redis_rig import Rig
from stage import EPOCH, plan, report, submission


def spoil(store: RedisStore, job_id: str, field: str, text: str) -> None:
    store._context.client.call("HSET", store._context.keys.job(job_id), field, text)


# --- machines ---


class NoRoom(LocalWorkspace):
    """A workspace on a disk that accepts no folder."""

    def begin(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> str:
        raise StorageTrouble("no room")


def test_a_machine_without_room_for_folders_uses_up_no_attempt(rig: Rig, shm: Path) -> None:
    workspace = NoRoom(str(shm), name=rig.name, clock=rig.clock)
    store = rig.store(workspace=workspace)
    store.enqueue(submission(job_id="j"))
    settings, clock = Settings(), SystemClock()
    setup = WorkerSetup(
        store=store,
        role="Runner",
        name="w",
        performer=App().performer(str(shm), settings, App().runner(str(shm), settings, clock=clock), clock),
        clock=clock,
        log=lambda level, message, fields: None,
    )
    slot = Slot(setup, Stop(clock))
    with pytest.raises(StorageTrouble, match="no room"):
        slot.run_once()
    view = store.find("j")
    assert view is not None
    assert view.status is Status.QUEUED
    assert [hop.reason.value for hop in view.lifecycle.hops] == ["released"]


def test_the_next_due_time_is_by_this_machines_clock(rig: Rig) -> None:
    clock = ManualClock(EPOCH + timedelta(days=400 * 365))  # far before the server's clock, whatever that says
    store = rig.store(clock=clock, own_time=False)
    store.join("w", role="Runner")
    ahead = store._context.clock_offset
    assert abs(ahead) > timedelta(days=365)
    due_at = clock.now() + ahead + timedelta(hours=1)
    store.enqueue(Submission(role="Runner", prompt=plan(), not_before=due_at))
    due = store.next_due("Runner")
    assert due is not None
    assert timedelta(minutes=59) < due - clock.now() < timedelta(minutes=61)


# --- content ---


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "a\0", "/etc/x"])
def test_payload_names_are_plain_file_names_here_too(rig: Rig, name: str) -> None:
    store = rig.store()
    with pytest.raises(BadName):
        store.enqueue(Submission(role="Runner", prompt=plan(), payload={name: b"x"}))
    assert store.list() == []


def test_a_prompt_that_is_no_json_is_an_input_error(rig: Rig) -> None:
    store = rig.store()
    with pytest.raises(InputError, match="cannot be written as JSON"):
        store.enqueue(Submission(role="Runner", prompt={"steps": object()}))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("a/7/../../../x", "x"),
        ("a/1/x", "of the attempt that is just begun"),
        ("a/7/" + 300 * "x", "a name that no disk takes"),
        ("a/one/x", "x"),
        ("a/7", '{"more": 1}'),
        ("a/7", "no json"),
        ("a/7", '{"elsewhere": ["x"], "cut": {}}'),
        ("odd", "x"),
    ],
)
def test_unreadable_posted_content_fails_only_its_job(rig: Rig, field: str, text: str) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="bad"))
    store.enqueue(submission(2, job_id="good"))
    store._context.client.call("HSET", store._context.keys.files("bad"), field, text)
    spoil(store, "bad", "fl", "1")
    agent = store.join("w", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None
    assert claim.job_id == "good"
    view = store.find("bad")
    assert view is not None
    assert view.status is Status.FAILED
    assert (view.lifecycle.error or {})["category"] == "damaged"


def test_an_unreadable_prompt_fails_only_its_job(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="bad"))
    store.enqueue(submission(2, job_id="good"))
    spoil(store, "bad", "prompt", "{")
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    assert claim.job_id == "good"


def test_an_unreadable_lifecycle_does_not_stop_a_worker(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="bad"))
    store.enqueue(submission(2, job_id="good"))
    spoil(store, "bad", "life", "{")
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    assert claim.job_id == "good"


def unroutable(store: RedisStore, job_id: str) -> None:
    """Mark a job stale while its agent holds it."""
    agent = store.join("m", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None
    assert claim.job_id == job_id
    commit_one(store, claim, Unroutable(error=ErrorInfo(category="manager_away", message="away"), report=report(claim)))


@pytest.mark.parametrize("life", ["{", "other version"])
def test_an_unreadable_marked_job_does_not_stop_a_watchdog(rig: Rig, life: str) -> None:
    store = rig.store(lease_s=30.0)
    store.enqueue(submission(1, job_id="bad"))
    unroutable(store, "bad")
    if life == "other version":
        fields = json.loads(store._context.client.call("HGET", store._context.keys.job("bad"), "life"))
        life = json.dumps({**fields, "schema_version": 99})
    spoil(store, "bad", "life", life)
    store.enqueue(submission(2, job_id="orphan"))
    assert claim_one(store, store.join("w", role="Runner")) is not None
    rig.clock.advance(31)
    dog = store.join("dog", role=None)
    assert ("orphan", "stale") in [(done.job_id, done.what) for done in store.recover(dog)]


def test_an_unreadable_waiting_prompt_does_not_stop_a_watchdog(rig: Rig) -> None:
    store = rig.store(lease_s=30.0)
    store.enqueue(submission(1, job_id="first"))
    store.enqueue(Submission(role="Runner", prompt=plan(2, metadata={"after": ["first"]}), job_id="bad"))
    store.enqueue(Submission(role="Runner", prompt=plan(3, metadata={"after": ["first"]}), job_id="good"))
    spoil(store, "bad", "prompt", "{")
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    commit_one(store, claim, Succeeded(report=report(claim)))
    assert len(store.list()) == 3
    store.recover(store.join("dog", role=None))
    found: Any = store.find("good")
    assert found.waits_for == ()
