"""A job before it is queued: the content of its folder, and that folder in jobs/.staging."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from farro.host import fs, leases, links
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.lazy_dataclass import dataclass
from farro.plans.metadata import head_start_ns
from farro.store.files import chosen_ids
from farro.store.files.context import FilesContext
from farro.store.files.journal_file import Record
from farro.store.port import Submission
from farro.store.submissions import first_lifecycle


@dataclass(kw_only=True, slots=True)
class StagedJob:
    """A job that is being submitted, and the files that its folder will have."""

    job_id: str
    role: str
    home: str  # the folder that it is published into: its queue, or jobs/waiting
    name: str  # of its folder in jobs/.staging
    blocks: list[str]  # ids of the jobs that it waits for
    digest: str | None  # of the content, for a chosen id
    lifecycle: Lifecycle
    life: bytes  # the lifecycle as job.json
    files: dict[str, bytes]  # the other files, by name in the job's folder
    links: Mapping[str, str]  # files that are linked: name in the job's folder → source
    staged_by_other: bool = False  # an earlier submitter of the same id staged it
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


def draft_job(
    context: FilesContext, submission: Submission, prompt: bytes, blocks: list[str], into: str | None
) -> StagedJob:
    """Decide what the job's folder will contain."""
    with context.lock:
        job_id = submission.job_id or context.mint.mint()
    lifecycle = first_lifecycle(submission, job_id, context.clock.now(), waits=bool(blocks))
    files = {"prompt.json": prompt}
    if submission.narrative is not None:
        files["prompt.md"] = submission.narrative.encode()
    files.update((f"payload/{file_name}", data) for file_name, data in submission.payload.items())
    linked: dict[str, str] = {}
    if (carried := submission.carried) is not None:
        files["carried/steps.jsonl"] = carried.records
        linked.update((f"carried/{file_name}", source) for file_name, source in carried.files.items())
    return StagedJob(
        job_id=job_id,
        role=submission.role,
        home=context.path(places.WAITING) if blocks else into or context.incoming(submission.role),
        name=f"{job_id}.{context.random_bits(64):016x}",
        blocks=blocks,
        digest=chosen_ids.digest(submission, prompt) if submission.job_id is not None else None,
        lifecycle=lifecycle,
        life=lifecycle.to_json(),
        files=files,
        links=linked,
    )


def write_staged(context: FilesContext, item: StagedJob, prompt: Mapping[str, Any]) -> None:
    """Write the job's folder in staging."""
    folder = f"{context.staging}/{item.name}"
    fs.mkdir(folder)
    if item.digest is not None and leases.FOLDERS:
        # Lock the staged folder while its id is registered, so that clean-up cannot remove it under a slow submitter.
        item.lease = leases.take_new(folder)
        if item.lease is None:
            # Clean-up has locked it (after a jump of the clock it looks old). Without this check the id was registered
            # for a folder that was then removed: every submitter got "queued", and there was no job.
            raise BlockingIOError(errno.EAGAIN, "taken by clean-up; staged again under another name", folder)
    try:
        _fill(context, item, folder, prompt)
    except BaseException:
        item.drop()
        raise


def _fill(context: FilesContext, item: StagedJob, folder: str, prompt: Mapping[str, Any]) -> None:
    for name in inner_folders(item):
        fs.mkdir(f"{folder}/{name}")
    for name, data in item.files.items():
        fs.create(f"{folder}/{name}", data)
    for name, source in item.links.items():
        links.place(source, f"{folder}/{name}")
    fs.create(f"{folder}/job.json", item.life)
    keep_order(context, folder, prompt, minted=item.digest is None)


def inner_folders(item: StagedJob) -> list[str]:
    """Return the folders inside the job's folder, parents first."""
    if len(item.files) == 1:
        return []  # only prompt.json, as nearly always
    found: dict[str, None] = {}
    for name in (*item.files, *item.links):
        parts = name.split("/")[:-1]
        found.update(("/".join(parts[: depth + 1]), None) for depth in range(len(parts)))
    return list(found)


def keep_order(context: FilesContext, folder: str, prompt: Mapping[str, Any] | None, *, minted: bool = False) -> None:
    """Set the time of entry that orders the queue: the modification time of job.json, which every entry writes and no
    lock touches.

    A priority is a head start of decades on that time, so a queue needs no other data to keep the order.

    When the clock jumps back, this process's next entry must not overtake its last one (RELIABILITY 18). Nor may it
    within one tick of the filesystem's clock (4 ms on many kernels), where names decide: new minted ids sort correctly
    by themselves, other entries get a distinct time. [test_order_is_the_time_of_entry,
    test_a_higher_priority_is_claimed_first]
    """
    path = f"{folder}/job.json"
    written_ns = fs.lstat(path).st_mtime_ns
    with context.lock:
        head_start = head_start_ns(prompt)
        unchanged = minted and written_ns >= context.last_entry_ns and head_start == 0
        context.last_entry_ns = entered_ns = written_ns if unchanged else max(written_ns, context.last_entry_ns + 1)
    if not unchanged:
        entered_ns -= head_start
        fs.set_mtime_ns(path, entered_ns)
