"""What is checked of jobs before the Redis store makes them: names, roles, sizes, and what they run after.

Sending them lives in submit, and in commit for the children of an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from farro import documents
from farro.errors import IdConflict, InputError
from farro.host import fs
from farro.jobs import ids, transitions
from farro.jobs.outcomes import Child
from farro.plans import after
from farro.plans.after import End
from farro.store.port import CARRIED_BYTES, CarriedFiles, Submission
from farro.store.redis.context import Ground
from farro.store.redis.records import MINTED, New, Seen, digest


def children(ground: Ground, job_id: str, attempt: int, wanted: Sequence[Child]) -> list[New]:
    """The children of an attempt as they are sent with its commit; their ids are derived from it."""
    for child in wanted:
        ground.check_role(child.role)
    return checked(
        ground,
        [
            Submission(role=child.role, prompt=child.prompt, job_id=ids.child_id(job_id, attempt, index))
            for index, child in enumerate(wanted)
        ],
    )


def checked(ground: Ground, submissions: Sequence[Submission]) -> list[New]:
    """All of them, before one is sent."""
    wanted: dict[str, str] = {}
    texts: list[bytes] = []
    digests: list[str] = []
    for submission in submissions:
        ground.check_role(submission.role)
        if submission.job_id is not None:
            ids.check_job_id(submission.job_id)
        for name in submission.payload:
            ids.check_payload_name(name)
        try:
            text = documents.canonical(submission.prompt)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the prompt cannot be written as JSON: {error}") from error
        if len(text) >= ground.policy.max_prompt_bytes:
            raise InputError(f"the prompt is too long; at most {ground.policy.max_prompt_bytes} bytes are allowed")
        texts.append(text)
        digests.append(MINTED if submission.job_id is None else digest(submission))
        if submission.job_id is not None and wanted.setdefault(submission.job_id, digests[-1]) != digests[-1]:
            raise conflict(submission.job_id)
    blocks = _blocks(ground, submissions, digests)
    now = ground.now()
    token = ground.token() if wanted else ""
    news = []
    for index, submission in enumerate(submissions):
        routing = submission.prompt.get("routing")
        lifecycle = transitions.enqueued(
            job_id=submission.job_id or ground.mint(),
            role=submission.role,
            now=now,
            not_before=submission.not_before,
            routing=routing if isinstance(routing, dict) else None,
            retry_of=submission.retry_of,
            waits=bool(blocks.get(index)),
        )
        news.append(
            New(
                lifecycle=lifecycle,
                prompt=submission.prompt,
                prompt_text=texts[index],
                digest=digests[index],
                token=token if submission.job_id is not None else "",
                blocks=blocks.get(index, ()),
                narrative=submission.narrative,
                payload=submission.payload,
                carried=None if submission.carried is None else _carried(submission.carried),
                actor=ground.actor,
            )
        )
    return news


def _carried(brought: CarriedFiles) -> Mapping[str, bytes]:
    """By content. FileNotFoundError: who looked at the other job has let its copy go meanwhile."""
    found = {name: fs.read_bytes(path, CARRIED_BYTES) for name, path in brought.files.items()}
    return {"steps.jsonl": brought.records, **found}


def _blocks(ground: Ground, submissions: Sequence[Submission], digests: Sequence[str]) -> Mapping[int, list[str]]:
    """What each has to wait for, by its index; refused when one could never run."""
    named = {index: after.dependencies(item.prompt) for index, item in enumerate(submissions)}
    named = {index: found for index, found in named.items() if found.all}
    if not named:
        return {}
    asked = {job_id for found in named.values() for job_id in found.all}
    own = {submissions[index].job_id or "" for index in named} - {""}
    seen = ends(ground, asked | own)
    blocks: dict[int, list[str]] = {}
    earlier: set[str] = set()
    for index, submission in enumerate(submissions):
        if index in named and seen.get(submission.job_id or "", End.GONE) is End.GONE:
            blocks[index] = after.blocking(
                named[index], lambda job_id: seen.get(job_id, End.GONE), earlier=earlier, own=submission.job_id
            )
        earlier.update({submission.job_id} if submission.job_id else ())
    return blocks


def ends(ground: Ground, job_ids: Collection[str]) -> dict[str, End]:
    """How far these jobs are, as those that run after them see it."""
    order = sorted(job_ids)
    return {job_id: end(seen) for job_id, seen in zip(order, ground.look(order), strict=True)}


def end(seen: Seen | None) -> End:
    if seen is None:
        return End.GONE
    if seen.wh == "succeeded":
        return End.SUCCEEDED
    return End.FAILED if seen.wh in ("failed", "killed") else End.OPEN


def conflict(job_id: str) -> IdConflict:
    return IdConflict(f"{job_id} was submitted before with other content; the first job is untouched")
