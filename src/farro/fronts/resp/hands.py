"""What the desk does with the store for workers: claims and commits, those of many workers at once.

Runs in the desk's thread; who is told, and what is kept of it, lives in workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farro.errors import AgentLost, BadDocument, FarroError
from farro.fronts.resp.roster import Kind, Seat
from farro.kernel.outcome import Failed, Succeeded
from farro.operations import memo
from farro.plans.memo import PostedResult
from farro.ports.store import Agent, Bulk, Claim, Store


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
        self._bulk = store if isinstance(store, Bulk) else None

    # --- claiming ---

    def take_all(self, asked: list[Take]) -> list[Taken | Exception]:
        answers: list[Taken | Exception] = []
        for one in asked:
            try:
                answers.append(self._take(one))
            except Exception as error:  # noqa: BLE001 - this one's alone
                answers.append(error)
        return answers

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
                claims = self._bulk.claim_some(agent, limit)
            else:
                claim = self._store.claim(agent)
                claims = () if claim is None else (claim,)
            jobs: list[tuple[Claim, bytes]] = []
            for claim in claims:
                try:
                    jobs.append((claim, memo.job_text(claim)))
                except BadDocument as error:
                    self._store.commit(claim, memo.unfit(claim, error))
            if jobs or not claims:
                return jobs

    # --- ending ---

    def end_all(self, asked: list[Ending]) -> list[Exception | None]:
        """None of each that is committed, as durably as the store promises; else why it is not."""
        answers: list[Exception | None] = [None] * len(asked)
        ready = []
        for at, one in enumerate(asked):
            try:
                ready.append((at, one.claim, memo.outcome(one.claim, one.posted, one.document, worker=one.worker)))
            except Exception as error:  # noqa: BLE001 - this one's alone
                answers[at] = error
        rows: dict[str, list[tuple[int, Claim, Succeeded | Failed]]] = {}
        for each in ready:
            rows.setdefault(each[1].agent.id, []).append(each)
        for row in rows.values():
            self._commit(row, answers)
        return answers

    def _commit(self, row: list[tuple[int, Claim, Succeeded | Failed]], answers: list[Exception | None]) -> None:
        """Of one agent."""
        if len(row) > 1 and self._bulk is not None:
            told: Sequence[object]
            try:
                told = self._bulk.commit_some([(claim, outcome) for _, claim, outcome in row])
            except Exception as error:  # noqa: BLE001 - nobody knows which of them are kept
                told = [error] * len(row)
            for (at, _, _), what in zip(row, told, strict=True):
                answers[at] = what if isinstance(what, Exception) else None
            return
        for at, claim, outcome in row:
            try:
                self._store.commit(claim, outcome)
            except Exception as error:  # noqa: BLE001 - this one's alone
                answers[at] = error

    def write_down(self, claims: Sequence[Claim]) -> None:
        if self._bulk is not None:
            for claim in claims:
                with contextlib.suppress(FarroError, OSError):  # a heartbeat tells of what was lost
                    self._bulk.write_down(claim)

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
