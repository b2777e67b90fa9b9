"""Move waiting jobs into their queue, or kill them, when the jobs that they run after have ended.

Every editor is a leased agent (R1): it moves the job into its own folder, reads, edits, and sends it on as decided. If
it dies on the way, recovery carries out the decision that it left. If two agents want to unblock the same job, the move
decides. [test_two_processes_unblock_one_job]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from farro.errors import Damaged, FarroError, Lost, SyncFailed, UnknownSchema
from farro.host import fs
from farro.jobs import moves, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.plans import after
from farro.plans.after import DependencyState, DependencyVerdict
from farro.store.files import agents, commit, decisions, dependencies, draft, views
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import try_move
from farro.store.port import RecoveryAction

_CHECKS = 3  # a dependency may be between two places: checks before it counts as gone
_PAUSE_S = 0.05


def after_end(context: FilesContext, ended: Iterable[Lifecycle]) -> None:
    """Unblock the jobs that waited for these. Costs one check where no job waits.

    The ends themselves are already accepted, so an error here is logged and left to recovery, which uses the same
    index.
    """
    over = [lifecycle for lifecycle in ended if lifecycle.terminal]
    with contextlib.suppress(OSError):  # checked again below, where an error is logged
        if not over or not dependencies.any_awaited(context):
            return
    for lifecycle in over:
        with _left_to_recovery(context, lifecycle.job_id):
            if dependencies.awaited(context, lifecycle.job_id):
                with _holder(context) as owner:
                    tend(context, owner, lifecycle.job_id)


def recheck(context: FilesContext, job_ids: list[str]) -> None:
    """Check just published jobs again: a dependency may have ended between the submitter's check and the entry in the
    index."""
    with _left_to_recovery(context, ", ".join(job_ids[:3])):
        left = [job_id for job_id in job_ids if _verdict(context, job_id) not in (None, DependencyVerdict())]
        if not left:
            return
        with _holder(context) as owner:
            for job_id in left:
                done = _send_on(context, owner, job_id, gone_is_over=False)
                if done is not None and done.terminal:
                    tend(context, owner, job_id)


@contextlib.contextmanager
def _holder(context: FilesContext) -> Iterator[LocalAgent]:
    """Make a temporary agent. A worker's own folder is unsuitable: after an error half-way, a job that could neither be
    sent on nor put back would stay with a live worker, where no recovery looks for it."""
    agent = agents.join(context, "unblock", role=None, slot=0, tags=())
    try:
        yield context.local_agent(agent)
    finally:
        agents.leave(context, agent)


def tend_all(context: FilesContext, owner: LocalAgent) -> Iterator[RecoveryAction]:
    """Unblock, during recovery, the dependents of every ended job in the index. The index holds only jobs that wait
    now."""
    for dependency in dependencies.names(dependencies.index(context)):
        with _left_to_recovery(context, dependency):
            for moved in tend(context, owner, dependency, gone_is_over=True):
                what = "dependency_failed" if moved.status is Status.KILLED else "unblocked"
                yield RecoveryAction(job_id=moved.job_id, agent=None, what=what)


def tend(context: FilesContext, owner: LocalAgent, dependency: str, *, gone_is_over: bool = False) -> list[Lifecycle]:
    """Unblock or kill the jobs that wait for `dependency` and, where one was killed, those that wait for it. A work
    list, not a recursion, because chains may be long. Removes the entries of jobs that no longer wait."""
    changed: list[Lifecycle] = []
    todo = [dependency]
    while todo:
        name = todo.pop()
        over = _is_over(context, name, gone_is_over)
        dependents = dependencies.names(f"{dependencies.index(context)}/{name}")
        # Read after the entries: a job that is not in staging now is published or never will be.
        staged = {entry.split(".", 1)[0] for entry in fs.subdirectories(context.staging)} if dependents else set()
        for job_id in dependents:
            if fs.exists(context.path(places.WAITING, job_id)):
                done = _send_on(context, owner, job_id, gone_is_over) if over else None
                if done is not None:
                    changed.append(done)
                    todo += [job_id] if done.terminal and dependencies.awaited(context, job_id) else []
            elif job_id not in staged:
                found = views.locate(context, job_id)
                if found is None or not (found.busy or found.place == places.WAITING):  # else it may come back
                    dependencies.forget(context, job_id, [name])
        if not dependents:
            dependencies.drop_folder(context, name)  # left by a submitter that died between the two calls
    return changed


def _is_over(context: FilesContext, job_id: str, gone_is_over: bool) -> bool:
    end = dependencies.end_of(context, job_id)
    for _ in range(_CHECKS if gone_is_over else 0):
        if end is not DependencyState.GONE:
            break
        context.clock.sleep(_PAUSE_S)
        end = dependencies.end_of(context, job_id)
    return end is not DependencyState.OPEN and (gone_is_over or end is not DependencyState.GONE)


def _verdict(context: FilesContext, job_id: str, gone_is_over: bool = False) -> DependencyVerdict | None:
    """Return whether a waiting job may run, must be killed, or waits on. None: it no longer waits, or cannot be
    read."""
    try:
        named = after.dependencies(folders.read_prompt(context, context.path(places.WAITING, job_id)))
    except FileNotFoundError:
        return None
    except Damaged as error:
        context.log("error", "waiting job cannot be read", {"job_id": job_id, "why": str(error)})
        return None
    if not named.all or _waits_for_person(context, job_id):
        return DependencyVerdict()  # waits for a person
    return after.judge(named, lambda name: dependencies.end_of(context, name), gone_is_over=gone_is_over)


def _waits_for_person(context: FilesContext, job_id: str) -> bool:
    """Return whether it now waits for a person: a job that once ran after others may wait again. Where job.json cannot
    be read, the agent that takes the job rebuilds it."""
    try:
        return moves.waits_for_person(folders.read_lifecycle(context.path(places.WAITING, job_id)))
    except (FarroError, OSError):
        return False


def _send_on(context: FilesContext, owner: LocalAgent, job_id: str, gone_is_over: bool) -> Lifecycle | None:
    """Take a waiting job and move it into its queue or kill it. None: not yet, or another agent has it."""
    verdict = _verdict(context, job_id, gone_is_over)
    if verdict is None or not (verdict.ready or verdict.hopeless) or job_id in context.foreign:
        return None
    path, source = f"{owner.folder}/{job_id}", context.path(places.WAITING, job_id)
    found = views.LocatedJob(job_id=job_id, path=source, place=places.WAITING, role=None, status=Status.QUEUED)
    owner.leftovers[job_id] = (owner.agent.id, None)  # until it is done: a watchdog's next pass continues with it
    try:
        before = decisions.take(context, path, job_id, found)
    except UnknownSchema as error:
        context.log_foreign(job_id, str(error))
        before = None
    if before is None:
        owner.leftovers.pop(job_id, None)
        return None
    try:
        named = after.dependencies(prompt := folders.read_prompt(context, path))
        if verdict.hopeless:
            done = commit.decide(context, owner, path, before, moves.dependency_failed(before.role, verdict.hopeless))
        else:
            note = f"after {', '.join(named.all)}"
            done = moves.unblocked(before, by=owner.agent.id, now=context.clock.now(), note=note)
            with folders.translated_errors(path, job_id):
                context.sync([owner.folder])  # as for every decision: the move to us is durable before it
                folders.write_lifecycle(context, path, done.to_json(), sync=True)
                draft.keep_order(context, path, prompt)
            commit.carry_out(context, owner, path, done)
    except SyncFailed:
        raise
    except (FarroError, OSError):
        # Not left in our folder, where no recovery looks for it while we live.
        with contextlib.suppress(OSError):
            try_move(path, source)
        raise
    owner.leftovers.pop(job_id, None)
    dependencies.forget(context, job_id, named.all)
    return done


@contextlib.contextmanager
def _left_to_recovery(context: FilesContext, name: str) -> Iterator[None]:
    try:
        yield
    except Lost:
        pass  # declared dead meanwhile: the next recovery pass does it
    except SyncFailed:
        raise  # it is unknown what reached the disk: stop (R7)
    except (FarroError, OSError) as error:
        context.log("error", "not unblocked yet, will be tried again", {"name": name, "why": str(error)})
