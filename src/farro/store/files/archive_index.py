"""Find archived jobs: all segments of one root, as queries see them. Nothing here changes the archive.

- A job that has both a folder and a record is the folder's: queries look at the folders first, then here, and a job
  moves only in that direction, so that none is missed. [test_a_job_with_folder_and_record_is_seen_once]
- A segment that another one replaces is not read, so that its replacement appears in one step.
- A lookup reads one page of the index of each segment whose ids include the wanted one.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TypeVar

from farro.errors import Damaged, FarroError, StorageTrouble
from farro.host import fs, leases, trees
from farro.host.clock import Clock
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.store.files.archive_segment import ArchivedJob, ArchiveRecord, BlockSpan, Segment, parsed_record, unpack
from farro.store.port import JobEntry

FOLDER = "jobs/.archive"
COPIES = "jobs/.work"
_COPY = "look."
_COPIES = 64  # kept at once
_BLOCKS = 16  # read last and kept
_LEASE = ".lease"
_TRIES = 8
_TICK_S = 1.0  # longer than one tick of any filesystem's clock
T = TypeVar("T")


class ArchiveIndex:
    """The segments of one root. Safe for threads."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self.folder = f"{root}/{FOLDER}"
        self._segments: dict[str, Segment] = {}
        self._live: list[Segment] = []
        self._listed_ns = -1
        self._blocks: OrderedDict[tuple[str, int], list[bytes]] = OrderedDict()
        self._copies: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._copy_lease: tuple[str, leases.Lease] | None = None
        self._lock = threading.Lock()

    def segments(self) -> list[Segment]:
        """Return the segments, the newest first."""
        try:
            changed_ns = fs.lstat(self.folder).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns == self._listed_ns:
            return self._live
        names = sorted((name for name in fs.listdir(self.folder) if name.endswith((".seg", ".new"))), reverse=True)
        found: dict[str, Segment] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # it was replaced meanwhile
                found[name] = self._segments.get(name) or Segment(self.folder, name)
        replaced = {name for segment in found.values() for name in segment.replaces}
        live = [segment for name, segment in found.items() if name not in replaced]
        # Else a segment may appear within the same tick of the filesystem's clock.
        settled = self._clock.now().timestamp() - changed_ns / 1e9 > _TICK_S
        self._segments, self._live, self._listed_ns = found, live, changed_ns if settled else -1
        return live

    def forget_listing(self) -> None:
        """List the segments anew at the next call: this process has changed them."""
        self._listed_ns = -1

    def _read(self, read: Callable[[list[Segment]], T]) -> T:
        """Read from the segments; again when one of them was replaced meanwhile."""
        for _ in range(_TRIES):
            try:
                return read(self.segments())
            except FileNotFoundError:
                self._listed_ns = -1
        raise StorageTrouble(f"{self.folder}: segments keep vanishing; try again")

    def find(self, job_id: str) -> tuple[Segment, ArchivedJob] | None:
        return self._read(lambda segments: _find(segments, job_id))

    def locate(self, job_id: str) -> tuple[str, str, Status] | None:
        """Return an archived job's place, role and status."""
        found = self.find(job_id)
        return None if found is None else (place_of(found[1]), found[1].role, Status(found[1].status))

    def digest(self, job_id: str) -> str | None:
        """Return the hash of an archived chosen id's content, empty for a minted id; None: it is not archived."""
        found = self.find(job_id)
        return None if found is None else found[1].digest

    def lifecycle(self, job_id: str) -> Lifecycle:
        """Read an archived job. FileNotFoundError: it is gone. Damaged: its block is."""
        record = self.record(job_id)
        if record is None:
            raise FileNotFoundError(job_id)
        return lifecycle_of(record)

    def ids(self, prefix: str) -> list[str]:
        return self._read(lambda segments: [job.job_id for one in segments for job in one.jobs(prefix)])

    def record(self, job_id: str) -> ArchiveRecord | None:
        """Return a job's record; None: it is not archived. Damaged: its block is."""

        def read(segments: list[Segment]) -> ArchiveRecord | None:
            found = _find(segments, job_id)
            return None if found is None else self.record_in(*found)

        return self._read(read)

    def record_in(self, segment: Segment, job: ArchivedJob) -> ArchiveRecord:
        """Return a job's record from its segment. FileNotFoundError: that was replaced. Damaged: its block is."""
        key = segment.name, job.block
        with self._lock:
            records = self._blocks.get(key)
        if records is None:
            records = segment.records(job.block)
            with self._lock:
                self._blocks[key] = records
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
        return parsed_record(records[job.slot])

    def prompt(self, job_id: str) -> bytes | None:
        """Return the text of an archived job's prompt; empty if it cannot be read; None: it is not archived."""
        try:
            record = self.record(job_id)
        except Damaged:
            return b""
        return None if record is None else record.content("prompt.json") or b""

    def counts(self, roles: Collection[str] | None = None) -> Mapping[tuple[str, Status], int]:
        """Count the archived jobs of each role and status, without those that still have their folders."""

        def read(segments: list[Segment]) -> dict[tuple[str, Status], int]:
            found: dict[tuple[str, Status], int] = {}
            for segment in segments:
                both = self.with_folders(segment)
                for kind, count in segment.counts.items():
                    role, status = kind.split("/")
                    if roles is None or role in roles:
                        left = count - sum(job.kind == kind for job in both.values())
                        found[role, Status(status)] = found.get((role, Status(status)), 0) + left
            return found

        return self._read(read)

    def with_folders(self, segment: Segment) -> dict[str, ArchivedJob]:
        """Return the jobs of a segment that still have their folders."""
        if not segment.unfinished:
            return {}
        return {job.job_id: job for job in segment.fresh_jobs if fs.exists(self.folder_of(job))}

    def folder_of(self, job: ArchivedJob) -> str:
        """Return where the job's folder was."""
        return f"{self._root}/{place_of(job)}/{job.job_id}"

    def entries(self, roles: Collection[str] | None, statuses: Collection[Status] | None) -> Iterator[ArchivedEntry]:
        """Yield the archived jobs by id, segment by segment."""
        for name in self._read(lambda segments: [one.name for one in segments]):
            yield from self._read(partial(self._entries_in, name, roles, statuses))

    def _entries_in(
        self, name: str, roles: Collection[str] | None, statuses: Collection[Status] | None, segments: list[Segment]
    ) -> list[ArchivedEntry]:
        """Return the entries of one segment, or of the one that replaces it now."""
        kinds = _kinds(segments, roles, statuses)
        found = []
        for segment in segments:
            if (segment.name == name or name in segment.replaces) and not kinds.isdisjoint(segment.counts):
                both = self.with_folders(segment)
                found += [
                    self._entry(segment, job) for job in segment.jobs() if job.kind in kinds and job.job_id not in both
                ]
        return found

    def newest(self, roles: Collection[str] | None, statuses: Collection[Status] | None) -> Iterator[ArchivedEntry]:
        """Yield the archived jobs, the latest first. Reads only the blocks that it gets to."""
        segments = self.segments()
        kinds = _kinds(segments, roles, statuses)
        # What is not read yet comes before jobs of the same time: it may hold a later one.
        heap: list[tuple[int, int, str, int, Segment, BlockSpan | ArchivedJob | None]] = []
        for segment in segments:
            if not kinds.isdisjoint(segment.counts):
                heap.append((-segment.last_ns, 0, segment.name, 0, segment, None))
        heapq.heapify(heap)
        while heap:
            _, _, name, _, segment, part = heapq.heappop(heap)
            if isinstance(part, ArchivedJob):
                if not (segment.unfinished and fs.exists(self.folder_of(part))):
                    yield self._entry(segment, part)
            elif part is None:
                with contextlib.suppress(FileNotFoundError):  # replaced meanwhile: the jobs may be missed by this query
                    for span in segment.spans(kinds):
                        heapq.heappush(heap, (-span.last_ns, 1, name, span.offset, segment, span))
            else:
                with contextlib.suppress(FileNotFoundError):
                    for job in segment.jobs_of(part.offset):
                        if job.kind in kinds:
                            heapq.heappush(heap, (-job.changed_ns, 2, _backwards(job.job_id), 0, segment, job))

    def _entry(self, segment: Segment, job: ArchivedJob) -> ArchivedEntry:
        return ArchivedEntry(
            job_id=job.job_id,
            place=place_of(job),
            role=job.role,
            status=Status(job.status),
            archived=True,
            job=job,
            segment=segment,
            index=self,
        )

    def size_of(self, job_id: str) -> int:
        """Return a job's share of its segment; 0: it is not archived."""
        found = self.find(job_id)
        return 0 if found is None else found[0].size // max(1, len(found[0]))

    # --- copies for reading ---

    def copy(self, job_id: str) -> str:
        """Make a folder with the job's files, for reading, or return the one that this process has made."""
        found = self.find(job_id)
        if found is None:
            raise FileNotFoundError(job_id)
        key = job_id, found[1].changed_ns
        with self._lock:
            if key in self._copies:
                self._copies.move_to_end(key)
                return self._copies[key]
        record = self.record(job_id)
        if record is None:
            raise FileNotFoundError(job_id)
        with self._lock:
            if key in self._copies:  # another thread made it meanwhile
                return self._copies[key]
            folder = f"{self._copy_home()}/{job_id}.{found[1].changed_ns}"
            try:
                unpack(record, folder, exact=False)
            except OSError as error:
                raise StorageTrouble(
                    f"{folder}: {error.strerror}; an archived job is shown from a copy there. {fs.remedy(error.errno)}"
                ) from error
            self._copies[key] = folder
            if len(self._copies) > _COPIES:
                trees.remove_tree(self._copies.popitem(last=False)[1])
            return folder

    def _copy_home(self) -> str:
        if self._copy_lease is None:
            home = f"{self._root}/{COPIES}"
            name = f"{_COPY}{os.getpid()}.{os.urandom(4).hex()}"
            try:
                with contextlib.suppress(FileExistsError):
                    fs.mkdir(home)
                fs.mkdir_private(f"{home}/{name}")
                self._copy_lease = name, leases.create(f"{home}/{name}/{_LEASE}", f"pid {os.getpid()}\n".encode())
            except OSError as error:
                raise StorageTrouble(
                    f"{home}: {error.strerror}; an archived job is shown from a copy there. {fs.remedy(error.errno)}"
                ) from error
        return f"{self._root}/{COPIES}/{self._copy_lease[0]}"

    def close(self) -> None:
        """Remove the copies that this process made."""
        with self._lock:
            held, self._copy_lease = self._copy_lease, None
            self._copies.clear()
        if held is not None:
            with contextlib.suppress(OSError):  # the next recovery removes it
                trees.remove_tree(f"{self._root}/{COPIES}/{held[0]}")
            held[1].drop()


def sweep_copies(root: str) -> None:
    """Remove the copies of dead processes."""
    try:
        names = [name for name in fs.listdir(f"{root}/{COPIES}") if name.startswith(_COPY)]
    except FileNotFoundError:
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            lease = leases.take(f"{root}/{COPIES}/{name}/{_LEASE}")
            if lease is not None:
                trees.remove_tree(f"{root}/{COPIES}/{name}")
                lease.drop()


def place_of(job: ArchivedJob) -> str:
    return places.completed(job.role, Status(job.status))


def _find(segments: list[Segment], job_id: str) -> tuple[Segment, ArchivedJob] | None:
    for segment in segments:
        if (job := segment.find(job_id)) is not None:
            return segment, job
    return None


def _backwards(job_id: str) -> str:
    """Return a text that sorts as the id does in descending order: jobs of one time come like those with folders."""
    return job_id.translate(_BACKWARDS) + "\x7f"


_BACKWARDS = {code: 0x7E - code for code in range(0x7F)}


def _kinds(
    segments: list[Segment], roles: Collection[str] | None, statuses: Collection[Status] | None
) -> frozenset[str]:
    """Return the kinds in these segments that match."""
    found = set()
    for kind in {kind for segment in segments for kind in segment.counts}:
        role, status = kind.split("/")
        if (roles is None or role in roles) and (statuses is None or status in statuses):
            found.add(kind)
    return frozenset(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedEntry(JobEntry):
    """An archived job. Its block is read only for what the index does not say."""

    job: ArchivedJob
    segment: Segment
    index: ArchiveIndex

    def changed_at_s(self) -> float:
        return self.job.changed_ns / 1e9

    def lifecycle(self) -> Lifecycle | None:
        try:
            record: ArchiveRecord | None = self.index.record_in(self.segment, self.job)
        except FileNotFoundError:
            record = self.index.record(self.job_id)
        except (FarroError, OSError):
            return None
        try:
            return None if record is None else lifecycle_of(record)
        except FarroError:
            return None


def lifecycle_of(record: ArchiveRecord) -> Lifecycle:
    text = record.content("job.json")
    if text is None:
        raise Damaged(f"the record of {record.header['id']} has no job.json")
    return Lifecycle.from_json(text)
