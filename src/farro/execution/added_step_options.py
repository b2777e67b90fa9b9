"""The options of `farro.add_task`, for type checkers: `execution.task_file` imports no typing, which is slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict


class CallStepOptions(TypedDict, total=False):
    """Options of a step that a running step adds."""

    id: str | None
    needs: Iterable[str]
    input_from: str | None
    timeout: float | None
    cwd: str | None
    env: Mapping[str, str] | None
    retries: int
    retry_delay: float
    retry_backoff: float
    tool: str


class AddedStepOptions(CallStepOptions, total=False):
    """The same, and where to add it."""

    environ: Mapping[str, str] | None
