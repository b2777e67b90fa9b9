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
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, get_args

from farro.documents.json_text import encoder
from farro.errors import BudgetExceeded, Damaged
from farro.host import fs, leases, trees
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store import ledger as limits
from farro.store.files.errors import explained
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge, Spent, Usage, spent

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
        day, name = at[:10], name_of(at, charge.job_id, charge.role, self._random_bits(48))
        call = CallRecord(id=f"{day}/{name}", at=at, charge=charge, end=None, usage=None, cost_usd=None)
        path = f"{self._folder}/{day}/{name}{CALL}"
        try:
            with self._budget_lock() if budgets != Budgets() else contextlib.nullcontext():
                self._check(charge, budgets, day)
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

    def _check(self, charge: Charge, budgets: Budgets, day: str) -> None:
        """Check the narrowest budget first: the one that a person can most easily change."""
        if budgets.job_usd is not None:
            budget = limits.budget_of_job(budgets.job_usd, charge.job_id)
            limits.check_budget(charge, budget, limits.spent(self.of_job(charge.job_id)))
        if budgets.role_usd is None and budgets.day_usd is None:
            return
        today = self._today(day).by_role()
        nothing = limits.Spent()
        if budgets.role_usd is not None:
            budget = limits.budget_of_role(budgets.role_usd, charge.role, day)
            limits.check_budget(charge, budget, today.get(charge.role, nothing))
        if budgets.day_usd is not None:
            limits.check_budget(charge, limits.budget_of_day(budgets.day_usd, day), sum(today.values(), nothing))

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


# --- calls on the disk ---


SCHEMA = "1.0.0"
CALL = ".json"
SETTLED = ".settled.json"
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_NAME = re.compile(rf"(\d{{9}})\.({ids.JOB_ID.pattern})\.({ids.ROLE.pattern})\.([0-9a-f]{{12}})")
_LIMIT = 64 << 10
_ENDS = get_args(CallEnd)
_encode = encoder()


def name_of(at: str, job_id: str, role: str, random: int) -> str:
    """Return the file's name without its ending: it sorts by time and contains the job and the role."""
    time = at[11:19].replace(":", "") + at[20:23]
    return f"{time}.{ids.check_job_id(job_id)}.{ids.check_role(role)}.{random:012x}"


class CallName(NamedTuple):
    """The parts of a call's file name."""

    stem: str
    job_id: str
    role: str
    settled: bool


def parse_name(name: str) -> CallName | None:
    """Parse the name of a file; None if it is not a call's."""
    settled = name.endswith(SETTLED)
    found = _NAME.fullmatch(name.removesuffix(SETTLED if settled else CALL)) if name.endswith(CALL) else None
    return None if found is None else CallName(found[0], found[2], found[3], settled)


def place_of(call_id: str) -> tuple[str, str]:
    """Return the day and the name in a call's id. Damaged: it is not an id, and no path may be built from it."""
    day, _, name = call_id.partition("/")
    if DAY.fullmatch(day) is None or _NAME.fullmatch(name) is None:
        raise Damaged(f"{call_id!r} is not a call of the ledger")
    return day, name


def encoded(call: CallRecord) -> bytes:
    """Encode a call as one line of JSON. Money is text, so that no reader makes a binary fraction of it."""
    charge = call.charge
    data: dict[str, Any] = {
        "schema_version": SCHEMA,
        "id": call.id,
        "at": call.at,
        "job_id": charge.job_id,
        "attempt": charge.attempt,
        "role": charge.role,
        "step": charge.step,
        "number": charge.number,
        "provider": charge.provider,
        "model": charge.model,
        "request_sha256": charge.request_sha256,
        "most_usd": None if charge.most_usd is None else f"{charge.most_usd:f}",
    }
    if call.end is not None:
        data["end"] = call.end
        data["usage"] = None if call.usage is None else call.usage.to_json()
        data["cost_usd"] = None if call.cost_usd is None else f"{call.cost_usd:f}"
    return (_encode(data) + "\n").encode("utf-8", "backslashreplace")


def decoded(text: bytes) -> CallRecord:
    """Decode a call. Damaged: this version of farro did not write it."""
    try:
        data = json.loads(text)
        if data["schema_version"] != SCHEMA:
            raise Damaged(f"schema version {data['schema_version']!r}")
        end = data.get("end")
        if end is not None and end not in _ENDS:
            raise Damaged(f"end {end!r}")
        return CallRecord(
            id=str(data["id"]),
            at=str(data["at"]),
            charge=Charge(
                job_id=str(data["job_id"]),
                attempt=int(data["attempt"]),
                role=str(data["role"]),
                step=str(data["step"]),
                number=int(data["number"]),
                provider=str(data["provider"]),
                model=data["model"],
                request_sha256=str(data["request_sha256"]),
                most_usd=_amount(data["most_usd"]),
            ),
            end=end,
            usage=_usage(data.get("usage")),
            cost_usd=_amount(data.get("cost_usd")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidOperation) as error:
        raise Damaged(f"not a call of the ledger: {error}") from error


def _amount(data: Any) -> Decimal | None:
    if data is None:
        return None
    amount = Decimal(data)
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{data!r} is not an amount")
    return amount


def _usage(data: Mapping[str, int] | None) -> Usage | None:
    return None if data is None else Usage(**{name: int(count) for name, count in data.items()})


class DayCalls:
    """The calls of one day's folder. Caches what it has read, so that each call reads only new files."""

    def __init__(self, folder: str, day: str) -> None:
        self._folder = folder
        self._day = day
        self._known: dict[str, CallRecord] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        try:
            return fs.listdir(self._folder)
        except FileNotFoundError:
            return []

    def calls(self, job_id: str | None = None) -> list[CallRecord]:
        """Return all calls, or those of one job, in order."""
        part = "." if job_id is None else f".{job_id}."
        settled: dict[str, bool] = {}
        for name in [name for name in self.names() if part in name]:
            found = parse_name(name)
            if found is not None and job_id in (None, found.job_id):
                settled[found.stem] = settled.get(found.stem, False) or found.settled
        found_calls = [self.call(stem, settled=settled[stem]) for stem in sorted(settled)]
        return sorted(found_calls, key=_in_order)

    def call(self, stem: str, *, settled: bool) -> CallRecord:
        """Read a call. One that cannot be read counts as a call of unknown cost, never as none or as free."""
        with self._lock:
            known = self._known.get(stem)
            if known is not None and (known.end is not None or not settled):
                return known
            for ending in (SETTLED, CALL) if settled else (CALL,):
                with contextlib.suppress(Damaged, FileNotFoundError):
                    call = decoded(read(f"{self._folder}/{stem}{ending}"))
                    if call.id == f"{self._day}/{stem}":
                        self._known[stem] = call
                        return call
            return self._unreadable(stem)

    def _unreadable(self, stem: str) -> CallRecord:
        found = _NAME.fullmatch(stem)
        assert found is not None
        time, job_id, role, _ = found.groups()
        at = f"{self._day}T{time[:2]}:{time[2:4]}:{time[4:6]}.{time[6:]}Z"
        charge = Charge(
            job_id=job_id,
            attempt=0,
            role=role,
            step="",
            number=0,
            provider=UNREADABLE,
            model=None,
            request_sha256="",
            most_usd=None,
        )
        return CallRecord(id=f"{self._day}/{stem}", at=at, charge=charge, end=None, usage=None, cost_usd=None)


def _in_order(call: CallRecord) -> tuple[str, str, int, int]:
    """Sort key: two calls of one job may be made in one millisecond, and their names do not say which was first."""
    return call.at, call.charge.job_id, call.charge.attempt, call.charge.number


UNREADABLE = "unreadable"  # stands for the provider of a call whose file is damaged


def read(path: str) -> bytes:
    try:
        data = fs.read_bytes(path, _LIMIT)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in fs.TRANSIENT:
            raise
        raise Damaged(f"{path}: {error.strerror}") from error
    if len(data) > _LIMIT:
        raise Damaged(f"{path} has more than {_LIMIT} bytes")
    return data


class DaySums:
    """The sums of one day by role, updated incrementally because a budget is checked before every call.

    A settled call never changes, so it is added once. Open calls are few and summed up each time. Each query lists the
    day's folder and reads the new files.
    """

    def __init__(self, day: DayCalls) -> None:
        self._day = day
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._seen: set[str] = set()  # names of files
        self._added: set[str] = set()  # settled calls that are in `_sums`
        self._sums: dict[str, Spent] = {}  # by role
        self._open: dict[str, tuple[str, bool]] = {}  # the others: role, and whether a settled file exists

    def by_role(self) -> Mapping[str, Spent]:
        with self._lock:
            names = {name for name in self._day.names() if not name.startswith(fs.TEMPORARY)}
            if not self._seen <= names:  # some were removed: by hand, or by a failed `reserve`
                self._forget()
            for found in map(parse_name, names - self._seen):
                if found is not None and found.stem not in self._added:
                    known = self._open.get(found.stem, (found.role, False))
                    self._open[found.stem] = (found.role, known[1] or found.settled)
                    if found.settled:
                        self._add(found.stem, found.role)
            self._seen = names
            return self._together()

    def _add(self, stem: str, role: str) -> None:
        call = self._day.call(stem, settled=True)
        if call.end is not None:  # else its file is damaged: it stays open and is read again next time
            self._sums[role] = self._sums.get(role, Spent()) + spent([call])
            self._added.add(stem)
            del self._open[stem]

    def _together(self) -> Mapping[str, Spent]:
        sums = dict(self._sums)
        for stem, (role, settled) in sorted(self._open.items()):
            sums[role] = sums.get(role, Spent()) + spent([self._day.call(stem, settled=settled)])
        return sums
