"""`farro wait`: return when jobs have ended, with an exit code for scripts."""

from __future__ import annotations

import json
from typing import Any

import click

from farro.cli.options import common, open_root
from farro.cli.tables import Bar, seconds, span
from farro.cli.terminal import answer, complain, flush, note, say
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.times import seconds_between
from farro.queue import find_job
from farro.queue import wait as waiting
from farro.queue.wait import EndedJob


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", callback=seconds, metavar="DURATION", help="Give up after this time, such as 90s, 10m, 2h.")
@click.option("--any", "first", is_flag=True, help="Return when the first of them has ended.")
@common
def wait(jobs: tuple[str, ...], timeout: float | None, first: bool, root: str | None, as_json: bool) -> int:
    """Wait until the jobs have ended; print each as it ends. Prints once on stderr why a job does not start.

    Exit code 0: all succeeded (with --any: the first to end did). 1: one failed or was killed, or the time was over.
    """
    store, _ = open_root(root)
    clock = SystemClock()
    job_ids = list(dict.fromkeys(find_job.resolve(store, store.root, job) for job in jobs))
    ended: list[EndedJob] = []
    for what in waiting.stuck_jobs(store, store.root, job_ids, now=clock.now()):
        note(what)
    bar = Bar("ended", len(job_ids))
    bar.draw(0)
    try:
        for end in waiting.ends(store, store.root, job_ids, clock=clock, timeout_s=timeout):
            ended.append(end)
            bar.clear()
            if not as_json:
                say(_line(end))
                flush()  # a reader of the pipe must see it now
            if first:
                break
            bar.draw(len(ended))
    finally:
        bar.clear()
        store.close()
    done = {end.job_id for end in ended}
    left = [job_id for job_id in job_ids if job_id not in done]
    timed_out = bool(left) and not (first and ended)
    if as_json:
        answer({"jobs": [_data(end) for end in ended], "waiting": left, "timed_out": timed_out})
    if timed_out:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        complain(
            f"still not ended after {span(timeout)}: {', '.join(left[:3])}{more}; `farro explain {left[0]}` says why"
        )
    return 0 if not timed_out and all(end.good for end in ended) else 1


def _line(end: EndedJob) -> str:
    life = end.lifecycle
    if life is None:
        return f"{end.job_id} is gone: it was removed"
    error = "" if life.error is None else f": {life.error.get('message')}".replace("\n", " ")[:100]
    return f"{end.job_id} {life.status} after {span(_took(life))}{error}"


def _took(life: Lifecycle) -> float | None:
    return seconds_between(life.created_at, life.finalized_at)


def _data(end: EndedJob) -> dict[str, Any]:
    if end.lifecycle is None:
        return {"job_id": end.job_id, "status": None}
    data: dict[str, Any] = json.loads(end.lifecycle.to_json())
    return data
