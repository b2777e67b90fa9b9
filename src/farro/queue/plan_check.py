"""Check a plan against this machine without running it, and report the state of a job's plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farro.config.settings import Settings
from farro.documents import Document
from farro.errors import BadDocument, Problem
from farro.execution import find_program, progress
from farro.execution.find_program import Missing
from farro.execution.progress import read_result, step_results
from farro.execution.tools import Tools
from farro.host.programs import which
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.plans.drawing.labels import StepState
from farro.plans.forms import Fault
from farro.plans.graph import Measure, measure, order
from farro.plans.lint import suspicions
from farro.plans.loading import grown, load_data
from farro.plans.model import Plan, Step
from farro.queue import agent_rules as contracts
from farro.queue import submit
from farro.queue.agent_rules import Contract
from farro.queue.history import known_attempts
from farro.store.port import JobView, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanContext:
    """The basis for checking a plan: a root's settings, and the machine as steps would find it."""

    settings: Settings
    tools: Tools
    cwd: str  # where steps start
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """The findings in one document. `measure` is set if it is a plan."""

    source: str
    line: int | None = None  # where the document begins in a file of several
    measure: Measure | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()  # those of the warnings that name a tool or program which is not here


def check(document: Document, context: PlanContext) -> PlanReport:
    """Return all errors in a plan; if there are none, what is suspicious about it on this machine."""
    roles = context.settings.all_roles()
    contract = Contract(security=context.settings.security)
    try:
        plan, shaped = contracts.read(document, roles, contract)
    except BadDocument as bad:
        return PlanReport(source=document.source, problems=tuple(bad.problems))
    found = [*submit.contradictions(document, submit.Options())]
    found += contracts.problems(document, plan, shaped, roles, contract)
    if found:
        return PlanReport(source=document.source, problems=tuple(found))
    missing = dict(missing_tools(plan, context))
    found_here = {**dict(_machine(plan, context)), **missing}
    found_here.update(suspicions(plan))  # the more helpful of two at one place: `cd` is missing everywhere
    placed = [(path, document.problem(shaped.original(path), message)) for path, message in found_here.items()]
    placed.sort(key=lambda pair: (pair[1].line or 0, pair[1].column or 0))
    return PlanReport(
        source=document.source,
        line=(document.locate(()) or (None,))[0],
        measure=measure(plan, context.settings.runners.task_timeout),
        warnings=tuple(problem for _, problem in placed),
        missing=tuple(problem for path, problem in placed if path in missing),
    )


def _machine(plan: Plan, context: PlanContext) -> Iterator[Fault]:
    """Yield what would fail in this root and on this machine."""
    roles = context.settings.all_roles()
    if plan.role is not None and plan.role not in roles:
        yield ("role",), f"{plan.role} is not a role here; known: {', '.join(roles)}"
    if plan.allowed_paths is None and context.settings.security.require_allowed_paths:
        yield (), "has no allowed_paths, and security.require_allowed_paths is on: it would be refused"
    for turn, place, step, cwd in _programs(plan, context):
        if step.cwd is not None and (why := _no_folder(cwd, may_appear=turn > 0)) is not None:
            yield ("steps", place, "cwd"), why


def missing_tools(plan: Plan, context: PlanContext) -> Iterator[Fault]:
    """Yield the steps whose tool or program is not on this machine, and which no earlier step could make."""
    for turn, place, step, cwd in _programs(plan, context):
        env = {**context.env, **step.env}
        found = find_program.find(
            step,
            tools=context.tools,
            env=env,
            cwd=cwd,
            attempt_dir=context.cwd,
            may_appear=turn > 0 and not _is_line(step.command, env.get("PATH"), cwd),
            confined=plan.allowed_paths is not None,
        )
        if isinstance(found, Missing):
            yield ("steps", place, "command" if step.tool == find_program.UNIX else "tool"), found.message


def _programs(plan: Plan, context: PlanContext) -> Iterator[tuple[int, int, Step, str]]:
    """Yield the steps that run a program: its turn, its place in the plan, the step, and its folder."""
    places = {step.id: index for index, step in enumerate(plan.steps)}
    for turn, step in enumerate(order(plan)):
        if step.tool != contracts.AGENT_TOOL:  # a role, not a program
            yield turn, places[step.id], step, os.path.join(context.cwd, step.cwd or "")


def _is_line(command: str, path: str | None, cwd: str) -> bool:
    """Return whether this is a program with arguments rather than the name of a program that an earlier step makes."""
    first, *words = command.split() or [command]
    return bool(words) and (words[0].startswith("-") or which(first, path, cwd) is not None)


def _no_folder(path: str, *, may_appear: bool) -> str | None:
    if not os.path.lexists(path):
        return None if may_appear else f"{path} does not exist, and no earlier step could create it"
    if not os.path.isdir(path):
        return f"{path} is not a folder"
    return None if os.access(path, os.X_OK) else f"you may not enter {path}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """A job's plan with the state of each step."""

    plan: Plan
    states: Mapping[str, StepState]
    added: int  # how many steps were added while it ran


def of_job(store: Store, view: JobView) -> JobPlan:
    """Return the plan of a job, with added steps, and the state of each step in the latest attempt."""
    folder = store.folder(view)
    plan = load_data(progress.read_prompt(folder), f"{folder}/prompt.json")
    numbers = known_attempts(folder)
    attempt = numbers[-1] if numbers else 0
    lines = progress.lines(folder, attempt)
    plan, own = with_added(plan, lines), len(plan.steps)
    ended = _ended(lines) | (_ended(step_results(read_result(folder, attempt))) if attempt else {})
    if view.status is Status.QUEUED:  # it continues after the steps that succeeded
        ended = {name: state for name, state in ended.items() if state is StepState.SUCCEEDED}
    begun = set(progress.begun(folder, attempt)) if view.status is Status.IN_PROGRESS else set()
    rest = StepState.WAITING if view.status in (Status.QUEUED, Status.IN_PROGRESS, Status.STALE) else StepState.SKIPPED
    states = {step.id: ended.get(step.id) or (StepState.RUNNING if step.id in begun else rest) for step in plan.steps}
    return JobPlan(plan=plan, states=states, added=len(plan.steps) - own)


def graph(drawn: JobPlan) -> dict[str, Any]:
    """Return the plan as data: each step with its level, dependencies and state."""
    from farro.plans.graph import ranks

    level = ranks(drawn.plan)
    return {
        "name": drawn.plan.name,
        "plan_id": drawn.plan.plan_id,
        "steps": [
            {
                "id": step.id,
                "level": level[step.id] + 1,
                "tool": step.tool,
                "command": step.command,
                "args": list(step.args),
                "needs": list(step.needs),
                "input_from_step": step.input_from_step,
                "state": drawn.states.get(step.id),
            }
            for step in drawn.plan.steps
        ],
        "added": drawn.added,
    }


def with_added(plan: Plan, lines: Sequence[Mapping[str, object]]) -> Plan:
    """Return the plan with the steps that these lines of steps.jsonl record as added."""
    steps = plan.steps
    for line in lines:
        listed = line.get("added")
        tasks = [one["task"] for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        more, problems = grown(steps, tasks) if tasks else ((), [])
        steps = steps if problems else (*steps, *more)
    return replace(plan, steps=steps)


def _ended(results: Sequence[Mapping[str, object]]) -> dict[str, StepState]:
    return {
        str(one.get("id") or one.get("step_number")): StepState.SUCCEEDED
        if one.get("success") is True
        else StepState.FAILED
        for one in results
        if "success" in one
    }
