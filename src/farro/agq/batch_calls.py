"""Claim and commit jobs in the store, for many workers at once. These calls run in the batcher's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from farro.agq import memo_jobs
from farro.agq.batcher import each
from farro.agq.roster import AgentKind, ClaimingAgent
from farro.errors import AgentLost, BadDocument, FarroError, Lost, SyncFailed
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.plans.memo import PostedResult
from farro.store.port import Agent, AttemptResult, Claim, Store, commit_one


class ClaimRequest(NamedTuple):
    kind: AgentKind
    claimer: ClaimingAgent | None  # an idle one, if there is one
    limit: int
    batch: bool  # most of the jobs end soon


class ClaimedJobs(NamedTuple):
    claimer: ClaimingAgent
    jobs: list[tuple[Claim, bytes]]  # each with its text


class CommitRequest(NamedTuple):
    claim: Claim
    posted: PostedResult
    document: Mapping[str, Any]
    worker: str | None


class ClaimCalls:
    def __init__(self, store: Store) -> None:
        self._store = store

    # --- claims ---

    def claim_all(self, requests: list[ClaimRequest]) -> list[ClaimedJobs | Exception]:
        return each([partial(self._claim, request) for request in requests])

    def _claim(self, request: ClaimRequest) -> ClaimedJobs:
        agent = None if request.claimer is None else request.claimer.agent
        for again in (True, False):
            if agent is None:
                name, role, tags = request.kind
                agent = self._store.join(name, role=role, tags=tags)
            try:
                jobs = self._claim_jobs(agent, request.limit if request.batch else 1)
            except BaseException as error:
                self.leave(agent)  # a watchdog recovers what it may have claimed
                agent = None
                if not (again and isinstance(error, AgentLost)):
                    raise
                continue
            claimer = request.claimer
            if claimer is None or claimer.agent is not agent:
                claimer = ClaimingAgent(agent=agent, kind=request.kind)
            claimer.batch = request.batch
            return ClaimedJobs(claimer, jobs)
        raise AssertionError("unreachable")

    def _claim_jobs(self, agent: Agent, limit: int) -> list[tuple[Claim, bytes]]:
        while True:
            claims = self._store.claim(agent, limit)
            jobs: list[tuple[Claim, bytes]] = []
            for claim in claims:
                try:
                    jobs.append((claim, memo_jobs.job_text(claim)))
                except BadDocument as error:
                    commit_one(self._store, claim, memo_jobs.bad_prompt(claim, error))
            if jobs or not claims:
                return jobs

    # --- commits ---

    def commit_all(self, requests: list[CommitRequest]) -> list[Exception | None]:
        """Commit each request; return None for each that is committed as durably as the store promises, else
        the error."""
        answers: list[Exception | None] = [None] * len(requests)
        ready: dict[int, AttemptResult] = {}
        for at, request in enumerate(requests):
            try:
                outcome = memo_jobs.outcome(request.claim, request.posted, request.document, worker=request.worker)
                ready[at] = AttemptResult(request.claim, outcome)
            except Exception as error:  # noqa: BLE001 - concerns this request only
                answers[at] = error
        try:
            committed: Sequence[Lifecycle | Exception] = self._store.commit([*ready.values()]).answers
        except SyncFailed as error:
            committed = [error] * len(ready)
        for (at, result), answer in zip(ready.items(), committed, strict=True):
            if isinstance(answer, Exception) and not (isinstance(answer, Lost) and self._is_committed(result.claim)):
                answers[at] = answer
        return answers

    def _is_committed(self, claim: Claim) -> bool:
        """Return whether exactly this attempt ended the job: by an earlier call whose answer was lost."""
        view = self._store.find(claim.job_id)
        mine = claim.envelope.lifecycle
        return (
            view is not None
            and view.status in (Status.SUCCEEDED, Status.FAILED)
            and (view.lifecycle.attempt, view.lifecycle.correlation_id) == (mine.attempt, mine.correlation_id)
        )

    def record_claims(self, claims: Sequence[Claim]) -> None:
        """Make claims that last longer visible in the store."""
        for claim in claims:
            with contextlib.suppress(FarroError):  # the next heartbeat reports lost claims
                self._store.heartbeat(claim.agent, claim)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand back jobs that were not begun, to their old positions."""
        self._store.hand_back(claims)

    def leave(self, agent: Agent) -> None:
        with contextlib.suppress(FarroError):
            self._store.leave(agent)
