"""The tags that a worker must offer to claim a job, read from its raw prompt.

No validation (`model` does it when a plan is loaded): a worker asks this of every job it walks past.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.plans.metadata import MAPPING, metadata_of

TAG_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"

_NONE: frozenset[str] = frozenset()


def required_tags(prompt_data: Mapping[str, Any] | list[Any]) -> frozenset[str]:
    """`metadata.tags` of a prompt and the `tags` of its steps: a plan runs on one worker. What is not text cannot be
    offered and is left out."""
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
