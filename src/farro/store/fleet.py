"""The Fleet port: what a store of many machines shares between them, beside the jobs.

The file store does not implement it: there all processes share the root's own folders (logs/, agents/Manager).

- `audit_lines` covers every machine: the audit log of each also goes to the store.
- A leadership has one holder at a time, by the server's clock: it ends when its lease expires, even before another
  process takes it. [test_one_manager_acts_across_machines]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderStatus:
    """The present or last holder of a leadership."""

    holder: str
    silent_s: float  # since its last renewal


@runtime_checkable
class Fleet(Protocol):
    def audit_lines(self, since_ms: int = 0, job_id: str | None = None) -> Iterator[Mapping[str, Any]]:
        """Return the audit events since that Unix time, the oldest first, as log.audit writes them."""

    def take_leadership(self, name: str, holder: str, *, lease_s: float) -> bool:
        """Take the leadership or extend it. False: another process has it."""

    def release_leadership(self, name: str, holder: str) -> None: ...

    def leader_status(self, name: str) -> LeaderStatus | None:
        """Return the present or last leader; None if there never was one."""
