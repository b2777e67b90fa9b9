"""Taking jobs from among the waiting, when what they run after has ended: into their queue, or killed.

Where they lie and who waits for whom lives in waiting. Every editor is a leased agent (R1): the job is moved into its
own folder, read, edited, and sent on as decided; a holder that dies on the way left a decision that recovery carries
out. Of two who want to unblock the same job, the move arbitrates. [test_two_unblock_one_job]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from farro.errors import Damaged, FarroError, Lost, SyncFailed, UnknownSchema
from farro.host import fs
from farro.jobs import places, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.plans import after
from farro.plans.after import DependencyState, DependencyVerdict
from farro.store.files import agents, commit, dependencies, draft, hold, views
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held
from farro.store.files.move import try_move
from farro.store.port import RecoveryAction

_LOOKS = 3  # before a dependency counts as gone, and not as one that was on the move
_PAUSE_S = 0.05


def after_end(ground: Ground, ended: Iterable[Lifecycle]) -> None:
    """Jobs have ended: see to those that waited for them. One look for all of them where nobody waits for any job.

    Their own ends are accepted by now, so trouble here is logged and left to recovery, which looks at the same index.
    """
    over = [lifecycle for lifecycle in ended if lifecycle.terminal]
    with contextlib.suppress(OSError):  # what cannot be looked at is looked at below, where trouble is logged
        if not over or not dependencies.any_awaited(ground):
            return
    for lifecycle in over:
        with _left_to_recovery(ground, lifecycle.job_id):
            if dependencies.awaited(ground, lifecycle.job_id):
                with _holder(ground) as held:
                    tend(ground, held, lifecycle.job_id)


def look_again(ground: Ground, job_ids: list[str]) -> None:
    """After publishing: what ended between the submitter's look and its entry in the index told nobody."""
    with _left_to_recovery(ground, ", ".join(job_ids[:3])):
        left = [job_id for job_id in job_ids if _verdict(ground, job_id) not in (None, DependencyVerdict())]
        if not left:
            return
        with _holder(ground) as held:
            for job_id in left:
                done = _settle(ground, held, job_id, gone_is_over=False)
                if done is not None and done.terminal:
                    tend(ground, held, job_id)


@contextlib.contextmanager
def _holder(ground: Ground) -> Iterator[Held]:
    """An agent for this alone. A worker's own folder would do but for trouble half-way: what it could neither send on
    nor put back would stay in the hands of a worker that lives on, and nobody would look for it there."""
    agent = agents.join(ground, "unblock", role=None, slot=0, tags=())
    try:
        yield ground.mine(agent)
    finally:
        agents.leave(ground, agent)


def tend_all(ground: Ground, held: Held) -> Iterator[RecoveryAction]:
    """Recovery's part: every dependency in the index that is over. The index holds what waits now, and no more."""
    for dependency in dependencies.names(dependencies.index(ground)):
        with _left_to_recovery(ground, dependency):
            for told in tend(ground, held, dependency, gone_is_over=True):
                what = "dependency_failed" if told.status is Status.KILLED else "unblocked"
                yield RecoveryAction(job_id=told.job_id, agent=None, what=what)


def tend(ground: Ground, held: Held, dependency: str, *, gone_is_over: bool = False) -> list[Lifecycle]:
    """Unblock or kill what waits for `dependency` and, where one was killed, what waits for that: a list of work, not a
    recursion, however long the chain. Entries of jobs that wait no more are removed."""
    told: list[Lifecycle] = []
    todo = [dependency]
    while todo:
        name = todo.pop()
        over = _is_over(ground, name, gone_is_over)
        dependents = dependencies.names(f"{dependencies.index(ground)}/{name}")
        # After the entries were read: whose folder is not in staging now is published, or will never be.
        staged = {entry.split(".", 1)[0] for entry in fs.subdirectories(ground.staging)} if dependents else set()
        for job_id in dependents:
            if fs.exists(ground.path(places.WAITING, job_id)):
                done = _settle(ground, held, job_id, gone_is_over) if over else None
                if done is not None:
                    told.append(done)
                    todo += [job_id] if done.terminal and dependencies.awaited(ground, job_id) else []
            elif job_id not in staged:
                found = views.locate(ground, job_id)
                if found is None or not (found.busy or found.place == places.WAITING):  # else it may be put back
                    dependencies.forget(ground, job_id, [name])
        if not dependents:
            dependencies.drop_folder(ground, name)  # of a submitter that died between the two calls
    return told


def _is_over(ground: Ground, job_id: str, gone_is_over: bool) -> bool:
    end = dependencies.end_of(ground, job_id)
    for _ in range(_LOOKS if gone_is_over else 0):
        if end is not DependencyState.GONE:
            break
        ground.clock.sleep(_PAUSE_S)
        end = dependencies.end_of(ground, job_id)
    return end is not DependencyState.OPEN and (gone_is_over or end is not DependencyState.GONE)


def _verdict(ground: Ground, job_id: str, gone_is_over: bool = False) -> DependencyVerdict | None:
    """What shall become of a waiting job; None when it waits no more, or cannot be read."""
    try:
        named = after.dependencies(folders.read_prompt(ground, ground.path(places.WAITING, job_id)))
    except FileNotFoundError:
        return None
    except Damaged as error:
        ground.log("error", "waiting job cannot be read", {"job_id": job_id, "why": str(error)})
        return None
    if not named.all or _waits_for_person(ground, job_id):
        return DependencyVerdict()  # not ours: it waits for a person
    return after.judge(named, lambda name: dependencies.end_of(ground, name), gone_is_over=gone_is_over)


def _waits_for_person(ground: Ground, job_id: str) -> bool:
    """A job that ran after others long ago may wait again. Where job.json cannot be read, its holder rebuilds it."""
    try:
        return transitions.waits_for_person(folders.read_lifecycle(ground.path(places.WAITING, job_id)))
    except (FarroError, OSError):
        return False


def _settle(ground: Ground, held: Held, job_id: str, gone_is_over: bool) -> Lifecycle | None:
    """Take one waiting job and send it on, if its time has come. None: not yet, or somebody else has it."""
    verdict = _verdict(ground, job_id, gone_is_over)
    if verdict is None or not (verdict.ready or verdict.hopeless) or job_id in ground.foreign:
        return None
    path, source = f"{held.folder}/{job_id}", ground.path(places.WAITING, job_id)
    found = views.Found(job_id=job_id, path=source, place=places.WAITING, role=None, status=Status.QUEUED)
    held.leftovers[job_id] = (held.agent.id, None)  # until it is through: a watchdog's next pass goes on with it
    try:
        before = hold.taken(ground, path, job_id, found)
    except UnknownSchema as error:
        ground.tell_foreign(job_id, str(error))
        before = None
    if before is None:
        held.leftovers.pop(job_id, None)
        return None
    try:
        named = after.dependencies(prompt := folders.read_prompt(ground, path))
        if verdict.hopeless:
            done = commit.decide(
                ground, held, path, before, transitions.dependency_failed(before.role, verdict.hopeless)
            )
        else:
            note = f"after {', '.join(named.all)}"
            done = transitions.unblocked(before, by=held.agent.id, now=ground.clock.now(), note=note)
            with folders.fenced(path, job_id):
                ground.sync([held.folder])  # as every decision: the move to us is durable before it
                folders.write_lifecycle(ground, path, done.to_json(), sync=True)
                draft.keep_order(ground, path, prompt)
            commit.carry_out(ground, held, path, done)
    except SyncFailed:
        raise
    except (FarroError, OSError):
        # Not left in our hands, where nobody would look for it while we live.
        with contextlib.suppress(OSError):
            try_move(path, source)
        raise
    held.leftovers.pop(job_id, None)
    dependencies.forget(ground, job_id, named.all)
    return done


@contextlib.contextmanager
def _left_to_recovery(ground: Ground, name: str) -> Iterator[None]:
    try:
        yield
    except Lost:
        pass  # declared dead meanwhile: the next pass does it
    except SyncFailed:
        raise  # nobody knows what reached the disk: stop (R7)
    except (FarroError, OSError) as error:
        ground.log("error", "not unblocked yet, will be tried again", {"name": name, "why": str(error)})
