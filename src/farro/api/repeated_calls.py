"""Calls of tasks that were checked before: the next one differs in its arguments alone, which are JSON by its making.

Checking lives in operations.submit; it costs as much as the queueing itself, and would tell nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.api.options import Options, Retrying, job_ids
from farro.api.task import TaskCall
from farro.lazy_dataclass import dataclass
from farro.store.port import Submission

_NOTHING = Options()
_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class _Known:
    options: Options  # the very object: a task keeps its own, and nothing in it changes
    retries: Retrying
    role: str
    prompt: Mapping[str, Any]


class KnownCalls:
    """By function. What a call says of one job only (its id, when it starts, what it runs after) is never known."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def submission(self, call: TaskCall[Any], options: Options) -> Submission | None:
        known = self._known.get(call.reference)
        if known is None or known.options is not call.options or known.retries != call.retries or options != _NOTHING:
            return None
        step = {**known.prompt["steps"][0], "args": list(call.args)}
        return Submission(role=known.role, prompt={**known.prompt, "steps": [step]})

    def remember(self, call: TaskCall[Any], options: Options, checked: Submission) -> None:
        own = call.options
        alone = own.id is None and not job_ids(own.after) and not job_ids(own.after_any)
        if options == _NOTHING and alone and checked.not_before is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[call.reference] = _Known(own, call.retries, checked.role, checked.prompt)
