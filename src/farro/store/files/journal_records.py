"""The records of the write-ahead journal: their format on the disk, and reading them.

    <boot>.<random>.a|b   head (magic, generation) in the first 4 KiB; then records, each with its length, checksum and
                          generation; then the remains of earlier generations, or zeros
    <boot>.failed         a sync of the filesystem failed in that boot: no journal of it may be freed before the next

A record counts when it is complete and of the head's generation; the first that is not ends the file. Rewriting a
sector with its present bytes plus more behind them is assumed to be safe when the power fails, as in every database's
log.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping

from farro.documents.json_text import encoder
from farro.errors import UnknownSchema
from farro.host import fs
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
