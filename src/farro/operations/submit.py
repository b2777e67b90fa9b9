"""Submitting plans: a document in, a job's id out. Everything is checked before anything is written.

Reading files and standard input lives in cli; what a plan may say lives in plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro.documents import Document, refusal
from farro.errors import BadName, InputError, Problem, Refused, UnknownRole
from farro.kernel import ids
from farro.operations.admission import Gate, admitted
from farro.plans.loading import load_many
from farro.plans.model import Plan
from farro.ports.store import Store, Submission

DEFAULT_ROLE = "Runner"


def enqueue(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None = None,
    job_id: str | None = None,
    source: str,
    gate: Gate | None = None,
) -> list[str]:
    """Enqueue the plan of each document; answers the ids in the same order. All of them are good, or none is queued.
    `gate` keeps the caps; without one there are none."""
    if job_id is not None:
        _check_option("--id", lambda: ids.check_job_id(job_id))
    known = set(store.roles())
    if role is not None:
        _check_option("--role", lambda: _check_role(role, known))
    plans = load_many(documents, source)
    if job_id is not None and len(plans) != 1:
        raise InputError(f"--id names one job, but {source} holds {len(plans)} plans; give each plan its own `id`")
    pairs = list(zip(plans, documents, strict=True))
    problems = [
        problem for plan, document in pairs for problem in _problems(plan, document, known, role=role, job_id=job_id)
    ]
    problems += _told_twice(pairs)
    if problems:
        raise refusal(source, problems)
    for plan, document in pairs:
        _refuse_unkept(plan, document)
    submissions = [
        Submission(role=role or plan.role or DEFAULT_ROLE, prompt=_prompt(document.data), job_id=job_id or plan.id)
        for plan, document in pairs
    ]
    return admitted(store, submissions, gate)


def _problems(
    plan: Plan, document: Document, known: set[str], *, role: str | None, job_id: str | None
) -> list[Problem]:
    """What a plan says of its own job that this root or the command line contradicts."""
    found = []
    if plan.id is not None:
        if job_id is not None and plan.id != job_id:
            found.append(document.problem(("id",), f"is {plan.id}, but --id says {job_id}; keep one of them"))
        try:
            ids.check_job_id(plan.id)
        except BadName as error:
            found.append(document.problem(("id",), str(error)))
    if plan.role is not None:
        if role is not None and plan.role != role:
            found.append(document.problem(("role",), f"is {plan.role}, but --role says {role}; keep one of them"))
        try:
            _check_role(plan.role, known)
        except InputError as error:
            found.append(document.problem(("role",), str(error)))
    return found


def _told_twice(pairs: Sequence[tuple[Plan, Document]]) -> list[Problem]:
    """One id for two plans in the same file. The same plan again is the same job, as it is across files."""
    first: dict[str, Document] = {}
    found = []
    for plan, document in pairs:
        if plan.id is not None and first.setdefault(plan.id, document).data != document.data:
            line, _ = first[plan.id].locate(("id",)) or (0, 0)
            found.append(document.problem(("id",), f"line {line} has another plan of this id; choose another"))
    return found


def _refuse_unkept(plan: Plan, document: Document) -> None:
    """Refuse what this farro could not keep: a plan with allowed_paths is never run unconfined."""
    if plan.allowed_paths is not None:
        message = (
            "this farro has no sandbox yet to keep them, and does not run such a plan unconfined; "
            "take allowed_paths out to run it as from a shell"
        )
        raise Refused(document.problem(("allowed_paths",), message, key=True).render(document.source))


def _check_role(role: str, known: set[str]) -> None:
    if ids.check_role(role) not in known:
        raise UnknownRole(
            f"no role {role} here; there is {', '.join(sorted(known))}. "
            "A new one is declared under `roles` in the config and made by `farro init`"
        )


def _check_option(name: str, check: Any) -> None:
    try:
        check()
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _prompt(data: Any) -> Mapping[str, Any]:
    """prompt.json holds what was submitted; a bare task list becomes the object that means the same."""
    return {"tasks": data} if isinstance(data, list) else data
