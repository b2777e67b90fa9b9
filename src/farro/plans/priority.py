"""How urgent a job is, read from its raw prompt: P0 (first) to P3 (last), P2 when it says nothing.

No validation (operations.submit refuses what is no priority) and no pydantic: a store asks this at every entry into a
queue. What a store makes of it is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.plans.metadata import metadata_of

PRIORITIES = ("P0", "P1", "P2", "P3")
DEFAULT = "P2"

_DECADE_NS = 10 * 365 * 86_400 * 10**9
_HEAD_START_NS = {"P0": 2 * _DECADE_NS, "P1": _DECADE_NS, "P2": 0, "P3": -_DECADE_NS}


def priority(prompt_data: Mapping[str, Any] | list[Any] | None) -> str:
    """`metadata.priority` of a prompt; what is no priority counts as none."""
    asked = metadata_of(prompt_data).get("priority")
    return asked if isinstance(asked, str) and asked in PRIORITIES else DEFAULT


def head_start_ns(prompt_data: Mapping[str, Any] | list[Any] | None) -> int:
    """How much earlier than its entry a job counts as entered: decades, so that no wait in a queue outweighs one."""
    return _HEAD_START_NS[priority(prompt_data)]
