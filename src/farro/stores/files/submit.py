"""Enqueueing: staged whole and synced, then one rename into the queue. Chosen ids go through the registry.

Validation of what a prompt says lives in plans and roles; here its names and sizes are checked.

- A crash before the rename leaves staging debris and no job; after it, the job is there.
  [test_kill_at_every_call_of_enqueue]
- With durability `power` minted ids are in the journal before they are published; else every staged file, its folder
  and incoming/ are synced before the acknowledgement. [test_power_cut_after_enqueue]
- Chosen ids: stage and sync → exclusive link `jobs/.ids/<id>` → every submitter of that id tries staging → incoming,
  ENOENT = already done. The link is durable before the rename: without that a power cut may keep the job and lose the
  link, and a repeated submit would make a second job. [test_same_chosen_id_twice_is_one_job]
- With a journal the link comes first, for it tells whose content stands, and each of its submitters has a record of
  that content before it publishes: what is published can be made again, with its link. A link whose submitter never got
  to its record is taken away by the replay, unless what it points at is whole. Nobody publishes what another staged
  before it is durable by its own doing. Decided in docs/decisions/0047.
- A job that runs after others is published among the waiting, once the index names it, durably (waiting).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from farro import documents
from farro.errors import Damaged, IdConflict, InputError, StorageTrouble
from farro.kernel import ids, moves, places
from farro.kernel.envelope import Lifecycle
from farro.plans.priority import head_start_ns
from farro.ports.store import Submission
from farro.stores.files import registry, views, waiting
from farro.stores.files.fresh import Entered, Identity
from farro.stores.files.ground import Ground
from farro.stores.files.moving import Moved, crossing, try_move
from farro.stores.files.records import Record
from farro.system import fs, leases, links, trees

_MINTED = re.compile(r"job-[0-9]{8}-[0-9]{6}-[0-9a-f]{23}")


@dataclass(kw_only=True, slots=True)
class Staged:
    job_id: str
    role: str
    home: str  # the folder that it is published into: its queue, or among the waiting
    name: str  # in jobs/.staging
    blocks: list[str]  # the jobs that it waits for
    digest: str | None  # of the content, for a chosen id
    lifecycle: Lifecycle
    life: bytes  # … as job.json
    files: dict[str, bytes]  # the others, by name in the job's folder
    links: Mapping[str, str]  # … and those that are linked from elsewhere
    anothers: bool = False  # an earlier submitter of its id staged it
    seen: Identity | None = None  # which job.json it is
    lease: leases.Lease | None = None  # keeps clean-up away while a chosen id is being registered

    def record(self) -> Record:
        return Record(
            kind="enqueue",
            job_id=self.job_id,
            role=self.role,
            life=self.life,
            files=self.files,
            staged=self.name,
            digest=self.digest,
        )

    def drop(self) -> None:
        if self.lease is not None:
            self.lease.drop()
            self.lease = None


def enqueue_many(
    ground: Ground,
    submissions: Sequence[Submission],
    *,
    by: str | None = None,
    into: str | None = None,
    named: Callable[[str], None] | None = None,
) -> list[str]:
    """All are staged, then synced together, then published, then their queues are synced together. `by` is who asked,
    for the audit log; `into`: another folder than their queue; `named` is told each id before it is published."""
    prompts = [_check(ground, submission) for submission in submissions]
    blocks = waiting.blocking(ground, submissions)
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
            _check_conflict(item, registry.registered(ground, item.job_id)[0] or item.digest)
        linked = plain and bool(chosen) and ground.journals()
        if plain and (linked or not chosen):
            for item in chosen:
                _register(ground, item)
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
                _register(ground, item)
        for item in staged:
            if linked or item.anothers:  # who sees a link may publish at any moment
                registry.make_durable(ground, item.name)
        if chosen:
            ground.sync([ground.registry])
        if chosen or not plain:
            ground.sync([path for item in staged for path in waiting.register(ground, item.job_id, item.blocks)])
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
    for item in items:
        ground.audit("enqueued", actor=by, job_id=item.job_id, role=item.role, status="queued", attempt=0)


def _durable(ground: Ground, item: Staged) -> list[str]:
    """What must be on the disk before it is published. A first job.json that is lost with the power is rebuilt, except
    for what the prompt does not say."""
    folder = f"{ground.staging}/{item.name}"
    found = [f"{folder}/{name}" for name in (*item.files, *item.links, "job.json", *_folders(item))]
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
    with ground.lock:
        job_id = submission.job_id or ground.mint.mint()
    chosen = submission.job_id is not None
    name = f"{job_id}.{ground.random_bits(64):016x}"
    folder = f"{ground.staging}/{name}"
    routing = submission.prompt.get("routing")
    lifecycle = moves.enqueued(
        job_id=job_id,
        role=submission.role,
        now=ground.clock.now(),
        not_before=submission.not_before,
        routing=routing if isinstance(routing, dict) else None,
        retry_of=submission.retry_of,
        waits=bool(blocks),
    )
    files = {"prompt.json": prompt}
    if submission.narrative is not None:
        files["prompt.md"] = submission.narrative.encode()
    files.update((f"payload/{file_name}", data) for file_name, data in submission.payload.items())
    linked: dict[str, str] = {}
    if (carried := submission.carried) is not None:
        files["carried/steps.jsonl"] = carried.records
        linked.update((f"carried/{file_name}", source) for file_name, source in carried.files.items())
    fs.mkdir(folder)
    item = Staged(
        job_id=job_id,
        role=submission.role,
        home=ground.path(places.WAITING) if blocks else into or ground.incoming(submission.role),
        name=name,
        blocks=blocks,
        digest=registry.digest(submission, prompt) if chosen else None,
        lifecycle=lifecycle,
        life=lifecycle.to_json(),
        files=files,
        links=linked,
        # The staged folder is locked while its id is registered, so that clean-up cannot take it from a slow submitter.
        lease=leases.take_new(folder) if chosen and leases.FOLDERS else None,
    )
    if chosen and leases.FOLDERS and item.lease is None:
        # Clean-up has it already (a clock that jumped makes it look old). Without this we went on unlocked, and the id
        # was registered for a folder that was then removed: every submitter was told "queued", and there was no job.
        raise BlockingIOError(errno.EAGAIN, "taken by clean-up; staged again under another name", folder)
    try:
        _fill(ground, item, folder, submission.prompt)
    except BaseException:
        item.drop()
        raise
    return item


def _fill(ground: Ground, item: Staged, folder: str, prompt: Mapping[str, Any]) -> None:
    for name in _folders(item):
        fs.mkdir(f"{folder}/{name}")
    for name, data in item.files.items():
        fs.create(f"{folder}/{name}", data)
    for name, source in item.links.items():
        links.place(source, f"{folder}/{name}")
    fs.create(f"{folder}/job.json", item.life)
    item.seen = keep_order(ground, folder, prompt, minted=item.digest is None)


def _folders(item: Staged) -> list[str]:
    """The folders inside the job's, each after the one that it lies in."""
    if len(item.files) == 1:
        return []  # prompt.json alone, as nearly always
    found: dict[str, None] = {}
    for name in (*item.files, *item.links):
        parts = name.split("/")[:-1]
        found.update(("/".join(parts[: depth + 1]), None) for depth in range(len(parts)))
    return list(found)


def keep_order(ground: Ground, folder: str, prompt: Mapping[str, Any] | None, *, minted: bool = False) -> Identity:
    """Order in a queue is the time of entry: the time of job.json, which every entry writes and no lock touches.
    Answers which job.json that is.

    A priority is a head start on that time, of decades: the queue needs to know nothing else about a job to keep it.

    When the clock jumped back, this process's next entry must not overtake its last one (RELIABILITY 18); nor within
    one tick of the filesystem's clock (4 ms on many kernels), where names decide: those of new minted ids are in order
    themselves, others get a time of their own. [test_order_is_the_time_of_entry,
    test_a_higher_priority_is_claimed_first]
    """
    path = f"{folder}/job.json"
    status = fs.lstat(path)
    written_ns = status.st_mtime_ns
    with ground.lock:
        head_start = head_start_ns(prompt)
        as_it_is = minted and written_ns >= ground.last_entry_ns and head_start == 0
        ground.last_entry_ns = entered_ns = written_ns if as_it_is else max(written_ns, ground.last_entry_ns + 1)
    if not as_it_is:
        entered_ns -= head_start
        fs.set_mtime_ns(path, entered_ns)
    return status.st_ino, status.st_size, entered_ns


def _register(ground: Ground, item: Staged) -> None:
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
    digest, first = registry.registered(ground, item.job_id)
    _check_conflict(item, digest)
    if first != item.name:
        _discard(ground, item)
        item.name, item.anothers = first, True
        item.blocks = waiting.staged(ground, f"{ground.staging}/{first}")  # as its own submitter found it then
        item.home = ground.path(places.WAITING) if item.blocks else item.home


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
    return moved is Moved.DONE


def _discard(ground: Ground, item: Staged) -> None:
    """Remove our own staged copy, unless the registry points at it."""
    with contextlib.suppress(OSError, Damaged):
        if item.digest is None or registry.registered(ground, item.job_id)[1] != item.name:
            trees.remove_tree(f"{ground.staging}/{item.name}")
