"""Wait for jobs that `agx` submitted: a live line at a terminal, a line for each change elsewhere, an exit code."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from farro.agx.cli import show as agx_show
from farro.agx.cli.context import AgxSession
from farro.agx.client import PlanJob
from farro.cli.tables import span
from farro.cli.terminal import answer, at_terminal, note, raw, say
from farro.jobs.states import Status
from farro.log.structured import printable
from farro.queue.follow import exit_code, failed_step


def wait_for_one(session: AgxSession, job_id: str) -> int:
    """Print the stdout of the last step, or of the one that failed, and the stderr of all; with JSON the whole result.
    Return the exit code."""
    began = time.monotonic()
    last = PlanJob(job_id=job_id, status="queued")
    if not session.as_json:
        note(job_id)
    try:
        with _progress() as show:
            for last in session.client.follow(job_id):
                show(f"{last.job_id}  {agx_show.state(last)}")
                if last.status == "queued" and not any(worker.alive for worker in session.client.workers()):
                    show(f"{last.job_id}  queued; no worker is alive, start one with: {session.worker()}")
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
        with _progress() as show:
            show(f"0 of {len(job_ids)} ended")
            for end in session.client.ends(job_ids):
                ended.append(end)
                if not session.as_json and not at_terminal():
                    say(f"{end.job_id} {agx_show.state(end)}")
                show(f"{len(ended)} of {len(job_ids)} ended")
    except KeyboardInterrupt:
        note(f"{len(job_ids) - len(ended)} jobs go on; `agx jobs` lists them")
        return 130
    bad = [end for end in ended if not end.good]
    if session.as_json:
        answer({**told, "ended": [end.to_json() for end in ended], "failed": [end.job_id for end in bad]})
    else:
        for end in bad:
            say(f"{end.job_id} {agx_show.state(end)}")
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
