"""Save plans and actions, list them, and turn them into jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from farro.documents import Document, refusal
from farro.errors import InputError
from farro.jobs.request import JobRequest
from farro.lazy_dataclass import dataclass
from farro.lazy_dataclass import replace as changed
from farro.plans import actions as rules
from farro.plans.actions import Action
from farro.plans.forms import memo_form
from farro.queue import agent_rules as contracts
from farro.queue.agent_rules import STRICT, Contract
from farro.queue.submit import SubmitPolicy, submit
from farro.store.library import Kind, Library
from farro.store.port import Store

Mint = Callable[[], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLine:
    """A saved plan in short."""

    id: str
    name: str | None
    steps: int
    wants: tuple[str, ...]  # the fields that an input must fill


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionLine:
    """A saved action in short."""

    id: str
    plan_id: str
    inputs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionJob:
    """The job for one input of an action."""

    job_id: str
    prompt: Mapping[str, Any]


# --- plans ---


def save_plan(
    library: Library,
    document: Document,
    *,
    roles: Collection[str],
    mint: Mint,
    name: str | None = None,
    replace: bool = False,
    contract: Contract = STRICT,
) -> str:
    """Save a plan. Its id is `name`, else the document's plan_id, else a minted one.

    It is checked as if it were submitted, except for placeholders, which only an input can fill.
    """
    plan, _ = contracts.read(document, sorted(roles), contract)
    if not isinstance(document.data, dict):
        raise InputError(f"{document.source}: only a plan with `steps` can be kept, not a bare list of tasks")
    plan_id = name or plan.plan_id or mint()
    kept = {
        key: value for key, value in memo_form(document.data).items() if key not in ("id", "$schema")
    }  # an id is a job's
    library.put("plan", plan_id, {**kept, "plan_id": plan_id}, replace=replace)
    return plan_id


def plan(library: Library, plan_id: str) -> Mapping[str, Any]:
    """Return a saved plan. InputError: there is none."""
    return _kept(library, "plan", plan_id)


def plans(library: Library) -> list[PlanLine]:
    """List the saved plans."""
    lines = []
    for plan_id in library.ids("plan"):
        kept = library.get("plan", plan_id)
        if kept is not None:
            steps = kept.get("steps") or kept.get("tasks") or ()
            lines.append(PlanLine(id=plan_id, name=kept.get("name"), steps=len(steps), wants=tuple(rules.fields(kept))))
    return lines


def remove_plan(library: Library, plan_id: str) -> None:
    """Delete a plan. Its jobs have their own copy, but actions do not: a plan that an action uses is not deleted."""
    _kept(library, "plan", plan_id)
    users = [line.id for line in actions(library) if line.plan_id == plan_id]
    if users:
        raise InputError(
            f"plan {plan_id} is used by the action{'s' if len(users) > 1 else ''} {', '.join(users[:20])}; nothing was "
            f"deleted. First: agx action delete {users[0]}"
        )
    library.remove("plan", plan_id)


# --- actions ---


def save_action(library: Library, document: Document, *, mint: Mint) -> str:
    """Save an action after checking that each of its inputs fits its plan."""
    action = rules.load(document)
    _check(library, action, document.source)
    action_id = action.action_id or mint()
    kept = {"action_id": action_id, "plan_id": action.plan_id, "inputs": list(action.inputs)}
    library.put("action", action_id, {**kept, "metadata": action.metadata} if action.metadata else kept)
    return action_id


def action(library: Library, action_id: str) -> Mapping[str, Any]:
    """Return a saved action. InputError: there is none."""
    return _kept(library, "action", action_id)


def action_told(store: Store, library: Library, action_id: str) -> dict[str, Any]:
    """Return the action with its jobs, one for each input; `status` is None for a job that was not submitted."""
    kept = action(library, action_id)
    names = [job_id(action_id, index) for index in range(len(kept["inputs"]))]
    views = {name: store.find(name) for name in names}
    jobs = [{"job_id": name, "status": None if view is None else str(view.status)} for name, view in views.items()]
    return {**kept, "jobs": jobs}


def remove_action(library: Library, action_id: str) -> None:
    """Delete an action; its jobs stay."""
    _kept(library, "action", action_id)
    library.remove("action", action_id)


def actions(library: Library) -> list[ActionLine]:
    """List the saved actions."""
    lines = []
    for action_id in library.ids("action"):
        kept = library.get("action", action_id)
        if kept is not None:
            lines.append(ActionLine(id=action_id, plan_id=kept["plan_id"], inputs=len(kept["inputs"])))
    return lines


def jobs_of_action(library: Library, action_id: str) -> list[ActionJob]:
    """Return one job for each input. Job ids derive from the action's id, so that submitting it again makes no second
    job."""
    kept = rules.load(Document(action(library, action_id), f"action {action_id}"))
    template = _check(library, kept, f"action {action_id}")
    return [
        ActionJob(job_id=job_id(action_id, index), prompt=rules.filled(template, value))
        for index, value in enumerate(kept.inputs)
    ]


def job_id(action_id: str, index: int) -> str:
    """Return the job id for an input, counted from 0. The action's id is cut so that the job id is never too long."""
    return f"{action_id[:59]}-{index + 1:03d}"


def submit_action(
    store: Store, library: Library, action_id: str, request: JobRequest, policy: SubmitPolicy
) -> list[str]:
    """Queue the job of every input, with the options of `request`: all, or none if one is invalid. Submitting again
    yields the same jobs."""
    source = f"action {action_id}"
    requests = [
        changed(request, document=Document({**job.prompt, "id": job.job_id}, f"{source}, input {index}"))
        for index, job in enumerate(jobs_of_action(library, action_id), start=1)
    ]
    return [job.id for job in submit(store, requests, policy)]


def plan_document(library: Library, plan_id: str) -> Document:
    """Return a saved plan to submit. InputError: there is none, or it wants an input."""
    kept = plan(library, plan_id)
    wanted = rules.fields(kept)
    if wanted:
        raise InputError(f"plan {plan_id} wants an input ({', '.join(wanted)}); submit it as an action with inputs")
    return Document(dict(kept), f"plan {plan_id}")


def _check(library: Library, action: Action, source: str) -> Mapping[str, Any]:
    """Return the action's plan if every input fits it."""
    template = plan(library, action.plan_id)
    found = rules.problems(template, action.inputs, action.plan_id)
    if found:
        raise refusal(source, found)
    return template


def _kept(library: Library, kind: Kind, name: str) -> Mapping[str, Any]:
    found = library.get(kind, name)
    if found is None:
        raise InputError(f"no {kind} {name} is kept; {_there(library.ids(kind))}")
    return found


def _there(ids: Sequence[str]) -> str:
    return f"known: {', '.join(ids[:20])}{' …' if len(ids) > 20 else ''}" if ids else "none is"
