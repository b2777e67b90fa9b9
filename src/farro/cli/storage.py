"""`farro prune`, `farro migrate`: remove finished jobs that are no longer needed, and move queued ones elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import click

from farro.cli.options import application, common, open_root, operator_name, read_root
from farro.cli.terminal import Bar, answer, note, reply, say, seconds, show_table, size, span
from farro.config import reader
from farro.config.settings import Settings, is_factory
from farro.host.clock import SystemClock
from farro.jobs.states import FINISHED, Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import replace
from farro.queue import migrate as migrating
from farro.queue import prune as pruning
from farro.queue.migrate import WORDS, Migration
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
    application().sweep(store)
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


KINDS = ("files", "redis", "custom")


@click.command()
@click.option("--from", "source", required=True, type=click.Choice(KINDS), help="Where the jobs are.")
@click.option("--to", "target", required=True, type=click.Choice(KINDS), help="Where they go.")
@click.option("--dry-run", is_flag=True, help="Say what would be moved; move nothing.")
@common
def migrate(source: str, target: str, dry_run: bool, root: str | None, as_json: bool) -> int:
    """Move what is queued, delayed, or waits for other jobs, with payload, name and order, from this root's folders to
    the Redis server or another package's store (custom), or back.

    Finished jobs stay, and so do jobs that have begun; both are counted. Killed at any point and run again, it goes on:
    nothing is lost, nothing is queued twice. The server is that of `--store`, else of the config.
    """
    if source == target:
        raise click.UsageError("--from and --to name the same store; one is files, the other redis or custom")
    path, settings = read_root(root)
    if settings.store == "files":
        raise click.UsageError("which server? Name it with --store redis://HOST:PORT/DB, or set `store` in the config")
    address = settings.store
    other = "custom" if is_factory(address) else "redis"
    if {source, target} != {"files", other}:
        raise click.UsageError(f"the store is {address}: one of --from and --to is files, the other {other}")
    app = application()
    opened = {"files": app.open_store(path, replace(settings, store="files"), actor=operator_name(), brief=True)}
    clock = SystemClock()
    try:
        opened[other] = app.open_store(path, settings, actor=operator_name(), brief=True)
        if dry_run:
            told = migrating.look(opened[source], opened[target])
        else:
            told = migrating.migrate(
                opened[source],
                opened[target],
                by=operator_name(),
                where="files" if target == "files" else address,
                clock=clock,
                progress=_progress(),
            )
    finally:
        for store in opened.values():
            store.close()
    if as_json:
        answer(_migration_data(told, source, target, dry_run))
    else:
        _tell(told, target, address, dry_run)
        if told.moved and (now := "files" if target == "files" else address) != reader.load(path).store:
            note(f"Commands look there with --store {now}; for good: farro init --store {now}")
    return 1 if told.remains else 0


def _progress() -> Callable[[int, int], None]:
    bars: list[Bar] = []

    def draw(done: int, total: int) -> None:
        if not bars:
            bars.append(Bar("moved", total))
        bars[0].draw(done)
        if done == total:
            bars[0].clear()

    return draw


def _migration_data(told: Migration, source: str, target: str, dry_run: bool) -> dict[str, object]:
    return {
        "from": source,
        "to": target,
        "dry_run": dry_run,
        "jobs": told.moves if dry_run else told.moved,
        "left": {why.replace(" ", "_"): job_ids for why, job_ids in told.left.items()},
        "finished": told.finished,
        "remains": told.remains,
    }


def _tell(told: Migration, target: str, address: str, dry_run: bool) -> None:
    jobs = told.moves if dry_run else told.moved
    where = "the folders of this root" if target == "files" else address
    say(f"{_count(len(jobs))} {'would move' if dry_run else 'moved'} to {where}")
    for why, job_ids in told.left.items():
        shown = ", ".join(job_ids[:3]) + (", …" if len(job_ids) > 3 else "")
        say(f"left, {len(job_ids)}: {WORDS[why]} ({shown})")
    if told.finished:
        say(f"finished jobs stay where they are: {told.finished}")
    if told.remains:
        note(f"{_count(len(told.remains))} could not be removed here yet, and will not run here; run this again")


def _count(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
