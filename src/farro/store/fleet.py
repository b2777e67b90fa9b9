"""What a store of many machines offers beside the Store port: what else must be common to all of them.

The file store offers none of it: there the root's own folders are common (logs/, agents/Manager). operations.fleet asks
for it where it is there.

- `audit_lines` are those of every machine: what observe.audit writes here goes there too.
- `remove` takes final jobs away for good, each with its id and its names. A crash leaves each whole, or gone.
- A seat has one holder at a time, by the server's clock: whoever had it has it no more when its time is over, also
  before somebody else takes it. [test_one_manager_acts_across_machines]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from farro.lazy_dataclass import dataclass
from farro.store.port import Agent


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderStatus:
    """Who has a seat, or had it last."""

    holder: str
    silent_s: float  # since it last said that it lives


@runtime_checkable
class Fleet(Protocol):
    def audit_lines(self, since_ms: int = 0, job_id: str | None = None) -> Iterator[Mapping[str, Any]]:
        """The oldest first, since that Unix time; each as observe.audit writes them."""

    def prompts(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """The prompts of these jobs, of those that are there: many at once, and without a copy of their files."""

    def remove(self, agent: Agent, job_ids: Sequence[str]) -> list[str]:
        """Those that were removed: they were there, and final."""

    def take_leadership(self, name: str, holder: str, *, lease_s: float) -> bool:
        """Have it, or have it for longer. False: somebody else does."""

    def release_leadership(self, name: str, holder: str) -> None: ...

    def leader_status(self, name: str) -> LeaderStatus | None:
        """None: nobody ever had it."""
