"""What a worker sees of a queued job before it claims it: validated as far as it can be without owning it.

What is done about it lives in claim. Nothing here writes.

First every job of a row is read (`seen`), then each is judged (`judged`): system calls and Python code that take turns
job by job push each other out of the processor's caches, and the same code takes twice as long.
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
from farro.plans.tags import required_tags
from farro.store.files import folder as folders
from farro.store.files.context import Ground, Held

Identity = tuple[int, int, int]  # of a job.json: inode, size, time


class Verdict(Enum):
    TAKE = auto()  # now, or after `until`
    NEVER = auto()
    GONE = auto()


class Look:
    """What was seen before the move."""

    __slots__ = ("_life", "_no_prompt", "_prompt", "entered_ns", "fresh", "lifecycle", "name", "prompt", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lifecycle: Lifecycle | None = None  # None: it cannot be read, and its owner rebuilds it
        self.prompt: dict[str, Any] | None = None
        self.seen: Identity | None = None  # which job.json it was
        self.entered_ns = 0
        self.fresh = False  # not read: it is what this process wrote
        self._life = self._prompt = b""  # as they were read, until they are judged
        self._no_prompt = False

    @property
    def begun(self) -> bool:
        """Whether it may have been tried before: then nobody has it in a row with others."""
        return self.lifecycle is None or self.lifecycle.attempt > 0


def seen(ground: Ground, path: str, name: str) -> Look | None:
    """Read it. None: it is not there any more."""
    look = Look(name)
    if (known := ground.fresh.take(name)) is not None:
        look.fresh, look.seen, look.entered_ns = True, known.seen, known.seen[2]
        look.lifecycle, look._prompt = known.life, known.prompt
        return look
    try:
        look._life, status = fs.read_with_status(f"{path}/job.json", folders.JOB_LIMIT)
        look.seen = _identity(status)
        look.entered_ns = status.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        if not fs.exists(path):
            return None
    except OSError:
        if (which := _which_or_none(path)) is not None:
            look.seen, look.entered_ns = which, which[2]
    try:
        look._prompt = folders.read_prompt_text(ground, path)
    except (FileNotFoundError, NotADirectoryError):  # or a plain file that somebody put into the queue
        # With another job.json it was away meanwhile, and came back: its entry is told again. Without this look it was
        # skipped for good, by every slot of this worker.
        if not fs.exists(path) or _which_or_none(path) != look.seen:
            return None
        look._no_prompt = True
    except (Damaged, OSError):
        pass
    return look


def judged(ground: Ground, held: Held, look: Look) -> tuple[Verdict, datetime | None]:
    """Whether this agent may have it, and not before when. What cannot be read is taken: its owner repairs it."""
    if look._life:
        try:
            look.lifecycle = folders.parse_lifecycle(look._life)
        except UnknownSchema as error:
            ground.tell_foreign(look.name, str(error))
            return Verdict.NEVER, None
        except Damaged:
            pass
    if look._no_prompt and look.lifecycle is None:
        ground.log("critical", "folder without prompt.json in a queue, skipped", {"job_id": look.name})
        return Verdict.NEVER, None
    if not look._prompt:  # a job that lost it: its owner quarantines it. Skipped, it would wait for ever unsaid
        return Verdict.TAKE, None
    try:
        look.prompt = folders.parse_prompt(look._prompt)
    except Damaged:
        return Verdict.TAKE, None
    if not required_tags(look.prompt) <= held.agent.tags:
        return Verdict.NEVER, None
    if look.lifecycle is None:
        return Verdict.TAKE, None
    if look.lifecycle.status not in (Status.QUEUED, Status.IN_PROGRESS):
        status = look.lifecycle.status
        ground.log("critical", "status contradicts the queue, job skipped", {"job_id": look.name, "status": status})
        return Verdict.NEVER, None
    if look.lifecycle.not_before is not None:
        due = datetime.fromisoformat(look.lifecycle.not_before)
        if due > ground.due_now():
            return Verdict.TAKE, due
    return Verdict.TAKE, None


def which(path: str) -> Identity:
    """The job.json that is there now. Replaced by rename, never edited: an unchanged inode, size and time are an
    unchanged text. The inode alone is not: two replacements later the filesystem gives the first number out again."""
    return _identity(fs.lstat(f"{path}/job.json"))


def _identity(status: os.stat_result) -> Identity:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _which_or_none(path: str) -> Identity | None:
    try:
        return which(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
