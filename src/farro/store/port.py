"""The Store port: where jobs live. Guarantees in words; every adapter passes tests/contracts/test_store.py.

Adapters live in stores/; the rules that they consult live in kernel.

**The promise.** Exactly one accepted commit per job, at-least-once execution, nothing lost: after a kill at any
instruction and, with durability `power`, after a power cut. Side effects carry the key (job id, attempt).

- An acknowledged enqueue or commit (the call returned) stays. A call that raised, or never returned, happened whole or
  not at all. [test_an_acknowledged_enqueue_is_there, tests/crash]
- A job has one owner at a time. Whoever lost it gets ClaimLost from every later call, which changes nothing.
  [test_a_fenced_agent_cannot_commit]
- Transitions are those of kernel.states, else IllegalTransition and nothing changed.
  [test_illegal_transitions_are_refused]
- `claim` never blocks; waiting is on `changes`. [test_changes_tell_of_an_enqueue]
- Order in a queue is strict priority (plans.priority), then the time of entry into that queue, jobs with a later
  `not_before` left out until then. [test_order_is_the_time_of_entry, test_a_higher_priority_is_claimed_first]
- A job that runs after others (plans.after) waits outside its queue, and enters it once they have ended as it wants;
  when one of which it wanted success failed or was killed, it is killed. Whoever ends the last of them sees to it; when
  that process dies first, recovery does. [test_a_dependent_enters_its_queue_when_its_dependency_succeeded,
  test_a_dependent_of_a_failure_is_killed, tests/crash/test_after.py]
- Calls are safe from many threads; one Claim belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from farro.errors import Lost
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.outcomes import Outcome
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.lazy_dataclass import dataclass, field
from farro.store.queues import Queues


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """What a job that repeats another brings along: the folder `carried/`, shaped as an attempt's."""

    records: bytes  # its steps.jsonl
    files: Mapping[str, str]  # name in it → the file that it is; linked, or sent where a job is no folder


CARRIED_BYTES = 8 << 20  # of all of them together, where they are sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A job to be. `job_id` is the caller's choice; None has one minted."""

    role: str
    prompt: Mapping[str, Any]
    job_id: str | None = None
    not_before: datetime | None = None
    retry_of: str | None = None
    payload: Mapping[str, bytes] = field(default_factory=dict)  # name → bytes
    narrative: str | None = None  # prompt.md
    carried: Carried | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """One leased incarnation of one slot."""

    id: str  # <name>.<slot>.<random>
    role: str | None  # None: an agent that holds jobs of any role (watchdog, manager, operator)
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentView:
    """An agent as others see it."""

    id: str
    role: str | None
    alive: bool
    jobs: tuple[str, ...]
    identity: Mapping[str, Any]  # host, boot_id, pid, start, started_at: for people, never for deciding death


@dataclass(kw_only=True, slots=True)
class Claim:
    """An agent's ownership of a job for one attempt."""

    agent: Agent
    envelope: Envelope[Mapping[str, Any]]
    attempt: int
    folder: str  # the attempt's own folder; steps get this path, never a lookup by id (R6)
    scope: str = ""  # tells this store's attempts from those of another on the same machine

    @property
    def job_id(self) -> str:
        return self.envelope.lifecycle.job_id

    @property
    def marker(self) -> str:
        """What every process of this attempt carries in its environment."""
        return marker(self.job_id, self.attempt, self.scope)

    @property
    def place(self) -> str:
        """Where the folder is, or will be: for whoever may do without it, and calls `make` before he writes there."""
        return self.folder

    def make(self) -> None:
        """The folder is there from now on. From any thread."""


class LateClaim(Claim):
    """A claim whose folder is made when somebody asks for it: most functions write no file."""

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
    """With the scope: a chosen id may be in use in two roots, and ending one attempt's processes must not end the
    other's. [test_the_same_id_in_two_roots_is_two_trees_of_processes]"""
    return f"{job_id}/{attempt:04d}" + (f"@{scope}" if scope else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job as anyone may look at it; what it says may be over by the time it is read."""

    lifecycle: Lifecycle
    place: str  # where it lies, relative to the root
    damaged: str | None = None  # why job.json could not be read, when it was rebuilt for this view
    waits_for: tuple[str, ...] = ()  # the jobs that it runs after, while it waits outside its queue

    @property
    def job_id(self) -> str:
        return self.lifecycle.job_id

    @property
    def status(self) -> Status:
        return self.lifecycle.status


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something moved. `status` is what its new place says."""

    job_id: str
    role: str | None
    status: Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    cursor: int
    items: tuple[Change, ...]
    gap: bool  # changes were lost between the cursors: look at everything again


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """One thing that recovery did."""

    job_id: str | None
    agent: str | None
    what: str  # stale, rolled_forward, dispatched, unblocked, dependency_failed, quarantined, swept, silent_killed, …


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What a person says about a job that waits for it."""

    route: Mapping[str, Any]  # as the hop keeps it: its code, and the step of the workflow
    note: str | None = None
    text: str | None = None  # what becomes the result, instead of the last role's


class Working(Protocol):
    """What a worker needs of a store, and all that it may do."""

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        """A new agent, already leased when others can see it."""

    def leave(self, agent: Agent) -> None:
        """The agent ends. Jobs that it still holds are recovered by the next watchdog."""

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        """The slot's loop made a turn. Raises AgentLost or ClaimLost when somebody took what it had."""

    # --- waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        """What changed after `cursor`; waits up to `timeout_s` for something. None: from now on, answered at once.
        With `role` only entries into that role's queue: what wakes a worker. Each role has cursors of its own."""

    def wake(self, role: str | None) -> None:
        """Whoever waits in `changes` for that role returns at once."""

    # --- working ---

    def claim(self, agent: Agent) -> Claim | None:
        """The next job that this agent may have, or None. Each worker examines a job once, not once a turn: the cost
        does not grow with the backlog. A crash before the claim leaves the job queued; after it, recovery counts the
        attempt."""

    def next_due(self, role: str) -> datetime | None:
        """When the next delayed job of this queue falls due, as far as this store has examined it. None while it is
        paused: nobody is to wake for it. [test_a_paused_queue_has_no_due_time]"""

    def commit(self, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
        """Decide and carry out what `outcome` asks for: succeeded, failed, routed to the next role, retried later,
        released or stale. Returns once it is durable. ClaimLost: somebody took the job. Either nothing of this attempt
        was accepted, or its decision stood already and whoever took the job carries it out: look, do not repeat.
        `move`: what is decided, instead of what the outcome alone would ask for (the manager's, by roles.workflow)."""

    def route(self, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
        """As `commit`, but the job goes on to `role` whatever its routing says."""

    def release(self, claim: Claim, note: str = "") -> Lifecycle:
        """Hand the job back unfinished; counts as no attempt."""

    def close(self) -> None: ...


@runtime_checkable
class Bulk(Protocol):
    """What a store can besides, for which several jobs at once are little more work than one. Each job is as safe as
    with the calls for one: its own fence, and its own answer. docs/decisions/small-jobs-go-in-batches.md"""

    def claim_some(self, agent: Agent, limit: int) -> list[Claim]:
        """As `claim`, of up to `limit` jobs, in their order. More than one only of jobs that were never begun before:
        should the worker die of one of them, the others of its next attempt are not near it. Of much that is there not
        all: others may be idle. [test_several_are_claimed_at_once]"""

    def write_down(self, claim: Claim) -> None:
        """One of several is not over in a moment: from here on whoever looks sees all that a claim tells. Until then
        it may be that only its place says that it is in progress. Lost when it is not ours any more."""

    def commit_some(self, ended: Sequence[tuple[Claim, Outcome]]) -> list[Lifecycle | Lost]:
        """As `commit` for each, whichever agent has it; what that would raise of a job that was lost is its answer
        here."""

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Jobs that were claimed and not begun go back to their places in the queue, as if nobody had had them. One
        that somebody took meanwhile is left alone. [test_what_was_not_begun_goes_back_to_its_place]"""


class Store(Working, Queues, Protocol):
    """All of it. `root` is the folder of this machine that holds config and policies; where the jobs lie is the
    store's own business, and `folder` tells."""

    @property
    def root(self) -> str: ...

    def agents(self) -> list[AgentView]: ...

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        """The job's id, once it is as durable as the store promises. The same chosen id with the same content again is
        the same job; with other content IdConflict."""

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[str]:
        """As `enqueue` for each, with the syncs of all merged. Not one transaction: a crash may keep some."""

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        """Submit a job and claim it in one step: nobody else ever sees it queued, so it runs here and not in whichever
        worker is faster. For the agent's own role, and without waiting: `not_before`, tags and dependencies are not
        looked at. Crash behaviour as for any claim: once the agent is dead recovery makes the job stale, and after that
        any worker may have it. None: a job of that chosen id exists already, and stays as it is.
        [test_a_job_that_is_enqueued_and_claimed_at_once_is_nobody_elses]"""

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        """Submit a job and give it that name, in one step: it has the name when anyone can see it, and of two who want
        one name, one gets it. `instead_of`: the job that has the name now, and loses it; None: nobody has. NameTaken:
        it is otherwise, and nothing was queued. A call that never returned: both happened, or the name is as it was.
        [test_a_name_is_given_once, test_a_name_passes_on_to_the_next_job, tests/crash/test_names.py]"""

    def named(self, name: str) -> str | None:
        """The id of the job that has this name. A pruned job has none. [test_a_name_means_its_present_job]"""

    def names(self) -> Mapping[str, str]:
        """Every name, and its job's id, in the order of the names."""

    # --- operators and the manager: each moves the job into its own folder first, then reads, then edits ---

    def requeue(
        self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None
    ) -> Lifecycle: ...

    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        """A decided job answers what it already is."""

    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle: ...

    def settle_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        """Requeue a stale job while attempts remain, else kill it with the reason. None: somebody else has it."""

    def answer(self, agent: Agent, job_id: str, answered: Answered) -> Lifecycle:
        """A person's word about a job that waits for one (kernel.moves.waits_for_person), into its hops and back to the
        manager. IllegalTransition: it does not wait for a person, or no more; nothing was changed.
        [test_a_person_answers_once]"""

    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        """Into that role's queue, whatever its workflow says: a job that is queued, stale, waits for a person, or has
        failed and is not final. [test_a_person_overrides_the_route]"""

    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        """A failure that stays one: sets finalized_at. None: it is something else by now, or somebody has it.
        [test_a_failure_is_final_when_the_manager_says_so]"""

    def open_failures(self) -> list[str]:
        """The ids of failed jobs that wait for `finalize`, or for another word of the manager's."""

    # --- keeping house ---

    def recover(self, agent: Agent) -> list[Recovered]:
        """One pass of a watchdog; any number may run at once, every step can be repeated (RELIABILITY 10, 12)."""

    def stale(self) -> list[str]:
        """The ids of jobs that wait for `settle_stale`."""

    # --- looking ---

    def find(self, job_id: str) -> JobView | None: ...

    def folder(self, view: JobView) -> str:
        """Where the files of a job that was found can be read now: its folder, and in a store without folders a copy on
        this machine, of what was posted of it. For looking only; it may be gone or old by the time it is read."""

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]: ...

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]: ...

    def pending(self, role: str) -> int:
        """How much may still come out of that queue: jobs that are queued, delayed, running, in somebody's hands, or
        that wait for others that are; 0 when nothing can come any more. No finished job is looked at."""

    def load(self, role: str | None) -> int:
        """Jobs that are queued, waiting or in progress in that role, or in all roles: what caps are compared with. Not
        a scan of jobs where the store can count."""

    def note(self, event: str, *, actor: str | None = None, **codes: str | int | bool | None) -> None:
        """Tell the audit log of something that is no transition of a job (a refusal, a schedule's run). Transitions are
        told by the store itself, after they are acknowledged. [test_every_transition_is_told]"""

    def roles(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePolicy:
    """What a store is told of the settings."""

    durable: bool = True  # durability `power`; False is `process`
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    stale_after_s: float = 1800.0  # a slot whose loop made no turn for so long is hung
    free_after_s: float = 10.0  # after killing a hung process: how long to wait for its lease
    rescan_s: float = 30.0  # inotify tells neither a due time nor a dead lock
    poll_s: float = 30.0  # … and at the latest so often while a worker knows of nothing to do
    max_prompt_bytes: int = 1 << 20
    # What a claim notes of the policies that hold for it, by role.
    policy_version: Callable[[str], str | None] = lambda role: None
