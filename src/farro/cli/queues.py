"""`farro stats`, `workers`, `pause`, `resume`: how the queues and their workers do, and pausing a queue."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict

import click
from click.core import ParameterSource

from farro.cli import terminal
from farro.cli.options import common, open_root, operator_name
from farro.cli.terminal import answer, note, say, seconds, show_table, span
from farro.host.clock import SystemClock
from farro.queue import queues as pausing
from farro.queue import queues as working
from farro.queue import stats as statistics
from farro.queue.queues import WorkerLine
from farro.queue.stats import COLUMNS, TOTAL, RoleStats

_HEAD = ("ROLE", "QUEUED", "DELAYED", "RUNNING", "STALE", "OK", "FAILED", "KILLED", "PER MIN", "P50", "P95", "WAIT P50")
_MORE = ("WAIT P95", "FAILED %", "OLDEST")


@click.command()
@click.option("--since", callback=seconds, default="1h", show_default=True, metavar="DURATION", help="The time window.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only this role; repeatable.")
@click.option("--csv", "as_csv", is_flag=True, help="Answer as CSV, with a header line.")
@click.option("--alerts", is_flag=True, help="Print alerts instead; exit 1 when one fires.")
@common
def stats(since: float, roles: tuple[str, ...], as_csv: bool, alerts: bool, root: str | None, as_json: bool) -> int:
    """How each role does: depth of its queue now; jobs that ended, how fast and how well, inside the window.

    A job counts for every role that worked it. Latency is from the entry into that role's queue to the end there, wait
    to the first claim. The last line, role "*", has the whole jobs. --json answers a JSON object a line (NDJSON).

    --alerts judges the pager triggers of the runbook: stale jobs that are queued again, queues near their caps,
    accounts of providers that need a person, an audit log that cannot be written or outgrows its quota. One JSON
    document with --json.
    """
    if alerts:
        return _alerts(roles, as_csv, root, as_json)
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    if since <= 0:
        raise click.UsageError("--since must be positive, such as 10m")
    store, _ = open_root(root)
    lines = statistics.stats(store, now=SystemClock().now(), window_s=since, roles=roles)
    # SPEC-1 C: `agent-cli stats` gives NDJSON; at a terminal a table reads better.
    if as_json or (not as_csv and terminal.program == "agent-cli" and not terminal.at_terminal()):
        for line in lines:
            answer(line.to_data())
    elif as_csv:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(line.to_data() for line in lines)
        say(text.getvalue().rstrip("\n"))
    else:
        _page(lines, since)
        for told in pausing.lines({role: why for role, why in store.paused().items() if not roles or role in roles}):
            say(told)
    return 0


def _alerts(roles: tuple[str, ...], as_csv: bool, root: str | None, as_json: bool) -> int:
    given = click.get_current_context().get_parameter_source("since")
    if as_csv or given is not ParameterSource.DEFAULT:
        raise click.UsageError("--alerts has windows of its own and no CSV; leave out --since and --csv")
    from farro.queue.alerts import alerts

    store, settings = open_root(root)
    told = alerts(store, settings, now=SystemClock().now(), roles=roles)
    if as_json:
        answer({"firing": told.firing, "bounded": told.bounded, "alerts": [asdict(alert) for alert in told.alerts]})
    else:
        for alert in told.alerts:
            if alert.firing or alert.role is None:
                say(f"{'FIRES' if alert.firing else 'ok':<6} {alert.name:<12}  {alert.what}")
                for line in alert.next if alert.firing else ():
                    say(f"{'':<21}- {line}")
        quiet = sum(alert.role is not None and not alert.firing for alert in told.alerts)
        if quiet:
            roles_are = "role is" if quiet == 1 else "roles are"
            say(f"{'ok':<6} {'depth':<12}  {quiet} {roles_are} below 80 % of the cap, or not above it for long")
        if told.bounded:
            note("the audit log says more than was read: windows are shorter than they should be")
    return 1 if told.firing else 0


def _page(lines: list[RoleStats], since: float) -> None:
    busy = [line for line in lines if line.role == TOTAL or _has_something(line)]
    if not any(_has_something(line) for line in busy):
        say(f"nothing queued or running, and nothing ended in the last {span(since)}")
        return
    waits = any(line.waiting for line in busy)
    head = [*_HEAD, *_MORE, *(["WAITING"] if waits else [])]
    rows = [head]
    for line in busy:
        cells = ["all" if line.role == TOTAL else line.role]
        counts = (line.queued, line.delayed, line.in_progress, line.stale, line.succeeded, line.failed, line.killed)
        cells += [str(count) for count in counts]
        cells.append(f"{line.throughput_per_min:.{1 if line.throughput_per_min >= 1 else 2}f}")
        cells += [span(value) for value in (line.latency_p50_s, line.latency_p95_s, line.wait_p50_s, line.wait_p95_s)]
        cells.append("-" if line.failure_rate is None else f"{line.failure_rate:.1%}")
        cells.append(span(line.oldest_queued_s))
        rows.append([*cells, *([str(line.waiting)] if waits else [])])
    if len(rows) == 3:  # one role: its total would be the same
        del rows[2]
    show_table(rows, right=range(1, len(head)))
    if any(line.bounded for line in lines):
        note(f"too many jobs to read them all: this is of the newest, the last {span(lines[-1].window_s)}")


def _has_something(line: RoleStats) -> bool:
    standing = line.queued + line.delayed + line.waiting + line.in_progress + line.stale
    return bool(standing + line.succeeded + line.failed + line.killed)


_FEW = 3  # tools in a line of the table; --json has all


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Also watchdogs, managers and commands that hold a job.")
@common
def workers(everyone: bool, root: str | None, as_json: bool) -> None:
    """List the workers: every slot with its machine, tags, tools and its job."""
    store, _ = open_root(root)
    found = working.listed(store.agents(), everyone=everyone)
    if as_json:
        answer({"workers": [asdict(line) for line in found]})
        return
    if not found:
        say("no workers; start one with: farro worker")
        return
    rows = [("WORKER", "ROLE", "HOST", "PID", "SINCE", "JOB", "TAGS", "TOOLS", "")]
    rows += [_worker_row(line) for line in found]
    show_table(rows)


def _worker_row(line: WorkerLine) -> tuple[str, str, str, str, str, str, str, str, str]:
    few = ", ".join(line.tools[:_FEW]) + (f", … ({len(line.tools)})" if len(line.tools) > _FEW else "")
    return (
        line.id,
        line.role or "-",
        line.host or "-",
        "-" if line.pid is None else str(line.pid),
        "-" if line.since is None else f"{line.since[:19].replace('T', ' ')}Z",
        line.job or "-",
        ", ".join(line.tags) or "-",
        few or "-",
        "" if line.alive else "dead: `farro watchdog` recovers its job" if line.job else "dead",
    )


_all = click.option("--all", "everything", is_flag=True, help="Every queue of this root.")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...")
@_all
@click.option("--why", metavar="TEXT", help="The reason, shown by `farro explain` and the dashboard.")
@common
def pause(roles: tuple[str, ...], everything: bool, why: str | None, root: str | None, as_json: bool) -> None:
    """Give out no more jobs of a queue, until `farro resume`. What runs goes on, and jobs are queued as ever.

    Without a role: which queues are paused, by whom, since when and why.
    """
    store, _ = open_root(root)
    wanted = tuple(store.roles()) if everything else roles
    found = (
        pausing.pause(store, wanted, by=operator_name(), why=why, clock=SystemClock())
        if wanted
        else dict(store.paused())
    )
    if as_json:
        answer({"paused": {role: asdict(paused) for role, paused in found.items()}})
    elif found:
        say("\n".join(pausing.lines(found)))
    else:
        say("no queue is paused")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...")
@_all
@common
def resume(roles: tuple[str, ...], everything: bool, root: str | None, as_json: bool) -> None:
    """Resume paused queues, and wake the workers that wait for their jobs."""
    store, _ = open_root(root)
    wanted = tuple(store.paused()) if everything else roles
    if not wanted and not everything:
        raise click.UsageError("name the queues to resume, or give --all; `farro pause` lists those that are paused")
    done = pausing.resume(store, wanted, by=operator_name())
    if as_json:
        answer({"resumed": done})
        return
    for role in wanted:
        say(f"the queue of {role} goes on" if role in done else f"the queue of {role} was not paused")
    if not wanted:
        say("no queue is paused")
