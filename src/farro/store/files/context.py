"""Hold what all parts of the file store share: the root's folders, the policy, the clock, randomness, the log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from farro.errors import AgentLost, NotARoot, UnknownRole
from farro.host import fs, machine, mounts
from farro.host.clock import Clock
from farro.host.leases import Lease
from farro.jobs import ids, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.retry import Uniform
from farro.jobs.states import FINISHED
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, no_audit, tell_all
from farro.log.structured import Log
from farro.store.files.journal import Journal, JournalEntry, PendingWrite
from farro.store.files.journal_file import Record
from farro.store.port import Agent, StorePolicy

if TYPE_CHECKING:
    from farro.store.files.archive_index import ArchiveIndex


def no_log(level: str, message: str, fields: Mapping[str, Any]) -> None:
    """Discard the message: for callers that keep no log."""


@dataclass(kw_only=True, slots=True)
class LocalAgent:
    """An agent of this process, with its lease and its folder. It may edit only the jobs in that folder (R1)."""

    agent: Agent
    lease: Lease
    folder: str
    last_beat_s: float = float("-inf")
    claims: dict[str, int] = field(default_factory=dict)  # job id → the attempt that may still be committed
    unwritten: set[str] = field(default_factory=set)  # claims whose job.json is not written yet
    idle_since: int | None = None  # the position in the feed of its queue when its last claim found nothing
    # Jobs in `folder` that a recovery pass could not finish: job id → (the dead agent, its role). The next pass
    # finishes them; without this they would be stranded for as long as this agent lives.
    leftovers: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def forget(self, job_id: str) -> None:
        """Remove a claim that has ended."""
        self.claims.pop(job_id, None)
        self.unwritten.discard(job_id)


@dataclass(kw_only=True)
class FilesContext:
    """The state and the collaborators of one FilesStore. `reap` ends the processes that a dead agent left behind."""

    root: str
    policy: StorePolicy
    clock: Clock
    reap: Callable[[list[str], Mapping[str, Any]], None]
    kill_hung: Callable[[Mapping[str, Any]], bool]
    identity: Callable[[], Mapping[str, Any]]
    journal: Journal | None = None  # with durability `power`: replaces the syncs of enqueues and commits
    log: Log = no_log
    audit: Audit = no_audit
    random_bits: Callable[[int], int] = machine.random_bits
    uniform: Uniform = machine.uniform
    local_agents: dict[str, LocalAgent] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards mint, local_agents and last_entry_ns
    foreign: set[str] = field(default_factory=set)  # jobs of another schema version that have been logged
    last_entry_ns: int = 0  # the latest entry time that this process assigned; see draft.keep_order

    def __post_init__(self) -> None:
        self._roles: set[str] = set()  # known to exist
        self._anchor = (self.clock.now(), self.clock.boottime_s())
        self.mint = IdMint(self.clock.now, self.random_bits)
        self.staging = f"{self.root}/jobs/.staging"
        self.registry = f"{self.root}/jobs/.ids"
        self.holds = f"{self.root}/jobs/.held"

    @cached_property
    def archive_index(self) -> ArchiveIndex:
        """The archived jobs, if there are any; imported here, because most roots have no archive."""
        from farro.store.files.archive_index import ArchiveIndex

        return ArchiveIndex(self.root, self.clock)

    @property
    def archive(self) -> ArchiveIndex | None:
        """Return the archived jobs; None: this root has no archive."""
        if "archive_index" in self.__dict__ or fs.exists(f"{self.root}/jobs/.archive"):
            return self.archive_index
        return None

    @cached_property
    def scope(self) -> str:
        """Identify the root, by whatever path it is reached."""
        status = os.stat(self.root)
        return f"{status.st_dev:x}.{status.st_ino:x}"

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def incoming(self, role: str) -> str:
        return f"{self.root}/agents/{role}/incoming"

    def in_progress(self, role: str) -> str:
        return f"{self.root}/agents/{role}/in-progress"

    def due_now(self) -> datetime:
        """Return the time that delays are compared with: the wall clock, but at least the start time plus the time
        since then.

        Otherwise a clock that is set back by a day would hold every delayed job for that day (RELIABILITY 18).
        """
        began, boot_s = self._anchor
        return max(self.clock.now(), began + timedelta(seconds=self.clock.boottime_s() - boot_s))

    def roles(self) -> list[str]:
        return sorted(name for name in fs.subdirectories(self.path("agents")) if ids.ROLE.fullmatch(name))

    def check_role(self, role: str) -> str:
        """Raise UnknownRole unless the role has a queue. A role that was found is not checked again: if its queue
        vanishes, the move into it fails with its own error."""
        if role in self._roles:
            return role
        if not fs.exists(self.incoming(ids.check_role(role))):
            raise UnknownRole(
                f"{self.root} has no role {role}; it has {', '.join(self.roles())}. "
                f"Declare it under `roles` in the config and run `farro init` again"
            )
        self._roles.add(role)
        return role

    def sync(self, paths: Iterable[str]) -> None:
        """Sync these paths with durability `power`; do nothing with `process`."""
        if self.policy.durable:
            fs.sync_all(paths)

    @cached_property
    def boot_id(self) -> str:
        return str(self.identity().get("boot_id") or "")

    def write_journal(self, records: Sequence[Record]) -> JournalEntry | None:
        """Write the records to the journal, durably; what they describe then needs no sync. None: it was not possible,
        and the caller must sync."""
        if self.journal is None or not self.policy.durable:
            return None
        return self.journal.write(records)

    def begin_journal_write(self, make: Callable[[], Sequence[Record]]) -> PendingWrite | None:
        """Start a journal write that runs while the caller makes the folder. None: not possible; `write_journal` may
        be."""
        if self.journal is None or not self.policy.durable:
            return None
        return self.journal.begin(make)

    def journal_ready(self) -> bool:
        """Return whether `write_journal` will almost certainly succeed. If so, a journal file of this boot already
        exists."""
        return self.journal is not None and self.policy.durable and self.journal.ready()

    def log_foreign(self, job_id: str, why: str) -> None:
        """Log a job of another schema version once; it is then left alone (DESIGN §3.3)."""
        if job_id not in self.foreign:
            self.foreign.add(job_id)
            self.log("critical", "schema version unknown, job left where it is", {"job_id": job_id, "why": why})

    def audit_transition(self, lifecycle: Lifecycle) -> None:
        """Write a transition to the audit log, after it is acknowledged. A kill in between loses the line, but hops[]
        have the transition. [test_every_transition_is_audited]"""
        self.audit_transitions((lifecycle,))

    def audit_transitions(self, lifecycles: Iterable[Lifecycle]) -> None:
        tell_all(self.audit, list(lifecycles))

    def local_agent(self, agent: Agent) -> LocalAgent:
        owner = self.local_agents.get(agent.id)
        if owner is None:
            raise AgentLost(f"{agent.id} has left; the slot joins again under a new name")
        return owner


def check_root(root: str) -> None:
    for name in ("agents", "jobs/.staging", "jobs/.ids", "jobs/.held", "jobs/stale"):
        if not os.path.isdir(f"{root}/{name}"):
            raise NotARoot(f"{root} is not a whole farro root: {name} is missing; `farro init --root {root}` makes it")


def queue_folders(root: str) -> list[str]:
    """Return every folder between which jobs are moved, relative to the root. Agents' own folders are inside these."""
    found = [
        "agents",
        "jobs",
        *(f"jobs/{name}" for name in (".staging", ".held", ".ids", "outbox", "stale", "quarantine")),
    ]
    for role in sorted(fs.subdirectories(f"{root}/agents")):
        found += [f"agents/{role}", places.incoming(role), places.in_progress(role), f"agents/{role}/completed"]
        found += [places.completed(role, status) for status in FINISHED]
    return [*found, places.WAITING]


def folders_apart(root: str) -> list[str]:
    """Return the queue folders that a rename from the root's own device cannot reach: on another device, or mounted
    into the root. A mount of the same device raises EXDEV too."""
    inside = [os.path.relpath(point, os.path.realpath(root)) for point in mounts.points_below(root)]
    home, found = os.stat(root).st_dev, []
    for name in queue_folders(root):
        try:
            other = os.stat(f"{root}/{name}").st_dev != home
        except FileNotFoundError:
            continue
        if other or any(name == point or name.startswith(f"{point}/") for point in inside):
            found.append(name)
    return found
