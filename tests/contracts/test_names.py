"""The contract of job names, for every store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from contracts.adapters import Files
from farro.errors import UnknownJob
from farro.host import fs
from farro.jobs.states import Status
from farro.queue import find_job
from farro.store.port import Submission
from farro.testing.store_names import *  # noqa: F403 - the suite
from one_job import claim_one
from stage import plan, submission, work_one


def test_a_pruned_job_frees_its_name(files: Files) -> None:
    store = files.process()
    first = store.enqueue_named("nightly", submission(1))
    kept = store.enqueue_named("kept", submission(2))
    worker = store.join("w", role="Runner")
    claim = claim_one(store, worker)
    assert claim is not None
    assert claim.job_id == first
    operator = store.join("o", role=None)
    store.kill(operator, first)
    files.close()
    store = files.process()
    operator = store.join("o", role=None)
    with store.trash() as trash:
        view = store.find(first)
        assert view is not None
        assert trash.take(first, view.place)
        assert store.named("nightly") is None
        for name in trash.names():
            trash.remove(name)
    assert dict(store.names()) == {"kept": kept}
    assert os.path.lexists(f"{files.root}/jobs/.names/kept")
    assert not os.path.lexists(f"{files.root}/jobs/.names/nightly")
    assert store.enqueue_named("nightly", submission(3)) == store.named("nightly")


def test_a_root_of_an_older_farro_gets_a_folder_for_names(files: Files) -> None:
    os.rmdir(f"{files.root}/jobs/.names")
    assert files.store.names() == {}
    assert files.store.enqueue_named("nightly", submission(1)) == files.store.named("nightly")


@pytest.mark.parametrize("kind", ["nowhere", "garbage", "folder"])
def test_a_planted_link_names_no_job(files: Files, kind: str) -> None:
    path = f"{files.root}/jobs/.names/nightly"
    if kind == "folder":
        os.mkdir(path)
    else:
        os.symlink("job-that-is-not-there" if kind == "nowhere" else "../../etc/x", path)
    assert files.store.named("nightly") is None
    assert files.store.names() == {}
    if kind != "folder":
        assert files.store.enqueue_named("nightly", submission(1)) == files.store.named("nightly")


def test_a_named_job_runs_like_any_other(files: Files) -> None:
    from stage import History

    job_id = files.store.enqueue_named("nightly", submission(1))
    worker = files.store.join("w", role="Runner")
    assert work_one(files.store, worker, History())
    view = files.store.find(job_id)
    assert view is not None
    assert view.status is Status.SUCCEEDED
    assert files.store.named("nightly") == job_id


def test_an_id_that_farro_did_not_mint_is_searched_among_the_chosen_ids(files: Files) -> None:
    """The folders of finished jobs are not listed, however many there are."""
    store = files.store
    store.enqueue_many([submission(number) for number in range(3)])
    store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="alpha-one"))
    minted = store.enqueue(submission(9))
    listed: list[str] = []

    class Looks:
        def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            return call(*args)

        def look(self, op: str, path: str) -> None:
            if op == "list":
                listed.append(path)

    fs.set_seam(Looks())
    try:
        assert find_job.resolve(store, "alpha") == "alpha-one"
        with pytest.raises(UnknownJob, match="did you mean alpha-one"):
            find_job.resolve(store, "alpha-once")
        with pytest.raises(UnknownJob):
            find_job.resolve(store, "nope")
        assert not [path for path in listed if path.endswith(("/incoming", "/succeeded", "/failed", "/killed"))]
        assert find_job.resolve(store, minted[:-1]) == minted, "a prefix of a minted id is searched for"
        assert [path for path in listed if path.endswith("/incoming")]
    finally:
        fs.set_seam(None)
