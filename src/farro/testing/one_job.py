"""Claim and commit jobs through the batch port: most tests depend on its form only here."""

from __future__ import annotations

from collections.abc import Sequence

from farro.errors import FarroError
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Outcome, Released
from farro.jobs.states import Reason, Status
from farro.store.port import AttemptResult, Claim, WorkerStore, claim_one, commit_one

__all__ = ["claim_one", "commit_all", "commit_one", "release_one", "route_one"]


def commit_all(store: WorkerStore, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | FarroError]:
    """Commit a batch; return the answer for each job."""
    return store.commit([AttemptResult(claim, outcome) for claim, outcome in ended]).answers


def route_one(store: WorkerStore, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
    """Commit, but send the job on to `role` whatever its routing says."""
    return commit_one(store, claim, outcome, Move(reason=Reason.ROUTED, status=Status.QUEUED, role=role, note=note))


def release_one(store: WorkerStore, claim: Claim, note: str = "") -> Lifecycle:
    """Hand the job back unfinished; this does not count as an attempt."""
    return commit_one(store, claim, Released(note=note))
