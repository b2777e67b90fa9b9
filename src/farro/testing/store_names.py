"""The contract of job names. The fixture `kit` yields a StoreKit."""

from __future__ import annotations

import threading

import pytest

from farro.errors import BadName, NameTaken, UnknownJob
from farro.jobs.states import Status
from farro.queue import find_job
from farro.store.port import Submission
from farro.testing.store_kit import StoreKit, plan, submission


def test_a_name_means_its_present_job(kit: StoreKit) -> None:
    store = kit.store
    assert store.named("nightly") is None
    assert store.names() == {}
    first = store.enqueue_named("nightly", submission(1))
    other = store.enqueue_named("a", submission(2))
    assert kit.process().named("nightly") == first
    assert list(store.names().items()) == [("a", other), ("nightly", first)]
    found = store.find(first)
    assert found is not None
    assert found.status is Status.QUEUED


def test_a_name_is_given_once(kit: StoreKit) -> None:
    first = kit.store.enqueue_named("nightly", submission(1))
    before = kit.snapshot()
    with pytest.raises(NameTaken, match="farro reset --job nightly") as taken:
        kit.process().enqueue_named("nightly", submission(2))
    assert taken.value.job_id == first
    assert kit.snapshot() == before


def test_a_name_passes_to_the_next_job(kit: StoreKit) -> None:
    store = kit.store
    first = store.enqueue_named("nightly", submission(1))
    again = Submission(role="Runner", prompt=plan(1), retry_of=first)
    second = store.enqueue_named("nightly", again, instead_of=first)
    assert store.named("nightly") == second != first
    found = store.find(second)
    assert found is not None
    assert found.lifecycle.retry_of == first
    with pytest.raises(NameTaken):
        store.enqueue_named("nightly", again, instead_of=first)
    with pytest.raises(NameTaken, match="no job has the name"):
        store.enqueue_named("unheard-of", again, instead_of=first)
    assert store.named("nightly") == second


def test_a_name_of_another_form_is_refused(kit: StoreKit) -> None:
    for name in ("", "..", "a/b", ".lock", "a.b", "x" * 65, "con"):
        with pytest.raises(BadName, match="is not a job's name"):
            kit.store.enqueue_named(name, submission(1))
        with pytest.raises(BadName):
            kit.store.named(name)
    assert kit.store.list() == []


def test_a_chosen_id_may_have_a_name_too(kit: StoreKit) -> None:
    assert kit.store.enqueue_named("nightly", submission(1, job_id="mine")) == "mine"
    assert kit.store.named("nightly") == "mine"


def test_of_many_concurrent_submitters_one_gets_the_name(kit: StoreKit) -> None:
    stores = [kit.process() for _ in range(6)]
    got: list[str] = []
    refused: list[NameTaken] = []

    def want(number: int) -> None:
        try:
            got.append(stores[number].enqueue_named("nightly", submission(number)))
        except NameTaken as taken:
            refused.append(taken)

    threads = [threading.Thread(target=want, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 5)
    assert [view.job_id for view in kit.store.list()] == got


def test_an_unknown_full_id_is_reported_without_scanning_all_jobs(
    kit: StoreKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [kit.store.enqueue(submission(number)) for number in range(3)]
    for query in ("entries", "list", "ids"):
        monkeypatch.setattr(kit.store, query, lambda *args, **options: pytest.fail("all jobs were looked at"))
    other = f"{known[0][:-4]}{'0000' if known[0][-4:] != '0000' else '1111'}"
    with pytest.raises(UnknownJob, match=other):
        find_job.resolve(kit.store, other)
    assert find_job.resolve(kit.store, known[1]) == known[1]
