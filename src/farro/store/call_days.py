"""The calls of a ledger by day: how a call is named and written, and the sums that budgets are compared with.

A ledger keeps two records of a call, under names that sort by time: `<stem>.json`, written before the call, and
`<stem>.settled.json`, which repeats it with the result. Neither is ever changed, so each is read once.
"""

from __future__ import annotations

import json
import random
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Protocol, get_args

from farro.documents.json_text import encoder
from farro.errors import Damaged
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store import ledger as limits
from farro.store.ledger import UNREADABLE, Budgets, CallEnd, CallRecord, Charge, Ledger, Spent, Usage, spent

random_bits = random.SystemRandom().getrandbits
_DAYS_KEPT = 4  # in memory: today, and the earlier days of a long job


class DayLedger(Ledger, Protocol):
    """The rules of ledgers that keep their calls by day."""

    _random_bits: Callable[[int], int]
    _days: dict[str, DayCalls]
    _sums: tuple[str, DaySums] | None  # of the day that was requested last
    _lock: threading.Lock

    def prepare(self, random_bits: Callable[[int], int]) -> None:
        self._random_bits = random_bits
        self._days = {}
        self._sums = None
        self._lock = threading.Lock()

    @abstractmethod
    def records(self, day: str) -> DayRecords:
        """Return where the records of a day are read."""

    @abstractmethod
    def days_of_job(self, job_id: str) -> Iterable[str]:
        """Return the days on which that job may have made calls."""

    def new_call(self, charge: Charge, now: datetime) -> tuple[str, str, CallRecord]:
        """Return a call that is about to be made, with its day and the name of its records."""
        at = timestamp(now)
        day, name = at[:10], name_of(at, charge.job_id, charge.role, self._random_bits(48))
        return day, name, CallRecord(id=f"{day}/{name}", at=at, charge=charge, end=None, usage=None, cost_usd=None)

    def check(self, charge: Charge, budgets: Budgets, day: str) -> None:
        """Check the narrowest budget first: the one that a person can most easily change."""
        if budgets.job_usd is not None:
            budget = limits.budget_of_job(budgets.job_usd, charge.job_id)
            limits.check_budget(charge, budget, limits.spent(self.of_job(charge.job_id)))
        if budgets.role_usd is None and budgets.account is None and budgets.day_usd is None:
            return
        today, nothing = self._today(day).sums(), limits.Spent()
        if budgets.role_usd is not None:
            budget = limits.budget_of_role(budgets.role_usd, charge.role, day)
            limits.check_budget(
                charge, budget, sum((one for (role, _), one in today.items() if role == charge.role), nothing)
            )
        if (account := budgets.account) is not None:
            budget = limits.budget_of_account(account, day)
            limits.check_budget(
                charge, budget, sum((one for (_, name), one in today.items() if account.counts(name)), nothing)
            )
        if budgets.day_usd is not None:
            limits.check_budget(charge, limits.budget_of_day(budgets.day_usd, day), sum(today.values(), nothing))

    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        found = sorted(day for day in self.days_of_job(ids.check_job_id(job_id)) if DAY.fullmatch(day))
        return [call for day in found for call in self._day(day).calls(job_id)]

    def of_day(self, day: str) -> Sequence[CallRecord]:
        return self._day(day).calls() if DAY.fullmatch(day) else []

    def _day(self, day: str) -> DayCalls:
        with self._lock:
            if day not in self._days:
                if len(self._days) >= _DAYS_KEPT:
                    del self._days[next(iter(self._days))]
                self._days[day] = DayCalls(self.records(day), day)
            return self._days[day]

    def _today(self, day: str) -> DaySums:
        with self._lock:
            known = self._sums
        if known is None or known[0] != day:
            known = (day, DaySums(self._day(day)))
            with self._lock:
                self._sums = known
        return known[1]


# --- records ---


class DayRecords(Protocol):
    """The records of one day."""

    def names(self) -> Collection[str]:
        """Return the name of every record."""

    def texts(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """Return the records with these names, in order. None: it is gone, or cannot be read."""


SCHEMA = "1.0.0"
CALL = ".json"
SETTLED = ".settled.json"
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_NAME = re.compile(rf"(\d{{9}})\.({ids.JOB_ID.pattern})\.({ids.ROLE.pattern})\.([0-9a-f]{{12}})")
LIMIT = 64 << 10  # bytes of a record
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
    """The calls of one day. Caches what it has read, so that each call reads only new records."""

    def __init__(self, records: DayRecords, day: str) -> None:
        self._records = records
        self._day = day
        self._known: dict[str, CallRecord] = {}
        self._lock = threading.Lock()

    def names(self) -> set[str]:
        return {name for name in self._records.names() if parse_name(name) is not None}

    def calls(self, job_id: str | None = None) -> list[CallRecord]:
        """Return all calls, or those of one job, in order."""
        part = "." if job_id is None else f".{job_id}."
        settled: dict[str, bool] = {}
        for found in (parse_name(name) for name in self._records.names() if part in name):
            if found is not None and job_id in (None, found.job_id):
                settled[found.stem] = settled.get(found.stem, False) or found.settled
        known = self.load(settled)
        return sorted((known[stem] for stem in sorted(settled)), key=_in_order)

    def load(self, settled: Mapping[str, bool]) -> Mapping[str, CallRecord]:
        """Return these calls; the value says whether a call was settled. One that cannot be read counts as a call of
        unknown cost, never as none or as free. New records are read together."""
        with self._lock:
            missing = [stem for stem, over in settled.items() if not self._has(stem, settled=over)]
            self._read([stem for stem in missing if settled[stem]], SETTLED)
            self._read([stem for stem in missing if not self._has(stem, settled=False)], CALL)
            return {stem: self._known.get(stem) or self._unreadable(stem) for stem in settled}

    def _has(self, stem: str, *, settled: bool) -> bool:
        known = self._known.get(stem)
        return known is not None and (known.end is not None or not settled)

    def _read(self, stems: Sequence[str], ending: str) -> None:
        texts = self._records.texts([f"{stem}{ending}" for stem in stems]) if stems else []
        for stem, text in zip(stems, texts, strict=True):
            try:
                call = None if text is None else decoded(text)
            except Damaged:
                continue
            if call is not None and call.id == f"{self._day}/{stem}":
                self._known[stem] = call

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


class DaySums:
    """The sums of one day by role and provider, updated incrementally because a budget is checked before every call.

    A settled call never changes, so it is added once. Open calls are few and summed up each time. Each query lists the
    day's records and reads the new ones.
    """

    def __init__(self, day: DayCalls) -> None:
        self._day = day
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._seen: set[str] = set()  # names of records
        self._added: set[str] = set()  # settled calls that are in `_sums`
        self._sums: dict[tuple[str, str], Spent] = {}  # by role and provider
        self._open: dict[str, tuple[str, bool]] = {}  # the others: role, and whether a settled record exists

    def sums(self) -> Mapping[tuple[str, str], Spent]:
        with self._lock:
            names = self._day.names()
            if not self._seen <= names:  # some were removed: by hand, or by a failed `reserve`
                self._forget()
            new = [found for found in map(parse_name, names - self._seen) if found is not None]
            self._day.load({found.stem: True for found in new if found.settled})  # all at once
            for found in new:
                if found.stem not in self._added:
                    known = self._open.get(found.stem, (found.role, False))
                    self._open[found.stem] = (found.role, known[1] or found.settled)
                    if found.settled:
                        self._add(found.stem, found.role)
            self._seen = names
            return self._together()

    def _add(self, stem: str, role: str) -> None:
        call = self._day.load({stem: True})[stem]
        if call.end is not None:  # else its record is damaged: it stays open and is read again next time
            key = role, call.charge.provider
            self._sums[key] = self._sums.get(key, Spent()) + spent([call])
            self._added.add(stem)
            del self._open[stem]

    def _together(self) -> Mapping[tuple[str, str], Spent]:
        sums = dict(self._sums)
        calls = self._day.load({stem: settled for stem, (_, settled) in self._open.items()})
        for stem, (role, _) in sorted(self._open.items()):
            key = role, calls[stem].charge.provider
            sums[key] = sums.get(key, Spent()) + spent([calls[stem]])
        return sums
