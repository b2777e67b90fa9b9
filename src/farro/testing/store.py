"""The contract of the Store port, whose docstrings cite these tests. The fixture `kit` yields a StoreKit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from farro.errors import (
    AgentLost,
    BadName,
    ClaimLost,
    IdConflict,
    IllegalTransition,
    InputError,
    Lost,
    UnknownJob,
    UnknownRole,
)
from farro.jobs import ids, moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import (
    AccountWait,
    Child,
    ErrorInfo,
    Failed,
    Outcome,
    Released,
    Report,
    Succeeded,
    Unroutable,
)
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp
from farro.store.port import Agent, Claim, PersonAnswer, QueuePause, Store, Submission, Submitted
from farro.testing.one_job import claim_one, commit_one, release_one, route_one
from farro.testing.store_kit import RETRY, START, StoreKit, plan, report, submission

NO = ErrorInfo(category="step_failed", message="no")


def success(claim: Claim, *children: Child) -> Succeeded:
    return Succeeded(report=report(claim), children=children)


def failure(claim: Claim, *, retryable: bool = False) -> Failed:
    return Failed(error=NO, report=report(claim), retryable=retryable)


def away(claim: Claim) -> Unroutable:
    return Unroutable(error=ErrorInfo(category="manager_away", message="nobody routes"), report=report(claim))


def worker(store: Store, *, role: str = "Runner", tags: tuple[str, ...] = ()) -> Agent:
    return store.join("worker", role=role, tags=tags)


def operator(store: Store) -> Agent:
    return store.join("operator", role=None)


def claimed(store: Store, agent: Agent) -> Claim:
    claim = claim_one(store, agent)
    assert claim is not None, "nothing to claim"
    return claim


def life(store: Store, job_id: str) -> Lifecycle:
    found = store.find(job_id)
    assert found is not None, f"{job_id} is nowhere"
    return found.lifecycle


def place(store: Store, job_id: str) -> str:
    found = store.find(job_id)
    assert found is not None
    return found.place


def drained(store: Store, agent: Agent) -> list[str]:
    """Claim and finish every job. Returns the ids in the order of the claims."""
    order = []
    while (claim := claim_one(store, agent)) is not None:
        order.append(claim.job_id)
        commit_one(store, claim, success(claim))
    return order


def make_stale(kit: StoreKit, job_id: str | None = None) -> str:
    """A job whose worker died in its first attempt, collected by a watchdog."""
    store = kit.store
    made = store.enqueue(submission(job_id=job_id))
    agent = worker(store)
    while claimed(store, agent).job_id != made:
        pass
    kit.die(agent)
    dog = operator(store)
    store.recover(dog)
    store.leave(dog)
    assert life(store, made).status is Status.STALE
    return made


def make_open_failure(store: Store) -> str:
    """A failed job that is not final: the manager still decides about it."""
    job_id = store.enqueue(submission(routing={"mode": "manager"}))
    claim = claimed(store, worker(store))
    commit_one(store, claim, failure(claim))
    return job_id


def make_queued(kit: StoreKit) -> str:
    return kit.store.enqueue(submission())


def make_in_progress(kit: StoreKit) -> str:
    kit.store.enqueue(submission())
    return claimed(kit.store, worker(kit.store)).job_id


def make_succeeded(kit: StoreKit) -> str:
    kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    commit_one(kit.store, claim, success(claim))
    return claim.job_id


def make_failed(kit: StoreKit) -> str:
    kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    commit_one(kit.store, claim, failure(claim))
    return claim.job_id


def make_killed(kit: StoreKit) -> str:
    job_id = kit.store.enqueue(submission())
    agent = operator(kit.store)
    kit.store.kill(agent, job_id)
    kit.store.leave(agent)
    return job_id


STATES: dict[str, Callable[[StoreKit], str]] = {
    "queued": make_queued,
    "in_progress": make_in_progress,
    "stale": make_stale,
    "open failure": lambda kit: make_open_failure(kit.store),
    "succeeded": make_succeeded,
    "failed": make_failed,
    "killed": make_killed,
}
TERMINAL = ("succeeded", "failed", "killed")


# --- submitting --------------------------------------------------------------------------------------------------


def test_an_acknowledged_enqueue_is_kept(kit: StoreKit) -> None:
    job_id = kit.store.enqueue(submission(7, routing={"mode": "role", "next": "CodeReviewer"}))
    for store in (kit.store, kit.process()):
        seen = store.find(job_id)
        assert seen is not None
        assert (seen.job_id, seen.status, seen.place, seen.damaged) == (
            job_id,
            Status.QUEUED,
            "agents/Runner/incoming",
            None,
        )
        assert seen.lifecycle.created_at == seen.lifecycle.enqueued_at == "2026-11-15T12:00:00.000Z"
        assert (seen.lifecycle.attempt, seen.lifecycle.routing) == (0, {"mode": "role", "next": "CodeReviewer"})


def test_a_minted_id_is_new_each_time_and_sorts(kit: StoreKit) -> None:
    made = [kit.store.enqueue(submission()) for _ in range(20)]
    assert made == sorted(set(made))
    assert all(ids.is_job_id(job_id) and job_id.startswith("job-20261115-120000-") for job_id in made)


def test_a_chosen_id_is_kept(kit: StoreKit) -> None:
    assert kit.store.enqueue(submission(job_id="my-job_1")) == "my-job_1"
    assert life(kit.store, "my-job_1").job_id == "my-job_1"


def test_a_submission_keeps_where_it_came_from(kit: StoreKit) -> None:
    kit.store.enqueue(Submission(role="Runner", prompt=plan(), job_id="again", retry_of="first"))
    assert life(kit.store, "again").retry_of == "first"


def test_same_chosen_id_twice_is_one_job(kit: StoreKit) -> None:
    first = Submission(role="Runner", prompt={"plan_id": "p", "steps": []}, job_id="once")
    same = Submission(
        role="Runner", prompt={"steps": [], "plan_id": "p"}, job_id="once"
    )  # the order of keys does not matter
    agent = worker(kit.store)
    assert kit.store.enqueue(first) == "once"
    assert kit.process().enqueue(same) == "once"
    claim = claimed(kit.store, agent)
    assert kit.store.enqueue(same) == "once", "also while it runs"
    commit_one(kit.store, claim, success(claim))
    assert kit.store.enqueue(same) == "once", "also when it is done"
    assert claim_one(kit.store, agent) is None
    assert [seen.job_id for seen in kit.store.list()] == ["once"]
    assert life(kit.store, "once").status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "other",
    [
        Submission(role="Runner", prompt=plan(2), job_id="once"),
        Submission(role="CodeReviewer", prompt=plan(1), job_id="once"),
        Submission(role="Runner", prompt=plan(1), job_id="once", narrative="more"),
        Submission(role="Runner", prompt=plan(1), job_id="once", payload={"a.txt": b"1"}),
    ],
    ids=["prompt", "role", "narrative", "payload"],
)
def test_other_content_under_the_same_id_is_refused(kit: StoreKit, other: Submission) -> None:
    kit.store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="once"))
    before = kit.snapshot()
    with pytest.raises(IdConflict, match="once"):
        kit.store.enqueue(other)
    assert kit.snapshot() == before


def test_a_minted_id_cannot_be_chosen_by_another(kit: StoreKit) -> None:
    minted = kit.store.enqueue(submission(1))
    before = kit.snapshot()
    with pytest.raises(IdConflict):
        kit.store.enqueue(submission(1, job_id=minted))
    assert kit.snapshot() == before


def test_many_are_queued_in_their_order(kit: StoreKit) -> None:
    agent = worker(kit.store)
    made = kit.store.enqueue_many([submission(n, job_id=name) for n, name in enumerate(("z", "a", "m"))])
    minted = kit.store.enqueue_many([submission(n) for n in range(5)])
    assert [job.id for job in made] == ["z", "a", "m"]
    assert drained(kit.store, agent) == [job.id for job in (*made, *minted)]
    assert kit.store.enqueue_many([]) == []


def test_one_id_twice_in_a_batch_is_one_job(kit: StoreKit) -> None:
    made = kit.store.enqueue_many([submission(job_id="a"), submission(job_id="a")])
    assert made == [Submitted(id="a"), Submitted(id="a", existed=True)]
    assert len(kit.store.list()) == 1


def test_enqueue_many_tells_which_jobs_existed(kit: StoreKit) -> None:
    kit.store.enqueue(submission(1, job_id="old"))
    again, new, minted = kit.process().enqueue_many(
        [submission(1, job_id="old"), submission(2, job_id="new"), submission(3)]
    )
    assert (again, new) == (Submitted(id="old", existed=True), Submitted(id="new"))
    assert not minted.existed


@pytest.mark.parametrize(
    "batch",
    [
        [submission(1, job_id="new"), submission(2, job_id="taken")],
        [submission(1, job_id="new"), submission(2, job_id="new")],
        [submission(1), submission(1, role="Nobody")],
        [submission(1), submission(1, job_id="..")],
    ],
    ids=["taken", "against itself", "unknown role", "bad name"],
)
def test_a_refused_batch_queues_nothing_now_or_later(kit: StoreKit, batch: list[Submission]) -> None:
    kit.store.enqueue(submission(1, job_id="taken"))
    before = kit.snapshot()
    with pytest.raises(InputError):
        kit.store.enqueue_many(batch)
    assert kit.snapshot() == before
    kit.clock.jump(10 * 365 * 86400)  # clean-up publishes what a registered id points to, once it is old enough
    kit.store.recover(operator(kit.store))
    assert [seen.job_id for seen in kit.store.list()] == ["taken"]


@pytest.mark.parametrize("name", ["..", "a/b", "a\0b", ".lock", "x.lock", "con", "jöb", "x" * 65, ""], ids=ascii)
def test_hostile_names_are_refused_before_anything_is_written(kit: StoreKit, name: str) -> None:
    before = kit.snapshot()
    for bad in (
        lambda: kit.store.enqueue(submission(job_id=name)),
        lambda: kit.store.enqueue(submission(role=name)),
        lambda: kit.store.join(name, role=None),
        lambda: kit.store.join("w", role=name),
        lambda: kit.store.find(name),
    ):
        with pytest.raises(BadName):
            bad()  # type: ignore[no-untyped-call]
    assert kit.snapshot() == before


def test_an_unknown_role_is_refused(kit: StoreKit) -> None:
    before = kit.snapshot()
    with pytest.raises(UnknownRole, match=r"CodeReviewer, Manager, Runner"):
        kit.store.enqueue(submission(role="Nobody"))
    with pytest.raises(UnknownRole):
        kit.store.join("w", role="Nobody")
    with pytest.raises(UnknownRole):
        kit.store.changes(None, role="Nobody")
    assert kit.snapshot() == before
    assert sorted(kit.store.roles()) == ["CodeReviewer", "Manager", "Runner"]


def test_a_prompt_that_is_too_long_is_refused(kit: StoreKit) -> None:
    before = kit.snapshot()
    with pytest.raises(InputError, match="at most"):
        kit.store.enqueue(submission(name="x" * (1 << 20)))
    assert kit.snapshot() == before


# --- order, tags, time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", ["live", "new"])
def test_order_is_the_time_of_entry(kit: StoreKit, listed: str) -> None:
    """The order is the same whether the worker watched the jobs arrive (live) or lists the queue afterwards (new)."""
    agent = worker(kit.store)
    if listed == "live":
        assert claim_one(kit.store, agent) is None
    names = ["m", "z", "a", "k", "b"]
    for name in names:
        kit.store.enqueue(submission(job_id=name))
    names.append(kit.store.enqueue(submission()))
    kit.store.enqueue(submission(job_id="A"))
    assert drained(kit.store, agent) == [*names, "A"]


@pytest.mark.parametrize("listed", ["live", "new"])
def test_order_after_routing_is_the_time_of_entry_into_the_next_queue(kit: StoreKit, listed: str) -> None:
    reviewer = worker(kit.store, role="CodeReviewer")
    if listed == "live":
        assert claim_one(kit.store, reviewer) is None
    workers = [worker(kit.store) for _ in range(3)]
    for name in ("a", "b", "c"):
        kit.store.enqueue(submission(job_id=name, routing={"mode": "role", "next": "CodeReviewer"}))
    claims = [claimed(kit.store, agent) for agent in workers]
    commit_one(kit.store, claims[2], success(claims[2]))
    kit.store.enqueue(submission(job_id="d", role="CodeReviewer"))
    commit_one(kit.store, claims[0], success(claims[0]))
    commit_one(kit.store, claims[1], success(claims[1]))
    assert drained(kit.store, reviewer) == ["c", "d", "a", "b"]


@pytest.mark.parametrize("listed", ["live", "new"])
def test_a_job_that_returns_to_its_queue_goes_to_the_end(kit: StoreKit, listed: str) -> None:
    first, store = worker(kit.store), kit.store
    for name in ("a", "b", "c"):
        store.enqueue(submission(job_id=name))
    a, b = claimed(store, first), claimed(store, first)
    release_one(store, b)
    kit.die(first)
    boss = operator(store)
    store.recover(boss)
    assert a.job_id == "a"
    store.requeue(boss, "a")
    store.enqueue(submission(job_id="d"))
    store = store if listed == "live" else kit.process()
    assert drained(store, worker(store)) == ["c", "b", "a", "d"]


def test_a_job_that_another_worker_returned_keeps_the_order(kit: StoreKit) -> None:
    other = kit.process()
    here, there = worker(kit.store), worker(other)
    for name in ("a", "b", "c", "d"):
        kit.store.enqueue(submission(job_id=name))
    held = claimed(kit.store, here)  # this process has listed all four
    given_back = claimed(other, there)
    assert (held.job_id, given_back.job_id) == ("a", "b")
    release_one(other, given_back)
    assert drained(kit.store, here) == ["c", "d", "b"]


def test_a_delayed_job_waits_for_its_time_and_keeps_its_place(kit: StoreKit) -> None:
    agent = worker(kit.store)
    due = START + timedelta(seconds=60)
    kit.store.enqueue(Submission(role="Runner", prompt=plan(), job_id="later", not_before=due))
    kit.store.enqueue(submission(job_id="now"))
    kit.store.enqueue(submission(job_id="then"))
    first = claimed(kit.store, agent)
    assert first.job_id == "now"
    assert kit.store.next_due("Runner") == due
    kit.clock.advance(59.999)
    release_one(kit.store, first)
    kit.clock.advance(0.001)
    assert drained(kit.store, agent) == ["later", "then", "now"]
    assert kit.store.next_due("Runner") is None


def test_the_next_due_time_is_that_of_the_earliest(kit: StoreKit) -> None:
    agent = worker(kit.store)
    for number, seconds in enumerate((300, 100, 200)):
        due = START + timedelta(seconds=seconds)
        kit.store.enqueue(Submission(role="Runner", prompt=plan(), job_id=f"j{number}", not_before=due))
    assert claim_one(kit.store, agent) is None
    assert kit.store.next_due("Runner") == START + timedelta(seconds=100)
    assert kit.store.next_due("CodeReviewer") is None
    kit.clock.advance(100)
    assert claimed(kit.store, agent).job_id == "j1"
    assert claim_one(kit.store, agent) is None
    assert kit.store.next_due("Runner") == START + timedelta(seconds=200)


def test_a_jump_of_the_clock_leaves_no_delay_stuck(kit: StoreKit) -> None:
    agent = worker(kit.store)
    due = START + timedelta(seconds=60)
    kit.store.enqueue(Submission(role="Runner", prompt=plan(), job_id="j", not_before=due))
    assert claim_one(kit.store, agent) is None
    kit.clock.jump(-86400)
    assert claim_one(kit.store, agent) is None
    kit.clock.jump(86400 + 60)
    assert claimed(kit.store, agent).job_id == "j"


def test_minted_ids_sort_also_after_the_clock_jumped_back(kit: StoreKit) -> None:
    made = [kit.store.enqueue(submission())]
    kit.clock.jump(-86400)
    made += [kit.store.enqueue(submission()) for _ in range(3)]
    assert made == sorted(made)
    assert drained(kit.store, worker(kit.store)) == made


def test_a_job_is_claimed_only_by_an_agent_with_its_tags(kit: StoreKit) -> None:
    store = kit.store
    store.enqueue(submission(job_id="both", metadata={"tags": ["gpu", "big"]}))
    store.enqueue(submission(job_id="gpu", metadata={"tags": ["gpu"]}))
    store.enqueue(submission(job_id="any"))
    store.enqueue(submission(job_id="none", metadata={"tags": []}))
    assert drained(store, worker(store)) == ["any", "none"]
    assert drained(store, worker(store, tags=("gpu",))) == ["gpu"]
    assert drained(store, worker(store, tags=("big", "gpu", "more"))) == ["both"]


def test_an_agent_claims_only_from_its_own_role(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="review", role="CodeReviewer"))
    assert claim_one(kit.store, worker(kit.store)) is None
    assert claimed(kit.store, worker(kit.store, role="CodeReviewer")).job_id == "review"


# --- working -----------------------------------------------------------------------------------------------------


def test_a_claim_is_an_attempt_of_its_agent(kit: StoreKit) -> None:
    job_id = kit.store.enqueue(submission(3))
    agent = worker(kit.store)
    kit.clock.advance(5)
    claim = claimed(kit.store, agent)
    now = life(kit.store, job_id)
    assert claim.envelope.prompt == plan(3)
    assert claim.envelope.lifecycle == now
    assert (claim.job_id, claim.attempt) == (job_id, 1)
    assert claim.marker.startswith(f"{job_id}/0001")
    assert (now.status, now.attempt, now.agent) == (Status.IN_PROGRESS, 1, agent.id)
    assert now.first_claimed_at == now.updated_at == "2026-11-15T12:00:05.000Z"
    assert place(kit.store, job_id) == f"agents/Runner/in-progress/{agent.id}"
    assert claim_one(kit.store, agent) is None


def test_each_attempt_has_its_own_correlation_id(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    agent = worker(kit.store)
    first = claimed(kit.store, agent)
    release_one(kit.store, first)
    second = claimed(kit.store, agent)
    correlations = {claim.envelope.lifecycle.correlation_id for claim in (first, second)}
    assert len(correlations) == 2
    assert None not in correlations


def test_a_workers_changes_to_its_prompt_are_never_written_back(kit: StoreKit) -> None:
    kit.store.enqueue(submission(3))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    claim.envelope.prompt["steps"].clear()
    release_one(kit.store, claim)
    assert claimed(kit.store, agent).envelope.prompt == plan(3)


def test_a_claim_from_an_empty_queue_returns_at_once(kit: StoreKit) -> None:
    assert claim_one(kit.store, worker(kit.store)) is None


def test_two_workers_want_one_job(kit: StoreKit) -> None:
    other = kit.process()
    agents = [(kit.store, worker(kit.store)), (other, worker(other))]
    kit.store.enqueue(submission())
    claims = [claim_one(store, agent) for store, agent in agents]
    assert sum(claim is not None for claim in claims) == 1


def test_threads_that_claim_at_once_take_each_job_once(kit: StoreKit) -> None:
    made = [job.id for job in kit.store.enqueue_many([submission(n) for n in range(120)])]
    stores = [kit.store if n % 2 else kit.process() for n in range(8)]
    agents = [worker(store) for store in stores]
    together = threading.Barrier(8)
    taken: list[list[str]] = [[] for _ in range(8)]
    troubles: list[BaseException] = []

    def work(n: int) -> None:
        try:
            together.wait()
            while (claim := claim_one(stores[n], agents[n])) is not None:
                taken[n].append(claim.job_id)
                if n % 4 == 0:
                    stores[n].heartbeat(agents[n], claim)
                commit_one(stores[n], claim, success(claim))
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    # A worker that lost every race may have ended while another held a lock: no job may be left over.
    rest = drained(kit.store, agents[1])
    assert sorted([*(job for each in taken for job in each), *rest]) == made
    assert kit.store.count()[Status.SUCCEEDED] == 120
    assert {seen.lifecycle.attempt for seen in kit.store.list()} == {1}


def test_a_success_is_committed(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    kit.clock.advance(1)
    told = commit_one(kit.store, claim, success(claim))
    assert told == life(kit.store, claim.job_id)
    assert (told.status, told.terminal, told.attempt) == (Status.SUCCEEDED, True, 1)
    assert told.finalized_at == "2026-11-15T12:00:01.000Z"
    assert told.result_sha256 is not None
    assert [(hop.reason, hop.by) for hop in told.hops] == [(Reason.COMMITTED, agent.id)]
    assert place(kit.store, claim.job_id) == "agents/Runner/completed/succeeded"


def test_a_failure_is_committed_with_its_error(kit: StoreKit) -> None:
    job_id = make_failed(kit)
    now = life(kit.store, job_id)
    assert (now.status, now.terminal) == (Status.FAILED, True)
    assert now.error == {"category": "step_failed", "message": "no"}
    assert place(kit.store, job_id) == "agents/Runner/completed/failed"


def test_a_retryable_failure_is_tried_again_after_its_delay(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    told = commit_one(kit.store, claim, failure(claim, retryable=True))
    assert (told.status, told.attempt) == (Status.QUEUED, 1)
    assert told.not_before == timestamp(START + timedelta(seconds=RETRY.base_s))
    assert claim_one(kit.store, agent) is None
    kit.clock.advance(RETRY.base_s)
    again = claimed(kit.store, agent)
    assert (again.job_id, again.attempt) == (claim.job_id, 2)


def test_attempts_are_exhausted_at_the_limit(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    agent = worker(kit.store)
    for attempt in range(1, RETRY.max_attempts + 1):
        claim = claimed(kit.store, agent)
        assert claim.attempt == attempt
        told = commit_one(kit.store, claim, failure(claim, retryable=True))
        kit.clock.advance(RETRY.max_delay_s)
    assert (told.status, told.terminal) == (Status.FAILED, True)
    assert [hop.reason for hop in told.hops] == [Reason.RETRIED, Reason.RETRIED, Reason.COMMITTED]


def test_a_release_does_not_count_as_an_attempt(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    agent = worker(kit.store)
    for _ in range(5):
        told = release_one(kit.store, claimed(kit.store, agent), "shutdown")
        assert (told.status, told.not_before, told.hops[-1].note) == (Status.QUEUED, None, "shutdown")
    claim = claimed(kit.store, agent)
    assert claim.attempt == 6
    assert commit_one(kit.store, claim, failure(claim, retryable=True)).status is Status.QUEUED


def test_routing_by_role_hands_the_job_on_once(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j", routing={"mode": "role", "next": "CodeReviewer"}))
    claim = claimed(kit.store, worker(kit.store))
    told = commit_one(kit.store, claim, success(claim))
    assert (told.status, told.role) == (Status.QUEUED, "CodeReviewer")
    assert place(kit.store, "j") == "agents/CodeReviewer/incoming"
    claim = claimed(kit.store, worker(kit.store, role="CodeReviewer"))
    assert (claim.job_id, claim.attempt) == ("j", 2)
    assert commit_one(kit.store, claim, success(claim)).status is Status.SUCCEEDED
    assert place(kit.store, "j") == "agents/CodeReviewer/completed/succeeded"
    assert [hop.role for hop in life(kit.store, "j").hops] == ["Runner", "CodeReviewer"]


def test_routing_by_manager_goes_through_its_queue(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j", routing={"mode": "manager"}))
    claim = claimed(kit.store, worker(kit.store))
    assert commit_one(kit.store, claim, success(claim)).role == "Manager"
    claim = claimed(kit.store, worker(kit.store, role="Manager"))
    told = route_one(kit.store, claim, success(claim), "CodeReviewer", note="please look")
    assert (told.status, told.role, told.hops[-1].note) == (Status.QUEUED, "CodeReviewer", "please look")


def test_the_route_verb_overrides_the_routing_of_the_job(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    claim = claimed(kit.store, worker(kit.store))
    told = route_one(kit.store, claim, success(claim), "CodeReviewer")
    assert (told.status, told.hops[-1].reason) == (Status.QUEUED, Reason.ROUTED)
    assert claimed(kit.store, worker(kit.store, role="CodeReviewer")).job_id == "j"


def test_routing_to_an_unknown_role_is_refused_and_the_claim_goes_on(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    before = kit.snapshot()
    with pytest.raises(UnknownRole):
        route_one(kit.store, claim, success(claim), "Nobody")
    assert kit.snapshot() == before
    assert commit_one(kit.store, claim, success(claim)).status is Status.SUCCEEDED


def test_attempts_count_per_hop(kit: StoreKit) -> None:
    kit.store.enqueue(submission(routing={"mode": "role", "next": "CodeReviewer"}))
    runner, reviewer = worker(kit.store), worker(kit.store, role="CodeReviewer")
    for agent in (runner, reviewer):
        for _ in range(RETRY.max_attempts - 1):
            claim = claimed(kit.store, agent)
            assert commit_one(kit.store, claim, failure(claim, retryable=True)).status is Status.QUEUED
            kit.clock.advance(RETRY.max_delay_s)
        claim = claimed(kit.store, agent)
        told = commit_one(kit.store, claim, success(claim))
    assert (told.status, told.attempt) == (Status.SUCCEEDED, 6)


def test_children_are_delivered_once(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="parent"))
    claim = claimed(kit.store, worker(kit.store))
    told = commit_one(
        kit.store,
        claim,
        success(claim, Child(role="CodeReviewer", prompt=plan(1)), Child(role="Runner", prompt=plan(2))),
    )
    assert told.status is Status.SUCCEEDED
    for _ in range(2):
        kit.store.recover(operator(kit.store))
    wanted = [ids.child_id("parent", 1, index) for index in range(2)]
    assert sorted(seen.job_id for seen in kit.store.list()) == sorted(["parent", *wanted])
    assert claimed(kit.store, worker(kit.store, role="CodeReviewer")).job_id == wanted[0]
    second = claimed(kit.store, worker(kit.store))
    assert (second.job_id, second.envelope.prompt) == (wanted[1], plan(2))
    assert place(kit.store, "parent") == "agents/Runner/completed/succeeded"


def test_children_are_delivered_when_the_parent_is_routed_on(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="parent", routing={"mode": "role", "next": "CodeReviewer"}))
    claim = claimed(kit.store, worker(kit.store))
    commit_one(kit.store, claim, success(claim, Child(role="Runner", prompt=plan(1))))
    child = ids.child_id("parent", 1, 0)
    assert life(kit.store, child).status is Status.QUEUED
    assert life(kit.store, "parent").role == "CodeReviewer"
    claim = claimed(kit.store, worker(kit.store, role="CodeReviewer"))
    commit_one(kit.store, claim, success(claim))
    kit.store.recover(operator(kit.store))
    assert len(kit.store.list()) == 2


def test_a_child_for_an_unknown_role_is_refused_and_the_claim_goes_on(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="parent"))
    claim = claimed(kit.store, worker(kit.store))
    with pytest.raises(UnknownRole):
        commit_one(kit.store, claim, success(claim, Child(role="Nobody", prompt=plan(1))))
    assert life(kit.store, "parent").status is Status.IN_PROGRESS
    assert commit_one(kit.store, claim, failure(claim)).status is Status.FAILED
    assert len(kit.store.list()) == 1


def test_an_unroutable_job_is_marked_in_place_and_then_collected(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j", routing={"mode": "manager"}))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    told = commit_one(kit.store, claim, away(claim))
    assert (told.status, told.hops[-1].reason) == (Status.STALE, Reason.ROUTING_EXHAUSTED)
    assert life(kit.store, "j").status is Status.STALE
    assert place(kit.store, "j") == f"agents/Runner/in-progress/{agent.id}"
    assert kit.store.stale() == []
    dog = operator(kit.store)
    assert kit.store.resolve_stale(dog, "j") is None, "not collected yet"
    done = kit.store.recover(dog)
    assert [(each.job_id, each.agent, each.what) for each in done] == [("j", agent.id, "rolled_forward")]
    assert (kit.store.stale(), place(kit.store, "j")) == (["j"], "jobs/stale")
    kit.store.heartbeat(agent)  # the worker itself is alive
    requeued = kit.store.resolve_stale(dog, "j")
    assert requeued is not None
    assert (requeued.status, requeued.requeued_from) == (Status.QUEUED, Status.STALE)
    assert requeued.error is None or requeued.error["category"] == "manager_away"


def test_a_report_that_is_not_unicode_can_be_committed(kit: StoreKit) -> None:
    """A step's error may name a file whose name is not UTF-8: the job must not get stuck because of it."""
    kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    odd = "no such file: \udcff\ud800"
    told = commit_one(
        kit.store,
        claim,
        Failed(error=ErrorInfo(category="step_failed", message=odd), report=Report(result={"e": odd}, markdown=odd)),
    )
    assert told.status is Status.FAILED
    assert life(kit.store, claim.job_id).error == {"category": "step_failed", "message": odd}


# --- ownership ---------------------------------------------------------------------------------------------------


OUTCOMES: dict[str, Callable[[Claim], Outcome]] = {
    "success": success,
    "success with a child": lambda claim: success(claim, Child(role="Runner", prompt=plan(9))),
    "failure": failure,
    "retry": lambda claim: failure(claim, retryable=True),
    "release": lambda claim: Released(),
    "unroutable": away,
}


def take_by_kill(kit: StoreKit, claim: Claim) -> None:
    kit.store.kill(operator(kit.store), claim.job_id)


def take_by_death(kit: StoreKit, claim: Claim) -> None:
    """The agent is fenced like a zombie: silent for too long, its job moved away, its process still alive."""
    dog = operator(kit.store)
    done = [*kit.store.recover(dog)]
    for _ in range(2):
        kit.clock.advance(1000)
        kit.store.heartbeat(dog)
        done += kit.store.recover(dog)
    assert "silent_killed" in [each.what for each in done]


def take_by_death_and_run_again(kit: StoreKit, claim: Claim) -> None:
    take_by_death(kit, claim)
    kit.store.resolve_stale(operator(kit.store), claim.job_id)
    kit.clock.advance(RETRY.max_delay_s)
    assert claimed(kit.store, worker(kit.store)).attempt == claim.attempt + 1


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("take", [take_by_kill, take_by_death, take_by_death_and_run_again], ids=lambda f: f.__name__)
def test_a_fenced_agent_cannot_commit(kit: StoreKit, take: Callable[[StoreKit, Claim], None], outcome: str) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    take(kit, claim)
    before = kit.snapshot()
    with pytest.raises(ClaimLost):
        commit_one(kit.store, claim, OUTCOMES[outcome](claim))
    with pytest.raises(ClaimLost):
        route_one(kit.store, claim, success(claim), "CodeReviewer")
    with pytest.raises(ClaimLost):
        release_one(kit.store, claim)
    with pytest.raises(ClaimLost):
        kit.store.heartbeat(agent, claim)
    assert kit.snapshot() == before
    assert len(kit.store.list()) == 1


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("again", ["at once", "with the job claimed again"])
def test_a_claim_is_committed_once(kit: StoreKit, outcome: str, again: str) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    told = commit_one(kit.store, claim, OUTCOMES[outcome](claim))
    if again == "with the job claimed again" and told.status is Status.QUEUED:
        kit.clock.advance(RETRY.max_delay_s)
        assert claimed(kit.store, agent).job_id == "j"
    before = kit.snapshot()
    with pytest.raises(ClaimLost):
        commit_one(kit.store, claim, success(claim))
    with pytest.raises(ClaimLost):
        route_one(kit.store, claim, success(claim), "CodeReviewer")
    assert kit.snapshot() == before


def test_an_agent_that_left_can_do_nothing_more(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    kit.store.leave(agent)
    before = kit.snapshot()
    for late in (
        lambda: commit_one(kit.store, claim, success(claim)),
        lambda: release_one(kit.store, claim),
        lambda: kit.store.heartbeat(agent),
        lambda: claim_one(kit.store, agent),
        lambda: kit.store.kill(agent, "j"),
        lambda: kit.store.requeue(agent, "j"),
        lambda: kit.store.resolve_stale(agent, "j"),
        lambda: kit.store.recover(agent),
    ):
        with pytest.raises(Lost):
            late()  # type: ignore[no-untyped-call]
    assert kit.snapshot() == before
    kit.store.leave(agent)  # leaving twice is no error


def test_a_heartbeat_notices_a_job_that_was_taken(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    kit.store.heartbeat(agent)
    kit.store.heartbeat(agent, claim)
    kit.store.kill(operator(kit.store), "j")
    with pytest.raises(ClaimLost, match="j"):
        kit.store.heartbeat(agent, claim)
    kit.store.heartbeat(agent)
    take_by_death(kit, claim)
    with pytest.raises(AgentLost):
        kit.store.heartbeat(agent)
    kit.store.enqueue(submission())
    with pytest.raises(AgentLost):
        claim_one(kit.store, agent)
    assert kit.store.count()[Status.QUEUED] == 1


# --- death and recovery ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["leaves", "dies"])
def test_the_job_of_a_dead_agent_is_stale_and_then_requeued(kit: StoreKit, end: str) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claimed(kit.store, agent)
    (kit.store.leave if end == "leaves" else kit.die)(agent)
    assert life(kit.store, "j").status is Status.IN_PROGRESS
    dog = operator(kit.store)
    done = kit.store.recover(dog)
    assert [(each.job_id, each.agent, each.what) for each in done] == [
        ("j", agent.id, "stale"),
        (None, agent.id, "agent_removed"),
    ]
    stale = life(kit.store, "j")
    assert (stale.status, stale.attempt, stale.retry_count) == (Status.STALE, 1, 0)
    assert stale.error is not None
    assert stale.error["category"] == "agent_died"
    assert agent.id in stale.error["message"]
    assert (kit.store.stale(), place(kit.store, "j")) == (["j"], "jobs/stale")
    assert kit.store.recover(dog) == []
    told = kit.store.resolve_stale(dog, "j")
    assert told is not None
    assert told == life(kit.store, "j")
    assert (told.status, told.retry_count, told.requeued_from) == (Status.QUEUED, 1, Status.STALE)
    assert kit.store.stale() == []
    assert kit.store.resolve_stale(dog, "j") is None
    kit.clock.advance(RETRY.max_delay_s)
    claim = claimed(kit.store, worker(kit.store))
    assert claim.attempt == 2
    assert commit_one(kit.store, claim, success(claim)).status is Status.SUCCEEDED


def test_a_poison_job_is_killed_with_the_reason(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="poison"))
    dog = operator(kit.store)
    for _ in range(RETRY.max_attempts):
        agent = worker(kit.store)
        claimed(kit.store, agent)
        kit.die(agent)
        kit.store.recover(dog)
        told = kit.store.resolve_stale(dog, "poison")
        kit.clock.advance(RETRY.max_delay_s)
        kit.store.heartbeat(dog)
    assert told is not None
    assert (told.status, told.terminal, told.hops[-1].reason) == (Status.KILLED, True, Reason.GAVE_UP)
    assert told.error is not None
    assert told.error["category"] == "attempts_exhausted"
    assert "3 attempts" in told.error["message"]
    assert "died" in told.error["message"]
    assert place(kit.store, "poison") == "agents/Runner/completed/killed"
    assert claim_one(kit.store, worker(kit.store)) is None


def test_recovery_leaves_live_agents_alone(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    dog = operator(kit.store)
    assert kit.store.recover(dog) == []
    assert commit_one(kit.store, claim, success(claim)).status is Status.SUCCEEDED


def test_two_watchdogs_do_everything_once(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = worker(kit.store)
    claimed(kit.store, agent)
    kit.die(agent)
    other = kit.process()
    passes = [store.recover(operator(store)) for store in (kit.store, other)]
    assert [each.what for done in passes for each in done] == ["stale", "agent_removed"]
    assert [hop.reason for hop in life(kit.store, "j").hops] == [Reason.AGENT_DIED]


def test_a_silent_agent_is_killed_and_recovered(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent, dog = worker(kit.store), operator(kit.store)
    claim = claimed(kit.store, agent)
    assert kit.store.recover(dog) == []
    kit.clock.advance(1799)
    assert kit.store.recover(dog) == []
    kit.store.heartbeat(agent, claim)
    kit.clock.advance(2)
    assert kit.store.recover(dog) == [], "it made a turn"
    kit.clock.advance(900)
    assert kit.store.recover(dog) == []
    kit.clock.advance(900)
    done = kit.store.recover(dog)
    assert [each.what for each in done if each.agent == agent.id] == ["silent_killed", "stale", "agent_removed"]
    assert life(kit.store, "j").status is Status.STALE
    with pytest.raises(ClaimLost):
        commit_one(kit.store, claim, success(claim))


def test_sleep_of_the_machine_makes_no_agent_silent(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent, dog = worker(kit.store), operator(kit.store)
    claim = claimed(kit.store, agent)
    kit.store.recover(dog)
    kit.clock.suspend(8 * 3600)
    assert kit.store.recover(dog) == []
    kit.clock.jump(30 * 86400)
    assert kit.store.recover(dog) == []
    kit.clock.jump(-365 * 86400)
    assert kit.store.recover(dog) == []
    assert commit_one(kit.store, claim, success(claim)).status is Status.SUCCEEDED


# --- operators ---------------------------------------------------------------------------------------------------


def test_kill_ends_a_job_wherever_it_is(kit: StoreKit) -> None:
    for name in ("queued", "in_progress", "stale", "open failure"):
        job_id = STATES[name](kit)
        agent = operator(kit.store)
        told = kit.store.kill(agent, job_id, note="enough")
        assert told == life(kit.store, job_id)
        assert (told.status, told.terminal, told.hops[-1].reason) == (Status.KILLED, True, Reason.KILLED), name
        assert (told.hops[-1].by, told.hops[-1].note) == (agent.id, "enough")
        assert told.error == {"category": "killed", "message": "enough"}
        assert place(kit.store, job_id) == "agents/Runner/completed/killed"
    assert claim_one(kit.store, worker(kit.store)) is None


@pytest.mark.parametrize("state", TERMINAL)
def test_killing_a_finished_job_returns_its_lifecycle(kit: StoreKit, state: str) -> None:
    job_id = STATES[state](kit)
    boss = operator(kit.store)
    before = kit.snapshot()
    assert kit.store.kill(boss, job_id) == life(kit.store, job_id)
    assert str(life(kit.store, job_id).status) == state
    assert kit.snapshot() == before


def test_requeue_returns_a_stale_or_open_failed_job_to_its_queue(kit: StoreKit) -> None:
    for name in ("stale", "open failure"):
        job_id = STATES[name](kit)
        was = life(kit.store, job_id).status
        told = kit.store.requeue(operator(kit.store), job_id, note="once more", delay_s=5)
        assert (told.status, told.requeued_from, told.retry_count) == (Status.QUEUED, was, 1)
        assert (told.hops[-1].reason, told.hops[-1].note) == (Reason.REQUEUED, "once more")
        agent = worker(kit.store)
        assert claim_one(kit.store, agent) is None
        kit.clock.advance(5)
        assert claimed(kit.store, agent).job_id == job_id


def test_force_complete_ends_a_job_as_succeeded(kit: StoreKit) -> None:
    for name in ("in_progress", "stale", "open failure"):
        job_id = STATES[name](kit)
        told = kit.store.force_complete(operator(kit.store), job_id, note="done by hand")
        assert (told.status, told.terminal, told.hops[-1].reason) == (Status.SUCCEEDED, True, Reason.FORCE_COMPLETED)
        assert place(kit.store, job_id) == "agents/Runner/completed/succeeded"


VERBS: dict[str, Callable[[Store, Agent, str], Any]] = {
    "requeue": lambda store, agent, job_id: store.requeue(agent, job_id),
    "kill": lambda store, agent, job_id: store.kill(agent, job_id),
    "force_complete": lambda store, agent, job_id: store.force_complete(agent, job_id),
}
ILLEGAL = [
    *(("requeue", state) for state in ("queued", "in_progress", *TERMINAL)),
    *(("force_complete", state) for state in ("queued", *TERMINAL)),
]


@pytest.mark.parametrize(("verb", "state"), ILLEGAL)
def test_illegal_transitions_are_refused(kit: StoreKit, verb: str, state: str) -> None:
    job_id = STATES[state](kit)
    boss = operator(kit.store)
    before = kit.snapshot()
    with pytest.raises(IllegalTransition, match=job_id):
        VERBS[verb](kit.store, boss, job_id)
    assert kit.snapshot() == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_an_unknown_job_reports_it(kit: StoreKit, verb: str) -> None:
    with pytest.raises(UnknownJob, match="nowhere"):
        VERBS[verb](kit.store, operator(kit.store), "nowhere")
    with pytest.raises(BadName):
        VERBS[verb](kit.store, operator(kit.store), "../x")
    assert kit.store.find("nowhere") is None
    assert kit.store.resolve_stale(operator(kit.store), "nowhere") is None


@pytest.mark.parametrize("state", ["queued", "in_progress", *TERMINAL, "open failure"])
def test_only_a_stale_job_is_resolved(kit: StoreKit, state: str) -> None:
    job_id = STATES[state](kit)
    boss = operator(kit.store)
    before = kit.snapshot()
    assert kit.store.resolve_stale(boss, job_id) is None
    assert kit.snapshot() == before


# --- looking -----------------------------------------------------------------------------------------------------


def test_find_list_and_count_agree(kit: StoreKit) -> None:
    # Queued last: the helpers that make the other jobs claim every queued job.
    names = [name for name in STATES if name != "queued"]
    made = {name: STATES[name](kit) for name in (*names, "queued")}
    statuses = {job_id: life(kit.store, job_id).status for job_id in made.values()}
    listed = {seen.job_id: seen.status for seen in kit.store.list()}
    assert listed == statuses
    for status in Status:
        wanted = sorted(job_id for job_id, its in statuses.items() if its is status)
        assert sorted(seen.job_id for seen in kit.store.list(statuses=[status])) == wanted
        assert kit.store.count()[status] == len(wanted), status
    assert len(kit.store.list(limit=3)) == 3
    assert kit.store.list(limit=0) == []


def test_lists_and_counts_can_be_of_some_roles(kit: StoreKit) -> None:
    stale = make_stale(kit)
    for n in range(3):
        kit.store.enqueue(submission(n, role="CodeReviewer"))
    runner = kit.store.enqueue(submission())
    assert {seen.job_id for seen in kit.store.list(roles=["Runner"])} == {runner, stale}
    assert {seen.lifecycle.role for seen in kit.store.list(roles=["CodeReviewer"])} == {"CodeReviewer"}
    assert kit.store.count(roles=["CodeReviewer"])[Status.QUEUED] == 3
    assert kit.store.count(roles=["Runner"])[Status.QUEUED] == 1
    assert kit.store.count(roles=["Runner", "CodeReviewer"])[Status.QUEUED] == 4


def test_pending_counts_jobs_that_may_still_leave_a_queue(kit: StoreKit) -> None:
    assert kit.store.pending("Runner") == 0
    later = START + timedelta(hours=1)
    kit.store.enqueue(Submission(role="Runner", prompt=plan(), not_before=later, job_id="later"))
    kit.store.enqueue(submission(job_id="now"))
    kit.store.enqueue(submission(role="CodeReviewer"))
    agent = worker(kit.store)
    assert kit.store.pending("Runner") == 2
    claim = claimed(kit.store, agent)
    assert kit.store.pending("Runner") == 2
    commit_one(kit.store, claim, success(claim))
    assert kit.store.pending("Runner") == 1


def test_live_agents_are_listed_with_their_jobs(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j"))
    agent = kit.store.join("worker", role="Runner", slot=3, tags=("gpu",))
    boss = operator(kit.store)
    claimed(kit.store, agent)
    seen = {view.id: view for view in kit.process().agents()}
    assert set(seen) == {agent.id, boss.id}
    assert (seen[agent.id].role, seen[agent.id].alive, seen[agent.id].jobs) == ("Runner", True, ("j",))
    assert (seen[boss.id].role, seen[boss.id].alive, seen[boss.id].jobs) == (None, True, ())
    assert agent.id.startswith("worker.3.")
    assert agent.tags == {"gpu"}
    kit.die(agent)
    assert [(view.alive, view.jobs) for view in kit.store.agents() if view.id == agent.id] == [(False, ("j",))]
    kit.store.recover(boss)
    assert [view.id for view in kit.store.agents()] == [boss.id]
    kit.store.leave(boss)
    assert kit.store.agents() == []


def test_agent_names_are_never_reused(kit: StoreKit) -> None:
    assert len({worker(kit.store).id for _ in range(20)}) == 20


# --- changes -----------------------------------------------------------------------------------------------------


def told(store: Store, cursor: int, role: str | None = None) -> tuple[int, list[tuple[str, Status]]]:
    changes = store.changes(cursor, role=role)
    assert not changes.gap
    return changes.cursor, [(item.job_id, item.status) for item in changes.items]


def test_changes_report_an_enqueue(kit: StoreKit) -> None:
    cursor = kit.store.changes(None, role="Runner").cursor
    kit.process().enqueue(submission(job_id="a"))
    kit.store.enqueue(submission(job_id="b", role="CodeReviewer"))
    kit.store.enqueue(submission(job_id="c"))
    cursor, items = told(kit.store, cursor, "Runner")
    assert items == [("a", Status.QUEUED), ("c", Status.QUEUED)]
    assert told(kit.store, cursor, "Runner") == (cursor, [])


def test_changes_report_an_enqueue_a_claim_and_a_commit(kit: StoreKit) -> None:
    agent = worker(kit.store)
    cursor = kit.store.changes(None).cursor
    kit.store.enqueue(submission(job_id="j"))
    cursor, items = told(kit.store, cursor)
    assert items == [("j", Status.QUEUED)]
    claim = claimed(kit.store, agent)
    cursor, items = told(kit.store, cursor)
    assert items == [("j", Status.IN_PROGRESS)]
    commit_one(kit.store, claim, success(claim))
    cursor, items = told(kit.store, cursor)
    assert items == [("j", Status.SUCCEEDED)]


def test_changes_report_staleness_requeue_and_kill(kit: StoreKit) -> None:
    cursor = kit.store.changes(None).cursor
    make_stale(kit, "j")
    kit.store.requeue(operator(kit.store), "j")
    kit.store.kill(operator(kit.store), "j")
    _, items = told(kit.store, cursor)
    rest = [status for job_id, status in items if status is not Status.IN_PROGRESS]
    assert rest == [Status.QUEUED, Status.STALE, Status.QUEUED, Status.KILLED]


def test_a_worker_wakes_when_a_job_reenters_its_queue(kit: StoreKit) -> None:
    agent = worker(kit.store)
    kit.store.enqueue(submission(job_id="j"))
    claim = claimed(kit.store, agent)
    cursor = kit.store.changes(None, role="Runner").cursor
    cursor, _ = told(kit.store, cursor, "Runner")
    release_one(kit.store, claim)
    cursor, items = told(kit.store, cursor, "Runner")
    assert items == [("j", Status.QUEUED)]
    again = claimed(kit.store, agent)
    assert told(kit.store, cursor, "Runner") == (cursor, [])
    reviewer_cursor = kit.store.changes(None, role="CodeReviewer").cursor
    route_one(kit.store, again, success(again), "CodeReviewer")
    assert told(kit.store, cursor, "Runner") == (cursor, [])
    assert told(kit.store, reviewer_cursor, "CodeReviewer")[1] == [("j", Status.QUEUED)]


def test_an_old_cursor_reports_a_gap(kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.store.feed.RING", 4)
    fresh = kit.process()
    cursor = fresh.changes(None, role="Runner").cursor
    for n in range(3):
        fresh.enqueue(submission(n))
    assert not fresh.changes(cursor, role="Runner").gap
    for n in range(3, 6):
        fresh.enqueue(submission(n))
    late = fresh.changes(cursor, role="Runner")
    assert late.gap, "six changes, a ring of four"
    assert not fresh.changes(late.cursor, role="Runner").gap


def waiting(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers


PATIENCE_S = 60.0  # far beyond what is needed; only a broken store waits for it


def test_a_change_wakes_a_waiting_caller(kit: StoreKit) -> None:
    cursor = kit.store.changes(None, role="Runner").cursor
    waiters = [waiting(lambda: kit.store.changes(cursor, role="Runner", timeout_s=PATIENCE_S)) for _ in range(3)]
    job_id = kit.process().enqueue(submission())
    for thread, answers in waiters:
        thread.join(PATIENCE_S / 2)
        assert [item.job_id for item in answers[0].items] == [job_id]


@pytest.mark.parametrize("role", ["Runner", None])
def test_wake_ends_every_wait(kit: StoreKit, role: str | None) -> None:
    cursor = kit.store.changes(None, role=role).cursor
    waiters = [waiting(lambda: kit.store.changes(cursor, role=role, timeout_s=PATIENCE_S)) for _ in range(2)]
    until = time.monotonic() + PATIENCE_S / 2
    while any(thread.is_alive() for thread, _ in waiters) and time.monotonic() < until:
        kit.store.wake(role)  # repeatedly: a thread that does not wait yet cannot be woken
        for thread, _ in waiters:
            thread.join(0.01)
    assert [answers[0].items for _, answers in waiters] == [(), ()]


def test_closing_ends_every_wait(kit: StoreKit) -> None:
    cursor = kit.store.changes(None, role="Runner").cursor
    thread, answers = waiting(lambda: kit.store.changes(cursor, role="Runner", timeout_s=PATIENCE_S))
    kit.store.wake("Runner")
    kit.store.close()
    thread.join(PATIENCE_S / 2)
    assert not thread.is_alive()
    assert len(answers) == 1


def test_load_counts_jobs_that_are_queued_waiting_or_in_progress(kit: StoreKit) -> None:
    store = kit.store
    assert store.load("Runner") == store.load(None) == 0
    for _ in range(4):
        store.enqueue(submission())
    store.enqueue(submission(role="CodeReviewer"))
    agent = worker(store)
    done, running = claimed(store, agent), claimed(store, agent)
    commit_one(store, done, success(done))
    assert (store.load("Runner"), store.load("CodeReviewer"), store.load(None)) == (3, 1, 4)
    release_one(store, running)
    assert store.load("Runner") == 3
    kit.die(agent)
    store.recover(operator(store))
    assert store.load("Runner") == 3
    assert drained(store, worker(store))
    assert (store.load("Runner"), store.load(None)) == (0, 1)


# --- decisions of a person and of the manager ---


def make_asked(kit: StoreKit) -> str:
    """A job that waits for a person."""
    job_id = kit.store.enqueue(submission(role="Manager", routing={"mode": "manager"}))
    claim = claimed(kit.store, worker(kit.store, role="Manager"))
    move = Move(
        reason=Reason.ROUTED, status=Status.QUEUED, role="Manager", waits=True, route={"code": "human", "step": 0}
    )
    told = commit_one(kit.store, claim, success(claim), move)
    assert (told.status, place(kit.store, job_id)) == (Status.QUEUED, "agents/Manager/waiting")
    return job_id


def test_no_worker_claims_a_job_that_waits_for_a_person(kit: StoreKit) -> None:
    job_id = make_asked(kit)
    assert claim_one(kit.store, worker(kit.store, role="Manager")) is None
    assert [view.job_id for view in kit.store.list(statuses=[Status.QUEUED])] == [job_id]
    kit.store.recover(operator(kit.store))
    assert place(kit.store, job_id) == "agents/Manager/waiting"
    assert kit.store.pending("Manager") == 0  # it does not enter a queue without an answer


@pytest.mark.parametrize("text", [None, "as I want it"])
def test_a_person_answers_once(kit: StoreKit, text: str | None) -> None:
    job_id = make_asked(kit)
    said = PersonAnswer(route={"code": "approved", "step": 0}, note="fine", text=text)
    told = kit.store.answer(operator(kit.store), job_id, said)
    assert (told.role, told.status, told.hops[-1].reason) == ("Manager", Status.QUEUED, Reason.ANSWERED)
    assert (told.hops[-1].route, told.hops[-1].note) == ({"code": "approved", "step": 0}, "fine")
    with pytest.raises(IllegalTransition):
        kit.store.answer(operator(kit.store), job_id, said)
    assert len(life(kit.store, job_id).hops) == len(told.hops)
    assert claimed(kit.store, worker(kit.store, role="Manager")).job_id == job_id


def test_a_job_that_waits_for_no_person_takes_no_answer(kit: StoreKit) -> None:
    job_id = make_queued(kit)
    with pytest.raises(IllegalTransition):
        kit.store.answer(operator(kit.store), job_id, PersonAnswer(route={"code": "approved"}))
    assert life(kit.store, job_id).hops == ()


def test_a_job_that_waits_for_a_person_may_be_killed(kit: StoreKit) -> None:
    job_id = make_asked(kit)
    assert kit.store.kill(operator(kit.store), job_id).status is Status.KILLED


def test_a_person_overrides_the_route(kit: StoreKit) -> None:
    for job_id in (make_asked(kit), make_stale(kit), make_open_failure(kit.store), make_queued(kit)):
        told = kit.store.reroute(operator(kit.store), job_id, "CodeReviewer", note="you", route={"code": "override"})
        assert (told.role, told.status, told.hops[-1].reason) == ("CodeReviewer", Status.QUEUED, Reason.REROUTED)
        assert claimed(kit.store, worker(kit.store, role="CodeReviewer")).job_id == job_id
    with pytest.raises(UnknownRole):
        kit.store.reroute(operator(kit.store), make_queued(kit), "Nobody")


WAIT = AccountWait(accounts=("claude",), delay_s=3600)


def test_a_job_that_waits_for_an_account_is_not_counted(kit: StoreKit) -> None:
    agent = worker(kit.store)
    job_id = make_queued(kit)
    for _ in range(2 * RETRY.max_attempts):
        told = commit_one(kit.store, claimed(kit.store, agent), Released(note="limited", wait=WAIT))
        assert (told.status, moves.awaited_accounts(told), told.attempts_in_hop(told.attempt)) == (
            Status.QUEUED,
            ("claude",),
            0,
        )
        assert kit.store.claim(agent, 1) == []
        kit.clock.advance(WAIT.delay_s)
    assert claimed(kit.store, agent).job_id == job_id
    assert moves.awaited_accounts(life(kit.store, job_id)) == ()


def test_a_job_that_waits_for_an_account_starts_now(kit: StoreKit) -> None:
    agent = worker(kit.store)
    job_id = make_queued(kit)
    commit_one(kit.store, claimed(kit.store, agent), Released(note="limited", wait=WAIT))
    assert kit.store.claim(agent, 1) == []
    told = kit.store.start_now(operator(kit.store), job_id, note="resumed")
    assert (told.status, told.not_before, told.hops[-1].reason) == (Status.QUEUED, None, Reason.RESUMED)
    claim = claimed(kit.store, agent)
    assert (claim.job_id, claim.attempt, told.attempts_in_hop(told.attempt)) == (job_id, 2, 0)
    with pytest.raises(IllegalTransition):
        kit.store.start_now(operator(kit.store), job_id)
    commit_one(kit.store, claim, success(claim))
    for other in (job_id, make_queued(kit), make_asked(kit)):
        with pytest.raises(IllegalTransition):
            kit.store.start_now(operator(kit.store), other)


def test_a_job_that_runs_or_runs_after_others_is_not_rerouted(kit: StoreKit) -> None:
    first = make_queued(kit)
    second = kit.store.enqueue(submission(metadata={"after": [first]}))
    claimed(kit.store, worker(kit.store))
    for job_id in (first, second):
        with pytest.raises(IllegalTransition):
            kit.store.reroute(operator(kit.store), job_id, "CodeReviewer")
    assert place(kit.store, second) == "agents/Manager/waiting"


def test_a_failure_is_final_when_the_manager_finalizes_it(kit: StoreKit) -> None:
    job_id = make_open_failure(kit.store)
    assert kit.store.open_failures() == [job_id]
    told = kit.store.finalize(operator(kit.store), job_id, route={"code": "fail"})
    assert told is not None
    assert (told.status, told.terminal, told.error) == (
        Status.FAILED,
        True,
        {"category": "step_failed", "message": "no"},
    )
    assert kit.store.open_failures() == []
    assert kit.store.finalize(operator(kit.store), job_id) is None
    assert kit.store.finalize(operator(kit.store), make_queued(kit)) is None


def test_an_unroutable_success_is_never_killed_for_its_attempts(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="j", routing={"mode": "manager"}))
    boss = operator(kit.store)
    for _ in range(RETRY.max_attempts + 3):
        claim = claimed(kit.store, worker(kit.store))
        commit_one(kit.store, claim, away(claim))
        kit.store.recover(boss)
        told = kit.store.resolve_stale(boss, "j")
        assert told is not None
        assert told.status is Status.QUEUED
        kit.clock.advance(60)
    assert kit.store.pending("Runner") == 1


# --- paused queues ---


def pause_of(kit: StoreKit, why: str | None = None) -> QueuePause:
    return QueuePause(by="ann", at=timestamp(kit.clock.now()), why=why)


def test_a_paused_queue_gives_no_job(kit: StoreKit) -> None:
    agent, other = worker(kit.store), worker(kit.store, role="CodeReviewer")
    kit.store.enqueue(submission(job_id="a"))
    first = claimed(kit.store, agent)
    told = pause_of(kit, "a “deploy”\nat noon")
    assert kit.store.pause("Runner", told)
    assert not kit.store.pause("Runner", pause_of(kit)), "it was paused already and stays so"
    assert kit.process().paused() == {"Runner": told}
    kit.store.enqueue(submission(job_id="b"))
    kit.process().enqueue(submission(job_id="c", role="CodeReviewer"))
    assert claim_one(kit.store, agent) is None
    assert kit.store.claim(agent, 4) == []
    assert claim_one(kit.store, other) is not None, "the queue of another role is not paused"
    assert commit_one(kit.store, first, success(first)).status is Status.SUCCEEDED, "a running job is not affected"
    assert kit.store.pending("Runner") == 1
    assert kit.process().resume("Runner")
    assert not kit.store.resume("Runner")
    assert kit.store.paused() == {}
    assert claimed(kit.store, agent).job_id == "b"


def test_an_unknown_queue_cannot_be_paused(kit: StoreKit) -> None:
    for refused in (lambda: kit.store.pause("Nobody", pause_of(kit)), lambda: kit.store.resume("Nobody")):
        with pytest.raises(UnknownRole):
            refused()
    assert kit.store.paused() == {}


def test_resuming_a_queue_wakes_waiting_workers(kit: StoreKit) -> None:
    agent = worker(kit.store)
    kit.store.enqueue(submission(job_id="a"))
    kit.store.pause("Runner", pause_of(kit))
    assert claim_one(kit.store, agent) is None
    cursor = kit.store.changes(None, role="Runner").cursor
    kit.process().resume("Runner")
    seen = kit.store.changes(cursor, role="Runner", timeout_s=30)
    assert seen.gap, "the worker must list the whole queue"
    assert claimed(kit.store, agent).job_id == "a"


def test_a_paused_queue_has_no_due_time(kit: StoreKit) -> None:
    """A worker that waits for a past due time would wake again and again; this once kept a core busy."""
    agent = worker(kit.store)
    due = kit.clock.now() + timedelta(seconds=5)
    kit.store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    assert claim_one(kit.store, agent) is None
    assert kit.store.next_due("Runner") == due
    kit.store.pause("Runner", pause_of(kit))
    assert kit.store.next_due("Runner") is None
    kit.clock.advance(10)
    assert claim_one(kit.store, agent) is None
    assert kit.store.next_due("Runner") is None
    kit.store.resume("Runner")
    assert claimed(kit.store, agent).job_id == "late"


def test_a_delayed_job_also_waits_for_its_paused_queue(kit: StoreKit) -> None:
    agent = worker(kit.store)
    due = kit.clock.now() + timedelta(seconds=5)
    kit.store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    kit.store.pause("Runner", pause_of(kit))
    kit.clock.advance(10)
    assert claim_one(kit.store, agent) is None
    kit.store.resume("Runner")
    assert claimed(kit.store, agent).job_id == "late"
