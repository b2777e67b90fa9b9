"""The write-ahead journal: with durability `power`, one synchronous write stands for all syncs of an enqueue or commit.

The form of a record lives in records, what it means after a power cut in replay, what becomes of a dead process's
journal in forget. Alternatives and figures: docs/decisions/one-journal-record-replaces-the-syncs.md.

A process that enqueues or commits more than a few jobs keeps two files in jobs/.journal, filled with zeros beforehand,
so that a record is one write into blocks that exist: no change of the filesystem's own metadata, whatever filesystem it
is. First the record, then the job's folder without any sync: on a crash of the process the kernel has everything, and
after a power cut the record puts the folder right. When one file is full, or ten seconds after its first record, the
other takes over, the filesystem is synced, and the first is free again: the journal never holds what the tree alone
does not have for longer than that.

- A record is acknowledged when its write came back, never before. [test_power_cut_keeps_what_was_acknowledged]
- A file is freed only when everybody whose record is in it has written the folder too, and that is synced; files are
  freed in the order in which they were filled. [test_a_journal_is_freed_when_its_folders_are_synced]
- EIO: nobody of that group is acknowledged (R7). No room for the files, or no such call here: the caller syncs the
  careful way. [test_errno_at_every_call_with_a_journal]
- A sync of the filesystem that failed is told to everyone who writes from then on, and nothing of that boot is
  forgotten by anyone: whoever syncs next is told nothing of it by the kernel. Hence also the journal's own descriptors,
  opened before the first record: a new one would not hear of a failure that another process was told of.
  [test_a_failed_sync_of_the_filesystem_is_told_and_nothing_is_forgotten]
- Nobody waits for the freeing thread for ever: not when it fails or is stuck, not when the journal is closed.
  [test_nobody_waits_for_a_freeing_thread_that_is_gone]
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
from farro.store.files.journal_cleanup import forget, mark_failed
from farro.store.files.journal_entry import Begun, Careful, Entry, Ticket, told
from farro.store.files.journal_file import JournalFile, make
from farro.store.files.journal_records import START, Record

SIZE = 4 << 20
LARGEST = 256 << 10  # a record; what is larger is synced where it lies
EAGER_AFTER = 4  # enqueues and commits of a process before a journal pays for itself
AGAIN_AFTER = 64  # … and before it is tried again, when there was no room for one
FREE_AFTER_S = 10.0
PATIENCE_S = 30.0  # how long anybody waits for a file to become free: the careful way is always right
LEADER_S = 10.0  # how long `close` waits for somebody who, against its rule, is writing

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNABLE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(kw_only=True, eq=False)
class Journal:
    """One for a store object, safe for threads: records of several are written at once (group commit).

    Order of locks: `_changed` is taken last and held for moments; nobody takes a turn, or makes a call, while it has
    it. The leader alone (`_leading`) writes records, makes files and changes `_active`.
    """

    root: str
    boot_id: str
    random_bits: Callable[[int], int]
    eager_after: int = EAGER_AFTER
    size: int = SIZE
    background: bool = True  # free files from a thread of its own; else when the other is full, and at the end
    _asked: int = 0
    _usable: bool = True
    _broken: BaseException | None = None  # a sync failed: nobody knows what reached the disk
    _files: list[JournalFile] = field(default_factory=list)
    _active: JournalFile | None = None
    _full: list[JournalFile] = field(default_factory=list)  # to be freed, the oldest first
    _order: int = 0
    _waiting: list[Ticket] = field(default_factory=list)
    _leading: bool = False
    _closing: bool = False
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._make_conditions()
        self._usable = bool(self.boot_id) and fs.can_write_through()
        _journals.add(self)

    def _make_conditions(self) -> None:
        lock = threading.RLock()  # guards everything above but `_order`, which is the leader's
        self._changed = threading.Condition(lock)  # for whoever writes, and for whoever waits for them
        self._wanted = threading.Condition(lock)  # for the freeing thread, which a record more does not concern

    def write(self, records: Sequence[Record]) -> Entry | None:
        """Return when all of them are on the disk. None: not journalled, the caller syncs what it writes."""
        if self._broken is not None:
            raise told(self._broken)
        if not self._usable or sum(record.size + 512 for record in records) > LARGEST:
            return None
        ticket = Ticket(records)
        with self._changed:
            self._asked += 1
            if self._asked <= self.eager_after:
                return None
        with RESTING:
            self._written(ticket)
        if ticket.failure is not None:
            raise told(ticket.failure)
        return None if ticket.file is None else Entry(self, ticket.file, len(records))

    def begin(self, make: Callable[[], Sequence[Record]]) -> Begun | None:
        """As `write`, of what `make` answers, but at once. None: not begun: it cannot be, or somebody is writing."""
        with self._changed:
            file = self._active
            if file is None or file.ahead is None or self._leading or self._waiting or not self._usable:
                return None
            self._leading = True
        begun: Begun | None = None
        try:
            payloads = self._encoded(make())
            data = file.sealed(payloads)
            if file.position + len(data) <= self.size and file.begin(data):
                begun = Begun(self, file, len(payloads), data)
        finally:
            if begun is None:
                self._let_lead()
        return begun

    def end(self, begun: Begun) -> Entry | None:
        try:
            with RESTING:
                self._carry_out(begun.file, begun.data, begun.number, begun.file.end)
            return Entry(self, begun.file, begun.number)
        except Careful:
            return None
        except Exception as error:
            raise told(error) from error
        finally:
            self._let_lead()

    def ready(self) -> bool:
        """Whether records are written, and a file of this boot is there in any case: after a power cut the replay looks
        at what was begun in its time."""
        if not self._usable or self._broken is not None:
            return False
        with RESTING, self._changed:
            self._asked += 1
            if self._asked <= self.eager_after:
                return False
            self._changed.wait_for(lambda: not self._leading)
            if self._files or self._closing:
                return bool(self._files)
            self._leading = True
        try:
            self._active = self._made("a")
        except Careful:
            self._asked = self.eager_after - AGAIN_AFTER
            return False
        finally:
            self._let_lead()
        return True

    def _written(self, ticket: Ticket) -> None:
        """Return when it is: by whoever leads meanwhile, or by us, with all that have come by then."""
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
                self._let_lead()

    def _let_lead(self) -> None:
        with self._changed:
            self._leading = False
            self._changed.notify_all()

    def _write_group(self, group: list[Ticket]) -> None:
        file: JournalFile | None = None
        failure: BaseException | None = None
        try:
            file = self._append(group)
        except Careful:
            self._asked = self.eager_after - AGAIN_AFTER
        except Exception as error:  # noqa: BLE001 - every member of the group is told, whatever it was
            failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                for ticket in group:  # they are woken when the lead is free
                    ticket.file, ticket.failure, ticket.done = file, failure, True

    def _append(self, group: list[Ticket]) -> JournalFile:
        payloads = self._encoded([record for ticket in group for record in ticket.records])
        file = self._room(sum(map(len, payloads)) + 16 * len(payloads))
        self._carry_out(file, file.sealed(payloads), len(payloads), file.write)
        return file

    def _encoded(self, records: Sequence[Record]) -> list[bytes]:
        self._order += len(records)
        first = self._order - len(records) + 1
        return [record.encode(order) for order, record in enumerate(records, first)]

    def _carry_out(self, file: JournalFile, data: bytes, number: int, write: Callable[[bytes], None]) -> None:
        """`write` returns when so many records are on the disk."""
        try:
            write(data)
        except BaseException as error:
            self._usable = False  # nothing may come behind what a failed write may have left
            if isinstance(error, OSError) and error.errno in _FULL | _UNABLE:
                self._retire(file)  # with that
                raise Careful from error
            self._broken = error
            raise
        with self._changed:
            if file.position == START:
                self._wanted.notify_all()
            file.position += len(data)
            file.unfinished += number

    # --- the files: the leader's business ---

    def _room(self, size: int) -> JournalFile:
        """The file that takes so much more."""
        if self._active is None:
            self._active = self._made("a")
        if self._active.position + size > self.size and self._active.position > START:
            self._change(self._active)
            if not self._usable:
                raise Careful
        return self._active

    def _change(self, old: JournalFile) -> None:
        """The other file takes over; waits until it is free."""
        others = [file for file in self._files if file is not old]
        try:
            other = others[0] if others else self._made("b")
        except Careful:
            self._free(old)  # no room for a second one: whoever writes waits until the only one is free
            return
        if not self.background and other in self._full:
            self._free(other)
        with self._changed:
            self._changed.wait_for(lambda: other not in self._full or not self._usable, PATIENCE_S)
            if self._broken is not None:
                raise told(self._broken)
            if other in self._full or not self._usable:
                raise Careful
            self._full.append(old)
            self._active = other
            self._wanted.notify_all()

    def _made(self, name: str) -> JournalFile:
        number = self.random_bits(64)
        try:
            file = make(self.root, self.boot_id, f"{number:016x}.{name}", self.size)
        except OSError as error:
            raise Careful from error
        with self._changed:
            self._files.append(file)
            if self._thread is None and self.background:
                self._thread = threading.Thread(target=self._free_for_ever, name="journal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads here: whoever fills a file frees it
                    self._thread, self.background = None, False
        return file

    def _retire(self, file: JournalFile) -> None:
        with self._changed:
            if file is self._active:
                self._active = None
            if file not in self._full:
                self._full.append(file)
            self._wanted.notify_all()

    # --- freeing ---

    def finished(self, file: JournalFile, number: int) -> None:
        with self._changed:
            file.unfinished -= number
            if file.unfinished == 0 and file.awaited:
                self._changed.notify_all()

    def _free_for_ever(self) -> None:
        try:
            while self._free_next():
                pass
        except BaseException as error:  # noqa: BLE001 - the end of this thread: nobody may wait for it any more
            with self._changed:
                self._broken = self._broken or error
                self._usable = False
                self._changed.notify_all()

    def _free_next(self) -> bool:
        """Wait until a file is full, or the active one has held a record for long enough, and free it. False: over."""
        with self._changed:
            self._wanted.wait_for(lambda: self._closing or self._full or self._holds_something())
            self._wanted.wait_for(lambda: self._closing or self._full, FREE_AFTER_S)
            if self._closing:
                return False
            full = self._full[0] if self._full else None
        if full is None:
            self._change_over()
        else:
            self._free(full)
        return True

    def _holds_something(self) -> bool:
        return self._active is not None and self._active.position > START

    def _change_over(self) -> None:
        """Free a file that is not full: an idle process leaves nothing to replay."""
        leads = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._leading or self._full or self._closing)
                old = self._active
                if old is None or self._full or self._closing or not self._holds_something():
                    return
                leads = self._leading = True
            with contextlib.suppress(Careful):
                self._change(old)
        finally:
            if leads:
                self._let_lead()

    def _free(self, file: JournalFile) -> None:
        with self._changed:
            file.awaited = True
            self._changed.wait_for(lambda: not file.unfinished or self._closing)
            file.awaited = False
            if self._closing:
                return  # `close` does it for all
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
        except OSError:  # the records stay, and do no harm; `close` takes the file away
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
        """Everything is synced, and the files go. Nobody may be writing any more. Closing twice is no error."""
        with self._changed:
            self._closing, self._usable = True, False
            thread, self._thread = self._thread, None
            self._changed.notify_all()
            self._wanted.notify_all()
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
    """In the child nothing is journalled: the files, and whoever frees them, are the parent's."""
    for journal in list(_journals):
        journal._make_conditions()
        journal._usable, journal._closing, journal._leading = False, True, False
        journal._files, journal._full, journal._waiting = [], [], []
        journal._active = journal._thread = None


machine.run_after_fork(_forget_after_fork)
