"""Commands of Air-Executor: job, status, reset, run-task, import-air."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from farro.air import status as statuses
from farro.air.status import JobState, JobStatus, LiveProcesses, TaskState
from farro.cli.main import Hinting
from farro.cli.options import application, common, open_root, operator_name, policy
from farro.cli.plan_files import read_plan
from farro.cli.terminal import answer, bar, flush, note, reply, say, show_table, span
from farro.config.reader import ConfigError
from farro.errors import BadDocument
from farro.host.clock import SystemClock
from farro.jobs.request import JobRequest
from farro.late_module import LateModule
from farro.queue import find_job
from farro.queue.accounts import paused_accounts
from farro.store.port import Store
from farro.worker import auto_plan_switch

if TYPE_CHECKING:
    from farro.air import named_jobs
    from farro.air.import_jobs import ImportReport
else:  # `status` asks for it most often, and does not need it
    named_jobs = LateModule("farro.air.named_jobs")

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
    """Queue a job under a new name. Everything is checked before anything is queued.

    Wherever a JOB is asked for the name will do. A pruned job frees its name.
    """
    from farro.queue.submit import submit

    store, settings = open_root(root)
    request = JobRequest(document=read_plan(tasks_file), name=new_name, role=role, force=force)
    job_id = submit(store, [request], policy(store, settings))[0].id
    reply(as_json, {"name": new_name, "job_id": job_id}, f"{new_name} is waiting ({job_id})")


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
    from farro.cli.everyday import show

    context.invoke(show, job=job_id, root=root, as_json=as_json)


@click.command()
@click.option("--job", "name", metavar="NAME", help="Only this job, with its tasks.")
@click.option("--all", "everything", is_flag=True, help=f"Also jobs without a name; at most {SHOWN} of them.")
@common
def status(name: str | None, everything: bool, root: str | None, as_json: bool) -> None:
    """Show the state of the named jobs (waiting, working, completed or failed) and their progress."""
    if name is not None and everything:
        raise click.UsageError("--job names one job and --all asks for every one; choose")
    store, settings = open_root(root)
    living = statuses.live_processes(store.agents())
    plans = auto_plan_switch.read(store.root)
    told = {**_living(living), "auto_plan": settings.manager.auto_plan if plans is None else plans.on}
    paused = paused_accounts(store)
    if name is not None:
        _one(store, name, living, as_json)
        return
    now = SystemClock().now()
    found = statuses.named_job_statuses(store, now=now)
    if everything:
        found += statuses.unnamed_job_statuses(store, now=now, limit=SHOWN)
    if as_json:
        told["paused_accounts"] = [one.to_json() for one in paused]
        answer({**told, "jobs": [_plain(line) for line in found]})
        return
    say(_head(living))
    for one in paused:
        say(f"{one.line} (`{one.resume_command}`)")
    if plans is not None:
        say(f"{plans} (`farro manager --auto-plan={'off' if plans.on else 'on'}` changes it)")
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
    job_id = find_job.by_name(store, name)
    own_name = name if store.named(name) == job_id else None
    line = statuses.job_status(store, job_id, name=own_name, now=SystemClock().now())
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
    before = named_jobs.named_job_id(store, name)
    if not yes:
        agreed = None if tasks_file == "-" else _agreed(f"Reset {name} ({before})?")
        if agreed is None:
            raise click.UsageError(f"reset asks before it changes {name}, and nobody answered; confirm with --yes")
        if not agreed:
            note("nothing was changed")
            return 1
    document = None if tasks_file is None else read_plan(tasks_file)
    rules = policy(store, settings)
    result = named_jobs.reset_named_job(store, name, by=operator_name(), force=force, document=document, policy=rules)
    if as_json:
        answer({"name": name, "job_id": result.job_id, "before": result.before, "changed": result.changed})
    elif result.changed:
        say(f"{name} is waiting ({result.job_id}); what it was before is {result.before}")
    else:
        say(f"{name} is waiting already ({result.job_id}), from its start; nothing to do")
    return 0


def _agreed(question: str) -> bool | None:
    """Ask at the terminal, or read the answer from standard input (`echo y | air-executor reset`); None: there is
    none."""
    try:
        return None if sys.stdin is None else click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        note("")  # the end of the question's line
        return None


def _head(living: LiveProcesses) -> str:
    if living.workers:
        workers = f"{living.workers} worker slot{'s' if living.workers > 1 else ''} alive, {living.busy} busy"
    else:
        workers = "no worker is alive: nothing runs until `farro start` or `farro worker`"
    missing = [name for name, there in (("manager", living.manager), ("watchdog", living.watchdog)) if not there]
    return workers + (f"; no {' and no '.join(missing)}" if missing else "; manager and watchdog alive")


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


@click.command("run-task")
@click.option("--job", "name", required=True, metavar="NAME", help="The job: its name, or its id.")
@click.option("--task", required=True, metavar="ID", help="The task: the id of a step, or its number.")
@common
def run_task(name: str, task: str, root: str | None, as_json: bool) -> int:
    """Run one task of a job here, with its output on this terminal and its exit code: to see why it fails.

    Nothing of the job is changed. A task whose command is `run-task` of itself has no work of its own, and succeeds.
    What it reads from another task is what that one said when the job last ran. With
    --json its output goes to stderr, and stdout is {"job_id", "task", "exit_code"}.
    """
    from farro.air import run_task as running

    store, settings = open_root(root)
    job_id = find_job.by_name(store, name)
    flush()
    if running.is_inside(job_id, task, os.environ):
        note(f"{name}, task {task}: its command is `run-task` of itself; there is nothing else to do")
        if as_json:
            answer({"job_id": job_id, "task": task, "exit_code": 0})
        return 0
    code = running.run_task(
        store,
        store.root,
        job_id,
        task,
        tools=application().tools(settings, store.root),
        env=dict(os.environ),
        timeout_s=settings.runners.task_timeout,
        stdout=2 if as_json else None,
    )
    if as_json:
        answer({"job_id": job_id, "task": task, "exit_code": code})
    return code


_WORDS = {"nothing": "nothing to do", "already": "nothing to do"}


@click.command("import-air")
@click.argument("folder", metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Only say what would be imported.")
@click.option("--failed", is_flag=True, help="Queue failed jobs too, from their failed tasks on.")
@common
def import_air(folder: str, dry_run: bool, failed: bool, root: str | None, as_json: bool) -> int:
    """Take over the jobs of an Air-Executor: DIR is its .air-executor folder, or the folder that this is in.

    Tasks that are completed are not run again; what is left of each job is queued under its name. DIR is not changed,
    and importing it again imports nothing twice. A job that cannot be read is told, and the others are imported: exit
    code 1 then.
    """
    report = _import(root, folder, failed=failed, dry_run=dry_run)
    code = 0 if report.whole else 1
    if as_json:
        jobs = [asdict(job) for job in report.jobs]
        answer({"folder": report.folder, "dry_run": dry_run, "jobs": jobs, "config": report.config})
    elif not report.jobs:
        say(f"no jobs in {report.folder}")
    else:
        _show_report(report, dry_run=dry_run)
    return code


def offer_import(root: str | None, *, yes: bool, as_json: bool) -> None:
    """Offer to import the jobs of an Air-Executor that was started in this folder; with `yes` import them."""
    from farro.air.import_jobs import FOLDER

    new = [job.name for job in _import(root, FOLDER, dry_run=True).jobs if job.action == "imported"]
    if not new:
        return
    question = f"{FOLDER} has jobs of an Air-Executor ({', '.join(new)}). Import them?"
    if not yes and (as_json or not _agreed(question)):
        note(f"{', '.join(new)} of {FOLDER} were not imported; `farro import-air {FOLDER}` does it")
        return
    report = _import(root, FOLDER)
    if not as_json:
        _show_report(report)


def _import(root: str | None, folder: str, *, failed: bool = False, dry_run: bool = False) -> ImportReport:
    from farro.air import import_jobs
    from farro.host.process_identity import started_at_s

    store, settings = open_root(root)
    try:
        return import_jobs.import_air(
            store,
            folder,
            runners=settings.runners,
            started_at_s=started_at_s,
            failed=failed,
            dry_run=dry_run,
            policy=policy(store, settings),
        )
    except BadDocument as error:
        raise ConfigError(error.source, error.problems) from error


def _show_report(report: ImportReport, *, dry_run: bool = False) -> None:
    would = "would be imported" if dry_run else "imported"
    rows = [("JOB", "RESULT", "")]
    rows += [
        (
            job.name,
            would if job.action == "imported" else _WORDS.get(job.action, job.action),
            job.message.replace("\n", "; "),
        )
        for job in report.jobs
    ]
    show_table(rows)
    if report.config:
        say("its config.yaml says otherwise than this root; to keep it, put this under `runners` in the config:")
        say(f"  {json.dumps(report.config)}")
