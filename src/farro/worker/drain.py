"""Decide when a draining worker is done: nothing is queued, delayed, running or stale in its queue.

Jobs of dead agents belong to it. A live watchdog or manager queues them again; where none lives, this worker does it
itself. What it waits for is logged once, so that a user sees why the worker does not end.
"""

from __future__ import annotations

from collections.abc import Callable

from farro.host.clock import Clock
from farro.jobs.moves import awaited_accounts
from farro.jobs.states import Status
from farro.log.structured import Log
from farro.store.port import Store
from farro.worker.watchdog import Recovery
from farro.worker.worker import Turn

_RECOVERERS = ("watchdog", "manager")  # names of agents that recover the jobs of others
_READ = 1000  # jobs of the queue that are looked at
TELL_AFTER_S = 3.0  # a shorter wait is not worth a line


class Drained:
    """Port: Until. One for all slots of a worker."""

    patience_s = 0.5  # another worker's job may end, or come back, without a change in this queue

    def __init__(self, *, store: Store, role: str, clock: Clock, log: Log, recovery: Recovery) -> None:
        self._store = store
        self._role = role
        self._clock = clock
        self._log = log
        self._recovery = recovery
        self._idle_since_s: float | None = None
        self._told = ""

    def over(self, turn: Turn) -> bool:
        if turn is not Turn.IDLE:
            self._idle_since_s = None
            return False
        stale = self._stale()
        if self._store.pending(self._role) == 0 and not stale:
            return True
        if self._recovered(stale):
            return False
        if why := self._stays():
            if self._told != why:  # by one of the slots
                self._log("warning", why, {"role": self._role, "event": {"type": "drain_paused"}})
            self._told = why
            return True
        now_s = self._clock.monotonic_s()
        self._idle_since_s = self._idle_since_s or now_s
        if now_s - self._idle_since_s >= TELL_AFTER_S:
            self._tell(self._waits_for())
        return False

    def _stays(self) -> str:
        """Say why what is left stays in the queue until a person acts; empty if it does not."""
        if self._role in self._store.paused():
            return f"the queue of {self._role} is paused: what is queued stays (farro resume {self._role})"
        refused = {pause.account for pause in self._store.accounts().paused() if pause.until is None}
        if not refused:
            return ""
        queued = self._store.list(roles=[self._role], statuses=[Status.QUEUED], limit=_READ)
        awaited = [awaited_accounts(view.lifecycle) for view in queued]
        running = self._store.pending(self._role) > len(queued) and len(queued) < _READ
        if running or not all(accounts and refused.issuperset(accounts) for accounts in awaited):
            return ""
        account = awaited[0][0]
        return f"account {account} is refused: what is queued stays (farro provider resume {account})"

    def _stale(self) -> list[str]:
        found = map(self._store.find, self._store.stale())
        return [view.job_id for view in found if view is not None and view.lifecycle.role == self._role]

    def _recovered(self, stale: list[str]) -> bool:
        """Recover the jobs of dead agents and queue stale ones again, where no other process will. Return whether
        something changed."""
        agents = self._store.agents()
        left = any(agent.jobs for agent in agents if not agent.alive)
        if not (stale or left) or any(agent.alive and agent.id.split(".")[0] in _RECOVERERS for agent in agents):
            return False
        agent = self._store.join("drain", role=None)
        try:
            recovered = self._recovery.run_once(self._store, agent, self._log)
            decided = [self._store.resolve_stale(agent, job_id) for job_id in self._stale()]
            return bool(recovered) or any(decided)
        finally:
            self._store.leave(agent)

    def _tell(self, what: str) -> None:
        if what and what != self._told:
            self._log("warning", f"still waiting for {what}", {"role": self._role, "event": {"type": "drain_waits"}})
        self._told = what

    def _waits_for(self) -> str:
        """Describe jobs that no live agent works on; empty if all that is left is running."""
        left = [
            view
            for agent in self._store.agents()
            if agent.role == self._role and not agent.alive
            for view in agent.jobs
        ]
        queued = self._store.list(roles=[self._role], statuses=[Status.QUEUED], limit=100)
        blocked = [view.job_id for view in queued if view.waits_for]
        delayed = [view for view in queued if view.lifecycle.not_before is not None and not view.waits_for]
        limited = [view.job_id for view in delayed if awaited_accounts(view.lifecycle)]
        late = [view.job_id for view in delayed if view.lifecycle.attempt == 0 and view.job_id not in limited]
        again = [view.job_id for view in delayed if view.lifecycle.attempt > 0 and view.job_id not in limited]
        refused = [view.job_id for view in queued if view.lifecycle.not_before is None and not view.waits_for]
        parts = [
            f"{_some(jobs)} {why}"
            for jobs, why in (
                (left, "in the hands of a dead agent (farro watchdog recovers it)"),
                (blocked, "until what it runs after has ended (farro watchdog, if a dead worker ended it)"),
                (limited, "until the account of its provider resets (farro status)"),
                (late, "until the time that it was queued for (--delay, --at)"),
                (again, "until the time of its next attempt"),
                (
                    refused,
                    "queued, which this worker may not take (its tags, an unknown schema version, or it is not a job)",
                ),
            )
            if jobs
        ]
        return " and ".join(parts)


class Emptied:
    """Port: Until. The same where only the length of the queue is known (agq)."""

    patience_s = 0.5

    def __init__(self, pending: Callable[[], int]) -> None:
        self._pending = pending

    def over(self, turn: Turn) -> bool:
        return turn is Turn.IDLE and self._pending() == 0


def _some(jobs: list[str]) -> str:
    return jobs[0] if len(jobs) == 1 else f"{len(jobs)} jobs, {jobs[0]} among them,"
