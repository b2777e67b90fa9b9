"""Waiting for jobs to end: told by the change feed, checked by a bounded rescan. What is printed lives in cli.

A job has ended when nothing moves it on any more: a failed one that is not final is still waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farro.kernel.envelope import Lifecycle
from farro.kernel.states import Status
from farro.late import dataclass
from farro.operations import tree
from farro.ports.clock import Clock
from farro.ports.store import Store

RESCAN_S = 2.0  # the feed may lose changes, and tells nothing of a job that somebody removed
_FEW = 64  # jobs that are looked up one by one; more are found by listing what is finished


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    job_id: str
    lifecycle: Lifecycle | None  # None: it is not there any more

    @property
    def good(self) -> bool:
        return self.lifecycle is not None and self.lifecycle.status is Status.SUCCEEDED


def ends(
    store: Store, root: str, job_ids: Sequence[str], *, clock: Clock, timeout_s: float | None = None
) -> Iterator[Ended]:
    """Each of the jobs as it ends; over when all have ended, or after `timeout_s`."""
    cursor = store.changes(None).cursor  # before the first look, so that nothing falls between
    deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    left = dict.fromkeys(job_ids)
    rescan_at_s = clock.monotonic_s()
    suspects: list[str] = []
    missed: set[str] = set()  # not found at the last look; a job on the move can be overlooked once
    while left:
        if clock.monotonic_s() >= rescan_at_s:
            began_s = clock.monotonic_s()
            suspects = _suspects(store, root, list(left))
            # A look at everything may be dear; it may not become what this process does all day.
            took_s = clock.monotonic_s() - began_s
            rescan_at_s = clock.monotonic_s() + max(RESCAN_S, 20 * took_s)
        for job_id in suspects:
            view = store.find(job_id)
            if view is None and job_id not in missed:
                missed.add(job_id)
                rescan_at_s = clock.monotonic_s() + 0.05
            elif view is None or view.lifecycle.terminal:
                del left[job_id]
                yield Ended(job_id=job_id, lifecycle=None if view is None else view.lifecycle)
        if not left:
            return
        now_s = clock.monotonic_s()
        if deadline_s is not None and now_s >= deadline_s:
            return
        wait_s = rescan_at_s - now_s if deadline_s is None else min(rescan_at_s, deadline_s) - now_s
        changes = store.changes(cursor, timeout_s=max(0.0, wait_s))
        cursor = changes.cursor
        if changes.gap:
            rescan_at_s = min(rescan_at_s, clock.monotonic_s() + 0.05)  # never without a pause: some feeds only poll
        suspects = list(dict.fromkeys(change.job_id for change in changes.items if change.job_id in left))


def _suspects(store: Store, root: str, job_ids: list[str]) -> list[str]:
    """Which of them may have ended."""
    if len(job_ids) <= _FEW:
        return job_ids
    alive = {entry.job_id for entry in tree.entries(store, {Status.QUEUED, Status.IN_PROGRESS, Status.STALE})}
    return [job_id for job_id in job_ids if job_id not in alive]
