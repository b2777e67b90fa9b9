"""One segment of the archive: a file of compressed records of finished jobs, with an index by id and one by time.

A segment is written under a temporary name, synced, and then never changed; it is only replaced as a whole (archive).

    farro archive 1\\n
    BLCK frames      records of several jobs, compressed together; a large job has a block of its own
    PAGE frames      the index by id: sorted lines `id, offset of the block, position in it, time, role, status, hash`
    IDIX frame       for each page its offset and first id (JSON)
    TMIX frame       for each block its offset, the times of its first and last job, and their kinds (JSON)
    DROP frame       ids of jobs that this segment no longer holds and whose names are to be freed (JSON)
    FOOT frame       the number of jobs, their counts, first and last id and time, the offsets above (JSON)
    end              the offset of the FOOT frame, its CRC-32, "farroend"

A frame is its kind (4 bytes), the length and the CRC-32 of its data (4 bytes each), and the data; BLCK data is zlib's.
A record is the length of its header and of its body (4 bytes each), the header, and the body: the content of all
files, in the header's order. The header (JSON) has the id, role, status, time and hash, and `tree`: for each folder,
file and link its name, kind, mode, time relative to the folder's, and size or target. Times are those of the job's
folder, in nanoseconds. The hash is that of a chosen id's content (chosen_ids); it is empty for other ids.

- The index is redundant: where it is damaged it is rebuilt from the blocks. [test_a_lost_index_is_rebuilt]
- So is an index in a sector that the disk cannot read. [test_an_unreadable_sector_of_the_index_costs_nothing_else]
- A damaged block costs the jobs in it and no others. [test_a_damaged_block_costs_only_its_own_jobs]
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from farro.errors import Damaged
from farro.host import fs

MAGIC = b"farro archive 1\n"
BLOCK_BYTES = 64 << 10  # of records before compression
MAX_JOB_BYTES = 16 << 20  # a larger job stays a folder: compressing it saves little, and each look would unpack it
_PAGE_LINES = 128
_FULL = BLOCK_BYTES // 16  # a smaller compressed block is packed again with its neighbours
_FRAME = struct.Struct(">4sII")
_UNREADABLE = _FRAME.pack(b"BLCK", 0, 1)  # its checksum is wrong, so that its jobs are shown as damaged
_RECORD = struct.Struct(">II")
_END = struct.Struct(">QI8s")
_END_MAGIC = b"farroend"
_TAIL = 8192
_SECTOR = 4096  # what a disk may fail to read


class ArchivedJob(NamedTuple):
    """One line of the index."""

    job_id: str
    block: int  # offset of the block in the file
    slot: int  # position in the block
    changed_ns: int  # the time of the job's folder
    role: str
    status: str
    digest: str  # of a chosen id's content; empty: the id was minted

    @property
    def kind(self) -> str:
        return f"{self.role}/{self.status}"

    def line(self) -> str:
        return "\t".join(map(str, self))


class ArchiveRecord(NamedTuple):
    """A job as it is in a block."""

    header: Mapping[str, Any]
    body: memoryview

    def files(self) -> Iterator[tuple[str, memoryview]]:
        """Yield each file's name and content."""
        at = 0
        for name, kind, _, _, extra in self.header["tree"]:
            if kind == "f":
                yield name, self.body[at : at + extra]
                at += extra

    def content(self, name: str) -> bytes | None:
        return next((bytes(data) for each, data in self.files() if each == name), None)


class BlockSpan(NamedTuple):
    """A line of the index by time."""

    offset: int
    first_ns: int
    last_ns: int
    kinds: Sequence[int]  # positions in the sorted kinds of the segment


# --- one job ---------------------------------------------------------------------------------------------------------


def tree_of(path: str) -> list[list[Any]] | None:
    """List a job's folder as the `tree` of its record. None: something in it cannot be archived (a socket, a file of
    another user, more than `MAX_JOB_BYTES`)."""
    rows: list[list[Any]] = []
    top = fs.lstat(path)
    seen: dict[int, str] = {}
    total = 0

    def visit(here: str, below: str) -> bool:
        nonlocal total
        with os.scandir(here) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
        for entry in inside:
            name = f"{below}{entry.name}"
            status = entry.stat(follow_symlinks=False)
            mode, when = stat.S_IMODE(status.st_mode), status.st_mtime_ns - top.st_mtime_ns
            if stat.S_ISDIR(status.st_mode):
                rows.append([name, "d", mode, when, 0])
                if not visit(entry.path, f"{name}/"):
                    return False
            elif stat.S_ISLNK(status.st_mode):
                rows.append([name, "l", mode, when, os.readlink(entry.path)])
            elif not stat.S_ISREG(status.st_mode):
                return False
            elif status.st_nlink > 1 and status.st_ino in seen:
                rows.append([name, "h", mode, when, seen[status.st_ino]])
            else:
                seen[status.st_ino] = name
                total += status.st_size
                rows.append([name, "f", mode, when, status.st_size])
            if total > MAX_JOB_BYTES or len(rows) > 100_000:
                return False
        return True

    rows.append(["", "d", stat.S_IMODE(top.st_mode), 0, 0])
    try:
        return rows if visit(path, "") else None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        return None


def pack(path: str, job_id: str, role: str, status: str, digest: str) -> tuple[ArchivedJob, bytes] | None:
    """Read a finished job's folder. None: it cannot be archived, or it changed while it was read."""
    tree = tree_of(path)
    if tree is None:
        return None
    at_ns = fs.lstat(path).st_mtime_ns
    parts = []
    for name, kind, _, _, extra in tree:
        if kind == "f":
            try:
                data = fs.read_bytes(f"{path}/{name}")
            except PermissionError:
                return None
            if len(data) != extra:
                return None
            parts.append(data)
    job = ArchivedJob(job_id, 0, 0, at_ns, role, status, digest)
    header = {"id": job_id, "role": role, "status": status, "at": at_ns, "digest": digest, "tree": tree}
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join(parts)
    return job, b"".join((_RECORD.pack(len(text), len(body)), text, body))


def unpack(record: ArchiveRecord, folder: str, *, exact: bool) -> None:
    """Make the job's folder from its record, with its times; `exact`: with its modes, too."""
    at_ns = record.header["at"]
    contents = dict(record.files())
    tree = record.header["tree"]
    for name, kind, _, _, extra in tree:
        path = f"{folder}/{name}" if name else folder
        if ".." in name.split("/") or name.startswith("/"):
            raise Damaged(f"an archived job has a file called {name!r}")
        if kind == "d":
            fs.mkdir(path)
        elif kind == "f":
            fs.create(path, bytes(contents[name]))
        elif kind == "h":
            fs.link(f"{folder}/{extra}", path)
        else:
            fs.symlink(extra, path)
    for name, kind, mode, when, _ in reversed(tree):  # a folder after what is in it
        path = f"{folder}/{name}" if name else folder
        if kind in ("d", "f"):
            fs.set_mtime_ns(path, at_ns + when)
            if exact:
                fs.set_mode(path, mode)


# --- writing ---------------------------------------------------------------------------------------------------------


class SegmentWriter:
    """Write a segment under a temporary name. A caller that gives up calls `discard`."""

    def __init__(self, folder: str) -> None:
        self.path = fs.temporary(folder)
        self._fd = fs.create_file(self.path)
        self._at = 0
        self._jobs: list[ArchivedJob] = []
        self._open: list[tuple[ArchivedJob, bytes]] = []
        self._open_bytes = 0
        self._blocks: list[tuple[int, list[ArchivedJob]]] = []
        self._fresh = 0
        self._put(MAGIC)

    @property
    def count(self) -> int:
        return len(self._jobs) + len(self._open)

    def begin_fresh(self) -> None:
        """Say that the jobs from here on still have their folders."""
        self._end_block()
        self._fresh = self._at

    def add(self, job: ArchivedJob, record: bytes) -> None:
        if self._open and self._open_bytes + len(record) > BLOCK_BYTES:
            self._end_block()
        self._open.append((job, record))
        self._open_bytes += len(record)

    def take_over(self, segment: Segment, without: frozenset[str] = frozenset()) -> None:
        """Copy the jobs of another segment: full blocks as they are, small ones packed again."""
        by_block: dict[int, list[ArchivedJob]] = {}
        for job in segment.jobs():
            if job.job_id not in without:
                by_block.setdefault(job.block, []).append(job)
        for span in segment.blocks:
            kept = by_block.get(span.offset, [])
            if not kept:
                continue
            try:
                frame = segment.frame(span.offset)
            except Damaged:  # the index keeps these jobs, and the file is kept for a rescue by hand
                segment.keep_file()
                frame = _UNREADABLE
            whole = len(frame) >= _FULL and len(kept) == segment.block_jobs[span.offset]
            records = None
            if not whole:
                with contextlib.suppress(Damaged):
                    records = segment.records(span.offset)
            if records is None:  # copied as it is, even if damaged: what cannot be read cannot be packed again
                self._end_block()
                self._blocks.append((self._at, [job._replace(block=self._at) for job in kept]))
                self._jobs += self._blocks[-1][1]
                self._put(frame)
                continue
            for job in kept:
                self.add(job, records[job.slot])

    def close(self, *, replaces: Sequence[str] = (), dropped: Iterable[str] = ()) -> None:
        """Write the index and the end."""
        self._end_block()
        jobs = sorted(self._jobs)
        pages: list[tuple[int, str]] = []
        for begin in range(0, len(jobs), _PAGE_LINES):
            lines = jobs[begin : begin + _PAGE_LINES]
            pages.append((self._at, lines[0].job_id))
            self._frame(b"PAGE", ("\n" + "\n".join(job.line() for job in lines) + "\n").encode())
        counts: dict[str, int] = {}
        for job in jobs:
            counts[job.kind] = counts.get(job.kind, 0) + 1
        kinds = {kind: number for number, kind in enumerate(sorted(counts))}
        spans = []
        for offset, inside in self._blocks:
            times = [job.changed_ns for job in inside]
            spans.append([offset, min(times), max(times), sorted({kinds[job.kind] for job in inside}), len(inside)])
        foot = {
            "jobs": len(jobs),
            "counts": counts,
            "first_id": jobs[0].job_id if jobs else "",
            "last_id": jobs[-1].job_id if jobs else "",
            "first_ns": min((job.changed_ns for job in jobs), default=0),
            "last_ns": max((job.changed_ns for job in jobs), default=0),
            "fresh": self._fresh,
            "replaces": list(replaces),
            "pages": self._json(b"IDIX", pages),
            "blocks": self._json(b"TMIX", spans),
            "dropped": self._json(b"DROP", list(dropped)),
        }
        at = self._at
        data = json.dumps(foot, separators=(",", ":")).encode()
        self._frame(b"FOOT", data)
        self._put(_END.pack(at, zlib.crc32(data), _END_MAGIC))
        os.close(self._fd)
        self._fd = -1

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            fs.unlink(self.path)

    def _end_block(self) -> None:
        if not self._open:
            return
        jobs = [job._replace(block=self._at, slot=slot) for slot, (job, _) in enumerate(self._open)]
        self._jobs += jobs
        self._blocks.append((self._at, jobs))
        self._frame(b"BLCK", zlib.compress(b"".join(record for _, record in self._open), 6))
        self._open.clear()
        self._open_bytes = 0

    def _json(self, kind: bytes, value: Any) -> int:
        at = self._at
        self._frame(kind, json.dumps(value, separators=(",", ":")).encode())
        return at

    def _frame(self, kind: bytes, data: bytes) -> None:
        self._put(_FRAME.pack(kind, len(data), zlib.crc32(data)) + data)

    def _put(self, data: bytes) -> None:
        fs.write(self._fd, data)
        self._at += len(data)


# --- reading ---------------------------------------------------------------------------------------------------------


class Segment:
    """A segment file, opened anew for each read. FileNotFoundError: it was replaced meanwhile."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = f"{folder}/{name}"
        self.damage: str | None = None  # why the index had to be rebuilt
        try:
            self._foot: Mapping[str, Any] = self._read_foot()
        except (Damaged, ValueError, LookupError) as error:
            self._rebuild(str(error))

    @property
    def unfinished(self) -> bool:
        """Return whether the folders of its newest jobs may still exist."""
        return self.name.endswith(".new")

    def __len__(self) -> int:
        count: int = self._foot["jobs"]
        return count

    @property
    def counts(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self._foot["counts"]
        return found

    @property
    def last_ns(self) -> int:
        latest: int = self._foot["last_ns"]
        return latest

    @property
    def replaces(self) -> Sequence[str]:
        names: Sequence[str] = self._foot["replaces"]
        return names

    def dropped(self) -> Sequence[str]:
        if "dropped" not in self._foot:  # the index was rebuilt
            return ()
        try:
            found: Sequence[str] = json.loads(self._data(self._foot["dropped"], b"DROP"))
        except (Damaged, ValueError) as error:  # the names of these jobs stay taken
            self.damage = str(error)
            return ()
        return found

    def find(self, job_id: str) -> ArchivedJob | None:
        if not self._foot["first_id"] <= job_id <= self._foot["last_id"]:
            return None
        try:
            at = bisect_right(self._first_ids, job_id) - 1
            if at < 0:
                return None
            text = self._page(at)
        except (Damaged, ValueError) as error:
            self._rebuild(str(error))
            return self.find(job_id)
        begin = text.find(f"\n{job_id}\t".encode())
        return None if begin < 0 else _parsed(text[begin + 1 : text.index(b"\n", begin + 1)])

    def jobs(self, prefix: str = "") -> Iterator[ArchivedJob]:
        """Yield the jobs whose id begins with `prefix`, sorted by id."""
        try:
            pages = self._pages_of(prefix)
        except (Damaged, ValueError) as error:
            self._rebuild(str(error))
            pages = self._pages_of(prefix)
        start = prefix.encode()
        return (_parsed(line) for page in pages for line in page.split(b"\n") if line and line.startswith(start))

    def _pages_of(self, prefix: str) -> list[bytes]:
        begin = max(0, bisect_left(self._first_ids, prefix) - 1)
        end = bisect_right(self._first_ids, prefix + "\x7f") if prefix else len(self._first_ids)
        return [self._page(at) for at in range(begin, end)]

    @cached_property
    def blocks(self) -> Sequence[BlockSpan]:
        return [BlockSpan(*row[:4]) for row in self._block_rows]

    @cached_property
    def block_jobs(self) -> Mapping[int, int]:
        return {row[0]: row[4] for row in self._block_rows}

    def spans(self, kinds: frozenset[str] | None) -> Iterator[BlockSpan]:
        """Yield the blocks that hold a job of these kinds."""
        wanted = {number for number, kind in enumerate(sorted(self.counts)) if kinds is None or kind in kinds}
        return (span for span in self.blocks if not wanted.isdisjoint(span.kinds))

    def fresh_blocks(self) -> Iterator[BlockSpan]:
        """Yield the blocks of the jobs that had folders when this segment was written."""
        return (span for span in self.blocks if span.offset >= self._foot["fresh"])

    @cached_property
    def fresh_jobs(self) -> Sequence[ArchivedJob]:
        return [job for job in self.jobs() if job.block >= self._foot["fresh"]]

    def jobs_of(self, offset: int) -> list[ArchivedJob]:
        """Return the jobs of a block, from their records; of a damaged block, from the index."""
        try:
            records = self.records(offset)
        except Damaged:
            return [job for job in self.jobs() if job.block == offset]
        return [_of_header(parsed_record(each).header, offset, slot) for slot, each in enumerate(records)]

    def records(self, offset: int) -> list[bytes]:
        """Return the records of a block. Damaged: it cannot be read."""
        try:
            return _split(zlib.decompress(self._data(offset, b"BLCK")))
        except (zlib.error, struct.error) as error:
            raise Damaged(f"{self.path}: the block at {offset} cannot be read: {error}") from error

    def frame(self, offset: int) -> bytes:
        """Return a frame with its head, whatever state its data is in."""
        head = self._read(offset, _FRAME.size)
        return head + self._read(offset + _FRAME.size, _FRAME.unpack(head)[1])

    def keep_file(self) -> None:
        """Give the file a second name, under which it stays when the segment is replaced."""
        with contextlib.suppress(FileExistsError):
            fs.link(self.path, f"{self.path}.damaged")

    def damaged_blocks(self) -> int:
        """Read everything; return how many blocks are damaged."""
        found = 0
        for span in self.blocks:
            try:
                self._data(span.offset, b"BLCK")
            except Damaged:
                found += 1
        self.check_index()
        return found

    def check_index(self) -> None:
        """Read the whole index; a damaged one is rebuilt."""
        try:
            self._pages_of("")
            len(self._block_rows)
            self.dropped()
        except (Damaged, ValueError) as error:
            self._rebuild(str(error))

    @cached_property
    def size(self) -> int:
        return fs.lstat(self.path).st_size

    @cached_property
    def _pages(self) -> Sequence[Sequence[Any]]:
        pages: Sequence[Sequence[Any]] = json.loads(self._data(self._foot["pages"], b"IDIX"))
        return pages

    @cached_property
    def _first_ids(self) -> Sequence[str]:
        return [page[1] for page in self._pages]

    @cached_property
    def _block_rows(self) -> Sequence[Sequence[Any]]:
        try:
            rows: Sequence[Sequence[Any]] = json.loads(self._data(self._foot["blocks"], b"TMIX"))
        except (Damaged, ValueError) as error:
            self._rebuild(str(error))
            return self._block_rows
        return rows

    def _page(self, at: int) -> bytes:
        offset = self._pages[at][0]
        return offset if isinstance(offset, bytes) else self._data(offset, b"PAGE")

    def _data(self, offset: int, kind: bytes) -> bytes:
        head = self._read(offset, _FRAME.size)
        found, length, crc = _FRAME.unpack(head)
        if found != kind:
            raise Damaged(f"{self.path}: no {kind.decode()} frame at {offset}")
        data = self._read(offset + _FRAME.size, length)
        if zlib.crc32(data) != crc:
            raise Damaged(f"{self.path}: the {kind.decode()} frame at {offset} is damaged")
        return data

    def _read(self, offset: int, count: int) -> bytes:
        if count > self.size:
            raise Damaged(f"{self.path} ends at {self.size}")
        fd = fs.open_read(self.path)
        try:
            data = fs.read_at(fd, count, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Damaged(f"{self.path} cannot be read at {offset}: {error.strerror}") from error
        finally:
            os.close(fd)
        if len(data) < count:
            raise Damaged(f"{self.path} ends at {offset + len(data)}")
        return data

    def _read_foot(self) -> Mapping[str, Any]:
        size = self.size
        begin = max(0, size - _TAIL)
        tail = self._read(begin, size - begin)
        if len(tail) < _END.size:
            raise Damaged(f"{self.path} has no end")
        offset, crc, magic = _END.unpack(tail[-_END.size :])
        if magic != _END_MAGIC or offset > size:
            raise Damaged(f"{self.path} has no end")
        data = tail[offset - begin + _FRAME.size : -_END.size] if offset >= begin else self._data(offset, b"FOOT")
        if zlib.crc32(data) != crc:
            raise Damaged(f"{self.path}: its FOOT frame is damaged")
        foot: Mapping[str, Any] = json.loads(data)
        return foot

    def _rebuild(self, why: str) -> None:
        """Rebuild the index, in memory, from the blocks that can be read."""
        self.damage = why
        for name in ("_pages", "_first_ids", "_block_rows", "blocks", "block_jobs"):
            self.__dict__.pop(name, None)
        jobs: list[ArchivedJob] = []
        rows: list[list[Any]] = []
        at = 0
        while (at := self._next_block(at)) >= 0:
            try:
                records = [parsed_record(each) for each in self.records(at)]
                inside = [_of_header(each.header, at, slot) for slot, each in enumerate(records)]
                end = at + len(self.frame(at))
            except (Damaged, ValueError, LookupError):
                at += 1
                continue
            jobs += inside
            times = [job.changed_ns for job in inside]
            rows.append([at, min(times), max(times), inside, len(inside)])
            at = end
        jobs.sort()
        counts: dict[str, int] = {}
        for job in jobs:
            counts[job.kind] = counts.get(job.kind, 0) + 1
        kinds = {kind: number for number, kind in enumerate(sorted(counts))}
        for row in rows:
            row[3] = sorted({kinds[job.kind] for job in row[3]})
        self._foot = {
            "jobs": len(jobs),
            "counts": counts,
            "first_id": jobs[0].job_id if jobs else "",
            "last_id": jobs[-1].job_id if jobs else "",
            "last_ns": max((job.changed_ns for job in jobs), default=0),
            "fresh": 0,
            "replaces": [],
        }
        text = ("\n" + "\n".join(job.line() for job in jobs) + "\n").encode()
        self.__dict__["_pages"] = [[text, jobs[0].job_id]] if jobs else []
        self.__dict__["_block_rows"] = rows

    def _next_block(self, at: int) -> int:
        """Return where the next block may begin; -1: nowhere. Passes over sectors that cannot be read."""
        while at < self.size:
            end = min(self.size, (at + 3 + _SECTOR) // _SECTOR * _SECTOR)  # the word may begin in the sector before
            try:
                found = self._read(at, end - at).find(b"BLCK")
            except Damaged:
                at += _SECTOR - at % _SECTOR
                continue
            if found >= 0:
                return at + found
            if end == self.size:
                return -1
            at = end - 3
        return -1


def _of_header(header: Mapping[str, Any], block: int, slot: int) -> ArchivedJob:
    return ArchivedJob(header["id"], block, slot, header["at"], header["role"], header["status"], header["digest"])


def _parsed(line: bytes) -> ArchivedJob:
    job_id, block, slot, changed_ns, role, status, digest = line.decode().split("\t")
    return ArchivedJob(job_id, int(block), int(slot), int(changed_ns), role, status, digest)


def _split(data: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(data):
        head, body = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + head + body
        found.append(data[at:end])
        at = end
    return found


def parsed_record(record: bytes) -> ArchiveRecord:
    head, body = _RECORD.unpack_from(record, 0)
    begin = _RECORD.size
    try:
        header = json.loads(record[begin : begin + head])
    except ValueError as error:
        raise Damaged(f"the header of an archived job cannot be parsed: {error}") from error
    return ArchiveRecord(header, memoryview(record)[begin + head : begin + head + body])
