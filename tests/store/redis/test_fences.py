"""Which agents may change a job of the Redis store: leases, fences, watchdogs, versions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from farro.errors import AgentLost, ClaimLost, Damaged
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.outcomes import Child, Outcome, Released, Succeeded
from farro.jobs.states import Reason, Status
from farro.store.port import Claim, Submission
from farro.store.redis import RedisStore, commit
from one_job import claim_one, commit_one, release_one
from redis_rig import Rig
from stage import plan, report, submission

LEASE_S = 30.0


def claimed(store: RedisStore, *, role: str = "Runner") -> Claim:
    claim = claim_one(store, store.join("w", role=role))
    assert claim is not None
    return claim


def outcomes(claim: Claim) -> list[Outcome]:
    child = Child(role="Runner", prompt=plan(9))
    return [Succeeded(report=report(claim)), Succeeded(report=report(claim), children=(child,)), Released()]


@pytest.mark.parametrize("which", range(3))
def test_an_agent_whose_lease_is_over_is_fenced_though_it_lives(rig: Rig, which: int) -> None:
    store = rig.store(lease_s=LEASE_S)
    store.enqueue(submission(job_id="j"))
    claim = claimed(store)
    rig.clock.advance(LEASE_S + 1)
    for _ in range(2):  # not recovered yet: only its lease decides
        with pytest.raises(AgentLost):
            commit_one(store, claim, outcomes(claim)[which])
    with pytest.raises(AgentLost):
        claim_one(store, claim.agent)
    view = store.find("j")
    assert view is not None
    assert (view.status, view.lifecycle.hops) == (Status.IN_PROGRESS, ())
    dog = rig.store(lease_s=LEASE_S)
    done = dog.recover(dog.join("dog", role=None))
    assert [each.what for each in done] == ["silent_killed", "stale", "agent_removed"]
    with pytest.raises(ClaimLost):
        commit_one(store, claim, outcomes(claim)[which])
    assert [seen.job_id for seen in store.list()] == ["j"]


def test_every_call_of_an_agent_renews_its_lease(rig: Rig) -> None:
    store = rig.store(lease_s=LEASE_S)
    for n in range(4):
        store.enqueue(submission(n))
    agent = store.join("w", role="Runner")
    claim = claim_one(store, agent)
    for _ in range(10):
        rig.clock.advance(LEASE_S * 0.8)
        store.heartbeat(agent, claim)
    assert claim is not None
    assert commit_one(store, claim, Succeeded(report=report(claim))).status is Status.SUCCEEDED
    for _ in range(3):
        rig.clock.advance(LEASE_S * 0.8)
        claim = claim_one(store, agent)
        assert claim is not None
        rig.clock.advance(LEASE_S * 0.8)
        commit_one(store, claim, Succeeded(report=report(claim)))


def test_an_agent_that_is_late_and_holds_nothing_goes_on(rig: Rig) -> None:
    store = rig.store(lease_s=LEASE_S)
    agent = store.join("w", role="Runner")
    rig.clock.advance(LEASE_S * 10)
    assert [view.alive for view in store.agents()] == [False]
    store.heartbeat(agent)
    assert [view.alive for view in store.agents()] == [True]
    rig.clock.advance(LEASE_S * 10)
    store.enqueue(submission())
    assert claim_one(store, agent) is not None
    rig.clock.advance(LEASE_S * 10)
    other = store.join("dog", role=None)
    store.recover(other)
    with pytest.raises(AgentLost):
        store.heartbeat(agent)


def test_a_heartbeat_takes_no_round_trip_soon_after_another_call(rig: Rig) -> None:
    store = rig.store(lease_s=LEASE_S)
    store.enqueue(submission())
    agent = store.join("w", role="Runner")
    claim = claim_one(store, agent)
    rig.clock.advance(2)
    store.heartbeat(agent, claim)  # a new server gets the script first
    before = store._context.client.requests
    for _ in range(100):
        store.heartbeat(agent)
        store.heartbeat(agent, claim)
    assert store._context.client.requests == before
    rig.clock.advance(LEASE_S / 3 - 1)
    store.heartbeat(agent)
    assert store._context.client.requests == before
    store.heartbeat(agent, claim)  # whether a job was taken is checked every second
    assert store._context.client.requests == before + 1
    rig.clock.advance(LEASE_S / 3 + 1)
    store.heartbeat(agent)
    assert store._context.client.requests == before + 2


def test_two_watchdogs_at_once_do_everything_once(rig: Rig) -> None:
    store = rig.store(lease_s=LEASE_S)
    jobs = [job.id for job in store.enqueue_many([submission(n) for n in range(40)])]
    for _ in range(10):
        agent = store.join("w", role="Runner")
        for _ in range(4):
            assert claim_one(store, agent) is not None
    rig.clock.advance(LEASE_S + 1)
    dogs = [rig.store(lease_s=LEASE_S) for _ in range(4)]
    agents = [dog.join("dog", role=None) for dog in dogs]
    together = threading.Barrier(4)
    done: list[Any] = []

    def watch(n: int) -> None:
        together.wait()
        done.extend(dogs[n].recover(agents[n]))

    threads = [threading.Thread(target=watch, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.job_id for each in done if each.what == "stale") == jobs
    assert sum(each.what == "agent_removed" for each in done) == 10
    assert sum(each.what == "silent_killed" for each in done) == 10
    assert store.stale() == jobs
    assert {tuple(hop.reason for hop in view.lifecycle.hops) for view in store.list()} == {(Reason.AGENT_DIED,)}


def test_the_next_watchdog_unblocks_a_forgotten_dependent(rig: Rig) -> None:
    """The process that ended the dependency dies before it can check the dependents."""
    store = rig.store()
    store.enqueue(submission(job_id="first"))
    for name in ("second", "third"):
        store.enqueue(Submission(role="Runner", prompt=plan(metadata={"after": ["first"]}), job_id=name))
    claim = claimed(store)
    commit.commit_one(store._context, claim, Succeeded(report=report(claim)))  # only the script
    assert store.pending("Runner") == 2
    dog = rig.store()
    done = dog.recover(dog.join("dog", role=None))
    assert sorted((each.job_id, each.what) for each in done) == [("second", "unblocked"), ("third", "unblocked")]
    assert dog.recover(dog.join("dog", role=None)) == []
    assert sorted((claimed(store).job_id, claimed(store).job_id)) == ["second", "third"]


def test_a_job_of_another_schema_version_is_never_processed(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="newer"))
    store.enqueue(submission(2, job_id="ours"))
    ask, key = store._context.client.call, store._context.keys.job("newer")
    life = ask("HGET", key, "life")
    ask("HSET", key, "sv", "9.0.0", "life", life.replace(SCHEMA_VERSION.encode(), b"9.0.0"))
    agent = store.join("w", role="Runner")
    first = claim_one(store, agent)
    assert first is not None
    assert first.job_id == "ours"
    assert claim_one(store, agent) is None
    assert [(level, fields["job_id"]) for level, _, fields in rig.logged] == [("critical", "newer")]
    view = store.find("newer")
    assert view is not None
    assert (view.status, view.damaged and "9.0.0" in view.damaged) == (Status.QUEUED, True)
    boss = store.join("boss", role=None)
    store.recover(boss)
    assert claim_one(store, agent) is None
    ask("HSET", key, "sv", SCHEMA_VERSION, "life", life)  # as a farro that knows that version sees it
    store.recover(boss)
    assert claimed(store).job_id == "newer"


def test_an_unreadable_job_stops_no_other(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="torn"))
    store.enqueue(submission(2, job_id="whole"))
    store._context.client.call("HSET", store._context.keys.job("torn"), "life", "{")
    agent = store.join("w", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None
    assert claim.job_id == "whole"
    view = store.find("torn")
    assert view is not None
    assert (view.status, view.damaged is not None) == (Status.FAILED, True)
    assert len(store.list()) == 2
    store.leave(agent)
    boss = store.join("boss", role=None)
    assert [each.what for each in store.recover(boss)] == ["stale", "agent_removed"]
    with pytest.raises(Damaged):
        store.kill(boss, "torn")


def test_files_of_a_job_come_with_its_claim_and_stay_with_it(rig: Rig) -> None:
    store = rig.store()
    payload = {"a.txt": b"\x00\xff", "b.txt": b"2"}
    store.enqueue(Submission(role="Runner", prompt=plan(), job_id="j", payload=payload, narrative="please"))
    claim = claimed(store)
    home = Path(claim.folder).parent.parent
    assert (home / "payload/a.txt").read_bytes() == b"\x00\xff"
    assert (home / "prompt.md").read_text() == "please"
    (Path(claim.folder) / "steps.jsonl").write_text("done\n")
    release_one(store, claim)
    assert not home.exists()
    again = claimed(store)
    before = Path(again.folder).parent / "0001"
    assert (before / "steps.jsonl").read_text().startswith("done\n")
    assert not (before / "result.json").exists()
    commit_one(store, again, Succeeded(report=report(again)))
    view = rig.store().find("j")
    assert view is not None
    shown = Path(rig.stores[-1].folder(view))
    assert '"success": true' in (shown / "attempts/0002/result.json").read_text()
