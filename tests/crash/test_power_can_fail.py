"""Prove that the power suites can fail: without any one sync, the model finds a state that breaks the promise.

The sync is removed from the recording, because a sync only affects what a cut keeps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from crash import blocklog, powerplays
from crash.powermodel import Order, Synced, states
from crash.powerplays import Broken, Play, check, record

LIMIT = 3_000  # states; most syncs are missed within a hundred

JOB = r"agents/\w+/in-progress/[^/]+/[^/]+"


@dataclass(frozen=True, kw_only=True)
class Without:
    """One kind of sync, and the play and the disk that need it."""

    what: str
    pattern: str
    play: Callable[[Play], None]
    order: Order = Order.BORN
    acknowledged: bool = False  # cut only right after acknowledgements: a disk without order promises no more
    nth: int | None = None  # only the n-th match, from 1
    journal: bool = False


# Not listed, because no state needs them: syncs of the destination of a move that carries out a decision (completed/,
# the next incoming/, jobs/stale, jobs/outbox). The decision is durable in the agent's folder; recovery rolls it
# forward.
WITHOUT = (
    Without(what="folders of a new root", pattern=r"agents/Runner/completed", play=powerplays.initiated),
    Without(what="prompt", pattern=r"\.staging/[^/]+/prompt\.json", play=powerplays.minted),
    Without(what="narrative", pattern=r"\.staging/[^/]+/prompt\.md", play=powerplays.minted),
    Without(what="payload file", pattern=r"\.staging/[^/]+/payload/.+", play=powerplays.minted),
    Without(what="payload folder", pattern=r"\.staging/[^/]+/payload", play=powerplays.minted),
    Without(what="first job.json", pattern=r"\.staging/[^/]+/job\.json", play=powerplays.delayed),
    Without(what="staged folder", pattern=r"\.staging/[^/]+", play=powerplays.minted),
    Without(what="incoming", pattern=r"incoming", play=powerplays.minted),
    Without(what="incoming, chosen id", pattern=r"incoming", play=powerplays.chosen),
    Without(what="incoming, of the second submitter", pattern=r"incoming", play=powerplays.resubmitted),
    # On the promised disks a sync of the staged folder keeps its creation too: this one is for a disk without order.
    Without(what="staging, chosen id", pattern=r"\.staging", play=powerplays.chosen, order=Order.PLACELESS),
    Without(what="registry", pattern=r"\.ids", play=powerplays.chosen),
    Without(what="registry, of the second submitter", pattern=r"\.ids", play=powerplays.resubmitted, nth=1),
    Without(what="agent's folder at join", pattern=r"in-progress", play=powerplays.failed),
    Without(what="holder's folder at join", pattern=r"jobs/\.held", play=powerplays.stale),
    Without(what="result.json", pattern=r".*/result\.json", play=powerplays.succeeded),
    Without(what="result.md", pattern=r".*/result\.md", play=powerplays.succeeded),
    Without(what="error.md", pattern=r".*/error\.md", play=powerplays.failed),
    Without(what="file of a step", pattern=r".*/stdout", play=powerplays.succeeded),
    Without(what="folder of a step", pattern=r".*/steps/1", play=powerplays.succeeded),
    Without(
        what="folder above it", pattern=r".*/steps", play=powerplays.succeeded, order=Order.PLACELESS, acknowledged=True
    ),
    Without(
        what="folder high above a file",
        pattern=r".*/out",
        play=powerplays.succeeded,
        order=Order.PLACELESS,
        acknowledged=True,
    ),
    Without(what="attempt's folder", pattern=r".*/attempts/\d+", play=powerplays.succeeded),
    Without(
        what="attempts", pattern=r".*/attempts", play=powerplays.succeeded, order=Order.PLACELESS, acknowledged=True
    ),
    Without(what="the claim's move, at commit", pattern=r"agents/\w+/in-progress/[^/]+", play=powerplays.succeeded),
    Without(what="the holder's move, at its decision", pattern=r"jobs/\.held/[^/]+", play=powerplays.operated),
    Without(what="job.json of the decision", pattern=rf"{JOB}/\.tmp-.*", play=powerplays.succeeded),
    Without(what="job.json of a holder's decision", pattern=r"jobs/\.held/.*/\.tmp-.*", play=powerplays.stale),
    Without(
        what="job.json of a later claim", pattern=r"agents/CodeReviewer/.*/\.tmp-.*", play=powerplays.routed, nth=1
    ),
    Without(what="job.json of a repetition's claim", pattern=rf"{JOB}/\.tmp-.*", play=powerplays.delayed, nth=1),
    Without(what="job's folder", pattern=JOB, play=powerplays.succeeded),
    Without(what="job's folder, marked stale", pattern=JOB, play=powerplays.unroutable),
    Without(what="job's folder, of a holder", pattern=r"jobs/\.held/[^/]+/[^/]+", play=powerplays.operated),
    Without(what="list of children", pattern=r".*/outbox/\d+\.json", play=powerplays.children),
    Without(what="its folder", pattern=rf"{JOB}/outbox", play=powerplays.children),
    Without(what="its folder, list forgotten", pattern=rf"{JOB}/outbox", play=powerplays.recommitted),
    Without(what="record of an enqueue", pattern=r"\.journal/.*", play=powerplays.minted, journal=True),
    Without(what="record begun ahead", pattern=r"\.journal/.*", play=powerplays.streamed, journal=True, nth=-1),
    Without(what="record of a commit", pattern=r"\.journal/.*", play=powerplays.succeeded, journal=True, nth=-1),
    Without(what="name of the journal's file", pattern=r"jobs/\.journal", play=powerplays.minted, journal=True),
    Without(what="the folders of a freed journal", pattern=r"everything", play=powerplays.rotated, journal=True),
)


@pytest.mark.parametrize("without", WITHOUT, ids=lambda without: without.what.replace(" ", "_"))
def test_a_missing_sync_is_noticed(without: Without, shm: Path) -> None:
    recorded = record(without.play, str(shm / "root"), journal=without.journal)
    matching = [
        entry
        for entry in recorded.log.entries
        if isinstance(entry, Synced) and re.fullmatch(rf"(.*/)?{without.pattern}", entry.what)
    ]
    dropped = matching if without.nth is None else matching[without.nth :][:1] if without.nth < 0 else matching
    dropped = dropped if without.nth is None or without.nth < 0 else matching[without.nth - 1 : without.nth]
    assert dropped, f"no such sync: {[e.what for e in recorded.log.entries if isinstance(e, Synced)]}"
    log = recorded.log.without_syncs(lambda entry: any(entry is one for one in dropped))
    cuts = recorded.log.told() if without.acknowledged else None
    found = states(log, seed=1, randoms=3, order=without.order, cuts=cuts)
    for count, state in enumerate(found, 1):
        try:
            check(state, recorded, str(shm / f"state-{os.getpid()}"))
        except Broken:
            return
        assert count < LIMIT, f"no state of {count} needs the sync of {without.what}"
    pytest.fail(f"no state needs the sync of {without.what}")


def test_without_any_sync_real_disks_lose_work(shm: Path) -> None:
    """Durability `process` on a replayed ext4: the replay notices."""
    blocklog.able("ext4")
    found = blocklog.in_namespace(["ext4", "--states", "60", "--process"], folder=str(shm), timeout_s=100)
    assert any("LOST" in trouble for trouble in found["broken"]), found
