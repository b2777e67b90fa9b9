"""Perform a piece of work: load the prompt, run its plan, and turn the result into an outcome.

The only caller of `run_plan` for jobs, in the worker or in a runner process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from farro.documents.json_text import encoder
from farro.errors import BadDocument, Lost, NoFolder, StorageTrouble, SyncFailed
from farro.execution.executor import PlanRun, run_plan
from farro.execution.find_program import AGENT
from farro.execution.results import PlanResult
from farro.execution.runner import TICK_S, Work
from farro.execution.size_limit import ArtifactCap, JobTooLarge
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Function, Tools
from farro.host.clock import Clock
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Released, Report, Succeeded
from farro.lazy_dataclass import replace
from farro.plans.forms import is_agent_prompt
from farro.plans.loading import load_data
from farro.plans.model import Plan

if TYPE_CHECKING:
    from farro.execution.step import BegunCall


def perform_work(
    work: Work,
    *,
    plans: PlanCache,
    tools: Tools,
    clock: Clock,
    tick: Callable[[], None],
    stop: Stop,
    tick_every_s: float = TICK_S,
    agents: AgentSteps | None = None,
    begun: BegunCall | None = None,
) -> Outcome:
    """Run the attempt and return its outcome. `begun`: the call that function_batch began.

    What `tick` raises goes through, and so does SyncFailed. Anything else that a plan does is an outcome of that job
    alone (RELIABILITY 26).
    """
    cap = None if work.max_bytes is None else ArtifactCap(work.folder.rsplit("/", 2)[0], work.max_bytes)
    run = PlanRun(
        work=work,
        tools=tools,
        clock=clock,
        tick=tick if cap is None else cap.then(tick),
        tick_every_s=tick_every_s,
        stop=stop,
        begun=begun,
    )
    try:
        outcome = _run(plans.of(work.prompt), run, agents)
        if cap is not None and isinstance(outcome, Succeeded) and cap.exceeded():  # since the last tick
            return failed(work.job_id, "artifact_cap", cap.message)
        return outcome
    except JobTooLarge:
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


def _run(plan: Plan, run: PlanRun, agents: AgentSteps | None) -> Outcome:
    work = run.work
    if is_agent_prompt(work.prompt) or (plan.allowed_paths is None and not work.guarding.paths_required):
        return _run_steps(plan, run, agents)  # each call of an agent is confined by itself
    if plan.allowed_paths is None:
        return failed(
            work.job_id,
            "allowed_paths_missing",
            "the plan has no allowed_paths, and security.require_allowed_paths is on: it is not run unconfined",
        )
    from farro.execution.confined import CannotConfine, Confined  # here: most plans do not need it

    try:
        confined = Confined(
            root=work.root,
            folder=work.folder,
            marker=work.marker,
            guarding=work.guarding,
            wanted=plan.allowed_paths,
        )
    except CannotConfine as cannot:
        return failed(work.job_id, cannot.category, str(cannot))
    try:
        return _run_steps(plan, replace(run, confined=confined), agents)
    finally:
        confined.close()


def _run_steps(plan: Plan, run: PlanRun, agents: AgentSteps | None) -> Outcome:
    work = run.work
    if agents is not None and any(step.tool == AGENT for step in plan.steps):
        run = replace(run, tools=run.tools.with_one(AGENT, agents.tool(work, plan)))
    # A single function may need no folder.
    if work.earlier or run.confined is not None or len(plan.steps) > 1 or plan.input is not None:
        work.make()
    return outcome_of(work, plan, run_plan(plan, run), agents)


def outcome_of(work: Work, plan: Plan, result: PlanResult, agents: AgentSteps | None) -> Outcome:
    """Turn the result of a plan into the outcome of its attempt."""
    if result.error is not None and is_agent_prompt(work.prompt):  # its only step is generated, so its id means nothing
        message = result.error.message.removeprefix(f"step {plan.steps[0].id}: ")
        result = replace(result, error=replace(result.error, message=message))
    if result.error is not None and result.wait is not None:
        return Released(note=result.error.message, wait=result.wait)
    report = Report(result=result.to_json(work.job_id, plan.plan_id), markdown=result.summary_md(), files=result.files)
    if agents is not None and is_agent_prompt(work.prompt):
        report = agents.report(work, result, report)
    if result.success:
        return Succeeded(report=report)
    assert result.error is not None
    return Failed(error=result.error, report=report, retryable=result.retryable, retry_after_s=result.retry_after_s)


class AgentSteps(Protocol):
    """Answers agent steps (implemented by the agents slice)."""

    def tool(self, work: Work, plan: Plan) -> Function: ...

    def report(self, work: Work, result: PlanResult, plain: Report) -> Report:
        """Return the report of an agent prompt: the plain report, with the role's answer."""


class PlanCache:
    """Cache the plans of the last prompts: many jobs have the same prompt, and checking it again is useless."""

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
    """Return a failed outcome of an attempt that failed before, or outside of, its steps. `detail` is shown
    indented."""
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
    """Return the outcome of an unexpected error, with its traceback."""
    detail = "".join(traceback.format_exception(error))
    return failed(job_id, "internal_error", f"{type(error).__name__}: {error}", detail=detail)
