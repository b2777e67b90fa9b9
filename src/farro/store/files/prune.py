"""Remove finished jobs: one rename out of completed/ into jobs/.trash, then delete the folder's content there.

- A pruner is not an agent: it edits no job, and joining needs free space, while pruning must work on a full disk.
  [test_on_a_full_disk_finished_jobs_can_be_removed]
- One pruner at a time holds jobs/.trash/.lock for its whole life. Therefore a job that is final stays so between the
  check and the rename: nothing else moves a final job, and its id cannot be reused before this pruner has freed it.
  [test_a_second_prune_is_refused_while_one_runs]
- The rename is the commit point: a crash before it leaves the job in completed/, after it debris in jobs/.trash, which
  no query and no scan enters and the next prune removes. [test_kill_at_every_call_of_prune]
- A chosen id (jobs/.ids) is freed when the folder is empty and before the folder itself is removed: after a crash in
  between the next prune finishes, because the folder's name contains the id. That name is the one that the id points
  to, so that an id which was submitted again meanwhile is never freed. [test_a_pruned_id_may_be_used_again]
- The job's name (names) is freed at the same time, while the folder's name still identifies the job.
  [test_a_pruned_job_frees_its_name]
- So is the link from the job to the cost of its calls (ledger); the calls themselves stay with their days.
  [test_pruning_a_job_keeps_the_costs_of_its_days]
- The rename is on the disk before the id is freed: otherwise a power cut could keep the job and lose its id.
- Deleting is slow on purpose: on a filesystem that deletes many files, every create waits (ext4: ten to forty times as
  long). So all jobs first leave completed/, and then their files are deleted in small batches with pauses, longer ones
  while any queue has work.
- A job with a record in a journal is left alone: after a power cut that record would restore it. Records are freed
  within seconds. [test_a_job_in_a_journal_is_not_pruned]
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from farro.errors import Damaged, FarroError, Refused, StorageTrouble
from farro.host import fs, leases, trees
from farro.jobs import ids
from farro.store.files import chosen_ids, journal_file, names, views
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext
from farro.store.files.errors import explained
from farro.store.files.move import MoveResult, try_move
from farro.store.port import JobAt, Removed

TRASH = "jobs/.trash"
TOGETHER = 200  # renames between two pauses
BATCH, PAUSE_S = 20, 0.02  # folders that are removed between two pauses
BUSY_BATCH, BUSY_PAUSE_S = 5, 0.1  # the same while jobs are queued or running
_LOCK = ".lock"
T = TypeVar("T")


class Trash:
    """The operations of one pruner. Only `opened` makes it."""

    def __init__(self, context: FilesContext, lease: leases.Lease) -> None:
        self._context = context
        self._lease = lease
        self._journalled: frozenset[str] = frozenset()
        self._looked_ns = 0
        self._named: dict[str, str] | None = None  # job id → its name; a link made later belongs to another job
        self._touched: set[str] = set()  # folders to sync before an id is freed

    @explained
    def take(self, job_id: str, place: str) -> bool:
        """Move a final job out of `place`. False: it is gone or not final, and was left alone."""
        source = self._context.path(place, job_id)
        if not self.removable(job_id, source):
            return False
        name = self._name(job_id)
        path = self._context.path(TRASH, name)
        if try_move(source, path) is not MoveResult.DONE:
            return False
        self._touched |= {self._context.path(place), self._context.path(TRASH)}
        if not self._final(path):  # checked again after the move (R1); only a manual edit can cause this
            try_move(path, source)
            return False
        return True

    def removable(self, job_id: str, path: str) -> bool:
        """Return whether the job is final, and no record of a journal would restore it."""
        return self._final(path) and not self._in_a_journal(job_id, path)

    def _final(self, path: str) -> bool:
        try:
            return folders.read_lifecycle(path).terminal
        except (FarroError, FileNotFoundError, NotADirectoryError):
            return False  # an unreadable job is shown and kept, never removed on a guess
        except OSError as error:
            log_unreadable(self._context, path.rsplit("/", 1)[1], error)
            return False

    def _in_a_journal(self, job_id: str, path: str) -> bool:
        """Return whether a journal has a record of the job. Reads the journals again for a job that was written since
        the last read. No record is written for a final job, so a read after its last write is enough."""
        if fs.lstat(f"{path}/job.json").st_mtime_ns >= self._looked_ns:
            # The kernel's file time, because it is compared with one: its ticks lag behind any other clock.
            self._lease.beat()
            self._looked_ns = fs.lstat(self._context.path(TRASH, _LOCK)).st_mtime_ns
            journal_file.sweep(self._context.root, self._context.boot_id)
            self._journalled = journal_file.mentioned(self._context.root)
        return job_id in self._journalled

    def _name(self, job_id: str) -> str:
        """Return the staging name that a chosen id points to; a new name for any other job."""
        with contextlib.suppress(Damaged):
            _, name = chosen_ids.registered(self._context, job_id)
            if name and not fs.exists(self._context.path(TRASH, name)):
                return name
        return f"{job_id}.{self._context.random_bits(64):016x}"

    @explained
    def names(self) -> list[str]:
        """Return the folders to remove, including those that earlier pruners left."""
        return sorted(fs.subdirectories(self._context.path(TRASH)))

    @explained
    def remove(self, name: str) -> int:
        """Remove one folder and free its id. Returns its size in bytes. StorageTrouble: some file in it cannot be
        removed; other folders can."""
        if self._touched:
            self._context.sync(sorted(self._touched))
            self._touched.clear()
        path = self._context.path(TRASH, name)
        removed_bytes = trees.size(path)
        try:
            _empty(path)
        except FileNotFoundError:
            return 0  # removed by hand meanwhile
        except PermissionError as error:
            raise StorageTrouble(
                f"{error.filename or path}: {error.strerror}. A step that ran as another user left it: "
                f"`sudo chown -R $(id -u) {path}`, and the next `farro prune` removes it"
            ) from error
        job_id = name.split(".", 1)[0]
        if ids.is_job_id(job_id):
            self._free_name(job_id)
            forget_calls(self._context.root, job_id)
            with contextlib.suppress(Damaged, FileNotFoundError):
                if chosen_ids.registered(self._context, job_id)[1] == name:
                    fs.unlink(f"{self._context.registry}/{job_id}")
        with contextlib.suppress(FileNotFoundError):
            fs.rmdir(path)
        return removed_bytes

    def _free_name(self, job_id: str) -> None:
        if self._named is None:
            self._named = names.pointing(self._context)
        if job_id in self._named:
            names.free(self._context, self._named[job_id], job_id)


def forget_calls(root: str, job_id: str) -> None:
    """Remove the link from a job to the cost of its calls."""
    from farro.store.files.ledger import forget_job  # imported here: decimals take as long to load as a queue to list

    forget_job(root, job_id)


def _empty(path: str) -> None:
    """Remove everything in the folder. The folder itself stays, because its name identifies the job."""
    for name in fs.listdir(path):
        inside = f"{path}/{name}"
        try:
            trees.remove_tree(inside)
        except NotADirectoryError:
            fs.unlink(inside)


@contextlib.contextmanager
def opened(context: FilesContext) -> Iterator[Trash]:
    """Open the trash for one pruner at a time; create it if needed. Refused: another pruner is running."""
    with contextlib.suppress(FileExistsError):
        fs.mkdir(context.path(TRASH))
    path = context.path(TRASH, _LOCK)
    with contextlib.suppress(FileExistsError):
        fs.create_private(path, b"")
    lease = leases.take(path)
    if lease is None:
        raise Refused("another `farro prune` or `farro archive` is running in this root; wait for it, or stop it")
    try:
        yield Trash(context, lease)
    finally:
        lease.drop()


def remove(
    context: FilesContext, jobs: Sequence[JobAt], *, leftovers: bool, progress: Callable[[int, int], None]
) -> Removed:
    """Remove the final ones of these jobs, and with `leftovers` what earlier pruners left (Store.remove)."""
    with opened(context) as trash:
        before = set(trash.names())
        taken = 0
        for count, job in enumerate(jobs, start=1):
            taken += trash.take(job.job_id, job.place)
            if count % TOGETHER == 0:
                context.clock.sleep(PAUSE_S)
        freed = 0
        left: dict[str, str] = {}
        found = [name for name in trash.names() if leftovers or name not in before]
        for done, name in enumerate(gently(context, found), start=1):
            try:
                freed += trash.remove(name)
            except StorageTrouble as error:  # another user's files: without this, one such folder blocked all after it
                left[name] = str(error)
            progress(done, len(found))
    debris = before if leftovers else set()
    again = len(debris & left.keys())
    return Removed(jobs=taken - (len(left) - again), bytes=freed, debris=len(debris) - again, left=tuple(left.values()))


def log_unreadable(context: FilesContext, job_id: str, error: OSError) -> None:
    """Log a job that the disk cannot read: it is left alone, and the run goes on. Raise any other error."""
    if error.errno != errno.EIO:
        raise error
    context.log("error", "job left alone: the disk cannot read it", {"job_id": job_id, "why": str(error)})


def gently(context: FilesContext, found: Sequence[T]) -> Iterator[T]:
    """Yield the items in batches with pauses between them, longer ones while any queue has work."""
    rest = list(reversed(found))
    while rest:
        batch, pause_s = (BUSY_BATCH, BUSY_PAUSE_S) if views.load(context, None) else (BATCH, PAUSE_S)
        for _ in range(min(batch, len(rest))):
            yield rest.pop()
        if rest:
            context.clock.sleep(pause_s)
