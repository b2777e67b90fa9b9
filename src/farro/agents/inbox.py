"""List the jobs that wait for a person, and record the person's answer: approve, refuse, edit, or send elsewhere.

The manager reads the answer from the job's hops and decides what follows. The agent of a running job may wait for a
permission, too (farro.agents.permissions): it goes on as soon as it is answered.
"""

from __future__ import annotations

from farro.agents.permissions import Permission, answer_permission, open_permissions
from farro.errors import IllegalTransition, InputError
from farro.execution import task_snapshot
from farro.host import fs
from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.queue.jobs import operator
from farro.roles import names, workflow
from farro.roles.workflow import MANAGER, RouteCode
from farro.store.port import JobView, PersonAnswer, Store

MAX_TEXT = 1 << 20
MAX_NOTE = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxItem:
    """A job that waits for a person."""

    job_id: str
    since: str
    question: str
    task: str | None  # the task's id
    title: str | None
    step: int | None
    role: str | None  # the role that worked last
    result: str  # the result of that role
    folder: str  # of the job
    permission: bool = False  # the agent of the running job asks whether it may do something


def list_inbox(store: Store) -> list[InboxItem]:
    """List the jobs that wait for a person, oldest first."""
    found = [_waiting(store, view) for view in store.list(roles=[MANAGER], statuses=[Status.QUEUED]) if _waits(view)]
    for view in store.list(statuses=[Status.IN_PROGRESS]):
        asked = _oldest_permission(store, view)
        found += [] if asked is None else [_permission(store, view, asked)]
    return sorted(found, key=lambda item: item.since)


def inbox_item(store: Store, job_id: str) -> InboxItem:
    """Return what is asked about a job. Raises IllegalTransition if nothing is."""
    view = find_job.find_view(store, job_id)
    if not _waits(view):
        raise IllegalTransition(
            f"{job_id} does not wait for a person, it is {view.status} ({view.lifecycle.role}); nothing was changed. "
            "`farro inbox` lists what waits"
        )
    return _waiting(store, view)


def approve(store: Store, job_id: str, *, by: str, note: str | None = None) -> Lifecycle:
    """Let the job go on. A running job's agent gets the permission for which it waits longest."""
    if (running := _permit(store, job_id, allowed=True, by=by)) is not None:
        return running
    return _answer(store, job_id, RouteCode.APPROVED, by=by, note=note)


def refuse(store: Store, job_id: str, *, by: str, note: str) -> Lifecycle:
    """Send the job back to the role before, with the reason. A running job's agent is refused the permission for which
    it waits longest."""
    if not note.strip():
        raise InputError("a refusal needs its reason: the role that gets the job back is told; --note WHY")
    if (running := _permit(store, job_id, allowed=False, by=by)) is not None:
        return running
    return _answer(store, job_id, RouteCode.REFUSED, by=by, note=note)


def edit(store: Store, job_id: str, text: str, *, by: str, note: str | None = None) -> Lifecycle:
    """Approve the job with another text. It becomes the result; what the last role wrote stays in its attempt."""
    if not text.strip():
        raise InputError("the text is empty; to send the job back use `farro refuse`")
    if len(text.encode("utf-8", "replace")) > MAX_TEXT:
        raise InputError(f"the text is longer than {MAX_TEXT} bytes")
    return _answer(store, job_id, RouteCode.EDITED, by=by, note=note, text=text)


def reroute(store: Store, job_id: str, role: str, *, by: str, note: str | None = None) -> Lifecycle:
    """Send the job to a role, whatever the workflow says; it continues from there.

    Raises InputError for agent work that is sent to the role that runs commands.
    """
    view = find_job.find_view(store, job_id)
    life, task = view.lifecycle, task_snapshot.readable_task(store.folder(view))
    if life.routing is not None and role == names.RUNNER:
        raise InputError(f"{job_id} is agents' work: {names.fault_of(role, store.roles())}. Nothing was changed")
    at = workflow.position(life.hops, life.first_role, task)
    step = workflow.step_of(task, at, role)
    route = {"code": str(RouteCode.OVERRIDE), **({} if step is None else {"step": step})}
    with operator(store, by) as agent:
        return store.reroute(agent, job_id, role, note=_short(note), route=route)


def _answer(
    store: Store, job_id: str, code: RouteCode, *, by: str, note: str | None, text: str | None = None
) -> Lifecycle:
    item = inbox_item(store, job_id)
    route = {"code": str(code), **({} if item.step is None else {"step": item.step})}
    with operator(store, by) as agent:
        return store.answer(agent, job_id, PersonAnswer(route=route, note=_short(note), text=text))


def _permit(store: Store, job_id: str, *, allowed: bool, by: str) -> Lifecycle | None:
    """Answer the oldest permission that a running job's agent waits for; None if there is none."""
    view = find_job.find_view(store, job_id)
    asked = _oldest_permission(store, view)
    if asked is None:
        return None
    answer_permission(asked, allowed=allowed, by=by)
    store.note("permission_given" if allowed else "permission_refused", actor=by, job_id=job_id, role=asked.role)
    return view.lifecycle


def _oldest_permission(store: Store, view: JobView) -> Permission | None:
    """Return what the agents of a running job have waited for longest; the next is shown when it is answered."""
    return min(open_permissions(store.root, view), key=lambda one: one.asked_at, default=None)


def _short(note: str | None) -> str | None:
    if note is not None and len(note) > MAX_NOTE:
        raise InputError(f"the note has {len(note)} characters; at most {MAX_NOTE} are kept")
    return note


def _waits(view: JobView) -> bool:
    return view.status is Status.QUEUED and moves.waits_for_person(view.lifecycle)


def _waiting(store: Store, view: JobView) -> InboxItem:
    life, folder = view.lifecycle, store.folder(view)
    task = task_snapshot.readable_task(folder)
    step = (life.hops[-1].route or {}).get("step")
    role, result = _last(folder, life)
    return InboxItem(
        job_id=view.job_id,
        since=life.enqueued_at,
        question=task_snapshot.question(folder, life),
        task=None if task is None else task.id,
        title=None if task is None else task.title,
        step=step if isinstance(step, int) else None,
        role=role,
        result=result,
        folder=folder,
    )


def _permission(store: Store, view: JobView, asked: Permission) -> InboxItem:
    folder = store.folder(view)
    task = task_snapshot.readable_task(folder)
    return InboxItem(
        job_id=view.job_id,
        since=asked.asked_at,
        question=asked.question,
        task=None if task is None else task.id,
        title=None if task is None else task.title,
        step=None,
        role=asked.role,
        result="",
        folder=folder,
        permission=True,
    )


def _last(folder: str, life: Lifecycle) -> tuple[str | None, str]:
    """Return the role that worked last, and its result.md."""
    worked = workflow.worked_before(life.hops)
    if not worked:
        return None, ""
    role, attempt = worked[-1]
    try:
        text = fs.read_bytes(f"{folder}/attempts/{attempt:04d}/result.md", MAX_TEXT)[:MAX_TEXT]
    except OSError:
        return role, ""
    return role, text.decode("utf-8", "replace")
