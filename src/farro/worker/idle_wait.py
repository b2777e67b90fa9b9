"""Of a worker's idle slots one waits for the queue, and the others for it: a job that comes wakes one thread, not all.

What a slot does with the job lives in slot; how a store tells that something came, in the stores.

Whoever has the lookout takes what comes. While that is over in a moment nobody else need wake: slots of a process take
turns anyway (system.turns). When it lasts, the slot calls the next one (`relieve`), which looks at the queue itself and
then waits for it. A slot that is never called looks by itself when its patience is over: the lookout may be stuck.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class IdleWait:
    """One for all slots of a worker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the rest
        self._taken = False  # somebody waits for the queue
        self._resting = 0
        self._called = 0  # of those that rest; at most all

    def wait(self, look: Callable[[], T], patience_s: float) -> T | None:
        """What `look` answers, where nobody else looks; else None, when called or after so long."""
        with self._changed:
            if self._taken:
                self._resting += 1
                try:
                    if self._changed.wait_for(lambda: self._called > 0, patience_s):
                        self._called -= 1
                finally:
                    self._resting -= 1
                    self._called = min(self._called, self._resting)
                return None
            self._taken = True
        try:
            return look()
        finally:
            with self._changed:
                self._taken = False

    def relieve(self) -> None:
        """One that rests, if any does, looks at the queue now."""
        with self._changed:
            if self._called < self._resting:
                self._called += 1
                self._changed.notify()
