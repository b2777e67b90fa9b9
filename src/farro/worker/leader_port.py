"""The Seat port: who manages. One acts at a time, also across machines; others see how long it has been silent.

Adapters: services.seat, for one machine and, over ports.fleet, for many. What a manager does lives in services.
"""

from __future__ import annotations

from typing import Protocol


class Seat(Protocol):
    def take(self) -> bool:
        """Whether this process has the seat, from now on or still."""

    def stands(self) -> bool:
        """Whether it has it at this moment, as far as it can know without asking: looked at before every act. A
        process that slept for too long does not, whoever has it now."""

    def holder(self) -> str:
        """Who has it, for people."""

    def beat(self) -> None:
        """Say that the manager lives, at most every ten seconds."""

    def silent_s(self) -> float | None:
        """How long the manager has been silent; None: there never was one."""

    def drop(self) -> None: ...
