"""Work out what a plan would run, where, and what it may cost, from this machine, its queue and the price list.

Nothing is queued and nothing is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from farro.agents.service import providers_of_role
from farro.config.settings import RoleSettings
from farro.documents import Document
from farro.errors import BadDocument, InputError
from farro.execution import find_program
from farro.execution.find_program import AGENT, Executable, Missing
from farro.jobs.request import JobRequest, as_option
from farro.lazy_dataclass import dataclass
from farro.plans.graph import order
from farro.plans.loading import load
from farro.plans.metadata import required_tags
from farro.plans.model import Plan, Step
from farro.queue import plan_check, submit
from farro.queue.plan_check import PlanContext, PlanReport
from farro.queue.submit import DEFAULT_ROLE, Options, SubmitPolicy
from farro.store.ledger import Prices

if TYPE_CHECKING:
    from farro.agx.client import PlanQueue, PlanWorker

_POLICIES = 64 << 10  # bytes of a role's policies and of the form of its answer, at most
_READ = 1 << 20  # bytes that an agent reads of an earlier step


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRun:
    """A step as it would be started."""

    step: str
    argv: tuple[str, ...]
    where: str  # the program's file here, or why there is none
    found: bool
    timeout_s: float
    reads: str | None = None
    most_usd: Decimal | None = None  # of an agent step; None: unknown, or no agent step


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    plan_id: str | None
    jobs: int
    checked: PlanReport
    steps: tuple[StepRun, ...] = ()
    role: str = DEFAULT_ROLE
    tags: tuple[str, ...] = ()
    queued: int = 0  # jobs in that queue now
    takers: tuple[str, ...] = ()  # live workers that could take it
    others: int = 0  # live workers of the role that do not offer its tags
    timeout_s: float = 0.0  # of one job
    input_bytes: int = 0
    agent_steps: int = 0
    most_usd: Decimal | None = Decimal(0)  # of all jobs; None: unknown

    @property
    def good(self) -> bool:
        return not self.checked.problems


def rehearse(
    plan: Mapping[str, Any],
    request: JobRequest,
    context: PlanContext,
    *,
    workers: Sequence[PlanWorker],
    queues: Sequence[PlanQueue],
    prices: Callable[[], Prices],
    jobs: int = 1,
) -> Rehearsal:
    """Check the plan, then find its programs, workers and prices. `jobs`: how many jobs it would become."""
    options = submit.offline_options(request, SubmitPolicy(spell=as_option))
    given = request.attachments.input
    if given is not None:
        plan = {**plan, "input": submit.STDIN}
    document = Document(dict(plan), str(plan.get("plan_id") or "draft"))
    checked = plan_check.check(document, context)
    plan_id = plan.get("plan_id")
    named = plan_id if isinstance(plan_id, str) else None
    if checked.problems:
        return Rehearsal(plan_id=named, jobs=jobs, checked=checked)
    try:
        read = load(document)
    except BadDocument as bad:
        return Rehearsal(plan_id=named, jobs=jobs, checked=PlanReport(source=bad.source, problems=tuple(bad.problems)))
    role = request.role or read.role or DEFAULT_ROLE
    tags = sorted(required_tags(plan) | set(options.tags))
    alive = [worker for worker in workers if worker.alive and worker.role == role]
    takers = [worker.id for worker in alive if set(tags) <= set(worker.tags)]
    queue = next((queue for queue in queues if queue.role == role), None)
    steps = tuple(_steps(read, context, options, prices))
    agents = [step for step in steps if step.argv[:1] == (AGENT,)]
    costs = [step.most_usd for step in agents]
    default_s = float(context.settings.runners.task_timeout)
    return Rehearsal(
        plan_id=named,
        jobs=jobs,
        checked=checked,
        steps=steps,
        role=role,
        tags=tuple(tags),
        queued=0 if queue is None else queue.counts.get("queued", 0),
        takers=tuple(takers),
        others=len(alive) - len(takers),
        timeout_s=options.timeout_s or read.timeout_s(default_s),
        input_bytes=len(given or b""),
        agent_steps=len(agents),
        most_usd=None if None in costs else sum((cost for cost in costs if cost), Decimal(0)) * jobs,
    )


def _steps(plan: Plan, context: PlanContext, options: Options, prices: Callable[[], Prices]) -> Iterator[StepRun]:
    default_s = float(context.settings.runners.task_timeout)
    reader = plan.reader.id if plan.input is not None else None
    for turn, step in enumerate(order(plan)):
        cwd = options.cwd or step.cwd
        reads = (
            f"step {step.input_from_step}" if step.input_from_step else "standard input" if step.id == reader else None
        )
        argv: tuple[str, ...] = (step.command, *step.args)
        if step.tool != find_program.UNIX:
            argv = (step.tool, *argv)
        most_usd = None
        if step.tool == AGENT:
            where, found, most_usd = _agent(step, context, prices)
        else:
            come = find_program.find(
                step,
                tools=context.tools,
                env={**context.env, **step.env, **options.env},
                cwd=context.cwd if cwd is None else os.path.join(context.cwd, cwd),
                attempt_dir=context.cwd,
                may_appear=turn > 0,
                confined=plan.allowed_paths is not None,
            )
            where, found = _place(come)
        yield StepRun(
            step=step.id,
            argv=argv,
            where=where,
            found=found,
            timeout_s=step.timeout_s(default_s),
            reads=reads,
            most_usd=most_usd,
        )


def _place(come: find_program.Command | Missing) -> tuple[str, bool]:
    if isinstance(come, Missing):
        return come.message, False
    if isinstance(come, Executable):
        return come.file or "not there yet: an earlier step may make it", True
    return "a function inside the worker", True


def _agent(step: Step, context: PlanContext, prices: Callable[[], Prices]) -> tuple[str, bool, Decimal | None]:
    """Return the provider that would be asked, whether there is one, and the most that it may cost with every repair.
    Failed tries cost extra."""
    settings = context.settings
    try:
        wanted = providers_of_role(settings, step.command)[0]
    except InputError as error:
        return str(error), False, None
    described = settings.providers[wanted.provider]
    role = settings.roles.get(step.command, RoleSettings())
    model = wanted.model or described.model
    size = _POLICIES + sum(len(arg.encode("utf-8", "replace")) for arg in step.args)
    size += _READ if step.input_from_step else 0
    tokens = role.max_output_tokens or described.max_output_tokens
    most = prices().most_usd(wanted.provider, model, prompt_bytes=size, max_output_tokens=tokens)
    who = wanted.provider if model is None else f"{wanted.provider} ({model})"
    return f"provider {who}", True, None if most is None else most * (role.repairs + 1)
