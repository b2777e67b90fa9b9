"""`farro job`, `status` and `reset`: jobs by name. What they do lives in operations.named and operations.status."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from farro.air import named
from farro.air import status as looking
from farro.air.status import JobStatus, LiveProcesses
from farro.air.words import JobState, TaskState
from farro.cli.enqueue import read_plan
from farro.cli.groups import Hinting
from farro.cli.options import common, gate, open_root, person
from farro.cli.tables import bar, show_table, span
from farro.cli.terminal import answer, note, say
from farro.host.clock import SystemClock
from farro.queue import find_job
from farro.store.port import Store

SHOWN = 200  # jobs without a name that `status --all` shows
_LONGEST = 100  # characters of an error in a table
TASKS_HELP = "Its tasks: a plan in any form, JSON or YAML; - reads standard input."


@click.group(cls=Hinting)
def job() -> None:
    """Jobs by name."""


@job.command()
@click.argument("new_name", metavar="NAME")
@click.option("--tasks", "tasks_file", required=True, metavar="FILE", help=TASKS_HELP)
@click.option("--role", metavar="ROLE", help="The queue; else the plan's own role, else Runner.")
@click.option("--force", is_flag=True, help="Queue it though a cap is reached, if the config permits it to you.")
@common
def create(new_name: str, tasks_file: str, role: str | None, force: bool, root: str | None, as_json: bool) -> None:
    """Queue a job under a name that nobody has yet. Everything is checked before anything is queued.

    Wherever a JOB is asked for the name will do. A pruned job frees its name.
    """
    store, settings = open_root(root)
    job_id = named.create(store, store.root, new_name, read_plan(tasks_file), role=role, gate=gate(settings, force))
    if as_json:
        answer({"name": new_name, "job_id": job_id})
    else:
        say(f"{new_name} is waiting ({job_id})")


@job.command("list")
@common
def list_names(root: str | None, as_json: bool) -> None:
    """List the names, and the job that each means."""
    store, _ = open_root(root)
    names = store.names()
    if as_json:
        answer({"names": dict(names)})
    elif not names:
        say("no job has a name; give one with: farro job create NAME --tasks FILE")
    else:
        show_table([("NAME", "JOB"), *names.items()])


@job.command("show")
@click.argument("job_id", metavar="NAME")
@common
@click.pass_context
def show_named(context: click.Context, job_id: str, root: str | None, as_json: bool) -> None:
    """Show the job of that name, as `farro show` does."""
    from farro.cli.jobs import show

    context.invoke(show, job=job_id, root=root, as_json=as_json)


@click.command()
@click.option("--job", "name", metavar="NAME", help="Only this job, with its tasks.")
@click.option("--all", "everything", is_flag=True, help=f"Also jobs without a name; at most {SHOWN} of them.")
@common
def status(name: str | None, everything: bool, root: str | None, as_json: bool) -> None:
    """How the named jobs do: waiting, working, completed or failed, with their progress."""
    if name is not None and everything:
        raise click.UsageError("--job names one job and --all asks for every one; choose")
    store, _ = open_root(root)
    living = looking.alive(store.agents())
    if name is not None:
        _one(store, name, living, as_json)
        return
    now = SystemClock().now()
    found = looking.named_jobs(store, store.root, now=now)
    if everything:
        found += looking.other_jobs(store, store.root, now=now, limit=SHOWN)
    if as_json:
        answer({**_living(living), "jobs": [_plain(line) for line in found]})
        return
    say(_head(living))
    if not found:
        what = "no jobs" if everything else "no job has a name; `--all` shows those without"
        say(f"{what}. Make one with: farro job create NAME --tasks FILE")
        return
    rows = [("JOB", "STATE", "PROGRESS", "STEP", "TIME", "")]
    rows += [
        (
            line.name or line.job_id,
            str(line.state),
            f"{bar(line.done, line.total)} {line.done}/{line.total}",
            ", ".join(line.running) or "-",
            span(line.duration_s),
            _remark(line),
        )
        for line in found
    ]
    show_table(rows)


def _one(store: Store, name: str, living: LiveProcesses, as_json: bool) -> None:
    job_id = find_job.by_name(store, store.root, name)
    own_name = name if store.named(name) == job_id else None
    line = looking.job_line(store, store.root, job_id, name=own_name, now=SystemClock().now())
    if as_json:
        answer({**_living(living), "job": {**_plain(line), "tasks": [asdict(task) for task in line.tasks]}})
        return
    say(_head(living))
    called = job_id if own_name is None else f"{own_name} ({job_id})"
    say(f"{called}: {line.state}  {bar(line.done, line.total)} {line.done}/{line.total}  {span(line.duration_s)}")
    for remark in filter(None, (line.note, line.error)):
        say(f"  {remark}")
    if line.state is JobState.FAILED and own_name is not None:
        again = "" if line.tasks else " --tasks FILE"
        say(f"  run it again from the start: farro reset --job {own_name}{again}")
    elif line.state is JobState.WAITING:
        say(f"  why it waits: farro explain {own_name or job_id}")
    if not line.tasks:
        say("  its tasks cannot be read")
        return
    rows = [("TASK", "STATE", "EXIT", "TIME", "NEEDS", "")]
    rows += [
        (
            task.id,
            str(task.state),
            "-" if task.exit_code is None else str(task.exit_code),
            span(task.duration_s),
            ", ".join(task.needs) or "-",
            _short(task.error) or ("not run" if _skipped(line, task.state) else ""),
        )
        for task in line.tasks
    ]
    show_table(rows, right=(2,))


def _skipped(line: JobStatus, state: TaskState) -> bool:
    return line.state is JobState.FAILED and state is TaskState.PENDING


@click.command()
@click.option("--job", "name", required=True, metavar="NAME", help="The job.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="If it is working, end it first.")
@click.option("--tasks", "tasks_file", metavar="FILE", help="Other tasks than it had; - reads standard input.")
@common
def reset(name: str, yes: bool, force: bool, tasks_file: str | None, root: str | None, as_json: bool) -> int:
    """Put a named job back to waiting, from its start, whatever became of it: completed, failed, lost or damaged.

    A new job of the same tasks takes over the name; the old one stays as it is, for `farro show` and `farro logs`.
    """
    store, settings = open_root(root)
    before = named.present(store, store.root, name)
    if not yes:
        if not _asks(tasks_file):
            raise click.UsageError(
                f"reset asks before it changes {name}, and nobody is at a terminal to answer; say so with --yes"
            )
        if not click.confirm(f"Reset {name} ({before})?", err=True):
            note("nothing was changed")
            return 1
    document = None if tasks_file is None else read_plan(tasks_file)
    caps = gate(settings, False)
    told = named.reset(store, store.root, name, by=person(), force=force, document=document, gate=caps)
    if as_json:
        answer({"name": name, "job_id": told.job_id, "before": told.before, "changed": told.changed})
    elif told.changed:
        say(f"{name} is waiting ({told.job_id}); what it was before is {told.before}")
    else:
        say(f"{name} is waiting already ({told.job_id}), from its start; nothing to do")
    return 0


def _asks(tasks_file: str | None) -> bool:
    return tasks_file != "-" and sys.stdin is not None and sys.stdin.isatty()


def _head(living: LiveProcesses) -> str:
    if living.workers:
        workers = f"{living.workers} worker slot{'s' if living.workers > 1 else ''} alive, {living.busy} busy"
    else:
        workers = "no worker is alive: nothing runs until `farro start` or `farro worker`"
    keepers = [name for name, there in (("manager", living.manager), ("watchdog", living.watchdog)) if not there]
    return workers + (f"; no {' and no '.join(keepers)}" if keepers else "; manager and watchdog alive")


def _living(living: LiveProcesses) -> dict[str, Any]:
    return {"alive": asdict(living)}


def _plain(line: JobStatus) -> dict[str, Any]:
    data = asdict(line)
    del data["tasks"]
    return data


def _remark(line: JobStatus) -> str:
    return _short(" ".join(filter(None, (line.note and f"{line.note}:" if line.error else line.note, line.error))))


def _short(text: str | None) -> str:
    text = (text or "").replace("\n", " ")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
