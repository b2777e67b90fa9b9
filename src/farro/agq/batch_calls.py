"""What the desk does with the store for workers: claims and commits, those of many workers at once.

Runs in the desk's thread; who is told, and what is kept of it, lives in workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from farro.agq import memo_jobs
from farro.agq.batcher import each
from farro.agq.roster import Kind, Seat
from farro.errors import AgentLost, BadDocument, FarroError, Lost, SyncFailed
from farro.jobs.outcomes import Failed, Succeeded
from farro.jobs.states import Status
from farro.plans.memo import PostedResult
from farro.store.port import Agent, BatchStore, Claim, Store


class Take(NamedTuple):
    kind: Kind
    seat: Seat | None  # that is free
    limit: int
    row: bool  # most of them are over in a moment


class Taken(NamedTuple):
    seat: Seat
    jobs: list[tuple[Claim, bytes]]  # each with its text


class Ending(NamedTuple):
    claim: Claim
    posted: PostedResult
    document: Mapping[str, Any]
    worker: str | None


class Hands:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._bulk = store if isinstance(store, BatchStore) else None

    # --- claiming ---

    def take_all(self, asked: list[Take]) -> list[Taken | Exception]:
        return each([partial(self._take, one) for one in asked])

    def _take(self, asked: Take) -> Taken:
        agent = None if asked.seat is None else asked.seat.agent
        for again in (True, False):
            if agent is None:
                name, role, tags = asked.kind
                agent = self._store.join(name, role=role, tags=tags)
            try:
                jobs = self._claimed(agent, asked.limit, asked.row)
            except BaseException as error:
                self.leave(agent)  # what it may have claimed is recovered by a watchdog
                agent = None
                if not (again and isinstance(error, AgentLost)):
                    raise
                continue
            seat = asked.seat
            if seat is None or seat.agent is not agent:
                seat = Seat(agent=agent, kind=asked.kind)
            seat.row = asked.row
            return Taken(seat, jobs)
        raise AssertionError("unreachable")

    def _claimed(self, agent: Agent, limit: int, row: bool) -> list[tuple[Claim, bytes]]:
        while True:
            claims: Sequence[Claim]
            if row and self._bulk is not None:
                claims = self._bulk.claim_batch(agent, limit)
            else:
                claim = self._store.claim(agent)
                claims = () if claim is None else (claim,)
            jobs: list[tuple[Claim, bytes]] = []
            for claim in claims:
                try:
                    jobs.append((claim, memo_jobs.job_text(claim)))
                except BadDocument as error:
                    self._store.commit(claim, memo_jobs.unfit(claim, error))
            if jobs or not claims:
                return jobs

    # --- ending ---

    def end_all(self, asked: list[Ending]) -> list[Exception | None]:
        """None of each that is committed, as durably as the store promises; else why it is not."""
        answers: list[Exception | None] = [None] * len(asked)
        ready = []
        for at, one in enumerate(asked):
            try:
                ready.append((at, one.claim, memo_jobs.outcome(one.claim, one.posted, one.document, worker=one.worker)))
            except Exception as error:  # noqa: BLE001 - this one's alone
                answers[at] = error
        told = self._together([(claim, outcome) for _, claim, outcome in ready])
        for number, (at, claim, outcome) in enumerate(ready):
            answers[at] = self._alone(claim, outcome, after=True) if told is None else told[number]
        return answers

    def _together(self, ended: list[tuple[Claim, Succeeded | Failed]]) -> list[Exception | None] | None:
        """None: there was trouble with some of them, and nobody knows with which."""
        if self._bulk is None or len(ended) == 1:
            return [self._alone(claim, outcome) for claim, outcome in ended]
        try:
            told = self._bulk.commit_batch(ended)
        except SyncFailed as error:
            return [error] * len(ended)
        except (FarroError, OSError):
            return None
        return [what if isinstance(what, Lost) else None for what in told]

    def _alone(self, claim: Claim, outcome: Succeeded | Failed, *, after: bool = False) -> Exception | None:
        """`after`: it may be committed already."""
        try:
            self._store.commit(claim, outcome)
        except Lost as lost:
            return None if after and self._stands(claim) else lost
        except Exception as error:  # noqa: BLE001 - this one's alone
            return error
        return None

    def _stands(self, claim: Claim) -> bool:
        """Whether this very attempt ended the job."""
        view = self._store.find(claim.job_id)
        mine = claim.envelope.lifecycle
        return (
            view is not None
            and view.status in (Status.SUCCEEDED, Status.FAILED)
            and (view.lifecycle.attempt, view.lifecycle.correlation_id) == (mine.attempt, mine.correlation_id)
        )

    def record_claim(self, claims: Sequence[Claim]) -> None:
        if self._bulk is not None:
            for claim in claims:
                with contextlib.suppress(FarroError, OSError):  # a heartbeat tells of what was lost
                    self._bulk.record_claim(claim)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Not begun: back to their places, where the store can; else to the end of the queue."""
        if self._bulk is not None:
            self._bulk.hand_back(claims)
            return
        for claim in claims:
            with contextlib.suppress(FarroError):
                self._store.release(claim, "not begun by its worker")

    def leave(self, agent: Agent) -> None:
        with contextlib.suppress(FarroError):
            self._store.leave(agent)
