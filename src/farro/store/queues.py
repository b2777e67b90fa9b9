"""Queues as a whole: pausing them. Part of the Store port; every adapter passes tests/contracts/test_store.py.

What jobs do in a queue is said in ports.store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """Why a queue gives out no job."""

    by: str
    at: str  # as the envelope has times
    why: str | None = None

    def to_json(self) -> bytes:
        return json.dumps({"by": self.by, "at": self.at, "why": self.why}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Paused:
        """Whatever stands there: a queue that somebody paused is paused, though it cannot be read who that was."""
        try:
            told = json.loads(text)
            return cls(by=str(told["by"]), at=str(told["at"]), why=None if told["why"] is None else str(told["why"]))
        except (ValueError, KeyError, TypeError):
            return cls(by="somebody", at="", why=None)


class Queues(Protocol):
    def pause(self, role: str, paused: Paused) -> bool:
        """From now on no job of that queue is claimed; what runs goes on, and jobs enter it as ever. False: it was
        paused already, and that stands. Kept over restarts. [test_a_paused_queue_gives_no_job]"""

    def resume(self, role: str) -> bool:
        """Its jobs are claimed again; whoever waits for them is woken. False: it was not paused.
        [test_whoever_waits_is_woken_when_a_queue_goes_on]"""

    def paused(self) -> Mapping[str, Paused]:
        """The queues that are, by role."""
