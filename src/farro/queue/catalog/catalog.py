"""Keep an index of all jobs up to date: loaded once from the folders, then updated by the change feed. Thread-safe.

- Loading reads names, not jobs: a root with a hundred thousand jobs is loaded within seconds. The
  details of a job are read when it is listed, or gradually by `fill`.
- Applying a change needs no disk access: the change contains the folder. The next query of that row reads it again.
- Of many changes at once, only the last of each job is applied: readers must not slow down a queue that is drained at
  full speed.
- What the feed does not report (a pruned job; a job marked in place; what was lost in a gap) is found by `compare`,
  which compares the folders with the index.

Invariant: what was read from a job is kept only if the job has not changed since before it was read.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from farro.host.clock import Clock
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import FINISHED, Status
from farro.lazy_dataclass import replace
from farro.queue.catalog import rows as making
from farro.queue.catalog.charts import KEPT_S, Curve, EndedTotals, JobCharts
from farro.queue.catalog.index import JobIndex, JobPage, PageQuery, RoleCounts
from farro.queue.catalog.rows import JobRow, Standing
from farro.store.port import Change, JobEntry, Store

T = TypeVar("T")


class CatalogChange(NamedTuple):
    """One change of a job. `status` None: the job is gone."""

    job_id: str
    role: str | None
    status: Status | None
    was: Status | None  # None: it is new
    was_role: str | None


class ComparedJob(NamedTuple):
    """A job as `compare` finds it in the folders."""

    entry: JobEntry
    role: str | None
    created_ms: int
    changed_ms: int


def place_of(change: Change) -> str:
    """Return the place that a change implies; for a running job, not which agent holds it."""
    return _place(change.role, change.status)


@lru_cache(maxsize=1024)
def _place(role: str | None, status: Status) -> str:
    match status:
        case Status.QUEUED:
            return places.WAITING if role is None else places.incoming(role)
        case Status.IN_PROGRESS:
            return "jobs" if role is None else places.in_progress(role)
        case Status.STALE:
            return places.STALE
    return places.QUARANTINE if role is None else places.completed(role, status)


def last_of_each(changes: Sequence[Change]) -> list[Change]:
    """Keep the last change of each job, in order."""
    last: dict[str, Change] = {}
    for change in reversed(changes):
        last.setdefault(change.job_id, change)
    return list(reversed(last.values()))


def in_batches(items: Iterable[T], size: int) -> Iterable[list[T]]:
    """Split an iterable into lists of `size`."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


MOST_KNOWN = 200_000  # rows whose details are kept; others are read when they are listed
FEW = 100  # changes that are applied one by one
NAMES_S = 2.0  # how long job names are cached


class Catalog:
    """All jobs of one store, in memory."""

    def __init__(self, store: Store, clock: Clock, *, most_known: int = MOST_KNOWN) -> None:
        self._store = store
        self._clock = clock
        self._most_known = most_known
        self._lock = threading.RLock()
        self._index = JobIndex()
        self._curves = JobCharts()
        self._unread: dict[str, None] = {}  # ids of rows that `fill` has to read, in order
        self._known: dict[str, None] = {}  # ids of rows with details, oldest first
        self._names: tuple[float, Mapping[str, str]] = (-NAMES_S, {})
        self._cursor: int | None = None
        self.ready = False

    # --- updating ---

    def load(self) -> None:
        """Load from the folders. The feed is opened first, so that no change is missed."""
        self._cursor = self._store.changes(None).cursor
        self._compare(changed=None)
        self.ready = True

    def follow(self, timeout_s: float) -> list[CatalogChange]:
        """Return what changed since the last call, in order; wait up to `timeout_s` for a change."""
        changes = self._store.changes(self._cursor, timeout_s=timeout_s)
        self._cursor = changes.cursor
        if changes.gap:
            return self.compare()
        if not changes.items:
            return []
        now_ms = self.now_ms()
        changed: list[CatalogChange] = []
        unknown = []
        items: Sequence[Change] = changes.items
        begun: Collection[str] = ()
        if len(items) > FEW:
            begun = {change.job_id for change in items if change.status is Status.IN_PROGRESS}
            items = last_of_each(items)
        with self._lock:
            for change in items:
                row = self._index.get(change.job_id)
                if row is None and (change.role is None or making.minted_ms(change.job_id) is None):
                    unknown.append(change)
                else:
                    changed += self._apply(row, change, now_ms, change.job_id in begun)
        for change in unknown:  # a chosen id, or a place without a role: job.json says more
            changed += self._apply_unknown(change, now_ms)
        return changed

    def compare(self) -> list[CatalogChange]:
        """Bring the index in line with the folders, and return what differed."""
        changed: list[CatalogChange] = []
        self._compare(changed)
        with self._lock:
            self._curves.forget(self.now_ms())
        return changed

    def fill(self, most: int) -> int:
        """Read up to `most` jobs whose details are missing; return how many were taken."""
        with self._lock:
            chosen = [job_id for job_id, _ in zip(self._unread, range(most), strict=False)]
            for job_id in chosen:
                del self._unread[job_id]
            some = [row for job_id in chosen if (row := self._index.get(job_id)) is not None]
        self._read([row for row in some if not row.fresh or row.summary is None])
        return len(chosen)

    @property
    def unread(self) -> int:
        return len(self._unread)

    # --- querying ---

    def __len__(self) -> int:
        return len(self._index)

    def ids(self) -> list[str]:
        with self._lock:
            return self._index.ids()

    def now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def page(self, wanted: PageQuery) -> JobPage:
        """Return a page of rows that are up to date: jobs that changed, or may change without notice, are read now.

        A job that turns out not to match any more is left out, and the page filled up.
        """
        page = self._page(wanted)
        for _ in range(2):
            if not self._read([row for row in page.rows if not row.fresh or row.summary is None or not _final(row)]):
                break
            page = self._page(wanted)
        return page

    def _page(self, wanted: PageQuery) -> JobPage:
        with self._lock:
            return self._index.page(wanted)

    def counts(self) -> dict[str, RoleCounts]:
        with self._lock:
            return self._index.counts(self.now_ms())

    def curves(self, end_ms: int, step_s: int, points: int, roles: Sequence[str] = ()) -> dict[str, Curve]:
        with self._lock:
            return self._curves.drawn(end_ms, step_s, points, roles)

    def sums(self) -> dict[str, EndedTotals]:
        """Return for each role what ended since this catalog started, and in the day before."""
        with self._lock:
            return {role: replace(sums, ended=dict(sums.ended)) for role, sums in self._curves.sums.items()}

    def tasks(self) -> dict[str, list[JobRow]]:
        with self._lock:
            return self._index.tasks()

    def row(self, job_id: str) -> JobRow | None:
        with self._lock:
            row = self._index.get(job_id)
        if row is not None:
            self._read([row])
        return row

    def names(self) -> Mapping[str, str]:
        """Return the names of jobs by id."""
        now_s = self._clock.monotonic_s()
        if now_s - self._names[0] > NAMES_S:
            self._names = (now_s, {job_id: name for name, job_id in self._store.names().items()})
        return self._names[1]

    # --- applying changes ---

    def _apply(self, row: JobRow | None, change: Change, now_ms: int, begun: bool = False) -> list[CatalogChange]:
        """Apply a change. `begun`: the job was in progress between the indexed state and this one."""
        place = place_of(change)
        if row is None:
            created = making.minted_ms(change.job_id) or now_ms
            row = JobRow(
                change.job_id, change.role, change.status, place, making.key_of(change.job_id, created), now_ms
            )
            row.claimed_ms = now_ms if begun else None
            self._add(row)
            return [CatalogChange(change.job_id, change.role, change.status, None, None)]
        was, was_role = row.status, row.role
        if row.fresh and row.standing is not None and row.standing.terminal and change.status is not was:
            return []  # read after this change: a final job does not change any more
        if change.status is Status.QUEUED and place == places.WAITING and change.role is None:
            role = was_role
        else:
            role = change.role
        self._index.move(row, role, change.status, place, now_ms)
        row.fresh = False
        if begun:
            row.claimed_ms, row.counted = row.claimed_ms or now_ms, False
        self._unread[row.job_id] = None
        self._count(row, now_ms)
        return [CatalogChange(row.job_id, row.role, row.status, was, was_role)]

    def _add(self, row: JobRow) -> None:
        self._index.add(row)
        self._unread[row.job_id] = None
        if row.changed_ms - making.created_ms(row) < KEPT_S * 1000:
            self._curves.enqueued(row.role or "-", making.created_ms(row))
        if self.ready:
            self._count(row, row.changed_ms)

    def _count(self, row: JobRow, now_ms: int) -> None:
        """Count in the charts a job that ended, once; one that is queued again may end again."""
        if row.status is Status.IN_PROGRESS and row.claimed_ms is None:
            row.claimed_ms = now_ms
        if row.status not in FINISHED:
            row.counted = False
        elif not row.counted:
            self._ended(row, now_ms, row.claimed_ms)

    def _ended(self, row: JobRow, at_ms: int, claimed_ms: int | None) -> None:
        row.counted = True
        created = making.created_ms(row)
        wait_s = None if claimed_ms is None else max(0, claimed_ms - created) / 1000
        self._curves.ended(row.role or "-", str(row.status), at_ms, max(0, at_ms - created) / 1000, wait_s)

    def _apply_unknown(self, change: Change, now_ms: int) -> list[CatalogChange]:
        """Apply a change of a job that is not indexed, and that says too little by itself."""
        view = self._store.find(change.job_id)
        if view is None:
            return []
        created = making.milliseconds(view.lifecycle.created_at)
        created = making.minted_ms(change.job_id) or (now_ms if created is None else created)
        with self._lock:
            row = self._index.get(change.job_id)
            if row is not None:
                return self._apply(row, change, now_ms)
            row = JobRow(
                change.job_id,
                view.lifecycle.role,
                view.status,
                view.place,
                making.key_of(change.job_id, created),
                now_ms,
            )
            self._add(row)
            self._keep(row, making.standing_of(view))
        return [CatalogChange(change.job_id, view.lifecycle.role, view.status, None, None)]

    # --- reading jobs ---

    def _read(self, chosen: Sequence[JobRow]) -> bool:
        """Read these jobs; return whether one of them had moved."""
        if not chosen:
            return False
        before = {row.job_id: row.number for row in chosen}
        moved = False
        views = {row.job_id: self._store.find(row.job_id, place=row.place) for row in chosen}
        unread = [view for row in chosen if row.summary is None and (view := views[row.job_id]) is not None]
        prompts = self._store.prompts(unread) if unread else {}
        for row in chosen:
            view = views[row.job_id]
            summary = None
            if row.summary is None and view is not None:
                summary = making.summarize(prompts.get(row.job_id, {}))
            with self._lock:
                if summary is not None:
                    row.summary = summary
                    row.describe()
                if self._index.get(row.job_id) is not row or row.number != before[row.job_id]:
                    moved = True
                    continue  # it changed meanwhile: the next query reads it
                if view is None:
                    self._index.remove(row.job_id)
                    self._known.pop(row.job_id, None)
                    moved = True
                    continue
                if (view.status, view.lifecycle.role) != (row.status, row.role):
                    self._index.move(row, view.lifecycle.role, view.status, view.place, self.now_ms())
                    self._count(row, self.now_ms())
                    moved = True
                row.place = view.place
                self._keep(row, making.standing_of(view))
        return moved

    def _keep(self, row: JobRow, standing: Standing) -> None:
        self._index.set_standing(row, standing)
        self._unread.pop(row.job_id, None) if row.summary is not None else None
        if row.status in FINISHED and not row.counted:
            at_ms = standing.finalized_ms or standing.updated_ms
            if at_ms is not None and self.now_ms() - at_ms < KEPT_S * 1000:
                self._ended(row, at_ms, standing.first_claimed_ms)
        self._known.pop(row.job_id, None)
        self._known[row.job_id] = None
        if len(self._known) > self._most_known:
            oldest = next(iter(self._known))
            del self._known[oldest]
            forgotten = self._index.get(oldest)
            if forgotten is not None and forgotten is not row:
                forgotten.standing, forgotten.summary, forgotten.fresh = None, None, False
                forgotten.describe()

    # --- comparing ---

    def _compare(self, changed: list[CatalogChange] | None) -> None:
        with self._lock:
            begun = self._index.newest
        seen: set[str] = set()
        for entries in in_batches(self._news(seen), 1000):
            read = [self._seen(entry, changed_ms) for entry, changed_ms in entries]
            with self._lock:
                for one in read:
                    self._apply_entry(one, begun, changed)
        with self._lock:
            missing = [row for row in self._index.rows() if row.job_id not in seen and row.number <= begun]
        for row in missing:
            if self._store.find(row.job_id) is None:
                with self._lock:
                    self._index.remove(row.job_id)
                    self._known.pop(row.job_id, None)
                if changed is not None:
                    changed.append(CatalogChange(row.job_id, row.role, None, row.status, row.role))

    def _news(self, seen: set[str]) -> Iterable[tuple[JobEntry, int]]:
        """Return entries that differ from the index at first sight, with their time; on load sorted by it, as the
        initial order of "last changed"."""
        found = (
            (entry, int(entry.changed_at_s() * 1000)) for entry in self._store.entries() if self._is_news(entry, seen)
        )
        return found if self.ready else sorted(found, key=lambda pair: pair[1])

    def _is_news(self, entry: JobEntry, seen: set[str]) -> bool:
        seen.add(entry.job_id)
        row = self._index.get(entry.job_id)
        return row is None or (row.status, entry.role or row.role) != (entry.status, row.role)

    def _seen(self, entry: JobEntry, changed_ms: int) -> ComparedJob:
        created = making.minted_ms(entry.job_id)
        if entry.view is not None:
            life: Lifecycle | None = entry.view.lifecycle
        else:
            life = None if entry.role is not None and created is not None else entry.lifecycle()
        if created is None:
            created = changed_ms if life is None else making.milliseconds(life.created_at)
        return ComparedJob(entry, entry.role if life is None else life.role, created or changed_ms, changed_ms)

    def _apply_entry(self, one: ComparedJob, begun: int, changed: list[CatalogChange] | None) -> None:
        """Apply an entry. A moving job may be seen twice: the later place counts, unless the feed was newer."""
        entry = one.entry
        row = self._index.get(entry.job_id)
        if row is None:
            key = making.key_of(entry.job_id, one.created_ms)
            self._add(JobRow(entry.job_id, one.role, entry.status, entry.place, key, one.changed_ms))
            was, was_role = None, None
            if entry.view is not None:
                row = self._index.get(entry.job_id)
                assert row is not None
                self._keep(row, making.standing_of(entry.view))
        elif row.number <= begun and not (row.status is Status.STALE and entry.status is Status.IN_PROGRESS):
            was, was_role = row.status, row.role
            self._index.move(row, one.role, entry.status, entry.place, one.changed_ms)
            row.fresh = False
            self._unread[row.job_id] = None
            self._count(row, one.changed_ms)
        else:
            return
        if changed is not None:
            changed.append(CatalogChange(entry.job_id, one.role, entry.status, was, was_role))


def _final(row: JobRow) -> bool:
    """Return whether the job cannot change without a reported move: it is final, or waits in its queue."""
    assert row.standing is not None
    return row.standing.terminal or row.status is Status.QUEUED
