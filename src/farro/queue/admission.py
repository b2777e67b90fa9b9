"""Refuse new jobs when a role, or all roles together, have reached their cap (SPEC-1 §10).

Caps apply to enqueue only. Routing, retries, requeues and children are never refused: a job that was admitted must be
able to finish.

Caps are compared before anything is written, without a lock: submitters that check in the same instant may together
exceed a cap by what each of them adds. A lock around every enqueue would cost all submitters more than that is worth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from farro.config.settings import Settings
from farro.errors import CapacityReached, NotPermitted
from farro.host import machine
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field
from farro.store.port import Store, Submission, Submitted

ROLE_CAP = 200
TOTAL_CAP = 1000
UNCAPPED = "Runner"  # command plans are queued by the ten thousand; capped only if the config says so


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """Caps on queued and running jobs; None means no cap. Uncapped roles do not count towards the total either: they
    would leave the others no room."""

    role: int | None = ROLE_CAP  # for every role that `roles` does not name
    total: int | None = TOTAL_CAP
    roles: Mapping[str, int | None] = field(default_factory=lambda: {UNCAPPED: None})

    def of(self, role: str) -> int | None:
        return self.roles.get(role, self.role)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityRefusal:
    """Say which cap a submission would exceed. str() gives the message for the user."""

    role: str | None  # None: the cap of all roles together
    cap: int
    load: int  # jobs queued or in progress
    wanted: int  # jobs that would be added
    own: bool = False  # the role's own cap (capacity.roles), not the default role_cap

    def __str__(self) -> str:
        where = "all capped roles together have" if self.role is None else f"{self.role} has"
        setting = "total_cap" if self.role is None else f"roles.{self.role}" if self.own else "role_cap"
        more = f"{self.wanted} more job{'s' if self.wanted != 1 else ''}"
        look = "farro ls" if self.role is None else f"farro ls --role {self.role}"
        return (
            f"no room for {more}: {where} {self.load} of at most {self.cap} jobs queued or in progress. Nothing was "
            f"queued. Wait until some are done (`{look}`), raise `capacity.{setting}` in the config, or use --force if "
            "the config's `capacity.force` names you"
        )


def check_caps(loads: Mapping[str, int], caps: Caps, wanted: Mapping[str, int]) -> CapacityRefusal | None:
    """Return why `wanted` (role → jobs) may not be added to `loads`, or None if all of it may."""
    capped = {role: count for role, count in wanted.items() if count and caps.of(role) is not None}
    for role, count in capped.items():
        cap, load = caps.of(role), loads.get(role, 0)
        if cap is not None and load + count > cap:
            return CapacityRefusal(role=role, cap=cap, load=load, wanted=count, own=role in caps.roles)
    if capped and caps.total is not None:
        load = sum(count for role, count in loads.items() if caps.of(role) is not None)
        if load + sum(capped.values()) > caps.total:
            return CapacityRefusal(role=None, cap=caps.total, load=load, wanted=sum(capped.values()))
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The caps and the rights of one submitter."""

    caps: Caps = field(default_factory=Caps)
    user: str = ""
    force: bool = False
    may_force: tuple[str, ...] = ()  # users, or "*" for every user
    allowed_paths: bool = False  # every job must declare what it may write (security.require_allowed_paths)

    @classmethod
    def of(cls, settings: Settings, *, user: str, force: bool) -> Gate:
        """Build the gate from the settings."""
        capacity = settings.capacity
        return cls(
            caps=Caps(role=capacity.role_cap, total=capacity.total_cap, roles={UNCAPPED: None, **capacity.roles}),
            user=user,
            force=force,
            may_force=tuple(capacity.force),
            allowed_paths=settings.security.require_allowed_paths,
        )


class KnownJobs:
    """The jobs of a store, each looked up at most once in a submission: looking up an id that does not exist costs
    several times as much as queueing a job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[str, bool] = {}
        self._resolved: dict[str, str] = {}

    def __contains__(self, job_id: str) -> bool:
        if job_id not in self._found:
            self._found[job_id] = ids.is_job_id(job_id) and self._store.find(job_id) is not None
        return self._found[job_id]

    def resolve(self, text: str) -> str:
        """Return the id of the job that `text` names: an id, a name, or the beginning of an id. Raise UnknownJob."""
        if text not in self._resolved:
            from farro.queue import find_job  # here: few jobs run after others

            self._resolved[text] = find_job.resolve(self._store, text)
            self._found[self._resolved[text]] = True
        return self._resolved[text]


def admit(
    store: Store,
    submissions: Sequence[Submission],
    gate: Gate | None,
    *,
    known: KnownJobs | None = None,
    enqueue: Callable[[Sequence[Submission]], list[Submitted]] | None = None,
) -> list[Submitted]:
    """Enqueue all submissions if the gate admits them, else none.

    Raises CapacityReached or NotPermitted; nothing was queued then. `enqueue` replaces the store's `enqueue_many`.
    """
    enqueue = enqueue or store.enqueue_many
    if gate is None:
        return enqueue(submissions)
    if gate.force and not {gate.user, "*"} & set(gate.may_force):
        raise NotPermitted(
            f"--force: {gate.user} may not exceed the caps; the config's `capacity.force` lists the users who may. "
            "Nothing was queued"
        )
    check_allowed_paths(submissions, gate)
    refusal = _refusal(store, submissions, gate.caps, KnownJobs(store) if known is None else known)
    if refusal is None:
        return enqueue(submissions)
    if not gate.force:
        _note(store, "cap_refused", refusal, gate.user)
        raise CapacityReached(str(refusal))
    made = enqueue(submissions)
    _note(store, "cap_forced", refusal, gate.user)
    return made


def check_allowed_paths(submissions: Sequence[Submission], gate: Gate) -> None:
    """Raise NotPermitted if a job must declare what it may write and does not. Also applies to jobs that run without a
    queue."""
    if gate.allowed_paths and any(item.prompt.get("allowed_paths") is None for item in submissions):
        raise NotPermitted(
            "the config's `security.require_allowed_paths` is on, and this job does not say what it may write; give it "
            "`allowed_paths`. Nothing was queued"
        )


def _refusal(
    store: Store, submissions: Sequence[Submission], caps: Caps, known_jobs: KnownJobs
) -> CapacityRefusal | None:
    capped = [item.role for item in submissions if caps.of(item.role) is not None]
    if not capped:
        return None  # submissions to uncapped roles cost no count
    wanted = Counter(capped)
    known = [role for role in store.roles() if caps.of(role) is not None]
    loads = {role: store.load(role) for role in (known if caps.total is not None else wanted)}
    refusal = check_caps(loads, caps, wanted)
    if refusal is None:
        return None
    # Submitting an existing id again adds no job, so it must succeed even when the queue is full.
    new = {
        (item.job_id, number if item.job_id is None else -1): item.role
        for number, item in enumerate(submissions)
        if item.job_id is None or item.job_id not in known_jobs
    }
    return check_caps(loads, caps, Counter(new.values()))


def _note(store: Store, event: str, refusal: CapacityRefusal, user: str) -> None:
    store.note(event, role=refusal.role, cap=refusal.cap, load=refusal.load, wanted=refusal.wanted, user=user)


def current_user() -> str:
    """Return the name of the effective user. LOGNAME is not used: the caller can set it to anything."""
    return machine.current_user()


def operator_name(way: str = "cli") -> str:
    """Return the agent name for a person's command: how it was given and by which user. It appears in hops[]."""
    import getpass  # here: only commands that change a job need it

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{way}-" + (re.sub(r"[^A-Za-z0-9_-]", "-", name)[:24] or "somebody")
