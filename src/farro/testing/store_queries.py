"""The contract of the Store port's queries, and of removing jobs. The fixture `kit` yields a StoreKit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farro.errors import Refused
from farro.jobs import places
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import FINISHED, Status
from farro.store.port import Agent, Claim, JobView, Store, commit_one
from farro.testing.store_kit import StoreKit, plan, report, submission


def claim_next(store: Store, agent: Agent) -> Claim:
    (claim,) = store.claim(agent, 1)
    return claim


def succeed(store: Store, job_id: str) -> None:
    """Work the next job of the queue, which must be this one."""
    agent = store.join("worker", role="Runner")
    claim = claim_next(store, agent)
    assert claim.job_id == job_id
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.leave(agent)


def seen(store: Store, job_id: str) -> JobView:
    view = store.find(job_id)
    assert view is not None
    return view


def a_job_in_every_place(store: Store) -> dict[str, str]:
    """Return the ids of a job in each place in which the next call of another process may find one."""
    made = {"done": store.enqueue(submission(1, job_id="done"))}
    succeed(store, "done")
    made["running"] = store.enqueue(submission(2, job_id="running"))
    claim_next(store, store.join("busy", role="Runner"))
    made["queued"] = store.enqueue(submission(3, job_id="queued"))
    made["waiting"] = store.enqueue(submission(4, job_id="waiting", metadata={"after": ["queued"]}))
    boss = store.join("boss", role=None)
    store.enqueue(submission(5, job_id="killed", role="CodeReviewer"))
    store.kill(boss, "killed")
    made["killed"] = "killed"
    return made


def test_a_healthy_store_is_ready(kit: StoreKit) -> None:
    kit.store.check_ready()


def test_a_job_is_found_wherever_it_was_last_seen(kit: StoreKit) -> None:
    made = a_job_in_every_place(kit.store)
    every_place = [seen(kit.store, job_id).place for job_id in made.values()]
    for job_id in made.values():
        for place in (*every_place, "nowhere", "../etc"):
            assert kit.store.find(job_id, place=place) == kit.store.find(job_id)
    assert kit.store.find("absent", place=every_place[0]) is None


def test_entries_are_the_jobs_that_list_returns(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    for store in (kit.store, kit.process()):
        entries = {entry.job_id: entry for entry in store.entries()}
        views = {view.job_id: view for view in store.list()}
        assert entries.keys() == views.keys()
        for job_id, view in views.items():
            entry = entries[job_id]
            assert (entry.place, entry.status) == (view.place, view.status)
            assert entry.role in (view.lifecycle.role, None)
            assert entry.lifecycle() == view.lifecycle
            assert entry.changed_at_s() > 0
        assert entries["queued"].role == "Runner"
        assert entries["waiting"].role is None


def test_entries_are_of_the_roles_and_statuses_asked_for(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    assert {entry.job_id for entry in kit.store.entries(statuses=FINISHED)} == {"done", "killed"}
    assert {entry.job_id for entry in kit.store.entries(roles=["Runner"], statuses=FINISHED)} == {"done"}
    queued = {entry.job_id for entry in kit.store.entries(roles=["CodeReviewer"], statuses=[Status.QUEUED])}
    assert queued <= {"waiting"}, "only what all roles share may come for another role"
    assert list(kit.store.entries(roles=[])) == [] or all(entry.role is None for entry in kit.store.entries(roles=[]))


def test_ids_are_found_by_their_beginning(kit: StoreKit) -> None:
    minted = [kit.store.enqueue(submission(number)) for number in range(3)]
    kit.store.enqueue(submission(job_id="alpha-one"))
    kit.store.enqueue(submission(job_id="alpha-two"))
    store = kit.process()
    assert set(minted) <= set(store.ids(minted[0][:12]))
    assert {"alpha-one", "alpha-two"} <= set(store.ids("alpha"))
    assert not [found for found in store.ids("beta") if found.startswith("beta")]


def test_waiting_jobs_are_listed_apart(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    (entry,) = kit.process().waiting()
    assert (entry.job_id, entry.place, entry.status) == ("waiting", places.WAITING, Status.QUEUED)
    succeed(kit.store, "queued")
    assert list(kit.store.waiting()) == []


def test_prompts_are_read_together(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    store = kit.process()
    numbers = {"done": 1, "running": 2, "queued": 3, "killed": 5}
    found = store.prompts(store.list())
    assert {job_id: found[job_id] for job_id in numbers} == {job_id: plan(number) for job_id, number in numbers.items()}
    assert found == store.prompts(list(store.entries()))
    assert store.prompts([]) == {}


def test_jobs_ahead_are_those_that_entered_before(kit: StoreKit) -> None:
    made = []
    for number in range(3):
        made.append(kit.store.enqueue(submission(number)))
        kit.clock.advance(1)
    kit.store.enqueue(submission(role="CodeReviewer"))
    assert [kit.store.ahead(seen(kit.store, job_id)) for job_id in made] == [0, 1, 2]
    succeed(kit.store, made[0])
    assert [kit.store.ahead(seen(kit.store, job_id)) for job_id in made[1:]] == [0, 1]


def test_queue_counts_agree_with_the_list(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    for store in (kit.store, kit.process()):
        counts = store.queue_counts()
        assert {status: counts.total(status) for status in (Status.IN_PROGRESS, *FINISHED)} == {
            Status.IN_PROGRESS: 1,
            Status.SUCCEEDED: 1,
            Status.FAILED: 0,
            Status.KILLED: 1,
        }
        assert counts.total(Status.QUEUED) + counts.waiting == 2
        assert (counts.stale, counts.passing, counts.quarantined) == (0, 0, 0)
        assert counts.roles["CodeReviewer"][Status.KILLED] == 1
    succeed(kit.store, "queued")
    assert kit.store.queue_counts().total(Status.SUCCEEDED) == 2


def test_the_folder_of_a_running_job(kit: StoreKit) -> None:
    kit.store.enqueue(submission(job_id="running"))
    claim = claim_next(kit.store, kit.store.join("w", role="Runner"))
    folder = kit.store.folder(seen(kit.store, "running"))
    if kit.store.live_folders:
        assert os.path.samefile(os.path.dirname(os.path.dirname(claim.folder)), folder)


def test_the_newest_entries_come_first(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    newest = list(kit.store.newest())
    assert {entry.job_id for entry in newest} == {entry.job_id for entry in kit.store.entries()}
    times = [entry.changed_at_s() for entry in newest]
    assert times == sorted(times, reverse=True)
    assert {entry.job_id for entry in kit.store.newest(statuses=FINISHED)} == {"done", "killed"}


# --- archiving ---------------------------------------------------------------------------------------------------


def test_finished_jobs_are_archived_or_it_is_refused(kit: StoreKit, tmp_path: Path) -> None:
    made = a_job_in_every_place(kit.store)
    kit.store.close()
    store = kit.process()
    views = {job_id: seen(store, job_id) for job_id in made.values()}
    ended = {"done", "killed"}
    try:
        done = store.archive(list(views.values())).jobs
    except Refused:
        done = 0
        for call in (lambda: store.archive([]), lambda: store.export([], str(tmp_path))):
            with pytest.raises(Refused, match="farro prune"):
                call()
    else:
        assert done == len(ended)
        assert {entry.job_id for entry in store.entries() if entry.archived} == ended
        assert ended.isdisjoint(entry.job_id for entry in store.entries(archived=False))
        assert store.export(list(views.values()), str(tmp_path)) == len(ended)
        assert (tmp_path / views["done"].place / "done" / "job.json").is_file()
    for other in (store, kit.process()):
        assert {job_id: seen(other, job_id) for job_id in views} == views
        assert {view.job_id for view in other.list(statuses=FINISHED)} == ended


# --- removing ----------------------------------------------------------------------------------------------------


def test_removed_jobs_are_gone_with_their_ids_and_names(kit: StoreKit) -> None:
    kit.store.enqueue_named("nightly", submission(1, job_id="chosen"))
    kit.store.enqueue(submission(2, job_id="kept"))
    succeed(kit.store, "chosen")
    kit.store.close()
    store = kit.process()
    done: list[tuple[int, int]] = []
    view = seen(store, "chosen")
    assert store.remove([view], by="pruner", progress=lambda count, total: done.append((count, total))).jobs == 1
    assert done[-1] == (1, 1)
    for other in (store, kit.process()):
        assert other.find("chosen") is None
        assert (other.named("nightly"), dict(other.names())) == (None, {})
        assert [found.job_id for found in other.list()] == ["kept"]
        assert [entry.job_id for entry in other.entries()] == ["kept"]
    assert store.remove([view], by="pruner").jobs == 0, "it is gone"
    assert store.enqueue_named("nightly", submission(3, job_id="chosen")) == "chosen", "both are free again"


def test_a_job_that_is_not_final_is_not_removed(kit: StoreKit) -> None:
    made = a_job_in_every_place(kit.store)
    kit.store.close()
    store = kit.process()
    ended = {"done", "killed"}
    views = [seen(store, job_id) for job_id in made.values()]
    before = [view for view in views if view.job_id not in ended]
    assert store.remove(before, by="pruner").jobs == 0
    assert [seen(store, view.job_id) for view in before] == before
    assert store.remove(views, by="pruner").jobs == len(ended)
    assert {view.job_id for view in store.list()} == made.keys() - ended


def test_the_size_of_jobs_is_known_or_none(kit: StoreKit) -> None:
    a_job_in_every_place(kit.store)
    size = kit.store.size_bytes(kit.store.list())
    assert size is None or size > len(str(plan()))
    assert kit.store.size_bytes([]) in (0, None)
