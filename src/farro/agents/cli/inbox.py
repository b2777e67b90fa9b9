"""`farro inbox`, `approve`, `refuse`, `edit`, `route`: answer jobs that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from farro.agents import inbox as inbox_service
from farro.agents.inbox import InboxItem
from farro.cli.options import common, open_root, operator_name
from farro.cli.plan_files import contents
from farro.cli.terminal import answer, at_terminal, reply, say
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.jobs.times import in_words
from farro.queue import find_job
from farro.queue.accounts import accounts_for_person

_SHOWN = 12  # lines of the last result that are shown


@click.command()
@common
def inbox(root: str | None, as_json: bool) -> None:
    """What waits for a person: the question, since when, and what the last role found; and accounts of providers."""
    store, _ = open_root(root)
    now = SystemClock().now()
    found, accounts = inbox_service.list_inbox(store), accounts_for_person(store, now)
    if as_json:
        answer({"waiting": [_data(one) for one in found], "accounts": [one.to_json() for one in accounts]})
        return
    if not found and not accounts:
        say("nothing waits for you")
        return
    for account in accounts:
        say(account.line)
        say(f"  when the key, the credit or the limit is in order: {account.resume_command}")
    for number, one in enumerate(found):
        if number or accounts:
            say()
        waited = in_words((now - datetime.fromisoformat(one.since)).total_seconds())
        about = f"  {one.task}: {one.title}" if one.task is not None else ""
        say(f"{one.job_id}  waits {waited}{about}")
        for line in one.question.strip().splitlines():
            say(f"  ? {line}")
        lines = one.result.strip().splitlines()
        if lines:
            say(f"  {one.role} found:")
            for line in lines[:_SHOWN]:
                say(f"    {line}")
            if len(lines) > _SHOWN:
                say(f"    … {len(lines) - _SHOWN} more lines: farro show {one.job_id}")
        edit_it = "" if one.permission else f"   |   farro edit {one.job_id}"
        say(f"  farro approve {one.job_id}   |   farro refuse {one.job_id} --note WHY{edit_it}")


@click.command()
@click.argument("job")
@click.option("--note", metavar="TEXT", help="Why; kept in the job's history.")
@common
def approve(job: str, note: str | None, root: str | None, as_json: bool) -> None:
    """Let a job that waits for a person go on, or its agent do what it asks."""
    store, _ = open_root(root)
    life = inbox_service.approve(store, find_job.resolve(store, job), by=operator_name(), note=note)
    running = life.status is Status.IN_PROGRESS
    _report(life, "allowed; its agent goes on" if running else "approved; the manager takes it on", as_json)


@click.command()
@click.argument("job")
@click.option("--note", metavar="WHY", required=True, help="What is wrong; the role that gets it back is told.")
@common
def refuse(job: str, note: str, root: str | None, as_json: bool) -> None:
    """Send a job that waits for a person back to the role before, with the reason; behind a review, to
    the role that it reviews. It fails where no role worked before. An agent that asks whether it may do something is
    refused, and goes on without."""
    store, _ = open_root(root)
    life = inbox_service.refuse(store, find_job.resolve(store, job), by=operator_name(), note=note)
    running = life.status is Status.IN_PROGRESS
    _report(life, "refused; its agent goes on" if running else "refused; the manager sends it back", as_json)


@click.command()
@click.argument("job")
@click.option("--file", "file", metavar="FILE", help="The new text; - reads standard input. Else your $EDITOR opens.")
@click.option("--note", metavar="TEXT", help="Why; kept in the job's history.")
@common
def edit(job: str, file: str | None, note: str | None, root: str | None, as_json: bool) -> None:
    """Approve a job that waits for a person with a text of your own: it becomes the result, the original is kept."""
    store, _ = open_root(root)
    job_id = find_job.resolve(store, job)
    waiting = inbox_service.inbox_item(store, job_id)
    if file is not None:
        text = contents(file, inbox_service.MAX_TEXT).decode("utf-8", "replace")
    else:
        if not at_terminal():
            raise click.UsageError("there is no terminal to open an editor in; name the new text with --file FILE")
        changed = click.edit(waiting.result, extension=".md", require_save=True)
        if changed is None or changed == waiting.result:
            say(f"{job_id} was not changed, and waits on; `farro approve {job_id}` takes it as it is")
            return
        text = changed
    life = inbox_service.edit(store, job_id, text, by=operator_name(), note=note)
    _report(life, "edited; the manager takes it on", as_json)


@click.command()
@click.argument("job")
@click.option("--to", "role", required=True, metavar="ROLE", help="Who shall have it.")
@click.option("--note", metavar="TEXT", help="Why; kept in the job's history, and told to that role.")
@common
def route(job: str, role: str, note: str | None, root: str | None, as_json: bool) -> None:
    """Send a job to a role, whatever its workflow says. It goes on from there.

    For a job that is queued, stale, waits for a person, or has failed and is not final; not for one that runs.
    """
    store, _ = open_root(root)
    job_id = find_job.resolve(store, job)
    _report(
        inbox_service.reroute(store, job_id, role, by=operator_name(), note=note),
        f"sent to {role}",
        as_json,
    )


def _report(life: Lifecycle, words: str, as_json: bool) -> None:
    reply(as_json, life.to_data(), f"{life.job_id}: {words}")


def _data(one: InboxItem) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}
