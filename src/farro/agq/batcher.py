"""Batch the calls of the store that every job needs, claims and commits: calls that come while one runs are made
together.

Rare calls, and those that read many jobs, run in the server's thread pools instead.

- In front of a remote store a call mostly waits, so a thread makes it (ThreadBatcher). One thread, not many: the calls
  that wait meanwhile form one batch, which pays for the switch to the thread and back.
- In front of files a call is mostly CPU work, so the event loop makes it (LoopBatcher). A thread would compete with the
  loop for the interpreter lock at every system call; that took longer than the calls themselves
  (docs/decisions/resp-keys-are-views-of-jobs.md). As in Redis, no client is read while the disk is written; what they
  send meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from farro.agq import memo_jobs
from farro.errors import AgentLost, BadDocument, FarroError, Lost, SyncFailed
from farro.host.thread_turns import Turns
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
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
    callback: Callable[[Any], None]  # called in the event loop
    size: int


class Batcher(Protocol):
    pending: int  # calls without an answer so far; used in the event loop only

    def start(self) -> None: ...

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        """Call `do` with this argument and those of other waiting calls of `do`. `callback` gets the answer or the
        exception."""
        ...

    def stop(self) -> None:
        """Finish all submitted calls, then stop."""
        ...


class LoopBatcher:
    """Run in the event loop: all calls of one iteration are made in the next."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._waiting: list[BatchedCall] = []
        self.pending = 0

    def start(self) -> None: ...

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        self.pending += 1
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        self._waiting.append(BatchedCall(do, argument, callback, size))

    def stop(self) -> None:
        while self._waiting:
            self._serve()

    def _serve(self) -> None:
        batch = self._batch()
        if self._waiting:  # read clients between two batches
            asyncio.get_running_loop().call_soon(self._serve)
        for do, group in _by_function(batch).items():
            answers = _run_group(do, group)
            self.pending -= len(group)
            _deliver(group, answers, self._log)

    def _batch(self) -> list[BatchedCall]:
        count = size = 0
        while count < min(len(self._waiting), BATCH) and size <= BATCH_BYTES:
            size += self._waiting[count].size
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch


class ThreadBatcher:
    """Run in a thread of its own."""

    def __init__(self, name: str, *, turns: Turns, loop: Callable[..., object], log: Log) -> None:
        self._turns = turns
        self._loop = loop  # calls a function in the event loop, from any thread
        self._log = log
        self._waiting: queue.SimpleQueue[BatchedCall | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"agq-{name}", daemon=True)
        self.pending = 0

    def start(self) -> None:
        self._thread.start()

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        self.pending += 1
        self._waiting.put(BatchedCall(do, argument, callback, size))

    def stop(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        over = False
        while not over and (first := self._waiting.get()) is not None:
            batch, size = [first], first.size
            while len(batch) < BATCH and size <= BATCH_BYTES:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
                size += more.size
            for do, group in _by_function(batch).items():
                with self._turns.turn():
                    answers = _run_group(do, group)
                try:
                    self._loop(self._delivered, group, answers)
                except RuntimeError:  # the loop has ended, and so have all that waited
                    return

    def _delivered(self, group: list[BatchedCall], answers: Sequence[Any]) -> None:
        self.pending -= len(group)
        _deliver(group, answers, self._log)


def _by_function(batch: list[BatchedCall]) -> dict[Do, list[BatchedCall]]:
    groups: dict[Do, list[BatchedCall]] = {}
    for call in batch:
        groups.setdefault(call.do, []).append(call)
    return groups


def _run_group(do: Do, group: list[BatchedCall]) -> Sequence[Any]:
    try:
        return do([call.argument for call in group])
    except Exception as error:  # noqa: BLE001 - each caller gets it
        return [error] * len(group)


def _deliver(group: list[BatchedCall], answers: Sequence[Any], log: Log) -> None:
    for call, answer in zip(group, answers, strict=True):
        try:
            call.callback(answer)
        except Exception as error:  # noqa: BLE001 - a bug in one callback must not keep the others from their answers
            log("error", "an answer broke", {"error": f"{type(error).__name__}: {error}"})


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
