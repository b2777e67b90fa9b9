"""A cache of the jobs that this process has just enqueued into a queue that it also claims from.

With it a claim neither waits for the change feed nor reads the job's files again. The cache decides nothing: after the
move a claim compares the identity of job.json with the cached one, and a job that differs is put back and read.
[test_a_job_that_left_and_came_back_is_read_again]

The prompt is cached as text, so that each claim parses its own objects, as if it had read the file. A job is cached
only for a moment: one that has waited in its queue is read, because a person may have corrected its prompt by hand.
[test_a_prompt_edited_in_the_queue_is_read]
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farro.jobs.envelope import Lifecycle

MAX_JOBS = 1024
MAX_PROMPT_BYTES = 8192
KEEP_S = 0.5

FileIdentity = tuple[int, int, int]  # of a job.json: inode, size, modification time


class SubmittedJob(NamedTuple):
    identity: FileIdentity
    lifecycle: Lifecycle
    prompt: bytes  # prompt.json


class OwnSubmissions:
    """Bounded cache of submitted jobs, by role and job id. Safe for threads."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()  # guards the rest
        self._roles: dict[str, deque[str]] = {}  # role → published ids that `new` has not returned yet
        self._jobs: dict[str, tuple[SubmittedJob, float]] = {}  # job id → job, time of `add`

    def register_role(self, role: str) -> None:
        """Start caching for a role whose jobs are claimed in this process."""
        with self._lock:
            self._roles.setdefault(role, deque(maxlen=MAX_JOBS))  # the change feed reports the jobs beyond that

    def add(self, role: str, job_id: str, submitted: SubmittedJob) -> None:
        """Cache a job before it is published, so that the first claim finds it here."""
        if (
            role not in self._roles
            or len(submitted.prompt) > MAX_PROMPT_BYTES
            or submitted.lifecycle.routing is not None
        ):
            return
        now_s = self._now_s()
        with self._lock:
            while len(self._jobs) >= MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]
            self._jobs[job_id] = submitted, now_s

    def published(self, role: str, job_id: str) -> None:
        """Announce a published job. A worker that is woken by the enqueue finds it without waiting for the feed's own
        thread. [test_a_job_of_this_process_is_found_before_the_feed_reports_it]"""
        if (ids := self._roles.get(role)) is not None:
            ids.append(job_id)

    def new(self, role: str) -> Iterator[str]:
        """Yield the ids that were published since the last call, each once."""
        ids = self._roles.get(role)
        while ids:
            with contextlib.suppress(IndexError):  # another thread took the last one
                yield ids.popleft()

    def entered_ns(self, job_id: str) -> int | None:
        found = self._jobs.get(job_id)
        return None if found is None else found[0].identity[2]

    def take(self, job_id: str) -> SubmittedJob | None:
        """Remove and return the cached job: the next claim of that job reads its files."""
        if not self._jobs:
            return None
        with self._lock:
            found = self._jobs.pop(job_id, None)
        return found[0] if found is not None and self._now_s() - found[1] < KEEP_S else None
