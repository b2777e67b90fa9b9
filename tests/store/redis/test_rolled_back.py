"""A server that lost its last changes: a crash with appendfsync everysec, or a failover to a replica."""

from __future__ import annotations

from typing import Any

from farro.jobs.outcomes import ErrorInfo, Succeeded, Unroutable
from farro.jobs.states import Status
from farro.store.redis import RedisStore
from one_job import claim_one, commit_one
from redis_rig import Rig
from stage import report, submission


def saved(store: RedisStore) -> dict[bytes, bytes]:
    """Return all keys of this store, as the server has them now."""
    server, prefix = store._context.client, store._context.keys.prefix
    keys = server.call("KEYS", prefix.replace("{", "\\{").replace("}", "\\}") + "*")
    return {key: server.call("DUMP", key) for key in keys}


def rolled_back(store: RedisStore, to: dict[bytes, bytes]) -> None:
    server = store._context.client
    for key in saved(store):
        server.call("DEL", key)
    for key, data in to.items():
        server.call("RESTORE", key, 0, data)


def status(store: RedisStore, job_id: str) -> Any:
    view = store.find(job_id)
    return view and view.status


def test_an_attempt_whose_commit_the_server_lost_is_recovered(rig: Rig) -> None:
    store = rig.store(lease_s=30.0)
    agent = store.join("w", role="Runner")
    store.enqueue(submission(job_id="j"))
    claim = claim_one(store, agent)
    assert claim is not None
    before = saved(store)
    commit_one(store, claim, Succeeded(report=report(claim)))
    rolled_back(store, before)
    assert status(store, "j") is Status.IN_PROGRESS
    assert claim_one(store, agent) is None, "its agent lives on, and does not know that it has a job"
    assert status(store, "j") is Status.STALE
    boss = store.join("b", role=None)
    store.resolve_stale(boss, "j")
    again = claim_one(store, agent)
    assert again is not None
    assert again.attempt == 2
    commit_one(store, again, Succeeded(report=report(again)))
    assert status(store, "j") is Status.SUCCEEDED


def test_a_lost_commit_is_noticed_while_there_is_other_work(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner")
    store.enqueue(submission(1, job_id="j"))
    store.enqueue(submission(2, job_id="k"))
    claim = claim_one(store, agent)
    assert claim is not None
    before = saved(store)
    commit_one(store, claim, Succeeded(report=report(claim)))
    rolled_back(store, before)
    other = claim_one(store, agent)
    assert other is not None
    assert (other.job_id, status(store, "j"), status(store, "k")) == ("k", Status.STALE, Status.IN_PROGRESS)
    commit_one(store, other, Succeeded(report=report(other)))


def test_an_agent_keeps_the_claims_that_it_knows_of(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner")
    for n in range(3):
        store.enqueue(submission(n, job_id=f"j{n}"))
    mine = store.enqueue_claimed(agent, submission(7, job_id="mine"))
    claims = [mine, *(claim_one(store, agent) for _ in range(2))]
    marked = claim_one(store, agent)
    assert marked is not None
    away = ErrorInfo(category="manager_away", message="away")
    commit_one(store, marked, Unroutable(error=away, report=report(marked)))
    assert claim_one(store, agent) is None
    for claim in claims:
        assert claim is not None
        store.heartbeat(agent, claim)
        assert commit_one(store, claim, Succeeded(report=report(claim))).status is Status.SUCCEEDED
    done = store.recover(store.join("d", role=None))
    assert [(each.job_id, each.what) for each in done] == [(marked.job_id, "rolled_forward")]
