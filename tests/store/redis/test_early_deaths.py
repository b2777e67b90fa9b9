"""A killed worker is recovered before its lease is over, and never by an observer whose server was away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.errors import ClaimLost
from farro.jobs.states import Status
from farro.store.port import Agent, Claim
from farro.store.redis import RedisStore
from farro.store.redis.death_watch import EVERY_S, GONE_S, LATE_S, DeathDetector, RedisDeathWatch, is_dead
from one_job import claim_one
from redis_rig import Rig
from servers import RedisServer
from stage import submission
from support import eventually

LEASE_S = 30.0


@pytest.mark.parametrize(
    ("connected", "silent_s", "answered_s", "dead"),
    [
        (False, LATE_S, LEASE_S, True),
        (False, LEASE_S, 10 * LEASE_S, True),
        (True, LEASE_S, 10 * LEASE_S, False),  # stopped or cut off, not gone
        (False, LATE_S - 0.001, LEASE_S, False),  # it may just be connecting again
        (False, 0.0, LEASE_S, False),
        (False, LEASE_S, LEASE_S - 0.001, False),  # the server was away: nothing is known about others
        (False, LEASE_S, 0.0, False),
    ],
)
def test_an_agent_is_dead_early_only_if_its_connection_is_gone_it_is_late_and_the_server_answered(
    connected: bool, silent_s: float, answered_s: float, dead: bool
) -> None:
    assert is_dead(connected=connected, silent_s=silent_s, answered_s=answered_s, lease_s=LEASE_S) is dead


class Fleet:
    """A worker with a job, and a watchdog with its detector, on the manual clock."""

    def __init__(self, rig: Rig, **worker: str) -> None:
        self.rig = rig
        self.worker = rig.store(lease_s=LEASE_S, **worker)
        self.dog = rig.store(lease_s=LEASE_S)
        self.agent = self.dog.join("dog", role=None)
        self.detector = DeathDetector(self.dog._context)
        self.worker.enqueue(submission(job_id="j"))
        claim = claim_one(self.worker, self.worker.join("w", role="Runner"))
        assert claim is not None
        self.claim: Claim = claim

    def live(self, seconds: float) -> None:
        """Let time pass in which the worker sends its heartbeats, and the detector looks."""
        for _ in range(int(seconds)):
            self.rig.clock.advance(1)
            self.worker.heartbeat(self.claim.agent, self.claim)
            assert not self.detector.look()

    def die(self) -> None:
        """Close the connections of the worker, as the system does for a killed process."""
        self.worker._context.client.drop()
        asks, name = self.dog._context.client, str(self.worker._context.client._name)
        eventually(lambda: name.encode() not in asks.call("CLIENT", "LIST"), "the server still has its connection")

    def look(self) -> list[str]:
        """Look for three seconds, and return what recovery does then."""
        for _ in range(int(3 / EVERY_S)):
            self.detector.look()
            self.rig.clock.advance(EVERY_S)
        self.detector.look()
        return recovered(self.dog, self.agent)


def recovered(dog: RedisStore, agent: Agent) -> list[str]:
    return [done.what for done in dog.recover(agent)]


@pytest.fixture
def fleet(rig: Rig) -> Iterator[Fleet]:
    made = Fleet(rig)
    yield made
    made.detector.close()


def test_a_worker_whose_connection_is_gone_is_recovered_after_two_missing_heartbeats(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    fleet.die()
    assert recovered(fleet.dog, fleet.agent) == []
    assert fleet.look() == ["silent_killed", "stale", "agent_removed"]
    view = fleet.dog.find("j")
    assert view is not None
    assert view.status is Status.STALE
    with pytest.raises(ClaimLost):
        fleet.worker.heartbeat(fleet.claim.agent, fleet.claim)


def test_a_silent_worker_that_is_connected_keeps_its_lease(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    assert fleet.look() == []
    fleet.rig.clock.advance(LEASE_S - LATE_S - 1)
    assert fleet.look() == ["silent_killed", "stale", "agent_removed"], "when its lease is over"


def test_a_worker_that_is_heard_again_before_it_is_fenced_lives_on(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    fleet.die()
    for _ in range(int(3 / EVERY_S)):
        fleet.rig.clock.advance(EVERY_S)
        fleet.detector.look()
    assert fleet.detector.look()
    fleet.worker.heartbeat(fleet.claim.agent, fleet.claim)
    assert recovered(fleet.dog, fleet.agent) == []


def test_a_silent_worker_that_connects_again_after_a_moment_is_not_dead(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    for _ in range(int(LATE_S / EVERY_S)):
        fleet.rig.clock.advance(EVERY_S)
        assert not fleet.detector.look()
    for _ in range(3):
        fleet.die()
        for _ in range(int(GONE_S / EVERY_S)):
            assert not fleet.detector.look()
            fleet.rig.clock.advance(EVERY_S)
        fleet.worker._context.client.call("PING")
        assert not fleet.detector.look(), "it is connected again"
    assert fleet.look() == []


def test_many_looks_in_a_moment_are_not_enough(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    fleet.rig.clock.advance(LATE_S)
    fleet.die()
    assert not any(fleet.detector.look() for _ in range(10))


def test_idle_workers_do_not_hide_a_dead_one(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    client, leases = fleet.dog._context.client, f"{fleet.dog._context.keys.prefix}leases"
    till = client.call("ZSCORE", leases, fleet.claim.agent.id)
    client.call("ZADD", leases, *(item for n in range(1001) for item in (till, f"a-{n}")))
    fleet.die()
    assert fleet.look() == ["silent_killed", "stale", "agent_removed"]


def test_an_unnamed_connection_is_not_kept_once_the_others_have_a_name(rig: Rig) -> None:
    client = rig.store()._context.client
    in_use = client._take()
    assert client.name_connections("named") == "named"
    client._give_back(in_use)
    assert b" name=named " in client.call("CLIENT", "LIST", "ID", client.call("CLIENT", "ID"))


def test_a_worker_that_may_not_name_its_connections_keeps_its_lease(rig: Rig) -> None:
    user = f"plain-{rig.name}"
    rig.store()._context.client.call(
        "ACL", "SETUSER", user, "reset", "on", ">x", "~*", "&*", "+@all", "-client|setname"
    )
    fleet = Fleet(rig, user=user, password="x")
    fleet.live(LEASE_S + 1)
    assert fleet.look() == []
    fleet.detector.close()


def test_a_watchdog_that_has_just_started_makes_no_early_verdict(fleet: Fleet) -> None:
    fleet.live(LEASE_S - LATE_S - 1)
    fleet.die()
    assert fleet.look() == []


def test_a_watchdog_that_could_not_ask_for_a_while_makes_no_early_verdict(fleet: Fleet) -> None:
    fleet.live(LEASE_S + 1)
    fleet.die()
    fleet.rig.clock.advance(LATE_S + 1)
    assert fleet.look() == []


@pytest.mark.parametrize("away_s", [0.5, 5.0])
def test_a_restarted_server_makes_no_early_verdict(tmp_path: Path, shm: Path, away_s: float) -> None:
    server = RedisServer(folder=tmp_path / "redis", durable=True).start()
    rig = Rig(shm, server.url)
    try:
        fleet = Fleet(rig)
        fleet.live(LEASE_S + 1)
        server.kill()
        rig.clock.advance(away_s)
        assert not fleet.detector.look(), "it is unreachable"
        server.start()
        assert fleet.look() == [], "no worker is connected, and none was heard"
        fleet.worker.heartbeat(fleet.claim.agent, fleet.claim)
        fleet.live(LEASE_S + 1)
        fleet.die()
        assert fleet.look() == ["silent_killed", "stale", "agent_removed"], "as before, after a whole lease"
        fleet.detector.close()
    finally:
        rig.close()
        server.kill()


def test_without_the_right_to_list_connections_the_lease_decides(fleet: Fleet) -> None:
    admin = fleet.dog._context.client
    user = f"plain-{fleet.rig.name}"
    admin.call("ACL", "SETUSER", user, "reset", "on", ">x", "~*", "&*", "+@all", "-client")
    dog = fleet.rig.store(lease_s=LEASE_S, user=user, password="x")
    fleet.dog, fleet.detector = dog, DeathDetector(dog._context)
    fleet.live(LEASE_S + 1)
    fleet.worker._context.client.drop()
    assert fleet.look() == []


def test_one_more_of_many_stale_jobs_is_reported_without_a_list_of_all(fleet: Fleet) -> None:
    context = fleet.dog._context
    for count, reported in [(0, False), (1, True), (1, False), (150, True), (150, False), (151, True), (151, False)]:
        for n in range(count):
            context.client.call("ZADD", context.keys.index("Runner", Status.STALE), 0, f"s{n}")
        assert fleet.detector.look() is reported
        assert len(fleet.detector._stale) <= 100


def test_the_watch_of_a_store_reports_a_job_that_became_stale(rig: Rig) -> None:
    worker = rig.store(real=True)
    worker.enqueue(submission(job_id="j"))
    claim = claim_one(worker, worker.join("w", role="Runner"))
    assert claim is not None
    watch = RedisDeathWatch(rig.store(real=True)._context)
    try:
        worker.leave(claim.agent)
        dog = rig.store(real=True)
        assert "stale" in recovered(dog, dog.join("dog", role=None))
        eventually(watch.read, "the stale job is not reported")
    finally:
        watch.close()
