"""The cost of a job: round trips that do not grow with the backlog. Large submissions, lists, pruning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from farro.errors import IdConflict, NameTaken
from farro.jobs.audit_fields import pseudonym, without_names
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Status
from farro.queue.watch import Viewer
from farro.store.port import JobView, Store, Submission
from farro.store.redis import RedisStore
from one_job import claim_one, commit_one
from redis_rig import Rig
from servers import RedisServer
from stage import plan, report, submission


def calls(store: RedisStore) -> dict[str, int]:
    """Return how often the server ran each command, including those in scripts."""
    stats = store._context.client.call("INFO", "commandstats").decode()
    return {name: int(count) for name, count in re.findall(r"cmdstat_([^:]+):calls=(\d+)", stats)}


def cost_of_a_job(store: RedisStore, number: int) -> tuple[int, dict[str, int]]:
    """Return the round trips and commands of an enqueue, a claim, its heartbeats and a commit."""
    agent = store.join("w", role="Runner", tags=("gpu",))
    before, asked = calls(store), store._context.client.requests
    store.enqueue(submission(number))
    claim = claim_one(store, agent)
    assert claim is not None
    for _ in range(10):
        store.heartbeat(agent)
        store.heartbeat(agent, claim)
    commit_one(store, claim, Succeeded(report=report(claim)))
    asked = store._context.client.requests - asked
    after = calls(store)
    store.leave(agent)
    spent = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    spent.pop("info", None)
    return asked, spent


def test_a_job_takes_three_round_trips_whatever_the_backlog(rig: Rig, figure: Callable[..., None]) -> None:
    store = rig.store()
    costs = []
    for backlog in (100, 3000):
        tagged = [Submission(role="Runner", prompt=plan(n, metadata={"tags": ["gpu", "big"]})) for n in range(10)]
        store.enqueue_many([submission(n) for n in range(backlog - store.load("Runner") - 10)] + tagged)
        assert store.load("Runner") >= backlog - 10
        cost_of_a_job(store, 0)  # the first one sends its scripts
        costs.append(cost_of_a_job(store, 1))
    assert costs[0] == costs[1]
    assert costs[0][0] == 3
    figure("redis: round trips of a job", costs[0][0])
    figure("redis: commands of a job, those of its scripts included", sum(costs[0][1].values()))


def test_a_query_costs_as_much_as_its_result(rig: Rig) -> None:
    store = rig.store()
    store.enqueue_many([submission(n, job_id=f"j{n:04d}") for n in range(2500)])
    agent = store.join("w", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None

    def asked(call: Callable[[], object]) -> int:
        before = store._context.client.requests
        call()
        return store._context.client.requests - before

    boss = store.join("b", role=None)
    store.recover(boss)  # the first of each sends its script
    store.kill(boss, "j0199")
    assert asked(lambda: store.find("j0100")) == 1
    assert asked(store.count) == 1
    assert asked(lambda: store.load(None)) == 1
    assert asked(lambda: store.pending("Runner")) == 1
    assert asked(lambda: store.list(statuses=[Status.IN_PROGRESS])) <= 4
    assert asked(lambda: store.recover(boss)) == 1
    assert asked(lambda: store.kill(boss, "j0200")) == 2
    assert [view.job_id for view in store.list(limit=3)] == ["j0000", "j0001", "j0002"]
    assert len(store.list()) == 2500


def test_many_jobs_are_sent_in_parts_and_compared_first(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="taken"))
    before = store._context.client.requests
    many = [submission(n, job_id=f"m{n}") for n in range(1000)]
    with pytest.raises(IdConflict, match="taken"):
        store.enqueue_many([*many, submission(2, job_id="taken")])
    assert store.load("Runner") == 1
    assert [job.id for job in store.enqueue_many(many)] == [f"m{n}" for n in range(1000)]
    assert store._context.client.requests - before < 20
    assert store.load("Runner") == 1001
    large = [Submission(role="Runner", prompt=plan(n), payload={"x": b"x" * 3_000_000}) for n in range(4)]
    before = store._context.client.requests
    store.enqueue_many(large)
    assert store._context.client.requests - before == 4, "a part is bounded by its size too"


@dataclass(frozen=True)
class Seen:
    """A job that is gone meanwhile."""

    job_id: str
    place: str = "agents/Runner/completed/succeeded"


def view_of(store: Store, job_id: str) -> JobView:
    view = store.find(job_id)
    assert view is not None
    return view


def test_finished_jobs_are_removed_with_all_their_keys(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner")
    job = Submission(role="Runner", prompt=plan(), job_id="done", payload={"a": b"1"})
    store.enqueue_named("nightly", job)
    claim = claim_one(store, agent)
    assert claim is not None
    running, gone = view_of(store, "done"), Seen("nobody")
    assert store.remove([running, gone], by="b").jobs == 0, "it is not final"
    commit_one(store, claim, Succeeded(report=report(claim)))
    with pytest.raises(NameTaken):
        store.enqueue_named("nightly", submission())
    store.enqueue(submission(job_id="open"))
    assert store.remove([running, view_of(store, "open"), gone], by="b").jobs == 1
    assert (store.find("done"), store.named("nightly"), dict(store.names())) == (None, None, {})
    assert [view.job_id for view in store.list()] == ["open"]
    keys = store._context.keys
    assert store._context.client.calls([("EXISTS", keys.job("done")), ("EXISTS", keys.files("done"))]) == [0, 0]
    assert store.enqueue_named("nightly", submission(2, job_id="done")) == "done", "the id and the name are free again"


def test_the_common_log_has_the_changes_of_every_machine(rig: Rig) -> None:
    here, there = rig.store(), rig.store()
    job_id = here.enqueue(submission())
    other = there.enqueue(submission())
    agent = there.join("w", role="Runner")
    claim = claim_one(there, agent)
    assert claim is not None
    commit_one(there, claim, Succeeded(report=report(claim)))
    here.note("cap_refused", user="bob")
    lines = list(here.audit_lines())
    assert [line["event"] for line in lines] == ["enqueued", "enqueued", "claimed", "committed", "cap_refused"]
    mine = list(there.audit_lines(0, job_id))
    named = pseudonym(agent.id)
    assert [(line["event"], line.get("actor")) for line in mine][1:] == [("claimed", named), ("committed", named)]
    assert all(line["ts"].endswith("Z") for line in lines)
    assert [line["job_id"] for line in there.audit_lines(0, other)] == [other]
    assert list(here.audit_lines(4_000_000_000_000)) == []
    # The process's own audit log has the same lines as the common one, except for the times.
    plain = [{name: value for name, value in line.items() if name != "ts"} for line in lines]
    assert plain == [without_names(line, actor="submitter") for line in rig.audited]


def test_the_common_audit_log_names_no_agent(rig: Rig) -> None:
    store = rig.store()
    job_id = store.enqueue(submission())
    agent = store.join("host-of-ann", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.note("cap_refused", user="bob")
    told = str(list(store.audit_lines()))
    assert "host-of-ann" not in told
    assert "bob" not in told
    view = store.find(job_id)
    assert view is not None
    assert view.lifecycle.hops[-1].by == agent.id, "the name stays in the job"


def test_a_trimmed_feed_reports_a_gap(redis_server: RedisServer, rig: Rig) -> None:
    store = rig.store(keep_changes=10, keep_audit=10)
    cursors = {role: store.changes(None, role=role).cursor for role in ("Runner", None)}
    for n in range(400):  # the server trims streams in whole nodes of a hundred entries
        store.enqueue(submission(n))
    for role, cursor in cursors.items():
        late = store.changes(cursor, role=role)
        assert late.gap
        assert not store.changes(late.cursor, role=role).gap


def test_watching_costs_the_same_whatever_the_backlog(rig: Rig) -> None:
    store = rig.store()
    viewer = Viewer(store, rig.clock)
    viewer.overview(rig.clock.now())
    asked = []
    for count in (1, 1100):
        store.enqueue_many([submission(n) for n in range(count)])
        before = store._context.client.requests
        overview = viewer.overview(rig.clock.now())
        asked.append(store._context.client.requests - before)
    assert asked[0] == asked[1]
    assert overview.counts == {"Runner": {Status.QUEUED: 1101}}
