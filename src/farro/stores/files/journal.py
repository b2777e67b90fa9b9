"""The write-ahead journal: with durability `power`, one synchronous write stands for all syncs of an enqueue or commit.

What a record means after a power cut lives in replay. Alternatives and figures: docs/decisions/0007.

A process that enqueues or commits more than a few jobs keeps two files in jobs/.journal, filled with zeros beforehand,
so that a record is one write into blocks that exist: no change of the filesystem's own metadata, whatever filesystem it
is. First the record, then the job's folder without any sync: on a crash of the process the kernel has everything, and
after a power cut the record puts the folder right. When one file is full, or ten seconds after its first record, the
other takes over, the filesystem is synced, and the first is free again: the journal never holds what the tree alone
does not have for longer than that.

- A record is acknowledged when its write came back, never before. [test_power_cut_keeps_what_was_acknowledged]
- A file is freed only when everybody whose record is in it has written the folder too, and that is synced.
  [test_a_journal_is_freed_when_its_folders_are_synced]
- EIO: nobody of that group is acknowledged (R7). No space, or no such call here: the caller syncs the careful way.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farro.errors import SyncFailed
from farro.system import fs, leases
from farro.system.turns import RESTING

FOLDER = "jobs/.journal"
SIZE = 4 << 20
LARGEST = 256 << 10  # a record; what is larger is synced where it lies
EAGER_AFTER = 4  # enqueues and commits of a process before a journal pays for itself
FREE_AFTER_S = 10.0

_HEAD = struct.Struct("<8sQ")  # magic, generation
_MAGIC = b"farro-j1"
_RECORD = struct.Struct("<IIQ")  # length, checksum, generation
_START = 4096
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS})
_UNABLE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One enqueue or commit: what is needed to make the job's folder say it again."""

    kind: str  # enqueue, commit
    job_id: str
    role: str  # of the queue that it entered, or in which it was worked
    life: bytes  # job.json
    files: Mapping[str, bytes]  # enqueue: in the job's folder; commit: in the attempt's
    attempt: int = 0
    staged: str | None = None  # enqueue: its name in jobs/.staging
    order: int = 0  # among the records of its process

    @property
    def size(self) -> int:
        return len(self.life) + sum(map(len, self.files.values()))

    def encode(self, order: int) -> bytes:
        about = {
            "kind": self.kind,
            "job_id": self.job_id,
            "role": self.role,
            "attempt": self.attempt,
            "staged": self.staged,
            "order": order,
            "life": len(self.life),
            "files": [(name, len(data)) for name, data in self.files.items()],
        }
        return b"".join((json.dumps(about).encode(), b"\n", self.life, *self.files.values()))

    @classmethod
    def decode(cls, payload: bytes) -> Record:
        line, _, rest = payload.partition(b"\n")
        about = json.loads(line)
        at = about.pop("life")
        life, files = rest[:at], {}
        for name, size in about.pop("files"):
            files[name] = rest[at : at + size]
            at += size
        return cls(life=life, files=files, **about)


@dataclass(kw_only=True, slots=True)
class _File:
    path: str
    lease: leases.Lease  # tells others that its process lives
    generation: int = 1
    position: int = _START
    unfinished: int = 0  # records whose folders are still being written


@dataclass(slots=True)
class _Ticket:
    records: Sequence[Record]
    file: _File | None = None
    failure: BaseException | None = None
    done: bool = False


class Entry:
    """Records that are on the disk. `finished` when their folders are written: only then may they be forgotten."""

    __slots__ = ("_file", "_journal", "_number")

    def __init__(self, journal: Journal, file: _File, number: int) -> None:
        self._journal, self._file, self._number = journal, file, number

    def finished(self) -> None:
        self._journal._finished(self._file, self._number)


@dataclass(kw_only=True)
class Journal:
    """One for a store object, safe for threads: records of several are written at once (group commit)."""

    root: str
    boot_id: str
    random_bits: Callable[[int], int]
    eager_after: int = EAGER_AFTER
    size: int = SIZE
    background: bool = True  # free files from a thread of its own; else when the other is full, and at the end
    _asked: int = 0
    _usable: bool = True
    _files: list[_File] = field(default_factory=list)
    _active: _File | None = None
    _full: list[_File] = field(default_factory=list)  # to be freed
    _order: int = 0
    _waiting: list[_Ticket] = field(default_factory=list)
    _leading: bool = False
    _closing: bool = False
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()  # guards everything above but `_order`, which is the leader's
        self._usable = bool(self.boot_id) and hasattr(os, "RWF_DSYNC")

    def write(self, records: Sequence[Record]) -> Entry | None:
        """Return when all of them are on the disk. None: not journalled, the caller syncs what it writes."""
        if not self._usable or sum(record.size + 512 for record in records) > LARGEST:
            return None
        ticket = _Ticket(records)
        with self._changed:
            self._asked += 1
            if self._asked <= self.eager_after:
                return None
        with RESTING:
            self._written(ticket)
        if ticket.failure is not None:
            raise SyncFailed(f"the journal could not be written: {ticket.failure}") from ticket.failure
        return None if ticket.file is None else Entry(self, ticket.file, len(records))

    def _written(self, ticket: _Ticket) -> None:
        """Return when it is: by whoever leads meanwhile, or by us, with all that have come by then."""
        with self._changed:
            self._waiting.append(ticket)
            while self._leading and not ticket.done:
                self._changed.wait()
            if ticket.done:
                return
            self._leading = True
            group, self._waiting = self._waiting, []
        self._lead(group)

    def _lead(self, group: list[_Ticket]) -> None:
        file: _File | None = None
        failure: BaseException | None = None
        try:
            file = self._append(group)
        except OSError as error:
            if error.errno in _UNABLE:
                self._usable = False
            elif error.errno not in _FULL:
                failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                for ticket in group:
                    ticket.file, ticket.failure, ticket.done = file, failure, True
                self._leading = False
                self._changed.notify_all()

    def _append(self, group: list[_Ticket]) -> _File:
        payloads = []
        for ticket in group:
            for record in ticket.records:
                self._order += 1
                payloads.append(record.encode(self._order))
        file = self._room(sum(len(payload) + _RECORD.size for payload in payloads))
        data = b"".join(
            part for payload in payloads for part in (_RECORD.pack(len(payload), *_seal(payload, file)), payload)
        )
        fs.write_through(file.lease.fd, file.path, data, file.position)
        with self._changed:
            file.position += len(data)
            file.unfinished += len(payloads)
            if self._thread is None and self.background:
                self._thread = threading.Thread(target=self._free_for_ever, name="journal", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return file

    def _room(self, size: int) -> _File:
        """The file that takes so much more; waits until the other one is free when this one is full."""
        if self._active is None:
            self._active = self._make("a")
        if self._active.position + size > self.size:
            if len(self._files) < 2:
                self._make("b")
            with self._changed:
                self._full.append(self._active)
                self._changed.notify_all()
            if not self.background:
                self._free(self._full[0])
            with self._changed:
                while not (free := [file for file in self._files if file not in self._full]):
                    self._changed.wait()
                self._active = free[0]
        return self._active

    def _make(self, name: str) -> _File:
        folder = f"{self.root}/{FOLDER}"
        if not fs.exists(folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
            fs.sync_all([os.path.dirname(folder)])
        path = f"{folder}/{self.boot_id}.{self.random_bits(64):016x}.{name}"
        lease = leases.create(path, _HEAD.pack(_MAGIC, 1) + bytes(self.size - _HEAD.size))
        file = _File(path=path, lease=lease)
        try:
            fs.sync_all([path, folder])
        except BaseException:
            lease.drop()
            raise
        self._files.append(file)
        return file

    # --- freeing ---

    def _finished(self, file: _File, number: int) -> None:
        with self._changed:
            file.unfinished -= number
            if file.unfinished == 0:
                self._changed.notify_all()

    def _free_for_ever(self) -> None:
        while True:
            with self._changed:
                while not self._closing and not self._full and not self._holds_something():
                    self._changed.wait()
                if not self._closing and not self._full:
                    self._changed.wait(FREE_AFTER_S)
                if self._closing:
                    return
                full = self._full[0] if self._full else None
            try:
                if full is not None:
                    self._free(full)
                else:
                    self._change_over()
            except OSError:
                pass  # the records stay, and stand for what is not synced; whoever writes next waits or is told

    def _holds_something(self) -> bool:
        return self._active is not None and self._active.position > _START

    def _change_over(self) -> None:
        """Free a file that is not full: an idle process leaves nothing to replay."""
        with self._changed:
            while self._leading:  # `_active` is the leader's
                self._changed.wait()
            if self._active is None or self._full or not self._holds_something():
                return
            self._leading = True
        try:
            if len(self._files) < 2:
                self._make("b")
            with self._changed:
                old = self._active
                self._active = next(file for file in self._files if file is not old)
                self._full.append(old)
        finally:
            with self._changed:
                self._leading = False
                self._changed.notify_all()
        self._free(old)

    def _free(self, file: _File) -> None:
        with self._changed:
            while file.unfinished:
                self._changed.wait()
        fs.sync_filesystem(self.root)
        file.generation += 1
        fs.write_through(file.lease.fd, file.path, _HEAD.pack(_MAGIC, file.generation), 0)
        with self._changed:
            file.position = _START
            self._full.remove(file)
            self._changed.notify_all()

    def close(self) -> None:
        """Everything is synced, and the files go. Nobody may be writing any more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        files, self._files, self._active, self._usable = self._files, [], None, False
        try:
            if files:
                fs.sync_filesystem(self.root)
            for file in files:
                fs.unlink(file.path)
        except OSError:
            pass  # a watchdog frees what a dead process left
        finally:
            for file in files:
                file.lease.drop()


def _seal(payload: bytes, file: _File) -> tuple[int, int]:
    return zlib.crc32(payload, file.generation & 0xFFFFFFFF), file.generation


def read(path: str) -> Iterator[Record]:
    """The records of a journal file, up to the first that is not whole."""
    data = fs.read_bytes(path)
    if len(data) < _START:
        return
    magic, generation = _HEAD.unpack_from(data)
    at = _START
    while magic == _MAGIC and at + _RECORD.size <= len(data):
        length, checksum, of = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        payload = data[at : at + length]
        if of != generation or len(payload) != length or zlib.crc32(payload, of & 0xFFFFFFFF) != checksum:
            return
        yield Record.decode(payload)
        at += length


def names(root: str) -> list[str]:
    try:
        return [name for name in fs.listdir(f"{root}/{FOLDER}") if not name.startswith(".")]
    except FileNotFoundError:
        return []


def mentioned(root: str) -> frozenset[str]:
    """The ids of all jobs of which a journal speaks."""
    found: set[str] = set()
    for name in names(root):
        with contextlib.suppress(FileNotFoundError):
            found.update(record.job_id for record in read(f"{root}/{FOLDER}/{name}"))
    return frozenset(found)


def sweep(root: str, boot_id: str) -> list[str]:
    """Free the journals of processes that died since the machine started: their folders are written, as far as they
    were, and only have to be synced."""
    dead: list[tuple[str, leases.Lease]] = []
    try:
        for name in names(root):
            path = f"{root}/{FOLDER}/{name}"
            if name.startswith(f"{boot_id}."):
                try:
                    lease = leases.take(path)
                except FileNotFoundError:
                    continue
                if lease is not None:
                    dead.append((path, lease))
        if dead:
            fs.sync_filesystem(root)
        for path, _ in dead:
            fs.unlink(path)
        return [path.rsplit("/", 1)[1] for path, _ in dead]
    finally:
        for _, lease in dead:
            lease.drop()
