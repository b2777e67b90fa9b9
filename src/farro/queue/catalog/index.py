"""The rows of all jobs by role, status and time: pages, searches and counts without a look at the disk.

Reading jobs from the store lives in `keeping`. Nothing here locks: whoever uses a book from several threads does.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Literal

from sortedcontainers import SortedList

from farro.jobs import places
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.rows import Row, Standing

Order = Literal["newest", "oldest", "changed"]
UNKNOWN = "-"  # the role of a job of which only its place is known yet, where that says none
_TIME = len("0000000000000")  # how a key begins; the rest of it is the job's id
_KEY, _NUMBER = attrgetter("key"), attrgetter("number")
_FEW = 2_000  # rows that are sorted by their last change rather than looked for among all


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which jobs; what is empty or None asks for all."""

    roles: Collection[str] = ()
    statuses: Collection[Status] = ()
    tags: Collection[str] = ()
    words: tuple[str, ...] = ()  # all of them, anywhere in what a row says
    task: str | None = None
    person: bool = False
    order: Order = "newest"
    limit: int = 50
    cursor: str | None = None

    @property
    def looks_inside(self) -> bool:
        """Whether rows must be looked at one by one."""
        return bool(self.tags or self.words or self.task or self.person)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    rows: list[Row]
    next: str | None
    total: int | None  # None: nobody counted


@dataclass(kw_only=True, slots=True)
class Counts:
    """How many jobs a role has; `queued` is without those that are delayed or wait."""

    queued: int = 0
    delayed: int = 0
    waiting: int = 0
    in_progress: int = 0
    succeeded: int = 0
    failed: int = 0
    stale: int = 0
    killed: int = 0


class Book:
    """Invariant: every row is in `_rows` and `_changed`, and its key in one bucket, that of its role and status.
    `_aside` has the ids of those that wait outside every queue, `_later` the times of those that are delayed."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, Row] = {}  # in the order of their last change
        self._number = 0
        # Sorted lists in chunks: a plain list would move half a megabyte for each job that leaves the head of a deep
        # queue. No SortedSet, which keeps every key twice.
        self._buckets: dict[tuple[str, Status], SortedList[str]] = {}
        self._aside: set[str] = set()
        self._later: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def newest(self) -> int:
        """The number of the last change."""
        return self._number

    def get(self, job_id: str) -> Row | None:
        return self._rows.get(job_id)

    def ids(self) -> list[str]:
        return list(self._rows)

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def tasks(self) -> dict[str, list[Row]]:
        """The jobs of each task, the newest first."""
        found: dict[str, list[Row]] = {}
        for row in self._rows.values():
            if row.about is not None and row.about.task is not None:
                found.setdefault(row.about.task, []).append(row)
        for jobs in found.values():
            jobs.sort(key=lambda row: row.key, reverse=True)
        return found

    # --- changing ---

    def add(self, row: Row) -> None:
        self._rows[row.job_id] = row
        self._put(row)
        self._place(row)
        self._touch(row)

    def move(self, row: Row, role: str | None, status: Status, place: str, changed_ms: int) -> None:
        """It is there now. A role that is not told stays as it was."""
        role = row.role if role is None else role
        if (row.role, row.status) != (role, status):
            self._bucket(row.role, row.status).discard(row.key)
            row.role, row.status = role, status
            self._put(row)
        row.place, row.changed_ms = place, changed_ms
        self._place(row)
        self._touch(row)

    def stand(self, row: Row, standing: Standing) -> None:
        """What its job.json says."""
        row.standing, row.fresh = standing, True
        row.describe()
        if row.status is Status.QUEUED and standing.not_before_ms is not None:
            self._later[row.job_id] = standing.not_before_ms
        else:
            self._later.pop(row.job_id, None)

    def remove(self, job_id: str) -> Row | None:
        row = self._rows.pop(job_id, None)
        if row is not None:
            self._changed.pop(job_id, None)
            self._bucket(row.role, row.status).discard(row.key)
            self._aside.discard(job_id)
            self._later.pop(job_id, None)
        return row

    def _touch(self, row: Row) -> None:
        self._number += 1
        row.number = self._number
        self._changed.pop(row.job_id, None)
        self._changed[row.job_id] = row

    def _place(self, row: Row) -> None:
        if row.place == places.WAITING and row.status is Status.QUEUED:
            self._aside.add(row.job_id)
        else:
            self._aside.discard(row.job_id)
        if row.status is not Status.QUEUED:
            self._later.pop(row.job_id, None)

    def _put(self, row: Row) -> None:
        bucket = self._bucket(row.role, row.status)
        if row.key not in bucket:  # a sorted list would take it twice
            bucket.add(row.key)

    def _bucket(self, role: str | None, status: Status) -> SortedList[str]:
        where = (role or UNKNOWN, status)
        found = self._buckets.get(where)
        if found is None:
            found = self._buckets[where] = SortedList()
        return found

    # --- asking ---

    def counts(self, now_ms: int) -> dict[str, Counts]:
        """Of each role that has jobs."""
        found: dict[str, Counts] = {}
        for (role, status), bucket in self._buckets.items():
            if len(bucket):
                setattr(found.setdefault(role, Counts()), str(status), len(bucket))
        for job_id in self._aside:
            counts = found[self._rows[job_id].role or UNKNOWN]
            counts.waiting += 1
            counts.queued -= 1
        for job_id, due_ms in self._later.items():
            if due_ms > now_ms and job_id not in self._aside:
                counts = found[self._rows[job_id].role or UNKNOWN]
                counts.delayed += 1
                counts.queued -= 1
        return found

    def page(self, wanted: Wanted) -> Page:
        """The rows that come after the cursor, at most `limit`."""
        if wanted.looks_inside:
            return self._searched(wanted)
        found: list[Row] = []
        for row in self._walk(wanted):
            if len(found) == wanted.limit:
                return Page(rows=found, next=self._cursor(found[-1], wanted.order), total=self._size(wanted))
            found.append(row)
        return Page(rows=found, next=None, total=self._size(wanted))

    def _searched(self, wanted: Wanted) -> Page:
        """Of all rows that fit the first: to find them takes a few milliseconds, to keep all in an order much more."""
        fitting = self._candidates(wanted)
        for word in wanted.words:  # first: they leave the fewest, at a tenth of the price
            folded = word.casefold()
            fitting = [row for row in fitting if folded in row.text]
        if wanted.tags or wanted.task or wanted.person:
            fitting = [row for row in fitting if _fits(row, wanted)]
        fitting = list(fitting)
        total = len(fitting)
        by = _NUMBER if wanted.order == "changed" else _KEY
        after = wanted.cursor
        if after is not None and wanted.order == "changed":
            number = _number(after) or 0
            fitting = [row for row in fitting if row.number < number]
        elif after is not None and wanted.order == "newest":
            fitting = [row for row in fitting if row.key < after]
        elif after is not None:
            fitting = [row for row in fitting if row.key > after]
        choose = heapq.nsmallest if wanted.order == "oldest" else heapq.nlargest
        found = choose(wanted.limit + 1, fitting, key=by)
        rows = found[: wanted.limit]
        more = len(found) > wanted.limit
        return Page(rows=rows, next=self._cursor(rows[-1], wanted.order) if more else None, total=total)

    def _candidates(self, wanted: Wanted) -> Iterable[Row]:
        if not wanted.roles and not wanted.statuses:
            return self._rows.values()
        return [self._rows[key[_TIME:]] for bucket in self._chosen(wanted) for key in bucket]

    def _size(self, wanted: Wanted) -> int:
        return sum(len(bucket) for bucket in self._chosen(wanted))

    def _cursor(self, row: Row, order: Order) -> str:
        return str(row.number) if order == "changed" else row.key

    def _chosen(self, wanted: Wanted) -> list[SortedList[str]]:
        return [
            bucket
            for (role, status), bucket in self._buckets.items()
            if len(bucket)
            and (not wanted.roles or role in wanted.roles)
            and (not wanted.statuses or status in wanted.statuses)
        ]

    def _walk(self, wanted: Wanted) -> Iterator[Row]:
        if wanted.order == "changed":
            yield from self._by_change(wanted)
            return
        buckets = self._chosen(wanted)
        if wanted.order == "newest":
            keys = heapq.merge(*(_before(bucket, wanted.cursor) for bucket in buckets), reverse=True)
        else:
            keys = heapq.merge(*(_after(bucket, wanted.cursor) for bucket in buckets))
        for key in keys:
            yield self._rows[key[_TIME:]]

    def _by_change(self, wanted: Wanted) -> Iterator[Row]:
        """The last changed first. Few rows are sorted; of many the whole order is gone through."""
        before = _number(wanted.cursor)
        chosen = self._chosen(wanted)
        rows: Iterator[Row]
        if sum(map(len, chosen)) <= _FEW:
            some = [self._rows[key[_TIME:]] for bucket in chosen for key in bucket]
            rows = iter(sorted(some, key=lambda row: row.number, reverse=True))
        else:
            rows = reversed(self._changed.values())
        for row in rows:
            if (
                (before is None or row.number < before)
                and (not wanted.roles or row.role in wanted.roles)
                and (not wanted.statuses or row.status in wanted.statuses)
            ):
                yield row


def _after(keys: SortedList[str], cursor: str | None) -> Iterator[str]:
    """Those that are greater, upwards; all without a cursor."""
    return keys.irange(minimum=cursor, inclusive=(False, True))


def _before(keys: SortedList[str], cursor: str | None) -> Iterator[str]:
    """Those that are smaller, downwards; all without a cursor."""
    return keys.irange(maximum=cursor, inclusive=(True, False), reverse=True)


def _number(cursor: str | None) -> int | None:
    """Anybody may have made it up."""
    return int(cursor) if cursor is not None and cursor.isdecimal() and len(cursor) < 20 else None


def _fits(row: Row, wanted: Wanted) -> bool:
    """What is asked of a row beside its words."""
    about, standing = row.about, row.standing
    if wanted.person and (standing is None or not standing.person):
        return False
    if wanted.task is not None and (about is None or about.task != wanted.task):
        return False
    return not wanted.tags or (about is not None and all(tag in about.tags for tag in wanted.tags))
