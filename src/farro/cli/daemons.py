"""`farro worker`, `watchdog`, `manager`, `scheduler`: run a loop until a signal ends it gracefully."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from farro.cli.daemon_process import Signals, admit, end_well, log_to_stdout
from farro.cli.options import App, application, asked_store, daemon, operator_name, read_root, starts_strictly
from farro.cli.terminal import reply
from farro.config.settings import AGQ, Settings
from farro.errors import NotPermitted
from farro.host import worker_processes
from farro.jobs.places import WAITING
from farro.jobs.states import Reason, Status
from farro.log.structured import GRAVE, Log, grave_only
from farro.store.port import Store
from farro.worker.daemon import Daemon

GRACE_S = 5.0  # for running steps after the first signal


@click.command()
@click.option("--role", default="Runner", show_default=True, metavar="ROLE", help="The role whose queue to work.")
@click.option(
    "--slots",
    "--workers",
    "slots",
    default=2,
    show_default=True,
    type=click.IntRange(1, 64),
    metavar="N",
    help="How many jobs run at once in this process.",
)
@click.option("--drain", is_flag=True, help="Exit 0 when nothing is queued, running or due in that queue.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="A tag that this worker offers to jobs that require it; repeatable.",
)
@click.option("--name", metavar="NAME", help="The name of its agents; default: the host's.")
@click.option(
    "--runner",
    type=click.Choice(["inline", "process"]),
    help="Run jobs in this process, or each in its own; default: the config's.",
)
@click.option(
    "--degraded-bypass",
    is_flag=True,
    help="Route jobs to the workflow's next role while no manager runs, if the config permits it.",
)
@daemon
def worker(
    role: str,
    slots: int,
    drain: bool,
    tags: tuple[str, ...],
    name: str | None,
    runner: str | None,
    degraded_bypass: bool,
    root: str | None,
    as_json: bool,
) -> None:
    """Work a role's queue. Logs JSON lines, or short ones at a terminal.

    With --store agq://HOST:PORT it works the queue of a `farro agq`, on whatever machine, and needs no root of its own.

    SIGTERM or Ctrl-C: running steps have five seconds, then their jobs are released, back into the queue. Again: at
    once.
    """
    signals = Signals()
    from farro.cli import daemon_services

    # Over AGQ a machine needs no root of its own: without one, the user's own root is made.
    path, settings = read_root(root, make=(asked_store() or "").startswith(AGQ))
    _check_worker(role, degraded_bypass, settings)
    log = log_to_stdout(f"worker/{role}", as_json, settings.runners)
    options = daemon_services.WorkerOptions(
        role=role, slots=slots, drain=drain, tags=tags, name=name, runner=runner, bypass=degraded_bypass
    )
    app = application()
    tools = app.announce_tools(path, settings)
    worker_processes.enclose()
    try:
        with daemon_services.worker(app, path, settings, options, log, tools) as service:
            graces_s = iter([GRACE_S])
            signals.end(lambda: service.stop(next(graces_s, 0.0)))
            service.start()
            log("info", "worker started", {"role": role, "slots": slots, "pid": os.getpid()})
            service.wait()
            log("info", "worker stopped", {"role": role})
            end_well()
    finally:
        worker_processes.release()


def _check_worker(role: str, bypass: bool, settings: Settings) -> None:
    if role == "Manager":
        raise click.BadParameter("the manager's queue is worked by `farro manager`", param_hint="--role")
    if bypass and not settings.routing.degraded_bypass:
        raise NotPermitted(
            "--degraded-bypass: the config does not permit it; set routing.degraded_bypass to true where jobs may go "
            "on without the manager"
        )


@click.command()
@click.option("--once", is_flag=True, help="Run one pass, then exit.")
@daemon
def watchdog(once: bool, root: str | None, as_json: bool) -> int:
    """Recover the jobs of dead agents: finish those with a decision, mark the others stale. Any number may run."""
    from farro.cli import daemon_services

    def told(item: Any) -> tuple[Mapping[str, Any], str]:
        data = {"job_id": item.job_id, "agent": item.agent, "what": item.what}
        return data, f"{item.what:<16} {item.job_id or item.agent or ''}".rstrip()

    return _keep(
        daemon_services.watchdog,
        "watchdog",
        "recovered",
        told,
        "nothing to recover",
        once=once,
        root=root,
        as_json=as_json,
    )


@click.command()
@click.option(
    "--once", is_flag=True, help="Make all decisions that are due, then exit; 3 where another manager is active."
)
@click.option(
    "--auto-plan",
    type=click.Choice(["off", "on"]),
    help="Make jobs of an Architect's drafts and of tasks that have no job yet; default: the config's.",
)
@daemon
def manager(once: bool, auto_plan: str | None, root: str | None, as_json: bool) -> int:
    """Route jobs from role to role as their tasks say, and finish them. Queues stale jobs again while attempts remain,
    else kills them with the reason; runs the schedules of schedules/. One manager is active at a time, others wait."""

    from farro.cli import daemon_services

    def told(item: Any) -> tuple[Mapping[str, Any], str]:
        if hasattr(item, "schedule"):
            return _told_run(item)
        if isinstance(item, str):
            return {"job_id": item, "status": "queued", "origin": "auto-plan"}, f"{item} is queued (auto-plan)"
        if item.status is Status.QUEUED and item.decision is not None and item.decision.reason is Reason.ROUTED:
            where = "waits for a person" if item.decision.to == WAITING else f"goes to {item.role}"
            return {"job_id": item.job_id, "status": item.status, "role": item.role}, f"{item.job_id} {where}"
        return {"job_id": item.job_id, "status": item.status}, f"{item.job_id} is {item.status}"

    def make(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
        wanted = None if auto_plan is None else auto_plan == "on"
        return daemon_services.manager(app, store, settings, log, auto_plan=wanted)

    return _keep(make, "manager", "decided", told, "nothing to decide", once=once, root=root, as_json=as_json)


@click.command()
@click.option("--once", is_flag=True, help="Run what is due now, then exit.")
@daemon
def scheduler(once: bool, root: str | None, as_json: bool) -> int:
    """Run the schedules of schedules/ when they are due. A manager does this too. Any number may run."""
    from farro.cli import daemon_services
    from farro.queue.scheduler import Scheduler

    def make(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
        return Scheduler(store=store, log=log, timetable=daemon_services.timetable(store, settings, log))

    return _keep(make, "scheduler", "scheduled", _told_run, "no schedule is due", once=once, root=root, as_json=as_json)


def _told_run(run: Any) -> tuple[Mapping[str, Any], str]:
    due = f"{run.due:%Y-%m-%dT%H:%M:%SZ}"
    return {"schedule": run.schedule, "due": due, "job_id": run.job_id}, f"{run.schedule} of {due}: {run.job_id}"


def _keep(
    make: Callable[[App, Store, Settings, Log], Daemon],
    name: str,
    key: str,
    told: Callable[[Any], tuple[Mapping[str, Any], str]],
    nothing: str,
    *,
    once: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Run one turn and print its results, or run turns with a log until a signal comes."""
    signals = None if once else Signals()
    path, settings = read_root(root)
    log = _Watched(grave_only(sys.stderr) if once else log_to_stdout(name, as_json, settings.runners))
    app = application()
    store = app.open_store(path, settings, log=log, actor=operator_name())
    admit(app, store, name, strict=starts_strictly(settings, once=once))
    service = make(app, store, settings, log)
    try:
        if signals is not None:
            signals.end(service.stop)
            log("info", f"{name} started", {"pid": os.getpid()})
            service.run(settings.watchdog.every_s)
            log("info", f"{name} stopped", {})
            end_well()
            return 0
        done = [told(item) for item in service.run_once()]
    finally:
        service.leave()
        store.close()
    reply(as_json, {key: [data for data, _ in done]}, "\n".join(line for _, line in done) or nothing)
    return 1 if log.grave else 0  # the errors are on stderr


class _Watched:
    """Pass events on, and remember whether one of them was an error."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.grave = False

    def __call__(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.grave |= level in GRAVE
        self._log(level, message, fields)
