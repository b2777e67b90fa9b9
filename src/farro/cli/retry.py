"""`farro retry`: run a finished job again, from where it failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import click

from farro.cli import several_jobs
from farro.cli.options import common, gate, open_root
from farro.cli.submit_options import named_jobs
from farro.cli.terminal import note, say
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.queue import retry as retrying
from farro.queue.retry import RetriedJob


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--from", "from_step", metavar="STEP", help="Run this step and the steps after it again.")
@click.option("--from-start", is_flag=True, help="Run every step again.")
@click.option("--after", multiple=True, metavar="JOB", help="Run after that job, instead of those it ran after before.")
@click.option("--no-after", is_flag=True, help="Do not wait again for the jobs that it ran after.")
@click.option("--with-dependents", is_flag=True, help="Also the jobs that were killed because it did not succeed.")
@click.option("--force", is_flag=True, help="Queue it beyond a cap, if the config permits it to you.")
@common
def retry(
    jobs: tuple[str, ...],
    from_step: str | None,
    from_start: bool,
    after: tuple[str, ...],
    no_after: bool,
    with_dependents: bool,
    force: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Run a finished job again, or several, and print the new jobs' ids. Steps that succeeded are not repeated.

    The finished job stays as it is; the new one names it. JOB is an id, or the beginning of one that no other job
    shares. A job that was killed because one that it ran after did not succeed needs another to run after, or none;
    with --with-dependents that other one brings it along.
    """
    if from_step is not None and from_start:
        raise click.UsageError("--from names a step, --from-start means the first; give one of them.")
    if after and no_after:
        raise click.UsageError("--after names a job, --no-after means none; give one of them.")
    if from_step is not None and len(jobs) > 1:
        raise click.UsageError("--from names a step of one job; retry the others apart.")
    if with_dependents and (after or no_after):
        raise click.UsageError(
            "with --with-dependents each job runs after the same jobs as before; leave out --after and --no-after"
        )
    store, settings = open_root(root)
    job_ids = several_jobs.meant(store, jobs)
    how: dict[str, Any] = {
        "from_step": from_step,
        "from_start": from_start,
        "durable": settings.durability == "power",
        "gate": gate(settings, force),
    }
    waits = several_jobs.meant(store, named_jobs("--after", after)) if after else [] if no_after else None

    def again(job_id: str) -> list[RetriedJob]:
        if with_dependents:
            return retrying.with_dependents(store, job_id, mint=_mint(), **how)
        return [retrying.retry(store, job_id, after=waits, **how)]

    return several_jobs.each(
        job_ids, again, tell=_tell, data=lambda made: _data(made, with_dependents), as_json=as_json
    )


def _mint() -> Callable[[], str]:
    return IdMint(SystemClock().now, random.SystemRandom().getrandbits).mint


def _data(made: list[RetriedJob], with_dependents: bool) -> dict[str, Any]:
    first, *others = made
    told: dict[str, Any] = {"job_id": first.job_id, "retry_of": first.retry_of, "kept_steps": list(first.kept)}
    if with_dependents:
        told["dependents"] = [{"job_id": one.job_id, "retry_of": one.retry_of} for one in others]
    return told


def _tell(made: list[RetriedJob]) -> None:
    say("\n".join(one.job_id for one in made))
    for one in made[1:]:
        note(f"{one.job_id} is {one.retry_of} again, and runs after the new one of what it ran after")
    kept = made[0].kept
    if kept:
        steps = ", ".join(kept[:8]) + (f" and {len(kept) - 8} more" if len(kept) > 8 else "")
        note(f"not run again: {steps} (--from-start runs all)")
