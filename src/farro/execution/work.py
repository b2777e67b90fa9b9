"""From a piece of work to an outcome: the prompt is loaded, its plan is run, what came of it is one of the closed set.

The one place that calls `run_plan` for a job, in the worker or in a runner of its own. Who calls this lives in runners.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from farro.documents.encoding import encoder
from farro.errors import BadDocument, Lost, NoFolder, StorageTrouble, SyncFailed
from farro.execution.commands import AGENT
from farro.execution.executor import run_plan
from farro.execution.results import PlanResult
from farro.execution.runner import TICK_S, Work
from farro.execution.size_limit import ArtifactCap, TooLarge
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Function, Tools
from farro.host.clock import Clock
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Released, Report, Succeeded
from farro.plans.forms import is_agent_prompt
from farro.plans.loading import load_data
from farro.plans.model import Plan

if TYPE_CHECKING:
    from farro.execution.confined import Confined
    from farro.execution.step import Begun


def perform_work(
    work: Work,
    *,
    plans: Plans,
    tools: Tools,
    clock: Clock,
    tick: Callable[[], None],
    stop: Stop,
    tick_every_s: float = TICK_S,
    agents: AgentSteps | None = None,
    begun: Begun | None = None,
) -> Outcome:
    """The outcome of the attempt. What `tick` raises goes through, and so does SyncFailed. `begun`: what row.py began.

    Whatever a plan does, it is an outcome of that job alone (RELIABILITY 26).
    """
    cap = None if work.max_bytes is None else ArtifactCap(work.folder.rsplit("/", 2)[0], work.max_bytes)
    try:
        if begun is not None:
            plan = plans.of(work.prompt)
            return told(work, plan, _run_plan(work, plan, tools, clock, tick, stop, tick_every_s, None, begun), agents)
        if cap is None:
            return _run(work, plans, tools, clock, tick, stop, tick_every_s, agents)
        outcome = _run(work, plans, tools, clock, cap.then(tick), stop, tick_every_s, agents)
        if isinstance(outcome, Succeeded) and cap.exceeded():  # between two looks
            return failed(work.job_id, "artifact_cap", cap.message)
        return outcome
    except TooLarge:
        assert cap is not None
        return failed(work.job_id, "artifact_cap", cap.message)
    except (Lost, SyncFailed):
        raise
    except Interrupted as interrupted:
        done = len(interrupted.partial.step_results)
        return Released(note=f"the worker was stopped after {done} of {interrupted.partial.steps_total} steps")
    except BadDocument as error:
        return failed(work.job_id, "bad_prompt", str(error))
    except NoFolder:
        raise
    except (StorageTrouble, OSError) as error:
        return failed(work.job_id, "storage", str(error), retryable=True)
    except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
        return bug(work.job_id, error)


def _run(
    work: Work,
    plans: Plans,
    tools: Tools,
    clock: Clock,
    tick: Callable[[], None],
    stop: Stop,
    tick_every_s: float,
    agents: AgentSteps | None,
) -> Outcome:
    plan = plans.of(work.prompt)
    if agents is not None and any(step.tool == AGENT for step in plan.steps):
        tools = tools.with_one(AGENT, agents.tool(work, plan))
    if is_agent_prompt(work.prompt):  # each call is confined by itself
        return told(work, plan, _run_plan(work, plan, tools, clock, tick, stop, tick_every_s, None), agents)
    if plan.allowed_paths is None:
        if work.guarding.paths_required:
            return failed(
                work.job_id,
                "allowed_paths_missing",
                "the plan has no allowed_paths, and security.require_allowed_paths is on: it is not run unconfined",
            )
        return told(work, plan, _run_plan(work, plan, tools, clock, tick, stop, tick_every_s, None), agents)
    from farro.execution.confined import CannotConfine, Confined  # here: most plans do without

    try:
        confined = Confined.of(
            root=work.root,
            folder=work.folder,
            marker=work.marker,
            guarding=work.guarding,
            wanted=plan.allowed_paths,
        )
    except CannotConfine as cannot:
        return failed(work.job_id, cannot.category, str(cannot))
    try:
        return told(work, plan, _run_plan(work, plan, tools, clock, tick, stop, tick_every_s, confined), agents)
    finally:
        confined.close()


def _run_plan(
    work: Work,
    plan: Plan,
    tools: Tools,
    clock: Clock,
    tick: Callable[[], None],
    stop: Stop,
    tick_every_s: float,
    confined: Confined | None,
    begun: Begun | None = None,
) -> PlanResult:
    if work.earlier or confined is not None or len(plan.steps) > 1:  # a single function may do without a folder
        work.make()
    return run_plan(
        plan,
        attempt_dir=work.folder,
        make=work.make,
        job_id=work.job_id,
        base_env=work.env,
        cwd=work.cwd,
        tools=tools,
        claim_marker=work.marker,
        tick=tick,
        tick_every_s=tick_every_s,
        stop=stop,
        clock=clock,
        root=work.root,
        step_timeout_s=work.step_timeout_s,
        earlier=work.earlier,
        durable=work.durable,
        ahead_bytes=work.ahead_bytes,
        confined=confined,
        begun=begun,
    )


def told(work: Work, plan: Plan, result: PlanResult, agents: AgentSteps | None) -> Outcome:
    """What came of a plan, as the outcome of its attempt."""
    if result.error is not None and is_agent_prompt(work.prompt):  # of one step, which nobody wrote
        message = result.error.message.removeprefix(f"step {plan.steps[0].id}: ")
        result = replace(result, error=replace(result.error, message=message))
    report = Report(result=result.to_json(work.job_id, plan.plan_id), markdown=result.summary_md(), files=result.files)
    if agents is not None and is_agent_prompt(work.prompt):
        report = agents.report(work, result, report)
    if result.success:
        return Succeeded(report=report)
    assert result.error is not None
    return Failed(error=result.error, report=report, retryable=result.retryable, retry_after_s=result.retry_after_s)


class AgentSteps(Protocol):
    """Who answers agent steps (execution.agents)."""

    def tool(self, work: Work, plan: Plan) -> Function: ...

    def report(self, work: Work, result: PlanResult, plain: Report) -> Report:
        """What an agent prompt leaves behind: the plain report, in the words of its role."""


class Plans:
    """The plans of the last prompts: many jobs say the same, and checking it again would tell nothing new."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._known: dict[str, Plan] = {}  # by the prompt's text

    def of(self, prompt: Mapping[str, Any]) -> Plan:
        text = _encode(prompt)
        plan = self._known.get(text)
        if plan is None:
            plan = load_data(prompt, "prompt.json")
            if len(text) <= _SMALL:
                if len(self._known) >= self._limit:
                    self._known.pop(next(iter(self._known), ""), None)
                self._known[text] = plan
        return plan


_SMALL = 4096
_encode = encoder()


def failed(
    job_id: str,
    category: str,
    message: str,
    *,
    retryable: bool = False,
    detail: str = "",
    files: tuple[str, ...] = (),
) -> Failed:
    """An attempt that failed before, or beside, its steps. `detail` is shown indented, as somebody said it."""
    markdown = f"# Failed\n\n**{category}**: {message}\n"
    if detail:
        markdown += "\n" + "\n".join("    " + line for line in detail.splitlines()) + "\n"
    result: dict[str, Any] = {
        "job_id": job_id,
        "plan_id": None,
        "success": False,
        "step_results": [],
        "error": {"category": category, "message": message},
    }
    return Failed(
        error=ErrorInfo(category=category, message=message),
        report=Report(result=result, markdown=markdown, files=files),
        retryable=retryable,
    )


def bug(job_id: str, error: Exception) -> Failed:
    """What nobody expected, with its traceback."""
    detail = "".join(traceback.format_exception(error))
    return failed(job_id, "internal_error", f"{type(error).__name__}: {error}", detail=detail)
