"""Run a batch of jobs that are one Python function each: one thread calls them in order.

A no-op function takes a microsecond. Supervising it as a plan (step frontier, deadlines, leftover processes) takes a
hundred times as long, and handing it to another thread as long again. So it is called first, and supervised only when
it takes longer than a moment: `run_plan` then continues with the call that was begun. Without this a worker takes 52 %
more CPU time for 600 no-op jobs, its start-up included (median of 20 alternating pairs: 4.56 ms a job, not 2.95).
The function, and a caller that ends it, see no difference. [test_a_function_in_a_batch_is_reported_like_any_other]
"""

from __future__ import annotations

from collections.abc import Sequence

from farro.errors import BadDocument
from farro.execution.find_program import AGENT, UNIX, InWorker
from farro.execution.functions import FunctionCalls, FunctionRun
from farro.execution.results import PlanResult, StepResult
from farro.execution.runner import Work
from farro.execution.step import BegunCall, Tries
from farro.execution.tools import Tools
from farro.execution.work import PlanCache, outcome_of
from farro.host import process_tree
from farro.host.clock import Clock
from farro.jobs.outcomes import Outcome
from farro.plans.forms import is_agent_prompt
from farro.plans.model import Plan, Step


def run_batch(works: Sequence[Work], *, plans: PlanCache, tools: Tools, clock: Clock) -> list[Outcome | BegunCall]:
    """Call the functions of these jobs, up to one that is not a function or is not over in a moment.

    Returns for each begun job its outcome, or what `run_plan` has to continue; the last may still be running.
    """
    calls: list[tuple[Work, Plan, Tries, FunctionRun]] = []
    for work in works:
        call = _call(work, plans, tools, clock)
        if call is None:
            break
        calls.append(call)
    if not calls:
        return []
    started_s = clock.monotonic_s()
    begun = FunctionCalls([run for _, _, _, run in calls]).quick()
    alone = process_tree.childless()  # else `run_plan` checks whose children there are
    return [
        (_quick_outcome(work, plan, run) if alone and not tries.task_folder.made else None)
        or BegunCall(tries=tries, run=run, started_s=started_s, over=_over(plan.steps[0], run))
        for work, plan, tries, run in calls[:begun]
    ]


def _call(work: Work, plans: PlanCache, tools: Tools, clock: Clock) -> tuple[Work, Plan, Tries, FunctionRun] | None:
    """Prepare the job as one call. None: it is something else; running it as a plan reports what."""
    if work.earlier or work.max_bytes is not None or work.guarding.paths_required or is_agent_prompt(work.prompt):
        return None
    try:
        plan = plans.of(work.prompt)
    except BadDocument:
        return None
    if len(plan.steps) > 1 or plan.allowed_paths is not None or plan.input is not None:
        return None
    (step,) = plan.steps
    if step.tool in (UNIX, AGENT):
        return None
    tries = Tries(work, tools, clock)
    command = tries.find(step)
    if not isinstance(command, InWorker):
        return None
    return work, plan, tries, tries.call(step, command, 1, None, begin=False)


def _over(step: Step, run: FunctionRun) -> bool:
    return run.exit is not None and (step.retries == 0 or run.exit.code in step.ok_exit_codes)


def _quick_outcome(work: Work, plan: Plan, run: FunctionRun) -> Outcome | None:
    """Return the outcome of a function that succeeded without output, as `run_plan` would
    [test_a_function_in_a_batch_is_reported_like_any_other]. None: it ended otherwise."""
    (step,), ended = plan.steps, run.exit
    if ended is None or ended.code not in step.ok_exit_codes or run.failure is not None or not run.files.silent:
        return None
    step_result = StepResult(
        step_number=step.step_number,
        id=step.id,
        stdout="",
        stderr="",
        stdout_truncated=False,
        stderr_truncated=False,
        stdout_path=None,
        stderr_path=None,
        exit_code=ended.code,
        success=True,
        timed_out=False,
        duration_s=ended.duration_s,
        user_s=ended.user_s,
        system_s=ended.system_s,
        max_rss_kb=ended.max_rss_kb,
        attempts=1,
        error=None,
    )
    result = PlanResult(
        success=True, step_results=(step_result,), steps_total=1, duration_s=ended.duration_s, error=None
    )
    return outcome_of(work, plan, result, None)
