"""Removing finished jobs: one rename out of completed/ into jobs/.trash, then the folder is taken apart there.

Which jobs, and how slowly, is decided in operations.prune.

- A pruner is no agent: it edits no job, and joining needs room, of which a full disk has none; to remove jobs must be
  possible there. [test_on_a_full_disk_finished_jobs_can_be_removed]
- One pruner at a time holds jobs/.trash/.lock for its whole life. That makes "final" stay true between the look and the
  rename: nothing else moves a final job, and its id cannot come back before this pruner has let go of it.
  [test_a_second_prune_is_refused_while_one_runs]
- The rename is the commit point: a crash before it leaves the job in completed/, after it debris in jobs/.trash, which
  no look and no scan enters, and which the next prune removes. [test_kill_at_every_call_of_prune]
- A chosen id (jobs/.ids) goes when the folder is empty and before the folder itself goes: a crash in between is
  finished by the next prune, which knows the id from the folder's name. That name is the one that the id points to, so
  that an id which was submitted anew meanwhile is never taken. [test_a_pruned_id_may_be_used_again]
- So does its name (names), while the folder's name still tells whose it was. [test_a_pruned_job_frees_its_name]
- So does the way from the job to what its calls cost (ledger); the days keep the calls themselves.
  [test_a_pruned_job_takes_nothing_from_its_days]
- The rename is on the disk before the id goes: else a power cut could keep the job and lose its id.
- A job of which a journal still speaks is left alone: after a power cut that record would bring it back. It is gone
  from there within seconds. [test_a_job_in_a_journal_is_not_pruned]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farro.errors import Damaged, FarroError, Refused, StorageTrouble
from farro.host import fs, leases, trees
from farro.jobs import ids
from farro.store.files import chosen_ids, journal_cleanup, journal_records, names
from farro.store.files import folder as folders
from farro.store.files.context import Ground
from farro.store.files.errors import explained
from farro.store.files.move import Moved, try_move

TRASH = "jobs/.trash"
_LOCK = ".lock"


class Trash:
    """What one pruner may do. Made by `opened` alone."""

    def __init__(self, ground: Ground, lease: leases.Lease) -> None:
        self._ground = ground
        self._lease = lease
        self._journalled: frozenset[str] = frozenset()
        self._looked_ns = 0
        self._named: dict[str, str] | None = None  # job id → its name; a link that is missed means no job
        self._touched: set[str] = set()  # folders whose change must be on the disk before an id goes

    @explained
    def take(self, job_id: str, place: str) -> bool:
        """Move a final job out of `place`. False: it is not there any more, or not final: it was left alone."""
        source = self._ground.path(place, job_id)
        if not self._final(source) or self._in_a_journal(job_id, source):
            return False
        name = self._name(job_id)
        path = self._ground.path(TRASH, name)
        if try_move(source, path) is not Moved.DONE:
            return False
        self._touched |= {self._ground.path(place), self._ground.path(TRASH)}
        if not self._final(path):  # looked at again after the move (R1); nobody but a person's hand can make it so
            try_move(path, source)
            return False
        return True

    def _final(self, path: str) -> bool:
        try:
            return folders.read_lifecycle(path).terminal
        except (FarroError, FileNotFoundError, NotADirectoryError):
            return False  # what cannot be read is shown and kept, never removed on a guess

    def _in_a_journal(self, job_id: str, path: str) -> bool:
        """Looked up again for what was written since the last look: its record may be newer than that. Nothing is
        recorded of a job that is final, so a look after that is enough."""
        if fs.lstat(f"{path}/job.json").st_mtime_ns >= self._looked_ns:
            # The kernel's own time, as in what is compared with it: its ticks lag behind any other clock.
            self._lease.beat()
            self._looked_ns = fs.lstat(self._ground.path(TRASH, _LOCK)).st_mtime_ns
            journal_cleanup.sweep(self._ground.root, self._ground.boot_id)
            self._journalled = journal_records.mentioned(self._ground.root)
        return job_id in self._journalled

    def _name(self, job_id: str) -> str:
        """What a chosen id points to; a name of its own for any other."""
        with contextlib.suppress(Damaged):
            _, name = chosen_ids.registered(self._ground, job_id)
            if name and not fs.exists(self._ground.path(TRASH, name)):
                return name
        return f"{job_id}.{self._ground.random_bits(64):016x}"

    @explained
    def names(self) -> list[str]:
        """What is to be taken apart, also what earlier pruners left."""
        return sorted(fs.subdirectories(self._ground.path(TRASH)))

    @explained
    def remove(self, name: str) -> int:
        """Take one folder apart and let go of its id. Answers the bytes that it held. StorageTrouble: something in it
        cannot be removed; the others can."""
        if self._touched:
            self._ground.sync(sorted(self._touched))
            self._touched.clear()
        path = self._ground.path(TRASH, name)
        held = size(path)
        try:
            _empty(path)
        except FileNotFoundError:
            return 0  # somebody's hand was faster
        except PermissionError as error:
            raise StorageTrouble(
                f"{error.filename or path}: {error.strerror}. A step that ran as another user left it: "
                f"`sudo chown -R $(id -u) {path}`, and the next `farro prune` removes it"
            ) from error
        job_id = name.split(".", 1)[0]
        if ids.is_job_id(job_id):
            self._free_name(job_id)
            _forget_calls(self._ground.root, job_id)
            with contextlib.suppress(Damaged, FileNotFoundError):
                if chosen_ids.registered(self._ground, job_id)[1] == name:
                    fs.unlink(f"{self._ground.registry}/{job_id}")
        with contextlib.suppress(FileNotFoundError):
            fs.rmdir(path)
        return held

    def _free_name(self, job_id: str) -> None:
        if self._named is None:
            self._named = names.pointing(self._ground)
        if job_id in self._named:
            names.free(self._ground, self._named[job_id], job_id)


def _forget_calls(root: str, job_id: str) -> None:
    from farro.store.files.ledger import forget_job  # here: decimals take as long to load as a queue to list

    forget_job(root, job_id)


def _empty(path: str) -> None:
    """Everything in the folder; the folder itself stays, and with its name the memory of whose it was."""
    for name in fs.listdir(path):
        inside = f"{path}/{name}"
        try:
            trees.remove_tree(inside)
        except NotADirectoryError:
            fs.unlink(inside)


def size(path: str) -> int:
    """Bytes of all files below; one that has several names counts once."""
    seen: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in trees.walk_files(path):
            with contextlib.suppress(FileNotFoundError):
                status = fs.lstat(name)
                seen[status.st_ino] = status.st_size
    return sum(seen.values())


@contextlib.contextmanager
def opened(ground: Ground) -> Iterator[Trash]:
    """The trash, for one pruner at a time; it is made when it is not there. Refused: another one is at work."""
    with contextlib.suppress(FileExistsError):
        fs.mkdir(ground.path(TRASH))
    path = ground.path(TRASH, _LOCK)
    with contextlib.suppress(FileExistsError):
        fs.create(path, b"")
    lease = leases.take(path)
    if lease is None:
        raise Refused("another `farro prune` is at work in this root; wait for it, or stop it")
    try:
        yield Trash(ground, lease)
    finally:
        lease.drop()
