"""A person's and the manager's word about jobs that nobody works on: answers, overrides, failures that stay so.

Each moves the job into its own folder first, then reads, then decides (R1), as the verbs in hold. Finding what waits
lives in views; what an answer means for the workflow lives in roles.workflow.

The order of an answer that brings a text, and what a crash at each point leaves [tests/crash/test_manager.py]:
1. the move into our folder. Crash: its old decision stands, recovery puts it back among the waiting.
2. attempts/NNNN with the text. Crash: a counted attempt without a decision; recovery hands it to the manager, which
   finds that nobody answered, and asks again.
3. job.json with the decision. Crash from here on: rolled forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from farro.errors import FarroError, IllegalTransition, SyncFailed, TryAgain, UnknownJob
from farro.host import fs
from farro.jobs import ids, places, states, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.store.files import commit, hold, views
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held
from farro.store.files.move import try_move
from farro.store.port import PersonAnswer

_TRIES = 20
_PAUSE_S = 0.05
_TICK_S = 1.0  # longer than any disk's clock takes to go on


def answer(ground: Ground, held: Held, job_id: str, answered: PersonAnswer) -> Lifecycle:
    """Back to the manager, which reads the answer in hops[]."""
    before, path, source = _taken(ground, held, job_id, lambda seen: _check_waits(job_id, seen))
    try:
        _check_waits(job_id, before)
        if answered.text is not None:
            with folders.fenced(path, job_id):
                _keep_text(ground, held, path, answered.text, by=held.agent.id)
        move = Move(
            reason=Reason.ANSWERED,
            status=Status.QUEUED,
            role="Manager",
            note=answered.note,
            route=answered.route,
        )
        return commit.decide(ground, held, path, before, move)
    except SyncFailed:
        raise
    except (FarroError, OSError):
        _put_back(path, source)
        raise


def reroute(
    ground: Ground, held: Held, job_id: str, role: str, note: str | None, route: Mapping[str, Any] | None
) -> Lifecycle:
    """An override: into that role's queue, whatever its workflow says. Not of a job that somebody works on."""

    def check(seen: Lifecycle) -> None:
        states.check(job_id, seen.status, Status.QUEUED, Reason.REROUTED, finalized=seen.finalized_at is not None)
        if transitions.waits(seen) and not transitions.waits_for_person(seen):
            raise IllegalTransition(f"{job_id} runs after other jobs, and they have not ended; nothing was changed")

    before, path, source = _taken(ground, held, job_id, check)
    try:
        check(before)
        move = Move(reason=Reason.REROUTED, status=Status.QUEUED, role=role, note=note, route=route)
        return commit.decide(ground, held, path, before, move)
    except SyncFailed:
        raise
    except (FarroError, OSError):
        _put_back(path, source)
        raise


def finalize(
    ground: Ground, held: Held, job_id: str, note: str | None, route: Mapping[str, Any] | None
) -> Lifecycle | None:
    """A failure that the manager leaves as it is. None: somebody else has the job, or it is something else by now."""
    found = views.locate(ground, job_id)
    if found is None or found.busy or found.status is not Status.FAILED or job_id in ground.foreign:
        return None
    path = f"{held.folder}/{job_id}"
    before = hold.taken(ground, path, job_id, found)
    if before is None:
        return None
    if before.terminal:
        _put_back(path, found.path)
        return None
    move = Move(reason=Reason.FINALIZED, status=Status.FAILED, role=before.role, note=note, route=route)
    return commit.decide(ground, held, path, before, move)


class Failures:
    """Failures that are not final. Each finished job is read once, and a folder that has not changed is not listed
    again, however often this is asked."""

    def __init__(self) -> None:
        self._final: dict[str, set[str]] = {}  # by role: names that need no second look
        self._quiet: dict[str, int] = {}  # by role: the time of a folder in which nothing was open

    def open(self, ground: Ground) -> list[str]:
        found: list[str] = []
        for role in ground.roles():
            place = ground.path(places.completed(role, Status.FAILED))
            try:
                changed_ns = fs.lstat(place).st_mtime_ns
            except FileNotFoundError:
                continue
            if self._quiet.get(role) == changed_ns:
                continue
            left = self._listed(role, place)
            found += left
            # Of a folder that changed just now more may come in the same tick of the disk's clock.
            settled = ground.clock.now().timestamp() - changed_ns / 1e9 > _TICK_S
            self._quiet[role] = changed_ns if settled and not left else -1
        return found

    def _listed(self, role: str, place: str) -> list[str]:
        names = [name for name in sorted(fs.subdirectories(place)) if ids.is_job_id(name)]
        final = self._final.get(role, set()) & set(names)
        left = []
        for job_id in names:
            if job_id in final:
                continue
            try:
                life = folders.read_lifecycle(f"{place}/{job_id}")
            except (FarroError, OSError):
                continue
            if life.terminal or (life.routing or {}).get("mode") != "manager":
                final.add(job_id)
            else:
                left.append(job_id)
        self._final[role] = final
        return left


def _taken(ground: Ground, held: Held, job_id: str, check: Callable[[Lifecycle], None]) -> tuple[Lifecycle, str, str]:
    """The job in our own folder, read after the move; where it lay."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        found = views.locate(ground, job_id)
        if found is None:
            raise UnknownJob(f"no job {job_id} in {ground.root}; `farro ls` lists what there is")
        if found.busy:
            ground.clock.sleep(_PAUSE_S)
            continue
        try:
            check(views.view(ground, found).lifecycle)
        except FileNotFoundError:
            continue  # it moved on between the two looks
        path = f"{held.folder}/{job_id}"
        before = hold.taken(ground, path, job_id, found)
        if before is not None:
            return before, path, found.path
    raise TryAgain(f"{job_id} is held by another operator, manager or watchdog; try again in a moment")


def _check_waits(job_id: str, seen: Lifecycle) -> None:
    if seen.status is not Status.QUEUED or not transitions.waits_for_person(seen):
        raise IllegalTransition(
            f"{job_id} does not wait for a person, it is {seen.status} ({seen.role}); nothing was changed. "
            "`farro inbox` lists what waits"
        )


def _put_back(path: str, source: str) -> None:
    """Not left in our hands, where nobody would look for it while we live."""
    with contextlib.suppress(OSError):
        try_move(path, source)


def _keep_text(ground: Ground, held: Held, path: str, text: str, *, by: str) -> None:
    """The person's text as the result of an attempt of its own: what was there before stays in its attempt."""
    attempt = folders.begin_attempt(path, folders.highest_attempt(path))
    home = folders.attempt_folder(path, attempt)
    report = Report(result={"success": True, "edited_by": by}, markdown=text)
    result = folders.Result.of(report, good=True)
    folders.write_result(ground, home, result, again=False)
    if ground.policy.durable:
        ground.sync([*result.durable(path, home), held.folder])
