"""Batches of jobs on Redis: one request each, and lost answers. The contract suite tests the guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest

from farro.errors import AgentLost, ClaimLost
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Reason, Status
from farro.store.port import Claim
from farro.store.redis import RedisStore
from one_job import claim_one, commit_all
from redis_rig import Rig, proxied
from servers import RedisServer
from stage import report, submission


def names(claims: list[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


def fill(store: RedisStore, count: int) -> list[str]:
    return [job.id for job in store.enqueue_many([submission(n, job_id=f"j{n:02d}") for n in range(count)])]


def end(store: RedisStore, claims: list[Claim]) -> list[Lifecycle | ClaimLost | AgentLost]:
    return commit_all(store, [(claim, Succeeded(report=report(claim))) for claim in claims])  # type: ignore[return-value]


def test_a_batch_is_claimed_in_one_request(rig: Rig) -> None:
    store = rig.store()
    one, other = store.join("a", role="Runner"), store.join("b", role="Runner")
    assert store.claim(one, 3) == [], "the first call sends its script"
    ids = fill(store, 10)
    before = store._context.client.requests
    first = store.claim(one, 3)
    assert store._context.client.requests == before + 1
    assert names(first) == ids[:3]
    assert len({claim.envelope.lifecycle.correlation_id for claim in first}) == 3
    assert {claim.attempt for claim in first} == {1}
    assert names(store.claim(other, 16)) == ids[3:7], (
        "no more than four, or half of result is left: the rest is for others"
    )
    assert sorted(job for view in store.agents() for job in view.jobs) == ids[:7]
    assert store.count()[Status.IN_PROGRESS] == 7


def test_a_batch_ends_before_a_job_of_another_version_and_the_rest_keep_their_positions(rig: Rig) -> None:
    """A batch is read from the head of the queue at once; jobs that are not claimed keep their positions."""
    store = rig.store()
    ids = fill(store, 8)
    ask, key = store._context.client.call, store._context.keys.job(ids[2])
    life = ask("HGET", key, "life")
    ask("HSET", key, "sv", "9.0.0", "life", life.replace(b"1.0.0", b"9.0.0"))
    queue = f"{store._context.keys.prefix}q:Runner:"
    before = ask("ZRANGE", queue, 0, -1, "WITHSCORES")
    agent = store.join("a", role="Runner")
    assert names(store.claim(agent, 4)) == ids[:2]
    assert ask("ZRANGE", queue, 0, -1, "WITHSCORES") == before[6:]
    assert [fields["job_id"] for _, _, fields in rig.logged] == [ids[2]]
    assert names(store.claim(agent, 4)) == ids[3:7]
    assert (store.count()[Status.QUEUED], store.count()[Status.IN_PROGRESS]) == (2, 6)


def test_a_batch_is_committed_in_one_request(rig: Rig) -> None:
    store = rig.store()
    agent, operator = store.join("a", role="Runner"), store.join("o", role=None)
    store.enqueue(submission(99, job_id="first"))
    end(store, store.claim(agent, 1))  # which sends its script
    fill(store, 8)
    claims = store.claim(agent, 4)
    store.kill(operator, "j01")
    before = store._context.client.requests
    results = end(store, claims)
    assert store._context.client.requests == before + 1
    assert [type(result) for result in results] == [Lifecycle, ClaimLost, Lifecycle, Lifecycle]
    assert [view.status for view in map(store.find, ("j00", "j01", "j02", "j03")) if view is not None] == [
        Status.SUCCEEDED,
        Status.KILLED,
        Status.SUCCEEDED,
        Status.SUCCEEDED,
    ]
    assert all(isinstance(result, ClaimLost) for result in end(store, claims)), "a commit is accepted once"


def test_a_dead_agents_commits_are_all_refused(rig: Rig) -> None:
    store = rig.store()
    fill(store, 4)
    agent = store.join("a", role="Runner")
    claims = store.claim(agent, 2)
    rig.clock.advance(3600)
    assert [type(result) for result in end(store, claims)] == [AgentLost, AgentLost]


def test_returned_jobs_are_logged_in_the_common_audit_log(rig: Rig) -> None:
    store = rig.store()
    ids = fill(store, 8)
    agent, other = store.join("a", role="Runner"), store.join("b", role="Runner")
    claims = store.claim(agent, 4)
    cursor = store.changes(None, role="Runner").cursor
    store.hand_back(claims[1:])
    assert [change.job_id for change in store.changes(cursor, role="Runner").items] == ids[1:4], "readers see it"
    view = store.find(ids[1])
    assert view is not None
    assert (view.status, view.lifecycle.attempt, view.lifecycle.hops) == (Status.QUEUED, 0, ())
    again = [claim_one(store, other) for _ in range(3)]
    assert [claim.job_id for claim in again if claim is not None] == ids[1:4], "before those that came after them"
    assert {claim.attempt for claim in again if claim is not None} == {1}
    assert [type(result) for result in end(store, claims[1:])] == [ClaimLost] * 3, "they are another's by now"
    assert isinstance(end(store, claims[:1])[0], Lifecycle)
    events = [line["event"] for line in store.audit_lines(job_id=ids[1])]
    assert events == ["enqueued", "claimed", str(Reason.RELEASED), "claimed"]


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "after it did it"])
def test_lost_answers_of_a_batch_are_requested_again(redis_server: RedisServer, shm: Path, after: bool) -> None:
    for cut in range(1000):
        with proxied(redis_server.port) as proxy:
            rig = Rig(shm / str(cut), redis_server.url)
            store = rig.store(url=proxy.url)
            ids = fill(store, 8)
            agent = store.join("a", role="Runner")
            proxy.cut, proxy.after = len(proxy.requests) + cut, after
            claims = store.claim(agent, 4)
            assert names(claims) == ids[:4], cut
            assert all(isinstance(result, Lifecycle) for result in end(store, claims[:2])), cut
            store.hand_back(claims[2:])
            proxy.cut = -1
            assert store.count()[Status.SUCCEEDED] == 2, cut
            assert store.count()[Status.QUEUED] == 6, cut
            assert not any(view.jobs for view in store.agents()), cut
            rig.close()
        if not proxy.cuts:
            break
    assert cut >= 3
