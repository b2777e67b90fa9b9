"""The Store port: every operation on jobs, with its guarantees.

Each adapter (files, redis, memory, examples/sqlite_store) passes the suites farro.testing.store*. No other package
knows how a store keeps its jobs, so a store that passes them serves every command (docs/adapters.md).

**The promise.** Exactly one accepted commit per job, at-least-once execution, nothing lost: after a kill at any
instruction and, with durability `power`, after a power cut. Side effects carry the key (job id, attempt).

- An acknowledged enqueue or commit (the call returned) stays. A call that raised or never returned took effect
  completely or not at all. [test_an_acknowledged_enqueue_is_kept, tests/crash]
- A job has one owner at a time. An agent that lost a job gets ClaimLost from every later call, and that call changes
  nothing. [test_a_fenced_agent_cannot_commit]
- Only the transitions of jobs.states are allowed; any other raises IllegalTransition and changes nothing.
  [test_illegal_transitions_are_refused]
- Only `claim` with `wait_s` and `changes` with `timeout_s` wait. [test_a_claim_from_an_empty_queue_returns_at_once]
- A queue is ordered by strict priority, then by the time of entry into that queue. A job with a later
  `not_before` is skipped until then. [test_order_is_the_time_of_entry, test_a_higher_priority_is_claimed_first]
- A job that runs after others (plans.after) waits outside its queue and enters it once they have ended as required.
  It is killed if a job that it needs to succeed fails or is killed. The process that ends the last dependency moves the
  waiting job; if that process dies first, recovery does it.
  [test_a_dependent_enters_its_queue_when_its_dependency_succeeded, test_a_dependent_of_a_failure_is_killed,
  tests/crash/test_after.py]
- Calls are safe from many threads; one Claim belongs to one thread at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from farro.errors import FarroError
from farro.host.clock import Clock
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import Outcome
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit
from farro.log.structured import Log

if TYPE_CHECKING:  # queries and managers import these; a worker needs none
    from farro.store.accounts import Accounts
    from farro.store.audit_events import AuditEvents
    from farro.store.leadership import Leadership


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedFiles:
    """Files that a job which repeats another takes over from it: the folder `carried/`, laid out like an attempt's."""

    records: bytes  # steps.jsonl
    files: Mapping[str, str]  # name in the folder → path of the source file; linked, or sent to a store without folders


CARRIED_BYTES = 8 << 20  # total size of the carried files that may be sent to a store without folders


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A job to enqueue. The store mints an id when `job_id` is None."""

    role: str
    prompt: Mapping[str, Any]
    job_id: str | None = None
    not_before: datetime | None = None
    retry_of: str | None = None
    payload: Mapping[str, bytes] = field(default_factory=dict)  # file name → content
    narrative: str | None = None  # prompt.md
    carried: CarriedFiles | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """The job of a submission. `existed`: its chosen id was submitted before, with the same content."""

    id: str
    existed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """One leased incarnation of one worker slot, watchdog, manager or operator."""

    id: str  # <name>.<slot>.<random>
    role: str | None  # None: an agent that may hold jobs of any role (watchdog, manager, operator)
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentView:
    """An agent as other processes see it."""

    id: str
    role: str | None
    alive: bool
    jobs: tuple[str, ...]
    identity: Mapping[str, Any]  # host, boot_id, pid, start, started_at: for display, never for deciding death


@dataclass(kw_only=True, slots=True)
class Claim:
    """An agent's ownership of a job for one attempt."""

    agent: Agent
    envelope: Envelope[Mapping[str, Any]]
    attempt: int
    folder: str  # the attempt's own folder; steps get this path and never look it up by job id (R6)
    scope: str = ""  # distinguishes attempts of this store from those of another store on the same machine

    @property
    def job_id(self) -> str:
        return self.envelope.lifecycle.job_id

    @property
    def marker(self) -> str:
        """Return the value that every process of this attempt carries in its environment."""
        return marker(self.job_id, self.attempt, self.scope)

    @property
    def place(self) -> str:
        """Return the folder's path, for callers that may not need the folder. They call `make` before they write
        there."""
        return self.folder

    def make(self) -> None:
        """Create the folder if it does not exist yet. Callable from any thread."""


class LazyFolderClaim(Claim):
    """A claim whose folder is created on first use: most functions write no file. A worker on Redis that makes every
    folder needs four times the CPU time for small jobs (median of 20 pairs)."""

    __slots__ = ("_make", "_place")

    def __init__(self, *, make: Callable[[], None], **others: Any) -> None:
        self._make = make
        super().__init__(**others)

    @property
    def folder(self) -> str:
        self._make()
        return self._place

    @folder.setter
    def folder(self, path: str) -> None:
        self._place = path

    @property
    def place(self) -> str:
        return self._place

    def make(self) -> None:
        self._make()


def marker(job_id: str, attempt: int, scope: str) -> str:
    """Name one attempt's processes. The scope is part of it because two roots may use the same chosen id, and ending
    the processes of one attempt must not end the other's.
    [test_kill_spares_the_processes_of_the_same_id_in_another_root]"""
    return f"{job_id}/{attempt:04d}" + (f"@{scope}" if scope else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A snapshot of a job. It may be outdated by the time it is read."""

    lifecycle: Lifecycle
    place: str  # where it is, in the words of jobs.places; in the file store its folder, relative to the root
    damaged: str | None = None  # why job.json could not be read, when it was rebuilt for this view
    waits_for: tuple[str, ...] = ()  # the jobs that it runs after, while it waits outside its queue

    @property
    def job_id(self) -> str:
        return self.lifecycle.job_id

    @property
    def status(self) -> Status:
        return self.lifecycle.status


class JobAt(Protocol):
    """A job and where it was last seen: a JobView, a JobEntry, or a caller's own type."""

    @property
    def job_id(self) -> str: ...

    @property
    def place(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEntry:
    """A job and its place, for queries about thousands of jobs. It may have moved by the time it is read. A store that
    has to open a file to read a job returns entries without a view, and overrides the two methods."""

    job_id: str
    place: str
    role: str | None  # None in places that all roles share: only the lifecycle has it
    status: Status  # as the place implies
    view: JobView | None = None
    archived: bool = False  # it has no folder any more (Store.archive)

    def changed_at_s(self) -> float:
        """Return when it last changed, in Unix time; for a finished job, when it finished. 0: it has moved."""
        assert self.view is not None
        changed = moment_or_none(self.view.lifecycle.updated_at)
        return 0.0 if changed is None else changed.timestamp()

    def lifecycle(self) -> Lifecycle | None:
        """Read the job. None: it has moved, or it cannot be read."""
        assert self.view is not None
        return self.view.lifecycle


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueCounts:
    """Jobs of each role by status, and jobs that are in no role's queue."""

    roles: Mapping[str, Mapping[Status, int]]
    waiting: int = 0  # waiting for other jobs, or for a person, unless the store counts them with their role
    stale: int = 0
    passing: int = 0  # held by a watchdog, a manager or an operator, or leaving a worker
    quarantined: int = 0

    def total(self, status: Status) -> int:
        return sum(counts.get(status, 0) for counts in self.roles.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """The result of `Store.remove`."""

    jobs: int
    bytes: int = 0  # that are free again; 0 where the store cannot say
    debris: int = 0  # jobs that an earlier call left half removed
    left: tuple[str, ...] = ()  # what could not be removed, and why: one line for each job


@dataclass(frozen=True, kw_only=True, slots=True)
class Archived:
    """The result of `Store.archive`."""

    jobs: int
    bytes: int = 0  # of the folders that were deleted


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A job moved. `status` is the status that its new place implies."""

    job_id: str
    role: str | None
    status: Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The changes after a cursor, and the cursor to continue from."""

    cursor: int
    items: tuple[Change, ...]
    gap: bool  # changes between the cursors were lost: the caller must look at everything again


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryAction:
    """One thing that a recovery pass did."""

    job_id: str | None
    agent: str | None
    what: str  # stale, rolled_forward, dispatched, unblocked, dependency_failed, quarantined, swept, silent_killed, …


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonAnswer:
    """A person's answer to a job that waits for one."""

    route: Mapping[str, Any]  # as the hop keeps it: the code, and the step of the workflow
    note: str | None = None
    text: str | None = None  # replaces the last role's result


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePause:
    """A pause of a queue: the user, the time and the reason."""

    by: str
    at: str  # in the envelope's time format
    why: str | None = None

    def to_json(self) -> bytes:
        return json.dumps({"by": self.by, "at": self.at, "why": self.why}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> QueuePause:
        """Parse any content: a paused queue stays paused even if the record of who paused it cannot be read."""
        try:
            data = json.loads(text)
            return cls(by=str(data["by"]), at=str(data["at"]), why=None if data["why"] is None else str(data["why"]))
        except (ValueError, KeyError, TypeError):
            return cls(by="an unknown user", at="", why=None)


class DeathWatch(Protocol):
    """Report that recovery may have work. A hint: it may come late, twice, or not at all, so recovery also runs at
    intervals. [tests/crash/test_deaths.py]"""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to `read`."""

    def read(self) -> bool:
        """Return whether an agent died, or a job became stale, since the last call. Does not wait for an event."""

    def close(self) -> None: ...


class AttemptResult(NamedTuple):
    """The end of one attempt, to be committed."""

    claim: Claim
    outcome: Outcome
    move: Move | None = None  # replaces the decision that the outcome alone leads to (the manager's routing)


class NextClaim(NamedTuple):
    """A claim that follows a commit in the same request."""

    agent: Agent
    limit: int


class Commits(NamedTuple):
    """The answer to `commit`."""

    answers: list[Lifecycle | FarroError]  # for each result, in order
    claims: list[Claim]  # asked for by `then_claim`


class WorkerStore(Protocol):
    """The part of a store that a worker uses; it may do nothing else.

    Jobs are claimed and committed in batches, because a request costs more than a small job
    (docs/decisions/small-jobs-go-in-batches.md). A single job is a batch of one. A batch is not a transaction: each job
    has its own attempt, fence and answer.
    """

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        """Register a new agent. It already holds its lease when other processes can see it."""

    def leave(self, agent: Agent) -> None:
        """Remove the agent. The next watchdog recovers the jobs that it still holds."""

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        """Report that the agent is alive and, with `claim`, that it works on that job. The first heartbeat of a claim
        makes the whole claim visible to queries (see `claim`). Raises AgentLost or ClaimLost when the agent was
        declared dead or the job was taken from it. [test_a_long_job_of_a_batch_is_recorded_as_claimed]"""

    # --- claiming and committing ---

    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        """Claim up to `limit` jobs that this agent may run, in queue order.

        If there is none, wait up to `wait_s` for one, or until `wake`, then claim once more: the list is empty when
        another agent was faster. A job that becomes due meanwhile is not delayed. A `wake` after this agent's last
        claim ends its next wait. [test_a_waiting_claim_gets_the_job_that_enters, test_wake_ends_a_waiting_claim]

        More than one job is returned only if none of them was started before: if one kills the worker, its next attempt
        runs alone and affects no other job. Some of a long queue is left for idle workers.
        [test_a_batch_of_jobs_is_claimed_in_order, test_a_job_that_was_started_before_is_claimed_alone]

        Each worker examines a job once, not once per turn, so the cost does not grow with the backlog. With a limit
        above one the store may postpone what only queries need (the job's `in_progress` is true at once) until the
        commit or the first heartbeat of the claim. A crash before the claim leaves the job queued; after it, recovery
        counts the attempt."""

    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        """Decide and carry out what each outcome asks for: succeeded, failed, routed to the next role, retried later,
        released or stale. The claims may be of any agents of this process. Returns once all is durable.

        Each result has its own answer: the new lifecycle, or the error that kept it from being committed. ClaimLost:
        another agent took the job. Either nothing of this attempt was accepted, or its decision was already recorded
        and the agent that took the job carries it out; the caller must look at the job and not repeat the commit. After
        TryAgain the commit may be repeated. Raises only SyncFailed: then the worker stops, and recovery decides.
        [test_each_job_of_a_batch_is_committed_under_its_own_fence, test_one_batch_commits_jobs_of_several_agents]

        With `then_claim` it also claims, where possible in the same request. The answers are returned even if that
        claim failed; the next claim reports why. [test_a_commit_claims_the_next_batch]"""

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Return jobs that were claimed and not started to their places in the queue, as if they had never been
        claimed. A job that another agent took meanwhile is left alone.
        [test_jobs_not_started_return_to_their_places_in_the_queue]"""

    def wake(self, role: str | None) -> None:
        """Make every call that waits for that role return at once."""

    def close(self) -> None: ...


def claim_one(store: WorkerStore, agent: Agent) -> Claim | None:
    """Claim the next job, if there is one."""
    claims = store.claim(agent, 1)
    return claims[0] if claims else None


def commit_one(store: WorkerStore, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
    """Commit one attempt; raise the error if it was not accepted."""
    (answer,) = store.commit([AttemptResult(claim, outcome, move)]).answers
    if isinstance(answer, FarroError):
        raise answer
    return answer


class Store(WorkerStore, Protocol):
    """The whole store. `root` is the folder on this machine that holds the config and the policies. Where the jobs are
    kept is the adapter's own business; `folder` returns a readable path."""

    @property
    def root(self) -> str: ...

    @property
    def live_folders(self) -> bool:
        """Return whether `folder` is the job's own folder, which grows while the job runs. False: it is a copy that is
        made when it is asked for, with the files of ended attempts. [test_the_folder_of_a_running_job]"""

    def check_ready(self) -> None:
        """Raise Refused, with what to do, where no daemon can work with this store. A daemon asks once, when it
        starts. [test_a_healthy_store_is_ready]"""

    def agents(self) -> list[AgentView]: ...

    # --- waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        """Return the changes after `cursor`; wait up to `timeout_s` for the first. With None, return the present cursor
        at once. With `role`, report only entries into that role's queue. Each role has its own cursors."""

    def next_due(self, role: str) -> datetime | None:
        """Return when the next delayed job of this queue becomes due, as far as this store has examined the queue. None
        while the queue is paused, so that no process wakes for it. [test_a_paused_queue_has_no_due_time]"""

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        """Return the job's id once the job is as durable as the store promises. Submitting the same chosen id with the
        same content again returns the same job; other content raises IdConflict."""

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Enqueue each, with the syncs of all of them merged. Not one transaction: a crash may keep only some.
        [test_enqueue_many_tells_which_jobs_existed]"""

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        """Submit a job and claim it in one step: no other worker ever sees it queued, so this process runs it. The
        submission must be for the agent's own role; `not_before`, tags and dependencies are ignored. Crash behaviour is
        that of any claim: once the agent is dead, recovery makes the job stale, and then any worker may run it. None: a
        job with that chosen id exists already and stays as it is.
        [test_no_other_worker_gets_a_job_that_is_claimed_at_enqueue]"""

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        """Submit a job and give it that name in one step: the name is set before the job is visible, and of two callers
        that want one name, one gets it. `instead_of` is the job that has the name now and loses it; None means that no
        job has it. NameTaken: that is not the case, and nothing was queued. After a call that never returned, either
        both happened or the name is unchanged.
        [test_a_name_is_given_once, test_a_name_passes_to_the_next_job, tests/crash/test_names.py]"""

    def named(self, name: str) -> str | None:
        """Return the id of the job that has this name. A pruned job has none. [test_a_name_means_its_present_job]"""

    def names(self) -> Mapping[str, str]:
        """Return every name with its job's id, sorted by name."""

    # --- operators and the manager: each call moves the job into the agent's own folder, then reads it, then edits ---

    def requeue(
        self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None
    ) -> Lifecycle: ...

    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        """Kill the job. For a job that has already ended, return its lifecycle unchanged."""

    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle: ...

    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        """Requeue a stale job while attempts remain, else kill it with the reason. None: another agent has it."""

    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        """Record a person's answer in the hops of a job that waits for one (jobs.moves.waits_for_person), and
        return the job to the manager. IllegalTransition: the job does not wait for a person, or no longer; nothing was
        changed. [test_a_person_answers_once]"""

    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        """Put the job into that role's queue whatever its workflow says. It must be queued, stale, waiting for a
        person, or failed and not final. [test_a_person_overrides_the_route]"""

    def start_now(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        """Let a job start at once that waits for a paused account (jobs.moves.awaited_accounts). IllegalTransition: it
        does not wait for one, or no longer; nothing was changed. [test_a_job_that_waits_for_an_account_starts_now]"""

    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        """Make a failure final: set finalized_at. None: the job is no longer an open failure, or another agent has it.
        [test_a_failure_is_final_when_the_manager_finalizes_it]"""

    def open_failures(self) -> list[str]:
        """Return the ids of failed jobs that wait for `finalize` or another decision of the manager."""

    # --- recovery ---

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        """Run one watchdog pass. Any number may run at once, and every step can be repeated (RELIABILITY 10, 12)."""

    def watch_deaths(self, *, stale: bool = False) -> DeathWatch | None:
        """Return a watch that reports the death of agents and, with `stale`, jobs that became stale. None: this store
        has no such events, so recovery only runs at intervals."""

    def stale(self) -> list[str]:
        """Return the ids of jobs that wait for `resolve_stale`."""

    # --- pruning ---

    def remove(
        self,
        jobs: Sequence[JobAt],
        *,
        by: str,
        leftovers: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Removed:
        """Remove those of these jobs that are final, for good: each with its files, its id and its names, which may
        then be used again. A job that is not final, or that the store still needs, is left alone and not counted. `by`
        is the user, `progress` gets how many of how many are done, and `leftovers` says whether to finish what an
        earlier call left behind. A crash leaves each job complete, or gone, or half removed: then no query finds it,
        and the next call finishes. Refused: another process removes jobs now.
        [test_removed_jobs_are_gone_with_their_ids_and_names, test_a_job_that_is_not_final_is_not_removed,
        tests/crash/test_prune.py]"""

    def size_bytes(self, jobs: Sequence[JobAt]) -> int | None:
        """Return how many bytes these jobs occupy. None: the store cannot say without reading them all.
        [test_the_size_of_jobs_is_known_or_none]"""

    # --- archiving ---

    def archive(
        self, jobs: Sequence[JobAt], *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Archived:
        """Move those of these jobs that are final out of their folders into the store's archive. Every call finds them
        as before; `folder` returns a copy. A crash leaves each job in its folder or in the archive, and recovery
        finishes what was half done. Jobs that cannot be archived stay as they are and are not counted. Refused: this
        store keeps no folders, or another process archives or removes jobs now.
        [test_finished_jobs_are_archived_or_it_is_refused, test_an_archived_job_is_found_as_before,
        tests/crash/test_archive.py]"""

    def export(
        self, jobs: Sequence[JobAt], to: str, *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        """Write the folders of those of these jobs that are archived below `to`, byte for byte, each at its place.
        Returns how many. Refused: one of them is there already. [test_export_gives_the_folders_back]"""

    # --- pausing queues ---

    def pause(self, role: str, paused: QueuePause) -> bool:
        """Stop claims from that queue. Running jobs go on, and jobs still enter the queue. False: the queue was already
        paused, and the first pause stays. A pause survives restarts. [test_a_paused_queue_gives_no_job]"""

    def resume(self, role: str) -> bool:
        """Allow claims from that queue again and wake the workers that wait for it. False: it was not paused.
        [test_resuming_a_queue_wakes_waiting_workers]"""

    def paused(self) -> Mapping[str, QueuePause]:
        """Return the paused queues, by role."""

    # --- queries. They change nothing, and their answers may be outdated when they arrive ---

    def find(self, job_id: str, *, place: str | None = None) -> JobView | None:
        """Return the job, or None. `place`: where the caller saw it last, which may save a search; a wrong place
        changes nothing. [test_a_job_is_found_wherever_it_was_last_seen]"""

    def folder(self, view: JobView) -> str:
        """Return where the files of a found job can be read now (`live_folders`). For reading only; it may be gone or
        outdated by then."""

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        """Return the jobs of these roles and statuses; None means all. [test_lists_and_counts_can_be_of_some_roles]"""

    def entries(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        archived: bool = True,
    ) -> Iterator[JobEntry]:
        """Yield every job of these roles and statuses, with as little work for each as the store can. The statuses are
        those that places imply: a job that was marked stale in place may come as in progress. Jobs in places that all
        roles share come whatever `roles` says. A job that moves meanwhile may come twice or, only if it is removed,
        not at all. `archived` False: without the archived ones, which then cost nothing.
        [test_entries_are_the_jobs_that_list_returns]"""

    def newest(
        self, *, roles: Collection[str] | None = None, statuses: Collection[Status] | None = None
    ) -> Iterator[JobEntry]:
        """Yield the jobs of `entries`, that which changed last first. A caller that stops early has not read the whole
        history. [test_the_newest_entries_come_first]"""

    def ids(self, prefix: str) -> Iterable[str]:
        """Yield the ids that begin with `prefix`, and any others that cost nothing: they serve as suggestions. An id
        may come though its job is gone. [test_ids_are_found_by_their_beginning]"""

    def waiting(self) -> Sequence[JobEntry]:
        """Return the jobs that wait outside every queue: for other jobs, or for a person.
        [test_waiting_jobs_are_listed_apart]"""

    def prompts(self, jobs: Sequence[JobAt]) -> Mapping[str, Mapping[str, Any]]:
        """Return the prompts by job id, in few round trips and without copying files. A job that has moved from its
        place may be missing; one whose prompt cannot be read has an empty prompt. [test_prompts_are_read_together]"""

    def ahead(self, view: JobView) -> int:
        """Count the jobs of the same queue that entered it before this one, whatever their priority.
        [test_jobs_ahead_are_those_that_entered_before]"""

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        """Count jobs by the status that their places imply."""

    def queue_counts(self) -> QueueCounts:
        """Count the jobs of each role, for callers that ask again and again: finished jobs are counted, never listed.
        [test_queue_counts_agree_with_the_list]"""

    def pending(self, role: str) -> int:
        """Return how many jobs may still come out of that queue: queued, delayed, running, held for an edit, or waiting
        for such jobs. 0 when none can come any more. Finished jobs are not examined."""

    def load(self, role: str | None) -> int:
        """Count the jobs that are queued, waiting or in progress in that role, or in all roles; caps are compared with
        this. Does not scan the jobs where the store can count."""

    def note(self, event: str, *, actor: str | None = None, **codes: str | int | bool | None) -> None:
        """Write an event that is not a transition of a job to the audit log (a refusal, a schedule's run). The store
        itself writes transitions, after they are acknowledged. [test_every_transition_is_audited]"""

    def audit_events(self) -> AuditEvents:
        """Return the audit log for reading: of all machines, where several share the store.
        [test_every_transition_is_audited]"""

    def entry_order(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        """Return a number for each job, which orders those that entered their queues in the same millisecond.
        [test_migration_keeps_jobs_and_their_order]"""

    def leadership(self) -> Leadership:
        """Return the election of the manager: among the processes of the root, or of all machines that share the store.
        [test_one_manager_acts_across_machines]"""

    def accounts(self) -> Accounts:
        """Return the accounts of providers that are paused: for the root, or for all machines that share the store.
        [tests/contracts/test_accounts.py]"""

    def roles(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreContext:
    """What a store of another package is made with: `store: "package.module:factory"` in the config."""

    root: str  # the folder with the config, in which the store may keep its own files
    roles: tuple[str, ...]
    policy: StorePolicy
    clock: Clock
    audit: Audit  # writes to the audit log of the root
    log: Log
    # Describes this process: host, boot_id, pid, start, and the tags and tools of its workers. For AgentView.
    identity: Callable[[], Mapping[str, Any]]
    # Ends the processes that carry one of these markers (Claim.marker) and were started by that agent's process.
    reap: Callable[[list[str], Mapping[str, Any]], None]
    on_close: Callable[[], None]  # the last thing that the store's `close` calls: it writes out the audit log


class StoreFactory(Protocol):
    def __call__(self, context: StoreContext, /) -> Store:
        """Open the store. InputError says what is missing or wrong; TryAgain that a server does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePolicy:
    """The settings that a store depends on."""

    durable: bool = True  # durability `power`; False is `process`
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    stale_after_s: float = 1800.0  # a slot whose loop made no turn for this long counts as hung
    free_after_s: float = 10.0  # how long to wait for the lease of a hung process after killing it
    rescan_s: float = 30.0  # rescan interval: inotify reports neither a due time nor a dead lock
    poll_s: float = 30.0  # the longest a worker without work sleeps before it looks again
    max_prompt_bytes: int = 1 << 20
    # Returns the version of the policies that apply to a role's claims; each claim records it.
    policy_version: Callable[[str], str | None] = lambda role: None
