"""Work over agq: implement what a worker needs of a store with Redis commands to `farro agq`, and with JOB.TAKE,
JOB.DONE and JOB.RETURN for batches.

Programs that submit, read or manage jobs open the store behind agq instead, or use agx.

- Each slot is a worker of its own. It keeps what it popped while its id is alive: as long as it has a connection, or
  comes back within the server's `agq.worker_ttl_s`. [test_worker_posts_its_result_after_a_lost_connection]
- A pop is never repeated. If its reply is lost, the slot quits and joins under a new id, so that jobs it may have
  popped go back. [test_job_of_a_killed_worker_is_run_by_another]
- A result may be repeated after a lost reply: agq remembers it until the worker takes more (JOB.TAKE).
  [test_result_is_accepted_once]
- A claim with `wait_s` waits in a blocking JOB.TAKE.
- Small jobs go in batches: one round trip takes several, one posts their results, and each is accepted or refused
  separately. [test_small_jobs_go_over_agq_in_batches]
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from farro.agq.client.connection import AgqAddress, Announcement, RespClient, WorkerConnection, refused
from farro.documents.json_text import encoder
from farro.errors import AgentLost, ClaimLost, Damaged, FarroError, InputError, TryAgain
from farro.host import fs
from farro.host.clock import Clock
from farro.jobs import ids, moves
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Released, Report, Succeeded, Unroutable
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass, field
from farro.store.port import Agent, AttemptResult, Claim, Commits, LazyFolderClaim, NextClaim
from farro.store.workspace import JobFiles, Workspace

READY, PROCESSING = "queue:ready", "queue:processing"
READY_ROLE = "Runner"
SLICE_S = 1.0  # of one blocking pop: stopping a worker takes at most this long
BRIEF_S = 0.01  # … in a stream of small jobs: one round trip for the next ones, instead of an empty one and another
LOOK_S = 1.0  # how often a running job is checked for being taken away
NO_EXIT_CODE = -1  # of a step that was ended before it could exit: the memo requires a number
RESULT_TEXT = 8 << 20  # characters of all streams together, at first
POST_BYTES = 15 << 20  # of the document: agq accepts 16 MiB
_DICE = random.SystemRandom()
_encode = encoder()


@dataclass(kw_only=True, eq=False)
class _Slot:
    """Invariant: used by the slot's own thread only, except for `connection.quit`."""

    agent: Agent
    connection: WorkerConnection
    wakes: int  # calls of `wake` that it has noticed: one before the wait ends it as well
    stream: bool = False  # the last pop brought jobs: more are likely to come
    checked_s: float = field(default=float("-inf"))
    doubtful: bool = False  # a pop had no reply: this id may hold unknown jobs


class AgqStore:
    """Implement the port WorkerStore."""

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
            self._slots[agent.id] = _Slot(agent=agent, connection=connection, wakes=self._wakes)
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
            raise ClaimLost(f"{claim.job_id} no longer belongs to {slot.agent.id}: it was recovered or killed")

    # --- working ---

    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        slot = self._slot_of(agent)
        if wait_s <= 0:
            found = self._pop(slot, limit, wait_s=BRIEF_S if slot.stream and limit > 1 else None)
        else:
            found = self._wait(slot, limit, wait_s)
        slot.stream = bool(found)
        return [self._claimed(slot, attempt, text) for attempt, text in found]

    def _wait(self, slot: _Slot, limit: int, wait_s: float) -> list[tuple[int, bytes]]:
        """Pop jobs, or wait for them. A `wake` before the wait ends it as well.
        [test_a_wake_before_the_wait_is_not_missed]"""
        until_s = self._clock.monotonic_s() + wait_s
        while True:
            left_s = 0.0 if self._wakes != slot.wakes else until_s - self._clock.monotonic_s()
            found = self._pop(slot, limit, wait_s=min(left_s, SLICE_S, self._timeout_s / 2) if left_s > 0 else None)
            if found or left_s <= 0:
                slot.wakes = self._wakes
                return found

    def wake(self, role: str | None) -> None:
        with self._lock:
            self._wakes += 1

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
            name, payload = prompt.get("input"), {}
            if isinstance(name, str):
                data = slot.connection.call(lambda client: client.send("JOB.INPUT", job_id), repeat=True)
                payload = {} if data is None else {ids.check_payload_name(name): data}
            text = _encode(prompt).encode("utf-8", "backslashreplace")
            return JobFiles(lifecycle=life.to_json(), prompt=text, payload=payload)

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

    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        answers: dict[int, Lifecycle | FarroError] = {}
        posts: dict[str, list[int]] = {}  # agent → its results
        results = [_ended(result) for result in results]
        for at, result in enumerate(results):
            if isinstance(result.outcome, Released):
                answers[at] = self._release(result.claim, result.outcome.note)
            elif result.move is not None or (isinstance(result.outcome, Succeeded) and result.outcome.children):
                answers[at] = InputError(f"{self._address}: over agq a job only ends; its routing is the other side's")
            else:
                posts.setdefault(result.claim.agent.id, []).append(at)
        for indexes in posts.values():
            try:
                answers.update(zip(indexes, self._commit([results[at] for at in indexes]), strict=True))
            except FarroError as error:
                answers.update(dict.fromkeys(indexes, error))
        claims: list[Claim] = []
        if then_claim is not None:
            with contextlib.suppress(FarroError):  # the next claim reports it
                claims = self.claim(*then_claim)
        return Commits([answers[at] for at in range(len(results))], claims)

    def _commit(self, ended: Sequence[AttemptResult]) -> list[Lifecycle | FarroError]:
        """Post results of one agent. If the server refuses a result as invalid, its job fails with that reason: if it
        were released, it would run and be refused again. [test_a_job_whose_result_is_refused_fails_with_the_reason]"""
        slot = self._slot_of(ended[0].claim.agent)
        outcomes = [each.outcome for each in ended]
        unanswered = False
        try:
            texts = [
                result_document(claim.job_id, _plan_id(claim), claim.place, outcome, inline_bytes=self._inline_bytes)
                for claim, outcome, _ in ended
                if not isinstance(outcome, Released)  # none is: those are not posted
            ]
            reply = self._post(slot, [each.claim.job_id for each in ended], texts)
            for at, claim in enumerate(each.claim for each in ended):
                if isinstance(reply[at], Exception) and str(reply[at]).startswith("invalid result"):
                    outcomes[at] = failed = _refused_result(claim, str(reply[at]))
                    text = result_document(claim.job_id, _plan_id(claim), claim.place, failed, inline_bytes=0)
                    reply[at] = self._post(slot, [claim.job_id], [text])[0]
        except TryAgain:  # no answer: the results, with their output, may be posted again
            unanswered = True
            raise
        finally:
            for each in () if unanswered else ended:
                self._workspace.end(each.claim.agent.id, each.claim.job_id)
        return [
            self._answer(each.claim, outcome, answer)
            for each, outcome, answer in zip(ended, outcomes, reply, strict=True)
        ]

    def _post(self, slot: _Slot, job_ids: Sequence[str], texts: Sequence[bytes]) -> list[Any]:
        """Post results, as many per request as fit; return the answer for each, which may be an exception."""
        answers: list[Any] = []
        while len(answers) < len(texts):
            words: list[str | bytes] = []
            size, at = 0, len(answers)
            while at < len(texts) and (not words or size + len(texts[at]) <= POST_BYTES):
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

    def hand_back(self, claims: Sequence[Claim]) -> None:
        by_agent: dict[str, list[Claim]] = {}
        for claim in claims:
            by_agent.setdefault(claim.agent.id, []).append(claim)
        for mine in by_agent.values():
            words = ("JOB.RETURN", *(claim.job_id for claim in mine))
            try:
                self._slot_of(mine[0].agent).connection.call(partial(_sent, words), repeat=True)
            finally:
                for claim in mine:
                    self._workspace.end(claim.agent.id, claim.job_id)

    def _release(self, claim: Claim, note: str) -> Lifecycle | FarroError:
        """Put the job back into its queue at once. If the server does not answer, the slot quits: then all of its jobs
        go back."""
        try:
            slot = self._slot_of(claim.agent)
        except AgentLost as lost:
            return lost
        try:
            words = ("JOB.RELEASE", claim.job_id, note or "released by its worker")
            slot.connection.call(partial(_sent, words), repeat=False)
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


def _sent(words: Sequence[str | bytes], client: RespClient) -> Any:
    return client.send(*words)


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


# --- results in the memo's form (seed 004) ---


def _plan_id(claim: Claim) -> str:
    """Return the plan_id of the job's text: agq gives the job's id to a plan that has none."""
    return claim.envelope.prompt.get("plan_id") or claim.job_id


def _ended(result: AttemptResult) -> AttemptResult:
    """Let a job fail that waits for an account: over agq its place in the queue is the other side's."""
    if not isinstance(result.outcome, Released) or result.outcome.wait is None:
        return result
    from farro.execution.work import failed  # here: few workers over agq run agents

    return result._replace(outcome=failed(result.claim.job_id, "account_paused", result.outcome.note))


def _refused_result(claim: Claim, said: str) -> Failed:
    message = f"agq refused the worker's result: {ascii(said)[1:-1][:300]}"
    report = Report(result={"job_id": claim.job_id}, markdown=f"# Failed\n\n**invalid_result**: {message}\n")
    return Failed(error=ErrorInfo(category="invalid_result", message=message), report=report)


def result_document(
    job_id: str, plan_id: str, folder: str, outcome: Succeeded | Failed | Unroutable, *, inline_bytes: int
) -> bytes:
    """Return the result as JSON. Streams that the report cut are read up to `inline_bytes` each; less of all if their
    escaping (a NUL takes six characters) makes the document too large."""
    total = RESULT_TEXT
    named = {"job_id": job_id, "plan_id": plan_id}
    while len(text := _document(named, folder, outcome, inline_bytes, total)) > POST_BYTES and total:
        total //= 2
    return text


def _document(
    named: Mapping[str, str], folder: str, outcome: Succeeded | Failed | Unroutable, inline_bytes: int, total: int
) -> bytes:
    result = dict(outcome.report.result)
    left = total
    steps = []
    for item in result.get("step_results") or ():
        step = dict(item)
        for stream in ("stdout", "stderr"):
            step[stream] = _stream(step, stream, folder, min(inline_bytes, left))
            left = max(0, left - len(step[stream]))
        if not isinstance(step.get("exit_code"), int):
            step["exit_code"] = NO_EXIT_CODE
        step["success"] = step.get("success") is True
        steps.append(step)
    result |= {**named, "success": isinstance(outcome, Succeeded), "step_results": steps}
    if not isinstance(outcome, Succeeded):
        result["error"] = {"category": outcome.error.category, "message": outcome.error.message}
    return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _stream(step: Mapping[str, Any], stream: str, folder: str, most: int) -> str:
    text, path = str(step.get(stream) or ""), step.get(f"{stream}_path")
    if step.get(f"{stream}_truncated") and isinstance(path, str) and most > len(text):
        try:
            return fs.read_bytes(f"{folder}/{path}", most)[:most].decode("utf-8", "replace")
        except OSError:  # the step itself may have removed it
            return text
    return text[:most] if len(text) > most else text
