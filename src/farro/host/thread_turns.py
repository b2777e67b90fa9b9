"""Let the threads of one process take turns: one works while the others wait for I/O. Turns protect no data.

Why: a worker's slots make a hundred short system calls per job, and each releases Python's interpreter lock and
competes for it again. Two slots that run at once spend more time passing that lock than working (one process, no-op
jobs: 0.6 of the rate of a single slot). With turns a slot runs until it has to wait, and gives its turn to the others
meanwhile: while its step runs, while the disk syncs, while the queue is empty.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class _Own(threading.local):
    lock: threading.Lock | None = None  # held while this thread has the turn
    rests: int = 0  # nesting depth of `with RESTING`


_own = _Own()


class Turns:
    """The turns of all slots of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the turn until the block ends."""
        self._lock.acquire()
        _own.lock = self._lock
        try:
            yield
        finally:
            _own.lock = None
            self._lock.release()

    def hold(self, seconds: float) -> None:
        """Keep the turn and sleep, so that the other threads work a moment later, on more at once."""
        time.sleep(seconds)


class _Rest:
    """`with RESTING:` gives the turn to other threads while this one waits. No effect for a thread without a turn."""

    def __enter__(self) -> None:
        if _own.lock is not None:
            if _own.rests == 0:
                _own.lock.release()
            _own.rests += 1

    def __exit__(self, *exception: object) -> None:
        if _own.lock is not None:
            _own.rests -= 1
            if _own.rests == 0:
                _own.lock.acquire()


RESTING = _Rest()
