"""Check a submission and make the job's first lifecycle: the rules that every store applies before it queues a job."""

from __future__ import annotations

from datetime import datetime

from farro import documents
from farro.errors import InputError
from farro.jobs import ids, moves
from farro.jobs.envelope import Lifecycle
from farro.store.port import Submission


def check(submission: Submission, max_prompt_bytes: int) -> bytes:
    """Refuse a bad submission. Returns its prompt as canonical JSON."""
    if submission.job_id is not None:
        ids.check_job_id(submission.job_id)
    for name in submission.payload:
        ids.check_payload_name(name)
    try:
        text = documents.canonical(submission.prompt)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the prompt cannot be written as JSON: {error}") from error
    if len(text) >= max_prompt_bytes:
        raise InputError(f"the prompt is {len(text)} bytes; at most {max_prompt_bytes} are allowed")
    return text


def digest(submission: Submission) -> str:
    """Return a digest of the content, by which a repeated submission of a chosen id is recognised."""
    import hashlib  # imported here: only chosen ids need it

    payload = {name: data.hex() for name, data in submission.payload.items()}
    content = [submission.role, submission.prompt, submission.narrative, payload]
    return hashlib.sha256(documents.canonical(content)).hexdigest()


def first_lifecycle(submission: Submission, job_id: str, now: datetime, *, waits: bool) -> Lifecycle:
    routing = submission.prompt.get("routing")
    return moves.enqueued(
        job_id=job_id,
        role=submission.role,
        now=now,
        not_before=submission.not_before,
        routing=routing if isinstance(routing, dict) else None,
        retry_of=submission.retry_of,
        waits=waits,
    )
