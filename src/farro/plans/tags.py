"""The tags that a worker must offer to claim a job, read from its raw prompt.

No validation (`model` does it when a plan is loaded): a worker asks this of every job it walks past.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TAG_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"

_NONE: frozenset[str] = frozenset()


def required_tags(prompt_data: Mapping[str, Any] | list[Any]) -> frozenset[str]:
    """`metadata.tags` of a prompt; empty when it has none. What is not text cannot be offered and is left out."""
    if not isinstance(prompt_data, Mapping):
        return _NONE  # an Air-Executor task list has no metadata
    metadata = prompt_data.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, Mapping) else None
    return frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else _NONE
