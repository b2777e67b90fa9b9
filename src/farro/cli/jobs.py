"""`farro ls` and `show`: list jobs, and show one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from farro.cli.options import application, open_root
from farro.cli.terminal import answer, indented, say, shortened, show_table, usage_error
from farro.execution.size_limit import SNAPSHOT
from farro.host.clock import SystemClock
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.queue import find_job, jobs
from farro.queue.jobs import JobQuery
from farro.store.port import JobView, Store

if TYPE_CHECKING:
    from farro.store.ledger import Spent

STATES = {"incoming": Status.QUEUED, "in-progress": Status.IN_PROGRESS, "completed": None}
RECOVERS = "`farro watchdog` recovers it"
_TITLED = 1000  # jobs whose command is shown; reading the prompts of more takes longer than the rest of the list
_LONGEST = 100  # characters of an error in the list; `farro show` has all of it
_FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)


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
        status = STATES[state]
        wanted |= set(_FINISHED) if status is None else {status}
    if last is not None and limit is not None:
        raise usage_error("--last and --limit exclude each other: --last N is a limit too")
    store, _ = open_root(root)
    asked = JobQuery(roles=roles, statuses=wanted, tags=tags, limit=limit, last=last)
    found = jobs.ls(store, asked)
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
    titles = jobs.titles(store, found) if len(found) <= _TITLED else {}
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


def show(job: str, root: str | None, as_json: bool) -> None:
    """Show one job: its state, its history, its result and its files.

    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, settings = open_root(root)
    from farro.agents.costs import cost_of_job

    ledger = application().ledger(store.root, settings, SystemClock())
    job_id = find_job.resolve(store, job)
    details = jobs.show(store, job_id, cost_of=lambda job_id: cost_of_job(ledger, job_id))
    if as_json:
        extras = {
            "files": list(details.files),
            "message": details.message,
            "orphaned": details.orphaned,
            "name": details.name,
            "cost": None if details.cost is None else _cost_data(details.cost),
        }
        answer({**_view(details.view), **extras})
        return
    where = f" of {settings.redis.name} in {settings.store}" if "://" in settings.store else ""
    _print_details(details, where)


def _cost_data(cost: Spent) -> Any:
    from farro.agents.cli.costs import spent_data  # imported here: few jobs have a cost

    return spent_data(cost)


def _cost_text(cost: Spent) -> str:
    from farro.agents.cli.costs import cost_text

    return cost_text(cost)


def _print_details(details: jobs.JobDetails, where: str) -> None:
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
        ("cost", details.cost and f"{_cost_text(details.cost)} (`farro costs {life.job_id}`)"),
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
