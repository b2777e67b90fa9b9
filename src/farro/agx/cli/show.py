"""Print plans, jobs and rehearsals as text.

Everything goes through terminal.say, so that no text of a model or a job can send control sequences to the terminal.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from farro.agx import drafting
from farro.cli.terminal import say, show_table, size, span
from farro.errors import Problem
from farro.log.structured import printable
from farro.queue.plan_check import PlanReport

if TYPE_CHECKING:
    from farro.agx.client import PlanJob
    from farro.agx.rehearsal import Rehearsal


def steps(plan: Mapping[str, Any], *, first: int = 1) -> None:
    """Print each step, from the `first` on, with exactly the words that would run."""
    rows = []
    for place, step in enumerate(drafting.steps_of(plan), start=1):
        if place >= first:
            rows.append((f"  {drafting.label(step, place)}", command_line(step), ", ".join(_rest(step))))
    if rows:
        show_table([tuple(printable(cell) for cell in row) for row in rows])


def command_line(step: Mapping[str, Any]) -> str:
    """Quote the words of a step so that a shell would run the same."""
    args = step.get("args")
    words = [step.get("command"), *(args if isinstance(args, list) else [args] if args is not None else [])]
    tool = step.get("tool", "unix")
    if tool != "unix":
        words.insert(0, tool)
    return shlex.join(str(word) for word in words)


def _rest(step: Mapping[str, Any]) -> list[str]:
    told = []
    if step.get("input_from_step") is not None:
        told.append(f"reads {step['input_from_step']}")
    if step.get("needs"):
        told.append(f"after {', '.join(map(str, step['needs']))}" if isinstance(step["needs"], list) else "after ?")
    if step.get("cwd") is not None:
        told.append(f"in {step['cwd']}")
    if isinstance(step.get("env"), dict) and step["env"]:
        told.append("with " + " ".join(f"{name}={shlex.quote(str(value))}" for name, value in step["env"].items()))
    if step.get("timeout") is not None:
        told.append(f"at most {step['timeout']}s")
    if step.get("ok_exit_codes") is not None:
        told.append(f"ok with exit code {', '.join(map(str, step['ok_exit_codes']))}")
    if step.get("retries"):
        rest = f" after {step['retry_delay']}s" if step.get("retry_delay") else ""
        told.append(f"tried again {step['retries']} times{rest}")
    return told


def heading(plan: Mapping[str, Any], checked: PlanReport | None, *, what: str) -> str:
    """`backup: 3 steps, at most 1h30m`"""
    count = len(drafting.steps_of(plan))
    parts = [f"{count} step{'s' if count != 1 else ''}"]
    if checked is not None and checked.measure is not None:
        parts.append(f"at most {span(checked.measure.timeout_s)}")
    if plan.get("role"):
        parts.append(f"for {plan['role']}")
    return f"{plan.get('plan_id') or what}: {', '.join(parts)}"


def findings(checked: PlanReport, *, first: int = 1) -> None:
    """Print problems and warnings; of the warnings about steps only those from the `first` on, which are new."""
    for problem in checked.problems:
        say(f"wrong: {problem.render(checked.source) if problem.line else _where(problem) + problem.message}")
    for warning in checked.warnings:
        found = _OF_STEP.match(warning.path)
        if found is None or int(found[1]) + 1 >= first:
            say(f"warning: {_where(warning)}{warning.message}")


_OF_STEP = re.compile(r"steps\[(\d+)\]\.?")


def _where(problem: Problem) -> str:
    """Return `step 2, args[0]: `. Steps are counted from 1, as they are shown."""
    found = _OF_STEP.match(problem.path)
    if found is None:
        return f"{problem.path}: " if problem.path else ""
    rest = problem.path[found.end() :]
    return f"step {int(found[1]) + 1}{f', {rest}' if rest else ''}: "


def checked_json(checked: PlanReport) -> dict[str, Any]:
    return {
        "ok": not checked.problems,
        **({} if checked.measure is None else asdict(checked.measure)),
        "problems": [asdict(problem) for problem in checked.problems],
        "warnings": [asdict(problem) for problem in checked.warnings],
    }


# --- rehearsals --------------------------------------------------------------------------------------------------


def rehearsal(told: Rehearsal) -> None:
    findings(told.checked)
    if not told.good:
        return
    many = f" ({told.jobs} jobs)" if told.jobs != 1 else ""
    say(f"would run{many}, at most {span(told.timeout_s)}{' each' if told.jobs != 1 else ''}:")
    rows = [
        (
            f"  {step.step}",
            shlex.join(step.argv),
            f"reads {step.reads}" if step.reads else "",
            step.where if step.found else f"not found here: {step.where}",
        )
        for step in told.steps
    ]
    show_table([tuple(printable(cell) for cell in row) for row in rows])
    tags = f" with {', '.join(told.tags)}" if told.tags else ""
    say(f"where  {told.role}, {told.queued} queued before it; {_takers(told)}{tags}")
    if told.input_bytes:
        say(f"input  {size(told.input_bytes)}")
    say(f"cost   {_cost(told)}")


def _takers(told: Rehearsal) -> str:
    if told.takers:
        more = f" and {len(told.takers) - 3} more" if len(told.takers) > 3 else ""
        return f"{', '.join(told.takers[:3])}{more} could take it"
    return (
        f"none of {told.others} live workers could take it" if told.others else "no worker is alive that could take it"
    )


def _cost(told: Rehearsal) -> str:
    if not told.agent_steps:
        return "nothing: no step asks an agent"
    if told.most_usd is None:
        return f"unknown: {told.agent_steps} agent steps, and no price for one of them"
    return f"at most ${told.most_usd:f} for {told.agent_steps * told.jobs} agent steps, failed tries aside"


def rehearsal_json(told: Rehearsal) -> dict[str, Any]:
    data = asdict(told)
    for name in ("checked", "most_usd"):
        del data[name]
    return {
        "dry_run": True,
        **data,
        **checked_json(told.checked),
        "steps": [
            {**asdict(step), "most_usd": None if step.most_usd is None else float(step.most_usd)} for step in told.steps
        ],
        "most_usd": None if told.most_usd is None else float(told.most_usd),
    }


# --- jobs --------------------------------------------------------------------------------------------------------


def job_lines(told: Sequence[PlanJob]) -> None:
    rows = [("JOB", "STATUS", "ROLE", "PLAN", "CREATED")]
    rows += [(one.job_id, one.status, one.role or "-", one.plan_id or "-", _time(one.created_at)) for one in told]
    show_table([tuple(printable(cell) for cell in row) for row in rows])


def _time(text: str | None) -> str:
    return "-" if text is None else text[:19].replace("T", " ")


def job(told: PlanJob) -> None:
    say(f"{told.job_id}: {state(told)}")
    for name, value in (("role", told.role), ("plan", told.plan_id), ("created", _time(told.created_at))):
        if value:
            say(f"  {name.ljust(8)} {value}")
    if told.ended_at:
        say(f"  ended    {_time(told.ended_at)}")


def state(told: PlanJob) -> str:
    if told.status == "in_progress":
        return f"in_progress, attempt {told.attempt}" + (f", step {told.step}" if told.step else "")
    return f"{told.status}: {told.error}".replace("\n", " ") if told.error else told.status
