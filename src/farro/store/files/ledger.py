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

Calls are not kept in the job's folder: that one moves, and `farro prune` removes it, while a day's spending stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from farro.errors import BudgetExceeded, Damaged
from farro.host import fs, leases, trees
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store import budgets as limits
from farro.store.files import ledger_calls
from farro.store.files.errors import explained
from farro.store.files.ledger_calls import CALL, DAY, SETTLED, DayCalls, DaySums
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge, Usage

FOLDER = "jobs/.ledger"
_JOBS = "jobs"
_dice = random.SystemRandom()
_DAYS_KEPT = 4  # in memory: today, and the earlier days of a long job


class FilesLedger:
    """The Ledger port over a root's folder. Safe from many threads and processes."""

    def __init__(
        self,
        root: str,
        clock: Clock,
        *,
        durable: bool = True,
        random_bits: Callable[[int], int] = _dice.getrandbits,
    ) -> None:
        self._root = root
        self._folder = f"{root}/{FOLDER}"
        self._clock = clock
        self._durable = durable
        self._random_bits = random_bits
        self._days: dict[str, DayCalls] = {}
        self._placed: set[tuple[str, str]] = set()  # jobs and days whose folders and links are on the disk
        self._sums: tuple[str, DaySums] | None = None  # of the day that was requested last
        self._lock = threading.Lock()

    @explained
    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        limits.check_price(charge, budgets)
        at = timestamp(self._clock.now())
        day, name = at[:10], ledger_calls.name_of(at, charge.job_id, charge.role, self._random_bits(48))
        call = CallRecord(id=f"{day}/{name}", at=at, charge=charge, end=None, usage=None, cost_usd=None)
        path = f"{self._folder}/{day}/{name}{CALL}"
        try:
            with self._budget_lock() if budgets != Budgets() else contextlib.nullcontext():
                self._check(charge, budgets, day)
                self._make_places(charge.job_id, day)
                self._put(path, ledger_calls.encoded(call))
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

    def _check(self, charge: Charge, budgets: Budgets, day: str) -> None:
        """Check the narrowest budget first: the one that a person can most easily change."""
        if budgets.job_usd is not None:
            budget = limits.of_job(budgets.job_usd, charge.job_id)
            limits.check(charge, budget, limits.spent(self.of_job(charge.job_id)))
        if budgets.role_usd is None and budgets.day_usd is None:
            return
        today = self._today(day).by_role()
        nothing = limits.Spent()
        if budgets.role_usd is not None:
            budget = limits.of_role(budgets.role_usd, charge.role, day)
            limits.check(charge, budget, today.get(charge.role, nothing))
        if budgets.day_usd is not None:
            limits.check(charge, limits.of_day(budgets.day_usd, day), sum(today.values(), nothing))

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
        day, name = ledger_calls.place_of(call_id)
        stem = f"{self._folder}/{day}/{name}"
        if not fs.exists(f"{stem}{SETTLED}"):
            call = self._reserved(stem, call_id)
            call = dataclasses.replace(call, end=end, usage=usage, cost_usd=cost_usd)
            with contextlib.suppress(FileExistsError):  # another process was faster: its settlement counts
                self._put(f"{stem}{SETTLED}", ledger_calls.encoded(call))
        self._sync([f"{self._folder}/{day}"])

    def _reserved(self, stem: str, call_id: str) -> CallRecord:
        path = f"{stem}{CALL}"
        try:
            return ledger_calls.decoded(ledger_calls.read(path))
        except FileNotFoundError:
            raise Damaged(f"no call {call_id} in the ledger; {path} was removed") from None
        except Damaged as error:
            raise Damaged(f"{path}: {error}; it counts as unknown") from error

    @explained
    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        try:
            days = fs.listdir(f"{self._folder}/{_JOBS}/{ids.check_job_id(job_id)}")
        except FileNotFoundError:
            return []
        found = sorted(day for day in days if DAY.fullmatch(day))
        return [call for day in found for call in self._day(day).calls(job_id)]

    @explained
    def of_day(self, day: str) -> Sequence[CallRecord]:
        return self._day(day).calls() if DAY.fullmatch(day) else []

    @explained
    def days(self) -> Sequence[str]:
        return sorted(name for name in fs.subdirectories(self._folder) if DAY.fullmatch(name))

    def _day(self, day: str) -> DayCalls:
        with self._lock:
            if day not in self._days:
                if len(self._days) >= _DAYS_KEPT:
                    del self._days[next(iter(self._days))]
                self._days[day] = DayCalls(f"{self._folder}/{day}", day)
            return self._days[day]

    def _today(self, day: str) -> DaySums:
        with self._lock:
            known = self._sums
        if known is None or known[0] != day:
            known = (day, DaySums(self._day(day)))
            with self._lock:
                self._sums = known
        return known[1]

    def _put(self, path: str, data: bytes) -> None:
        """Create a file that is complete when it appears. FileExistsError: another file has the name."""
        try:
            fs.retried(lambda: self._put_once(path, data), path, self._clock.sleep)
        except FileExistsError:  # ours, if an earlier try took effect though it raised
            if ledger_calls.read(path) != data:
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
