"""The overview of `farro watch` on the file store counts queued jobs without listing them."""

from __future__ import annotations

from pathlib import Path

import pytest

import stage
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Status
from farro.queue.watch import Viewer
from farro.store.port import Submission
from one_job import claim_one, commit_one


def test_watching_counts_queued_jobs_without_listing_them(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(shm / "root")
    store = stage.open_files(stage.make(root))
    first, *_ = store.enqueue_many([Submission(role="Runner", prompt=stage.plan(number)) for number in range(4)])
    store.enqueue(stage.submission(9, job_id="dependent", metadata={"after": [first.id]}))
    worker = store.join("ann", role="Runner")
    claim = claim_one(store, worker)
    assert claim is not None
    looked_for: list[object] = []
    entries = store.entries

    def listed(*, statuses: object = None, **more: object) -> object:
        looked_for.append(statuses)
        return entries(statuses=statuses, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "entries", listed)
    viewer = Viewer(store, SystemClock())
    overview = viewer.overview(SystemClock().now())
    assert overview.counts == {"Runner": {Status.QUEUED: 3, Status.IN_PROGRESS: 1}, "-": {Status.QUEUED: 1}}
    assert (overview.running_total, overview.alive) == (1, {"Runner": 1})
    assert not [asked for asked in looked_for if asked is None or Status.QUEUED in asked]  # type: ignore[operator]
    commit_one(store, claim, Succeeded(report=stage.report(claim)))  # and its dependent is queued
    assert viewer.overview(SystemClock().now()).counts == {"Runner": {Status.QUEUED: 4, Status.SUCCEEDED: 1}}
    store.close()
