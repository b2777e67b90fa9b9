"""`farro ls`, `show`, `requeue`, `kill`, `force-complete`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from farro.cli import several_jobs
from farro.cli.options import application, common, open_job, open_root, operator_name
from farro.cli.tables import indented, shortened, show_table
from farro.cli.terminal import answer, say
from farro.cli.terminal import note as note_
from farro.execution.size_limit import SNAPSHOT
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.queue import find_job, jobs, listing
from farro.queue.listing import JobQuery
from farro.store.port import JobView, Store

_STATES = {"incoming": Status.QUEUED, "in-progress": Status.IN_PROGRESS, "completed": None}
RECOVERS = "`farro watchdog` recovers it"
_TITLED = 1000  # jobs whose command is shown; reading the prompts of more takes longer than the rest of the list
_LONGEST = 100  # characters of an error in the list; `farro show` has all of it
_FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)


@click.command()
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only this role's jobs; repeatable.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([*(str(status) for status in Status), "in-progress"]),
    help="Only jobs of this status; repeatable.",
)
@click.option("--state", type=click.Choice(list(_STATES)), help="Only jobs in this folder of their role.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only jobs that need this tag; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="The last N that changed, the newest first.")
@common
def ls(
    roles: tuple[str, ...],
    statuses: tuple[str, ...],
    state: str | None,
    tags: tuple[str, ...],
    limit: int | None,
    last: int | None,
    root: str | None,
    as_json: bool,
) -> None:
    """List jobs, the oldest first, with their role, status, command and error."""
    wanted = {Status.parse(status) for status in statuses}
    if state is not None:
        status = _STATES[state]
        wanted |= set(_FINISHED) if status is None else {status}
    if last is not None and limit is not None:
        raise click.UsageError("--last and --limit exclude each other: --last N is a limit too")
    store, _ = open_root(root)
    asked = JobQuery(roles=roles, statuses=wanted, tags=tags, limit=limit, last=last)
    found = listing.ls(store, asked)
    if last is None:
        found.sort(key=lambda view: (view.lifecycle.created_at, view.job_id))
    print_jobs(store, found, "like that" if roles or wanted or tags else "", as_json=as_json)


def print_jobs(store: Store, found: list[JobView], filtered: str, *, as_json: bool) -> None:
    """Print a table of jobs, or that there are none. `filtered`: how they were chosen; empty: all of them."""
    if as_json:
        answer({"jobs": [_view(view) for view in found]})
        return
    if not found:
        say(f"no jobs {filtered}" if filtered else "no jobs; queue one with: farro enqueue -- COMMAND")
        return
    now = SystemClock().now()
    orphans = jobs.orphans(store) if any(view.status is Status.IN_PROGRESS for view in found) else frozenset()
    titles = listing.titles(store, found) if len(found) <= _TITLED else {}
    rows = [("JOB", "ROLE", "STATUS", "TRY", "AGE", "COMMAND" if titles else "", "")]
    rows += [
        (
            view.job_id,
            view.lifecycle.role,
            str(view.status),
            str(view.lifecycle.attempt),
            _age(now, view.lifecycle.created_at),
            shortened(titles.get(view.job_id, "")),
            _remark(view, orphans),
        )
        for view in found
    ]
    show_table(rows)


@click.command()
@click.argument("job")
@common
def show(job: str, root: str | None, as_json: bool) -> None:
    """Show one job: its state, its history, its result and its files.

    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, settings = open_root(root)
    from farro.agents.cli.costs import spent_data
    from farro.agents.costs import cost_of_job

    ledger = application().ledger(store.root, durable=False, clock=SystemClock())
    job_id = find_job.resolve(store, job)
    details = jobs.show(store, job_id, cost_of=lambda job_id: cost_of_job(ledger, job_id))
    if as_json:
        extras = {
            "files": list(details.files),
            "message": details.message,
            "orphaned": details.orphaned,
            "name": details.name,
            "cost": None if details.cost is None else spent_data(details.cost),
        }
        answer({**_view(details.view), **extras})
        return
    where = f" of {settings.redis.name} in {settings.store}" if "://" in settings.store else ""
    _print_details(details, where)


def _print_details(details: jobs.JobDetails, where: str) -> None:
    from farro.agents.cli.costs import cost_text

    life = details.view.lifecycle
    say(f"{life.job_id}  {life.status}  ({life.role}, attempt {life.attempt})")
    if details.name is not None:
        say(f"  name      {details.name}")
    say(f"  lies in   {details.view.place}/{life.job_id}{where}")
    for name, value in (
        ("created", life.created_at),
        ("after", ", ".join(details.view.waits_for)),
        ("not before", life.not_before),
        ("finished", life.finalized_at),
        ("agent", f"{life.agent} is dead; {RECOVERS}" if details.orphaned else life.agent),
        ("retry of", life.retry_of),
        ("cost", details.cost and f"{cost_text(details.cost)} (`farro costs {life.job_id}`)"),
    ):
        if value:
            say(f"  {name:<9} {value}")
    if life.error:
        say(f"  error     {life.error['category']}: {life.error['message']}")
    if details.view.damaged:
        say(f"  damaged   {details.view.damaged}")
    if life.hops:
        say("  history")
        for hop in life.hops:
            note = f"  ({indented(hop.note, 30)})" if hop.note else ""
            say(f"    {hop.at}  attempt {hop.attempt}  {hop.reason} → {hop.to}{note}")
    if details.files:
        say("  files")
        for name in details.files:
            if f"/{SNAPSHOT}/" not in name:  # snapshots of earlier attempts; the last one is at the top
                say(f"    {name}")
    if details.message:
        say("\n" + details.message.rstrip())


@click.command()
@click.argument("named", nargs=-1, required=True, metavar="JOB...")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@common
def requeue(named: tuple[str, ...], note: str | None, root: str | None, as_json: bool) -> int:
    """Put a stale job, or a failed one that is not final, back into its queue; or several.

    With several jobs, an error of one is printed and the others go on; the exit code is the highest.
    """
    store, _ = open_root(root)
    return several_jobs.each(
        several_jobs.meant(store, named),
        lambda job_id: jobs.requeue(store, job_id, by=operator_name(), note=note),
        tell=_tell,
        data=Lifecycle.to_data,
        as_json=as_json,
    )


_ENDABLE = (Status.QUEUED, Status.IN_PROGRESS, Status.STALE, Status.FAILED)


@click.command()
@click.argument("named", nargs=-1, metavar="[JOB...]")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([str(status) for status in _ENDABLE]),
    help="Instead of JOBs: all of this status; repeatable.",
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Instead of JOBs: all of this role; repeatable.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before killing all of a status or role.")
@common
def kill(
    named: tuple[str, ...],
    note: str | None,
    statuses: tuple[str, ...],
    roles: tuple[str, ...],
    yes: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Kill a job, or several. Their processes end within two seconds. A finished job stays as it is, and its status is
    printed.

    JOB is an id, a name, or at least eight characters of the beginning of an id that no other job shares. `--status
    queued --role Runner` kills all that match now; it asks first.
    """
    if bool(named) == bool(statuses or roles):
        raise click.UsageError("name the jobs to kill, or choose them with --status and --role")
    store, _ = open_root(root)
    if named:
        job_ids = several_jobs.meant(store, named, shortest=find_job.SHORTEST_TO_END)
    else:
        job_ids = _chosen(store, roles, [Status.parse(status) for status in statuses])
        if not job_ids or not _agreed(job_ids, statuses, roles, yes):
            if as_json:
                answer({"jobs": [], "refused": []})
            elif not job_ids:
                say("no jobs like that")
            return 1 if job_ids else 0
    return several_jobs.each(
        job_ids,
        lambda job_id: jobs.kill(store, job_id, by=operator_name(), note=note),
        tell=lambda life: _tell(life, "" if life.status is Status.KILLED else " already"),
        data=Lifecycle.to_data,
        as_json=as_json,
        code=lambda life: 0 if life.status is Status.KILLED else 3,
    )


def _chosen(store: Store, roles: tuple[str, ...], statuses: list[Status]) -> list[str]:
    found = listing.ls(store, JobQuery(roles=roles, statuses=statuses or _ENDABLE))
    return [view.job_id for view in found if not view.lifecycle.terminal]


def _agreed(job_ids: list[str], statuses: tuple[str, ...], roles: tuple[str, ...], yes: bool) -> bool:
    if yes:
        return True
    which = " ".join([*(f"--status {status}" for status in statuses), *(f"--role {role}" for role in roles)])
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            f"{which} would kill {_count(job_ids)}, and there is no terminal to ask at; confirm with --yes"
        )
    if click.confirm(f"End {_count(job_ids)} ({which})?", err=True):
        return True
    note_("nothing was changed")
    return False


def _count(job_ids: list[str]) -> str:
    return f"{len(job_ids)} job{'s' if len(job_ids) != 1 else ''}"


@click.command(name="force-complete")
@click.argument("job")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@common
def force_complete(job: str, note: str | None, root: str | None, as_json: bool) -> None:
    """Declare a job succeeded, whatever its attempts came to."""
    store, job_id = open_job(root, job)
    lifecycle = jobs.force_complete(store, job_id, by=operator_name(), note=note)
    answer(lifecycle.to_data()) if as_json else _tell(lifecycle)


def _tell(lifecycle: Lifecycle, word: str = "") -> None:
    say(f"{lifecycle.job_id} is {lifecycle.status}{word}")


def _view(view: JobView) -> dict[str, Any]:
    return {**view.lifecycle.to_data(), "place": view.place, "damaged": view.damaged, "waits_for": list(view.waits_for)}


def _age(now: datetime, stamp: str) -> str:
    seconds = max(0, int((now - datetime.fromisoformat(stamp)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _remark(view: JobView, orphans: frozenset[str]) -> str:
    life = view.lifecycle
    if view.damaged:
        return f"damaged: {view.damaged}"
    if life.status is Status.IN_PROGRESS:
        return f"its agent is dead; {RECOVERS}" if view.job_id in orphans else f"by {life.agent}"
    if life.status is Status.QUEUED and waits_for_person(life):
        return "waits for a person: farro inbox"
    if view.waits_for:
        return f"after {', '.join(view.waits_for)}"
    if life.error:
        return shortened(f"{life.error['category']}: {life.error['message']}".replace("\n", " "), _LONGEST)
    if life.status is Status.QUEUED and life.not_before:
        return f"not before {life.not_before}"
    return ""
