"""Admission: how many jobs a role, and all roles together, may have before a new one is refused (SPEC-1 §10).

Asked on enqueue only: routing, retries, requeues and children never meet a cap, for a job that is in must be able to
get through. Counting lives in the store.

Caps are compared before anything is staged, and nothing holds the count still meanwhile: submitters that ask in the
same instant may together exceed a cap by what each of them brings. A lock around every enqueue would cost all of them
more than that is worth; a cap is a brake, not a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.errors import CapacityReached, NotPermitted
from farro.lazy_dataclass import dataclass, field
from farro.store.port import Store, Submission

ROLE_CAP = 200
TOTAL_CAP = 1000
UNCAPPED = "Runner"  # command plans come by the ten thousand; capped only where the config says so


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """None: no cap. Roles without one are not part of the total either: they would leave the others no room."""

    role: int | None = ROLE_CAP  # of every role that `roles` does not name
    total: int | None = TOTAL_CAP
    roles: Mapping[str, int | None] = field(default_factory=lambda: {UNCAPPED: None})

    def of(self, role: str) -> int | None:
        return self.roles.get(role, self.role)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    role: str | None  # None: the cap of all roles together
    cap: int
    load: int  # what there is
    wanted: int  # what would be added
    own: bool = False  # the role's own cap (capacity.roles), not the one of every role

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


def admit(loads: Mapping[str, int], caps: Caps, wanted: Mapping[str, int]) -> Refusal | None:
    """Whether `wanted` (role → jobs) may be added to `loads`: all of it or nothing. None: it may."""
    capped = {role: count for role, count in wanted.items() if count and caps.of(role) is not None}
    for role, count in capped.items():
        cap, load = caps.of(role), loads.get(role, 0)
        if cap is not None and load + count > cap:
            return Refusal(role=role, cap=cap, load=load, wanted=count, own=role in caps.roles)
    if capped and caps.total is not None:
        load = sum(count for role, count in loads.items() if caps.of(role) is not None)
        if load + sum(capped.values()) > caps.total:
            return Refusal(role=None, cap=caps.total, load=load, wanted=sum(capped.values()))
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The caps, and who stands before them."""

    caps: Caps = field(default_factory=Caps)
    user: str = ""
    force: bool = False
    may_force: tuple[str, ...] = ()  # users, or "*" for everybody
    allowed_paths: bool = False  # every job must say what it may write (security.require_allowed_paths)

    @classmethod
    def of(cls, settings: Any, *, user: str, force: bool) -> Gate:
        capacity, security = getattr(settings, "capacity", None), getattr(settings, "security", None)
        allowed_paths = bool(getattr(security, "require_allowed_paths", False))
        if capacity is None:
            return cls(user=user, force=force, allowed_paths=allowed_paths)
        roles = {UNCAPPED: None, **capacity.roles}
        caps = Caps(role=capacity.role_cap, total=capacity.total_cap, roles=roles)
        may_force = tuple(capacity.force)
        return cls(caps=caps, user=user, force=force, may_force=may_force, allowed_paths=allowed_paths)


def admitted(
    store: Store,
    submissions: Sequence[Submission],
    gate: Gate | None,
    enqueue: Callable[[Sequence[Submission]], list[str]] | None = None,
) -> list[str]:
    """Enqueue them if the gate lets them through, all or none. CapacityReached, NotPermitted: nothing was queued.
    `enqueue`: another way than the store's `enqueue_many`."""
    enqueue = enqueue or store.enqueue_many
    if gate is None:
        return enqueue(submissions)
    if gate.force and not {gate.user, "*"} & set(gate.may_force):
        raise NotPermitted(
            f"--force: {gate.user} may not exceed the caps; the config's `capacity.force` lists the users who may. "
            "Nothing was queued"
        )
    check_paths(submissions, gate)
    refusal = _refusal(store, submissions, gate.caps)
    if refusal is None:
        return enqueue(submissions)
    if not gate.force:
        _tell(store, "cap_refused", refusal, gate.user)
        raise CapacityReached(str(refusal))
    ids = enqueue(submissions)
    _tell(store, "cap_forced", refusal, gate.user)
    return ids


def check_paths(submissions: Sequence[Submission], gate: Gate) -> None:
    """NotPermitted where a job must say what it may write, and does not; also for one that is run without a queue."""
    if gate.allowed_paths and any(item.prompt.get("allowed_paths") is None for item in submissions):
        raise NotPermitted(
            "the config's `security.require_allowed_paths` is on, and this job does not say what it may write; give it "
            "`allowed_paths`. Nothing was queued"
        )


def _refusal(store: Store, submissions: Sequence[Submission], caps: Caps) -> Refusal | None:
    capped = [item.role for item in submissions if caps.of(item.role) is not None]
    if not capped:
        return None  # the queue that has no cap pays nothing for those that have one
    wanted = Counter(capped)
    known = [role for role in store.roles() if caps.of(role) is not None]
    loads = {role: store.load(role) for role in (known if caps.total is not None else wanted)}
    refusal = admit(loads, caps, wanted)
    if refusal is None:
        return None
    # A job that is there already is not added: submitting the same id again is safe to repeat, also when it is full.
    fresh = {
        (item.job_id, number if item.job_id is None else -1): item.role
        for number, item in enumerate(submissions)
        if item.job_id is None or store.find(item.job_id) is None
    }
    return admit(loads, caps, Counter(fresh.values()))


def _tell(store: Store, event: str, refusal: Refusal, user: str) -> None:
    store.note(event, role=refusal.role, cap=refusal.cap, load=refusal.load, wanted=refusal.wanted, user=user)
