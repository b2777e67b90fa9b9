"""Group commit: merge the syncs of concurrent threads into one round."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farro.errors import SyncFailed


class _Own(threading.local):
    apart: bool = False


_own = _Own()


def stay_apart() -> None:
    """Let this thread sync on its own from now on."""
    _own.apart = True


class GroupCommit:
    """While one thread syncs, the others collect their paths; the next leader syncs all of them in one round.

    A failed sync (EIO) fails every member of the group: it is unknown what reached the disk (R7). A missing path raises
    FileNotFoundError for its own member only: a fenced slot must not stop the others, but must learn of its fence.

    A thread in which an exception may be raised at any line (`stay_apart`) neither leads nor joins: its exception would
    fail the others, or the place of the leader would stay taken.
    [test_ending_a_callable_that_syncs_leaves_other_syncs_alone]
    """

    def __init__(self, sync_one: Callable[[str], None]) -> None:
        self.sync_one = sync_one
        self.lock = threading.Condition()
        self.waiting: list[_Ticket] = []
        self.leading = False

    def sync(self, paths: list[str]) -> None:
        ticket = _Ticket(paths)
        if _own.apart:
            return self._sync_apart(ticket)
        with self.lock:
            self.waiting.append(ticket)
            while self.leading and not ticket.done:
                self.lock.wait()
            if ticket.done:
                return ticket.answer()
            self.leading = True
            group, self.waiting = self.waiting, []
        failure: BaseException | None = None
        gone: dict[str, FileNotFoundError] = {}
        try:
            for path in dict.fromkeys(path for member in group for path in member.paths):
                try:
                    self.sync_one(path)
                except FileNotFoundError as error:
                    gone[path] = error
        except BaseException as error:  # noqa: BLE001 - raised in every member of the group
            failure = error
        with self.lock:
            self.leading = False
            for member in group:
                own = next((gone[path] for path in member.paths if path in gone), None)
                member.done, member.failure = True, failure or own
            self.lock.notify_all()
        return ticket.answer()

    def _sync_apart(self, ticket: _Ticket) -> None:
        try:
            for path in ticket.paths:
                self.sync_one(path)
        except OSError as error:
            ticket.failure = error
        return ticket.answer()


class _Ticket:
    __slots__ = ("done", "failure", "paths")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.done = False
        self.failure: BaseException | None = None

    def answer(self) -> None:
        if self.failure is None:
            return
        if isinstance(self.failure, FileNotFoundError):
            raise FileNotFoundError(*self.failure.args, self.failure.filename) from self.failure
        if isinstance(self.failure, OSError):
            raise SyncFailed(
                f"{self.failure.filename or self.paths[0]}: sync failed: {self.failure.strerror}. "
                "Nothing of this group was acknowledged; check the device (dmesg) and restart"
            ) from self.failure
        raise self.failure
