"""Helpers of the crash suites: stores with seeded randomness, simulated deaths, and checks of the remaining tree.

A "process" here is one FilesStore: it dies by `die`, which drops its leases as the kernel would and cleans up nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from farro.doctor.root import make_root
from farro.errors import ClaimLost
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import is_decided
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Succeeded
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.store.feed import ChangeFeed
from farro.store.files import FilesStore
from farro.store.files.context import FilesContext
from farro.store.files.journal import Journal
from farro.store.port import Agent, StorePolicy
from farro.store.port import Submission as Submission
from farro.testing.store_kit import ROLES as ROLES
from farro.testing.store_kit import plan as plan
from farro.testing.store_kit import report as report
from farro.testing.store_kit import submission as submission
from one_job import claim_one, commit_one

EPOCH = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


class Crash(BaseException):
    """Raised through the seam when the process is killed. Not an Exception, so that nothing in farro handles it."""


class QuickClock:
    """A clock that sleeping advances, so that waiting takes no real time."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(EPOCH.timestamp() + self.offset_s, UTC)

    def boottime_s(self) -> float:
        return 1000.0 + self.offset_s

    def monotonic_s(self) -> float:
        return 1000.0 + self.offset_s

    def sleep(self, seconds: float) -> None:
        self.offset_s += max(0.0, seconds)


def policy(**changes: Any) -> StorePolicy:
    """A policy without delays between attempts, so that a drain needs no waiting."""
    return StorePolicy(**{"retry": RetryPolicy(base_s=0.0, max_delay_s=0.0), "rescan_s": 0.0, **changes})


def make(root: str) -> str:
    """Make a new root with the roles of these suites, outside of any seam."""
    os.makedirs(root, exist_ok=True)
    make_root(root, ROLES)
    return root


def open_files(
    root: str,
    *,
    seed: int = 0,
    clock: Any = None,
    store_policy: StorePolicy | None = None,
    log: Callable[[str, str, Mapping[str, Any]], None] = lambda level, message, fields: None,
    journal: bool = False,
    boot: str = "0",
) -> FilesStore:
    """A "process": same seed, same names. Different processes must get different seeds.

    Where every claim lists the queue anew (`rescan_s` 0, the stage's policy) there is no inotify behind the feeds:
    closing an instance costs the kernel ten milliseconds, and these suites open thousands.

    With `journal` from the first enqueue on, in files so small that they are changed after a few records; without it
    everything is synced the careful way, as a process does that makes few calls. Another `boot`: the power was gone.
    """
    dice = random.Random(seed)
    store = FilesStore(
        FilesContext(
            root=root,
            policy=store_policy or policy(),
            clock=clock or QuickClock(),
            reap=lambda markers, identity: None,
            kill_hung=lambda identity: False,
            identity=lambda: {"host": "stage", "boot_id": boot, "pid": seed, "start": 0},
            journal=None if not journal else small_journal(root, boot, dice.getrandbits),
            log=log,
            random_bits=dice.getrandbits,
            uniform=lambda low, high: low,
        )
    )
    if store._context.policy.rescan_s == 0:
        store._feeds.update({role: ChangeFeed() for role in (None, *store.roles())})
    return store


def small_journal(root: str, boot: str, random_bits: Callable[[int], int]) -> Journal:
    return Journal(root=root, boot_id=boot, random_bits=random_bits, eager_after=0, size=16 << 10, background=False)


def die(store: FilesStore) -> None:
    """Do what the kernel does when a process is killed: drop its locks. Nothing is cleaned up."""
    for file in store._context.journal._files if store._context.journal is not None else ():
        file.drop()
    for owner in store._context.local_agents.values():
        owner.lease.drop()
    store._context.local_agents.clear()
    for feed in store._feeds.values():
        feed.close()
    store._feeds.clear()


@dataclass
class History:
    """What the actors' calls returned. `enqueued` and `committed` are acknowledgements: the store must keep them."""

    enqueued: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)  # chosen ids whose submitter may have crashed
    committed: dict[str, list[tuple[int, Status]]] = field(default_factory=dict)  # job → (attempt, status returned)
    lost: list[tuple[str, int]] = field(default_factory=list)  # ClaimLost was raised
    executed: list[tuple[str, int]] = field(default_factory=list)  # attempts whose work started

    def ack_commit(self, job_id: str, attempt: int, lifecycle: Lifecycle) -> None:
        self.committed.setdefault(job_id, []).append((attempt, lifecycle.status))


def work_one(store: FilesStore, agent: Agent, history: History, *, fail: bool = False, children: int = 0) -> bool:
    """Run one turn of a worker: claim, "work", commit. False: there was no job."""
    claim = claim_one(store, agent)
    if claim is None:
        return False
    history.executed.append((claim.job_id, claim.attempt))
    try:
        if fail:
            error = ErrorInfo(category="step_failed", message="no")
            told = commit_one(store, claim, Failed(error=error, report=report(claim, "failed")))
        else:
            offspring = tuple(Child(role="CodeReviewer", prompt=plan(n)) for n in range(children))
            told = commit_one(store, claim, Succeeded(report=report(claim), children=offspring))
    except ClaimLost:
        history.lost.append((claim.job_id, claim.attempt))
    else:
        history.ack_commit(claim.job_id, claim.attempt, told)
    return True


def drain(
    root: str,
    history: History,
    *,
    seed: int = 10_000,
    rounds: int = 50,
    clock: Any = None,
    store_policy: StorePolicy | None = None,
    boot: str = "0",
) -> FilesStore:
    """Let healthy processes finish everything: watchdog, manager and a worker for every role, until nothing changes."""
    store = open_files(root, seed=seed, clock=clock, store_policy=store_policy, boot=boot)
    keeper = store.join("keeper", role=None)
    workers = [store.join("drain", role=role) for role in store.roles()]
    for _ in range(rounds):
        moved = bool([done for done in store.recover(keeper) if done.job_id is not None])
        for job_id in store.stale():
            moved |= store.resolve_stale(keeper, job_id) is not None
        for worker in workers:
            while work_one(store, worker, history):
                moved = True
        if not moved:
            break
    else:
        raise AssertionError(f"not drained after {rounds} rounds: {tree(root)}")
    store.close()
    return store


def everywhere(root: str) -> dict[str, list[str]]:
    """Map each job id to every folder that contains it, except staging, where nothing is a job yet."""
    return _seen(root, deep=False)[0]


def _seen(root: str, *, deep: bool) -> tuple[dict[str, list[str]], list[str]]:
    """The place of each job and, with `deep` also inside of jobs, the folders with a lock.

    Not os.walk, which asks of every folder whether it is a link: these suites look at some hundred thousand trees.
    """
    jobs: dict[str, list[str]] = {}
    locked: list[str] = []
    folders = [(root, False)]
    for folder, in_job in folders:  # it grows
        inside = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inside.append(entry.path)
                elif entry.name == "lock":
                    locked.append(folder)
                elif entry.name == "prompt.json" and not in_job and "/jobs/.staging" not in folder:
                    home, _, job_id = folder.rpartition("/")
                    jobs.setdefault(job_id, []).append(home[len(root) + 1 :])
                    in_job = True
        if deep or not in_job:
            folders += [(path, in_job) for path in inside]
    return jobs, locked


def remove(path: str) -> None:
    """Remove a tree that no process uses. shutil's way is safe against other processes, and twice as slow."""
    with os.scandir(path) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def tree(root: str) -> str:
    found = (os.path.join(folder, name) for folder, _, files in os.walk(root) for name in files)
    return "\n".join(sorted(os.path.relpath(path, root) for path in found))


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def judge(root: str, history: History, *, terminal: bool = True) -> None:
    """Check the promise on the tree after a drain: no job is lost, duplicated or in an unexpected state."""
    where, locked = _seen(root, deep=True)
    for job_id in history.enqueued:
        assert job_id in where, f"LOST: acknowledged {job_id} is nowhere\n{tree(root)}"
    for job_id, folders in where.items():
        assert len(folders) == 1, f"DUPLICATED: {job_id} lies in {folders}"
        _judge_job(root, job_id, f"{root}/{folders[0]}/{job_id}", folders[0], history, terminal)
    for folder in locked:
        left = "/incoming/" in folder or "/completed/" in folder or "/stale/" in folder
        assert not left, f"UNEXPECTED: a lock was left in {folder}"


def _judge_job(root: str, job_id: str, path: str, place: str, history: History, terminal: bool) -> None:
    lifecycle = Lifecycle.from_json(read(f"{path}/job.json"))
    json.loads(read(f"{path}/prompt.json"))
    if terminal:
        assert "/completed/" in f"/{place}/", f"UNEXPECTED: {job_id} did not finish, it lies in {place}"
        assert lifecycle.terminal, f"UNEXPECTED: {job_id} in {place} says {lifecycle.status}"
        assert place.endswith(f"/{lifecycle.status}"), f"UNEXPECTED: {job_id} in {place} says {lifecycle.status}"
    accepted = [hop for hop in lifecycle.hops if hop.reason is Reason.COMMITTED]
    assert len(accepted) <= 1, f"DUPLICATED: {job_id} was committed {len(accepted)} times"
    told = history.committed.get(job_id, [])
    finals = [(attempt, status) for attempt, status in told if status in (Status.SUCCEEDED, Status.FAILED)]
    assert len(finals) <= 1, f"DUPLICATED: {job_id} was acknowledged as final {len(finals)} times: {finals}"
    if finals:
        assert accepted, f"LOST: {job_id} was acknowledged as {finals[0]} but is {lifecycle.status}"
        assert (accepted[0].attempt, lifecycle.status) == finals[0], (
            f"LOST: {job_id}: told {finals[0]}, found {accepted[0]}"
        )
    for attempt, status in told:
        kept = [hop for hop in lifecycle.hops if hop.attempt == attempt]
        assert kept, f"LOST: {job_id}: the acknowledged decision ({status}) of attempt {attempt} is not in its hops"
    if lifecycle.status in (Status.SUCCEEDED, Status.FAILED) and accepted:
        assert is_decided(lifecycle, accepted[0].attempt), f"UNEXPECTED: {job_id} is final but not decided"
        home = f"{path}/attempts/{accepted[0].attempt:04d}"
        whole = hashlib.sha256(read(f"{home}/result.json")).hexdigest()
        assert whole == lifecycle.result_sha256, f"TORN: {job_id}: result.json is not what was decided"
        mirror = "result.md" if lifecycle.status is Status.SUCCEEDED else "error.md"
        assert read(f"{path}/{mirror}") == read(f"{home}/{mirror}"), (
            f"UNEXPECTED: {job_id}: {mirror} is another attempt's"
        )
