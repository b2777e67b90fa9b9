"""Calls of the ledger on the disk: their names and format, reading the calls of a day, and summing them up.

A call is a file `<hhmmssmmm>.<job>.<role>.<random>.json`. When it is settled, a second file that ends in
`.settled.json` repeats it with the result. Neither is ever changed, so each needs to be read only once.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, get_args

from farro.documents.json_text import encoder
from farro.errors import Damaged
from farro.host import fs
from farro.jobs import ids
from farro.store.budgets import Spent, spent
from farro.store.ledger import CallEnd, CallRecord, Charge, Usage

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
