"""Keep jobs in a Redis or Valkey server, for workers on many machines. `RedisStore` implements the Store port.

Each Lua script in scripts/ is one transaction; its head states what a crash leaves. The head of scripts/prelude.lua
documents the keys.

- The rules of a job's lifecycle stay in Python (farro.jobs.moves). A script only compares a fence and swaps.
  Enqueue, claim and commit take one round trip each. [test_a_job_takes_three_round_trips_whatever_the_backlog]
- The fence is (agent, attempt), and the agent must be alive by the server's clock.
  [test_an_agent_whose_lease_is_over_is_fenced_though_it_lives]
- Every call can be repeated after a lost answer. [test_a_call_with_a_lost_answer_is_repeated_safely]
- Acknowledged changes are as durable as the server's persistence and replicas make them: docs/redis.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from farro.errors import FarroError, TryAgain
from farro.jobs.envelope import Lifecycle
from farro.jobs.retry import RetryPolicy, Uniform
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.log.audit import Value
from farro.store.audit_events import SharedAuditEvents
from farro.store.feed import ChangeFeed
from farro.store.listed_queries import ListedQueries
from farro.store.operator_verbs import Choose, OperatorVerbs
from farro.store.port import (
    Agent,
    AgentView,
    AttemptResult,
    Changes,
    Claim,
    Commits,
    JobAt,
    JobEntry,
    JobView,
    NextClaim,
    QueuePause,
    RecoveryAction,
    Removed,
    Submission,
    Submitted,
)
from farro.store.redis import agents, claim, commit, decisions, recover, submit, views
from farro.store.redis.commit import Committed
from farro.store.redis.context import RedisContext
from farro.store.redis.death_watch import RedisDeathWatch
from farro.store.redis.feed import ChangeStream, Wakeup
from farro.store.redis.leadership import RedisLeadership
from farro.store.redis.records import pairs

if TYPE_CHECKING:
    from farro.store.redis.accounts import RedisAccounts

T = TypeVar("T")


def _by_agent(items: Sequence[T], agent_of: Callable[[T], str]) -> dict[str, list[int]]:
    """Group the positions of the items by agent."""
    groups: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        groups.setdefault(agent_of(item), []).append(at)
    return groups


class RedisStore(OperatorVerbs, ListedQueries):
    """Implement the Store port over a Redis server. farro.store.port states what each call guarantees."""

    def __init__(self, context: RedisContext, on_close: Callable[[], None] | None = None) -> None:
        self._context = context
        self._on_close = on_close
        self._feeds: dict[str | None, ChangeFeed] = {}
        self._wakeups: dict[str, Wakeup] = {}  # agent → what ends its waiting claim early
        self._lock = threading.Lock()  # guards _feeds and _wakeups

    @property
    def root(self) -> str:
        return self._context.root

    def roles(self) -> list[str]:
        return list(self._context.roles)

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        agent = agents.join(self._context, name, role=role, slot=slot, tags=tags)
        if role is not None:
            with self._lock:
                self._wakeups[agent.id] = Wakeup(role)  # made before the agent waits, so that an early wake is not lost
        return agent

    def leave(self, agent: Agent) -> None:
        agents.leave(self._context, agent)
        with self._lock:
            wakeup = self._wakeups.pop(agent.id, None)
        if wakeup is not None:
            wakeup.close()

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        agents.heartbeat(self._context, agent, claim)

    def agents(self) -> list[AgentView]:
        return agents.views(self._context)

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        job_id, late = submit.enqueue(self._context, submission)
        self._unblock(recover.SUBMITTER, late)
        return job_id

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        made, late = submit.enqueue_many(self._context, submissions)
        self._unblock(recover.SUBMITTER, late)
        return made

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        return submit.enqueue_claimed(self._context, agent, submission)

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        job_id, late = submit.enqueue_named(self._context, name, submission, instead_of)
        self._unblock(recover.SUBMITTER, late)
        return job_id

    def named(self, name: str) -> str | None:
        return views.named(self._context, name)

    def names(self) -> Mapping[str, str]:
        return views.names(self._context)

    # --- working ---

    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        if wait_s <= 0:
            return claim.claim(self._context, agent, limit)
        with self._wakeups[agent.id].listening() as wakeup:
            return claim.claim_or_wait(self._context, agent, limit, wait_s, wakeup)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        for mine in _by_agent(claims, lambda each: each.agent.id).values():
            claim.hand_back(self._context, [claims[at] for at in mine])

    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        """Send one request for each agent. That of the agent that claims next is the last, and has both."""
        answers: dict[int, Lifecycle | FarroError] = {}
        claims: list[Claim] = []
        groups = _by_agent(results, lambda each: each.claim.agent.id)
        last = groups.pop(then_claim.agent.id, []) if then_claim is not None else []
        for agent_id, indexes in groups.items():
            committed = commit.commit(self._context, [results[at] for at in indexes])
            answers.update(zip(indexes, self._unblocked(agent_id, committed), strict=True))
        if then_claim is not None:
            ended = [results[at] for at in last]
            committed, claims = claim.commit_and_claim(self._context, ended, *then_claim)
            answers.update(zip(last, self._unblocked(then_claim.agent.id, committed), strict=True))
        return Commits([answers[at] for at in range(len(results))], claims)

    def _unblocked(self, agent_id: str, committed: Sequence[Committed | FarroError]) -> list[Lifecycle | FarroError]:
        """Unblock the jobs that waited for these; return the answers."""
        answers: list[Lifecycle | FarroError] = []
        for answer in committed:
            if isinstance(answer, FarroError):
                answers.append(answer)
            else:
                self._unblock(agent_id, answer[1])
                answers.append(answer[0])
        return answers

    def next_due(self, role: str) -> datetime | None:
        return claim.next_due(self._context, role)

    def _unblock(self, by: str, job_ids: Sequence[str]) -> None:
        """Unblock the jobs that waited for the change just made. That change stands even if this fails: the next
        watchdog unblocks them."""
        if job_ids:
            with contextlib.suppress(TryAgain):
                recover.unblock(self._context, by, job_ids)

    # --- operators and the manager ---

    def retry_rules(self) -> tuple[RetryPolicy, Uniform]:
        return self._context.policy.retry, self._context.uniform

    def decide_job(self, agent: Agent, job_id: str, choose: Choose, *, text: str | None = None) -> Lifecycle | None:
        done = decisions.decide_and_swap(self._context, agent, job_id, choose, text=text)
        if done is None:
            return None
        lifecycle, others = done
        self._unblock(agent.id, others)
        return lifecycle

    def open_failures(self) -> list[str]:
        return views.open_failures(self._context)

    # --- maintenance ---

    def watch_deaths(self, *, stale: bool = False) -> RedisDeathWatch:
        return RedisDeathWatch(self._context)

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        return recover.recover(self._context, agent)

    def stale(self) -> list[str]:
        return views.stale(self._context)

    def remove(
        self,
        jobs: Sequence[JobAt],
        *,
        by: str,
        leftovers: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Removed:
        """Remove finished jobs with their names, ids and results, one transaction each, so nothing is ever left half
        removed."""
        removed = 0
        agent = self.join(by, role=None)
        try:
            for done, job in enumerate(jobs, start=1):
                removed += decisions.remove(self._context, agent, job.job_id)
                progress(done, len(jobs))
        finally:
            self.leave(agent)
        return Removed(jobs=removed)

    # --- queries ---

    def find(self, job_id: str, *, place: str | None = None) -> JobView | None:
        return views.find(self._context, job_id)

    def folder(self, view: JobView) -> str:
        return views.folder(self._context, view)

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        return views.listing(self._context, roles, statuses, limit)

    def waiting(self) -> Sequence[JobEntry]:
        return views.waiting(self._context)

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        return views.count(self._context, roles)

    def pending(self, role: str) -> int:
        return views.pending(self._context, role)

    def load(self, role: str | None) -> int:
        return views.load(self._context, role)

    def prompts(self, jobs: Sequence[JobAt]) -> Mapping[str, Mapping[str, Any]]:
        return views.prompts(self._context, [job.job_id for job in jobs])

    def audit_lines(self, since_ms: int = 0, job_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield lines of the common audit log, to which every machine that uses this store writes."""
        return views.audit_lines(self._context, since_ms, job_id)

    def audit_events(self) -> SharedAuditEvents:
        return SharedAuditEvents(self.audit_lines)

    def entry_order(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        """Return each job's position in the common audit log, which scripts write as they change a queue."""
        first = min((job.lifecycle.enqueued_at for job in jobs), default=None)
        since = moment_or_none(first)
        lines = self.audit_lines(0 if since is None else int(since.timestamp() * 1000) - 60_000)
        places = {line.get("job_id"): place for place, line in enumerate(lines) if line.get("status") == "queued"}
        return {job.job_id: places.get(job.job_id, 0) for job in jobs}

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._context.audit(event, actor=actor, **codes)
        self._context.write_audit(event, {"actor": actor, **codes})

    # --- queues ---

    def pause(self, role: str, paused: QueuePause) -> bool:
        key, text = self._context.keys.paused, paused.to_json()
        made = self._context.client.call("HSETNX", key, self._context.check_role(role), text)
        # 0 is also the answer to a call that was repeated because its first answer was lost.
        return bool(made == 1 or self._context.client.call("HGET", key, role) == text)

    def resume(self, role: str) -> bool:
        answer = self._context.client.run(
            self._context.scripts.resume, self._context.script_time(), self._context.check_role(role), waits=True
        )
        return bool(answer == 1)

    def paused(self) -> Mapping[str, QueuePause]:
        paused = pairs(self._context.client.call("HGETALL", self._context.keys.paused))
        return {role.decode(): QueuePause.from_json(text) for role, text in sorted(paused.items())}

    def leadership(self) -> RedisLeadership:
        return RedisLeadership(context=self._context)

    def accounts(self) -> RedisAccounts:
        from farro.store.redis.accounts import RedisAccounts  # imported here: few commands ask
        from farro.store.redis.client import RedisClient

        context = self._context
        server = RedisClient(context.address, context.keys.prefix, context.clock)
        return RedisAccounts(server, context.name, context.clock, uniform=context.uniform)

    # --- waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        if role is not None:
            self._context.check_role(role)
        feed = self._feeds.get(role)
        if feed is not None:  # otherwise no caller waits: each one that waits has a cursor of the feed
            feed.wake()
        with self._lock:
            wakeups = [wakeup for wakeup in self._wakeups.values() if wakeup.role == role]
        for wakeup in wakeups:
            wakeup.wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        if role is not None:
            self._context.check_role(role)
        feed = self._feeds.get(role)
        if feed is None:
            made = ChangeFeed(
                ChangeStream(self._context, role)
            )  # outside the lock: it asks the server, and `wake` must not wait for that
            with self._lock:
                feed = self._feeds.setdefault(role, made)
            if feed is not made:
                made.close()
        return feed

    def close(self) -> None:
        for feed in list(self._feeds.values()):
            feed.close()
        for wakeup in list(self._wakeups.values()):
            wakeup.close()
        with contextlib.suppress(TryAgain):
            for agent_id in list(self._context.last_heard_s):
                agents.leave(self._context, Agent(id=agent_id, role=None))
        self._context.client.close()
        if self._on_close is not None:
            self._on_close()
