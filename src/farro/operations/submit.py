"""Submitting plans: a document in, a job's id out. Everything is checked before anything is written.

Reading files and standard input lives in cli; what a plan may say lives in plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro.documents import Document
from farro.errors import InputError, Refused
from farro.plans.loading import load_many
from farro.plans.model import Plan
from farro.ports.store import Store, Submission

DEFAULT_ROLE = "Runner"


def enqueue(
    store: Store, documents: Sequence[Document], *, role: str | None = None, job_id: str | None = None, source: str
) -> list[str]:
    """Enqueue the plan of each document; answers the ids in the same order. All of them are good, or none is queued."""
    plans = load_many(documents, source)
    if job_id is not None and len(plans) != 1:
        raise InputError(f"--id names one job, but {source} holds {len(plans)} plans; give each plan its own `id`")
    return store.enqueue_many(
        [_submission(plan, document, role, job_id) for plan, document in zip(plans, documents, strict=True)]
    )


def _submission(plan: Plan, document: Document, role: str | None, job_id: str | None) -> Submission:
    if job_id is not None and plan.id not in (None, job_id):
        raise InputError(f"{document.source}: the plan's id is {plan.id}, but --id says {job_id}; keep one of them")
    if role is not None and plan.role not in (None, role):
        raise InputError(f"{document.source}: the plan's role is {plan.role}, but --role says {role}; keep one of them")
    if plan.allowed_paths is not None:
        raise Refused(
            f"{document.source}: allowed_paths: this farro has no sandbox yet to keep them, and does not run such a plan "
            "unconfined; take allowed_paths out to run it as from a shell"
        )
    return Submission(role=role or plan.role or DEFAULT_ROLE, prompt=_prompt(document.data), job_id=job_id or plan.id)


def _prompt(data: Any) -> Mapping[str, Any]:
    """prompt.json holds what was submitted; a bare task list becomes the object that means the same."""
    return {"tasks": data} if isinstance(data, list) else data
