"""The files of the write-ahead journal: their format on the disk, their records, and writing and removing them.

    <boot>.<random>.a|b   head (magic, generation) in the first 4 KiB; then records, each with its length, checksum and
                          generation; then the remains of earlier generations, or zeros
    <boot>.failed         a sync of the filesystem failed in that boot: no journal of it may be freed before the next

A record counts when it is complete and of the head's generation; the first that is not ends the file. Rewriting a
sector with its present bytes plus more behind them is assumed to be safe when the power fails, as in every database's
log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from farro.documents.json_text import encoder
from farro.errors import FarroError, SyncFailed, UnknownSchema
from farro.host import async_write, fs, leases
from farro.host.async_write import AsyncWriter
from farro.lazy_dataclass import dataclass

FOLDER = "jobs/.journal"
START = 4096  # position of the first record
FAILED = ".failed"

_HEAD = struct.Struct("<8sQ")  # magic, generation
_MAGIC = b"farro-j1"
_RECORD = struct.Struct("<IIQ")  # length, checksum, generation
_encode = encoder(ensure_ascii=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One enqueue or commit: everything needed to restore the job's folder."""

    kind: str  # enqueue, commit; void: the enqueue of this id was refused after all
    job_id: str
    role: str  # of the queue that the job entered or was claimed from
    life: bytes  # job.json
    files: Mapping[str, bytes]  # enqueue: in the job's folder; commit: in the attempt's
    attempt: int = 0
    staged: str | None = None  # enqueue: its name in jobs/.staging
    order: int = 0  # among the records of its process
    digest: str | None = None  # enqueue of a chosen id: of its content, as the link in jobs/.ids has it

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
        if self.digest is not None:
            about["digest"] = self.digest
        return b"".join((_encode(about).encode(), b"\n", self.life, *self.files.values()))

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


def head(generation: int) -> bytes:
    return _HEAD.pack(_MAGIC, generation)


def sealed(payload: bytes, generation: int) -> bytes:
    """Return the bytes of a record in a file of that generation."""
    return _RECORD.pack(len(payload), _checksum(payload, generation), generation) + payload


def _checksum(payload: bytes, generation: int) -> int:
    return zlib.crc32(payload, generation & 0xFFFFFFFF)


def read(path: str) -> Iterator[Record]:
    """Yield the records of a journal file, up to the first incomplete one. A file without a valid head has none: its
    maker died before it wrote one. UnknownSchema: another version of farro wrote the file."""
    data = fs.read_bytes(path)
    if len(data) < START:
        return
    magic, generation = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        if magic.startswith(_MAGIC[:-1]):
            raise UnknownSchema(
                f"{path} was written by another version of farro, and what it holds is not in the jobs' folders yet; "
                "open this root with that version once"
            )
        return
    at = START
    while at + _RECORD.size <= len(data):
        length, checksum, of = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        payload = data[at : at + length]
        if of != generation or len(payload) != length or _checksum(payload, of) != checksum:
            return
        yield Record.decode(payload)
        at += length


def names(root: str) -> list[str]:
    """Return the names of all journal files, and of the marks of failed syncs."""
    try:
        return sorted(name for name in fs.listdir(f"{root}/{FOLDER}") if not name.startswith("."))
    except FileNotFoundError:
        return []


def mentioned(root: str) -> frozenset[str]:
    """Return the ids of all jobs that have a record in a journal."""
    found: set[str] = set()
    for name in names(root):
        with contextlib.suppress(FileNotFoundError):
            found.update(record.job_id for record in read(f"{root}/{FOLDER}/{name}"))
    return frozenset(found)


@dataclass(kw_only=True, slots=True, eq=False)
class JournalFile:
    """One preallocated file and the position of its next record."""

    path: str
    lease: leases.Lease  # shows other processes that ours is alive
    generation: int = 1
    position: int = START  # of the next record
    unfinished: int = 0  # records whose folders are still being written
    awaited: bool = False  # the freeing thread waits until `unfinished` is 0
    direct: bool = False  # bypasses the page cache, which causes a third of the cost of a small synchronous write
    ahead: AsyncWriter | None = None  # for writes that are started and awaited later
    _begun: bytes = b""  # the part of the block at `position` that is already written

    def sealed(self, payloads: Iterable[bytes]) -> bytes:
        """Return the bytes of these records in this file."""
        return b"".join(sealed(payload, self.generation) for payload in payloads)

    def write(self, data: bytes) -> None:
        """Write at the present position; the data is on the disk when this returns. OSError: it is unknown whether it
        is.

        Writes whole blocks: no filesystem writes less, and only whole blocks can bypass the page cache.
        """
        if self.ahead is not None:
            self.ahead.finish()  # a write that was started and abandoned
        whole = self._begun + data
        self._through(_blocks(whole), self.position - len(self._begun))
        self._begun = whole[len(whole) - len(whole) % fs.BLOCK :]

    def _through(self, blocks: bytes, offset: int) -> None:
        try:
            fs.write_through(self.lease.fd, self.path, blocks, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            self.direct = fs.bypass_cache(self.lease.fd, False)  # the device needs larger blocks than ours
            self._no_more_ahead()
            fs.write_through(self.lease.fd, self.path, blocks, offset)

    def _no_more_ahead(self) -> None:
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.close()

    def begin(self, data: bytes) -> bool:
        """Start a write and return at once; `end` returns when the data is on the disk. False: not started."""
        whole = _blocks(self._begun + data)
        if self.ahead is None or not self.ahead.accepts(whole):
            return False
        try:
            fs.begin_write(self.ahead, self.lease.fd, self.path, whole, self.position - len(self._begun))
        except OSError:
            self._no_more_ahead()
            return False
        return True

    def end(self, data: bytes) -> None:
        """Wait for the write that `begin` started. OSError: it is unknown whether the data is on the disk."""
        assert self.ahead is not None
        whole = self._begun + data
        fs.write_through(self.lease.fd, self.path, _blocks(whole), self.position - len(self._begun), self.ahead)
        self._begun = whole[len(whole) - len(whole) % fs.BLOCK :]

    def sync_everything(self) -> None:
        """Sync the filesystem through a descriptor that is older than the records: a new one would miss a failure that
        the kernel has already reported to another process."""
        fs.sync_filesystem(self.lease.fd, self.path)

    def begin_again(self) -> None:
        """Discard the records, durably, by a new generation number. OSError: it is unknown whether that happened, and
        the file must not be written any more."""
        self._through(_blocks(head(self.generation + 1)), 0)
        self.generation += 1
        self._begun = b""

    def drop(self) -> None:
        self._no_more_ahead()
        self.lease.drop()


def _blocks(data: bytes) -> bytes:
    """Pad with zeros to whole blocks."""
    return data + bytes(-len(data) % fs.BLOCK)


def make(root: str, boot_id: str, name: str, size: int) -> JournalFile:
    """Make a file of `size` bytes, durable with its name. OSError: there is none, and no remains are left. That covers
    a watchdog that lists the folder meanwhile and takes the lock before us, as if this were a dead process's file."""
    folder = f"{root}/{FOLDER}"
    path = f"{folder}/{boot_id}.{name}"
    if has_failed(root, boot_id):  # its records could not be freed before the machine restarts
        raise OSError(errno.EIO, "a sync failed since this machine started", path)
    lease: leases.Lease | None = None
    try:
        if not fs.exists(folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
            fs.sync_all([os.path.dirname(folder)])
        lease = leases.create(path, head(1) + bytes(size - len(head(1))))
        fs.sync_all([path, folder])
        direct = fs.bypass_cache(lease.fd, True)
        return JournalFile(path=path, lease=lease, direct=direct, ahead=async_write.async_writer() if direct else None)
    except BaseException as error:
        if lease is not None:
            lease.drop()
        if isinstance(error, OSError | FarroError):
            with contextlib.suppress(OSError):  # it may be incomplete, which matters on a full disk
                fs.unlink(path)
        raise


def mark_failed(root: str, boot_id: str) -> None:
    """Record that a sync of the filesystem failed: the journals of this boot may be the only copy of their records."""
    with contextlib.suppress(OSError):
        fs.create(f"{root}/{FOLDER}/{boot_id}{FAILED}", b"")


def has_failed(root: str, boot_id: str) -> bool:
    return fs.exists(f"{root}/{FOLDER}/{boot_id}{FAILED}")


def forget(root: str, boot_id: str, files: Sequence[tuple[str, leases.Lease]]) -> None:
    """Sync everything that the records describe, then remove the files durably: a file that reappeared after a power
    cut would restore a job that was pruned meanwhile. SyncFailed: the files stay."""
    if has_failed(root, boot_id):
        raise SyncFailed(f"a sync failed since this machine started: {root}/{FOLDER} is kept until it starts again")
    try:
        fs.sync_filesystem(files[0][1].fd, files[0][0])
    except OSError as error:
        mark_failed(root, boot_id)
        raise SyncFailed(f"{root}: sync failed: {error.strerror}; check the device (dmesg)") from error
    for path, _ in files:
        with contextlib.suppress(FileNotFoundError):  # found incomplete: its maker did not get the lock and removed it
            fs.unlink(path)
    fs.sync_all([f"{root}/{FOLDER}"])


def sweep(root: str, boot_id: str) -> list[str]:
    """Free the journals of processes that died since the machine started: what they wrote only has to be synced.
    [test_a_journal_of_a_dead_process_is_freed_by_a_watchdog]"""
    found = names(root)
    if not boot_id or f"{boot_id}{FAILED}" in found:
        return []
    dead: list[tuple[str, leases.Lease]] = []
    try:
        for name in found:
            if name.startswith(f"{boot_id}."):
                path = f"{root}/{FOLDER}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    lease = leases.take(path)
                    if lease is not None:
                        dead.append((path, lease))
        if dead:
            forget(root, boot_id, dead)
        return [path.rsplit("/", 1)[1] for path, _ in dead]
    finally:
        for _, lease in dead:
            lease.drop()
