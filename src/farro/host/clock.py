"""The Clock port, the system's clock, and a manual clock for tests."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from farro.host.thread_turns import RESTING
from farro.jobs.times import aware


class Clock(Protocol):
    """The only source of time for code that waits, writes timestamps or measures. Safe from many threads; no call
    raises.

    Three clocks, because one cannot serve three purposes:
    - `now` is for people and files and may jump either way; no process is declared dead, and no job due, by it alone.
    - `boottime_s` counts on while the machine sleeps: for watching other processes and for "how long ago".
    - `monotonic_s` stands still while the machine sleeps: for step timeouts, so that closing a laptop kills no step.
    [tests/host/test_clock.py: test_a_jump_of_the_wall_clock_moves_no_other_clock]
    """

    def now(self) -> datetime:
        """Return the wall clock's time: an aware datetime in UTC."""
        ...

    def boottime_s(self) -> float:
        """Return seconds since a fixed point, sleep included. Never goes back; comparable between processes of one
        boot."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since a fixed point, sleep not included. Never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after at least that long on `monotonic_s`; zero or less returns at once."""
        ...


class SystemClock:
    """The clocks of the machine (port: Clock)."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def boottime_s(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()  # macOS and Windows have nothing nearer

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            with RESTING:
                time.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test moves it (port: Clock). `sleep` advances it, so sleeping takes no time."""

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
        """Let time pass on all three clocks."""
        self._move(wall_s=seconds, boottime_s=seconds, monotonic_s=seconds)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the monotonic clock stands still, the other two go on."""
        self._move(wall_s=seconds, boottime_s=seconds, monotonic_s=0.0)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    def _move(self, *, wall_s: float, boottime_s: float, monotonic_s: float) -> None:
        if min(wall_s, boottime_s, monotonic_s) < 0:
            raise ValueError("time does not run backwards; `jump` sets the wall clock back")
        with self._lock:
            self._now += timedelta(seconds=wall_s)
            self._boottime_s += boottime_s
            self._monotonic_s += monotonic_s
