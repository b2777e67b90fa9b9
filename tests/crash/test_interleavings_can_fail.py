"""Prove that the interleaving tests can fail: without any one safeguard, the scheduler finds a broken guarantee."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crash.interleaved import SCENARIOS, Scenario, Violation, explore, replay
from crash.scheduler import theatre
from farro.errors import ClaimLost, FarroError
from farro.host import fs, leases
from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo, Outcome
from farro.jobs.states import Reason, Status
from farro.store.files import claim, decisions, dispatch, draft, recover, submit
from farro.store.files import commit as commit_module
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import MoveResult, try_move
from farro.store.port import AttemptResult, Claim, RecoveryAction

pytestmark = pytest.mark.linux

DIED = ErrorInfo(category="agent_died", message="agent nobody died")
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
Breaker = Callable[[pytest.MonkeyPatch], None]


# --- the safeguards, each taken out ------------------------------------------------------------------------------


def plain_rename(patch: pytest.MonkeyPatch) -> None:
    """Rename without NOREPLACE, which silently replaces an empty folder."""
    patch.setattr(fs, "move", lambda source, path: fs._perform("move", os.rename, source, path))


def check_then_rename(patch: pytest.MonkeyPatch) -> None:
    """Check the destination and rename in two calls, so that another process can act between them."""

    def move(source: str, path: str) -> None:
        if fs.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, path)
        fs._perform("move", os.rename, source, path)

    patch.setattr(fs, "move", move)


def read_before_move(patch: pytest.MonkeyPatch) -> None:
    """Let recovery read a job before it moves it, while the worker can still write."""

    def job(
        context: FilesContext, owner: LocalAgent, folder: str, agent: str, job_id: str, role: str | None
    ) -> list[RecoveryAction]:
        try:
            seen = folders.read_lifecycle(f"{folder}/{job_id}")
        except FileNotFoundError:
            return []
        path = f"{owner.folder}/{job_id}"
        if try_move(f"{folder}/{job_id}", path) is not MoveResult.DONE:
            return []
        if moves.is_decided(seen, folders.highest_attempt(path)):
            commit_module.carry_out(context, owner, path, seen)
        else:
            move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=seen.role, error=DIED)
            commit_module.decide(context, owner, path, replace(seen, status=Status.IN_PROGRESS), move)
        return []

    patch.setattr(recover, "_job", job)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """Treat every agent as dead."""
    patch.setattr(leases, "take", lambda path: leases.Lease(fs.open_read(path)))


def commit_ignores_the_fence(patch: pytest.MonkeyPatch) -> None:
    """Let a commit treat ENOENT as success. That is right only for its last move, when recovery carries out the written
    decision; before the decision is written it is wrong."""
    commit = commit_module.commit

    def careless(context: FilesContext, results: Sequence[AttemptResult]) -> list[Lifecycle | FarroError]:
        return [
            _as_if_committed(context, *result) if isinstance(answer, ClaimLost) else answer
            for result, answer in zip(results, commit(context, results), strict=True)
        ]

    patch.setattr(commit_module, "commit", careless)


def _as_if_committed(context: FilesContext, claim: Claim, outcome: Outcome, move: Move | None) -> Lifecycle:
    before = claim.envelope.lifecycle
    wanted = moves.after(before, outcome, context.policy.retry, context.uniform, attempt=claim.attempt)
    return moves.decided(before, wanted, by=claim.agent.id, attempt=claim.attempt, now=context.clock.now())


def kill_over_a_decision(patch: pytest.MonkeyPatch) -> None:
    """Let an operator's command ignore that the job is already decided."""
    blind = {**vars(moves), "is_decided": lambda lifecycle, highest: False}
    patch.setattr(decisions, "moves", SimpleNamespace(**blind))


def claim_trusts_its_look(patch: pytest.MonkeyPatch) -> None:
    """Let a claim trust what it read before its move, without checking again."""
    file_identity = claim.file_identity

    def never_changed(path: str) -> tuple[int, int, int]:
        return (0, 0, file_identity(path)[2]) if "/incoming/" in path else (0, 0, 0)

    patch.setattr(claim, "file_identity", never_changed)
    begin = claim._begin

    def trusting(context: FilesContext, owner: LocalAgent, path: str, job: Any, *, in_batch: bool = False) -> Any:
        job.identity = (0, 0, 0)
        return begin(context, owner, path, job, in_batch=in_batch)

    patch.setattr(claim, "_begin", trusting)


def shared_id(patch: pytest.MonkeyPatch) -> None:
    """Make the registry of chosen ids non-exclusive: each submitter publishes its own copy."""
    patch.setattr(submit, "_register", lambda context, item, gone_is_done: None)


def children_of_the_undecided(patch: pytest.MonkeyPatch) -> None:
    """Deliver a sealed list of children even if another attempt was decided."""
    patch.setattr(dispatch, "_DELIVERING", frozenset(Reason))


def staging_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    """Let a submitter of a chosen id continue although clean-up has taken its folder."""
    patch.setattr(draft.leases, "FOLDERS", False)


MUTANTS: dict[str, tuple[Breaker, str]] = {
    "NOREPLACE": (plain_rename, "a stranger's folder"),
    "NOREPLACE in one call": (check_then_rename, "a stranger's folder"),
    "move before read": (read_before_move, "a watchdog and a zombie"),
    "the lease": (no_lease, "workers and a watchdog"),
    "ENOENT is the fence": (commit_ignores_the_fence, "an operator kills"),
    "a decision stands": (kill_over_a_decision, "an operator kills"),
    "checks are repeated after the move": (claim_trusts_its_look, "a flaky job"),
    "the id registry": (shared_id, "one id, two submitters"),
    "staging is locked": (staging_without_a_lock, "one id, two submitters"),
    "the sealed outbox": (children_of_the_undecided, "an operator kills a parent"),
}


@pytest.mark.parametrize("safeguard", MUTANTS)
def test_without_a_safeguard_an_interleaving_breaks_the_promise(
    safeguard: str, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, name = MUTANTS[safeguard]
    with monkeypatch.context() as patch:
        breaker(patch)
        found = first_violation(BY_NAME[name], str(shm))
    assert found is not None, f"nothing was found without: {safeguard}"
    assert "again: crash.interleaved.replay(" in found
    schedule = found.rsplit(", '", 1)[1].split("'")[0]
    with monkeypatch.context() as patch:
        breaker(patch)
        with pytest.raises(Violation):
            replay(name, schedule, str(shm / "again"))
    replay(name, schedule, str(shm / "whole"))  # with the safeguard in place the same schedule passes


def first_violation(scenario: Scenario, folder: str) -> str | None:
    with theatre():
        try:
            explore(scenario, folder, floor=0, sampled=4000, seeds=2000)
        except Violation as violation:
            return str(violation)
    return None
