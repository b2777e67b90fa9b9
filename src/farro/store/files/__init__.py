"""The file store: jobs are folders, transitions are renames. `FilesStore` is the Store port on one machine.

Each operation is a module that documents what a crash at each of its points leaves. The rules behind all of them:

- R1 The path is the state; a transition is one rename that never replaces; every editor is a leased agent that moves
  the job into its own folder, then reads, then edits (move, decisions, recover). [test_move_before_read,
  test_a_rename_onto_an_existing_directory_is_refused,
  test_watchdog_manager_and_operator_edit_a_stale_job_one_at_a_time]
- R2 Agents' names are never used twice, so a fenced agent's paths give ENOENT (agents, jobs.ids).
  [test_agent_names_are_never_reused, test_a_zombie_that_commits_after_recovery_has_lost_its_claim]
- R3 Liveness is the kernel's flock and nothing else (host.leases, agents). [test_identity_never_decides_death,
  test_an_agent_appears_already_leased, test_without_the_fork_guard_a_child_keeps_a_dead_agent_alive]
- R4 No handle into a job's folder outlives a call; paths are resolved from the root (host.fs).
  [test_no_handle_into_a_jobs_folder_is_kept]
- R5 Temporary names are random, exclusive and outside every pattern; synced before they replace (host.fs).
  [test_temporary_names_are_unique_and_outside_every_pattern, test_power_cut_keeps_what_was_acknowledged]
- R6 An attempt is counted before its work starts; its processes end before the job is given up; a claim risks nothing
  that was decided (folder, claim, execution). [test_an_attempt_is_counted_before_work_starts]
- R7 After an ambiguous error both ends are checked; an obstacle is quarantined; a failed sync acknowledges no caller
  (move, folder, host.group_commit). [test_enoent_with_the_source_still_there_is_not_a_fence,
  test_an_error_after_the_call_took_effect, test_a_failed_sync_acknowledges_no_call_of_its_group]
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from farro.errors import FarroError, InputError, Lost, Refused, SyncFailed
from farro.host import fs
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Released
from farro.jobs.states import FINISHED, Reason, Status
from farro.late_module import LateModule
from farro.lazy_dataclass import replace
from farro.log.audit import Value
from farro.store.feed import ChangeFeed
from farro.store.files.context import FilesContext, LocalAgent, check_root, folders_apart
from farro.store.files.errors import explained
from farro.store.port import (
    Agent,
    AgentView,
    Archived,
    AttemptResult,
    Changes,
    Claim,
    Commits,
    JobAt,
    JobEntry,
    JobView,
    NextClaim,
    PersonAnswer,
    QueueCounts,
    QueuePause,
    RecoveryAction,
    Removed,
    Submission,
    Submitted,
    commit_one,
)

if TYPE_CHECKING:
    from farro.store.audit_events import RootAuditEvents
    from farro.store.files import (
        agents,
        changes,
        claim,
        commit,
        decisions,
        dependencies,
        journal_replay,
        names,
        pause,
        prune,
        recover,
        submit,
        unblock,
        views,
    )
    from farro.store.files.accounts import FilesAccounts
    from farro.store.files.queue import QueueView
    from farro.store.leadership import FileLeadership
else:  # listing jobs needs two of them
    agents = LateModule("farro.store.files.agents")
    changes = LateModule("farro.store.files.changes")
    claim = LateModule("farro.store.files.claim")
    commit = LateModule("farro.store.files.commit")
    decisions = LateModule("farro.store.files.decisions")
    dependencies = LateModule("farro.store.files.dependencies")
    journal_replay = LateModule("farro.store.files.journal_replay")
    names = LateModule("farro.store.files.names")
    pause = LateModule("farro.store.files.pause")
    prune = LateModule("farro.store.files.prune")
    recover = LateModule("farro.store.files.recover")
    submit = LateModule("farro.store.files.submit")
    unblock = LateModule("farro.store.files.unblock")
    views = LateModule("farro.store.files.views")


def load_operations() -> None:
    """Import every operation now, as a daemon does when it starts."""
    for operation in globals().copy().values():
        if isinstance(operation, LateModule):
            import_module(operation.__name__)


@explained
def _has_journals(context: FilesContext) -> bool:
    try:
        return any(not name.startswith(".") for name in fs.listdir(context.path("jobs/.journal")))
    except FileNotFoundError:
        return False


class FilesStore:
    """The Store port over a folder. store.port documents what each call promises."""

    def __init__(self, context: FilesContext, on_close: Callable[[], None] | None = None) -> None:
        check_root(context.root)
        self._context = context
        if _has_journals(context):
            journal_replay.replay(context)  # first of all: after a power cut the journals are ahead of the tree
        self._on_close = on_close
        self._feeds: dict[str | None, ChangeFeed] = {}
        self._views: dict[tuple[str, frozenset[str]], QueueView] = {}
        self._view_lock = threading.Lock()

    @property
    def root(self) -> str:
        return self._context.root

    @property
    def live_folders(self) -> bool:
        return True

    @cached_property
    def _heartbeats(self) -> recover.HeartbeatMonitor:
        return recover.HeartbeatMonitor()

    @cached_property
    def _open_failures(self) -> decisions.OpenFailures:
        return decisions.OpenFailures()

    @cached_property
    def _counter(self) -> views.FolderCounter:
        return views.FolderCounter(self._context)

    @explained
    def check_ready(self) -> None:
        """Refuse queue folders on several filesystems: a rename between them fails (SPEC-1 §5: fail fast)."""
        away = folders_apart(self.root)
        if away:
            self.note("cross_volume_forbidden", place=away[0], count=len(away))
            raise Refused(
                f"{away[0]} is on another device or mount than {self.root}, and a job is handed on by a rename. A root "
                f"must be on one filesystem; `farro doctor --root {self.root}` says what to do"
            )

    @explained
    def roles(self) -> list[str]:
        return self._context.roles()

    # --- agents ---

    @explained
    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        return agents.join(self._context, name, role=role, slot=slot, tags=tags)

    @explained
    def leave(self, agent: Agent) -> None:
        agents.leave(self._context, agent)

    @explained
    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        agents.heartbeat(self._context, agent, claim)
        if claim is not None:
            from farro.store.files.claim import record_claim  # the parameter has the name of its module

            record_claim(self._context, self._context.local_agent(agent), claim)

    @explained
    def agents(self) -> list[AgentView]:
        return agents.views(self._context)

    # --- submitting ---

    @explained
    def enqueue(self, submission: Submission) -> str:
        return self._enqueued([submission])[0].id

    @explained
    def enqueue_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        return self._enqueued(submissions)

    def _enqueued(self, submissions: Sequence[Submission]) -> list[Submitted]:
        made = submit.enqueue_many(self._context, submissions)
        blocked = [job.id for job, item in zip(made, submissions, strict=True) if dependencies.waits(item)]
        if blocked:
            unblock.recheck(self._context, blocked)
        return made

    @explained
    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        owner = self._context.local_agent(agent)
        assert agent.role == submission.role, "an agent works its own role"
        if dependencies.waits(submission):
            raise InputError("a job that runs after others cannot start at once; enqueue it")
        (job,) = submit.enqueue_many(self._context, [submission], into=owner.folder)
        return claim.begin_at_once(self._context, owner, job.id) if fs.exists(f"{owner.folder}/{job.id}") else None

    @explained
    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        job_id = names.enqueue(self._context, name, submission, instead_of)
        if dependencies.waits(submission):
            unblock.recheck(self._context, [job_id])
        return job_id

    @explained
    def named(self, name: str) -> str | None:
        return names.named(self._context, name)

    @explained
    def names(self) -> Mapping[str, str]:
        return names.names(self._context)

    # --- claiming and committing ---

    @explained
    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        owner, view = self._agent_and_queue(agent)
        if wait_s <= 0:
            return self._claim(owner, view, limit)
        if owner.idle_since is None and (claims := self._claim(owner, view, limit)):
            return claims
        self._wait(owner, view, wait_s)
        return self._claim(owner, view, limit)

    def _claim(self, owner: LocalAgent, view: QueueView, limit: int) -> list[Claim]:
        cursor = view.cursor  # before the claim: a job that enters meanwhile ends the next wait
        claims = claim.claim(self._context, owner, view, limit)
        owner.idle_since = None if claims else cursor
        return claims

    def _wait(self, owner: LocalAgent, view: QueueView, wait_s: float) -> None:
        """Wait for a job that entered since this agent found nothing, or for a `wake` since then."""
        assert owner.agent.role is not None
        due = self.next_due(owner.agent.role)
        if due is not None:
            wait_s = min(wait_s, max(0.0, (due - self._context.clock.now()).total_seconds()))
        view.feed.since(owner.idle_since, wait_s)

    @explained
    def hand_back(self, claims: Sequence[Claim]) -> None:
        for one in claims:
            with contextlib.suppress(Lost):
                if not claim.hand_back(self._context, self._context.local_agent(one.agent), one):
                    commit_one(self, one, Released(note="not begun"))

    def next_due(self, role: str) -> datetime | None:
        try:
            if pause.is_paused(self._context, role):  # else a worker that sleeps until then would wake again and again
                return None
        except OSError:
            return None  # the caller is about to wait, and its next claim reports the error
        with self._view_lock:
            dues = [view.next_due_s() for (owner, _), view in self._views.items() if owner == role]
        known = [due for due in dues if due is not None]
        return datetime.fromtimestamp(min(known), UTC) if known else None

    def _agent_and_queue(self, agent: Agent) -> tuple[LocalAgent, QueueView]:
        """Return the agent that claims, and its view of the queue, which all slots of this process share."""
        assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
        owner = self._context.local_agent(agent)
        with self._view_lock:
            return owner, self._view(agent.role, agent.tags)

    def _view(self, role: str, tags: frozenset[str]) -> QueueView:
        key = (role, tags)
        if key not in self._views:
            from farro.store.files.queue import QueueView

            self._views[key] = QueueView(self._context, role, self._feed(role))
        return self._views[key]

    @explained
    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        answers = commit.commit(self._context, results)
        unblock.after_end(self._context, [answer for answer in answers if isinstance(answer, Lifecycle)])
        claims: list[Claim] = []
        if then_claim is not None:
            try:
                claims = self.claim(*then_claim)
            except SyncFailed:
                raise
            except FarroError:
                pass  # the next claim reports it
        return Commits(answers, claims)

    def _ended(self, lifecycle: Lifecycle) -> Lifecycle:
        """If this job has ended, unblock the jobs that waited for it. Recovery does the same in its own pass."""
        unblock.after_end(self._context, [lifecycle])
        return lifecycle

    # --- operators and the manager ---

    @explained
    def requeue(self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None) -> Lifecycle:
        return decisions.requeue(self._context, self._context.local_agent(agent), job_id, note, delay_s)

    @explained
    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        return self._ended(decisions.kill(self._context, self._context.local_agent(agent), job_id, note, reason))

    @explained
    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._ended(decisions.force_complete(self._context, self._context.local_agent(agent), job_id, note))

    @explained
    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        lifecycle = decisions.resolve_stale(self._context, self._context.local_agent(agent), job_id)
        return None if lifecycle is None else self._ended(lifecycle)

    @explained
    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        return decisions.answer(self._context, self._context.local_agent(agent), job_id, answered)

    @explained
    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        self._context.check_role(role)
        return decisions.reroute(self._context, self._context.local_agent(agent), job_id, role, note, route)

    @explained
    def start_now(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return decisions.start_now(self._context, self._context.local_agent(agent), job_id, note)

    @explained
    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        lifecycle = decisions.finalize(self._context, self._context.local_agent(agent), job_id, note, route)
        return None if lifecycle is None else self._ended(lifecycle)

    @explained
    def open_failures(self) -> list[str]:
        return self._open_failures.find(self._context)

    # --- recovery and pruning ---

    @explained
    def recover(self, agent: Agent) -> list[RecoveryAction]:
        return recover.recover(self._context, self._context.local_agent(agent), self._heartbeats)

    @explained
    def watch_deaths(self, *, stale: bool = False) -> changes.FilesDeathWatch | None:
        return changes.watch_deaths(self._context, stale=stale)

    @explained
    def stale(self) -> list[str]:
        return sorted(fs.subdirectories(self._context.path(places.STALE)))

    @contextlib.contextmanager
    def trash(self) -> Iterator[prune.Trash]:
        """Open the trash for removing finished jobs, by one process at a time."""
        with prune.opened(self._context) as trash:
            yield trash

    @explained
    def remove(
        self,
        jobs: Sequence[JobAt],
        *,
        by: str,
        leftovers: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Removed:
        removed = prune.remove(self._context, jobs, leftovers=leftovers, progress=progress)
        if self._context.archive is None:
            return removed
        from farro.store.files import archive  # imported here: most roots have no archive

        archived, freed = archive.drop(self._context, [job.job_id for job in jobs])
        return replace(removed, jobs=removed.jobs + archived, bytes=removed.bytes + freed)

    def size_bytes(self, jobs: Sequence[JobAt]) -> int:
        return sum(views.size(self._context, job) for job in jobs)

    @explained
    def archive(
        self, jobs: Sequence[JobAt], *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Archived:
        from farro.store.files import archive

        return archive.archive(self._context, jobs, progress=progress)

    @explained
    def export(
        self, jobs: Sequence[JobAt], to: str, *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        from farro.store.files import archive

        return archive.export(self._context, to, jobs, progress=progress)

    # --- pausing queues ---

    @explained
    def pause(self, role: str, paused: QueuePause) -> bool:
        return pause.pause(self._context, role, paused)

    @explained
    def resume(self, role: str) -> bool:
        return pause.resume(self._context, role)

    @explained
    def paused(self) -> Mapping[str, QueuePause]:
        return pause.paused(self._context)

    # --- queries ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        feed = self._feeds.get(role)  # not created here: a signal handler calls this, and a new feed has no waiter
        if feed is not None:
            feed.wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        feed = self._feeds.get(role)
        if feed is None:
            if role is not None:
                self._context.check_role(role)
            with self._context.lock:
                feed = self._feeds.get(role)
                if feed is None:
                    feed = self._feeds[role] = ChangeFeed(changes.source(self._context, role))
        return feed

    @explained
    def find(self, job_id: str, *, place: str | None = None) -> JobView | None:
        return views.find(self._context, job_id, place)

    @explained
    def folder(self, view: JobView) -> str:
        path = f"{self._context.root}/{view.place}/{view.job_id}"
        if view.status in FINISHED and self._context.archive is not None and not fs.exists(path):
            with contextlib.suppress(FileNotFoundError):  # it was pruned
                return self._context.archive.copy(view.job_id)
        return path

    @explained
    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        return views.listing(self._context, roles, statuses, limit)

    @explained
    def entries(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        archived: bool = True,
    ) -> Iterator[JobEntry]:
        return views.entries(self._context, roles, statuses, archived=archived)

    @explained
    def newest(
        self, *, roles: Collection[str] | None = None, statuses: Collection[Status] | None = None
    ) -> Iterator[JobEntry]:
        return views.newest(self._context, roles, statuses)

    @explained
    def ids(self, prefix: str) -> Iterable[str]:
        return views.known_ids(self._context, prefix)

    @explained
    def waiting(self) -> Sequence[JobEntry]:
        return views.waiting(self._context)

    @explained
    def prompts(self, jobs: Sequence[JobAt]) -> Mapping[str, Mapping[str, Any]]:
        return views.prompts(self._context, jobs)

    @explained
    def ahead(self, view: JobView) -> int:
        return views.ahead(self._context, view)

    @explained
    def queue_counts(self) -> QueueCounts:
        return self._counter.count()

    @explained
    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        return views.counts(self._context, roles)

    @explained
    def pending(self, role: str) -> int:
        return views.pending(self._context, role) or dependencies.coming(self._context, role)

    @explained
    def load(self, role: str | None) -> int:
        return views.load(self._context, role)

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._context.audit(event, actor=actor, **codes)

    def audit_events(self) -> RootAuditEvents:
        from farro.store.audit_events import RootAuditEvents  # imported here: few commands read the audit log

        return RootAuditEvents(self.root)

    def entry_order(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        return {job.job_id: views.entered_ns(self._context.path(job.place), job.job_id) or 0 for job in jobs}

    def leadership(self) -> FileLeadership:
        from farro.store.leadership import FileLeadership  # imported here: only managers and hand-offs ask

        return FileLeadership(root=self.root, clock=self._context.clock)

    def accounts(self) -> FilesAccounts:
        from farro.store.files.accounts import FilesAccounts  # imported here: few commands ask

        context = self._context
        return FilesAccounts(self.root, context.clock, uniform=context.uniform, durable=context.policy.durable)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        if "archive_index" in self._context.__dict__:
            self._context.archive_index.close()
        for owner in list(self._context.local_agents.values()):
            agents.leave(self._context, owner.agent)
        if self._context.journal is not None:
            self._context.journal.close()
        if self._on_close is not None:
            self._on_close()
