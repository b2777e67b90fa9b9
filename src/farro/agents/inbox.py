"""What waits for a person, and what a person says: approve, refuse, edit; and sending a job elsewhere by hand.

What follows from an answer lives in roles.workflow: the manager reads it in the job's hops. Asking lives in services.
"""

from __future__ import annotations

from farro.errors import IllegalTransition, InputError, UnknownJob
from farro.execution import task_snapshot
from farro.host import fs
from farro.jobs import transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.jobs import operator
from farro.roles import names, workflow
from farro.roles.workflow import MANAGER, RouteCode
from farro.store.port import JobView, PersonAnswer, Store

MAX_TEXT = 1 << 20
MAX_NOTE = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxItem:
    """A job that a person is asked about."""

    job_id: str
    since: str
    question: str
    task: str | None  # its id
    title: str | None
    step: int | None
    role: str | None  # who worked last
    result: str  # … and what it found
    folder: str  # of the job


def list_inbox(store: Store, root: str) -> list[InboxItem]:
    """The oldest first."""
    found = [view for view in store.list(roles=[MANAGER], statuses=[Status.QUEUED]) if _waits(view)]
    return sorted((_waiting(store, view) for view in found), key=lambda item: item.since)


def inbox_item(store: Store, root: str, job_id: str) -> InboxItem:
    """What is asked about that job. IllegalTransition: nothing is."""
    view = _view(store, root, job_id)
    if not _waits(view):
        raise IllegalTransition(
            f"{job_id} does not wait for a person, it is {view.status} ({view.lifecycle.role}); nothing was changed. "
            "`farro inbox` lists what waits"
        )
    return _waiting(store, view)


def approve(store: Store, root: str, job_id: str, *, by: str, note: str | None = None) -> Lifecycle:
    return _answer(store, root, job_id, RouteCode.APPROVED, by=by, note=note)


def refuse(store: Store, root: str, job_id: str, *, by: str, note: str) -> Lifecycle:
    if not note.strip():
        raise InputError("a refusal needs its reason: the role that gets the job back is told; --note WHY")
    return _answer(store, root, job_id, RouteCode.REFUSED, by=by, note=note)


def edit(store: Store, root: str, job_id: str, text: str, *, by: str, note: str | None = None) -> Lifecycle:
    """Approve it with another text: that becomes the result, and what the last role wrote stays in its attempt."""
    if not text.strip():
        raise InputError("the text is empty; to send the job back use `farro refuse`")
    if len(text.encode("utf-8", "replace")) > MAX_TEXT:
        raise InputError(f"the text is longer than {MAX_TEXT} bytes")
    return _answer(store, root, job_id, RouteCode.EDITED, by=by, note=note, text=text)


def reroute(store: Store, root: str, job_id: str, role: str, *, by: str, note: str | None = None) -> Lifecycle:
    """An override: to that role, whatever the workflow says. It goes on from there. InputError: agents' work for the
    role that runs commands."""
    view = _view(store, root, job_id)
    life, task = view.lifecycle, task_snapshot.readable_task(store.folder(view))
    if life.routing is not None and role == names.RUNNER:
        raise InputError(f"{job_id} is agents' work: {names.fault_of(role, store.roles())}. Nothing was changed")
    at = workflow.position(life.hops, life.first_role, task)
    step = workflow.step_of(task, at, role)
    told = {"code": str(RouteCode.OVERRIDE), **({} if step is None else {"step": step})}
    with operator(store, by) as agent:
        return store.reroute(agent, job_id, role, note=_short(note), route=told)


def _answer(
    store: Store, root: str, job_id: str, code: RouteCode, *, by: str, note: str | None, text: str | None = None
) -> Lifecycle:
    asked = inbox_item(store, root, job_id)
    told = {"code": str(code), **({} if asked.step is None else {"step": asked.step})}
    with operator(store, by) as agent:
        return store.answer(agent, job_id, PersonAnswer(route=told, note=_short(note), text=text))


def _short(note: str | None) -> str | None:
    if note is not None and len(note) > MAX_NOTE:
        raise InputError(f"the note has {len(note)} characters; at most {MAX_NOTE} are kept")
    return note


def _view(store: Store, root: str, job_id: str) -> JobView:
    view = store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {root}; `farro ls` lists what there is")
    return view


def _waits(view: JobView) -> bool:
    return view.status is Status.QUEUED and transitions.waits_for_person(view.lifecycle)


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


def _last(folder: str, life: Lifecycle) -> tuple[str | None, str]:
    """Who worked last, and its result.md."""
    worked = workflow.worked_before(life.hops)
    if not worked:
        return None, ""
    role, attempt = worked[-1]
    try:
        text = fs.read_bytes(f"{folder}/attempts/{attempt:04d}/result.md", MAX_TEXT)[:MAX_TEXT]
    except OSError:
        return role, ""
    return role, text.decode("utf-8", "replace")
