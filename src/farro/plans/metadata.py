"""The `metadata` of a raw prompt, whatever it is: where tags, priority and dependencies stand.

What each of them means lives in tags, priority and after. No validation and no pydantic: a store asks this of every
job.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MAPPING = (dict, Mapping)  # nearly always a dict, and to ask an ABC takes ten times as long
_NONE: Mapping[str, Any] = MappingProxyType({})


def metadata_of(prompt_data: object) -> Mapping[str, Any]:
    """Empty where there is none: an Air-Executor task list has none, and what is no object counts as none."""
    found = prompt_data.get("metadata") if isinstance(prompt_data, MAPPING) else None
    return found if found is not None and isinstance(found, MAPPING) else _NONE
