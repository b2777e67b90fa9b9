"""Define the plays that the power suites cut at any point, and the checks that must hold after the cut."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crash.powermodel import Log, Recorder, State
from farro import documents
from farro.doctor.root import make_root
from farro.errors import SyncFailed
from farro.host import fs
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Outcome, Report, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.plans import after
from farro.store.files import FilesStore
from farro.store.port import Agent, Claim, Submission
from one_job import claim_one, commit_all, commit_one, release_one, route_one
from stage import (
    EPOCH,
    ROLES,
    Crash,
    History,
    QuickClock,
    die,
    drain,
    everywhere,
    judge,
    make,
    open_files,
    plan,
    policy,
    read,
    remove,
    tree,
)

DAY_S = 86_400.0
AFTER = "1"  # the boot after the cut
LATER = EPOCH + timedelta(hours=6)  # a delay that ends before the machine is back


@dataclass(frozen=True, kw_only=True)
class Ack:
    """An answer to a caller, and what the store must keep from then on."""

    job_id: str
    attempt: int = 0
    reason: Reason = Reason.ENQUEUED
    status: Status = Status.QUEUED
    files: Mapping[str, bytes] = field(default_factory=dict)  # relative to the job's folder
    not_before: datetime | None = None
    retry_of: str | None = None


class Play:
    """Make the calls of one run and report each acknowledgement to the recorder."""

    def __init__(
        self, root: str, tell: Callable[[Ack], None], recorder: Recorder | None, *, durable: bool, journal: bool
    ) -> None:
        self.root = root
        self.tell = tell
        self.recorder = recorder
        self.durable = durable
        self.journal = journal
        self.clock = QuickClock()
        self.known: set[str] = set()  # every submitted id, acknowledged or not
        self.again: list[Submission] = []  # chosen ids that their submitters submit again after the cut
        self.offspring: dict[tuple[str, str], tuple[str, ...]] = {}  # (job, agent) → the children in its commit
        self.names: list[tuple[str, str]] = []  # names, and the jobs that got them, in order
        self._seeds = 0

    def process(self, *, careful: bool = False, **policy_changes: Any) -> FilesStore:
        """Open a store as a new process. `careful`: without a journal, as a process that makes few calls."""
        self._seeds += 1
        return open_files(
            self.root,
            seed=self._seeds,
            clock=self.clock,
            store_policy=policy(durable=self.durable, **policy_changes),
            journal=self.journal and not careful,
        )

    def enqueue(self, store: FilesStore, *submissions: Submission) -> list[str]:
        self.known.update(item.job_id for item in submissions if item.job_id is not None)
        self.again += [item for item in submissions if item.job_id is not None]
        told = [job.id for job in store.enqueue_many(submissions)]
        for job_id, item in zip(told, submissions, strict=True):
            files = {"prompt.json": documents.canonical(item.prompt) + b"\n"}
            files |= {f"payload/{name}": data for name, data in item.payload.items()}
            if item.narrative is not None:
                files["prompt.md"] = item.narrative.encode()
            self.tell(Ack(job_id=job_id, files=files, not_before=item.not_before, retry_of=item.retry_of))
        self.known.update(told)
        return told

    def enqueue_named(self, store: FilesStore, name: str, item: Submission, *, instead_of: str | None = None) -> str:
        told = store.enqueue_named(name, item, instead_of=instead_of)
        self.names.append((name, told))
        self.known.add(told)
        files = {"prompt.json": documents.canonical(item.prompt) + b"\n"}
        self.tell(Ack(job_id=told, files=files, retry_of=item.retry_of))
        return told

    def claim(self, store: FilesStore, agent: Agent) -> Claim:
        claim = claim_one(store, agent)
        assert claim is not None
        return claim

    def succeed(self, store: FilesStore, claim: Claim, *, children: int = 0, files: Sequence[str] = ()) -> Lifecycle:
        self._work(claim, files)
        offspring = tuple(Child(role="CodeReviewer", prompt=plan(n)) for n in range(children))
        return self.commit(store, claim, Succeeded(report=_report(claim, files), children=offspring))

    def fail(self, store: FilesStore, claim: Claim, *, retryable: bool = False, files: Sequence[str] = ()) -> Lifecycle:
        self._work(claim, files)
        error = ErrorInfo(category="step_failed", message="no")
        return self.commit(store, claim, Failed(error=error, report=_report(claim, files), retryable=retryable))

    def commit(self, store: FilesStore, claim: Claim, outcome: Outcome, role: str | None = None) -> Lifecycle:
        wanted_by = outcome.children if isinstance(outcome, Succeeded) else ()
        wanted = tuple(ids.child_id(claim.job_id, claim.attempt, index) for index in range(len(wanted_by)))
        self.offspring[claim.job_id, claim.agent.id] = wanted
        told = commit_one(store, claim, outcome) if role is None else route_one(store, claim, outcome, role)
        self._acknowledged(claim, outcome, told)
        return told

    def commit_batch(self, store: FilesStore, claims: Sequence[Claim]) -> None:
        ended: list[tuple[Claim, Outcome]] = [(claim, Succeeded(report=_report(claim))) for claim in claims]
        for claim in claims:
            self.offspring[claim.job_id, claim.agent.id] = ()
        for (claim, outcome), told in zip(ended, commit_all(store, ended), strict=True):
            assert isinstance(told, Lifecycle)
            self._acknowledged(claim, outcome, told)

    def _acknowledged(self, claim: Claim, outcome: Outcome, told: Lifecycle) -> None:
        home = f"attempts/{claim.attempt:04d}"
        report = getattr(outcome, "report", None)
        files = {f"{home}/{name}": _bytes_of(name, claim.attempt) for name in report.files} if report else {}
        if report is not None:
            name = "result.md" if isinstance(outcome, Succeeded) else "error.md"
            files[f"{home}/{name}"] = report.markdown.encode()
            files[f"{home}/result.json"] = json.dumps(report.result).encode() + b"\n"
        self._told(claim.job_id, claim.attempt, told, files=files)

    def _told(self, job_id: str, attempt: int, told: Lifecycle, **more: Any) -> None:
        self.tell(Ack(job_id=job_id, attempt=attempt, reason=told.hops[-1].reason, status=told.status, **more))

    def verb(self, call: Callable[..., Lifecycle | None], agent: Agent, job_id: str) -> Lifecycle:
        """Run a command of an operator or of the manager."""
        told = call(agent, job_id)
        assert told is not None
        self._told(job_id, told.attempt, told)
        return told

    def _work(self, claim: Claim, files: Sequence[str]) -> None:
        """Write the output of an attempt's steps through the seam, so that the model records it. Nothing is synced."""
        for name in files:
            parts = name.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = f"{claim.folder}/{'/'.join(parts[:depth])}"
                if not fs.exists(folder):
                    fs.mkdir(folder)
            fs.create(f"{claim.folder}/{name}", _bytes_of(name, claim.attempt))


def _bytes_of(name: str, attempt: int) -> bytes:
    return f"{name} of attempt {attempt}\n".encode() * 3


def _report(claim: Claim, files: Sequence[str] = ()) -> Report:
    return Report(
        result={"job_id": claim.job_id, "attempt": claim.attempt, "success": True},
        markdown=f"by {claim.agent.id} in attempt {claim.attempt}\n",
        files=tuple(files),
    )


# --- the plays ---------------------------------------------------------------------------------------------------

STEP_FILES = ("steps/1/stdout", "steps/1/stderr", "out/a/b/c.txt")


def minted(play: Play) -> None:
    """One enqueue with every field of a submission."""
    play.enqueue(
        play.process(),
        Submission(role="Runner", prompt=plan(1), narrative="why\n", payload={"a.txt": b"a" * 99, "b": b""}),
    )


def streamed(play: Play) -> None:
    """Several enqueues from one process: all but the first are staged while their journal record is being written."""
    store = play.process()
    for number in range(3):
        play.enqueue(store, Submission(role="Runner", prompt=plan(number)))


def named(play: Play) -> None:
    """A job with a name, which is then given to the next job."""
    store = play.process()
    first = play.enqueue_named(store, "nightly", Submission(role="Runner", prompt=plan(1)))
    play.succeed(store, play.claim(store, store.join("w", role="Runner")))
    again = Submission(role="Runner", prompt=plan(1), retry_of=first)
    play.enqueue_named(play.process(), "nightly", again, instead_of=first)


def delayed(play: Play) -> None:
    """job.json says more than the prompt: a delay, and which job this one repeats. Claimed when it is due."""
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1), not_before=LATER, retry_of="earlier"))
    worker = store.join("w", role="Runner")
    play.clock.sleep(7 * 3600.0)
    play.succeed(store, play.claim(store, worker))


def chosen(play: Play) -> None:
    """A chosen id, submitted twice by submitters that time out; and again after the cut (see `Play.again`)."""
    asked = Submission(role="Runner", prompt=plan(1), job_id="order-7", payload={"a.txt": b"a"})
    play.enqueue(play.process(), asked)
    play.enqueue(play.process(), asked)


def resubmitted(play: Play) -> None:
    """The first submitter is killed before it acknowledges; the second finds its job and acknowledges it."""
    for job_id, folder in (("one", "jobs/.ids"), ("two", "agents/Runner/incoming")):
        asked = Submission(role="Runner", prompt=plan(1), job_id=job_id)
        first = play.process()
        assert play.recorder is not None
        play.recorder.trap = lambda op, args, end=folder: Crash() if op == "fsync" and args[1].endswith(end) else None
        with contextlib.suppress(Crash):
            play.enqueue(first, asked)
        play.enqueue(play.process(), asked)


def half_registered(play: Play) -> None:
    """The first submitter is killed between its link and its record. The next one, which syncs or has its own journal,
    finds the link and acknowledges the job that the first one staged."""
    for job_id, careful in (("one", True), ("two", False)):
        asked = Submission(role="Runner", prompt=plan(1), job_id=job_id, payload={"a.txt": b"a"})
        assert play.recorder is not None
        if play.journal:
            play.recorder.trap = lambda op, args: Crash() if op == "write_sync" else None
        with contextlib.suppress(Crash):
            play.enqueue(play.process(), asked)
        assert play.recorder.trap is None
        play.enqueue(play.process(careful=careful), asked)


def many(play: Play) -> None:
    """enqueue_many over two roles, a chosen id among them."""
    items = [Submission(role=role, prompt=plan(n)) for n, role in enumerate(("Runner", "CodeReviewer", "Runner"))]
    play.enqueue(play.process(), *items, Submission(role="Runner", prompt=plan(9), job_id="nine"))


def succeeded(play: Play) -> None:
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    play.succeed(store, play.claim(store, store.join("w", role="Runner")), files=STEP_FILES)
    store.close()


def failed(play: Play) -> None:
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    play.fail(store, play.claim(store, store.join("w", role="Runner")), files=STEP_FILES[:1])


def retried(play: Play) -> None:
    """Failed, failed, succeeded: each attempt's result stays, and the success removes the mirrored error."""
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    worker = store.join("w", role="Runner")
    play.fail(store, play.claim(store, worker), retryable=True)
    play.fail(store, play.claim(store, worker), retryable=True)
    play.succeed(store, play.claim(store, worker))


def routed(play: Play) -> None:
    """Routed to a second role by its prompt, and claimed there: the first hop must survive the second claim."""
    store, other = play.process(), play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1, routing={"next": "CodeReviewer"})))
    play.succeed(store, play.claim(store, store.join("w", role="Runner")))
    play.succeed(other, play.claim(other, other.join("r", role="CodeReviewer")))


def sent_on(play: Play) -> None:
    """As `routed`, but chosen by the worker, with a release in between; the second worker dies in its attempt."""
    store, other = play.process(), play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    worker = store.join("w", role="Runner")
    claim = play.claim(store, worker)
    play._told(claim.job_id, claim.attempt, release_one(store, claim, "shutdown"))
    claim = play.claim(store, worker)
    play.commit(store, claim, Succeeded(report=_report(claim)), role="CodeReviewer")
    play.claim(other, other.join("r", role="CodeReviewer"))
    die(other)


def children(play: Play) -> None:
    """Two children delivered through the outbox; a worker runs one of them."""
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    play.succeed(store, play.claim(store, store.join("w", role="Runner")), children=2)
    play.succeed(store, play.claim(store, store.join("r", role="CodeReviewer")))


def recommitted(play: Play) -> None:
    """A commit with children fails half-way; the attempt then commits without them. The cut must not bring one back."""
    assert play.recorder is not None
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    claim = play.claim(store, store.join("w", role="Runner"))
    play.recorder.trap = lambda op, args: OSError(errno.EIO, "no") if op == "fsync" and "outbox" in args[1] else None
    with contextlib.suppress(SyncFailed):
        play.succeed(store, claim, children=2)
    assert play.recorder.trap is None
    play.succeed(store, claim)


def stale(play: Play) -> None:
    """A worker dies twice; a watchdog and the manager recover the job each time, then its attempts are exhausted."""
    keeper_store = play.process(retry=_two_attempts())
    play.enqueue(keeper_store, Submission(role="Runner", prompt=plan(1)))
    keeper = keeper_store.join("keeper", role=None)
    for _ in range(2):
        store = play.process(retry=_two_attempts())
        play.claim(store, store.join("w", role="Runner"))
        die(store)
        keeper_store.recover(keeper)
        [job_id] = keeper_store.stale()
        play.verb(keeper_store.resolve_stale, keeper, job_id)


def _two_attempts() -> Any:
    return RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=2)


def operated(play: Play) -> None:
    """Kill of a queued and of a running job, force-complete of a running one, requeue of a stale one."""
    store = play.process()
    queued, running, done, put_back = play.enqueue(
        store, *(Submission(role="Runner", prompt=plan(n)) for n in range(4))
    )
    operator = store.join("op", role=None)
    play.verb(store.kill, operator, queued)
    workers = [store.join("w", role="Runner", slot=n) for n in range(2)]
    for worker in workers:
        play.claim(store, worker)
    play.verb(store.kill, operator, running)
    play.verb(store.force_complete, operator, done)
    other = play.process()
    play.claim(other, other.join("x", role="Runner"))
    die(other)
    store.recover(operator)
    play.verb(store.requeue, operator, put_back)


def unroutable(play: Play) -> None:
    """A finished job that cannot be routed: marked stale in place, and acknowledged as stale."""
    store = play.process()
    play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    claim = play.claim(store, store.join("w", role="Runner"))
    play.commit(store, claim, Unroutable(error=ErrorInfo(category="no_manager", message="away"), report=_report(claim)))


def slots(play: Play) -> None:
    """Three slots of one process run six jobs at once: their syncs are merged, their calls interleave."""
    store = play.process()
    play.enqueue(store, *(Submission(role="Runner", prompt=plan(n)) for n in range(6)))
    workers = [store.join("w", role="Runner", slot=n) for n in range(3)]
    together = threading.Barrier(3)
    trouble: list[BaseException] = []

    def turn(agent: Agent) -> None:
        try:
            together.wait()
            for number in range(2):
                claim = None
                while claim is None:  # the other slots briefly hold the locks of the remaining jobs
                    claim = claim_one(store, agent)
                together.wait()
                if number:
                    play.fail(store, claim, retryable=True)
                else:
                    play.succeed(store, claim)
                together.wait()
        except BaseException as error:
            trouble.append(error)
            together.abort()

    threads = [threading.Thread(target=turn, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if trouble:
        raise trouble[0]


def initiated(play: Play) -> None:
    """Create the root under the recorder: an enqueue depends on folders that must also survive."""
    make_root(play.root, ROLES)
    play.enqueue(play.process(), Submission(role="Runner", prompt=plan(1)))


def rotated(play: Play) -> None:
    """Enough records to rotate and free the journal's files several times; one worker dies in between."""
    store, other = play.process(), play.process()
    play.enqueue(store, *(Submission(role="Runner", prompt=plan(n)) for n in range(3)))
    worker = store.join("w", role="Runner")
    for number in range(9):
        play.enqueue(other, Submission(role="Runner", prompt=plan(number), narrative="why\n" * 50))
        claim = play.claim(store, worker)
        if number % 3 == 2:
            play.fail(store, claim, retryable=True)
        else:
            play.succeed(store, claim, files=STEP_FILES)
    play.claim(store, worker)
    die(store)
    keeper = other.join("keeper", role=None)
    other.recover(keeper)
    [job_id] = other.stale()
    play.verb(other.resolve_stale, keeper, job_id)


def in_rows(play: Play) -> None:
    """Small jobs that are claimed and committed as a batch, with one journal write; one is released, one is recorded
    and then lost with its worker."""
    store, other = play.process(), play.process()
    play.enqueue(store, *(Submission(role="Runner", prompt=plan(n)) for n in range(5)))
    worker = store.join("w", role="Runner")
    claims = store.claim(worker, 4)
    store.hand_back(claims[3:])
    play.commit_batch(store, claims[:3])
    left = store.claim(worker, 4)
    store.heartbeat(left[1].agent, left[1])
    play.commit_batch(store, left[:1])
    die(store)
    keeper = other.join("keeper", role=None)
    other.recover(keeper)
    [job_id] = other.stale()
    play.verb(other.resolve_stale, keeper, job_id)


def overtaken(play: Play) -> None:
    """A commit's record whose job was killed meanwhile: the kill was acknowledged, the commit was not."""
    assert play.recorder is not None
    store = play.process()
    [job_id] = play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    claim = play.claim(store, store.join("w", role="Runner"))
    play.recorder.trap = lambda op, args: Crash() if op == "create" and args[0].endswith("/result.json") else None
    with contextlib.suppress(Crash):
        play.succeed(store, claim)
    other = play.process()
    play.verb(other.kill, other.join("op", role=None), job_id)


def rerun(play: Play) -> None:
    """A worker dies after its commit's record is on disk and before it writes the folder: the job becomes stale, is
    requeued, and is run again by another process with its own journal."""
    assert play.recorder is not None
    store = play.process()
    [job_id] = play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    claim = play.claim(store, store.join("w", role="Runner"))
    play.recorder.trap = lambda op, args: Crash() if op == "create" and args[0].endswith("/result.json") else None
    with contextlib.suppress(Crash):
        play.succeed(store, claim)
    die(store)
    other = play.process()
    keeper = other.join("keeper", role=None)
    other.recover(keeper)
    play.verb(other.resolve_stale, keeper, job_id)
    third = play.process()
    play.fail(third, play.claim(third, third.join("x", role="Runner")))


def mixed(play: Play) -> None:
    """One job through processes with a journal and without: failed, failed, routed, succeeded."""
    quick, careful = play.process(), play.process(careful=True)
    play.enqueue(quick, Submission(role="Runner", prompt=plan(1, routing={"next": "CodeReviewer"})))
    play.fail(quick, play.claim(quick, quick.join("w", role="Runner")), retryable=True, files=STEP_FILES[:1])
    play.fail(careful, play.claim(careful, careful.join("c", role="Runner")), retryable=True)
    play.succeed(quick, play.claim(quick, quick.join("v", role="Runner")))
    play.succeed(careful, play.claim(careful, careful.join("r", role="CodeReviewer")))


def undone(play: Play) -> None:
    """An operator changes jobs that are still in a journal: kills a retried one, requeues and completes a stale one."""
    quick, careful = play.process(), play.process(careful=True)
    one, two = play.enqueue(quick, *(Submission(role="Runner", prompt=plan(n)) for n in range(2)))
    worker, operator = quick.join("w", role="Runner"), careful.join("op", role=None)
    play.fail(quick, play.claim(quick, worker), retryable=True)
    play.verb(careful.kill, operator, one)
    claim = play.claim(quick, worker)
    play.commit(quick, claim, Unroutable(error=ErrorInfo(category="no", message="away"), report=_report(claim)))
    careful.recover(operator)
    play.verb(careful.requeue, operator, two)
    play.fail(quick, play.claim(quick, worker), retryable=True)
    play.claim(quick, worker)
    play.verb(careful.force_complete, operator, two)


def chained(play: Play) -> None:
    """Dependent jobs: submitted before the end of their dependency, which is committed by journal, and after it."""
    store, other = play.process(), play.process(careful=True)
    [first] = play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    [second] = play.enqueue(other, _after(first))
    play.enqueue(other, _after(second, any_end=True))
    worker = store.join("w", role="Runner")
    play.succeed(store, play.claim(store, worker))
    play.enqueue(other, _after(first))
    play.succeed(store, play.claim(store, worker))
    play.succeed(store, play.claim(store, worker))


def chain_broken(play: Play) -> None:
    """A dependency fails: the job that needs its success is killed, the job that needs only its end runs."""
    store = play.process()
    [first] = play.enqueue(store, Submission(role="Runner", prompt=plan(1)))
    [second] = play.enqueue(store, _after(first))
    play.enqueue(store, _after(first, any_end=True))
    play.enqueue(store, _after(second, any_end=True))
    worker = store.join("w", role="Runner")
    play.fail(store, play.claim(store, worker), retryable=True)
    play.fail(store, play.claim(store, worker))
    play.succeed(store, play.claim(store, worker))


def _after(job_id: str, *, any_end: bool = False) -> Submission:
    return Submission(role="Runner", prompt=plan(7, metadata={"after_any" if any_end else "after": [job_id]}))


PLAYS: tuple[Callable[[Play], None], ...] = (
    minted,
    streamed,
    named,
    delayed,
    chosen,
    resubmitted,
    half_registered,
    many,
    succeeded,
    failed,
    retried,
    routed,
    sent_on,
    children,
    recommitted,
    stale,
    operated,
    unroutable,
    slots,
    initiated,
    rotated,
    in_rows,
    overtaken,
    rerun,
    mixed,
    undone,
    chained,
    chain_broken,
)


# Plays without an injected error and without their own root.
ON_DISK = (
    minted,
    streamed,
    chosen,
    many,
    succeeded,
    retried,
    routed,
    children,
    stale,
    operated,
    slots,
    rotated,
    in_rows,
    mixed,
    chained,
)
# Fewer plays, for a disk that is synced after every call: a short run covers all their steps.
BESIDE_A_NEIGHBOUR = (succeeded, routed, children, operated)

_NO_LOG = Log(base={}, born={}, entries=())


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the checks need to know about a run."""

    log: Log = _NO_LOG
    known: frozenset[str]
    again: tuple[Submission, ...]
    offspring: Mapping[tuple[str, str], tuple[str, ...]]
    names: tuple[tuple[str, str], ...] = ()


def record(play: Callable[[Play], None], root: str, *, journal: bool = False) -> Recorded:
    """Record one play, starting from a fully durable root (an empty folder for `initiated`)."""
    if play is initiated:
        os.mkdir(root)
    else:
        make(root)
    recorder = Recorder(root)
    fs.set_seam(recorder)
    try:
        told = perform(play, root, tell=recorder.tell, recorder=recorder, journal=journal)
    finally:
        fs.set_seam(None)
    return dataclasses.replace(told, log=Log.of(recorder))


def perform(
    play: Callable[[Play], None],
    root: str,
    *,
    tell: Callable[[Ack], None],
    recorder: Recorder | None = None,
    durable: bool = True,
    journal: bool = False,
) -> Recorded:
    director = Play(root, tell, recorder, durable=durable, journal=journal)
    play(director)
    return Recorded(
        known=frozenset(director.known),
        again=tuple(director.again),
        offspring=director.offspring,
        names=tuple(director.names),
    )


# --- after the cut -----------------------------------------------------------------------------------------------


COMING_BACK = (("submit", "drain"), ("drain", "submit", "drain"), ("drain",))


class Broken(AssertionError):
    """A state that breaks the promise, with its history."""


def check(state: State, recorded: Recorded, root: str) -> None:
    """Write the state to disk, let healthy processes finish all jobs, check the result, and remove the folder."""
    old_staging = bool(state.digest()[0] & 1)
    for coming_back in COMING_BACK if recorded.again else COMING_BACK[-1:]:
        state.write_out(root)
        try:
            after_the_cut(root, state.acks, recorded, coming_back=coming_back, old_staging=old_staging)
        except Exception as error:
            acks = ", ".join(f"{ack.reason} {ack.job_id}" for ack in state.acks)
            raise Broken(
                f"{type(error).__name__}: {error}\n  in the state: {state.story}\n"
                f"  acknowledged: {acks or 'nothing'}; then: {', '.join(coming_back)}; old staging: {old_staging}"
            ) from error
        finally:
            remove(root)


def after_the_cut(
    root: str, acks: Sequence[Ack], recorded: Recorded, *, coming_back: Sequence[str], old_staging: bool
) -> None:
    """Reboot without any held lease. The submitters of chosen ids return before all jobs are finished, afterwards, or
    never; clean-up sees staging as old (and sweeps it) or as fresh."""
    if not acks:
        os.makedirs(root, exist_ok=True)
        make_root(root, ROLES)  # the cut was during `farro init`: run it again
    clock = QuickClock()
    clock.sleep(DAY_S)
    staged_at_s = clock.now().timestamp() - (7200.0 if old_staging else 0.0)
    for name in os.listdir(f"{root}/jobs/.staging"):
        os.utime(f"{root}/jobs/.staging/{name}", (staged_at_s, staged_at_s))
    history = History()
    for ack in acks:
        if ack.reason is Reason.ENQUEUED:
            history.enqueued.add(ack.job_id)
        elif ack.status in (Status.SUCCEEDED, Status.FAILED) and ack.reason is Reason.COMMITTED:
            history.committed.setdefault(ack.job_id, []).append((ack.attempt, ack.status))
    open_files(root, seed=30_000, clock=clock, boot=AFTER).close()
    _judge_waiting(root, acks)
    for number, what in enumerate(coming_back):
        if what == "drain":
            drain(root, history, seed=10_000 + number, clock=clock, boot=AFTER).close()
            continue
        store = open_files(root, seed=20_000, clock=clock, boot=AFTER)
        for item in recorded.again:
            history.enqueued.add(store.enqueue(item))
        store.close()
    judge(root, history)
    _judge_acks(root, acks, recorded)
    _judge_names(root, recorded)


def _judge_waiting(root: str, acks: Sequence[Ack]) -> None:
    """Check that an unclaimed job still has its delay."""
    for ack in acks:
        path = f"{root}/agents/Runner/incoming/{ack.job_id}"
        untouched = os.path.isdir(path) and os.listdir(path) in (
            ["job.json", "prompt.json"],
            ["prompt.json", "job.json"],
        )
        if ack.not_before is None or not untouched:
            continue
        life = Lifecycle.from_json(read(f"{path}/job.json"))
        if life.attempt == 0:  # otherwise a claim wrote job.json and lost its other changes: the job was due
            assert life.not_before is not None, f"LOST: the delay of {ack.job_id}"
            assert datetime.fromisoformat(life.not_before) == ack.not_before, f"LOST: the delay of {ack.job_id}"


def _judge_acks(root: str, acks: Sequence[Ack], recorded: Recorded) -> None:
    where = everywhere(root)
    lives = {}
    for job_id, folders in where.items():
        lives[job_id] = Lifecycle.from_json(read(f"{root}/{folders[0]}/{job_id}/job.json"))
    # A commit happened whole or not at all: the children of accepted attempts are there, acknowledged or not.
    accepted = {
        (job_id, hop.by)
        for job_id, life in lives.items()
        for hop in life.hops
        if hop.reason in (Reason.COMMITTED, Reason.ROUTED)
    }
    grown = {child for commit, wanted in recorded.offspring.items() if commit in accepted for child in wanted}
    assert grown <= where.keys(), f"LOST: children of accepted attempts: {grown - where.keys()}\n{tree(root)}"
    strangers = where.keys() - grown - recorded.known
    assert not strangers, f"UNEXPECTED: jobs that no caller submitted: {strangers}\n{tree(root)}"
    for job_id, life in lives.items():
        _judge_order(life, json.loads(read(f"{root}/{where[job_id][0]}/{job_id}/prompt.json")), lives)
    for ack in acks:
        life, path = lives[ack.job_id], f"{root}/{where[ack.job_id][0]}/{ack.job_id}"
        if ack.reason is not Reason.ENQUEUED:
            told = (ack.attempt, ack.reason)
            assert told in {(hop.attempt, hop.reason) for hop in life.hops}, (
                f"LOST: {ack.job_id}: {told}; hops: {life.hops}"
            )
        if ack.status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED):
            assert life.status is ack.status, f"LOST: {ack.job_id}: acknowledged as {ack.status}, is {life.status}"
        if ack.retry_of is not None:
            assert life.retry_of == ack.retry_of, f"LOST: {ack.job_id} no longer says that it repeats {ack.retry_of}"
        for name, data in ack.files.items():
            assert os.path.isfile(f"{path}/{name}"), f"LOST: {name} of {ack.job_id}"
            assert read(f"{path}/{name}") == data, f"TORN: {name} of {ack.job_id}"


def _judge_names(root: str, recorded: Recorded) -> None:
    """Check that each name leads to the last existing job that got it, and that no named job lacks its name."""
    where = everywhere(root)
    meant = {name: job_id for name, job_id in recorded.names if job_id in where}
    store = open_files(root, seed=40_000, boot=AFTER)
    try:
        assert dict(store.names()) == meant, f"LOST: a name: {store.names()}, not {meant}\n{tree(root)}"
    finally:
        store.close()


def _judge_order(life: Lifecycle, prompt: Mapping[str, Any], lives: Mapping[str, Lifecycle]) -> None:
    """Check that a dependent began after its dependency ended, and was killed only if that did not succeed."""
    named = after.dependencies(prompt)
    for job_id in named.all:
        if life.first_claimed_at is not None:
            ended = lives[job_id].finalized_at
            assert ended is not None, f"UNEXPECTED: {life.job_id} ran before the end of {job_id}"
            assert ended <= life.first_claimed_at, f"UNEXPECTED: {life.job_id} ran before the end of {job_id}"
    good = [lives[job_id].status is Status.SUCCEEDED for job_id in named.after]
    if life.status is Status.SUCCEEDED:
        assert all(good), f"UNEXPECTED: {life.job_id} ran though {named.after} did not succeed"
    if life.error is not None and life.error["category"] == "dependency_failed":
        assert not all(good), f"LOST: {life.job_id} was killed though {named.after} succeeded"
