"""Write what an agent prompt leaves behind: the role's answer as data and as Markdown, with its cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

from farro.agents.call_records import DIFF, recorded_answers
from farro.execution.results import PlanResult, StepResult
from farro.execution.runner import Work
from farro.host import fs
from farro.jobs.outcomes import Report
from farro.roles import answers
from farro.store.ledger import CallRecord

_LIMIT = 8 << 20


def report(work: Work, result: PlanResult, plain: Report, calls: Sequence[CallRecord]) -> Report:
    """Extend the plain report: `agent` in result.json, and a result.md in the role's own words.

    `calls` are those of the whole job; the result lists those that this attempt made or rests on.
    """
    step = result.step_results[0] if result.step_results else None
    own = _own(work, step, calls)
    agent: dict[str, Any] = {
        "role": work.role,
        "answer": None,
        "calls": [_call(call) for call in own],
        **_cost(own),
        "job": {"calls": len(calls), **_cost(calls)},
    }
    markdown, files = plain.markdown, plain.files
    if step is not None and step.stdout_path is not None and result.success:
        text = fs.read_bytes(f"{work.folder}/{step.stdout_path}", _LIMIT).decode("utf-8", "replace")
        answer = answers.read(work.role, text)
        if not isinstance(answer, list):
            agent["answer"] = asdict(answer)
            markdown = answers.markdown(work.role, answer)
        diff = f"steps/{step.id}/{DIFF}"
        if fs.exists(f"{work.folder}/{diff}"):
            agent["diff"] = diff
            files = (*files, diff)
            markdown += f"\nThe diff is in `{diff}` of this attempt.\n"
    if result.error is not None:
        markdown = f"# {work.role}: failed\n\n**{result.error.category}**: {result.error.message}\n"
        words = [] if step is None else step.last_words.strip().splitlines()
        said = [line for line in words if line.strip() and line not in result.error.message]
        if said:
            markdown += "\nBefore that:\n\n" + "\n".join(f"    {line}" for line in said[-20:]) + "\n"
    if calls:
        markdown = f"{markdown}\n{_line(own, calls)}\n"
    return replace(plain, result={**plain.result, "agent": agent}, markdown=markdown, files=files)


def failure_of(attempt_dir: str) -> str | None:
    """Return why an earlier attempt failed; None if it succeeded or was killed."""
    try:
        result = json.loads(fs.read_bytes(f"{attempt_dir}/result.json", _LIMIT))
        error = result["error"]
        return None if error is None else f"{error['message']}"
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _own(work: Work, step: StepResult | None, calls: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the calls of this attempt, and those of a killed attempt whose answers it took over.

    For a step that was resumed, return the calls of the attempt that ran it.
    """
    attempt = work.attempt
    if step is not None and step.resumed:
        attempt = max((call.charge.attempt for call in calls if call.charge.role == work.role), default=attempt)
    taken_over = set() if step is None else {one.call_id for one in recorded_answers(work.folder, str(step.id))}
    return [call for call in calls if call.charge.attempt == attempt or call.id in taken_over]


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "id": call.id,
        "attempt": call.charge.attempt,
        "provider": call.charge.provider,
        "model": call.charge.model,
        "end": call.end,
        "usage": None if call.usage is None else call.usage.to_json(),
        "cost_usd": _number(call.counts_usd),
        "estimated": call.estimated,
    }


def _cost(calls: Sequence[CallRecord]) -> dict[str, Any]:
    """Sum the costs. An unknown cost makes the sum null: a sum without it would pass for the whole."""
    counted = [call.counts_usd for call in calls]
    total = None if None in counted else sum((one for one in counted if one is not None), Decimal(0))
    return {"cost_usd": _number(total), "cost_estimated": any(call.estimated for call in calls)}


def _line(own: Sequence[CallRecord], calls: Sequence[CallRecord]) -> str:
    """Describe the cost of this result, and of the whole job if others worked on it before."""
    who = ", ".join(dict.fromkeys(call.charge.model or call.charge.provider for call in own if call.end == "answered"))
    job = f"; the job so far: {_sum(calls)}" if len(calls) > len(own) else ""
    return f"*{who or 'no answer'}: {_sum(own)}{job}*"


def _sum(calls: Sequence[CallRecord]) -> str:
    cost = _cost(calls)
    known = cost["cost_usd"] is not None
    amount = f"${cost['cost_usd']}" if known else "unknown"
    about = " at most (estimated)" if known and cost["cost_estimated"] else ""
    usages = [call.usage for call in calls if call.usage is not None]
    tokens = f", {sum(usage.input_tokens + usage.output_tokens for usage in usages)} tokens" if usages else ""
    made = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
    return f"{made}{tokens}, cost {amount}{about}"


def _number(amount: Decimal | None) -> str | None:
    """Format as text: a float would not be exact."""
    return None if amount is None else format(amount.normalize() if amount else Decimal(0), "f")
