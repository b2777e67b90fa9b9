"""Keeps the book of all jobs exact: loaded once from the places, then fed by the store's changes. For many threads.

What a page or a count is lives in `book`, curves in `curves`; who waits for what is told lives in fronts.

- Loading reads names, not jobs: a root of a hundred thousand is there within seconds. What a job says beyond its place
  is read when somebody lists it, and bit by bit by `fill`.
- A change costs no look at the disk: it says where the job is. Whoever asks for the row next has it read again.
- Of many changes at once only the last of each job is taken in: a queue that is drained at full speed is not to wait
  for whoever looks on.
- What the feed does not tell (a pruned job; a job that was marked where it lies; what was lost in a gap) is found by
  `compare`, which holds the places against the book.

Invariant: what was read of a job is kept only if the job has not changed since before it was read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farro.errors import FarroError
from farro.execution.progress import read_prompt
from farro.host import fs
from farro.host.clock_port import Clock
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.queue import tree
from farro.queue.catalog import rows as making
from farro.queue.catalog.changes import Seen, Told, in_lots, last_of_each, place_of
from farro.queue.catalog.charts import KEPT_S, Curve, Curves, Sums
from farro.queue.catalog.index import Book, Counts, Page, Wanted
from farro.queue.catalog.rows import Row, Standing
from farro.store.fleet import Fleet
from farro.store.port import Change, JobView, Store

MOST_KNOWN = 200_000  # rows whose details are kept; of others they are read when they are listed
FEW = 100  # changes that are taken in one by one
NAMES_S = 2.0  # how old the names of jobs may be in a list
_ENDED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)
_JOB_LIMIT = 4 << 20


class Catalog:
    def __init__(self, store: Store, clock: Clock, *, most_known: int = MOST_KNOWN) -> None:
        self._store = store
        self._fleet = store if isinstance(store, Fleet) else None  # asked once: a protocol takes long to answer
        self._clock = clock
        self._most_known = most_known
        self._lock = threading.RLock()
        self._book = Book()
        self._curves = Curves()
        self._unread: dict[str, None] = {}  # ids of rows that `fill` has to read, in that order
        self._known: dict[str, None] = {}  # ids of rows with details, the longest known first
        self._names: tuple[float, Mapping[str, str]] = (-NAMES_S, {})
        self._cursor: int | None = None
        self.ready = False

    # --- keeping ---

    def load(self) -> None:
        """From the places. The feed is opened first, so that nothing falls between."""
        self._cursor = self._store.changes(None).cursor
        self._compare(told=None)
        self.ready = True

    def follow(self, timeout_s: float) -> list[Told]:
        """What changed since the last call, in its order; waits up to `timeout_s` for something."""
        changes = self._store.changes(self._cursor, timeout_s=timeout_s)
        self._cursor = changes.cursor
        if changes.gap:
            return self.compare()
        if not changes.items:
            return []
        now_ms = self.now_ms()
        told: list[Told] = []
        strange = []
        items: Sequence[Change] = changes.items
        begun: Collection[str] = ()
        if len(items) > FEW:
            begun = {change.job_id for change in items if change.status is Status.IN_PROGRESS}
            items = last_of_each(items)
        with self._lock:
            for change in items:
                row = self._book.get(change.job_id)
                if row is None and (change.role is None or making.minted_ms(change.job_id) is None):
                    strange.append(change)
                else:
                    told += self._take(row, change, now_ms, change.job_id in begun)
        for change in strange:  # a chosen id, or a place that says no role: job.json knows
            told += self._met(change, now_ms)
        return told

    def compare(self) -> list[Told]:
        """What the places say otherwise than the book, which then says the same."""
        told: list[Told] = []
        self._compare(told)
        with self._lock:
            self._curves.forget(self.now_ms())
        return told

    def fill(self, most: int) -> int:
        """Read up to so many jobs of which less is known than could be; how many were read."""
        with self._lock:
            chosen = [job_id for job_id, _ in zip(self._unread, range(most), strict=False)]
            for job_id in chosen:
                del self._unread[job_id]
            some = [row for job_id in chosen if (row := self._book.get(job_id)) is not None]
        self._read([row for row in some if not row.fresh or row.about is None])
        return len(chosen)

    @property
    def unread(self) -> int:
        return len(self._unread)

    # --- asking ---

    def __len__(self) -> int:
        return len(self._book)

    def ids(self) -> list[str]:
        with self._lock:
            return self._book.ids()

    def now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def page(self, wanted: Wanted) -> Page:
        """Rows as they are: those whose jobs changed, or may change without being told of, are read now. A job that
        turns out to be elsewhere than was asked for is left out, and the page filled up."""
        page = self._page(wanted)
        for _ in range(2):
            if not self._read([row for row in page.rows if not row.fresh or row.about is None or not _final(row)]):
                break
            page = self._page(wanted)
        return page

    def _page(self, wanted: Wanted) -> Page:
        with self._lock:
            return self._book.page(wanted)

    def counts(self) -> dict[str, Counts]:
        with self._lock:
            return self._book.counts(self.now_ms())

    def curves(self, end_ms: int, step_s: int, points: int, roles: Sequence[str] = ()) -> dict[str, Curve]:
        with self._lock:
            return self._curves.drawn(end_ms, step_s, points, roles)

    def sums(self) -> dict[str, Sums]:
        """Of each role, what ended since this catalog began, and in the day before."""
        with self._lock:
            return {role: replace(sums, ended=dict(sums.ended)) for role, sums in self._curves.sums.items()}

    def tasks(self) -> dict[str, list[Row]]:
        with self._lock:
            return self._book.tasks()

    def row(self, job_id: str) -> Row | None:
        with self._lock:
            row = self._book.get(job_id)
        if row is not None:
            self._read([row])
        return row

    def names(self) -> Mapping[str, str]:
        """Job id → its name."""
        now_s = self._clock.monotonic_s()
        if now_s - self._names[0] > NAMES_S:
            self._names = (now_s, {job_id: name for name, job_id in self._store.names().items()})
        return self._names[1]

    # --- taking in ---

    def _take(self, row: Row | None, change: Change, now_ms: int, begun: bool = False) -> list[Told]:
        """`begun`: it was in progress between what the book says and this."""
        place = place_of(change)
        if row is None:
            created = making.minted_ms(change.job_id) or now_ms
            row = Row(change.job_id, change.role, change.status, place, making.key_of(change.job_id, created), now_ms)
            row.claimed_ms = now_ms if begun else None
            self._add(row)
            return [Told(change.job_id, change.role, change.status, None, None)]
        was, was_role = row.status, row.role
        if row.fresh and row.standing is not None and row.standing.terminal and change.status is not was:
            return []  # it was read after this happened: what is final does not change any more
        if change.status is Status.QUEUED and place == places.WAITING and change.role is None:
            role = was_role
        else:
            role = change.role
        self._book.move(row, role, change.status, place, now_ms)
        row.fresh = False
        if begun:
            row.claimed_ms, row.counted = row.claimed_ms or now_ms, False
        self._unread[row.job_id] = None
        self._count(row, now_ms)
        return [Told(row.job_id, row.role, row.status, was, was_role)]

    def _add(self, row: Row) -> None:
        self._book.add(row)
        self._unread[row.job_id] = None
        if row.changed_ms - making.created_ms(row) < KEPT_S * 1000:
            self._curves.enqueued(row.role or "-", making.created_ms(row))
        if self.ready:
            self._count(row, row.changed_ms)

    def _count(self, row: Row, now_ms: int) -> None:
        """Into the curves: a job that ended, once; one that is queued again may end again."""
        if row.status is Status.IN_PROGRESS and row.claimed_ms is None:
            row.claimed_ms = now_ms
        if row.status not in _ENDED:
            row.counted = False
        elif not row.counted:
            self._ended(row, now_ms, row.claimed_ms)

    def _ended(self, row: Row, at_ms: int, claimed_ms: int | None) -> None:
        row.counted = True
        created = making.created_ms(row)
        wait_s = None if claimed_ms is None else max(0, claimed_ms - created) / 1000
        self._curves.ended(row.role or "-", str(row.status), at_ms, max(0, at_ms - created) / 1000, wait_s)

    def _met(self, change: Change, now_ms: int) -> list[Told]:
        """A change of a job that is not in the book, and says too little by itself."""
        view = self._find(change.job_id)
        if view is None:
            return []
        created = making.milliseconds(view.lifecycle.created_at)
        created = making.minted_ms(change.job_id) or (now_ms if created is None else created)
        with self._lock:
            row = self._book.get(change.job_id)
            if row is not None:
                return self._take(row, change, now_ms)
            row = Row(
                change.job_id,
                view.lifecycle.role,
                view.status,
                view.place,
                making.key_of(change.job_id, created),
                now_ms,
            )
            self._add(row)
            self._keep(row, making.standing_of(view))
        return [Told(change.job_id, view.lifecycle.role, view.status, None, None)]

    # --- reading jobs ---

    def _read(self, chosen: Sequence[Row]) -> bool:
        """What these jobs say now; whether one of them was elsewhere than the book had it."""
        if not chosen:
            return False
        before = {row.job_id: row.number for row in chosen}
        moved = False
        prompts = self._prompts([row for row in chosen if row.about is None])
        for row in chosen:
            view = self._look(row)
            about = None
            if row.about is None and view is not None:
                about = making.about(prompts.get(row.job_id) or self._prompt(view))
            with self._lock:
                if about is not None:
                    row.about = about
                    row.describe()
                if self._book.get(row.job_id) is not row or row.number != before[row.job_id]:
                    moved = True
                    continue  # it changed meanwhile: whoever comes next reads it
                if view is None:
                    self._book.remove(row.job_id)
                    self._known.pop(row.job_id, None)
                    moved = True
                    continue
                if (view.status, view.lifecycle.role) != (row.status, row.role):
                    self._book.move(row, view.lifecycle.role, view.status, view.place, self.now_ms())
                    self._count(row, self.now_ms())
                    moved = True
                row.place = view.place
                self._keep(row, making.standing_of(view))
        return moved

    def _keep(self, row: Row, standing: Standing) -> None:
        self._book.stand(row, standing)
        self._unread.pop(row.job_id, None) if row.about is not None else None
        if row.status in _ENDED and not row.counted:
            at_ms = standing.finalized_ms or standing.updated_ms
            if at_ms is not None and self.now_ms() - at_ms < KEPT_S * 1000:
                self._ended(row, at_ms, standing.first_claimed_ms)
        self._known.pop(row.job_id, None)
        self._known[row.job_id] = None
        if len(self._known) > self._most_known:
            oldest = next(iter(self._known))
            del self._known[oldest]
            forgotten = self._book.get(oldest)
            if forgotten is not None and forgotten is not row:
                forgotten.standing, forgotten.about, forgotten.fresh = None, None, False
                forgotten.describe()

    def _look(self, row: Row) -> JobView | None:
        """From where the book has it, which is one read; else it is looked for everywhere."""
        if row.place.endswith(("/incoming", "/succeeded", "/failed", "/killed")) and tree.in_folders(self._store):
            with contextlib.suppress(OSError, FarroError):
                path = f"{self._store.root}/{row.place}/{row.job_id}/job.json"
                life = Lifecycle.from_json(fs.read_bytes(path, _JOB_LIMIT))
                if life.status is row.status and life.job_id == row.job_id:
                    return JobView(lifecycle=life, place=row.place)
        return self._find(row.job_id)

    def _find(self, job_id: str) -> JobView | None:
        return self._store.find(job_id)

    def _prompts(self, chosen: Sequence[Row]) -> Mapping[str, Mapping[str, Any]]:
        """Of a store without folders, all at once: a look at each would copy its files."""
        if not chosen or self._fleet is None:
            return {}
        return self._fleet.prompts([row.job_id for row in chosen])

    def _prompt(self, view: JobView) -> Mapping[str, Any]:
        return {} if self._fleet is not None else read_prompt(self._store.folder(view))

    # --- comparing ---

    def _compare(self, told: list[Told] | None) -> None:
        with self._lock:
            begun = self._book.newest
        seen: set[str] = set()
        for entries in in_lots(self._news(seen), 1000):
            read = [self._seen(entry, changed_ms) for entry, changed_ms in entries]
            with self._lock:
                for one in read:
                    self._meet(one, begun, told)
        with self._lock:
            missing = [row for row in self._book.rows() if row.job_id not in seen and row.number <= begun]
        for row in missing:
            if self._find(row.job_id) is None:
                with self._lock:
                    self._book.remove(row.job_id)
                    self._known.pop(row.job_id, None)
                if told is not None:
                    told.append(Told(row.job_id, row.role, None, row.status, row.role))

    def _news(self, seen: set[str]) -> Iterable[tuple[tree.Entry, int]]:
        """What differs from the book, at a first look, and when it changed; at first in that order, which is what "the
        last changed" begins with."""
        found = (
            (entry, int(entry.changed_at_s() * 1000))
            for entry in tree.entries(self._store, quarantined=True)
            if self._is_news(entry, seen)
        )
        return found if self.ready else sorted(found, key=lambda pair: pair[1])

    def _is_news(self, entry: tree.Entry, seen: set[str]) -> bool:
        seen.add(entry.job_id)
        row = self._book.get(entry.job_id)
        return row is None or (row.status, entry.role or row.role) != (entry.status, row.role)

    def _seen(self, entry: tree.Entry, changed_ms: int) -> Seen:
        created = making.minted_ms(entry.job_id)
        if entry.view is not None:
            life: Lifecycle | None = entry.view.lifecycle
        else:
            life = None if entry.role is not None and created is not None else entry.lifecycle()
        if created is None:
            created = changed_ms if life is None else making.milliseconds(life.created_at)
        return Seen(entry, entry.role if life is None else life.role, created or changed_ms, changed_ms)

    def _meet(self, one: Seen, begun: int, told: list[Told] | None) -> None:
        """A job on its way may be seen twice: the later place counts, unless the feed told more meanwhile."""
        entry = one.entry
        row = self._book.get(entry.job_id)
        if row is None:
            key = making.key_of(entry.job_id, one.created_ms)
            self._add(Row(entry.job_id, one.role, entry.status, entry.place, key, one.changed_ms))
            was, was_role = None, None
            if entry.view is not None:
                row = self._book.get(entry.job_id)
                assert row is not None
                self._keep(row, making.standing_of(entry.view))
        elif row.number <= begun and not (row.status is Status.STALE and entry.status is Status.IN_PROGRESS):
            was, was_role = row.status, row.role
            self._book.move(row, one.role, entry.status, entry.place, one.changed_ms)
            row.fresh = False
            self._unread[row.job_id] = None
            self._count(row, one.changed_ms)
        else:
            return
        if told is not None:
            told.append(Told(entry.job_id, one.role, entry.status, was, was_role))


def _final(row: Row) -> bool:
    """Nothing happens to it any more without a move that is told; a job that waits in its queue neither."""
    assert row.standing is not None
    return row.standing.terminal or row.status is Status.QUEUED
