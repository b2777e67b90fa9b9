"""Threads of one process take turns: one works, the others wait for something that is not the processor.

What a slot does in its turn lives in services. Nothing is guarded by this: no data is safe because of a turn.

Why: a worker's slots make a hundred short system calls a job, and Python's interpreter lock is let go and fought for at
each of them. Two slots that run at once then spend more time handing that lock to each other than working (one process,
no-op jobs: 0.6 of the rate of a single slot). With turns a slot keeps on until it has to wait, and lets the others have
their turn while it rests: while its step runs, while the disk syncs, while the queue is empty.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class _Own(threading.local):
    lock: threading.Lock | None = None  # of the turn that this thread has
    rests: int = 0  # within each other


_own = _Own()


class Turns:
    """One for all slots of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """This thread's turn, until the block ends."""
        self._lock.acquire()
        _own.lock = self._lock
        try:
            yield
        finally:
            _own.lock = None
            self._lock.release()

    def hold(self, seconds: float) -> None:
        """Keep the turn and do nothing: what the others would do now is worth more a moment later."""
        time.sleep(seconds)


class _Rest:
    """`with RESTING:` the others may work while this thread waits. Does nothing for a thread that has no turn."""

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
