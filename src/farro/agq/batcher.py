"""Batch the calls of the store that every job needs, claims and commits: calls that come while one runs are made
together. Without it a job takes 13 % more CPU time among sixteen clients, and 7 % among two workers that take batches
(median of 20 alternating pairs, `durability: process`).

Rare calls, and those that read many jobs, run in the server's thread pools instead.

- In front of a remote store a call mostly waits, so a thread makes it.
- In front of files a call is mostly CPU work, so the event loop makes it. A thread would compete with the loop for the
  interpreter lock at every system call; that took longer than the calls themselves
  (docs/decisions/resp-keys-are-views-of-jobs.md). As in Redis, no client is read while the disk is written; what they
  send meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from farro.agq import memo_jobs
from farro.errors import AgentLost, BadDocument, FarroError, Lost, SyncFailed
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans.memo import PostedResult
from farro.store.port import Agent, AttemptResult, Claim, Store, commit_one

BATCH = 128  # calls in one batch
BATCH_BYTES = 4 << 20

Do = Callable[[list[Any]], Sequence[Any]]  # returns an answer for each argument; it may be an exception


def each(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make calls that cannot be combined."""
    answers = []
    for call in calls:
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - concerns this call only
            answers.append(error)
    return answers


class BatchedCall(NamedTuple):
    do: Do
    argument: Any
    answer: asyncio.Future[Any]
    size: int


class Batcher:
    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        in_thread: Callable[[Do, list[Any]], Awaitable[Sequence[Any]]] | None = None,
    ) -> None:
        self._spawn = spawn  # starts a task
        self._in_thread = in_thread  # calls a function in a thread; None: the event loop makes the calls
        self._waiting: list[BatchedCall] = []
        self._serving = False

    async def call(self, do: Do, argument: Any, *, size: int = 0) -> Any:
        """Call `do` with this argument and those of other waiting calls of `do`; return or raise its own answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(BatchedCall(do, argument, answer, size))
        if not self._serving:
            self._serving = True
            self._spawn(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            groups: dict[Do, list[BatchedCall]] = {}
            for call in self._batch():
                groups.setdefault(call.do, []).append(call)
            for do, group in groups.items():
                for call, answer in zip(group, await self._answers(do, group), strict=True):
                    if call.answer.cancelled():  # the server ends
                        continue
                    if isinstance(answer, Exception):
                        call.answer.set_exception(answer)
                    else:
                        call.answer.set_result(answer)
            await asyncio.sleep(0)  # read clients between two batches
        self._serving = False

    def _batch(self) -> list[BatchedCall]:
        count = size = 0
        while count < min(len(self._waiting), BATCH) and size <= BATCH_BYTES:
            size += self._waiting[count].size
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _answers(self, do: Do, group: list[BatchedCall]) -> Sequence[Any]:
        arguments = [call.argument for call in group]
        try:
            return do(arguments) if self._in_thread is None else await self._in_thread(do, arguments)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            return [error] * len(group)


# --- claims and commits for many workers at once ---


AgentKind = tuple[str, str, frozenset[str]]  # name, role, tags


@dataclass(kw_only=True, eq=False)
class ClaimingAgent:
    """An agent of the store, and how many jobs it holds for clients. It claims again when they have ended."""

    agent: Agent
    kind: AgentKind
    held: int = 0
    batch: bool = False  # its jobs were claimed as a batch
    retired: bool = False  # it lost a job, and leaves when the others have ended


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

    def leave(self, agent: Agent) -> None:
        with contextlib.suppress(FarroError):
            self._store.leave(agent)
