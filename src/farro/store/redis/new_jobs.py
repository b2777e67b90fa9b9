"""Check submissions before they are sent: names, roles, sizes, and the jobs that they run after."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from farro.errors import IdConflict
from farro.host import fs
from farro.jobs import ids
from farro.jobs.outcomes import Child
from farro.plans import after
from farro.plans.after import DependencyState
from farro.store.port import CARRIED_BYTES, CarriedFiles, Submission
from farro.store.redis.context import RedisContext
from farro.store.redis.records import MINTED, JobRecord, NewJob
from farro.store.submissions import check, digest, first_lifecycle


def prepare_children(context: RedisContext, job_id: str, attempt: int, wanted: Sequence[Child]) -> list[NewJob]:
    """Build the children of an attempt, to be sent with its commit. Their ids are derived from the parent's."""
    for child in wanted:
        context.check_role(child.role)
    return prepare(
        context,
        [
            Submission(role=child.role, prompt=child.prompt, job_id=ids.child_id(job_id, attempt, index))
            for index, child in enumerate(wanted)
        ],
    )


def prepare(context: RedisContext, submissions: Sequence[Submission]) -> list[NewJob]:
    """Check all submissions, then build a new job from each; nothing is sent yet."""
    texts = []
    for submission in submissions:
        context.check_role(submission.role)
        texts.append(check(submission, context.policy.max_prompt_bytes))
    digests = _digests(submissions)
    blocks = _blocks(context, submissions, digests)
    now = context.now()
    token = context.token() if any(submission.job_id is not None for submission in submissions) else ""
    jobs = []
    for index, submission in enumerate(submissions):
        job_id = submission.job_id or context.mint()
        lifecycle = first_lifecycle(submission, job_id, now, waits=bool(blocks.get(index)))
        jobs.append(
            NewJob(
                lifecycle=lifecycle,
                prompt=submission.prompt,
                prompt_text=texts[index],
                digest=digests[index],
                token=token if submission.job_id is not None else "",
                blocks=blocks.get(index, ()),
                narrative=submission.narrative,
                payload=submission.payload,
                carried=None if submission.carried is None else _carried(submission.carried),
                actor=context.actor,
            )
        )
    return jobs


def _digests(submissions: Sequence[Submission]) -> list[str]:
    """Return the digest of each submission; refuse one chosen id with two different contents."""
    digests: list[str] = []
    chosen: dict[str, str] = {}
    for submission in submissions:
        digests.append(MINTED if submission.job_id is None else digest(submission))
        if submission.job_id is not None and chosen.setdefault(submission.job_id, digests[-1]) != digests[-1]:
            raise conflict(submission.job_id)
    return digests


def _carried(brought: CarriedFiles) -> Mapping[str, bytes]:
    """Read the carried files by content. FileNotFoundError: the local copy of the other job was removed meanwhile."""
    found = {name: fs.read_bytes(path, CARRIED_BYTES) for name, path in brought.files.items()}
    return {"steps.jsonl": brought.records, **found}


def _blocks(
    context: RedisContext, submissions: Sequence[Submission], digests: Sequence[str]
) -> Mapping[int, list[str]]:
    """Return the jobs that each submission waits for, by its index; refuse a submission that could never run."""
    named = {index: after.dependencies(item.prompt) for index, item in enumerate(submissions)}
    named = {index: found for index, found in named.items() if found.all}
    if not named:
        return {}
    asked = {job_id for found in named.values() for job_id in found.all}
    own = {submissions[index].job_id or "" for index in named} - {""}
    seen = ends(context, asked | own)
    blocks: dict[int, list[str]] = {}
    earlier: set[str] = set()
    for index, submission in enumerate(submissions):
        if index in named and seen.get(submission.job_id or "", DependencyState.GONE) is DependencyState.GONE:
            blocks[index] = after.blocking(
                named[index],
                lambda job_id: seen.get(job_id, DependencyState.GONE),
                earlier=earlier,
                own=submission.job_id,
            )
        earlier.update({submission.job_id} if submission.job_id else ())
    return blocks


def ends(context: RedisContext, job_ids: Collection[str]) -> dict[str, DependencyState]:
    """Return how far these jobs are, as their dependents see it."""
    order = sorted(job_ids)
    return {job_id: end(seen) for job_id, seen in zip(order, context.read_jobs(order), strict=True)}


def end(seen: JobRecord | None) -> DependencyState:
    if seen is None:
        return DependencyState.GONE
    if seen.place == "succeeded":
        return DependencyState.SUCCEEDED
    return DependencyState.FAILED if seen.place in ("failed", "killed") else DependencyState.OPEN


def conflict(job_id: str) -> IdConflict:
    return IdConflict(f"{job_id} was submitted before with other content; the first job is untouched")
