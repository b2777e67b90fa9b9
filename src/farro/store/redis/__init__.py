"""The Redis store: jobs in a Redis or Valkey server, for workers on many machines. `RedisStore` is the Store port.

Each part of a transaction is a file here, and a script in scripts/ with what a crash leaves. Files of attempts live in
workspace, plans and actions in library. The key space is documented at the head of scripts/prelude.lua.

- Rules stay in Python (kernel.moves); a script compares a fence and swaps. Enqueue, claim and commit are one round trip
  each. [test_a_job_takes_three_round_trips_whatever_the_backlog]
- The fence is (agent, attempt), and the agent alive by the server's clock.
  [test_an_agent_whose_lease_is_over_is_fenced_though_it_lives]
- Every call can be repeated after a lost answer. [test_a_lost_answer_is_asked_for_again]
- What was acknowledged stays, as far as the server's persistence and its replicas go: docs/redis.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.errors import FarroError, Lost, TryAgain
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Outcome, Released
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.log.audit import Value
from farro.store.feed import ChangeFeed
from farro.store.fleet import LeaderStatus
from farro.store.port import (
    Agent,
    AgentView,
    Changes,
    Claim,
    JobView,
    PersonAnswer,
    QueuePause,
    RecoveryAction,
    Submission,
)
from farro.store.redis import agents, claim, commit, edit, leader, prune, recover, submit, unblock, views
from farro.store.redis.context import Ground
from farro.store.redis.feed import Ear, Stream
from farro.store.redis.records import pairs
from farro.store.redis.server import Both


class RedisStore:
    """The Store port over a server. See ports.store for what each call promises."""

    def __init__(self, ground: Ground, on_close: Callable[[], None] | None = None) -> None:
        self._ground = ground
        self._on_close = on_close
        self._feeds: dict[str | None, ChangeFeed] = {}
        self._ears: dict[str, Ear] = {}  # agent → of its `claim_or_wait`
        self._lock = threading.Lock()  # guards both

    @property
    def root(self) -> str:
        return self._ground.root

    def roles(self) -> list[str]:
        return list(self._ground.roles)

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        agent = agents.join(self._ground, name, role=role, slot=slot, tags=tags)
        if role is not None:
            with self._lock:
                self._ears[agent.id] = Ear(role)  # before it waits: who is called then is not called in vain
        return agent

    def leave(self, agent: Agent) -> None:
        agents.leave(self._ground, agent)
        with self._lock:
            ear = self._ears.pop(agent.id, None)
        if ear is not None:
            ear.close()

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        agents.heartbeat(self._ground, agent, claim)

    def agents(self) -> list[AgentView]:
        return agents.views(self._ground)

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        job_id, late = submit.enqueue(self._ground, submission)
        self._look_at(unblock.SUBMITTER, late)
        return job_id

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[str]:
        job_ids, late = submit.enqueue_many(self._ground, submissions)
        self._look_at(unblock.SUBMITTER, late)
        return job_ids

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        return submit.enqueue_claimed(self._ground, agent, submission)

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        job_id, late = submit.enqueue_named(self._ground, name, submission, instead_of)
        self._look_at(unblock.SUBMITTER, late)
        return job_id

    def named(self, name: str) -> str | None:
        return views.named(self._ground, name)

    def names(self) -> Mapping[str, str]:
        return views.names(self._ground)

    # --- working ---

    def claim(self, agent: Agent) -> Claim | None:
        return claim.claim(self._ground, agent)

    def claim_batch(self, agent: Agent, limit: int) -> list[Claim]:
        return claim.claim_batch(self._ground, agent, limit)

    def record_claim(self, claim: Claim) -> None:
        """Nothing is left to write: the script wrote it."""

    def hand_back(self, claims: Sequence[Claim]) -> None:
        if claims:
            claim.hand_back(self._ground, claims)

    def claim_or_wait(self, agent: Agent, limit: int, timeout_s: float) -> list[Claim]:
        with self._ears[agent.id].listening() as ear:
            return claim.claim_or_wait(self._ground, agent, limit, timeout_s, ear)

    def commit_and_claim(
        self, agent: Agent, ended: Sequence[tuple[Claim, Outcome]], limit: int
    ) -> tuple[list[Lifecycle | Lost], list[Claim]]:
        told: list[commit.Committed | Lost] = []
        claims: list[Claim] = []
        both: list[Both] = []
        scripts, server = self._ground.scripts, self._ground.server

        def ask(args: Sequence[Any]) -> Any:
            def last(row: Sequence[Any]) -> Any:
                both.append(server.run_both((scripts.commit, row), (scripts.claim, args)))
                return both[0].first

            told[:] = commit.commit_batch(self._ground, ended, last=last)
            if isinstance(both[0].second, FarroError):
                raise both[0].second
            return both[0].second

        try:
            claims = claim.asked(self._ground, agent, limit, ask)
        except FarroError:
            if not told:
                raise  # else what was committed is told first; the next claim meets the same trouble
        if (short := both[0].short) is not None:
            with contextlib.suppress(FarroError):  # as short as this; but nobody is left with them
                self.hand_back(claims)
            raise short
        return [self._looked(agent.id, what) for what in told], claims

    def commit_batch(self, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | Lost]:
        told: dict[int, Lifecycle | Lost] = {}
        rows: dict[str, list[int]] = {}
        for at, (had, _) in enumerate(ended):
            rows.setdefault(had.agent.id, []).append(at)
        for agent_id, row in rows.items():
            for at, what in zip(row, commit.commit_batch(self._ground, [ended[at] for at in row]), strict=True):
                told[at] = self._looked(agent_id, what)
        return [told[at] for at in range(len(ended))]

    def _looked(self, agent_id: str, what: commit.Committed | Lost) -> Lifecycle | Lost:
        if isinstance(what, Lost):
            return what
        self._look_at(agent_id, what[1])
        return what[0]

    def next_due(self, role: str) -> datetime | None:
        return claim.next_due(self._ground, role)

    def commit(self, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
        if move is not None:
            self._ground.check_role(move.role)
        lifecycle, others = commit.commit(self._ground, claim, outcome, move)
        self._look_at(claim.agent.id, others)
        return lifecycle

    def route(self, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
        return self.commit(claim, outcome, Move(reason=Reason.ROUTED, status=Status.QUEUED, role=role, note=note))

    def release(self, claim: Claim, note: str = "") -> Lifecycle:
        return self.commit(claim, Released(note=note))

    def _look_at(self, by: str, job_ids: Sequence[str]) -> None:
        """Those that waited for what was just done. It is done, whatever happens here: the next watchdog looks too."""
        if job_ids:
            with contextlib.suppress(TryAgain):
                unblock.look_at(self._ground, by, job_ids)

    # --- operators and the manager ---

    def requeue(self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None) -> Lifecycle:
        return self._decided(agent, edit.requeue(self._ground, agent, job_id, note, delay_s))

    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        return self._decided(agent, edit.kill(self._ground, agent, job_id, note, reason))

    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._decided(agent, edit.force_complete(self._ground, agent, job_id, note))

    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        done = edit.resolve_stale(self._ground, agent, job_id)
        return None if done is None else self._decided(agent, done)

    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        return self._decided(agent, edit.answer(self._ground, agent, job_id, answered))

    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        return self._decided(agent, edit.reroute(self._ground, agent, job_id, role, note, route))

    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        done = edit.finalize(self._ground, agent, job_id, note, route)
        return None if done is None else self._decided(agent, done)

    def _decided(self, agent: Agent, done: edit.Decided) -> Lifecycle:
        lifecycle, others = done
        self._look_at(agent.id, others)
        return lifecycle

    def open_failures(self) -> list[str]:
        return views.open_failures(self._ground)

    # --- keeping house ---

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        return recover.recover(self._ground, agent)

    def stale(self) -> list[str]:
        return views.stale(self._ground)

    def remove(self, agent: Agent, job_ids: Sequence[str]) -> list[str]:
        """Finished jobs with their names, ids and results, each at once; answers those that were removed."""
        return prune.remove(self._ground, agent, job_ids)

    # --- looking ---

    def find(self, job_id: str) -> JobView | None:
        return views.find(self._ground, job_id)

    def folder(self, view: JobView) -> str:
        return views.folder(self._ground, view)

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        return views.listing(self._ground, roles, statuses, limit)

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        return views.count(self._ground, roles)

    def pending(self, role: str) -> int:
        return views.pending(self._ground, role)

    def load(self, role: str | None) -> int:
        return views.load(self._ground, role)

    def prompts(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return views.prompts(self._ground, job_ids)

    def audit_lines(self, since_ms: int = 0, job_id: str | None = None) -> Iterator[dict[str, Any]]:
        """The common audit log: what every machine told of this store's jobs."""
        return views.audit_lines(self._ground, since_ms, job_id)

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._ground.audit(event, actor=actor, **codes)
        self._ground.write(event, {"actor": actor, **codes})

    # --- queues ---

    def pause(self, role: str, paused: QueuePause) -> bool:
        key, text = self._ground.keys.paused, paused.to_json()
        made = self._ground.server.call("HSETNX", key, self._ground.check_role(role), text)
        # 0 is also the answer to a call that is repeated because the first answer was lost.
        return bool(made == 1 or self._ground.server.call("HGET", key, role) == text)

    def resume(self, role: str) -> bool:
        answer = self._ground.server.run(
            self._ground.scripts.resume, self._ground.time(), self._ground.check_role(role), waits=True
        )
        return bool(answer == 1)

    def paused(self) -> Mapping[str, QueuePause]:
        told = pairs(self._ground.server.call("HGETALL", self._ground.keys.paused))
        return {role.decode(): QueuePause.from_json(text) for role, text in sorted(told.items())}

    # --- who manages (ports.fleet) ---

    def take_leadership(self, name: str, holder: str, *, lease_s: float) -> bool:
        return leader.take(self._ground, name, holder, lease_s)

    def release_leadership(self, name: str, holder: str) -> None:
        leader.leave(self._ground, name, holder)

    def leader_status(self, name: str) -> LeaderStatus | None:
        return leader.leader_status(self._ground, name)

    # --- waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        if role is not None:
            self._ground.check_role(role)
        feed = self._feeds.get(role)
        if feed is not None:  # else nobody waits: whoever does has a cursor of it
            feed.wake()
        with self._lock:
            ears = [ear for ear in self._ears.values() if ear.role == role]
        for ear in ears:
            ear.call()

    def _feed(self, role: str | None) -> ChangeFeed:
        if role is not None:
            self._ground.check_role(role)
        feed = self._feeds.get(role)
        if feed is None:
            made = ChangeFeed(Stream(self._ground, role))  # which asks the server: whoever wakes does not wait for that
            with self._lock:
                feed = self._feeds.setdefault(role, made)
            if feed is not made:
                made.close()
        return feed

    def close(self) -> None:
        for feed in list(self._feeds.values()):
            feed.close()
        for ear in list(self._ears.values()):
            ear.close()
        with contextlib.suppress(TryAgain):
            for agent_id in list(self._ground.beats):
                agents.leave(self._ground, Agent(id=agent_id, role=None))
        self._ground.server.close()
        if self._on_close is not None:
            self._on_close()
