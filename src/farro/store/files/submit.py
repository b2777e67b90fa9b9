"""Enqueue jobs: stage the folder completely and sync it, then publish it with one rename into the queue.

- A crash before the rename leaves debris in staging and no job; after it, the job is there.
  [test_kill_at_every_call_of_enqueue]
- With durability `power` jobs with minted ids are in the journal before they are published; else every staged file, its
  folder and incoming/ are synced before the acknowledgement. [test_power_cut_after_enqueue] A single job is staged
  while its record is being written; if staging fails, a second record withdraws the first.
  docs/decisions/one-journal-record-replaces-the-syncs.md.
  [test_an_enqueue_whose_folder_cannot_be_made_is_revoked]
- Chosen ids: stage and sync → exclusive link `jobs/.ids/<id>` → every submitter of that id tries the move from staging
  to incoming; ENOENT means that it is already done. The link is durable before the rename: otherwise a power cut may
  keep the job and lose the link, and a repeated submission would make a second job.
  [test_same_chosen_id_twice_is_one_job]
- With a journal the link comes first, because it decides whose content counts, and each submitter has a record of that
  content before it publishes: a published job can be restored together with its link. The replay removes a link whose
  submitter never wrote its record, unless the folder that it points at is complete. No submitter publishes what another
  staged before it has made that durable itself. docs/decisions/one-journal-record-replaces-the-syncs.md.
- A job that runs after others is published into jobs/waiting, once the index names it, durably (dependencies).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Sequence
from functools import partial

from farro.errors import Damaged, IdConflict, StorageTrouble, TryAgain
from farro.host import fs, trees
from farro.jobs import places
from farro.lazy_dataclass import replace
from farro.log.audit import AuditEvent, tell_all
from farro.store import submissions as rules
from farro.store.files import chosen_ids, dependencies, views
from farro.store.files.context import FilesContext
from farro.store.files.draft import StagedJob, draft_job, inner_folders, write_staged
from farro.store.files.journal import JournalEntry
from farro.store.files.journal_file import Record
from farro.store.files.move import MoveResult, cross_device_error, try_move
from farro.store.port import Submission, Submitted

_MINTED = re.compile(r"job-[0-9]{8}-[0-9]{6}-[0-9a-f]{23}")


class _ArchivedMeanwhile(TryAgain):
    """A job was archived between the look into the archive and the registration of its id."""


def enqueue_many(
    context: FilesContext,
    submissions: Sequence[Submission],
    *,
    by: str | None = None,
    into: str | None = None,
    named: Callable[[str], None] | None = None,
    gone_is_done: bool = False,
) -> list[Submitted]:
    """Stage all, sync them together, publish them, then sync their queues together.

    `by` is the actor for the audit log. `into` is a folder to publish into instead of the queue. `named` is called with
    each id before that job is published. With `gone_is_done`, a job that was submitted before and exists nowhere any
    more counts as delivered.
    """
    prompts = [_check(context, submission) for submission in submissions]
    if any(submission.job_id is not None for submission in submissions) and context.archive is not None:
        known = [_archived(context, *each) for each in zip(submissions, prompts, strict=True)]
        if any(known):
            rest = [each for each, there in zip(submissions, known, strict=True) if not there]
            made = iter(
                enqueue_many(context, rest, by=by, into=into, named=named, gone_is_done=gone_is_done) if rest else []
            )
            for each, there in zip(submissions, known, strict=True):
                if there and named is not None and each.job_id is not None:
                    named(each.job_id)
            return [
                Submitted(id=str(each.job_id), existed=True) if there else next(made)
                for each, there in zip(submissions, known, strict=True)
            ]
    blocks = dependencies.blocking(context, submissions)
    first = submissions[0] if len(submissions) == 1 and into is None and named is None and not blocks[0] else None
    if first is not None and first.job_id is None and first.carried is None:
        item = _enqueue_overlapped(context, first, prompts[0], by)
        if item is not None:
            return [Submitted(id=item.job_id)]
    staged: list[StagedJob] = []
    try:
        for submission, prompt, blocked in zip(submissions, prompts, blocks, strict=True):
            staged.append(_stage(context, submission, prompt, blocked, into))
        _check_batch(context, staged, gone_is_done)
        special = any(item.blocks for item in staged) or any(submission.carried for submission in submissions)
        plain = into is None and named is None and not special
        ours = _publish_staged(context, staged, plain=plain, named=named, gone_is_done=gone_is_done)
        _audit_enqueued(context, ours, by)
        return [Submitted(id=item.job_id, existed=item.staged_by_other) for item in staged]
    except _ArchivedMeanwhile:
        for item in staged:
            _discard(context, item)
        return enqueue_many(context, submissions, by=by, into=into, named=named, gone_is_done=gone_is_done)
    except BaseException as error:
        if isinstance(error, Exception):  # not a kill: a plain refusal leaves no debris
            for item in staged:
                _discard(context, item)
        raise
    finally:
        for item in staged:
            item.drop()


def _archived(context: FilesContext, submission: Submission, prompt: bytes) -> bool:
    """Return whether this was submitted before and is archived. IdConflict: with other content."""
    if submission.job_id is None or context.archive is None:
        return False
    digest = context.archive.digest(submission.job_id)
    if digest is None:
        return False
    if not digest:
        raise _taken(submission.job_id)
    if digest != chosen_ids.digest(submission, prompt):
        raise _conflict(submission.job_id)
    return True


def _check_batch(context: FilesContext, staged: Sequence[StagedJob], gone_is_done: bool) -> None:
    """Check every chosen id of a batch before one is registered: a refused batch must not leave a registered job in
    staging, which clean-up would publish an hour after its submitter got the refusal."""
    if len(staged) == 1:  # registering a single job checks the same
        return
    digests: dict[str, str | None] = {}
    for item in staged:
        if item.digest is None:
            continue
        _check_conflict(item, digests.setdefault(item.job_id, item.digest))
        digest, name = chosen_ids.registered(context, item.job_id)
        if digest and not gone_is_done:
            _check_there(context, item.job_id, name)
        _check_conflict(item, digest or item.digest)


def _publish_staged(
    context: FilesContext,
    staged: Sequence[StagedJob],
    *,
    plain: bool,
    named: Callable[[str], None] | None,
    gone_is_done: bool,
) -> list[StagedJob]:
    """Make the staged jobs durable, through the journal if possible, and publish them. `plain`: no job has a name, a
    dependency, carried files or another destination than its queue. Returns the jobs that were ours to publish."""
    chosen = [item for item in staged if item.digest is not None]
    linked = plain and bool(chosen) and context.journal_ready()
    if plain and (linked or not chosen):
        for item in chosen:
            _register(context, item, gone_is_done)
        waits = any(item.blocks for item in staged)  # as an earlier submitter of the id found it
        if not waits and (entry := context.write_journal([item.record() for item in staged])) is not None:
            try:
                return _publish_all(context, staged)
            finally:
                entry.finished()
    if not linked:
        if context.policy.durable:
            fs.sync_all([path for item in staged for path in _durable(context, item)])
        for item in chosen:
            _register(context, item, gone_is_done)
    for item in staged:
        if linked or item.staged_by_other:  # any process that sees a link may publish at any moment
            chosen_ids.make_durable(context, item.name)
    if chosen:
        context.sync([context.registry])
    if chosen or not plain:
        context.sync([path for item in staged for path in dependencies.register(context, item.job_id, item.blocks)])
    if named is not None:
        for item in staged:
            named(item.job_id)
    ours = [item for item in staged if _publish(context, item)]
    context.sync(dict.fromkeys(item.home for item in staged))
    return ours


def _enqueue_overlapped(
    context: FilesContext, submission: Submission, prompt: bytes, by: str | None
) -> StagedJob | None:
    """Write the journal record of one job while its folder is made in staging; publish the job when both are done.
    None: nothing is left of it, and the caller uses the usual way, which succeeds or reports the reason. One after the
    other costs 13 % more CPU time (median of 20 pairs).
    [test_a_begun_record_that_fails_is_not_acknowledged, test_without_async_writes_a_record_is_written_directly]"""
    drafts: list[StagedJob] = []

    def draft() -> list[Record]:
        drafts.append(draft_job(context, submission, prompt, [], None))
        return [drafts[0].record()]

    if (pending := context.begin_journal_write(draft)) is None:
        return None
    (item,) = drafts
    entry: JournalEntry | None = None
    made = False
    try:
        try:
            write_staged(context, item, submission.prompt)
            made = True
        finally:
            entry = pending.end()
        if entry is None:  # no room: as without a journal, but under the same id, because its record may be on the disk
            fs.sync_all(_durable(context, item))
        _publish(context, item)
        if entry is None:
            context.sync([item.home])
        _audit_enqueued(context, [item], by)
        return item
    except Exception as error:
        if entry is not None:
            _withdraw(context, [item])
        _discard(context, item)
        if entry is None or made or not isinstance(error, OSError):
            raise
    finally:
        if entry is not None:
            entry.finished()
    return None


def _publish_all(context: FilesContext, items: Sequence[StagedJob]) -> list[StagedJob]:
    """Publish jobs that are in the journal. Returns those that were ours to publish."""
    ours: list[StagedJob] = []
    for done, item in enumerate(items):
        try:
            if _publish(context, item):
                ours.append(item)
        except Exception:
            # A chosen id stays registered: its next submitter, or clean-up, publishes the job.
            _withdraw(context, [left for left in items[done:] if left.digest is None])
            raise
    return ours


def _withdraw(context: FilesContext, items: Sequence[StagedJob]) -> None:
    """Cancel the journal records of jobs whose submitter gets an error. Without this a power cut would restore them,
    beside the jobs that were submitted instead. [test_a_refused_enqueue_does_not_appear_after_a_power_cut]"""
    if not items:
        return
    entry = context.write_journal([replace(item.record(), kind="void", life=b"", files={}) for item in items])
    if entry is not None:
        entry.finished()


def _audit_enqueued(context: FilesContext, items: Sequence[StagedJob], by: str | None) -> None:
    """Audit the enqueues with the same fields that jobs.audit_fields derives from a lifecycle."""
    events: list[AuditEvent] = [
        {"event": "enqueued", "actor": by, "job_id": item.job_id, "role": item.role, "status": "queued", "attempt": 0}
        for item in items
    ]
    tell_all(context.audit, events)


def _durable(context: FilesContext, item: StagedJob) -> list[str]:
    """Return the paths to sync before the job is published. A first job.json that is lost in a power cut can be
    rebuilt, except for what the prompt does not contain."""
    folder = f"{context.staging}/{item.name}"
    found = [f"{folder}/{name}" for name in (*item.files, *item.links, "job.json", *inner_folders(item))]
    found.append(folder)
    if item.digest is not None:
        found.append(context.staging)  # the registry will point at this name, which must survive a power cut
    return found


def _check(context: FilesContext, submission: Submission) -> bytes:
    """Refuse a bad submission before anything is written. Returns the text of its prompt.json."""
    context.check_role(submission.role)
    return rules.check(submission, context.policy.max_prompt_bytes) + b"\n"


def _stage(
    context: FilesContext, submission: Submission, prompt: bytes, blocks: list[str], into: str | None
) -> StagedJob:
    """Do everything but the rename. Each try has its own name; clean-up removes what a failed one left."""
    once = partial(_stage_once, context, submission, prompt, blocks, into)
    return fs.retried(once, context.staging, context.clock.sleep)


def _stage_once(
    context: FilesContext, submission: Submission, prompt: bytes, blocks: list[str], into: str | None
) -> StagedJob:
    item = draft_job(context, submission, prompt, blocks, into)
    write_staged(context, item, submission.prompt)
    return item


def _register(context: FilesContext, item: StagedJob, gone_is_done: bool) -> None:
    """Register the id as ours. If it was submitted before, use the first submitter's folder in staging instead."""
    if (
        _MINTED.fullmatch(item.job_id)
        and not fs.exists(f"{context.registry}/{item.job_id}")
        and views.find(context, item.job_id)
    ):
        raise _taken(item.job_id)
    try:
        fs.symlink(f"{item.digest}.{item.name}", f"{context.registry}/{item.job_id}")
        made = True
    except FileExistsError:
        made = False
    # Once more, after the link: a job that was archived since `_archived` looked has lost its own link.
    if context.archive is not None and context.archive.find(item.job_id) is not None:
        if made:
            fs.unlink(f"{context.registry}/{item.job_id}")
        raise _ArchivedMeanwhile(f"{item.job_id} is being archived; submit it again")
    if made:
        return
    digest, first = chosen_ids.registered(context, item.job_id)
    if not gone_is_done:
        _check_there(context, item.job_id, first)
    _check_conflict(item, digest)
    if first != item.name:
        _discard(context, item)
        item.name, item.staged_by_other = first, True
        item.blocks = dependencies.staged(context, f"{context.staging}/{first}")  # as the first submitter found it
        item.home = context.path(places.WAITING) if item.blocks else item.home


def _check_there(context: FilesContext, job_id: str, first: str) -> None:
    """Check that the job of a registered id still exists. Without this a repeated submission was acknowledged though
    there was no job. [test_id_of_a_job_removed_by_hand_is_not_acknowledged]"""
    if not fs.exists(f"{context.staging}/{first}") and views.locate(context, job_id) is None:
        raise IdConflict(
            f"{job_id} was submitted before, but its folder does not exist any more: removed by hand? "
            f"`rm {context.path('jobs/.ids', job_id)}` lets the id be used again; or submit this under another id"
        )


def _check_conflict(item: StagedJob, digest: str | None) -> None:
    if digest != item.digest:
        raise _conflict(item.job_id)


def _conflict(job_id: str) -> IdConflict:
    return IdConflict(
        f"{job_id} was submitted before with other content; see `farro show {job_id}`. "
        "The first job is untouched; submit this one under another id"
    )


def _taken(job_id: str) -> IdConflict:
    return IdConflict(f"{job_id} is the id of a job that exists already; choose another, or leave --id out")


def _publish(context: FilesContext, item: StagedJob) -> bool:
    """Rename the job into its queue: the commit point of an enqueue. False: another submitter of the same chosen id was
    faster."""
    source, path = f"{context.staging}/{item.name}", f"{item.home}/{item.job_id}"
    try:
        moved = fs.retried(lambda: try_move(source, path), source, context.clock.sleep)
    except FileExistsError as error:
        raise Damaged(
            f"{path} exists already, but its id was never registered; look at it with `farro show`"
        ) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise cross_device_error(context, item.job_id, item.home.removeprefix(f"{context.root}/")) from error
        raise
    if moved is MoveResult.NO_DESTINATION:
        raise StorageTrouble(f"{item.home} is missing; `farro init` makes it again")
    if moved is MoveResult.GONE and item.digest is None:
        raise StorageTrouble(f"{item.job_id} vanished from staging before it was queued; submit it again")
    return moved is MoveResult.DONE


def _discard(context: FilesContext, item: StagedJob) -> None:
    """Remove our own staged copy, unless the registry points at it."""
    with contextlib.suppress(OSError, Damaged):
        if item.digest is None or chosen_ids.registered(context, item.job_id)[1] != item.name:
            trees.remove_tree(f"{context.staging}/{item.name}")
