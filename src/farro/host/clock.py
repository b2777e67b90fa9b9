"""The clocks: the system's and a manual one for tests. How a moment is written lives in kernel.moments.

Which clock serves which purpose is said in ports/clock.py; nothing here waits for anything but time.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from farro.host.thread_turns import RESTING
from farro.jobs.times import aware


class SystemClock:
    """The clocks of the machine (port: Clock)."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def boottime_s(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()  # macOS and Windows: their monotonic clock is the nearest there is

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            with RESTING:
                time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to (port: Clock). `sleep` advances it, so sleeping takes no time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = aware(start)
        self._boottime_s = 1000.0
        self._monotonic_s = 1000.0

    def now(self) -> datetime:
        with self._lock:
            return self._now

    def boottime_s(self) -> float:
        with self._lock:
            return self._boottime_s

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_s

    def sleep(self, seconds: float) -> None:
        self.advance(max(seconds, 0.0))

    def advance(self, seconds: float) -> None:
        """Time passes, for all three clocks alike."""
        self._move(wall_s=seconds, boottime_s=seconds, monotonic_s=seconds)

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still, the other two go on."""
        self._move(wall_s=seconds, boottime_s=seconds, monotonic_s=0.0)

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock, forward or back; no time passes."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    def _move(self, *, wall_s: float, boottime_s: float, monotonic_s: float) -> None:
        if min(wall_s, boottime_s, monotonic_s) < 0:
            raise ValueError("time does not run backwards; `jump` sets the wall clock back")
        with self._lock:
            self._now += timedelta(seconds=wall_s)
            self._boottime_s += boottime_s
            self._monotonic_s += monotonic_s
