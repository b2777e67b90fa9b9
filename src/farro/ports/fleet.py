"""What a store of many machines offers beside the Store port: what else must be common to all of them.

The file store offers none of it: there the root's own folders are common (logs/, agents/Manager). operations.fleet asks
for it where it is there.

- `audit_lines` are those of every machine, the oldest first: what observe.audit writes here goes there too.
- `forget` removes a final job for good, with its id and its name. A crash leaves it whole, or gone.
- `seat`: who manages. One holder at a time, by the server's clock; whoever has it lost it when its time is over, also
  before somebody else takes it. [test_one_manager_acts_across_machines]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from farro.ports.store import Agent


@dataclass(frozen=True, kw_only=True, slots=True)
class Seated:
    """Who has a seat, as the server knows it."""

    holder: str
    silent_s: float  # since it last said that it lives


@runtime_checkable
class Fleet(Protocol):
    def audit_lines(
        self, *, job_id: str | None = None, since: datetime | None = None, limit: int = 100_000
    ) -> Sequence[Mapping[str, Any]]:
        """The newest `limit` of those that fit, the oldest of them first; each as observe.audit writes them."""

    def forget(self, agent: Agent, job_id: str) -> int | None:
        """Remove a final job; about how many bytes it held. None: it is not there, or not final."""

    def take_seat(self, name: str, holder: str, *, lease_s: float) -> bool:
        """Have it, or have it for longer. False: somebody else does."""

    def leave_seat(self, name: str, holder: str) -> None: ...

    def seated(self, name: str) -> Seated | None:
        """Who has it, or had it last; None: nobody ever had."""
