"""A job before it is queued: what its folder will say, and that folder in staging.

When it is synced, registered and published lives in submit; what became of nobody's staging in staging.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from farro.host import fs, leases, links
from farro.jobs import places, transitions
from farro.jobs.envelope import Lifecycle
from farro.lazy_dataclass import dataclass
from farro.plans.priority import head_start_ns
from farro.store.files import chosen_ids
from farro.store.files.context import Ground
from farro.store.files.journal_records import Record
from farro.store.files.own_submissions import Identity
from farro.store.port import Submission


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


def drafted(ground: Ground, submission: Submission, prompt: bytes, blocks: list[str], into: str | None) -> Staged:
    """What its folder will say."""
    with ground.lock:
        job_id = submission.job_id or ground.mint.mint()
    routing = submission.prompt.get("routing")
    lifecycle = transitions.enqueued(
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
    return Staged(
        job_id=job_id,
        role=submission.role,
        home=ground.path(places.WAITING) if blocks else into or ground.incoming(submission.role),
        name=f"{job_id}.{ground.random_bits(64):016x}",
        blocks=blocks,
        digest=chosen_ids.digest(submission, prompt) if submission.job_id is not None else None,
        lifecycle=lifecycle,
        life=lifecycle.to_json(),
        files=files,
        links=linked,
    )


def lay_down(ground: Ground, item: Staged, prompt: Mapping[str, Any]) -> None:
    """Its folder in staging."""
    folder = f"{ground.staging}/{item.name}"
    fs.mkdir(folder)
    if item.digest is not None and leases.FOLDERS:
        # The staged folder is locked while its id is registered, so that clean-up cannot take it from a slow submitter.
        item.lease = leases.take_new(folder)
        if item.lease is None:
            # Clean-up has it already (a clock that jumped makes it look old). Without this we went on unlocked, and the
            # id was registered for a folder that was then removed: every submitter was told "queued", and there was no
            # job.
            raise BlockingIOError(errno.EAGAIN, "taken by clean-up; staged again under another name", folder)
    try:
        _fill(ground, item, folder, prompt)
    except BaseException:
        item.drop()
        raise


def _fill(ground: Ground, item: Staged, folder: str, prompt: Mapping[str, Any]) -> None:
    for name in inner_folders(item):
        fs.mkdir(f"{folder}/{name}")
    for name, data in item.files.items():
        fs.create(f"{folder}/{name}", data)
    for name, source in item.links.items():
        links.place(source, f"{folder}/{name}")
    fs.create(f"{folder}/job.json", item.life)
    item.seen = keep_order(ground, folder, prompt, minted=item.digest is None)


def inner_folders(item: Staged) -> list[str]:
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
