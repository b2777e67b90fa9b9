"""The write-ahead journal: with durability `power`, one synchronous write stands for all syncs of an enqueue or commit.

Alternatives and figures: docs/decisions/one-journal-record-replaces-the-syncs.md.

A process that enqueues or commits more than a few jobs keeps two files in jobs/.journal. They are filled with zeros
beforehand, so that a record is one write into existing blocks and changes no metadata of the filesystem. The record is
written first, then the job's folder without any sync: after a crash of the process the kernel still has everything, and
after a power cut the replay corrects the folder from the record. When one file is full, or ten seconds after its first
record, the other takes over, the filesystem is synced, and the first is free again. So for at most that long does the
journal hold what the tree alone does not have.

- A record is acknowledged when its write has returned, never before. [test_power_cut_keeps_what_was_acknowledged]
- A file is freed only when every caller with a record in it has also written its folder, and those are synced. Files
  are freed in the order in which they were filled. [test_a_journal_is_freed_when_its_folders_are_synced]
- EIO: no caller of that group is acknowledged (R7). Without room for the files, or without the needed system call, the
  caller syncs each step itself. [test_errno_at_every_call_with_a_journal]
- After a failed sync of the filesystem every later write raises SyncFailed, and no process frees a journal of that
  boot, because the kernel reports such a failure only once per descriptor. For the same reason the journal syncs
  through its own descriptors, opened before the first record: a new one would miss an earlier failure.
  [test_a_failed_sync_of_the_filesystem_is_reported_and_frees_nothing]
- No caller waits for the freeing thread for ever: not when it fails or hangs, nor when the journal is closed.
  [test_no_writer_waits_for_a_dead_freeing_thread]
"""

from __future__ import annotations

import contextlib
import errno
import threading
import weakref
from collections.abc import Callable, Sequence

from farro.errors import SyncFailed
from farro.host import fs, machine
from farro.host.thread_turns import RESTING
from farro.lazy_dataclass import dataclass, field
from farro.store.files.journal_file import START, JournalFile, Record, forget, make, mark_failed

SIZE = 4 << 20
LARGEST = 256 << 10  # bytes of a record; the folder of a larger one is synced instead
EAGER_AFTER = 4  # the number of enqueues and commits after which a journal pays for itself
AGAIN_AFTER = 64  # … and after which it is tried again, when there was no room for one
FREE_AFTER_S = 10.0
PATIENCE_S = 30.0  # how long a caller waits for a free file; after that it syncs itself, which is always correct
LEADER_S = 10.0  # how long `close` waits for a caller that, against the rule, is still writing

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNABLE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


class NotJournalled(Exception):
    """The journal cannot be used, now or at all. Nothing of the record is on the disk, or it will be discarded."""


def sync_failure(failure: BaseException) -> SyncFailed:
    """Return the error that each caller of a failed group gets."""
    error = SyncFailed(
        str(failure)
        if isinstance(failure, SyncFailed)
        else f"the journal: {failure}. Nothing of this group was acknowledged; check the device (dmesg) and restart"
    )
    error.__cause__ = failure
    return error


@dataclass(slots=True, eq=False)
class WriteRequest:
    """One caller's records, waiting for the leader of a group to write them."""

    records: Sequence[Record]
    file: JournalFile | None = None
    failure: BaseException | None = None
    done: bool = False


class JournalEntry:
    """Records on the disk. The caller calls `finished` when it has written their folders; only then may the journal
    free them."""

    __slots__ = ("_file", "_journal", "_number")

    def __init__(self, journal: Journal, file: JournalFile, number: int) -> None:
        self._journal, self._file, self._number = journal, file, number

    def finished(self) -> None:
        self._journal.finished(self._file, self._number)


class PendingWrite:
    """Records whose write has been started. No other caller writes to the journal until `end`, which must be called
    soon and whatever happens in between."""

    __slots__ = ("_journal", "data", "file", "number")

    def __init__(self, journal: Journal, file: JournalFile, number: int, data: bytes) -> None:
        self._journal, self.file, self.number, self.data = journal, file, number, data

    def end(self) -> JournalEntry | None:
        """Return when the records are on the disk. None: they are not, and the caller syncs what it writes. SyncFailed:
        it is unknown whether they are."""
        return self._journal.end(self)


@dataclass(kw_only=True, eq=False)
class Journal:
    """The journal of one store object. Safe for threads: the records of several callers are written together (group
    commit).

    Lock order: `_changed` is taken last and held briefly; no thread yields its turn or makes a system call while it
    holds it. Only the leader (`_leading`) writes records, makes files and changes `_active`.
    """

    root: str
    boot_id: str
    random_bits: Callable[[int], int]
    eager_after: int = EAGER_AFTER
    size: int = SIZE
    background: bool = True  # free files in a thread; else when the other file is full, and on close
    _calls: int = 0
    _usable: bool = True
    _broken: BaseException | None = None  # a sync failed: it is unknown what reached the disk
    _files: list[JournalFile] = field(default_factory=list)
    _active: JournalFile | None = None
    _full: list[JournalFile] = field(default_factory=list)  # to be freed, the oldest first
    _order: int = 0
    _waiting: list[WriteRequest] = field(default_factory=list)
    _leading: bool = False
    _closing: bool = False
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._make_conditions()
        self._usable = bool(self.boot_id) and fs.can_write_through()
        _journals.add(self)

    def _make_conditions(self) -> None:
        lock = threading.RLock()  # guards every field above except `_order`, which only the leader uses
        self._changed = threading.Condition(lock)  # for callers that write, and for threads that wait for them
        self._freeing_wanted = threading.Condition(lock)  # for the freeing thread, which need not wake for each record

    def write(self, records: Sequence[Record]) -> JournalEntry | None:
        """Return when all records are on the disk. None: not journalled, and the caller syncs what it writes."""
        if self._broken is not None:
            raise sync_failure(self._broken)
        if not self._usable or sum(record.size + 512 for record in records) > LARGEST:
            return None
        ticket = WriteRequest(records)
        with self._changed:
            self._calls += 1
            if self._calls <= self.eager_after:
                return None
        with RESTING:
            self._write_in_group(ticket)
        if ticket.failure is not None:
            raise sync_failure(ticket.failure)
        return None if ticket.file is None else JournalEntry(self, ticket.file, len(records))

    def begin(self, make: Callable[[], Sequence[Record]]) -> PendingWrite | None:
        """Start writing the records that `make` returns, and return at once. None: not started, because it is not
        possible or another caller is writing."""
        with self._changed:
            file = self._active
            if file is None or file.ahead is None or self._leading or self._waiting or not self._usable:
                return None
            self._leading = True
        begun: PendingWrite | None = None
        try:
            payloads = self._encoded(make())
            data = file.sealed(payloads)
            if file.position + len(data) <= self.size and file.begin(data):
                begun = PendingWrite(self, file, len(payloads), data)
        finally:
            if begun is None:
                self._release_lead()
        return begun

    def end(self, begun: PendingWrite) -> JournalEntry | None:
        try:
            with RESTING:
                self._write_records(begun.file, begun.data, begun.number, begun.file.end)
            return JournalEntry(self, begun.file, begun.number)
        except NotJournalled:
            return None
        except Exception as error:
            raise sync_failure(error) from error
        finally:
            self._release_lead()

    def ready(self) -> bool:
        """Return whether records will be written. Makes a file of this boot if there is none, so that after a power cut
        the replay examines what was started in this boot."""
        if not self._usable or self._broken is not None:
            return False
        with RESTING, self._changed:
            self._calls += 1
            if self._calls <= self.eager_after:
                return False
            self._changed.wait_for(lambda: not self._leading)
            if self._files or self._closing:
                return bool(self._files)
            self._leading = True
        try:
            self._active = self._make_file("a")
        except NotJournalled:
            self._calls = self.eager_after - AGAIN_AFTER
            return False
        finally:
            self._release_lead()
        return True

    def _write_in_group(self, ticket: WriteRequest) -> None:
        """Return when the request is done: by the present leader, or by us as leader of all requests waiting by
        then."""
        leads = False
        try:
            with self._changed:
                self._waiting.append(ticket)
                while self._leading and not ticket.done:
                    self._changed.wait()
                if ticket.done or self._closing:
                    return
                leads = self._leading = True
                group, self._waiting = self._waiting, []
            self._write_group(group)
        finally:
            if leads:
                self._release_lead()

    def _release_lead(self) -> None:
        with self._changed:
            self._leading = False
            self._changed.notify_all()

    def _write_group(self, group: list[WriteRequest]) -> None:
        file: JournalFile | None = None
        failure: BaseException | None = None
        try:
            file = self._append(group)
        except NotJournalled:
            self._calls = self.eager_after - AGAIN_AFTER
        except Exception as error:  # noqa: BLE001 - every caller of the group gets it, whatever it was
            failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                for ticket in group:  # the callers wake when the lead is released
                    ticket.file, ticket.failure, ticket.done = file, failure, True

    def _append(self, group: list[WriteRequest]) -> JournalFile:
        payloads = self._encoded([record for ticket in group for record in ticket.records])
        file = self._file_with_room(sum(map(len, payloads)) + 16 * len(payloads))
        self._write_records(file, file.sealed(payloads), len(payloads), file.write)
        return file

    def _encoded(self, records: Sequence[Record]) -> list[bytes]:
        self._order += len(records)
        first = self._order - len(records) + 1
        return [record.encode(order) for order, record in enumerate(records, first)]

    def _write_records(self, file: JournalFile, data: bytes, number: int, write: Callable[[bytes], None]) -> None:
        """Call `write`, which puts `number` records on the disk, and account for them."""
        try:
            write(data)
        except BaseException as error:
            self._usable = False  # no record may follow the remains of a failed write
            if isinstance(error, OSError) and error.errno in _FULL | _UNABLE:
                self._retire(file)
                raise NotJournalled from error
            self._broken = error
            raise
        with self._changed:
            if file.position == START:
                self._freeing_wanted.notify_all()
            file.position += len(data)
            file.unfinished += number

    # --- files: only the leader calls these ---

    def _file_with_room(self, size: int) -> JournalFile:
        """Return the file that has room for `size` more bytes."""
        if self._active is None:
            self._active = self._make_file("a")
        if self._active.position + size > self.size and self._active.position > START:
            self._switch_file(self._active)
            if not self._usable:
                raise NotJournalled
        return self._active

    def _switch_file(self, old: JournalFile) -> None:
        """Make the other file the active one; wait until it is free."""
        others = [file for file in self._files if file is not old]
        try:
            other = others[0] if others else self._make_file("b")
        except NotJournalled:
            self._free(old)  # no room for a second file: the caller waits until the only one is free
            return
        if not self.background and other in self._full:
            self._free(other)
        with self._changed:
            self._changed.wait_for(lambda: other not in self._full or not self._usable, PATIENCE_S)
            if self._broken is not None:
                raise sync_failure(self._broken)
            if other in self._full or not self._usable:
                raise NotJournalled
            self._full.append(old)
            self._active = other
            self._freeing_wanted.notify_all()

    def _make_file(self, name: str) -> JournalFile:
        number = self.random_bits(64)
        try:
            file = make(self.root, self.boot_id, f"{number:016x}.{name}", self.size)
        except OSError as error:
            raise NotJournalled from error
        with self._changed:
            self._files.append(file)
            if self._thread is None and self.background:
                self._thread = threading.Thread(target=self._free_loop, name="journal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread available: the caller that fills a file frees it
                    self._thread, self.background = None, False
        return file

    def _retire(self, file: JournalFile) -> None:
        with self._changed:
            if file is self._active:
                self._active = None
            if file not in self._full:
                self._full.append(file)
            self._freeing_wanted.notify_all()

    # --- freeing ---

    def finished(self, file: JournalFile, number: int) -> None:
        with self._changed:
            file.unfinished -= number
            if file.unfinished == 0 and file.awaited:
                self._changed.notify_all()

    def _free_loop(self) -> None:
        try:
            while self._free_next():
                pass
        except BaseException as error:  # noqa: BLE001 - this thread ends, so no caller may wait for it any more
            with self._changed:
                self._broken = self._broken or error
                self._usable = False
                self._changed.notify_all()

    def _free_next(self) -> bool:
        """Wait until a file is full, or the active one has held a record long enough, and free it. False: closing."""
        with self._changed:
            self._freeing_wanted.wait_for(lambda: self._closing or self._full or self._holds_something())
            self._freeing_wanted.wait_for(lambda: self._closing or self._full, FREE_AFTER_S)
            if self._closing:
                return False
            full = self._full[0] if self._full else None
        if full is None:
            self._switch_idle_file()
        else:
            self._free(full)
        return True

    def _holds_something(self) -> bool:
        return self._active is not None and self._active.position > START

    def _switch_idle_file(self) -> None:
        """Free a file that is not full, so that an idle process leaves nothing to replay."""
        leads = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._leading or self._full or self._closing)
                old = self._active
                if old is None or self._full or self._closing or not self._holds_something():
                    return
                leads = self._leading = True
            with contextlib.suppress(NotJournalled):
                self._switch_file(old)
        finally:
            if leads:
                self._release_lead()

    def _free(self, file: JournalFile) -> None:
        with self._changed:
            file.awaited = True
            self._changed.wait_for(lambda: not file.unfinished or self._closing)
            file.awaited = False
            if self._closing:
                return  # `close` frees all files
        try:
            file.sync_everything()
        except OSError as error:
            mark_failed(self.root, self.boot_id)
            with self._changed:
                self._broken = error
                self._usable = False
                self._changed.notify_all()
            raise
        try:
            file.begin_again()
        except OSError:  # the records stay and do no harm; `close` removes the file
            with self._changed:
                self._usable = False
                if file in self._full:
                    self._full.remove(file)
                self._changed.notify_all()
            return
        with self._changed:
            file.position = START
            if file in self._full:
                self._full.remove(file)
            self._changed.notify_all()

    def close(self) -> None:
        """Sync everything and remove the files. No caller may be writing any more. May be called twice."""
        with self._changed:
            self._closing, self._usable = True, False
            thread, self._thread = self._thread, None
            self._changed.notify_all()
            self._freeing_wanted.notify_all()
        if thread is not None:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._leading, LEADER_S)
            files, self._files, self._full, self._active = self._files, [], [], None
        try:
            if files:
                forget(self.root, self.boot_id, [(file.path, file.lease) for file in files])
        except (OSError, SyncFailed):
            pass  # a watchdog frees what a dead process left, if it may be freed
        finally:
            for file in files:
                file.drop()


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """Disable the journals in a forked child: the files and the freeing thread belong to the parent."""
    for journal in list(_journals):
        journal._make_conditions()
        journal._usable, journal._closing, journal._leading = False, True, False
        journal._files, journal._full, journal._waiting = [], [], []
        journal._active = journal._thread = None


machine.run_after_fork(_forget_after_fork)
