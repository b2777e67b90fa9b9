"""Waiting for jobs that `agx` handed in: drawn anew at a terminal, a line for each change elsewhere; their exit code.

What is waited for is told by the desk (operations.planning).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from farro.agx.cli import show as agx_show
from farro.agx.cli.context import Place
from farro.agx.client import JobTold
from farro.cli.tables import span
from farro.cli.terminal import answer, at_terminal, note, raw, say
from farro.jobs.states import Status
from farro.log.structured import printable
from farro.queue.follow import exit_code, failed_step


def wait_for_one(place: Place, job_id: str) -> int:
    """What its last step said, or the one that failed, the stderr of all of them, and its exit code; with JSON, all of
    its result."""
    began = time.monotonic()
    last = JobTold(job_id=job_id, status="queued")
    if not place.as_json:
        note(job_id)
    try:
        with _progress() as show:
            for last in place.desk.follow(job_id):
                show(f"{last.job_id}  {agx_show.state(last)}")
                if last.status == "queued" and not any(worker.alive for worker in place.desk.workers()):
                    show(f"{last.job_id}  queued; no worker is alive, start one with: {place.worker()}")
    except KeyboardInterrupt:
        note(f"{job_id} goes on; `agx job status {job_id}` tells how it does")
        return 130
    result = place.desk.result(job_id) or {}
    code = code_of(last, result)
    if place.as_json:
        named = last.plan_id or result.get("plan_id")
        answer({**last.to_json(), "plan_id": named, "exit_code": code, "result": result or None})
        return code
    blamed = None if last.good else failed_step(result)
    if blamed is None:
        _show_stdout(place, job_id, None)
    elif blamed.get("stdout"):
        _show_stdout(place, job_id, str(blamed.get("id") or blamed.get("step_number")))
    listed = result.get("step_results")
    for step in listed if isinstance(listed, list) else ():
        if isinstance(step, dict) and (said := str(step.get("stderr") or "").rstrip("\n")):
            note(said)
    took = f"after {span(time.monotonic() - began)}"
    note(f"{last.job_id} {last.status} {took}{f': {last.error}' if last.error else ''}")
    if blamed is not None:
        how = f"agx job result {job_id}" if place.remote else f"farro logs {job_id}"
        note(f"`{how}` has what every step said")
    return code


def _show_stdout(place: Place, job_id: str, step: str | None) -> None:
    for block in place.desk.stdout(job_id, step):
        show_bytes(block)


def wait_for_all(place: Place, job_ids: Sequence[str], told: dict[str, Any]) -> int:
    """0: all of them succeeded."""
    ended: list[JobTold] = []
    try:
        with _progress() as show:
            show(f"0 of {len(job_ids)} ended")
            for end in place.desk.ends(job_ids):
                ended.append(end)
                if not place.as_json and not at_terminal():
                    say(f"{end.job_id} {agx_show.state(end)}")
                show(f"{len(ended)} of {len(job_ids)} ended")
    except KeyboardInterrupt:
        note(f"{len(job_ids) - len(ended)} jobs go on; `agx jobs` lists them")
        return 130
    bad = [end for end in ended if not end.good]
    if place.as_json:
        answer({**told, "ended": [end.to_json() for end in ended], "failed": [end.job_id for end in bad]})
    else:
        for end in bad:
            say(f"{end.job_id} {agx_show.state(end)}")
        say(f"{len(ended) - len(bad)} of {len(job_ids)} succeeded")
    return 1 if bad else 0


def code_of(told: JobTold, result: Any) -> int:
    """As a shell would say it: of the step that failed."""
    try:
        return exit_code(Status(told.status), told.category, result)
    except ValueError:
        return 1


def show_bytes(block: bytes) -> None:
    """As it is into a pipe; at a terminal nothing of it steers."""
    if at_terminal():
        sys.stdout.write(printable(block.decode("utf-8", "replace"), keep="\n\t"))
        sys.stdout.flush()
    else:
        raw(block)


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """A line that changes, where stderr is a terminal; else a line on stderr for each change."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_dumb_terminal:  # it cannot go back in a line
        yield note
        return
    with console.status(Text("…")) as status:
        yield lambda text: status.update(Text(printable(text)))
