"""`farro explain`, `farro history`: say why a job is not running, and print its whole life."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from farro.cli.options import common, open_job
from farro.cli.terminal import answer, indented, say, span, table
from farro.host.clock import SystemClock
from farro.jobs import places
from farro.jobs.times import moment_or_none, seconds_between
from farro.queue import explain as explaining
from farro.queue import history as histories
from farro.queue.history import AttemptRecord, History, StepRecord


@click.command()
@click.argument("job")
@common
def explain(job: str, root: str | None, as_json: bool) -> None:
    """Say why a job is not running, or what it is doing, and which command helps.

    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, job_id = open_job(root, job)
    facts, found = explaining.explain(store, job_id, now=SystemClock().now())
    if as_json:
        told = {"job_id": job_id, "status": facts.status, "reason": found.reason, "message": found.message}
        answer({**told, "fix": found.fix})
        return
    say(f"{job_id} ({facts.status}): {found.message}")
    if found.fix is not None:
        say(f"  {found.fix}")


_BEHIND = 28  # columns of a time and the gap after it


@click.command()
@click.argument("job")
@common
def history(job: str, root: str | None, as_json: bool) -> None:
    """Print the whole life of a job: each attempt with its agent, steps and times, and each decision with its reason.

    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, job_id = open_job(root, job)
    told = histories.history(store, job_id)
    answer(_data(told)) if as_json else _page(told)


def _data(told: History) -> dict[str, Any]:
    return {
        **told.view.lifecycle.to_data(),
        "place": told.view.place,
        "damaged": told.view.damaged,
        "attempts": [asdict(attempt) for attempt in told.attempts],
        "audit": list(told.audit.lines),
        "audit_whole": told.audit.whole,
    }


def _page(told: History) -> None:
    life = told.view.lifecycle
    say(f"{life.job_id}  {life.status}  ({life.role})")
    _moment(life.created_at, "created")
    if life.retry_of:
        _moment(life.created_at, f"repeats {life.retry_of}")
    # In the order of causes, whatever the clocks say: the hops as they are, each after the beginning of its attempt.
    begun = 0
    for hop in life.hops:
        begun = _show_attempts(told, begun, hop.attempt)
        note = f": {indented(hop.note, _BEHIND)}" if hop.note else ""
        _moment(hop.at, f"{hop.reason} → {hop.to} by {hop.by}{note}")
    _show_attempts(told, begun, max((attempt.number for attempt in told.attempts), default=0))
    if life.not_before and not life.terminal:
        _moment(life.not_before, "may start then, not before")
    if life.error:
        say(f"  error: {life.error.get('category')}: {life.error.get('message')}")
    if told.view.damaged:
        say(f"  damaged: {told.view.damaged}")
    _ending(told)
    if told.audit.lines:
        say("  audit log" + ("" if told.audit.whole else " (its older files were left out)"))
        rows = [
            (_clock(str(line.get("ts"))), str(line.get("event")), str(line.get("actor")), _codes(line))
            for line in told.audit.lines
        ]
        say(table(rows, indent="    "))


def _moment(at: str, what: str) -> None:
    say(f"  {_clock(at)}  {what}")


def _show_attempts(told: History, after: int, last: int) -> int:
    """Print the attempts from the one after `after` to `last`; return the last number."""
    for attempt in told.attempts:
        if after < attempt.number <= last:
            _moment(attempt.started_at or told.view.lifecycle.created_at, _began(attempt))
            if page := _steps(attempt):
                say(page)
    return max(after, last)


def _began(attempt: AttemptRecord) -> str:
    by = f" by {attempt.agent}" if attempt.agent else ""
    if attempt.outcome is None:
        return f"attempt {attempt.number} began{by}"
    return f"attempt {attempt.number} began{by}, {attempt.outcome} after {span(attempt.duration_s)}"


def _steps(attempt: AttemptRecord) -> str:
    if not attempt.steps:
        return ""
    rows = [
        (
            f"step {step.id}",
            "-" if step.exit_code is None else f"exit {step.exit_code}",
            span(step.duration_s),
            _remark(step),
        )
        for step in attempt.steps
    ]
    missing = (attempt.steps_total or 0) - len(attempt.steps)
    page = table(rows, indent=" " * _BEHIND)
    return page + (f"\n{' ' * _BEHIND}{missing} more not started" if missing > 0 else "")


def _remark(step: StepRecord) -> str:
    tries = "done earlier, not run again" if step.earlier else f"{step.tries} tries" if step.tries > 1 else ""
    return " ".join(part for part in (tries, step.error or "") if part)


def _ending(told: History) -> None:
    life = told.view.lifecycle
    if told.view.place == places.QUARANTINE:
        return  # only the audit log knows when it was set aside
    if life.terminal and life.finalized_at:
        say(f"  {life.status} {span(seconds_between(life.created_at, life.finalized_at))} after it was created")
    else:
        created = moment_or_none(life.created_at)
        age_s = None if created is None else (SystemClock().now() - created).total_seconds()
        say(f"  {life.status}, created {span(age_s)} ago; `farro explain {life.job_id}` says what it waits for")


def _codes(line: Any) -> str:
    known = ("ts", "event", "actor", "job_id")
    return " ".join(f"{name}={value}" for name, value in line.items() if name not in known and value is not None)


def _clock(stamp: str) -> str:
    """Return 2026-01-31 12:00:00.000Z, always of the same width, so that columns align."""
    return stamp.replace("T", " ")
