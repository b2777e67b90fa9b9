"""`agx job …`, `jobs`, `workers`, `queue stats`: look at submitted jobs, and cancel them."""

from __future__ import annotations

from dataclasses import asdict

import click

from farro.agx.cli import show
from farro.agx.cli.context import AgxSession, common
from farro.agx.cli.submit import submit as submit_command
from farro.agx.cli.wait import code_of, show_bytes
from farro.cli.groups import Hinting
from farro.cli.tables import show_table
from farro.cli.terminal import answer, reply, say
from farro.errors import InputError
from farro.jobs.states import Status


@click.group(cls=Hinting)
def job() -> None:
    """One job: submit it, look at it, wait for it, cancel it. JOB is its id, its name, or the beginning of its id."""


job.add_command(submit_command, "submit")


@job.command()
@click.argument("job", metavar="JOB")
@click.option("--wait", is_flag=True, help="Wait for its end, and exit with its exit code.")
@common
def status(job: str, wait: bool, session: AgxSession) -> int:
    """Show the state of a job."""
    told = session.client.job(job)
    if wait:
        from farro.agx.cli.wait import wait_for_one

        return wait_for_one(session, told.job_id)
    if session.as_json:
        answer(told.to_json())
    else:
        show.job(told)
    return 0


@job.command()
@click.argument("job", metavar="JOB")
@click.option("--step", metavar="STEP", help="Of this step; default: the last that began.")
@common
def stdout(job: str, step: str | None, session: AgxSession) -> None:
    """Print a step's stdout, byte for byte; as JSON only with --json."""
    if session.as_json and click.get_current_context().params.get("as_json"):
        data = b"".join(session.client.stdout(job, step))
        answer({"job_id": session.client.job(job).job_id, "step": step, "stdout": data.decode("utf-8", "replace")})
        return
    for block in session.client.stdout(job, step):
        show_bytes(block)


@job.command()
@click.argument("job", metavar="JOB")
@common
def result(job: str, session: AgxSession) -> int:
    """Print a job's result, step by step, as the queue keeps it. Exit code 0: it succeeded."""
    found = session.client.result(job)
    told = session.client.job(job)
    if found is None:
        if told.ended:
            why = f" ({told.error})" if told.error else ""
            raise InputError(f"{told.job_id} has no result, and will have none: it is {told.status}{why}")
        raise InputError(f"{told.job_id} has no result yet: it is {told.status}; `agx job status {told.job_id} --wait`")
    if session.as_json:
        answer(found)
        return 0 if told.good else 1
    say(f"{told.job_id}: {show.state(told)}")
    listed = found.get("step_results")
    for step in (one for one in listed if isinstance(one, dict)) if isinstance(listed, list) else ():
        took = step.get("duration_s")
        span = f", {took:.2f}s" if isinstance(took, int | float) else ""
        say(f"  step {step.get('id') or step.get('step_number')}: exit code {step.get('exit_code')}{span}")
        for stream in ("stdout", "stderr"):
            text = str(step.get(stream) or "")
            for line in text.splitlines()[:10]:
                say(f"    {'' if stream == 'stdout' else 'stderr: '}{line}")
            if len(text.splitlines()) > 10:
                say(f"    … `agx job stdout {told.job_id}` has all of it")
    return 0 if told.good else code_of(told, found) or 1


@job.command()
@click.argument("job", metavar="JOB")
@common
def cancel(job: str, session: AgxSession) -> None:
    """End a job for good. At least eight characters of its id."""
    told = session.client.cancel(job)
    reply(session.as_json, told.to_json(), f"{told.job_id}: {show.state(told)}")


@click.command()
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([str(one) for one in Status]), help="Only these."
)
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most this many.")
@common
def jobs(statuses: tuple[str, ...], limit: int, session: AgxSession) -> None:
    """List jobs, the newest first."""
    found = session.client.jobs(statuses=statuses, limit=limit)
    if session.as_json:
        answer({"jobs": [one.to_json() for one in found]})
    elif found:
        show.job_lines(found)
    else:
        say("no jobs")


@click.command()
@common
def workers(session: AgxSession) -> None:
    """List the workers and the jobs that they run."""
    found = session.client.workers()
    if session.as_json:
        answer({"workers": [asdict(one) for one in found]})
    elif not found:
        say(f"no workers; start one with: {session.worker()}")
    else:
        rows = [("WORKER", "ROLE", "ALIVE", "JOB", "TAGS", "HOST")]
        for one in found:
            doing, tags = ", ".join(one.jobs[:2]) or "-", ", ".join(one.tags) or "-"
            rows.append((one.id, one.role or "-", "yes" if one.alive else "dead", doing, tags, one.host or "-"))
        show_table(rows)


@click.group(cls=Hinting)
def queue() -> None:
    """The queues."""


@queue.command()
@common
def stats(session: AgxSession) -> None:
    """Count the jobs and workers of each queue."""
    found = session.client.queues()
    if session.as_json:
        answer({"queues": [asdict(one) for one in found]})
    elif not found:
        say("no jobs, no workers")
    else:
        shown = [Status.QUEUED, Status.IN_PROGRESS, Status.STALE, Status.SUCCEEDED, Status.FAILED, Status.KILLED]
        rows: list[tuple[str, ...]] = [("QUEUE", "WORKERS", "QUEUED", "RUNNING", "STALE", "OK", "FAILED", "KILLED")]
        for one in found:
            counts = tuple(str(one.counts.get(str(status), 0)) for status in shown)
            rows.append((one.role, str(one.workers), *counts))
        show_table(rows, right=range(1, 8))
