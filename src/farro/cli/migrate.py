"""`farro migrate`: move queued jobs from one store to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import click

from farro.cli.options import application, common, operator_name, read_root
from farro.cli.tables import Bar
from farro.cli.terminal import answer, note, say
from farro.config import reader
from farro.config.settings import is_factory
from farro.host.clock import SystemClock
from farro.queue import migrate as migrating
from farro.queue.migrate import WORDS, Migration

KINDS = ("files", "redis", "custom")


@click.command()
@click.option("--from", "source", required=True, type=click.Choice(KINDS), help="Where the jobs are.")
@click.option("--to", "target", required=True, type=click.Choice(KINDS), help="Where they go.")
@click.option("--dry-run", is_flag=True, help="Say what would be moved; move nothing.")
@common
def migrate(source: str, target: str, dry_run: bool, root: str | None, as_json: bool) -> int:
    """Move what is queued, delayed, or waits for other jobs, with payload, name and order, from this root's folders to
    the Redis server or another package's store (custom), or back.

    Finished jobs stay, and so do those that were begun: each is counted. Killed at any point and run again, it goes on:
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
        answer(_data(told, source, target, dry_run))
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


def _data(told: Migration, source: str, target: str, dry_run: bool) -> dict[str, object]:
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
