"""Which drafts of an Architect become jobs, and when the manager makes none: bounds and backpressure. Pure.

Reading drafts and counting queues lives in services.auto_plan; a draft's shape lives in answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from farro.documents import Document
from farro.errors import BadDocument
from farro.lazy_dataclass import dataclass
from farro.roles import paths, prompt

ORIGIN = "auto-plan"
_NOT_ITS_OWN = ("task_id",)  # of a draft's inputs: a workflow is a person's to choose, it may allow more than the draft


def paused(before: bool, shares: Collection[float], *, pause: float, resume: float) -> bool:
    """Whether jobs are made: not from `pause` of any cap on, until no role has more than `resume` (SPEC-1 §10)."""
    fullest = max(shares, default=0.0)
    return fullest > min(resume, pause) if before else fullest >= pause


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSelection:
    prompts: tuple[Mapping[str, Any], ...]  # each as prompt.json has it
    refused: tuple[str, ...]  # why the others are not


def choose(
    drafts: Sequence[Any],
    *,
    parent: str,
    allowed: Sequence[str],
    roles: Collection[str],
    limit: int,
    allow_absolute: bool = False,
    root: str | None = None,
) -> DraftSelection:
    """The drafts that may become jobs, at most `limit`, none beyond what its parent may write."""
    prompts: list[Mapping[str, Any]] = []
    refused: list[str] = []
    for number, draft in enumerate(drafts, start=1):
        if not isinstance(draft, Mapping):
            refused.append(f"draft {number} is no prompt")
            continue
        wider = [path for path in draft.get("allowed_paths") or () if not paths.within(str(path), allowed)]
        own = [name for name in _NOT_ITS_OWN if name in (draft.get("inputs") or {})]
        if wider:
            refused.append(f"draft {number} would write {', '.join(wider)}, beyond {', '.join(allowed)}")
        elif own:
            refused.append(f"draft {number} chooses a task of its own (inputs.{own[0]})")
        elif len(prompts) >= limit:
            refused.append(f"draft {number} is beyond the limit of this run (manager.auto_plan_limit)")
        else:
            made = _prompt(draft, parent)
            try:
                prompt.load(Document(made, "draft"), roles=roles, allow_absolute=allow_absolute, root=root)
            except BadDocument as bad:
                refused.append(f"draft {number}: {bad.problems[0].message}")
            else:
                prompts.append(made)
    return DraftSelection(prompts=tuple(prompts), refused=tuple(refused))


def _prompt(draft: Mapping[str, Any], parent: str) -> dict[str, Any]:
    routing = draft.get("routing") or {"mode": "manager"}
    made = {name: draft.get(name) for name in ("role", "rubric", "success")}
    made["allowed_paths"] = list(draft.get("allowed_paths") or ())
    made["routing"] = {name: value for name, value in routing.items() if value is not None}
    if draft.get("inputs"):
        made["inputs"] = dict(draft["inputs"])
    made["metadata"] = {"origin": ORIGIN, "parent": parent}
    return made
