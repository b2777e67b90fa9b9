"""Read the `metadata` of a raw prompt, which holds tags, priority and dependencies. Stores do this for every job."""

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
