"""Keep the config and the policies of a job as they were at its claim.

A file that changes afterwards affects later claims only: a running job reads its own copy (SPEC-1 §11). The copies are
hard links to one file for each content, jobs/.snapshots/<hash>: a thousand jobs under one config keep one copy of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256

from farro.errors import BadDocument, InputError, NoTask
from farro.execution import task_snapshot
from farro.execution.size_limit import SNAPSHOT
from farro.host import fs, links
from farro.host.clock import Clock
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field, replace
from farro.roles import policy

TASK_FILES = task_snapshot.NAMES  # the first existing one is used
KEPT = "jobs/.snapshots"
_LIMIT = 4 << 20  # bytes of one file
_FEW = 64  # slots claim at most so many at once
_LOOK_S = 1.0  # how old a snapshot may be for jobs that only keep its hash: they come by the thousand

_Seen = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The files by name, and their version."""

    files: Mapping[str, bytes]
    unreadable: tuple[str, ...]  # existing files that cannot be read, with the reason
    sha256: str
    version: str  # <semver of the role's policy>+<12 digits of the hash>


@dataclass(kw_only=True)
class Snapshots:
    """The snapshots of one root; one object for all slots of a worker."""

    root: str
    clock: Clock
    durable: bool = True
    _known: dict[str, tuple[_Seen, float, Snapshot]] = field(default_factory=dict)  # by role; replaced whole
    _told: dict[tuple[str, str], Snapshot] = field(default_factory=dict)  # by role and version: the last few

    def version(self, role: str, *, exactly: bool) -> str:
        """Return what a claim of that role records."""
        snapshot = self.now(role, exactly=exactly)
        if (role, snapshot.version) not in self._told:
            if len(self._told) >= _FEW:
                self._told.pop(next(iter(self._told)), None)
            self._told[role, snapshot.version] = snapshot
        return snapshot.version

    def claimed(self, role: str, version: str | None) -> Snapshot:
        """Return the snapshot that a claim recorded, even if a file has changed since."""
        return self._told.get((role, version or "")) or self.now(role, exactly=True)

    def now(self, role: str, *, exactly: bool) -> Snapshot:
        """Return the files as they are; unless `exactly`, as they were at most a second ago."""
        now_s = self.clock.monotonic_s()
        known = self._known.get(role)
        if known is not None and not exactly and now_s - known[1] < _LOOK_S:
            return known[2]
        paths = self._paths(role)
        seen = tuple(_seen(path) for path in paths.values())
        snapshot = known[2] if known is not None and known[0] == seen else _taken(paths)
        self._known[role] = (seen, now_s, snapshot)
        return snapshot

    def with_roles(self, snapshot: Snapshot, roles: Iterable[str], job_role: str) -> Snapshot:
        """Add the policies of other roles that steps of the job call."""
        more = {policy.file_of(role, job_role): self._policy_path(role) for role in roles if role != job_role}
        found = _taken(more)
        return replace(
            snapshot,
            files={**snapshot.files, **found.files},
            unreadable=(*snapshot.unreadable, *found.unreadable),
        )

    def keep(self, snapshot: Snapshot, attempt_folder: str) -> None:
        """Put the snapshot into an attempt, for good, and at the top of its job, for people, replacing an earlier
        attempt's.

        InputError: one of the files cannot be read.
        """
        if snapshot.unreadable:
            raise InputError(f"no agent can work under a policy that cannot be read: {'; '.join(snapshot.unreadable)}")
        kept, job_folder = f"{self.root}/{KEPT}", attempt_folder.rsplit("/", 2)[0]
        homes = (f"{attempt_folder}/{SNAPSHOT}", f"{job_folder}/{SNAPSHOT}")
        for folder in (kept, *homes):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
        copies = []
        for name, text in snapshot.files.items():
            copy = self._kept(text)
            # Copy the file if it has the maximum number of hard links: else no further job could run an agent.
            # [test_a_snapshot_at_the_hard_link_limit_is_copied]
            copies += [f"{home}/{name}" for home in homes if links.stand(copy, f"{home}/{name}")]
        for name in fs.listdir(homes[1]):
            if name not in snapshot.files and name not in TASK_FILES:
                fs.unlink(f"{homes[1]}/{name}")
        if self.durable:
            fs.sync_all([*copies, kept, *homes, attempt_folder, job_folder])

    def keep_task(self, task_id: str, job_folder: str) -> None:
        """Copy the task of a job at its first claim; the copy is used for all of the job's hops.
        [test_a_task_that_changes_meanwhile_does_not_affect_the_job]"""
        kept, home = f"{self.root}/{KEPT}", f"{job_folder}/{SNAPSHOT}"
        if any(fs.exists(f"{home}/{name}") for name in TASK_FILES):
            return
        found = _taken({name: self._task(task_id, name) for name in TASK_FILES})
        if found.unreadable:
            raise NoTask(f"the task {task_id} cannot be read: {'; '.join(found.unreadable)}")
        name, text = next(iter(found.files.items()), (None, b""))
        if name is None:
            raise NoTask(f"inputs.task_id names {task_id}, and there is no tasks/{task_id}.json nor .md")
        for folder in (kept, home):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
        copied = links.stand(self._kept(text), f"{home}/{name}")
        if self.durable:
            fs.sync_all([*([f"{home}/{name}"] if copied else []), kept, home, job_folder])

    def _kept(self, text: bytes) -> str:
        """Return the path of the one copy of that content."""
        copy = f"{self.root}/{KEPT}/{sha256(text).hexdigest()}"
        if not fs.exists(copy):
            fs.write_atomic(copy, text, sync=self.durable)
        return copy

    def _task(self, task_id: str, name: str) -> str:
        return f"{self.root}/tasks/{ids.check_job_id(task_id)}.{name.rpartition('.')[2]}"

    def _paths(self, role: str) -> dict[str, str]:
        shared = ("agents-config.json", "agents-config.yaml", "policy.lock.json", "AGENTS.md")
        return {name: f"{self.root}/{name}" for name in shared} | {policy.OWN: self._policy_path(role)}

    def _policy_path(self, role: str) -> str:
        return f"{self.root}/agents/{role}/{policy.OWN}"


def _version(role_policy: bytes, digest: str) -> str:
    """Return the version. An unreadable header is reported when an agent works under it; it does not stop the claim."""
    try:
        found = policy.read(role_policy.decode("utf-8", "replace"), "AGENTS-ROLE.md")
    except BadDocument:
        found = policy.Policy(version=None, text="")
    return policy.policy_version(found, digest)


def _seen(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _taken(paths: Mapping[str, str]) -> Snapshot:
    """Read the files. Unreadable ones are reported when an agent would work under them: other jobs go on."""
    files: dict[str, bytes] = {}
    unreadable = []
    for name, path in paths.items():
        try:
            files[name] = fs.read_regular(path, _LIMIT)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable.append(f"{path}: {error.strerror}")
    parts = [name.encode() + b"\0" + sha256(text).digest() for name, text in files.items()]
    digest = sha256(b"".join([*parts, *(told.encode("utf-8", "surrogateescape") for told in unreadable)])).hexdigest()
    version = _version(files.get("AGENTS-ROLE.md", b""), digest)
    return Snapshot(files=files, unreadable=tuple(unreadable), sha256=digest, version=version)
