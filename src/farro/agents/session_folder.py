"""Keep the sessions of agents' programs: a private home for each role and step of a job, and what was said in it.

    jobs/.homes/<job>/<role>/<step>/home/           HOME of the program: its transcripts and settings
    jobs/.homes/<job>/<role>/<step>/tmp/            TMPDIR of one run, removed with it
    jobs/.homes/<job>/<role>/<step>/sessions.json   by provider: the session's id, and digests of what it was told
    jobs/.homes/<job>/<role>/<step>/permissions/    what an ACP agent asks a person now (farro.agents.permissions)

Both outlive an attempt, so that a repair, a review round and the attempt after a crash go on in the same session. The
program may write its home and nothing else here; it may leave links in it, which farro never follows when it writes.

What a crash leaves:

- Between the record and the start of the program: a session that does not exist. The program says so (`resumable`), and
  a new one begins. [test_a_session_that_never_began_is_begun]
- Between the start and the record, where the program chooses the id: a session that nobody resumes. The next attempt
  begins another; the processes of the first have ended by then. [test_a_session_without_a_known_id_is_not_resumed]
- A home whose job has ended: `sweep` removes it. [test_homes_of_ended_jobs_are_swept]
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from farro.execution.confined import TMP
from farro.host import fs, trees
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass
from farro.store.port import Store

HOMES = "jobs/.homes"
ACP = "acp"  # the program of a session that only an ACP client can continue
KEPT = timedelta(days=7)  # how long the sessions of a failed job are kept
_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRecord:
    """A session of one provider."""

    program: str
    cwd: str  # programs look for their sessions by the folder in which they work
    session_id: str | None  # None: the program has not named it yet
    told: tuple[str, ...] = ()  # digests of the messages that it has got, and of its answers
    given_up: bool = False  # it would bring the same trouble again: only a person may continue it


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionFolder:
    """The sessions of one role and step of a job. One process uses it at a time: the one that has claimed the job."""

    path: str

    @classmethod
    def of_step(cls, root: str, job_id: str, role: str, step: str) -> SessionFolder:
        return cls(path=f"{root}/{HOMES}/{job_id}/{role}/{step}")

    @property
    def home(self) -> str:
        return f"{self.path}/home"

    def make(self) -> None:
        """Make the home, for this user only, and remove the temporary files of a run that was killed."""
        with contextlib.suppress(FileNotFoundError):
            trees.remove_tree(f"{self.path}/{TMP}")
        missing = [self.home]
        while not fs.exists(os.path.dirname(missing[-1])):
            missing.append(os.path.dirname(missing[-1]))
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                fs.mkdir_private(folder)
        fs.sync_all(os.path.dirname(folder) for folder in missing)

    def read(self) -> dict[str, SessionRecord]:
        """Return the sessions by provider. What cannot be read is no session."""
        try:
            data = json.loads(fs.read_bytes(f"{self.path}/sessions.json", _LIMIT))
            return {name: _record(fields) for name, fields in data.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}

    def write(self, provider: str, record: SessionRecord) -> None:
        """Record a session durably."""
        records = {**self.read(), provider: record}
        data = {name: {key: getattr(one, key) for key in one.__slots__} for name, one in records.items()}
        fs.write_atomic(f"{self.path}/sessions.json", json.dumps(data).encode(), sync=True)
        fs.sync_all([self.path])

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files into the home, never through a link that the program left there. It does not run now."""
        for name, data in files.items():
            folder = self.home
            for part in name.split("/")[:-1]:
                folder = f"{folder}/{part}"
                with contextlib.suppress(FileNotFoundError):
                    if not stat.S_ISDIR(fs.lstat(folder).st_mode):
                        fs.unlink(folder)
                with contextlib.suppress(FileExistsError):
                    fs.mkdir_private(folder)
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{self.home}/{name}")
            fs.create_private(f"{self.home}/{name}", data)

    def clear(self) -> None:
        """Remove the home and its sessions, and make an empty one: it is not as farro needs it."""
        trees.remove_tree(self.path)
        self.make()


def _record(fields: Mapping[str, Any]) -> SessionRecord:
    return SessionRecord(
        program=fields["program"],
        cwd=fields["cwd"],
        session_id=fields["session_id"],
        told=tuple(fields["told"]),
        given_up=bool(fields["given_up"]),
    )


def folders_of_job(root: str, job_id: str) -> list[tuple[str, str, SessionFolder]]:
    """Return the role, the step and the sessions of each agent's step that a job has run with a program here."""
    home = f"{root}/{HOMES}/{job_id}"
    found = []
    for role in sorted(_names(home)):
        for step in sorted(_names(f"{home}/{role}")):
            found.append((role, step, SessionFolder.of_step(root, job_id, role, step)))
    return found


def forget(root: str, job_id: str) -> None:
    """Remove the homes of a job."""
    with contextlib.suppress(OSError):  # the next sweep removes what is left
        if fs.exists(f"{root}/{HOMES}/{job_id}"):
            trees.remove_tree(f"{root}/{HOMES}/{job_id}")


def sweep(store: Store, now: datetime) -> list[str]:
    """Remove the homes of jobs that are gone or over; return the jobs."""
    over = []
    for job_id in _names(f"{store.root}/{HOMES}"):
        view = store.find(job_id)
        if view is None or is_over(view.lifecycle, now):
            forget(store.root, job_id)
            over.append(job_id)
    return over


def is_over(life: Lifecycle, now: datetime) -> bool:
    """Tell whether nobody will continue the sessions of a job. A person may continue those of a failed one."""
    if not life.terminal or life.status is not Status.FAILED:
        return life.terminal
    ended = moment_or_none(life.finalized_at)
    return ended is None or now - ended > KEPT


def _names(folder: str) -> list[str]:
    try:
        return fs.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
