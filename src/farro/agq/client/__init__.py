"""Work over agq: implement what a worker needs of a store with Redis commands to `farro agq`, and with JOB.TAKE,
JOB.DONE and JOB.RETURN for batches.

Programs that submit, read or manage jobs open the store behind agq instead, or use agx.

- Each slot is a worker of its own. It keeps what it popped while its id is alive: as long as it has a connection, or
  comes back within the server's `agq.worker_ttl_s`. [test_worker_posts_its_result_after_a_lost_connection]
- A pop is never repeated. If its reply is lost, the slot quits and joins under a new id, so that jobs it may have
  popped go back. [test_job_of_a_killed_worker_is_run_by_another]
- A result may be repeated after a lost reply: agq remembers it until the worker takes more (JOB.TAKE).
  [test_result_is_accepted_once]
- `changes` waits in a blocking JOB.TAKE; the jobs that it brings belong to this slot, and its next claim returns them.
- Small jobs go in batches (BatchStore): one round trip takes several, one posts their results, and each is accepted or
  refused separately. [test_small_jobs_go_over_agq_in_batches]
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from farro.agq.client import results
from farro.agq.client.connection import AgqAddress, Announcement, RespClient, WorkerConnection, refused
from farro.documents.json_text import encoder
from farro.errors import AgentLost, ClaimLost, Damaged, FarroError, InputError, Lost
from farro.host.clock import Clock
from farro.jobs import ids, moves
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Outcome, Released, Succeeded
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass, field
from farro.store.port import Agent, Changes, Claim, LazyFolderClaim
from farro.store.workspace import JobFiles, Workspace

READY, PROCESSING = "queue:ready", "queue:processing"
READY_ROLE = "Runner"
SLICE_S = 1.0  # of one blocking pop: stopping a worker takes at most this long
BRIEF_S = 0.01  # … in a stream of small jobs: one round trip for the next ones, instead of an empty one and another
LOOK_S = 1.0  # how often a running job is checked for being taken away
_DICE = random.SystemRandom()
_encode = encoder()


@dataclass(kw_only=True, eq=False)
class _Slot:
    """Invariant: used by the slot's own thread only, except for `connection.quit`."""

    agent: Agent
    connection: WorkerConnection
    popped: list[tuple[int, bytes]] = field(default_factory=list)  # jobs that `changes` brought, for the next claim
    stream: bool = False  # the last pop brought jobs: more are likely to come
    last_limit: int = 1  # the limit of the last claim
    checked_s: float = field(default=float("-inf"))
    doubtful: bool = False  # a pop had no reply: this id may hold unknown jobs


class AgqStore:
    """Implement the ports WorkerStore and BatchStore."""

    def __init__(
        self,
        address: AgqAddress,
        *,
        workspace: Workspace,
        clock: Clock,
        tools: Callable[[], Sequence[str]] = lambda: (),
        timeout_s: float = 5.0,
        inline_bytes: int = 256 << 10,
        random_bits: Callable[[int], int] = _DICE.getrandbits,
    ) -> None:
        self._address = address
        self._workspace = workspace
        self._clock = clock
        self._tools = tools
        self._timeout_s = timeout_s
        self._inline_bytes = inline_bytes
        self._random_bits = random_bits
        self._slots: dict[str, _Slot] = {}
        self._lock = threading.Lock()  # guards _slots and _wakes
        self._wakes = 0
        self._swept = False
        self._thread = threading.local()  # the slot that last found nothing in this thread

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        if role is None:
            raise InputError(
                f"{self._address}: only roles can work through agq; a watchdog or manager must open the store directly"
            )
        agent = Agent(
            id=ids.agent_id(name, slot, self._random_bits), role=role, tags=frozenset(map(ids.check_tag, tags))
        )
        announcement = Announcement(worker_id=agent.id, tags=agent.tags, tools=tuple(self._tools()))
        connection = WorkerConnection(self._address, announcement, self._clock, timeout_s=self._timeout_s)
        connection.call(lambda client: client.send("PING", agent.id), repeat=False)
        with self._lock:
            self._slots[agent.id] = _Slot(agent=agent, connection=connection)
            swept, self._swept = self._swept, True
        if not swept:
            self._workspace.sweep()  # remove what killed workers of this machine left: over agq no watchdog does
        return agent

    def leave(self, agent: Agent) -> None:
        with self._lock:
            slot = self._slots.pop(agent.id, None)
        if slot is not None:
            slot.connection.quit()
            self._workspace.leave(agent.id)

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        slot = self._slot_of(agent)
        now_s = self._clock.monotonic_s()
        if now_s - slot.checked_s < (slot.connection.alive_s / 4 if claim is None else LOOK_S):
            return
        if claim is None:
            slot.connection.call(lambda client: client.send("PING", agent.id), repeat=False)
        else:
            self._check_claim(slot, claim)
        slot.checked_s = self._clock.monotonic_s()

    def _check_claim(self, slot: _Slot, claim: Claim) -> None:
        fields = slot.connection.call(
            lambda client: client.send_all(("PING", slot.agent.id), ("HGETALL", f"job:{claim.job_id}"))[1], repeat=False
        )
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        if _attempt(found) not in (None, claim.attempt) or found.get(b"status") in _OVER:
            raise ClaimLost(f"{claim.job_id}: taken from {slot.agent.id} (recovered or killed)")

    # --- waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        """Wait for jobs. The cursor counts the calls of `wake`: a call before the wait ends it as well.
        [test_a_wake_before_the_wait_is_not_missed]"""
        slot: _Slot | None = getattr(self._thread, "slot", None)
        if cursor is None or timeout_s <= 0:
            return Changes(cursor=self._wakes, items=(), gap=False)
        if slot is None or self._slots.get(slot.agent.id) is not slot:
            if self._wakes == cursor:
                self._clock.sleep(min(timeout_s, SLICE_S))
            return Changes(cursor=self._wakes, items=(), gap=False)
        until_s = self._clock.monotonic_s() + timeout_s
        while not slot.popped and self._wakes == cursor:
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            slot.popped = self._pop(slot, slot.last_limit, wait_s=min(left_s, SLICE_S, self._timeout_s / 2))
        return Changes(cursor=self._wakes, items=(), gap=False)

    def wake(self, role: str | None) -> None:
        with self._lock:
            self._wakes += 1

    # --- working ---

    def claim(self, agent: Agent) -> Claim | None:
        claims = self.claim_batch(agent, 1)
        return claims[0] if claims else None

    def claim_batch(self, agent: Agent, limit: int) -> list[Claim]:
        slot = self._slot_of(agent)
        slot.last_limit = limit
        found, slot.popped = slot.popped[:limit], slot.popped[limit:]
        if not found:
            found = self._pop(slot, limit, wait_s=BRIEF_S if slot.stream and limit > 1 else None)
            slot.stream = bool(found)
        if not found:
            self._thread.slot = slot
        return [self._claimed(slot, attempt, text) for attempt, text in found]

    def record_claim(self, claim: Claim) -> None:
        """Do nothing: the server records claims that last longer."""

    def next_due(self, role: str) -> datetime | None:
        return None  # the server wakes a blocking pop for delayed jobs

    def _pop(self, slot: _Slot, limit: int, wait_s: float | None = None) -> list[tuple[int, bytes]]:
        """Pop jobs; return attempt and text of each. It is never repeated: a second pop would be a second batch."""
        words: list[str | int] = ["JOB.TAKE", _queue(slot.agent), limit]
        if wait_s is not None:
            words.append(f"{max(0.01, wait_s):.3f}")
        slot.doubtful = True
        reply = slot.connection.call(lambda client: client.send(*words), repeat=False) or ()
        slot.doubtful = False
        slot.checked_s = self._clock.monotonic_s()
        return list(zip(reply[::2], reply[1::2], strict=True))

    def _claimed(self, slot: _Slot, attempt: int, text: bytes) -> Claim:
        agent = slot.agent
        job_id, prompt = _job(text)
        # Without the id, which the lifecycle has: then jobs that differ only in their ids share one plan.
        prompt_without_id = {name: value for name, value in prompt.items() if name != "id"}
        now = self._clock.now()
        assert agent.role is not None
        life = moves.claimed(
            moves.enqueued(job_id=job_id, role=agent.role, now=now),
            agent=agent.id,
            attempt=attempt,
            correlation_id=f"{self._random_bits(64):016x}",
            now=now,
        )

        def material() -> JobFiles:
            return JobFiles(lifecycle=life.to_json(), prompt=_encode(prompt).encode("utf-8", "backslashreplace"))

        place, make = self._workspace.promise(agent.id, job_id, attempt, material)
        scope = f"agq-{self._address.host}-{self._address.port}"
        return LazyFolderClaim(
            agent=agent,
            envelope=Envelope(prompt=prompt_without_id, lifecycle=life),
            attempt=attempt,
            folder=place,
            scope=scope,
            make=make,
        )

    def commit(self, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
        if isinstance(outcome, Released):
            return self.release(claim, outcome.note)
        self._check(outcome, move)
        (result,) = self.commit_batch([(claim, outcome)])
        if isinstance(result, Lost):
            raise result
        return result

    def commit_batch(self, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | Lost]:
        if not ended:
            return []
        slot = self._slot_of(ended[0][0].agent)
        texts: list[bytes] = []
        for claim, outcome in ended:
            self._check(outcome)
            assert not isinstance(outcome, Released), "a row ends; what is released is no part of it"
            texts.append(results.document(claim.job_id, claim.place, outcome, inline_bytes=self._inline_bytes))
        try:
            reply = self._post(slot, [claim.job_id for claim, _ in ended], texts)
        finally:
            for claim, _ in ended:
                self._workspace.end(claim.agent.id, claim.job_id)
        outcomes = [self._answer(*one, answer) for one, answer in zip(ended, reply, strict=True)]
        for result in outcomes:
            if not isinstance(result, Lifecycle | Lost):
                raise result
        return [result for result in outcomes if isinstance(result, Lifecycle | Lost)]

    def _post(self, slot: _Slot, job_ids: Sequence[str], texts: Sequence[bytes]) -> list[Any]:
        """Post results, as many per request as fit; return the answer for each, which may be an exception."""
        answers: list[Any] = []
        while len(answers) < len(texts):
            words: list[str | bytes] = []
            size, at = 0, len(answers)
            while at < len(texts) and (not words or size + len(texts[at]) <= results.POST_BYTES):
                words += (job_ids[at], texts[at])
                size += len(texts[at])
                at += 1
            answers += slot.connection.call(partial(_done, words), repeat=True)
        slot.checked_s = self._clock.monotonic_s()
        return answers

    def _answer(self, claim: Claim, outcome: Outcome, answer: Any) -> Lifecycle | FarroError:
        if isinstance(answer, Exception):
            return refused(self._address, str(answer))
        good = isinstance(outcome, Succeeded)
        return self._lifecycle(
            claim,
            Move(
                reason=Reason.COMMITTED,
                status=Status.SUCCEEDED if good else Status.FAILED,
                role=claim.envelope.lifecycle.role,
                error=None if isinstance(outcome, Succeeded | Released) else outcome.error,
            ),
        )

    def _check(self, outcome: Outcome, move: Move | None = None) -> None:
        if move is not None or (isinstance(outcome, Succeeded) and outcome.children):
            raise InputError(f"{self._address}: over agq a job only ends; its routing is the other side's")

    def hand_back(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        slot = self._slot_of(claims[0].agent)
        try:
            slot.connection.call(
                lambda client: client.send("JOB.RETURN", *(claim.job_id for claim in claims)), repeat=True
            )
        finally:
            for claim in claims:
                self._workspace.end(claim.agent.id, claim.job_id)

    def route(self, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
        raise InputError(f"{self._address}: over agq a job only ends; its routing is the other side's")

    def release(self, claim: Claim, note: str = "") -> Lifecycle:
        """Put the job back into its queue at once. If the server does not answer, the slot quits: then all of its jobs
        go back."""
        slot = self._slot_of(claim.agent)
        try:
            words = ("JOB.RELEASE", claim.job_id, note or "released by its worker")
            slot.connection.call(lambda client: client.send(*words), repeat=False)
        except ClaimLost:
            pass
        except FarroError:
            slot.connection.quit()
        self._workspace.end(claim.agent.id, claim.job_id)
        move = Move(reason=Reason.RELEASED, status=Status.QUEUED, role=claim.envelope.lifecycle.role, note=note)
        return self._lifecycle(claim, move)

    def pending(self, role: str) -> int:
        """Return how many jobs of the role are queued or held, for a worker that drains."""
        with self._lock:
            slot = next((slot for slot in self._slots.values() if slot.agent.role == role), None)
        if slot is None:
            return 0

        source = _queue(slot.agent)
        waiting, held = slot.connection.call(
            lambda client: client.send_all(("LLEN", source), ("LLEN", PROCESSING)), repeat=True
        )
        return int(waiting) + int(held)

    def close(self) -> None:
        with self._lock:
            agents = [slot.agent for slot in self._slots.values()]
        for agent in agents:
            self.leave(agent)
        self._workspace.close()

    # --- internals ---

    def _slot_of(self, agent: Agent) -> _Slot:
        with self._lock:
            slot = self._slots.get(agent.id)
        if slot is None or slot.doubtful:
            raise AgentLost(f"{agent.id} has ended; the slot joins again under a new name")
        return slot

    def _lifecycle(self, claim: Claim, move: Move) -> Lifecycle:
        """Return the lifecycle that the server gave the job, as far as this client knows it."""
        return moves.decided(
            claim.envelope.lifecycle, move, by=claim.agent.id, attempt=claim.attempt, now=self._clock.now()
        )


_OVER = frozenset({b"succeeded", b"completed", b"failed", b"killed", b"cancelled"})


def _done(words: Sequence[str | bytes], client: RespClient) -> list[Any]:
    answers: list[Any] = client.send("JOB.DONE", *words)
    for answer in answers:
        if isinstance(answer, Exception) and "ask again" in str(answer):
            raise answer  # the same result, sent before the connection broke, is being committed
    return answers


def _queue(agent: Agent) -> str:
    return READY if agent.role == READY_ROLE else f"queue:{agent.role}"


def _attempt(found: Mapping[bytes, bytes]) -> int | None:
    reply = found.get(b"attempt", b"")
    return int(reply) if reply.isdigit() else None


def _job(text: bytes) -> tuple[str, Mapping[str, Any]]:
    """Parse a popped job; return its id and its prompt."""
    try:
        data = json.loads(text)
        job_id = data["id"]
        prompt = data.get("prompt", data)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged("agq returned something that is not a job: it is not JSON, or has no id") from None
    if not ids.is_job_id(job_id) or not isinstance(prompt, dict):
        raise Damaged("agq returned something that is not a job: its id is invalid")
    return job_id, prompt
