"""One file of a journal: made and filled with zeros, written through, begun again.

When it is written and freed, and by whom, lives in journal; what lies in it in records.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass

from farro.errors import FarroError
from farro.stores.files.forget import has_failed
from farro.stores.files.records import FOLDER, START, head
from farro.system import fs, leases


@dataclass(kw_only=True, slots=True, eq=False)
class JournalFile:
    path: str
    lease: leases.Lease  # tells others that its process lives
    generation: int = 1
    position: int = START  # of the next record
    unfinished: int = 0  # records whose folders are still being written
    awaited: bool = False  # somebody waits until there are none

    def write(self, data: bytes) -> None:
        """At its position, on the disk when this returns. OSError: nobody knows."""
        fs.write_through(self.lease.fd, self.path, data, self.position)

    def sync_everything(self) -> None:
        """The filesystem, by a descriptor that is older than the records: a new one would not hear of a failure that
        another process was told of."""
        fs.sync_filesystem(self.lease.fd, self.path)

    def begin_again(self) -> None:
        """Forget its records, on the disk. OSError: nobody knows whether they are; it must not be written any more."""
        fs.write_through(self.lease.fd, self.path, head(self.generation + 1), 0)
        self.generation += 1


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
    except BaseException as error:
        if lease is not None:
            lease.drop()
        if isinstance(error, OSError | FarroError):
            with contextlib.suppress(OSError):  # half of it: on a full disk of all places
                fs.unlink(path)
        raise
    return JournalFile(path=path, lease=lease)
