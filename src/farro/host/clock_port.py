"""The Clock port: the only source of time for everything that waits, stamps or counts.

The clocks themselves, the real one and the one for tests, live in system/clock.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Three times, because one cannot serve three purposes. Safe from many threads; no call raises.

    `now` is for people and files and may jump either way; nothing may be declared dead or due early by it alone.
    `boottime_s` counts on while the machine sleeps: for watching others and for "how long ago".
    `monotonic_s` stands still while the machine sleeps: for step timeouts, so that closing a laptop kills no step.
    [tests/host/test_clock.py: test_a_jump_of_the_wall_clock_moves_no_other_clock]
    """

    def now(self) -> datetime:
        """The wall clock: an aware datetime in UTC."""
        ...

    def boottime_s(self) -> float:
        """Seconds since some fixed point, sleep included. Never goes back; comparable between processes of one boot."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed point, sleep not included. Never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after at least that long on `monotonic_s`; zero or less returns at once."""
        ...
