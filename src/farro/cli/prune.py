"""`farro prune`: remove finished jobs that are no longer needed."""

from __future__ import annotations

from dataclasses import asdict

import click

from farro.cli.options import common, open_root, operator_name
from farro.cli.tables import Bar, seconds, show_table, size, span
from farro.cli.terminal import answer, note, reply, say
from farro.config.settings import Settings
from farro.host.clock import SystemClock
from farro.jobs.states import FINISHED, Status
from farro.jobs.times import moment_or_none
from farro.queue import prune as pruning
from farro.queue.prune import PruneCandidate, PruneFilter
from farro.store.port import Removed


@click.command()
@click.option(
    "--older-than", callback=seconds, metavar="DURATION", help="Only jobs that ended this long ago, such as 7d."
)
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N of the selected jobs.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([str(status) for status in FINISHED]),
    help="Only jobs of this status; repeatable.",
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only this role's jobs; repeatable.")
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@common
def prune(
    older_than: float | None,
    keep: int | None,
    statuses: tuple[str, ...],
    roles: tuple[str, ...],
    dry_run: bool,
    root: str | None,
    as_json: bool,
) -> None:
    """Remove finished jobs for good, gently, beside a live queue. Jobs that are not final are never touched.

    With --older-than and --keep both, what is old and not among the newest N goes. A removed job's chosen id may be
    used again. It can be stopped at any time: what it left half-way, the next prune removes.
    """
    store, settings = open_root(root)
    wanted = [Status.parse(status) for status in statuses] or list(FINISHED)
    configured = older_than is None and keep is None
    ages_s = _configured(settings, wanted) if configured else dict.fromkeys(wanted, older_than)
    if not ages_s:
        raise click.UsageError(
            "say what may go: --older-than 7d, --keep 1000, or both; or set `prune` in the config once and for all"
        )
    clock = SystemClock()
    choice = PruneFilter(ages_s=ages_s, keep=keep, roles=roles)
    chosen = pruning.candidates(store, choice, now=clock.now())
    if dry_run:
        _list(chosen, store.size_bytes(chosen), as_json, clock)
        return
    bar = Bar("removed", len(chosen))
    try:
        done = store.remove(chosen, by=operator_name(), progress=lambda count, total: bar.draw(count))
    except KeyboardInterrupt:
        bar.clear()
        note("what has left its folder already is removed by the next `farro prune`")
        raise
    finally:
        bar.clear()
    reply(as_json, asdict(done), _summary(done))
    pruning.check(done)


def _summary(done: Removed) -> str:
    said = []
    if done.jobs or not done.debris:
        jobs = "1 job" if done.jobs == 1 else f"{done.jobs} jobs"
        said.append(f"removed {jobs}" if done.jobs else "nothing to remove")
    if done.debris:
        said.append(f"removed what an earlier prune had left of {done.debris}")
    return "; ".join(said) + (f"; {size(done.bytes)} are free again" if done.bytes else "")


def _configured(settings: Settings, wanted: list[Status]) -> dict[Status, float | None]:
    """Return how long the config keeps jobs, for each status that it names."""
    return {status: kept for status in wanted if (kept := settings.prune.keep_s(str(status))) is not None}


def _list(chosen: list[PruneCandidate], held: int | None, as_json: bool, clock: SystemClock) -> None:
    if as_json:
        answer({"jobs": [asdict(job) for job in chosen], "bytes": held, "dry_run": True})
        return
    if not chosen:
        say("nothing to remove")
        return
    now = clock.now()
    rows = [("JOB", "ROLE", "STATUS", "ENDED")]
    for job in chosen:
        ended = moment_or_none(job.finalized_at)
        age = "-" if ended is None else f"{span((now - ended).total_seconds())} ago"
        rows.append((job.job_id, job.role, str(job.status), age))
    show_table(rows)
    much = "" if held is None else f", {size(held)}"
    say(f"{len(chosen)} {'job' if len(chosen) == 1 else 'jobs'}{much} would go; nothing was removed")
