"""The ledger in files: one file per call, written before the call, and a second one when it is settled.

    jobs/.ledger/2026-11-16/<hhmmssmmm>.<job>.<role>.<random>.json            its highest possible cost
    jobs/.ledger/2026-11-16/<hhmmssmmm>.<job>.<role>.<random>.settled.json    its actual cost
    jobs/.ledger/jobs/<job>/2026-11-16 -> ../../2026-11-16                    the days on which that job made calls
    jobs/.ledger/.lock                                                       held while a budget is checked

What a crash leaves (tests/crash/test_ledger.py):

- Before the call's rename: nothing that counts; a temporary file, or a day's link without a call. `reserve` never
  returned, so no call was made. [test_kill_at_every_call_of_reserve]
- After it: the call counts with its highest possible cost, though it was perhaps never made.
- Between the answer and its settling: the same. The second file is made by a rename that never replaces, so that only
  the first process that settles succeeds, even if it is fenced or repeats the call.
  [test_kill_at_every_call_of_settle, test_settling_again_changes_nothing]
- The lock is an flock and dies with its holder. A file's bytes are synced before its rename, so that a name never
  shows a torn file; the day's folder is synced after it, when the lock is released.
  [test_a_power_cut_keeps_every_call_that_was_reserved_and_tears_none]

A call is one line of JSON. Its second file repeats it with the result; neither is ever changed, so each is read once.

Calls are not kept in the job's folder: that one moves, and `farro prune` removes it, while a day's spending stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal

from farro.errors import BudgetExceeded, Damaged
from farro.host import fs, leases, trees
from farro.host.clock import Clock
from farro.jobs import ids
from farro.store import call_days
from farro.store import ledger as limits
from farro.store.call_days import CALL, DAY, LIMIT, SETTLED, DayLedger, decoded, encoded, place_of
from farro.store.files.errors import explained
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge, Usage

FOLDER = "jobs/.ledger"
_JOBS = "jobs"


class FilesLedger(DayLedger):
    """The Ledger port over a root's folder. Safe from many threads and processes."""

    def __init__(
        self,
        root: str,
        clock: Clock,
        *,
        durable: bool = True,
        random_bits: Callable[[int], int] = call_days.random_bits,
    ) -> None:
        self._root = root
        self._folder = f"{root}/{FOLDER}"
        self._clock = clock
        self._durable = durable
        self._placed: set[tuple[str, str]] = set()  # jobs and days whose folders and links are on the disk
        self.prepare(random_bits)

    @explained
    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        limits.check_price(charge, budgets)
        day, name, call = self.new_call(charge, self._clock.now())
        path = f"{self._folder}/{day}/{name}{CALL}"
        try:
            with self._budget_lock() if budgets != Budgets() else contextlib.nullcontext():
                self.check(charge, budgets, day)
                self._make_places(charge.job_id, day)
                self._put(path, encoded(call))
            self._sync([f"{self._folder}/{day}"])
        except BudgetExceeded:
            raise
        except BaseException:  # the caller will make no call, so none may count
            with contextlib.suppress(OSError):
                fs.unlink(path)
            raise
        return call.id

    @contextlib.contextmanager
    def _budget_lock(self) -> Iterator[None]:
        """Hold the lock of the budgets, so that no other process checks one between our check and our record."""
        _make(self._folder)
        with leases.exclusively(f"{self._folder}/.lock", listening=True):
            yield

    def _make_places(self, job_id: str, day: str) -> None:
        """Make the day's folder and the job's link to it, durably, before the call is recorded: the call must be found
        by its job too, or the job's budget would miss it. Each process syncs them once even if they exist: the process
        that made them may have died before its sync."""
        link = f"{self._folder}/{_JOBS}/{job_id}/{day}"
        if (job_id, day) in self._placed and fs.exists(link) and fs.exists(f"{self._folder}/{day}"):
            return
        jobs = f"{self._folder}/{_JOBS}"
        for folder in (self._folder, f"{self._folder}/{day}", jobs, f"{jobs}/{job_id}"):
            _make(folder)
        with contextlib.suppress(FileExistsError):
            fs.symlink(f"../../{day}", link)
        self._sync([f"{self._root}/jobs", self._folder, jobs, f"{jobs}/{job_id}"])
        self._placed.add((job_id, day))

    @explained
    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        day, name = place_of(call_id)
        stem = f"{self._folder}/{day}/{name}"
        if not fs.exists(f"{stem}{SETTLED}"):
            call = self._reserved(stem, call_id)
            call = dataclasses.replace(call, end=end, usage=usage, cost_usd=cost_usd)
            with contextlib.suppress(FileExistsError):  # another process was faster: its settlement counts
                self._put(f"{stem}{SETTLED}", encoded(call))
        self._sync([f"{self._folder}/{day}"])

    def _reserved(self, stem: str, call_id: str) -> CallRecord:
        path = f"{stem}{CALL}"
        try:
            return decoded(read(path))
        except FileNotFoundError:
            raise Damaged(f"no call {call_id} in the ledger; {path} was removed") from None
        except Damaged as error:
            raise Damaged(f"{path}: {error}; it counts as unknown") from error

    def days_of_job(self, job_id: str) -> Iterable[str]:
        try:
            return fs.listdir(f"{self._folder}/{_JOBS}/{job_id}")
        except FileNotFoundError:
            return []

    def records(self, day: str) -> _DayFolder:
        return _DayFolder(f"{self._folder}/{day}")

    @explained
    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        return super().of_job(job_id)

    @explained
    def of_day(self, day: str) -> Sequence[CallRecord]:
        return super().of_day(day)

    @explained
    def days(self) -> Sequence[str]:
        return sorted(name for name in fs.subdirectories(self._folder) if DAY.fullmatch(name))

    def _put(self, path: str, data: bytes) -> None:
        """Create a file that is complete when it appears. FileExistsError: another file has the name."""
        try:
            fs.retried(lambda: self._put_once(path, data), path, self._clock.sleep)
        except FileExistsError:  # ours, if an earlier try took effect though it raised
            if read(path) != data:
                raise

    def _put_once(self, path: str, data: bytes) -> None:
        name = fs.temporary(path.rpartition("/")[0])
        try:
            fs.create(name, data)
            self._sync([name])
            fs.move(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.unlink(name)
            raise

    def _sync(self, paths: Sequence[str]) -> None:
        if self._durable:
            fs.sync_all(paths)


def _make(folder: str) -> None:
    if not fs.exists(folder):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(folder)


def forget_job(root: str, job_id: str) -> None:
    """Remove a pruned job's links to its days; the calls stay with their days."""
    if fs.exists(links := f"{root}/{FOLDER}/{_JOBS}/{ids.check_job_id(job_id)}"):  # most jobs made no calls
        trees.remove_tree(links)


class _DayFolder:
    """The records of one day, as files (port: DayRecords)."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        try:
            return fs.listdir(self._folder)
        except FileNotFoundError:
            return []

    def texts(self, names: Sequence[str]) -> list[bytes | None]:
        return [self._text(name) for name in names]

    def _text(self, name: str) -> bytes | None:
        try:
            return read(f"{self._folder}/{name}")
        except (Damaged, FileNotFoundError):
            return None


def read(path: str) -> bytes:
    try:
        data = fs.read_bytes(path, LIMIT)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in fs.TRANSIENT:
            raise
        raise Damaged(f"{path}: {error.strerror}") from error
    if len(data) > LIMIT:
        raise Damaged(f"{path} has more than {LIMIT} bytes")
    return data
