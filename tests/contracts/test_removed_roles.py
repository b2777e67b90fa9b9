"""Jobs of a role that the config no longer names can still be ended and queued again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.adapters import Memory
from farro.errors import UnknownRole
from farro.jobs.states import Status
from farro.store.port import Store
from farro.store.transactional import TransactionalStore
from farro.testing.store import claimed, operator, worker
from farro.testing.store_kit import POLICY, ROLES, submission
from redis_rig import Rig
from servers import RedisServer


def submit(store: Store) -> None:
    for job_id in ("completed", "requeued"):
        store.enqueue(submission(job_id=job_id))
        agent = worker(store)
        assert claimed(store, agent).job_id == job_id
        store.leave(agent)
    store.recover(operator(store))  # both become stale
    for job_id in ("killed", "rerouted"):
        store.enqueue(submission(job_id=job_id))


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis_server: RedisServer, shm: Path) -> Iterator[Store]:
    """A store with queued jobs of the role Runner, which it no longer knows."""
    if request.param == "memory":
        memory = Memory(POLICY)
        submit(memory.store)
        assert isinstance(memory.store, TransactionalStore)
        memory.store._roles.remove("Runner")
        yield memory.store
        memory.close()
    else:
        rig = Rig(shm, redis_server.url)
        submit(rig.store())
        yield rig.store(roles=[role for role in ROLES if role != "Runner"])
        rig.close()


def test_jobs_of_a_role_that_is_gone_can_be_ended_and_moved_to_a_known_role(store: Store) -> None:
    boss = store.join("boss", role=None)
    assert store.kill(boss, "killed").status is Status.KILLED
    assert store.force_complete(boss, "completed").status is Status.SUCCEEDED
    assert store.requeue(boss, "requeued").status is Status.QUEUED
    with pytest.raises(UnknownRole):
        store.reroute(boss, "rerouted", "Nobody")
    assert store.reroute(boss, "rerouted", "CodeReviewer").role == "CodeReviewer"
