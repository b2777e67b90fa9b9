"""Report an agent's step: its answer as data and as Markdown, with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from farro.agents.call_records import DIFF, recorded_answers
from farro.agents.session_folder import ACP, folders_of_job
from farro.execution.results import PlanResult, StepResult
from farro.execution.runner import Work
from farro.host import fs
from farro.jobs.outcomes import Report
from farro.lazy_dataclass import replace
from farro.roles import answers
from farro.store.ledger import CallRecord

_LIMIT = 8 << 20
_SHOWN = 20  # files, and denials, in result.md


def agent_report(work: Work, result: PlanResult, plain: Report, calls: Sequence[CallRecord]) -> Report:
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
        agent |= _of_program(work.folder, str(step.id))
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
        markdown += _listed("Files that it wrote", agent.get("files", ())) + _listed("Denied", agent.get("denied", ()))
    if result.error is not None:
        markdown = f"# {work.role}: failed\n\n**{result.error.category}**: {result.error.message}\n"
        words = [] if step is None else step.last_words.strip().splitlines()
        said = [line for line in words if line.strip() and line not in result.error.message]
        if said:
            markdown += "\nBefore that:\n\n" + "\n".join(f"    {line}" for line in said[-20:]) + "\n"
        folders = [folder for _, _, folder in folders_of_job(work.root, work.job_id)]
        if any(record.program != ACP for folder in folders for record in folder.read().values()):
            markdown += f"\nContinue its session by hand: `farro session {work.job_id}`\n"
    if calls:
        markdown = f"{markdown}\n{_line(own, calls)}\n"
    return replace(plain, result={**plain.result, "agent": agent}, markdown=markdown, files=files)


def _of_program(attempt_dir: str, step: str) -> dict[str, Any]:
    """Return what only a known program reports: its session, what its rules refused, what its tools wrote."""
    given = [one.answer for one in recorded_answers(attempt_dir, step) if one.answer.session_id is not None]
    if not given:
        return {}
    return {
        "session_id": given[-1].session_id,
        "denied": list(dict.fromkeys(what for answer in given for what in answer.denied)),
        "files": list(dict.fromkeys(path for answer in given for path in answer.files)),
    }


def _listed(title: str, lines: Sequence[str]) -> str:
    more = f"\n- … and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"\n{title}:\n\n" + "\n".join(f"- `{line}`" for line in lines[:_SHOWN]) + f"{more}\n" if lines else ""


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
    """Describe the cost of this result, and of the job so far if it has calls of other attempts or roles."""
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
