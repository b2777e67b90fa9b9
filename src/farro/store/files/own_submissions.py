"""What this process has itself just put into a queue that it also claims from: a claim need not be told of it by the
change feed, nor read it again.

Who puts jobs here is submit, who takes them out is claim. Nothing here looks at the disk, and nothing is decided by it:
after the move a claim compares which job.json it holds with the one that was written, and what is another is put back
and read. [test_a_job_that_was_away_meanwhile_is_read_anew]

The prompt is kept as text: whoever claims has objects of its own, as if it had read the file. And only for a moment: a
job that has stood in its queue is read, for somebody may have put its prompt right by hand.
[test_a_prompt_that_was_changed_in_the_queue_is_read]
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farro.jobs.envelope import Lifecycle

MOST = 1024  # jobs
SMALL = 8192  # bytes of a prompt
MOMENT_S = 0.5  # … that a job is known here

Identity = tuple[int, int, int]  # of job.json: inode, size, time


class Entered(NamedTuple):
    seen: Identity
    life: Lifecycle  # nothing in it can be changed
    prompt: bytes  # prompt.json


class Fresh:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()  # guards the rest
        self._roles: dict[str, deque[str]] = {}  # with the ids that came and nobody asked for yet
        self._jobs: dict[str, tuple[Entered, float]] = {}  # and when it was put here

    def wanted(self, role: str) -> None:
        """Jobs of that role are claimed in this process."""
        with self._lock:
            self._roles.setdefault(role, deque(maxlen=MOST))  # of more the feed tells

    def put(self, role: str, job_id: str, entered: Entered) -> None:
        """Before it is published: nobody claims what was not put here."""
        if role not in self._roles or len(entered.prompt) > SMALL or entered.life.routing is not None:
            return
        now_s = self._now_s()
        with self._lock:
            while len(self._jobs) >= MOST:
                del self._jobs[next(iter(self._jobs))]
            self._jobs[job_id] = entered, now_s

    def came(self, role: str, job_id: str) -> None:
        """It is published. Whoever is woken by the push finds it: the feed's own thread may be about to tell of it, and
        is not waited for. [test_a_job_of_this_process_is_there_before_the_feed_tells]"""
        if (news := self._roles.get(role)) is not None:
            news.append(job_id)

    def news(self, role: str) -> Iterator[str]:
        """Those that came since this was asked, each once."""
        news = self._roles.get(role)
        while news:
            with contextlib.suppress(IndexError):  # another thread had it
                yield news.popleft()

    def entered_ns(self, job_id: str) -> int | None:
        found = self._jobs.get(job_id)
        return None if found is None else found[0].seen[2]

    def take(self, job_id: str) -> Entered | None:
        """Once: whoever comes back to that job reads it."""
        if not self._jobs:
            return None
        with self._lock:
            found = self._jobs.pop(job_id, None)
        return found[0] if found is not None and self._now_s() - found[1] < MOMENT_S else None
