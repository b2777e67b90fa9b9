"""Read the priority of a job from its raw prompt: P0 (first) to P3 (last), P2 by default.

Stores do this at every entry into a queue, so nothing is validated here; submission refuses invalid priorities.
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
    """Return `metadata.priority` of a prompt; an invalid one counts as absent."""
    asked = metadata_of(prompt_data).get("priority")
    return asked if isinstance(asked, str) and asked in PRIORITIES else DEFAULT


def head_start_ns(prompt_data: Mapping[str, Any] | list[Any] | None) -> int:
    """Return how much earlier than its entry a job is sorted: decades, so that no waiting time outweighs a priority."""
    return _HEAD_START_NS[priority(prompt_data)]
