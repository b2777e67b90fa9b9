"""One file of a journal: made and filled with zeros, written through, begun again.

When it is written and freed, and by whom, lives in journal; what lies in it in records.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from farro.errors import FarroError
from farro.host import async_write as ahead
from farro.host import fs, leases
from farro.host.async_write import AsyncWriter
from farro.lazy_dataclass import dataclass
from farro.store.files.journal_cleanup import has_failed
from farro.store.files.journal_records import FOLDER, START, head, sealed


@dataclass(kw_only=True, slots=True, eq=False)
class JournalFile:
    path: str
    lease: leases.Lease  # tells others that its process lives
    generation: int = 1
    position: int = START  # of the next record
    unfinished: int = 0  # records whose folders are still being written
    awaited: bool = False  # somebody waits until there are none
    direct: bool = False  # a third of what a small synchronous write costs is the page cache's, where it stops there
    ahead: AsyncWriter | None = None  # where a write can be begun, and its caller goes on
    _begun: bytes = b""  # what is written already of the block in which `position` lies

    def sealed(self, payloads: Iterable[bytes]) -> bytes:
        """Records, as they lie in it."""
        return b"".join(sealed(payload, self.generation) for payload in payloads)

    def write(self, data: bytes) -> None:
        """At its position, on the disk when this returns. OSError: nobody knows.

        Whole blocks: no filesystem writes less, and only those can pass the page cache.
        """
        if self.ahead is not None:
            self.ahead.settle()  # what was begun, and came to nothing
        whole = self._begun + data
        self._through(_blocks(whole), self.position - len(self._begun))
        self._begun = whole[len(whole) - len(whole) % fs.BLOCK :]

    def _through(self, blocks: bytes, offset: int) -> None:
        try:
            fs.write_through(self.lease.fd, self.path, blocks, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            self.direct = fs.pass_the_cache(self.lease.fd, False)  # it wants larger blocks than ours
            self._no_more_ahead()
            fs.write_through(self.lease.fd, self.path, blocks, offset)

    def _no_more_ahead(self) -> None:
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.close()

    def begin(self, data: bytes) -> bool:
        """As `write`, but it returns at once, and `end` when it is on the disk. False: not begun."""
        whole = _blocks(self._begun + data)
        if self.ahead is None or not self.ahead.takes(whole):
            return False
        try:
            fs.begin_write(self.ahead, self.lease.fd, self.path, whole, self.position - len(self._begun))
        except OSError:
            self._no_more_ahead()
            return False
        return True

    def end(self, data: bytes) -> None:
        """OSError: nobody knows."""
        assert self.ahead is not None
        whole = self._begun + data
        fs.write_through(self.lease.fd, self.path, _blocks(whole), self.position - len(self._begun), self.ahead)
        self._begun = whole[len(whole) - len(whole) % fs.BLOCK :]

    def sync_everything(self) -> None:
        """The filesystem, by a descriptor that is older than the records: a new one would not hear of a failure that
        another process was told of."""
        fs.sync_filesystem(self.lease.fd, self.path)

    def begin_again(self) -> None:
        """Forget its records, on the disk. OSError: nobody knows whether they are; it must not be written any more."""
        self._through(_blocks(head(self.generation + 1)), 0)
        self.generation += 1
        self._begun = b""

    def drop(self) -> None:
        self._no_more_ahead()
        self.lease.drop()


def _blocks(data: bytes) -> bytes:
    """Filled up with zeros: nothing comes behind it yet."""
    return data + bytes(-len(data) % fs.BLOCK)


def make(root: str, boot_id: str, name: str, size: int) -> JournalFile:
    """A new one of `size` bytes, on the disk with its name. OSError: there is none, and nothing is left of it. That is
    for whoever lists the folder meanwhile, too: a watchdog that takes the lock before us takes it for a dead one's."""
    folder = f"{root}/{FOLDER}"
    path = f"{folder}/{boot_id}.{name}"
    if has_failed(root, boot_id):  # what it would say could not be forgotten before the machine starts again
        raise OSError(errno.EIO, "a sync failed since this machine started", path)
    lease: leases.Lease | None = None
    try:
        if not fs.exists(folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
            fs.sync_all([os.path.dirname(folder)])
        lease = leases.create(path, head(1) + bytes(size - len(head(1))))
        fs.sync_all([path, folder])
        direct = fs.pass_the_cache(lease.fd, True)
        return JournalFile(path=path, lease=lease, direct=direct, ahead=ahead.made() if direct else None)
    except BaseException as error:
        if lease is not None:
            lease.drop()
        if isinstance(error, OSError | FarroError):
            with contextlib.suppress(OSError):  # half of it: on a full disk of all places
                fs.unlink(path)
        raise
