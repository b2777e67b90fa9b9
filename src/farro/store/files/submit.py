"""Enqueueing: staged whole and synced, then one rename into the queue. Chosen ids go through the registry.

Validation of what a prompt says lives in plans and roles; here its names and sizes are checked.

- A crash before the rename leaves staging debris and no job; after it, the job is there.
  [test_kill_at_every_call_of_enqueue]
- With durability `power` minted ids are in the journal before they are published; else every staged file, its folder
  and incoming/ are synced before the acknowledgement. [test_power_cut_after_enqueue] A single one is staged while its
  record is on its way to the disk; one whose staging fails is taken back from the journal.
  docs/decisions/one-journal-record-replaces-the-syncs.md.
  [test_an_enqueue_whose_folder_cannot_be_made_is_taken_back]
- Chosen ids: stage and sync → exclusive link `jobs/.ids/<id>` → every submitter of that id tries staging → incoming,
  ENOENT = already done. The link is durable before the rename: without that a power cut may keep the job and lose the
  link, and a repeated submit would make a second job. [test_same_chosen_id_twice_is_one_job]
- With a journal the link comes first, for it tells whose content stands, and each of its submitters has a record of
  that content before it publishes: what is published can be made again, with its link. A link whose submitter never got
  to its record is taken away by the replay, unless what it points at is whole. Nobody publishes what another staged
  before it is durable by its own doing. Decided in docs/decisions/one-journal-record-replaces-the-syncs.md.
- A job that runs after others is published among the waiting, once the index names it, durably (waiting).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from farro import documents
from farro.errors import Damaged, IdConflict, InputError, StorageTrouble
from farro.host import fs, trees
from farro.jobs import ids, places
from farro.log.audit import AuditEvent, tell_all
from farro.store.files import chosen_ids, dependencies, views
from farro.store.files.context import Ground
from farro.store.files.draft import Staged, drafted, inner_folders, lay_down
from farro.store.files.journal_entry import Entry
from farro.store.files.journal_records import Record
from farro.store.files.move import Moved, crossing, try_move
from farro.store.files.own_submissions import Entered
from farro.store.port import Submission

_MINTED = re.compile(r"job-[0-9]{8}-[0-9]{6}-[0-9a-f]{23}")


def enqueue_many(
    ground: Ground,
    submissions: Sequence[Submission],
    *,
    by: str | None = None,
    into: str | None = None,
    named: Callable[[str], None] | None = None,
    gone_is_done: bool = False,
) -> list[str]:
    """All are staged, then synced together, then published, then their queues are synced together. `by` is who asked,
    for the audit log; `into`: another folder than their queue; `named` is told each id before it is published.
    `gone_is_done`: a job that was submitted before, and is nowhere any more, was delivered all the same."""
    prompts = [_check(ground, submission) for submission in submissions]
    blocks = dependencies.blocking(ground, submissions)
    first = submissions[0] if len(submissions) == 1 and into is None and named is None and not blocks[0] else None
    if first is not None and first.job_id is None and first.carried is None:
        item = _enqueued_ahead(ground, first, prompts[0], by)
        if item is not None:
            return [item.job_id]
    staged: list[Staged] = []
    try:
        for submission, prompt, blocked in zip(submissions, prompts, blocks, strict=True):
            staged.append(_stage(ground, submission, prompt, blocked, into))
        chosen = [item for item in staged if item.digest is not None]
        special = any(item.blocks for item in staged) or any(submission.carried for submission in submissions)
        plain = into is None and named is None and not special
        # All are looked at before one is registered: a refused batch must not leave a registered job in staging, which
        # clean-up would publish an hour after its submitter was told that it was refused.
        wanted: dict[str, str | None] = {}
        for item in chosen if len(staged) > 1 else ():  # of one, registering it says the same
            _check_conflict(item, wanted.setdefault(item.job_id, item.digest))
            digest, name = chosen_ids.registered(ground, item.job_id)
            if digest and not gone_is_done:
                _check_there(ground, item.job_id, name)
            _check_conflict(item, digest or item.digest)
        linked = plain and bool(chosen) and ground.journals()
        if plain and (linked or not chosen):
            for item in chosen:
                _register(ground, item, gone_is_done)
            waits = any(item.blocks for item in staged)  # as an earlier submitter of the id found it
            if not waits and (entry := ground.journalled([item.record() for item in staged])) is not None:
                try:
                    ours = _publish_all(ground, staged)
                finally:
                    entry.finished()
                _tell(ground, ours, by)
                return [item.job_id for item in staged]
        if not linked:
            if ground.policy.durable:
                fs.sync_all([path for item in staged for path in _durable(ground, item)])
            for item in chosen:
                _register(ground, item, gone_is_done)
        for item in staged:
            if linked or item.anothers:  # who sees a link may publish at any moment
                chosen_ids.make_durable(ground, item.name)
        if chosen:
            ground.sync([ground.registry])
        if chosen or not plain:
            ground.sync([path for item in staged for path in dependencies.register(ground, item.job_id, item.blocks)])
        if named is not None:
            for item in staged:
                named(item.job_id)
        ours = [item for item in staged if _publish(ground, item)]
        ground.sync(dict.fromkeys(item.home for item in staged))
        _tell(ground, ours, by)
        return [item.job_id for item in staged]
    except BaseException as error:
        if isinstance(error, Exception):  # not a kill: leave no debris behind for a plain refusal
            for item in staged:
                _discard(ground, item)
        raise
    finally:
        for item in staged:
            item.drop()


def _enqueued_ahead(ground: Ground, submission: Submission, prompt: bytes, by: str | None) -> Staged | None:
    """One job whose record is on its way to the disk while its folder is made in staging, and whatever else can be done
    before it is known to be there: published when both are. None: nothing is left of it, and the usual way does it, or
    says why not.
    [test_a_begun_record_that_fails_is_acknowledged_to_nobody, test_where_no_write_can_be_begun_it_is_made]"""
    drafts: list[Staged] = []

    def draft() -> list[Record]:
        drafts.append(drafted(ground, submission, prompt, [], None))
        return [drafts[0].record()]

    if (begun := ground.begun(draft)) is None:
        return None
    (item,) = drafts
    entry: Entry | None = None
    try:
        try:
            lay_down(ground, item, submission.prompt)
        finally:
            entry = begun.end()
        if entry is None:  # no room: as without a journal, but under the same id, for its record may be on the disk
            fs.sync_all(_durable(ground, item))
        _publish(ground, item)
        if entry is None:
            ground.sync([item.home])
        _tell(ground, [item], by)
        return item
    except Exception as error:
        if entry is not None:
            _take_back(ground, [item])
        _discard(ground, item)
        if entry is None or item.seen is not None or not isinstance(error, OSError):
            raise
    finally:
        if entry is not None:
            entry.finished()
    return None


def _publish_all(ground: Ground, items: Sequence[Staged]) -> list[Staged]:
    """Those that are in the journal; answers which of them were ours to publish."""
    ours: list[Staged] = []
    for done, item in enumerate(items):
        try:
            if _publish(ground, item):
                ours.append(item)
        except Exception:
            # A chosen id stays registered, and whoever submits it again, or clean-up, brings it to its queue.
            _take_back(ground, [left for left in items[done:] if left.digest is None])
            raise
    return ours


def _take_back(ground: Ground, items: Sequence[Staged]) -> None:
    """Their submitter is told that they were refused. Without this a power cut would bring them back, beside the jobs
    that it submitted instead. [test_a_refused_enqueue_does_not_come_back_with_the_power]"""
    if not items:
        return
    entry = ground.journalled([replace(item.record(), kind="void", life=b"", files={}) for item in items])
    if entry is not None:
        entry.finished()


def _tell(ground: Ground, items: Sequence[Staged], by: str | None) -> None:
    """As `telling.codes` has it of a lifecycle, of which a staged job has the text."""
    told: list[AuditEvent] = [
        {"event": "enqueued", "actor": by, "job_id": item.job_id, "role": item.role, "status": "queued", "attempt": 0}
        for item in items
    ]
    tell_all(ground.audit, told)


def _durable(ground: Ground, item: Staged) -> list[str]:
    """What must be on the disk before it is published. A first job.json that is lost with the power is rebuilt, except
    for what the prompt does not say."""
    folder = f"{ground.staging}/{item.name}"
    found = [f"{folder}/{name}" for name in (*item.files, *item.links, "job.json", *inner_folders(item))]
    found.append(folder)
    if item.digest is not None:
        found.append(ground.staging)  # the registry will point at this name: it must be there after a power cut
    return found


def _check(ground: Ground, submission: Submission) -> bytes:
    """Refuse it before anything is written; answers the text of its prompt.json."""
    ground.check_role(submission.role)
    if submission.job_id is not None:
        ids.check_job_id(submission.job_id)
    for name in submission.payload:
        ids.check_payload_name(name)
    try:
        prompt = documents.canonical(submission.prompt) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the prompt cannot be written as JSON: {error}") from error
    if len(prompt) > ground.policy.max_prompt_bytes:
        raise InputError(f"the prompt is {len(prompt)} bytes; at most {ground.policy.max_prompt_bytes} are allowed")
    return prompt


def _stage(ground: Ground, submission: Submission, prompt: bytes, blocks: list[str], into: str | None) -> Staged:
    """Everything but the rename. Each try has a name of its own; what a failed one left is swept later."""
    once = partial(_stage_once, ground, submission, prompt, blocks, into)
    return fs.retried(once, ground.staging, ground.clock.sleep)


def _stage_once(ground: Ground, submission: Submission, prompt: bytes, blocks: list[str], into: str | None) -> Staged:
    item = drafted(ground, submission, prompt, blocks, into)
    lay_down(ground, item, submission.prompt)
    return item


def _register(ground: Ground, item: Staged, gone_is_done: bool) -> None:
    """Make the id ours, or find that it was submitted before: then the first submitter's staging is the job."""
    if (
        _MINTED.fullmatch(item.job_id)
        and not fs.exists(f"{ground.registry}/{item.job_id}")
        and views.find(ground, item.job_id)
    ):
        raise IdConflict(f"{item.job_id} is the id of a job that exists already; choose another, or leave --id out")
    try:
        fs.symlink(f"{item.digest}.{item.name}", f"{ground.registry}/{item.job_id}")
        return
    except FileExistsError:
        pass
    digest, first = chosen_ids.registered(ground, item.job_id)
    if not gone_is_done:
        _check_there(ground, item.job_id, first)
    _check_conflict(item, digest)
    if first != item.name:
        _discard(ground, item)
        item.name, item.anothers = first, True
        item.blocks = dependencies.staged(ground, f"{ground.staging}/{first}")  # as its own submitter found it then
        item.home = ground.path(places.WAITING) if item.blocks else item.home


def _check_there(ground: Ground, job_id: str, first: str) -> None:
    """The job that an id was given to is in staging, or in a place of jobs. Without this whoever submitted it again was
    told "queued", and there was no job. [test_an_id_whose_job_was_removed_by_hand_is_not_acknowledged]"""
    if not fs.exists(f"{ground.staging}/{first}") and views.locate(ground, job_id) is None:
        raise IdConflict(
            f"{job_id} was submitted before, and its folder is nowhere any more: removed by hand? "
            f"`rm {ground.path('jobs/.ids', job_id)}` lets the id be used again; or submit this under another id"
        )


def _check_conflict(item: Staged, digest: str | None) -> None:
    if digest != item.digest:
        raise IdConflict(
            f"{item.job_id} was submitted before with other content; see `farro show {item.job_id}`. "
            "The first job is untouched; submit this one under another id"
        )


def _publish(ground: Ground, item: Staged) -> bool:
    """The commit point of an enqueue. False: another submitter of the same chosen id was faster."""
    source, path = f"{ground.staging}/{item.name}", f"{item.home}/{item.job_id}"
    if item.seen is not None and not (item.anothers or item.blocks) and len(item.files) == 1:
        ground.fresh.put(item.role, item.job_id, Entered(item.seen, item.lifecycle, item.files["prompt.json"]))
    try:
        moved = fs.retried(lambda: try_move(source, path), source, ground.clock.sleep)
    except FileExistsError as error:
        raise Damaged(
            f"{path} exists already, but its id was never registered; look at it with `farro show`"
        ) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise crossing(ground, item.job_id, item.home.removeprefix(f"{ground.root}/")) from error
        raise
    if moved is Moved.NO_DESTINATION:
        raise StorageTrouble(f"{item.home} is missing; `farro init` makes it again")
    if moved is Moved.GONE and item.digest is None:
        raise StorageTrouble(f"{item.job_id} vanished from staging before it was queued; submit it again")
    if moved is Moved.DONE and not item.blocks:
        ground.fresh.came(item.role, item.job_id)
    return moved is Moved.DONE


def _discard(ground: Ground, item: Staged) -> None:
    """Remove our own staged copy, unless the registry points at it."""
    with contextlib.suppress(OSError, Damaged):
        if item.digest is None or chosen_ids.registered(ground, item.job_id)[1] != item.name:
            trees.remove_tree(f"{ground.staging}/{item.name}")
