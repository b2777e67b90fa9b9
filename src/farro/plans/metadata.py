"""Read tags and priority from the `metadata` of a raw prompt.

Stores and workers do this for every job, so nothing is validated here; submission refuses invalid metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MAPPING = (dict, Mapping)  # dict first: isinstance on an ABC takes ten times as long
_NONE: Mapping[str, Any] = MappingProxyType({})


def metadata_of(prompt_data: object) -> Mapping[str, Any]:
    """Return the metadata; empty for a task list, which has none, and for anything that is not an object."""
    found = prompt_data.get("metadata") if isinstance(prompt_data, MAPPING) else None
    return found if found is not None and isinstance(found, MAPPING) else _NONE


_NO_TAGS: frozenset[str] = frozenset()


def required_tags(prompt_data: Mapping[str, Any] | list[Any]) -> frozenset[str]:
    """Return `metadata.tags` and the `tags` of all steps: a plan runs on one worker. Anything but text is left out."""
    if not isinstance(prompt_data, MAPPING):
        return _of_steps(prompt_data)  # an Air-Executor task list
    tags = metadata_of(prompt_data).get("tags")
    own = frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else _NO_TAGS
    steps = prompt_data.get("steps", prompt_data.get("tasks"))
    return own | _of_steps(steps) if steps else own


def _of_steps(steps: object) -> frozenset[str]:
    if not isinstance(steps, list):
        return _NO_TAGS
    found = [step["tags"] for step in steps if isinstance(step, MAPPING) and isinstance(step.get("tags"), list)]
    return frozenset(tag for tags in found for tag in tags if isinstance(tag, str)) if found else _NO_TAGS


PRIORITIES = ("P0", "P1", "P2", "P3")  # the first to the last
DEFAULT_PRIORITY = "P2"

_DECADE_NS = 10 * 365 * 86_400 * 10**9
_HEAD_START_NS = {"P0": 2 * _DECADE_NS, "P1": _DECADE_NS, "P2": 0, "P3": -_DECADE_NS}


def priority(prompt_data: Mapping[str, Any] | list[Any] | None) -> str:
    """Return `metadata.priority` of a prompt; an invalid one counts as absent."""
    asked = metadata_of(prompt_data).get("priority")
    return asked if isinstance(asked, str) and asked in PRIORITIES else DEFAULT_PRIORITY


def head_start_ns(prompt_data: Mapping[str, Any] | list[Any] | None) -> int:
    """Return how much earlier than its entry a job is sorted: decades, so that no waiting time outweighs a priority."""
    return _HEAD_START_NS[priority(prompt_data)]
