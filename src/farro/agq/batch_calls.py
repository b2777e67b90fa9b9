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
from farro.jobs.outcomes import Failed, Succeeded
from farro.jobs.states import Status
from farro.plans.memo import PostedResult
from farro.store.port import Agent, BatchStore, Claim, Store


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
        self._batch_store = store if isinstance(store, BatchStore) else None

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
                jobs = self._claim_jobs(agent, request.limit, request.batch)
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

    def _claim_jobs(self, agent: Agent, limit: int, batch: bool) -> list[tuple[Claim, bytes]]:
        while True:
            claims: Sequence[Claim]
            if batch and self._batch_store is not None:
                claims = self._batch_store.claim_batch(agent, limit)
            else:
                claim = self._store.claim(agent)
                claims = () if claim is None else (claim,)
            jobs: list[tuple[Claim, bytes]] = []
            for claim in claims:
                try:
                    jobs.append((claim, memo_jobs.job_text(claim)))
                except BadDocument as error:
                    self._store.commit(claim, memo_jobs.bad_prompt(claim, error))
            if jobs or not claims:
                return jobs

    # --- commits ---

    def commit_all(self, requests: list[CommitRequest]) -> list[Exception | None]:
        """Commit each request; return None for each that is committed as durably as the store promises, else
        the error."""
        answers: list[Exception | None] = [None] * len(requests)
        ready = []
        for at, request in enumerate(requests):
            try:
                ready.append(
                    (
                        at,
                        request.claim,
                        memo_jobs.outcome(request.claim, request.posted, request.document, worker=request.worker),
                    )
                )
            except Exception as error:  # noqa: BLE001 - concerns this request only
                answers[at] = error
        errors = self._commit_batch([(claim, outcome) for _, claim, outcome in ready])
        for number, (at, claim, outcome) in enumerate(ready):
            answers[at] = self._commit_one(claim, outcome, after=True) if errors is None else errors[number]
        return answers

    def _commit_batch(self, ended: list[tuple[Claim, Succeeded | Failed]]) -> list[Exception | None] | None:
        """Commit all in one call. None: some failed, and it is not known which."""
        if self._batch_store is None or len(ended) == 1:
            return [self._commit_one(claim, outcome) for claim, outcome in ended]
        try:
            results = self._batch_store.commit_batch(ended)
        except SyncFailed as error:
            return [error] * len(ended)
        except (FarroError, OSError):
            return None
        return [result if isinstance(result, Lost) else None for result in results]

    def _commit_one(self, claim: Claim, outcome: Succeeded | Failed, *, after: bool = False) -> Exception | None:
        """Commit one attempt. `after`: an earlier call may have committed it already."""
        try:
            self._store.commit(claim, outcome)
        except Lost as lost:
            return None if after and self._is_committed(claim) else lost
        except Exception as error:  # noqa: BLE001 - concerns this attempt only
            return error
        return None

    def _is_committed(self, claim: Claim) -> bool:
        """Return whether exactly this attempt ended the job."""
        view = self._store.find(claim.job_id)
        mine = claim.envelope.lifecycle
        return (
            view is not None
            and view.status in (Status.SUCCEEDED, Status.FAILED)
            and (view.lifecycle.attempt, view.lifecycle.correlation_id) == (mine.attempt, mine.correlation_id)
        )

    def record_claim(self, claims: Sequence[Claim]) -> None:
        if self._batch_store is not None:
            for claim in claims:
                with contextlib.suppress(FarroError, OSError):  # the next heartbeat reports lost claims
                    self._batch_store.record_claim(claim)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand back jobs that were not begun: to their old positions if the store can, else to the end of the queue."""
        if self._batch_store is not None:
            self._batch_store.hand_back(claims)
            return
        for claim in claims:
            with contextlib.suppress(FarroError):
                self._store.release(claim, "not begun by its worker")

    def leave(self, agent: Agent) -> None:
        with contextlib.suppress(FarroError):
            self._store.leave(agent)
