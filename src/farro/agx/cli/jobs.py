"""`agx job …`, `jobs`, `workers`, `queue stats`: look at submitted jobs, wait for them, and cancel them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from farro.agx.cli import show
from farro.agx.cli.context import AgxSession, common
from farro.agx.cli.submit import submit as submit_command
from farro.agx.client import PlanJob
from farro.cli.main import Hinting
from farro.cli.terminal import answer, at_terminal, note, raw, reply, say, show_table, span
from farro.errors import InputError
from farro.jobs.states import Status
from farro.log.structured import printable
from farro.queue.foreground import exit_code, failed_step


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
    """Print a step's stdout, byte for byte, in a pipe too. With --json, print it as JSON."""
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


# --- waiting -----------------------------------------------------------------------------------------------------


def wait_for_one(session: AgxSession, job_id: str) -> int:
    """Print the stdout of the last step, or of the one that failed, and the stderr of all; with JSON the whole result.
    Return the exit code."""
    began = time.monotonic()
    last = PlanJob(job_id=job_id, status="queued")
    if not session.as_json:
        note(job_id)
    try:
        with _progress() as tell:
            for last in session.client.follow(job_id):
                tell(f"{last.job_id}  {show.state(last)}")
                if last.status == "queued" and not any(worker.alive for worker in session.client.workers()):
                    tell(f"{last.job_id}  queued; no worker is alive, start one with: {session.worker()}")
    except KeyboardInterrupt:
        note(f"{job_id} goes on; `agx job status {job_id}` tells how it does")
        return 130
    result = session.client.result(job_id) or {}
    code = code_of(last, result)
    if session.as_json:
        named = last.plan_id or result.get("plan_id")
        answer({**last.to_json(), "plan_id": named, "exit_code": code, "result": result or None})
        return code
    blamed = None if last.good else failed_step(result)
    if blamed is None:
        _show_stdout(session, job_id, None)
    elif blamed.get("stdout"):
        _show_stdout(session, job_id, str(blamed.get("id") or blamed.get("step_number")))
    listed = result.get("step_results")
    for step in listed if isinstance(listed, list) else ():
        if isinstance(step, dict) and (said := str(step.get("stderr") or "").rstrip("\n")):
            note(said)
    took = f"after {span(time.monotonic() - began)}"
    note(f"{last.job_id} {last.status} {took}{f': {last.error}' if last.error else ''}")
    if blamed is not None:
        how = f"agx job result {job_id}" if session.remote else f"farro logs {job_id}"
        note(f"`{how}` has what every step said")
    return code


def _show_stdout(session: AgxSession, job_id: str, step: str | None) -> None:
    for block in session.client.stdout(job_id, step):
        show_bytes(block)


def wait_for_all(session: AgxSession, job_ids: Sequence[str], told: dict[str, Any]) -> int:
    """Return 0 where all of them succeeded."""
    ended: list[PlanJob] = []
    try:
        with _progress() as tell:
            tell(f"0 of {len(job_ids)} ended")
            for end in session.client.ends(job_ids):
                ended.append(end)
                if not session.as_json and not at_terminal():
                    say(f"{end.job_id} {show.state(end)}")
                tell(f"{len(ended)} of {len(job_ids)} ended")
    except KeyboardInterrupt:
        note(f"{len(job_ids) - len(ended)} jobs go on; `agx jobs` lists them")
        return 130
    bad = [end for end in ended if not end.good]
    if session.as_json:
        answer({**told, "ended": [end.to_json() for end in ended], "failed": [end.job_id for end in bad]})
    else:
        for end in bad:
            say(f"{end.job_id} {show.state(end)}")
        say(f"{len(ended) - len(bad)} of {len(job_ids)} succeeded")
    return 1 if bad else 0


def code_of(told: PlanJob, result: Any) -> int:
    """Return the exit code of the step that failed, as a shell would."""
    try:
        return exit_code(Status(told.status), told.category, result)
    except ValueError:
        return 1


def show_bytes(block: bytes) -> None:
    """Write output as it is into a pipe; at a terminal escape its control characters."""
    if at_terminal():
        sys.stdout.write(printable(block.decode("utf-8", "replace"), keep="\n\t"))
        sys.stdout.flush()
    else:
        raw(block)


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """Show one changing line where stderr is a terminal; else print a line for each change."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_dumb_terminal:  # it cannot move the cursor back
        yield note
        return
    with console.status(Text("…")) as status:
        yield lambda text: status.update(Text(printable(text)))
