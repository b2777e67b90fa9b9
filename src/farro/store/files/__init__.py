"""The file store: jobs are folders, transitions are renames. `FilesStore` is the Store port on one machine.

Each part of a transaction is a file here, with what a crash at each of its points leaves. The rules behind all of them:

- R1 The path is the state; a transition is one rename that never replaces; every editor is a leased agent that moves
  the job into its own folder, then reads, then edits (moving, hold, recover). [test_move_before_read,
  test_a_rename_onto_an_existing_directory_is_refused, test_watchdog_manager_and_operator_edit_one_stale_job]
- R2 Agents' names are never used twice, so a fenced agent's paths give ENOENT (agents, kernel.ids).
  [test_agents_are_never_of_the_same_name, test_a_zombie_that_commits_after_recovery_has_lost_its_claim]
- R3 Liveness is the kernel's flock and nothing else (system.leases, agents). [test_identity_never_decides_death,
  test_an_agent_appears_already_leased, test_without_the_fork_guard_a_child_keeps_a_dead_agent_alive]
- R4 No handle into a job's folder outlives a call; paths are resolved from the root (system.fs).
  [test_no_handle_into_a_jobs_folder_is_kept]
- R5 Temporary names are random, exclusive and outside every pattern; synced before they replace (system.fs).
  [test_temporary_names_are_unique_and_outside_every_pattern, test_power_cut_keeps_what_was_acknowledged]
- R6 An attempt is counted before its work starts; its tree ends before the job is let go; a claim risks nothing that
  was decided (folder, claim, execution). [test_an_attempt_is_counted_before_work_starts]
- R7 After an ambiguous error both ends are looked at; what is in the way is quarantined; a failed sync acknowledges
  nobody (moving, folder, system.group_commit). [test_enoent_with_the_source_still_there_is_not_a_fence,
  test_an_error_after_the_call_took_effect, test_a_failed_sync_acknowledges_nobody_of_its_group]
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from farro.errors import InputError, Lost
from farro.host import fs
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Outcome, Released
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.log.audit import Value
from farro.store.feed import ChangeFeed
from farro.store.files import (
    agents,
    claim,
    decisions,
    dependencies,
    hold,
    journal_replay,
    names,
    prune,
    recover,
    submit,
    unblock,
    views,
)
from farro.store.files import changes as watch
from farro.store.files import commit as settle
from farro.store.files import pause as pausing
from farro.store.files.context import Ground, Held, check_root
from farro.store.files.errors import explained
from farro.store.files.queue import QueueView
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


class FilesStore:
    """The Store port over a folder. See ports.store for what each call promises."""

    def __init__(self, ground: Ground, on_close: Callable[[], None] | None = None) -> None:
        check_root(ground.root)
        self._ground = ground
        journal_replay.replay(ground)  # before anyone looks: after a power cut the journals know better than the tree
        self._on_close = on_close
        self._feeds: dict[str | None, ChangeFeed] = {}
        self._views: dict[tuple[str, frozenset[str]], QueueView] = {}
        self._view_lock = threading.Lock()
        self._pulse = recover.Pulse()
        self._failures = decisions.Failures()

    @property
    def root(self) -> str:
        return self._ground.root

    @explained
    def roles(self) -> list[str]:
        return self._ground.roles()

    # --- agents ---

    @explained
    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        return agents.join(self._ground, name, role=role, slot=slot, tags=tags)

    @explained
    def leave(self, agent: Agent) -> None:
        agents.leave(self._ground, agent)

    @explained
    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        agents.heartbeat(self._ground, agent, claim)

    @explained
    def agents(self) -> list[AgentView]:
        return agents.views(self._ground)

    # --- submitting ---

    @explained
    def enqueue(self, submission: Submission) -> str:
        return self._enqueued([submission])[0]

    @explained
    def enqueue_many(self, submissions: Sequence[Submission]) -> list[str]:
        return self._enqueued(submissions)

    def _enqueued(self, submissions: Sequence[Submission]) -> list[str]:
        made = submit.enqueue_many(self._ground, submissions)
        blocked = [job_id for job_id, item in zip(made, submissions, strict=True) if dependencies.waits(item)]
        if blocked:
            unblock.look_again(self._ground, blocked)
        return made

    @explained
    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        held = self._ground.mine(agent)
        assert agent.role == submission.role, "an agent works its own role"
        if dependencies.waits(submission):
            raise InputError("a job that runs after others cannot start at once; enqueue it")
        (job_id,) = submit.enqueue_many(self._ground, [submission], into=held.folder)
        return claim.begin_at_once(self._ground, held, job_id) if fs.exists(f"{held.folder}/{job_id}") else None

    @explained
    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        job_id = names.enqueue(self._ground, name, submission, instead_of)
        if dependencies.waits(submission):
            unblock.look_again(self._ground, [job_id])
        return job_id

    @explained
    def named(self, name: str) -> str | None:
        return names.named(self._ground, name)

    @explained
    def names(self) -> Mapping[str, str]:
        return names.names(self._ground)

    # --- working ---

    @explained
    def claim(self, agent: Agent) -> Claim | None:
        return claim.claim(self._ground, *self._working(agent))

    @explained
    def claim_batch(self, agent: Agent, limit: int) -> list[Claim]:
        return claim.claim_batch(self._ground, *self._working(agent), limit)

    @explained
    def record_claim(self, claim_: Claim) -> None:
        claim.record_claim(self._ground, self._ground.mine(claim_.agent), claim_)

    @explained
    def hand_back(self, claims: Sequence[Claim]) -> None:
        for one in claims:
            with contextlib.suppress(Lost):
                if not claim.hand_back(self._ground, self._ground.mine(one.agent), one):
                    self.release(one, "not begun")

    @explained
    def commit_batch(self, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | Lost]:
        done = settle.commit_batch(self._ground, ended)
        unblock.after_end(self._ground, [what for what in done if isinstance(what, Lifecycle)])
        told = [what for what in done if isinstance(what, Lifecycle | Lost)]
        for what in done:
            if not isinstance(what, Lifecycle | Lost):
                raise what
        return told

    def next_due(self, role: str) -> datetime | None:
        try:
            if pausing.is_paused(self._ground, role):  # else whoever sleeps until then wakes again and again
                return None
        except OSError:
            return None  # whoever asks is about to wait, and its next claim says what is wrong
        with self._view_lock:
            dues = [view.next_due_s() for (owner, _), view in self._views.items() if owner == role]
        known = [due for due in dues if due is not None]
        return datetime.fromtimestamp(min(known), UTC) if known else None

    def _working(self, agent: Agent) -> tuple[Held, QueueView]:
        """What it claims into, and from: one view for all slots of this process."""
        assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
        held = self._ground.mine(agent)
        with self._view_lock:
            return held, self._view(agent.role, agent.tags)

    def _view(self, role: str, tags: frozenset[str]) -> QueueView:
        key = (role, tags)
        if key not in self._views:
            self._ground.fresh.wanted(role)
            self._views[key] = QueueView(self._ground, role, self._feed(role))
        return self._views[key]

    @explained
    def commit(self, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
        if move is not None:
            self._ground.check_role(move.role)
        return self._ended(settle.commit(self._ground, claim, outcome, move))

    def _ended(self, told: Lifecycle) -> Lifecycle:
        """After everything that may end a job: those that waited for it. Recovery does the same in its own pass."""
        unblock.after_end(self._ground, [told])
        return told

    @explained
    def route(self, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
        self._ground.check_role(role)
        move = Move(reason=Reason.ROUTED, status=Status.QUEUED, role=role, note=note)
        return settle.commit(self._ground, claim, outcome, move)

    @explained
    def release(self, claim: Claim, note: str = "") -> Lifecycle:
        return self.commit(claim, Released(note=note))

    # --- operators and the manager ---

    @explained
    def requeue(self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None) -> Lifecycle:
        return hold.requeue(self._ground, self._ground.mine(agent), job_id, note, delay_s)

    @explained
    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        return self._ended(hold.kill(self._ground, self._ground.mine(agent), job_id, note, reason))

    @explained
    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._ended(hold.force_complete(self._ground, self._ground.mine(agent), job_id, note))

    @explained
    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        told = hold.resolve_stale(self._ground, self._ground.mine(agent), job_id)
        return None if told is None else self._ended(told)

    @explained
    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        return decisions.answer(self._ground, self._ground.mine(agent), job_id, answered)

    @explained
    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        self._ground.check_role(role)
        return decisions.reroute(self._ground, self._ground.mine(agent), job_id, role, note, route)

    @explained
    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        told = decisions.finalize(self._ground, self._ground.mine(agent), job_id, note, route)
        return None if told is None else self._ended(told)

    @explained
    def open_failures(self) -> list[str]:
        return self._failures.open(self._ground)

    # --- keeping house ---

    @explained
    def recover(self, agent: Agent) -> list[RecoveryAction]:
        return recover.recover(self._ground, self._ground.mine(agent), self._pulse)

    @explained
    def stale(self) -> list[str]:
        return sorted(fs.subdirectories(self._ground.path(places.STALE)))

    @contextlib.contextmanager
    def trash(self) -> Iterator[prune.Trash]:
        """Finished jobs may be removed, by one process at a time."""
        with prune.opened(self._ground) as trash:
            yield trash

    # --- queues ---

    @explained
    def pause(self, role: str, paused: QueuePause) -> bool:
        return pausing.pause(self._ground, role, paused)

    @explained
    def resume(self, role: str) -> bool:
        return pausing.resume(self._ground, role)

    @explained
    def paused(self) -> Mapping[str, QueuePause]:
        return pausing.paused(self._ground)

    # --- looking ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        feed = self._feeds.get(role)  # one that does not exist yet has nobody waiting; and a signal handler makes none
        if feed is not None:
            feed.wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        feed = self._feeds.get(role)
        if feed is None:
            if role is not None:
                self._ground.check_role(role)
            with self._ground.lock:
                feed = self._feeds.get(role)
                if feed is None:
                    feed = self._feeds[role] = ChangeFeed(watch.source(self._ground, role))
        return feed

    @explained
    def find(self, job_id: str) -> JobView | None:
        return views.find(self._ground, job_id)

    def folder(self, view: JobView) -> str:
        return f"{self._ground.root}/{view.place}/{view.job_id}"

    @explained
    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        return views.listing(self._ground, roles, statuses, limit)

    @explained
    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        return views.counts(self._ground, roles)

    @explained
    def pending(self, role: str) -> int:
        return views.pending(self._ground, role) or dependencies.coming(self._ground, role)

    @explained
    def load(self, role: str | None) -> int:
        return views.load(self._ground, role)

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._ground.audit(event, actor=actor, **codes)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        for held in list(self._ground.held.values()):
            agents.leave(self._ground, held.agent)
        if self._ground.journal is not None:
            self._ground.journal.close()
        if self._on_close is not None:
            self._on_close()
