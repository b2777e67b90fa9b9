"""Read and judge a queued job before it is claimed, as far as that is possible without owning it. Writes nothing.

A batch is first read job by job (`read`) and then judged job by job (`judge`): alternating system calls and Python code
for each job would evict each other from the processor's caches, and the same code would take twice as long.
"""

from __future__ import annotations

import os
from datetime import datetime
from enum import Enum, auto
from typing import Any

from farro.errors import Damaged, UnknownSchema
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.plans.metadata import required_tags
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.own_submissions import FileIdentity


class ClaimVerdict(Enum):
    """Whether an agent may claim a queued job."""

    TAKE = auto()  # now, or after the due time that is returned with it
    NEVER = auto()


class QueuedJob:
    """The content of a queued job as it was before the move."""

    __slots__ = (
        "_lifecycle_text",
        "_prompt_missing",
        "_prompt_text",
        "cached",
        "entered_ns",
        "identity",
        "lifecycle",
        "name",
        "prompt",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.lifecycle: Lifecycle | None = None  # None: unreadable; the agent that claims the job rebuilds it
        self.prompt: dict[str, Any] | None = None
        self.identity: FileIdentity | None = None  # of the job.json that was read
        self.entered_ns = 0
        self.cached = False  # not read from disk but from the submissions of this process
        self._lifecycle_text = self._prompt_text = b""  # as read, until it is judged
        self._prompt_missing = False

    @property
    def started_before(self) -> bool:
        """Return whether the job may have been attempted before: then it is not claimed in a batch with others."""
        return self.lifecycle is None or self.lifecycle.attempt > 0


def read(context: FilesContext, path: str, name: str) -> QueuedJob | None:
    """Read the job's files. None: it has left the queue."""
    job = QueuedJob(name)
    if (known := context.own_submissions.take(name)) is not None:
        job.cached, job.identity, job.entered_ns = True, known.identity, known.identity[2]
        job.lifecycle, job._prompt_text = known.lifecycle, known.prompt
        return job
    try:
        job._lifecycle_text, status = fs.read_with_status(f"{path}/job.json", folders.JOB_LIMIT)
        job.identity = _identity(status)
        job.entered_ns = status.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        if not fs.exists(path):
            return None
    except OSError:
        if (found := _identity_or_none(path)) is not None:
            job.identity, job.entered_ns = found, found[2]
    try:
        job._prompt_text = folders.read_prompt_text(context, path)
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: a plain file was put into the queue
        # A different job.json means that the job was away meanwhile and came back; the feed reports its entry again.
        # Without this check every slot of this worker skipped the job for good.
        if not fs.exists(path) or _identity_or_none(path) != job.identity:
            return None
        job._prompt_missing = True
    except (Damaged, OSError):
        pass
    return job


def judge(context: FilesContext, owner: LocalAgent, job: QueuedJob) -> tuple[ClaimVerdict, datetime | None]:
    """Decide whether the agent may claim the job, and not before when. An unreadable job is claimed, so that its new
    owner repairs it."""
    if job._lifecycle_text:
        try:
            job.lifecycle = folders.parse_lifecycle(job._lifecycle_text)
        except UnknownSchema as error:
            context.log_foreign(job.name, str(error))
            return ClaimVerdict.NEVER, None
        except Damaged:
            pass
    if job._prompt_missing and job.lifecycle is None:
        context.log("critical", "folder without prompt.json in a queue, skipped", {"job_id": job.name})
        return ClaimVerdict.NEVER, None
    if not job._prompt_text:  # the prompt was lost: its new owner quarantines the job. Skipped, it would wait for ever
        return ClaimVerdict.TAKE, None
    try:
        job.prompt = folders.parse_prompt(job._prompt_text)
    except Damaged:
        return ClaimVerdict.TAKE, None
    if not required_tags(job.prompt) <= owner.agent.tags:
        return ClaimVerdict.NEVER, None
    if job.lifecycle is None:
        return ClaimVerdict.TAKE, None
    if job.lifecycle.status not in (Status.QUEUED, Status.IN_PROGRESS):
        status = job.lifecycle.status
        context.log("critical", "status contradicts the queue, job skipped", {"job_id": job.name, "status": status})
        return ClaimVerdict.NEVER, None
    if job.lifecycle.not_before is not None:
        due = datetime.fromisoformat(job.lifecycle.not_before)
        if due > context.due_now():
            return ClaimVerdict.TAKE, due
    return ClaimVerdict.TAKE, None


def file_identity(path: str) -> FileIdentity:
    """Identify the present job.json. It is replaced by rename and never edited, so the same inode, size and time mean
    the same text. The inode alone is not enough: the filesystem reuses its number two replacements later."""
    return _identity(fs.lstat(f"{path}/job.json"))


def _identity(status: os.stat_result) -> FileIdentity:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _identity_or_none(path: str) -> FileIdentity | None:
    try:
        return file_identity(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
