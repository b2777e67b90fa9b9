"""Queueing one agent prompt with all that comes with it: `farro enqueue --prompt-json`.

What a prompt may say lives in roles.prompt and contract, its files in enclosures, queueing in submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farro.config.settings import SecuritySettings
from farro.documents import Document
from farro.errors import InputError, Refused
from farro.queue import attachments, submit
from farro.queue.admission import Gate, admitted
from farro.queue.agent_rules import Contract
from farro.queue.options import Wishes
from farro.roles import prompt
from farro.store.port import Store
from farro.worker import started_tasks


def enqueue(
    store: Store,
    document: Document,
    *,
    role: str | None,
    job_id: str | None,
    wishes: Wishes,
    gate: Gate,
    contract: Contract,
    security: SecuritySettings,
    root: str,
    folder: str | None,
    context_md: str | None = None,
    payload: Sequence[str] = (),
    task: str | None = None,
    narrative: str | None = None,
) -> str:
    """The job's id. Everything is checked before anything is written; `folder`: where the prompt's file lies.
    `narrative`: the text of its prompt.md, from whoever has no file of it."""
    known = sorted(store.roles())
    prompt.load(document, roles=known, allow_absolute=contract.allow_absolute, root=contract.root)
    (wanted,) = submit.submissions(
        store,
        [document],
        role=role,
        job_id=job_id,
        source=document.source,
        wishes=wishes,
        contract=replace(contract, with_files=True),
    )
    try:
        found = attachments.collect(
            document,
            folder=folder,
            context_md=context_md,
            payload=payload,
            task=task,
            root=root,
            roles=known,
            security=security,
        )
    except Refused:
        store.note("payload_refused", role=wanted.role, user=gate.user)
        raise
    if narrative is not None:
        if len(narrative.encode("utf-8", "replace")) > attachments.MAX_NARRATIVE:
            raise InputError(f"the narrative is longer than {attachments.MAX_NARRATIVE} bytes")
        found = replace(found, narrative=narrative)
    job = admitted(store, [attachments.enclosed(wanted, found)], gate)[0]
    if found.task_id is not None:
        started_tasks.mark(root, found.task_id, job)
    return job
