"""`agx submit`: the draft, a saved plan or a file becomes a job; waiting for it, or only saying what would happen.

Queueing lives behind the desk (operations.planning); what is printed of a plan, in agx_show.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farro.agx import drafting
from farro.agx.cli import show
from farro.agx.cli.context import Place, common
from farro.agx.cli.plans import chosen
from farro.agx.client import Ticket
from farro.cli.enqueue import contents
from farro.cli.options import application
from farro.cli.submit_options import how_to_run, piped, submit_options
from farro.cli.terminal import answer, note, say
from farro.queue.submit import STDIN

F = TypeVar("F", bound=Callable[..., Any])


def ticketed(command: F) -> F:
    """The options of whatever is handed in."""
    for option in reversed(
        [
            click.option("--after", multiple=True, metavar="JOB", help="Only when that job has succeeded; repeatable."),
            click.option("--force", is_flag=True, help="Also where a cap is reached, if the config permits it to you."),
            click.option("--wait", is_flag=True, help="Wait for its end, and exit as it did."),
            click.option(
                "--dry-run", is_flag=True, help="Say what would run where and what it may cost; queue nothing."
            ),
        ]
    ):
        command = option(command)
    return how_to_run(command)


def ticket(
    place: Place,
    *,
    role: str | None,
    tags: tuple[str, ...],
    priority: str | None,
    timeout: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    after: tuple[str, ...],
    force: bool,
    job_id: str | None = None,
    payload: dict[str, bytes] | None = None,
) -> Ticket:
    options = submit_options(tags=tags, priority=priority, timeout=timeout, cwd=cwd, env=env, after=after, typed=False)
    if options.after:
        from dataclasses import replace

        options = replace(options, after=tuple(place.desk.job(one).job_id for one in options.after))
    return Ticket(role=role, job_id=job_id, options=options, payload=payload or {}, force=force)


@click.command()
@click.argument("plan", required=False, metavar="[PLAN|FILE]")
@click.option("--id", "job_id", metavar="ID", help="The job's id, chosen by you. The same id and plan: the same job.")
@click.option("--input", "input_file", metavar="FILE", help="What the first step reads; else what is piped in.")
@click.option("--no-input", is_flag=True, help="Leave standard input alone.")
@ticketed
@common
def submit(
    plan: str | None,
    job_id: str | None,
    input_file: str | None,
    no_input: bool,
    role: str | None,
    tags: tuple[str, ...],
    priority: str | None,
    timeout: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    after: tuple[str, ...],
    force: bool,
    wait: bool,
    dry_run: bool,
    place: Place,
) -> int:
    """Hand in the draft as a job, or a saved PLAN, or a FILE. Prints the job's id.

    What is piped in becomes the standard input of the first step that reads no other: cat names | agx submit.
    The draft's commands run in this folder, as they were typed here; saved plans and files in the root.
    """
    found, source = chosen(place, plan)
    drafting.check_steps(found, source)
    data = None
    if input_file is not None:
        data = contents(input_file, place.settings.security.max_job_bytes)
    elif not no_input and plan != "-":
        data = piped(place.settings.security.max_job_bytes)
    if plan is None and cwd is None and not place.remote and place.settings.store == "files":
        found = drafting.placed(found, os.getcwd(), root=place.root)
    found = drafting.finished(found)
    payload: dict[str, bytes] = {}
    if data is not None:
        found, payload = {**found, "input": STDIN}, {STDIN: data}
    asked = ticket(
        place,
        role=role,
        tags=tags,
        priority=priority,
        timeout=timeout,
        cwd=cwd,
        env=env,
        after=after,
        force=force,
        job_id=job_id,
        payload=payload,
    )
    if dry_run:
        return rehearsed(place, found, asked)
    made = place.desk.submit(found, asked)
    if wait:
        from farro.agx.cli.wait import wait_for_one

        return wait_for_one(place, made)
    if place.as_json:
        answer({"job_id": made, "plan_id": found.get("plan_id")})
    else:
        say(made)
        warn_if_idle(place, asked, found)
    return 0


def rehearsed(place: Place, plan: dict[str, Any], asked: Ticket, *, jobs: int = 1) -> int:
    from farro.agx.rehearsal import rehearse

    app = application()
    told = rehearse(
        plan,
        asked,
        app.plan_context(place.settings),
        workers=place.desk.workers(),
        queues=place.desk.queues(),
        prices=lambda: app.prices(place.settings),
        jobs=jobs,
    )
    if place.as_json:
        answer(show.rehearsal_json(told))
    else:
        show.rehearsal(told)
    return 0 if told.good else 2


def warn_if_idle(place: Place, asked: Ticket, plan: dict[str, Any]) -> None:
    """Whoever is new here waits for a worker that nobody started."""
    role = asked.role or plan.get("role") or "Runner"
    if not any(worker.alive and worker.role == role for worker in place.desk.workers()):
        note(f"no worker is alive that could take it; start one with: {place.worker(role)}")
