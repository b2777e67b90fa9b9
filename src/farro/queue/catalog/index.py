"""Index the rows of all jobs by role, status and time: pages, searches and counts without disk access.

Not locked: a caller with several threads must lock.
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
from farro.queue.catalog.rows import JobRow, Standing

Order = Literal["newest", "oldest", "changed"]
UNKNOWN = "-"  # the role of a job that was not read yet, in a place without a role
_TIME = len("0000000000000")  # a key starts with the time; the rest is the job's id
_KEY, _NUMBER = attrgetter("key"), attrgetter("number")
_FEW = 2_000  # up to so many rows are sorted by last change instead of filtering all rows


@dataclass(frozen=True, kw_only=True, slots=True)
class PageQuery:
    """A filter for the jobs to return; empty or None means all."""

    roles: Collection[str] = ()
    statuses: Collection[Status] = ()
    tags: Collection[str] = ()
    words: tuple[str, ...] = ()  # all of them must be in the row's text
    task: str | None = None
    person: bool = False
    order: Order = "newest"
    limit: int = 50
    cursor: str | None = None

    @property
    def looks_inside(self) -> bool:
        """Return whether rows must be checked one by one."""
        return bool(self.tags or self.words or self.task or self.person)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPage:
    """One page of rows and the cursor of the next page."""

    rows: list[JobRow]
    next: str | None
    total: int | None  # None: not counted


@dataclass(kw_only=True, slots=True)
class RoleCounts:
    """The number of jobs of a role; `queued` excludes those that are delayed or wait."""

    queued: int = 0
    delayed: int = 0
    waiting: int = 0
    in_progress: int = 0
    succeeded: int = 0
    failed: int = 0
    stale: int = 0
    killed: int = 0


class JobIndex:
    """Rows by role, status and time.

    Invariant: every row is in `_rows` and `_changed`, and its key in one bucket, that of its role and status. `_aside`
    has the ids of jobs that wait outside every queue, `_later` the start times of delayed ones.
    """

    def __init__(self) -> None:
        self._rows: dict[str, JobRow] = {}
        self._changed: dict[str, JobRow] = {}  # in the order of their last change
        self._number = 0
        # Sorted lists in chunks: a plain list would move half a megabyte for each job that leaves the head of a deep
        # queue. Not SortedSet, which keeps every key twice.
        self._buckets: dict[tuple[str, Status], SortedList[str]] = {}
        self._aside: set[str] = set()
        self._later: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def newest(self) -> int:
        """Return the number of the last change."""
        return self._number

    def get(self, job_id: str) -> JobRow | None:
        return self._rows.get(job_id)

    def ids(self) -> list[str]:
        return list(self._rows)

    def rows(self) -> list[JobRow]:
        return list(self._rows.values())

    def tasks(self) -> dict[str, list[JobRow]]:
        """Return the jobs of each task, newest first."""
        found: dict[str, list[JobRow]] = {}
        for row in self._rows.values():
            if row.summary is not None and row.summary.task is not None:
                found.setdefault(row.summary.task, []).append(row)
        for jobs in found.values():
            jobs.sort(key=lambda row: row.key, reverse=True)
        return found

    # --- changing ---

    def add(self, row: JobRow) -> None:
        self._rows[row.job_id] = row
        self._put(row)
        self._place(row)
        self._touch(row)

    def move(self, row: JobRow, role: str | None, status: Status, place: str, changed_ms: int) -> None:
        """Record a new place and status. A role of None leaves the role as it was."""
        role = row.role if role is None else role
        if (row.role, row.status) != (role, status):
            self._bucket(row.role, row.status).discard(row.key)
            row.role, row.status = role, status
            self._put(row)
        row.place, row.changed_ms = place, changed_ms
        self._place(row)
        self._touch(row)

    def set_standing(self, row: JobRow, standing: Standing) -> None:
        """Record what job.json says."""
        row.standing, row.fresh = standing, True
        row.describe()
        if row.status is Status.QUEUED and standing.not_before_ms is not None:
            self._later[row.job_id] = standing.not_before_ms
        else:
            self._later.pop(row.job_id, None)

    def remove(self, job_id: str) -> JobRow | None:
        row = self._rows.pop(job_id, None)
        if row is not None:
            self._changed.pop(job_id, None)
            self._bucket(row.role, row.status).discard(row.key)
            self._aside.discard(job_id)
            self._later.pop(job_id, None)
        return row

    def _touch(self, row: JobRow) -> None:
        self._number += 1
        row.number = self._number
        self._changed.pop(row.job_id, None)
        self._changed[row.job_id] = row

    def _place(self, row: JobRow) -> None:
        if row.place == places.WAITING and row.status is Status.QUEUED:
            self._aside.add(row.job_id)
        else:
            self._aside.discard(row.job_id)
        if row.status is not Status.QUEUED:
            self._later.pop(row.job_id, None)

    def _put(self, row: JobRow) -> None:
        bucket = self._bucket(row.role, row.status)
        if row.key not in bucket:  # a sorted list accepts duplicates
            bucket.add(row.key)

    def _bucket(self, role: str | None, status: Status) -> SortedList[str]:
        where = (role or UNKNOWN, status)
        found = self._buckets.get(where)
        if found is None:
            found = self._buckets[where] = SortedList()
        return found

    # --- querying ---

    def counts(self, now_ms: int) -> dict[str, RoleCounts]:
        """Return the counts of each role that has jobs."""
        found: dict[str, RoleCounts] = {}
        for (role, status), bucket in self._buckets.items():
            if len(bucket):
                setattr(found.setdefault(role, RoleCounts()), str(status), len(bucket))
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

    def page(self, query: PageQuery) -> JobPage:
        """Return at most `limit` rows that follow the cursor."""
        if query.looks_inside:
            return self._searched(query)
        found: list[JobRow] = []
        for row in self._walk(query):
            if len(found) == query.limit:
                return JobPage(rows=found, next=self._cursor(found[-1], query.order), total=self._size(query))
            found.append(row)
        return JobPage(rows=found, next=None, total=self._size(query))

    def _searched(self, query: PageQuery) -> JobPage:
        """Return the first matching rows. Finding them takes milliseconds; keeping all rows sorted would cost much
        more."""
        fitting = self._candidates(query)
        for word in query.words:  # first: they exclude most rows, at a tenth of the cost
            folded = word.casefold()
            fitting = [row for row in fitting if folded in row.text]
        if query.tags or query.task or query.person:
            fitting = [row for row in fitting if _fits(row, query)]
        fitting = list(fitting)
        total = len(fitting)
        by = _NUMBER if query.order == "changed" else _KEY
        after = query.cursor
        if after is not None and query.order == "changed":
            number = _number(after) or 0
            fitting = [row for row in fitting if row.number < number]
        elif after is not None and query.order == "newest":
            fitting = [row for row in fitting if row.key < after]
        elif after is not None:
            fitting = [row for row in fitting if row.key > after]
        choose = heapq.nsmallest if query.order == "oldest" else heapq.nlargest
        found = choose(query.limit + 1, fitting, key=by)
        rows = found[: query.limit]
        more = len(found) > query.limit
        return JobPage(rows=rows, next=self._cursor(rows[-1], query.order) if more else None, total=total)

    def _candidates(self, query: PageQuery) -> Iterable[JobRow]:
        if not query.roles and not query.statuses:
            return self._rows.values()
        return [self._rows[key[_TIME:]] for bucket in self._chosen(query) for key in bucket]

    def _size(self, query: PageQuery) -> int:
        return sum(len(bucket) for bucket in self._chosen(query))

    def _cursor(self, row: JobRow, order: Order) -> str:
        return str(row.number) if order == "changed" else row.key

    def _chosen(self, query: PageQuery) -> list[SortedList[str]]:
        return [
            bucket
            for (role, status), bucket in self._buckets.items()
            if len(bucket)
            and (not query.roles or role in query.roles)
            and (not query.statuses or status in query.statuses)
        ]

    def _walk(self, query: PageQuery) -> Iterator[JobRow]:
        if query.order == "changed":
            yield from self._by_change(query)
            return
        buckets = self._chosen(query)
        if query.order == "newest":
            keys = heapq.merge(*(_before(bucket, query.cursor) for bucket in buckets), reverse=True)
        else:
            keys = heapq.merge(*(_after(bucket, query.cursor) for bucket in buckets))
        for key in keys:
            yield self._rows[key[_TIME:]]

    def _by_change(self, query: PageQuery) -> Iterator[JobRow]:
        """Yield the last changed first. Few rows are sorted; with many, the whole order is walked."""
        before = _number(query.cursor)
        chosen = self._chosen(query)
        rows: Iterator[JobRow]
        if sum(map(len, chosen)) <= _FEW:
            some = [self._rows[key[_TIME:]] for bucket in chosen for key in bucket]
            rows = iter(sorted(some, key=lambda row: row.number, reverse=True))
        else:
            rows = reversed(self._changed.values())
        for row in rows:
            if (
                (before is None or row.number < before)
                and (not query.roles or row.role in query.roles)
                and (not query.statuses or row.status in query.statuses)
            ):
                yield row


def _after(keys: SortedList[str], cursor: str | None) -> Iterator[str]:
    """Yield greater keys, ascending; all without a cursor."""
    return keys.irange(minimum=cursor, inclusive=(False, True))


def _before(keys: SortedList[str], cursor: str | None) -> Iterator[str]:
    """Yield smaller keys, descending; all without a cursor."""
    return keys.irange(maximum=cursor, inclusive=(True, False), reverse=True)


def _number(cursor: str | None) -> int | None:
    """Parse a cursor; callers may send anything."""
    return int(cursor) if cursor is not None and cursor.isdecimal() and len(cursor) < 20 else None


def _fits(row: JobRow, query: PageQuery) -> bool:
    """Return whether the row matches everything but the words."""
    summary, standing = row.summary, row.standing
    if query.person and (standing is None or not standing.person):
        return False
    if query.task is not None and (summary is None or summary.task != query.task):
        return False
    return not query.tags or (summary is not None and all(tag in summary.tags for tag in query.tags))
