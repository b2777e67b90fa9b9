"""`agx submit`: submit the draft, a saved plan or a file as a job; wait for it, or only say what would happen."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farro.agx import drafting
from farro.agx.cli import show
from farro.agx.cli.context import AgxSession, common
from farro.agx.cli.plans import chosen
from farro.cli.options import application, option_group
from farro.cli.plan_files import contents
from farro.cli.submit_options import JobOptions, StartOptions, job_options, piped_input
from farro.cli.terminal import answer, note, say
from farro.jobs.request import Attachments, JobRequest
from farro.lazy_dataclass import dataclass, replace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSubmitOptions:
    """What happens to a plan that is submitted, beside how its job runs."""

    after: tuple[str, ...]
    force: bool
    wait: bool
    dry_run: bool


def submit_options(command: F) -> F:
    """Add the options of `JobOptions` as `job` and of `PlanSubmitOptions` as `options`."""
    return job_options(
        option_group(
            "options",
            PlanSubmitOptions,
            click.option("--after", multiple=True, metavar="JOB", help="Start when that job succeeded; repeatable."),
            click.option("--force", is_flag=True, help="Submit it beyond a cap, if the config permits it to you."),
            click.option("--wait", is_flag=True, help="Wait for its end, and exit with its exit code."),
            click.option("--dry-run", is_flag=True, help="Only say what would run where, and what it may cost."),
        )(command)
    )


def plan_request(
    job: JobOptions, options: PlanSubmitOptions, *, job_id: str | None = None, data: bytes | None = None
) -> JobRequest:
    """Decode the options, and the input of the plan's first step."""
    start = StartOptions(delay=None, at=None, after=options.after, after_any=())
    request = job.request(job_id=job_id, start=start, force=options.force)
    return replace(request, attachments=Attachments(input=data))


@click.command()
@click.argument("plan", required=False, metavar="[PLAN|FILE]")
@click.option("--id", "job_id", metavar="ID", help="Choose the job's id. The same id and plan again: the same job.")
@click.option("--input", "input_file", metavar="FILE", help="What the first step reads; default: what is piped in.")
@click.option("--no-input", is_flag=True, help="Leave standard input alone.")
@submit_options
@common
def submit(
    plan: str | None,
    job_id: str | None,
    input_file: str | None,
    no_input: bool,
    job: JobOptions,
    options: PlanSubmitOptions,
    session: AgxSession,
) -> int:
    """Submit the draft as a job, or a saved PLAN, or a FILE. Prints the job's id.

    Piped input becomes the standard input of the first step that reads from no other step: cat names | agx submit.
    The draft's commands run in this folder, as they were typed here; saved plans and files run in the root.
    """
    found, source = chosen(session, plan)
    drafting.check_steps(found, source)
    data = None
    if input_file is not None:
        data = contents(input_file, session.settings.security.max_job_bytes)
    elif not no_input and plan != "-":
        data = piped_input(session.settings.security.max_job_bytes)
    if plan is None and job.cwd is None and not session.remote and "://" not in session.settings.store:
        found = drafting.placed(found, os.getcwd(), root=session.root)
    found = drafting.finished(found)
    job.check([found], session.settings)
    asked = plan_request(job, options, job_id=job_id, data=data)
    if options.dry_run:
        return rehearsed(session, found, asked)
    made = session.client.submit(found, asked)
    if options.wait:
        from farro.agx.cli.jobs import wait_for_one

        return wait_for_one(session, made)
    if session.as_json:
        answer({"job_id": made, "plan_id": found.get("plan_id")})
    else:
        say(made)
        warn_if_idle(session, asked, found)
    return 0


def rehearsed(session: AgxSession, plan: dict[str, Any], asked: JobRequest, *, jobs: int = 1) -> int:
    from farro.agx.rehearsal import rehearse

    app = application()
    told = rehearse(
        plan,
        asked,
        app.plan_context(session.settings),
        workers=session.client.workers(),
        queues=session.client.queues(),
        prices=lambda: app.prices(session.settings),
        jobs=jobs,
    )
    if session.as_json:
        answer(show.rehearsal_json(told))
    else:
        show.rehearsal(told)
    return 0 if told.good else 2


def warn_if_idle(session: AgxSession, asked: JobRequest, plan: dict[str, Any]) -> None:
    """Say when no worker would take the job: a new user may wait for one that was never started."""
    role = asked.role or plan.get("role") or "Runner"
    if not any(worker.alive and worker.role == role for worker in session.client.workers()):
        note(f"no worker is alive that could take it; start one with: {session.worker(role)}")
