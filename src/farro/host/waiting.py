"""Wait for descriptors, on every platform: flags that wake a thread, and polls over several descriptors.

The callers poll in their hottest loops, so a poll is the object of the standard library itself (`select.poll`,
`select.epoll`), never a wrapper around it. Where the platform has no `select.poll`, `poller` returns a replacement
with the same methods that uses `select.select` (Windows: sockets only).
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Poller = select.poll
    EventPoll = select.epoll

# Of a poller.
READABLE: int = getattr(select, "POLLIN", 1)
# Of an event poll: what to report (READS, WRITES, nothing but errors), and the mask of a broken descriptor.
READS: int = getattr(select, "EPOLLIN", 1)
WRITES: int = getattr(select, "EPOLLOUT", 4)
ERRORS_ONLY = 0
BROKEN: int = getattr(select, "EPOLLERR", 8) | getattr(select, "EPOLLHUP", 16)
HAS_EVENT_POLL = hasattr(select, "epoll")


class Flag:
    """A descriptor that becomes readable when the flag is set, and stays so: any number of threads can poll it."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe()

    def set(self) -> None:
        # Eight bytes, as an eventfd requires. Not fs.write: this is not a file, so no crash is injected here.
        os.write(self._write_fd, (1).to_bytes(8, "little"))  # noqa: TID251

    def clear(self) -> None:
        """Wait until the flag is set, then reset it. Only for the one thread that waits for this flag."""
        os.read(self.fd, 8)

    def close(self) -> None:
        for fd in {self.fd, self._write_fd}:
            os.close(fd)


def poller(*fds: int) -> Poller:
    """Return a poll that reports which of the descriptors are readable; more can be registered with `READABLE`."""
    poll = select.poll() if hasattr(select, "poll") else _SelectPoller()
    for fd in fds:
        poll.register(fd, READABLE)
    return poll  # type: ignore[return-value]  # _SelectPoller has the methods that farro calls


def readable(fds: Iterable[int], timeout_s: float | None) -> list[int]:
    """Return the descriptors that are readable or broken; an empty list after `timeout_s` (None: wait for ever)."""
    # Rounded up: poll counts whole milliseconds, and a poll that returns early makes its caller spin.
    timeout_ms = None if timeout_s is None else math.ceil(max(timeout_s, 0) * 1000)
    return [fd for fd, _ in poller(*fds).poll(timeout_ms)]


def event_poll() -> EventPoll:
    """Return an empty poll that is itself a descriptor, so that another poll can wait for it. Only where
    HAS_EVENT_POLL (Linux)."""
    return select.epoll()


class _SelectPoller:
    """The methods of `select.poll` that farro calls, by `select.select`."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def register(self, fd: int, mask: int) -> None:
        self._fds.add(fd)

    def unregister(self, fd: int) -> None:
        self._fds.remove(fd)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        ready, _, _ = select.select(list(self._fds), [], [], None if timeout_ms is None else timeout_ms / 1000)
        return [(fd, READABLE) for fd in ready]
