"""`farro explain`: say why a job is not running, and which command helps."""

from __future__ import annotations

import click

from farro.cli.options import common, open_root
from farro.cli.terminal import answer, say
from farro.host.clock import SystemClock
from farro.queue import explain as explaining
from farro.queue import find_job


@click.command()
@click.argument("job")
@common
def explain(job: str, root: str | None, as_json: bool) -> None:
    """Say why a job is not running, or what it is doing, and which command helps.

    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, _ = open_root(root)
    job_id = find_job.resolve(store, store.root, job)
    facts, found = explaining.explain(store, store.root, job_id, now=SystemClock().now())
    if as_json:
        told = {"job_id": job_id, "status": facts.status, "reason": found.reason, "message": found.message}
        answer({**told, "fix": found.fix})
        return
    say(f"{job_id} ({facts.status}): {found.message}")
    if found.fix is not None:
        say(f"  {found.fix}")
