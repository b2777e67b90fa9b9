"""What goes through a journal: who waits for its records, and what it has in its hands then.

When they are written, and with whose, lives in journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farro.errors import SyncFailed
from farro.lazy_dataclass import dataclass
from farro.store.files.journal_file import JournalFile
from farro.store.files.journal_records import Record


class Careful(Exception):
    """Not through the journal, now or at all: nothing of the record is on the disk, or it will be forgotten."""


def told(failure: BaseException) -> SyncFailed:
    """What each member of a group hears of it."""
    what = SyncFailed(
        str(failure)
        if isinstance(failure, SyncFailed)
        else f"the journal: {failure}. Nothing of this group was acknowledged; check the device (dmesg) and restart"
    )
    what.__cause__ = failure
    return what


@dataclass(slots=True, eq=False)
class Ticket:
    records: Sequence[Record]
    file: JournalFile | None = None
    failure: BaseException | None = None
    done: bool = False


class Keeper(Protocol):
    """A journal, as seen from here."""

    def finished(self, file: JournalFile, number: int) -> None: ...

    def end(self, begun: Begun) -> Entry | None: ...


class Entry:
    """Records that are on the disk. `finished` when their folders are written: only then may they be forgotten."""

    __slots__ = ("_file", "_journal", "_number")

    def __init__(self, journal: Keeper, file: JournalFile, number: int) -> None:
        self._journal, self._file, self._number = journal, file, number

    def finished(self) -> None:
        self._journal.finished(self._file, self._number)


class Begun:
    """Records that are on their way. Nobody else writes into the journal until `end`, which must come whatever happens
    in between, and soon."""

    __slots__ = ("_journal", "data", "file", "number")

    def __init__(self, journal: Keeper, file: JournalFile, number: int, data: bytes) -> None:
        self._journal, self.file, self.number, self.data = journal, file, number, data

    def end(self) -> Entry | None:
        """Return when they are on the disk. None: they are not, and the caller syncs what it writes. SyncFailed: nobody
        knows."""
        return self._journal.end(self)
