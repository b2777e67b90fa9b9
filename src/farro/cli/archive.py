"""`farro archive`: move finished jobs into compressed segment files, and write archived jobs back as folders."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from farro.cli.options import common, open_root
from farro.cli.terminal import Bar, note, reply, seconds, size
from farro.host.clock import SystemClock
from farro.jobs.states import FINISHED, Status
from farro.queue.retention import choose
from farro.store.port import Archived


@click.command()
@click.option(
    "--older-than", callback=seconds, metavar="DURATION", help="Only jobs that ended this long ago, such as 7d."
)
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Leave the newest N of the selected jobs.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([str(status) for status in FINISHED]),
    help="Only jobs of this status; repeatable.",
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only this role's jobs; repeatable.")
@click.option("--dry-run", is_flag=True, help="Count what would be archived; change nothing.")
@click.option(
    "--export",
    "target",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write the folders of archived jobs below DIR instead.",
)
@common
def archive(
    older_than: float | None,
    keep: int | None,
    statuses: tuple[str, ...],
    roles: tuple[str, ...],
    dry_run: bool,
    target: str | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Move finished jobs out of their folders into compressed files, gently, beside a live queue.

    Every command finds archived jobs as before. It can be stopped at any time: each job is in its folder or in the
    archive, and the next run goes on. With --export nothing is archived: the archived jobs are written as folders.
    """
    store, settings = open_root(root)
    wanted = [Status.parse(status) for status in statuses] or list(FINISHED)
    clock = SystemClock()
    if older_than is None and keep is None and target is None:
        older_than = settings.retention.archive_after_s()
        if older_than is None:
            raise click.UsageError(
                "say what to archive: --older-than 7d, --keep 1000, or both; or set `retention.archive_after` in the "
                "config once and for all"
            )
    chosen = choose(
        store,
        now=clock.now(),
        statuses=wanted,
        roles=roles,
        older_than_s=older_than,
        keep=keep,
        archived=target is not None,
    )
    if dry_run:
        held = store.size_bytes(chosen)
        much = "" if held is None else f", {size(held)}"
        text = f"{_jobs(len(chosen))}{much} would be {'archived' if target is None else 'written'}; nothing was changed"
        reply(as_json, {"jobs": len(chosen), "bytes": held, "dry_run": True}, text)
        return
    bar = Bar("archived" if target is None else "written", len(chosen))
    try:
        if target is not None:
            to = os.path.abspath(target)
            count = store.export(chosen, to, progress=lambda done, total: bar.draw(done))
            bar.clear()
            reply(as_json, {"jobs": count, "to": to}, f"wrote {_jobs(count)} below {target}")
            return
        done = store.archive(chosen, progress=lambda count, total: bar.draw(count))
        bar.clear()
        reply(as_json, asdict(done), _summary(done, len(chosen)))
    except KeyboardInterrupt:
        bar.clear()
        note("each job is in its folder or in the archive; `farro archive` goes on from there")
        raise
    finally:
        bar.clear()


def _summary(done: Archived, chosen: int) -> str:
    said = f"archived {_jobs(done.jobs)}" if done.jobs or chosen else "nothing to archive"
    if done.jobs < chosen:
        said += f"; {chosen - done.jobs} stay as they are (too large, in use, or not readable)"
    return said + (f"; folders of {size(done.bytes)} are gone" if done.bytes else "")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
