"""Read from a raw prompt the tags that a worker must offer. Not validated: workers do this for every job they pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.plans.metadata import MAPPING, metadata_of

TAG_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"

_NONE: frozenset[str] = frozenset()


def required_tags(prompt_data: Mapping[str, Any] | list[Any]) -> frozenset[str]:
    """Return `metadata.tags` and the `tags` of all steps: a plan runs on one worker. Anything but text is left out."""
    if not isinstance(prompt_data, MAPPING):
        return _of_steps(prompt_data)  # an Air-Executor task list
    tags = metadata_of(prompt_data).get("tags")
    own = frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else _NONE
    steps = prompt_data.get("steps", prompt_data.get("tasks"))
    return own | _of_steps(steps) if steps else own


def _of_steps(steps: object) -> frozenset[str]:
    if not isinstance(steps, list):
        return _NONE
    found = [step["tags"] for step in steps if isinstance(step, MAPPING) and isinstance(step.get("tags"), list)]
    return frozenset(tag for tags in found for tag in tags if isinstance(tag, str)) if found else _NONE
