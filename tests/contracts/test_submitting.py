"""The contract of submitting, for every store: priorities, dependencies, and jobs that are claimed at enqueue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from contracts.adapters import Adapter
from farro.errors import IdConflict, InputError, Refused, UnknownJob
from farro.jobs.outcomes import Released
from farro.jobs.states import Reason, Status
from farro.store.port import Claim, Store, Submission
from farro.testing.store import claimed, drained, failure, life, make_stale, operator, place, success, worker
from one_job import claim_one, commit_one, route_one
from stage import plan, submission

WAITING = "agents/Manager/waiting"
QUEUE = "agents/Runner/incoming"


def urgent(priority: object, job_id: str | None = None) -> Submission:
    return submission(job_id=job_id, metadata={"priority": priority})


def after(*job_ids: str, job_id: str | None = None, any_end: bool = False, role: str = "Runner") -> Submission:
    return submission(role=role, job_id=job_id, metadata={"after_any" if any_end else "after": list(job_ids)})


def finish(store: Store, outcome: Callable[[Claim], object] = success) -> str:
    agent = worker(store)
    claim = claimed(store, agent)
    commit_one(store, claim, outcome(claim))  # type: ignore[arg-type]
    store.leave(agent)
    return claim.job_id


# --- priorities --------------------------------------------------------------------------------------------------


def test_a_higher_priority_is_claimed_first(kit: Adapter) -> None:
    store = kit.store
    made = [store.enqueue(urgent(name, f"{name}-{turn}")) for turn in "ab" for name in ("P3", "P2", "P0", "P1")]
    assert len(made) == 8
    assert drained(store, worker(store)) == ["P0-a", "P0-b", "P1-a", "P1-b", "P2-a", "P2-b", "P3-a", "P3-b"]


def test_a_job_without_a_priority_is_p2(kit: Adapter) -> None:
    store = kit.store
    for item in (urgent("P3", "last"), submission(job_id="plain"), urgent("P2", "p2"), urgent(7, "nonsense")):
        store.enqueue(item)
    assert drained(store, worker(store)) == ["plain", "p2", "nonsense", "last"]


def test_an_urgent_job_overtakes_jobs_that_a_worker_already_knows(kit: Adapter) -> None:
    store = kit.store
    agent = worker(store)
    for name in ("a", "b", "c"):
        store.enqueue(submission(job_id=name))
    assert claimed(store, agent).job_id == "a"
    store.enqueue(urgent("P0", "urgent"))
    assert [claimed(store, agent).job_id for _ in range(3)] == ["urgent", "b", "c"]


def test_another_process_keeps_the_priorities(kit: Adapter) -> None:
    kit.store.enqueue(urgent("P2", "plain"))
    kit.process().enqueue(urgent("P0", "urgent"))
    other = kit.process()
    assert drained(other, worker(other)) == ["urgent", "plain"]


@pytest.mark.parametrize("way", ["release", "retry", "route", "requeue"])
def test_a_job_that_comes_back_keeps_its_priority(kit: Adapter, way: str) -> None:
    store = kit.store
    store.enqueue(urgent("P0", "urgent"))
    agent = worker(store)
    claim = claimed(store, agent)
    role = "Runner"
    if way == "release":
        commit_one(store, claim, Released())
    elif way == "retry":
        commit_one(store, claim, failure(claim, retryable=True))
        kit.clock.advance(60)
    elif way == "route":
        role = "CodeReviewer"
        route_one(store, claim, success(claim), role)
    else:
        kit.die(agent)
        boss = operator(store)
        store.recover(boss)
        store.requeue(boss, "urgent")
        agent = worker(store)
    store.enqueue(submission(role=role, job_id="plain"))
    store.enqueue(Submission(role=role, prompt=plan(metadata={"priority": "P0"}), job_id="urgent-too"))
    assert drained(store, worker(store, role=role)) == ["urgent", "urgent-too", "plain"]


def test_an_urgent_job_still_waits_for_its_time(kit: Adapter) -> None:
    store = kit.store
    due = kit.clock.now() + timedelta(seconds=60)
    store.enqueue(Submission(role="Runner", prompt=plan(metadata={"priority": "P0"}), job_id="later", not_before=due))
    store.enqueue(submission(job_id="now"))
    store.enqueue(urgent("P3", "whenever"))
    agent = worker(store)
    assert claimed(store, agent).job_id == "now"
    kit.clock.advance(61)
    assert claimed(store, agent).job_id == "later"


# --- after -------------------------------------------------------------------------------------------------------


def test_a_dependent_enters_its_queue_when_its_dependency_succeeded(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    seen = store.find("second")
    assert seen is not None
    assert (seen.status, seen.place, seen.waits_for, seen.lifecycle.role) == (
        Status.QUEUED,
        WAITING,
        ("first",),
        "Runner",
    )
    assert finish(store) == "first"
    assert place(store, "second") == QUEUE
    hop = life(store, "second").hops[-1]
    assert (hop.reason, hop.to, hop.note) == (Reason.ENQUEUED, QUEUE, "after first")
    assert finish(store) == "second"
    assert life(store, "second").status is Status.SUCCEEDED


def test_no_worker_claims_a_waiting_job(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    agent, other = worker(store), worker(store)
    claim = claimed(store, agent)
    assert claim_one(store, other) is None
    commit_one(store, claim, success(claim))
    assert claimed(store, other).job_id == "second"


def test_a_dependent_of_a_failure_is_killed(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    store.enqueue(after("second", job_id="third"))
    store.enqueue(after("third", job_id="tidy", any_end=True))
    finish(store, failure)
    for name, why in (("second", "first"), ("third", "second")):
        told = life(store, name)
        assert told.terminal
        assert (told.status, told.error) == (
            Status.KILLED,
            {"category": "dependency_failed", "message": f"{why} did not succeed"},
        )
    assert place(store, "tidy") == QUEUE


def test_a_dependent_of_any_end_runs_after_a_failure(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second", any_end=True))
    finish(store, failure)
    assert finish(store) == "second"


def test_a_dependent_waits_while_its_dependency_is_tried_again(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    finish(store, lambda claim: failure(claim, retryable=True))
    assert place(store, "second") == WAITING
    kit.clock.advance(60)
    finish(store)
    assert place(store, "second") == QUEUE


def test_a_job_waits_for_all_its_dependencies(kit: Adapter) -> None:
    store = kit.store
    for name in ("a", "b", "c"):
        store.enqueue(submission(job_id=name))
    metadata = {"after": ["a", "b"], "after_any": ["c"]}
    store.enqueue(submission(job_id="last", metadata=metadata))
    for outcome in (success, success, failure):
        assert place(store, "last") == WAITING
        finish(store, outcome)
    assert finish(store) == "last"


@pytest.mark.parametrize(("verb", "wanted"), [("kill", Status.KILLED), ("force_complete", Status.QUEUED)])
def test_an_operators_end_of_a_dependency_counts(kit: Adapter, verb: str, wanted: Status) -> None:
    store = kit.store
    make_stale(kit, "first")
    store.enqueue(after("first", job_id="second"))
    getattr(store, verb)(operator(store), "first")
    assert life(store, "second").status is wanted
    assert place(store, "second") != WAITING


def test_giving_up_a_dependency_kills_its_dependents(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    boss = operator(store)
    for _ in range(5):
        agent = worker(store)
        if claim_one(store, agent) is None:
            break
        kit.die(agent)
        store.recover(boss)
        store.resolve_stale(boss, "first")
        kit.clock.advance(60)
    assert life(store, "first").status is Status.KILLED
    assert life(store, "second").status is Status.KILLED


def test_a_waiting_job_can_be_killed(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    store.enqueue(after("first", job_id="second"))
    store.enqueue(after("second", job_id="third"))
    assert store.kill(operator(store), "second").status is Status.KILLED
    assert life(store, "third").status is Status.KILLED
    assert finish(store) == "first"
    assert claim_one(store, worker(store)) is None


def test_a_dependency_may_have_ended_before_the_submission(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="good"))
    finish(store)
    store.enqueue(submission(job_id="bad"))
    finish(store, failure)
    store.enqueue(after("good", job_id="a"))
    store.enqueue(after("good", "bad", job_id="b", any_end=True))
    assert [place(store, name) for name in "ab"] == [QUEUE, QUEUE]
    before = kit.snapshot()
    with pytest.raises(Refused, match="bad did not succeed"):
        store.enqueue(after("good", "bad"))
    assert kit.snapshot() == before


def test_an_unknown_dependency_is_refused(kit: Adapter) -> None:
    before = kit.snapshot()
    for any_end in (False, True):
        with pytest.raises(UnknownJob, match="no job nobody"):
            kit.store.enqueue_many([submission(), after("nobody", any_end=any_end)])
    with pytest.raises(InputError, match="cannot run after itself"):
        kit.store.enqueue(after("me", job_id="me"))
    assert kit.snapshot() == before


def test_a_job_of_a_batch_may_depend_on_an_earlier_one(kit: Adapter) -> None:
    store = kit.store
    store.enqueue_many([submission(job_id="a"), after("a", job_id="b"), after("b", job_id="c")])
    assert drained(store, worker(store)) == ["a", "b", "c"]
    with pytest.raises(UnknownJob):
        store.enqueue_many([after("e", job_id="d"), submission(job_id="e")])


def test_submitting_a_dependent_again_is_the_same_job(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    again = after("first", job_id="second")
    store.enqueue(again)
    assert kit.process().enqueue(again) == "second"
    assert place(store, "second") == WAITING
    finish(store, failure)
    assert kit.process().enqueue(again) == "second", "even if it could not be submitted for the first time now"
    assert life(store, "second").status is Status.KILLED
    with pytest.raises(IdConflict):
        store.enqueue(after("first", job_id="second", any_end=True))


def test_a_dependent_keeps_role_tags_time_and_priority(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    due = kit.clock.now() + timedelta(seconds=60)
    prompt = plan(metadata={"after": ["first"], "tags": ["gpu"], "priority": "P0"})
    store.enqueue(Submission(role="CodeReviewer", prompt=prompt, job_id="second", not_before=due))
    finish(store)
    store.enqueue(Submission(role="CodeReviewer", prompt=plan(), job_id="plain"))
    assert place(store, "second") == "agents/CodeReviewer/incoming"
    plain, gpu = (worker(store, role="CodeReviewer", tags=tags) for tags in ((), ("gpu",)))
    kit.clock.advance(30)
    assert claimed(store, gpu).job_id == "plain"
    kit.clock.advance(31)
    assert claim_one(store, plain) is None
    assert claimed(store, gpu).job_id == "second"


def test_a_long_chain_of_failures_ends_at_once(kit: Adapter) -> None:
    store = kit.store
    length = 1200 if kit.name == "memory" else 60
    chain = [submission(job_id="j0"), *(after(f"j{n - 1}", job_id=f"j{n}") for n in range(1, length))]
    store.enqueue_many(chain)
    finish(store, failure)
    counts = store.count()
    assert (counts[Status.FAILED], counts[Status.KILLED], counts[Status.QUEUED]) == (1, length - 1, 0)


def test_a_queue_is_pending_while_a_waiting_job_may_enter(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="review", role="CodeReviewer"))
    store.enqueue(after("review", job_id="next"))
    store.enqueue(after("next", job_id="last"))
    assert store.pending("Runner") == 2
    assert store.count(roles=["Runner"])[Status.QUEUED] == 2
    assert [seen.job_id for seen in store.list(roles=["Runner"])] == ["last", "next"]
    agent = worker(store, role="CodeReviewer")
    claimed(store, agent)
    assert store.pending("Runner") == 2
    kit.die(agent)
    store.recover(operator(store))
    assert store.pending("Runner") == 0, "stale: the manager must decide first"
    assert store.pending("Manager") == 0


def test_the_feed_of_all_roles_reports_waiting_jobs_and_their_entry(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="first"))
    everything = store.changes(None).cursor
    queue = store.changes(None, role="Runner").cursor
    store.enqueue(after("first", job_id="second"))
    assert "second" in [change.job_id for change in store.changes(everything, timeout_s=5).items]
    assert store.changes(queue, role="Runner").items == ()
    finish(store)
    assert "second" in [change.job_id for change in store.changes(queue, role="Runner", timeout_s=5).items]


# --- submitted and claimed ---------------------------------------------------------------------------------------


def test_no_other_worker_gets_a_job_that_is_claimed_at_enqueue(kit: Adapter) -> None:
    store = kit.store
    agent, other = worker(store), worker(store)
    claim = store.enqueue_claimed(agent, submission(job_id="mine"))
    assert claim is not None
    assert (claim.job_id, claim.attempt, life(store, "mine").status) == ("mine", 1, Status.IN_PROGRESS)
    assert claim_one(store, other) is None
    store.heartbeat(agent, claim)
    assert commit_one(store, claim, success(claim)).status is Status.SUCCEEDED
    assert [seen.job_id for seen in store.list()] == ["mine"]


def test_a_job_claimed_at_enqueue_is_recovered_like_any_other(kit: Adapter) -> None:
    store = kit.store
    agent = worker(store)
    claim = store.enqueue_claimed(agent, submission())
    assert claim is not None
    kit.die(agent)
    boss = operator(store)
    store.recover(boss)
    assert life(store, claim.job_id).status is Status.STALE
    store.resolve_stale(boss, claim.job_id)
    kit.clock.advance(60)
    assert claimed(store, worker(store)).job_id == claim.job_id


def test_a_chosen_id_that_exists_is_not_claimed_again(kit: Adapter) -> None:
    store = kit.store
    store.enqueue(submission(job_id="once"))
    agent = worker(store)
    assert store.enqueue_claimed(agent, submission(job_id="once")) is None
    assert place(store, "once") == QUEUE
    with pytest.raises(IdConflict):
        store.enqueue_claimed(agent, submission(5, job_id="once"))
    with pytest.raises(InputError, match="runs after others"):
        store.enqueue_claimed(agent, after("once"))
