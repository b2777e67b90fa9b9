"""`farro wait`, `farro watch`: wait until jobs have ended; show all queues or one job live, or a line for each change.

The screen is the terminal's alternate one, so that leaving restores what was there before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from farro.cli.options import open_root
from farro.cli.terminal import Bar, answer, complain, draws, flush, note, raw, say, shortened, span, table
from farro.host import signals
from farro.host.clock import Clock, SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.jobs.times import seconds_between, timestamp
from farro.log.structured import printable
from farro.queue import find_job, queues
from farro.queue import wait as waiting
from farro.queue.wait import EndedJob
from farro.queue.watch import ChangeWatcher, JobsOverview, JobUpdate, Viewer, updates
from farro.store.port import Store


def wait(jobs: tuple[str, ...], timeout: float | None, first: bool, root: str | None, as_json: bool) -> int:
    """Wait until the jobs have ended; print each as it ends. Prints once on stderr why a job does not start.

    Exit code 0: all succeeded (with --any: the first to end did). 1: one failed or was killed, or the time was over.
    """
    store, _ = open_root(root)
    clock = SystemClock()
    job_ids = list(dict.fromkeys(find_job.resolve(store, job) for job in jobs))
    ended: list[EndedJob] = []
    for what in waiting.stuck_jobs(store, job_ids, now=clock.now()):
        note(what)
    bar = Bar("ended", len(job_ids))
    bar.draw(0)
    try:
        for end in waiting.ends(store, job_ids, clock=clock, timeout_s=timeout):
            ended.append(end)
            bar.clear()
            if not as_json:
                say(_ended_line(end))
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


def _ended_line(end: EndedJob) -> str:
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
    return end.lifecycle.to_data()


STEP_S = 0.2  # how often to look for ended steps, which move no folder
_SHORTEST = 8  # characters left of a shortened name
_SHARE = 5  # wait this many times as long as drawing took: watching must not load the machine

_ENTER = b"\x1b[?1049h\x1b[?25l"
_LEAVE = b"\x1b[?25h\x1b[?1049l"


def watch(job: str | None, interval: float, root: str | None, as_json: bool) -> int:
    """Watch the queues live, until Ctrl-C; or one JOB until it ends, with exit code 0 when it succeeded.

    Into a pipe, at a dumb terminal, and with --json: a line for each change.
    """
    store, _ = open_root(root)
    clock = SystemClock()
    try:
        if job is not None:
            return _one(store, find_job.resolve(store, job), clock, as_json)
        with contextlib.suppress(KeyboardInterrupt), signals.terminated_politely():
            if as_json or not draws(sys.stdout):
                _lines(store, clock, as_json, interval)
            else:
                _screen(store, clock, interval)
        return 0
    finally:
        store.close()


# --- one job -----------------------------------------------------------------------------------------------------


def _one(store: Store, job_id: str, clock: Clock, as_json: bool) -> int:
    last: JobUpdate | None = None
    for last in updates(store, job_id, every_s=STEP_S):
        life = last.lifecycle
        if as_json:
            data = {"at": timestamp(clock.now()), "job_id": job_id, "role": life.role, "status": life.status}
            answer({**data, "attempt": life.attempt, "step": last.step})
        else:
            say(f"{timestamp(clock.now())[11:19]}Z  {job_id}  {_state(last)}")
        flush()
    if last is not None and last.lifecycle.status is Status.FAILED and not as_json:
        note(f"`farro logs {job_id}` has what it said, `farro retry {job_id}` runs it again from where it failed")
    return 0 if last is not None and last.lifecycle.status is Status.SUCCEEDED else 1


def _state(moment: JobUpdate) -> str:
    life = moment.lifecycle
    if life.status is Status.IN_PROGRESS:
        return f"in_progress, attempt {life.attempt}" + (f", step {moment.step}" if moment.step else "")
    took = f" after {span(seconds_between(life.created_at, life.finalized_at))}" if life.finalized_at else ""
    if life.error:
        return f"{life.status}{took}: {life.error.get('message')}".replace("\n", " ")
    if life.status is Status.QUEUED and waits_for_person(life):
        return "waits for a person: farro inbox"
    if took:
        return f"{life.status}{took}"
    return f"{life.status} ({life.role})" if life.hops and life.status is Status.QUEUED else str(life.status)


# --- lines -------------------------------------------------------------------------------------------------------


def _lines(store: Store, clock: Clock, as_json: bool, interval: float) -> None:
    onlooker = ChangeWatcher(store)
    while True:
        for change in onlooker.run_once(interval):
            at = timestamp(clock.now())
            if as_json:
                answer({"at": at, "job_id": change.job_id, "role": change.role, "status": change.status})
            else:
                say(f"{at}  {change.job_id}  {change.role or '-'}  {change.status}")
        flush()


# --- the screen --------------------------------------------------------------------------------------------------


def _screen(store: Store, clock: Clock, interval: float) -> None:
    cursor = store.changes(None).cursor
    viewer = Viewer(store, clock)
    raw(_ENTER)
    try:
        while True:
            began_s = clock.monotonic_s()
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            # Some terminals do not know their size.
            _draw(page(viewer.overview(clock.now()), store.root, columns or 80), columns or 80, rows or 24)
            took_s = clock.monotonic_s() - began_s
            clock.sleep(max(0.1, took_s * _SHARE))
            cursor = store.changes(cursor, timeout_s=interval).cursor
    finally:
        raw(_LEAVE)


def _draw(lines: list[str], columns: int, rows: int) -> None:
    """Draw over the last picture line by line, and clear the rest, so that nothing flickers."""
    shown = [printable(line)[:columns] for line in lines[: rows - 1]]
    raw(("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in shown) + "\x1b[J").encode("utf-8", "backslashreplace"))


def page(told: JobsOverview, root: str, columns: int = 80) -> list[str]:
    """Return the picture as lines. Where the screen is too narrow, job ids are shortened at their beginning."""
    lines = [f"farro {root}   {timestamp(told.at)[11:19]} UTC   Ctrl-C ends", ""]
    roles = [role for role in sorted(told.counts) if any(told.counts[role].values()) or told.alive.get(role)]
    roles += [role for role in sorted(told.alive) if role not in roles]
    rows: list[tuple[Any, ...]] = [("ROLE", "WORKERS", "QUEUED", "RUNNING", "STALE", "OK", "FAILED", "KILLED")]
    for role in roles:
        count = told.counts.get(role, {})
        numbers = [count.get(status, 0) for status in (Status.QUEUED, Status.IN_PROGRESS, Status.STALE)]
        numbers += [count.get(status, 0) for status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED)]
        rows.append((role, str(told.alive.get(role, 0)), *map(str, numbers)))
    lines += table(rows, right=range(1, 8)).split("\n") if roles else ["no jobs, no workers"]
    if told.paused:
        lines += ["", *queues.lines(told.paused)]
    if told.running:
        lines += ["", f"RUNNING ({told.running_total})"]
        rows = [
            (
                job.job_id,
                job.role,
                span(job.elapsed_s),
                "its agent is dead" if job.orphaned else f"step {job.step}" if job.step else "",
                shortened(job.title),
                job.agent,
            )
            for job in told.running
        ]
        lines += table(_narrowed(rows, columns, matter=4), right=(2,), indent="  ").split("\n")
    if told.asked:
        lines += ["", f"FOR A PERSON ({len(told.asked)}): `farro inbox` tells what is asked"]
        lines += [f"  {job_id}" for job_id in told.asked[:5]]
    if told.ended:
        lines += ["", "LAST ENDED"]
        rows = [
            (job.job_id, job.role or "-", str(job.status), span(job.took_s), shortened(job.title)) for job in told.ended
        ]
        lines += table(_narrowed(rows, columns, matter=4), right=(3,), indent="  ").split("\n")
    if told.dead:
        lines += ["", f"DEAD AGENTS ({len(told.dead)}): `farro watchdog` recovers what they left"]
        lines += [f"  {agent}" for agent in told.dead[:5]]
    return lines


def _narrowed(rows: list[tuple[Any, ...]], columns: int, *, matter: int) -> list[tuple[Any, ...]]:
    """Shorten job ids so that the first `matter` cells of a row fit. Ids differ at their end."""
    widths = [max(len(row[column]) for row in rows) for column in range(matter)]
    room = max(_SHORTEST, widths[0] - max(0, sum(widths) + 2 * matter - columns))
    return [(row[0] if len(row[0]) <= room else f"…{row[0][1 - room :]}", *row[1:]) for row in rows]
