"""The rules of `farro explain`: why a job is not running, from facts to one finding with the command that helps.

The rules are ordered by certainty: what the job's folder says comes before what its surroundings make likely.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from farro.jobs.states import Status
from farro.jobs.times import in_words
from farro.lazy_dataclass import dataclass, replace

MANAGER_AWAY_S = 30.0  # a manager that was silent for longer is away (SPEC-1 §12)
# These last until a person acts.
STANDS = frozenset({"no_worker", "tags", "paused", "human", "agent_dead", "account_refused"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotFact:
    """A slot that works the queue of the job."""

    agent: str
    alive: bool
    busy: bool
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependency:
    job_id: str
    status: Status | None  # None: no such job
    terminal: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    job_id: str
    status: Status
    role: str
    now: datetime
    terminal: bool = False
    place: str = ""
    quarantined: str | None = None  # why it was quarantined
    file: str = "job.json"  # its path
    foreign: str | None = None  # its schema version, which is not this farro's; empty: it has none
    contradicting: str | None = None  # the status in its job.json, which is not that of its place
    damaged: str | None = None  # what cannot be read
    error: str | None = None
    attempt: int = 0
    agent: str | None = None
    agent_alive: bool | None = None  # None: no agent holds it
    since_s: float | None = None  # how long the present attempt has run
    step: str | None = None
    not_before: datetime | None = None
    waits: bool = False  # it waits for another job or for a person
    question: str | None = None  # what a person is asked about it
    after: tuple[Dependency, ...] = ()
    after_any: tuple[Dependency, ...] = ()  # these may end with any status
    tags: frozenset[str] = frozenset()
    workers: tuple[SlotFact, ...] = ()
    before: int = 0  # jobs of its queue that entered it earlier
    manager_silent_s: float | None = None  # None: there is no sign of a manager
    paused: str | None = None  # why its queue is paused
    account: str | None = None  # a paused account that it waits for
    account_words: str = ""  # why that one is paused, and until when
    account_refused: bool = False  # until a person resumes it
    lock: str | None = None  # the agent that is about to claim it
    lock_alive: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    reason: str  # a code
    message: str
    fix: str | None  # a command; None: wait


def diagnose(facts: Facts) -> Diagnosis:
    """Return the finding of the first rule that applies."""
    return next(_rules(facts))


def _rules(facts: Facts) -> Iterator[Diagnosis]:
    job, show = facts.job_id, f"farro show {facts.job_id}"
    if facts.quarantined is not None:
        yield Diagnosis(
            reason="quarantined", message=f"it was put aside in {facts.place}: {facts.quarantined}", fix=show
        )
    if facts.foreign == "":
        yield Diagnosis(
            reason="unknown_schema",
            message="its job.json has no schema_version, and farro leaves such a job alone; add the line",
            fix=f'"${{EDITOR:-vi}}" {facts.file}',
        )
    if facts.foreign is not None:
        yield Diagnosis(
            reason="unknown_schema",
            message="another version of farro wrote it, and this one leaves it alone: its schema_version is "
            f"{facts.foreign}; use the farro that wrote it, or a newer one",
            fix="python3 -m pip install --upgrade farro",
        )
    if facts.contradicting is not None:
        queued = facts.status is Status.QUEUED
        yield Diagnosis(
            reason="contradictory",
            message=f"its job.json says {facts.contradicting}, and its place {facts.place} says {facts.status}: it was "
            "edited or moved by hand, and no worker takes it"
            + (f"; `farro retry {job}` runs it again once it is killed" if queued else ""),
            fix=f"farro kill {job}" if queued else "farro doctor",
        )
    if facts.terminal:
        why = f": {facts.error}" if facts.error else ""
        failed = facts.status is Status.FAILED  # a killed job was ended on purpose
        why += f"; `farro logs {job}` has what it said" if failed else ""
        message = f"it is {facts.status}, and that is final{why}"
        yield Diagnosis(reason="finished", message=message, fix=f"farro retry {job}" if failed else show)
    match facts.status:
        case Status.IN_PROGRESS:
            yield _in_progress(facts)
        case Status.STALE if "/in-progress/" in f"/{facts.place}/":
            yield Diagnosis(
                reason="unroutable",
                message=f"its work is done, but no manager took it ({facts.error}); it waits to be collected",
                fix="farro watchdog --once && farro manager --once",
            )
        case Status.STALE:
            why = f" ({facts.error})" if facts.error else ""
            yield _for_manager(
                facts, "stale", f"its last attempt was lost{why}; the manager decides whether it runs again"
            )
        case Status.FAILED:
            why = f": {facts.error}" if facts.error else ""
            what = f"it failed, and the manager has not made this final yet{why}"
            told = _for_manager(facts, "failed_not_final", what)
            yield replace(told, fix=f"farro requeue {job}")
        case _:
            yield from _queued(facts)
    yield Diagnosis(reason=str(facts.status), message=f"it is {facts.status}", fix=show)


def _in_progress(facts: Facts) -> Diagnosis:
    if facts.agent_alive is False:
        return Diagnosis(
            reason="agent_dead",
            message=f"its agent {facts.agent} died in attempt {facts.attempt}; it waits to be recovered",
            fix="farro watchdog --once && farro manager --once",
        )
    if facts.agent_alive is None:
        return Diagnosis(
            reason="in_hand",
            message="it is being moved or edited just now; ask again in a moment, and if it stays so recover it",
            fix="farro watchdog --once",
        )
    step = f" in step {facts.step}" if facts.step else ""
    since = "" if facts.since_s is None else f" for {in_words(facts.since_s)}"
    return Diagnosis(
        reason="running",
        message=f"it runs{since}{step}: attempt {facts.attempt} by {facts.agent}",
        fix=f"farro logs {facts.job_id} --follow",
    )


def _queued(facts: Facts) -> Iterator[Diagnosis]:
    if facts.waits:
        yield from _waits_for_others(facts)
    if facts.account is not None:
        yield Diagnosis(
            reason="account_refused" if facts.account_refused else "account_limited",
            message=f"it waits for its provider: {facts.account_words}",
            fix=f"farro provider resume {facts.account}" if facts.account_refused else None,
        )
    if facts.not_before is not None and facts.not_before > facts.now:
        left = in_words((facts.not_before - facts.now).total_seconds())
        yield Diagnosis(
            reason="delayed",
            message=f"it starts in {left}, not before {facts.not_before.isoformat(timespec='seconds')}",
            fix=None,
        )
    if facts.damaged is not None:
        yield Diagnosis(
            reason="damaged",
            message=f"it is damaged: {facts.damaged}; the next worker mends it, or puts it aside as failed",
            fix=f"farro show {facts.job_id}",
        )
    if facts.paused is not None:
        yield Diagnosis(reason="paused", message=facts.paused, fix=f"farro resume {facts.role}")
    if facts.role == "Manager":
        yield _for_manager(facts, "for_manager", "it is in the manager's queue")
    yield from _needs_worker(facts)
    if facts.lock is not None:
        whose = "which is about to claim it" if facts.lock_alive else "which is dead; the next worker takes it over"
        yield Diagnosis(
            reason="locked" if facts.lock_alive else "dead_lock",
            message=f"it is locked by {facts.lock}, {whose}",
            fix=None if facts.lock_alive else "farro watchdog --once",
        )
    yield _needs_turn(facts)


def _waits_for_others(facts: Facts) -> Iterator[Diagnosis]:
    if facts.question is not None:
        first = next(iter(facts.question.strip().splitlines()), "")
        yield Diagnosis(
            reason="human",
            message=f"it waits for a person: {first}",
            fix=f"farro approve {facts.job_id}",
        )
    wanted = [other for other in facts.after if other.status is not Status.SUCCEEDED]
    lost = [other for other in wanted if other.status is None or other.terminal]
    ending = [other for other in facts.after_any if other.status is not None and not other.terminal]
    if wanted or ending:
        never = ", so it never will"
        parts = [
            f"{other.job_id} to succeed ({other.status or 'no such job'}{never if other in lost else ''})"
            for other in wanted
        ]
        parts += [f"{other.job_id} to end ({other.status})" for other in ending]
        yield Diagnosis(
            reason="dependency",
            message=f"it waits for {' and for '.join(parts)}",
            fix=f"farro kill {facts.job_id}" if lost else f"farro explain {(wanted + ending)[0].job_id}",
        )
    elif facts.after or facts.after_any:
        yield Diagnosis(
            reason="waiting",
            message="the jobs it waited for have ended, but nothing has moved it into its queue yet",
            fix="farro watchdog --once",
        )
    if facts.waits:
        yield _for_manager(facts, "waiting", "it waits for the manager, or for a person")


def _for_manager(facts: Facts, reason: str, what: str) -> Diagnosis:
    if facts.manager_silent_s is None:
        return Diagnosis(reason=reason, message=f"{what}, and no manager runs", fix="farro manager --once")
    if facts.manager_silent_s > MANAGER_AWAY_S:
        return Diagnosis(
            reason=reason,
            message=f"{what}, and the manager has been away for {in_words(facts.manager_silent_s)}",
            fix="farro manager --once",
        )
    return Diagnosis(reason=reason, message=f"{what}; it does that within seconds", fix=None)


def _needs_worker(facts: Facts) -> Iterator[Diagnosis]:
    alive = [worker for worker in facts.workers if worker.alive]
    if not alive:
        dead = " (all earlier ones are dead)" if facts.workers else ""
        yield Diagnosis(
            reason="no_worker",
            message=f"no worker of role {facts.role} runs{dead}",
            fix=_worker(facts),
        )
    elif not any(facts.tags <= worker.tags for worker in alive):
        offered = frozenset().union(*(worker.tags for worker in alive))
        missing = sorted(facts.tags - offered)
        what = f"no worker offers {', '.join(missing)}" if missing else "no single worker offers them all"
        yield Diagnosis(
            reason="tags",
            message=f"it needs a worker with the tags {', '.join(sorted(facts.tags))}, and {what}",
            fix=_worker(facts),
        )


def _needs_turn(facts: Facts) -> Diagnosis:
    able = [worker for worker in facts.workers if worker.alive and facts.tags <= worker.tags]
    ahead = f", and {facts.before} {'job is' if facts.before == 1 else 'jobs are'} before it" if facts.before else ""
    if all(worker.busy for worker in able):
        slots = "the one slot that may take it is" if len(able) == 1 else f"all {len(able)} slots that may take it are"
        return Diagnosis(reason="workers_busy", message=f"{slots} busy{ahead}", fix=_worker(facts))
    return Diagnosis(reason="next", message=f"a worker is free and takes it in a moment{ahead}", fix=None)


def _worker(facts: Facts) -> str:
    return f"farro worker --role {facts.role}" + "".join(f" --tag {tag}" for tag in sorted(facts.tags))
