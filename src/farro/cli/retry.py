"""`farro retry`: a finished job again, from where it failed. What that means lives in operations.retry."""

from __future__ import annotations

import click

from farro.cli.options import common, gate, open_root
from farro.cli.terminal import answer, note, say
from farro.operations import naming
from farro.operations import retry as retrying


@click.command()
@click.argument("job")
@click.option("--from", "from_step", metavar="STEP", help="Run this step again, and what came after it.")
@click.option("--from-start", is_flag=True, help="Run every step again.")
@click.option("--force", is_flag=True, help="Queue it though a cap is reached, if the config permits it to you.")
@common
def retry(job: str, from_step: str | None, from_start: bool, force: bool, root: str | None, as_json: bool) -> None:
    """Run a finished job again, and print the new job's id. Steps that succeeded are not repeated.

    The finished job stays as it is; the new one names it. JOB is an id, or the beginning of one that no other job
    shares.
    """
    if from_step is not None and from_start:
        raise click.UsageError("--from names a step, --from-start means the first; give one of them.")
    store, settings = open_root(root)
    made = retrying.retry(
        store,
        store.root,
        naming.resolve(store, store.root, job),
        from_step=from_step,
        from_start=from_start,
        durable=settings.durability == "power",
        gate=gate(settings, force),
    )
    if as_json:
        answer({"job_id": made.job_id, "retry_of": made.retry_of, "kept_steps": list(made.kept)})
        return
    say(made.job_id)
    if made.kept:
        steps = ", ".join(made.kept[:8]) + (f" and {len(made.kept) - 8} more" if len(made.kept) > 8 else "")
        note(f"not run again: {steps} (--from-start runs all)")
