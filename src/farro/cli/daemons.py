"""`farro worker`, `watchdog`, `manager`, `scheduler`: run a loop until a signal ends it gracefully.

Other daemons begin and end with the same parts: `Signals`, `admit`, `log_to_stdout`, `end_well`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from farro.cli.options import (
    App,
    application,
    asked_store,
    daemon,
    gate,
    operator_name,
    option_group,
    policy,
    read_root,
    starts_strictly,
    unchecked,
)
from farro.cli.terminal import forget_stdout, reply
from farro.config.settings import AGQ, RunnersSettings, Settings
from farro.errors import FarroError, NotPermitted, Refused
from farro.host import machine, trees, worker_processes
from farro.host.clock import SystemClock
from farro.jobs.places import WAITING
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.log.structured import GRAVE, Log, grave_only, lines
from farro.store.port import Store, WorkerStore

if TYPE_CHECKING:
    from farro.queue.schedules import Timetable
    from farro.worker.daemon import Daemon
    from farro.worker.hand_off import HandOff
    from farro.worker.worker import Until, Worker

GRACE_S = 5.0  # for running steps after the first signal

ENDING = (signal.SIGTERM, signal.SIGINT)


def admit(app: App, store: Store, settings: Settings, service: str, *, once: bool = False) -> None:
    """Close the store and raise where the service may not start here. `once`: it makes one turn, which may be part of a
    repair."""
    try:
        try:
            store.check_ready()
        except Refused as error:
            raise Refused(f"{service} does not start: {error}") from error
        if unchecked():
            store.note("checks_skipped", service=service)
        elif not once:
            app.check_gates(store.root, settings, service)
        if starts_strictly(settings, once=once):
            app.check_strictly(store.root, service, store=asked_store())
    except FarroError:
        store.close()  # which writes the refusal to the audit log
        raise


def log_to_stdout(actor: str, as_json: bool, runners: RunnersSettings) -> Log:
    """Make the log of a daemon: JSON lines with --json, else the form in the config, else short lines at a terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    short = not as_json and (terminal if runners.log_format is None else runners.log_format == "text")
    return lines(actor, SystemClock().now, sys.stdout, short=short, level=runners.log_level)


def end_well() -> None:
    """Exit cleanly after the work: ignore further signals, and a log that has lost its reader or whose disk is full."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        forget_stdout()


class Signals:
    """Handle SIGTERM and Ctrl-C from the start of a daemon. A signal that comes before its loop runs is kept for the
    loop; a second one ends the process at once."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._early = False
        for number in ENDING:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self._stop()
        elif self._early:
            raise KeyboardInterrupt
        else:
            self._early = True

    def end(self, stop: Callable[[], None]) -> None:
        """Call `stop` for each signal from here on, and for one that came before."""
        self._stop = stop
        if self._early:
            stop()


# --- workers ---


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    role: str
    slots: int
    drain: bool
    tags: tuple[str, ...]
    name: str | None
    runner: str | None
    degraded_bypass: bool


@click.command()
@option_group(
    "options",
    WorkerOptions,
    click.option("--role", default="Runner", show_default=True, metavar="ROLE", help="The role whose queue to work."),
    click.option(
        "--slots",
        "--workers",
        "slots",
        default=2,
        show_default=True,
        type=click.IntRange(1, 64),
        metavar="N",
        help="How many jobs run at once in this process.",
    ),
    click.option("--drain", is_flag=True, help="Exit 0 when nothing is queued, running or due in that queue."),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="TAG",
        help="A tag that this worker offers to jobs that require it; repeatable.",
    ),
    click.option("--name", metavar="NAME", help="The name of its agents; default: the host's."),
    click.option(
        "--runner",
        type=click.Choice(["inline", "process"]),
        help="Run jobs in this process, or each in its own; default: the config's.",
    ),
    click.option(
        "--degraded-bypass",
        is_flag=True,
        help="Route jobs to the workflow's next role while no manager runs, if the config permits it.",
    ),
)
@daemon
def worker(options: WorkerOptions, root: str | None, as_json: bool) -> None:
    """Work a role's queue. Logs JSON lines, or short ones at a terminal.

    With --store agq://HOST:PORT it works the queue of a `farro agq`, on whatever machine, and needs no root of its own.

    SIGTERM or Ctrl-C: running steps have five seconds, then their jobs are released, back into the queue. Again: at
    once.
    """
    signals = Signals()
    # Over AGQ a machine needs no root of its own: without one, the user's own root is made.
    path, settings = read_root(root, make=(asked_store() or "").startswith(AGQ))
    _check_worker(options, settings)
    log = log_to_stdout(f"worker/{options.role}", as_json, settings.runners)
    app = application()
    tools = app.announce_tools(path, settings)
    worker_processes.enclose()
    trees.remove_in_background(f"{path}/jobs/.staging")
    try:
        with _worker(app, path, settings, options, log, tools) as service:
            graces_s = iter([GRACE_S])
            signals.end(lambda: service.stop(next(graces_s, 0.0)))
            service.start()
            log("info", "worker started", {"role": options.role, "slots": options.slots, "pid": os.getpid()})
            service.wait()
            log("info", "worker stopped", {"role": options.role})
            end_well()
    finally:
        worker_processes.release()


def _check_worker(options: WorkerOptions, settings: Settings) -> None:
    if options.role == "Manager":
        raise click.BadParameter("the manager's queue is worked by `farro manager`", param_hint="--role")
    if options.degraded_bypass and not settings.routing.degraded_bypass:
        raise NotPermitted(
            "--degraded-bypass: the config does not permit it; set routing.degraded_bypass to true where jobs may go "
            "on without the manager"
        )


@contextmanager
def _worker(
    app: App, path: str, settings: Settings, options: WorkerOptions, log: Log, tools: Sequence[str]
) -> Iterator[Worker]:
    """Build a worker that is not started yet; close its store at the end. `tools`: those that its steps may use."""
    from farro.worker.drain import Drained, Emptied
    from farro.worker.watchdog import Recovery
    from farro.worker.worker import IDLE_S, Worker, WorkerSetup

    clock, role = SystemClock(), options.role
    store: WorkerStore
    hand_off: HandOff | None = None
    until: Until | None = None
    if settings.store.startswith(AGQ):  # it only reports how jobs ended; the store behind AGQ routes them on
        store = remote = app.open_agq(path, settings, tools=tools)
        if options.drain:
            until = Emptied(lambda: remote.pending(role))
    else:
        store = whole = app.open_store(path, settings, log=log, actor=f"worker/{role}")
        admit(app, whole, settings, f"worker/{role}")
        hand_off = app.hand_off(path, settings, whole, clock, log, bypass=options.degraded_bypass)
        if options.drain:
            recovery = Recovery(sweep=lambda: app.sweep(whole))
            until = Drained(store=whole, role=role, clock=clock, log=log, recovery=recovery)
    setup = WorkerSetup(
        store=store,
        role=role,
        name=_host() if options.name is None else options.name,
        tags=options.tags,
        performer=app.performer(path, settings, app.runner(path, settings, kind=options.runner, clock=clock), clock),
        clock=clock,
        log=log,
        hand_off=hand_off,
        on_end=app.forget_sessions(path, settings),
        # An idle slot sends its heartbeat once per turn: with a short stale_after_s it must turn more often.
        idle_s=min(IDLE_S, settings.watchdog.stale_after_s / 4, settings.redis.lease_s / 3),
    )
    try:
        yield Worker(setup, slots=options.slots, until=until)
    finally:
        store.close()


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", machine.node_name())[:32].strip("-_") or "worker"


# --- services that take turns ---


@click.command()
@click.option("--once", is_flag=True, help="Run one pass, then exit.")
@daemon
def watchdog(once: bool, root: str | None, as_json: bool) -> int:
    """Recover the jobs of dead agents: finish those with a decision, mark the others stale. Any number may run."""

    def make(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
        from farro.worker.watchdog import Watchdog

        return Watchdog(store=store, log=log, sweep=lambda: app.sweep(store))

    def describe(item: Any) -> tuple[Mapping[str, Any], str]:
        data = {"job_id": item.job_id, "agent": item.agent, "what": item.what}
        return data, f"{item.what:<16} {item.job_id or item.agent or ''}".rstrip()

    words = ("watchdog", "recovered", "nothing to recover")
    return _run_service(make, describe, words, once=once, root=root, as_json=as_json)


@click.command()
@click.option(
    "--once", is_flag=True, help="Make all decisions that are due, then exit; 3 where another manager is active."
)
@click.option(
    "--auto-plan",
    type=click.Choice(["off", "on"]),
    help="Make jobs of an Architect's drafts and of tasks that have no job yet; default: as it was last set, else the "
    "config's. Where a manager runs, that one follows at once.",
)
@daemon
def manager(once: bool, auto_plan: str | None, root: str | None, as_json: bool) -> int:
    """Route jobs from role to role as their tasks say, and finish them. Queues stale jobs again while attempts remain,
    else kills them with the reason; runs the schedules of schedules/. One manager is active at a time, others wait."""

    on = None if auto_plan is None else auto_plan == "on"
    if on is not None and not once and (acts := _switch_auto_plan(on, root)) is not None:
        text = f"auto-plan is {auto_plan}; the running manager ({acts}) follows at once"
        reply(as_json, {"auto_plan": auto_plan, "manager": acts}, text)
        return 0

    def make(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
        return app.manager(
            store,
            settings,
            log,
            timetable=_timetable(store, settings, log),
            gate=gate(settings, force=False),
            auto_plan=on if once else None,  # else by the switch
        )

    def describe(item: Any) -> tuple[Mapping[str, Any], str]:
        if hasattr(item, "schedule"):
            return _describe_run(item)
        if isinstance(item, str):
            return {"job_id": item, "status": "queued", "origin": "auto-plan"}, f"{item} is queued (auto-plan)"
        if item.status is Status.QUEUED and item.decision is not None and item.decision.reason is Reason.ROUTED:
            where = "waits for a person" if item.decision.to == WAITING else f"goes to {item.role}"
            return {"job_id": item.job_id, "status": item.status, "role": item.role}, f"{item.job_id} {where}"
        return {"job_id": item.job_id, "status": item.status}, f"{item.job_id} is {item.status}"

    words = ("manager", "decided", "nothing to decide")
    return _run_service(make, describe, words, once=once, root=root, as_json=as_json)


def _switch_auto_plan(on: bool, root: str | None) -> str | None:
    """Turn auto-plan on or off for this root; return the manager that acts here, None without one."""
    from farro.worker import auto_plan_switch

    path, settings = read_root(root)
    by = operator_name()
    store = application().open_store(path, settings, log=grave_only(sys.stderr), actor=by, brief=True)
    try:
        at = timestamp(SystemClock().now())
        auto_plan_switch.write(path, auto_plan_switch.AutoPlanSwitch(on=on, by=by, at=at))
        store.note(f"auto_plan_{'on' if on else 'off'}", actor=by)
        leadership = store.leadership()
        try:
            return None if leadership.take() else leadership.holder()
        finally:
            leadership.drop()
    finally:
        store.close()


@click.command()
@click.option("--once", is_flag=True, help="Run what is due now, then exit.")
@daemon
def scheduler(once: bool, root: str | None, as_json: bool) -> int:
    """Run the schedules of schedules/ when they are due. A manager does this too. Any number may run."""

    def make(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
        from farro.queue.schedules import Scheduler

        return Scheduler(store=store, log=log, timetable=_timetable(store, settings, log))

    words = ("scheduler", "scheduled", "no schedule is due")
    return _run_service(make, _describe_run, words, once=once, root=root, as_json=as_json)


def _timetable(store: Store, settings: Settings, log: Log) -> Timetable:
    from farro.queue.schedules import Timetable

    return Timetable(store=store, clock=SystemClock(), log=log, policy=policy(store, settings))


def _describe_run(run: Any) -> tuple[Mapping[str, Any], str]:
    due = f"{run.due:%Y-%m-%dT%H:%M:%SZ}"
    return {"schedule": run.schedule, "due": due, "job_id": run.job_id}, f"{run.schedule} of {due}: {run.job_id}"


def _run_service(
    make: Callable[[App, Store, Settings, Log], Daemon],
    describe: Callable[[Any], tuple[Mapping[str, Any], str]],
    words: tuple[str, str, str],
    *,
    once: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Run one turn and print its results, or run turns with a log until a signal comes. `words`: the service's name,
    the key of its results in JSON, and what to say when there are none."""
    name, key, nothing = words
    signals = None if once else Signals()
    path, settings = read_root(root)
    log = _Watched(grave_only(sys.stderr) if once else log_to_stdout(name, as_json, settings.runners))
    app = application()
    store = app.open_store(path, settings, log=log, actor=operator_name())
    admit(app, store, settings, name, once=once)
    service = make(app, store, settings, log)
    try:
        if signals is not None:
            signals.end(service.stop)
            log("info", f"{name} started", {"pid": os.getpid()})
            service.run(settings.watchdog.every_s)
            log("info", f"{name} stopped", {})
            end_well()
            return 0
        done = [describe(item) for item in service.run_once()]
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
