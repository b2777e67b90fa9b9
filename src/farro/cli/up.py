"""`farro up`, `down`, `ps`, `start` and `stop`: keep the services of a root running."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from types import FrameType
from typing import Any

import click

from farro.cli.daemons import Signals, log_to_stdout
from farro.cli.options import (
    application,
    asked_store,
    common,
    daemon,
    no_checks,
    option_group,
    program,
    read_root,
    unchecked,
)
from farro.cli.terminal import answer, complain, note, say, show_table, span
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.errors import FarroError
from farro.host import signals
from farro.host.clock import SystemClock
from farro.jobs.times import parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass
from farro.roles.names import RUNNER
from farro.roles.workflow import MANAGER
from farro.worker import supervisor as supervisors
from farro.worker.runtime import ComponentProcess, Stopped
from farro.worker.supervisor import GROUP, SLOTS, WORKERS, Service, ServiceCommands, StartResult, Supervisor

_LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceOptions:
    """The options of `up` and `start` that choose the services."""

    workers: int
    slots: int
    runner: str | None
    roles: tuple[str, ...]
    web: bool | None


class RootServices:
    """The services of a root, as `up`, `down` and `ps` use them."""

    def __init__(self, root: str | None) -> None:
        self.root, self.settings = read_root(root)
        self.clock = SystemClock()
        self.runtime = application().runtime(self.root)
        self.services = ServiceCommands(
            root=self.root,
            runtime=self.runtime,
            clock=self.clock,
            supervisor=(*program(), "supervisor", "--root", self.root),
            env=dict(os.environ),
        )

    def wanted(self, options: ServiceOptions, command: str) -> tuple[Service, ...]:
        """Return the services, or raise Refused where one of doctor's gates fails."""
        _check_roles(options.roles, self.settings)
        if not unchecked():
            application().check_gates(self.root, self.settings, command)
        return supervisors.default_services(
            self.root,
            program=program(),
            roles=tuple(dict.fromkeys(options.roles)) or roles_with_workers(self.settings),
            workers=options.workers,
            slots=options.slots,
            runner=options.runner,
            store=asked_store() or os.environ.get("FARRO_STORE"),
            web=_has_web() if options.web is None else options.web,
            checked=not unchecked(),
        )

    # --- up ---

    def up(self, services: Sequence[Service], *, detach: bool, as_json: bool) -> int:
        if roots.renew_ignored(self.root):
            note("/bus/ and /swarms/ are in .gitignore now: what swarms keep is no part of the repository")
        if not detach:
            with _StopSignals() as stop_signals:
                return self._up_in_foreground(services, stop_signals)
        try:
            done = self.services.up(services)
        except KeyboardInterrupt:
            note("the services go on in the background; `farro down` ends them")
            raise
        if as_json:
            answer({"components": [asdict(one) for one in done], "old_config": self._with_old_config(done)})
        else:
            self._print_started(done)
            say("Look: farro ps, farro status, farro logs JOB. End: farro down.")
        return 0 if _all_well(done) else 1

    def _up_in_foreground(self, services: Sequence[Service], stop_signals: _StopSignals) -> int:
        code = 0
        try:
            done = self.services.up(services, over=lambda: stop_signals.asked)
            if not stop_signals.asked:
                self._print_started(done)
                code = 0 if _all_well(done) else 1
                say("Running. Ctrl-C stops it; `farro up --detach` leaves it running.")
                self._follow(stop_signals)
        except FarroError as error:
            complain(str(error))
            code = 1
        try:
            stop_signals.raise_the_next()
            if self.services.processes():
                note("stopping … (again: without waiting)")
            self._print_stopped(self.services.down())
        except KeyboardInterrupt:
            self.services.down(kill=True)
            complain("killed what was left; jobs that ran are recovered at the next start")
            return 130
        return code

    def _follow(self, stop_signals: _StopSignals) -> None:
        """Print what changes, until the user stops it."""
        known = {one.name: one for one in self.services.processes()}
        while not stop_signals.asked:
            self.clock.sleep(_LOOK_S)
            if not self.services.files.wanted().running:
                note("another command stopped everything")
                return
            self.services.ensure()
            now = {one.name: one for one in self.services.processes()}
            for name, process in now.items():
                self._print_change(process, known.get(name))
            known = now

    def _print_change(self, process: ComponentProcess, before: ComponentProcess | None) -> None:
        """Print the end of a service with its reason and log, then its state."""
        at = timestamp(self.clock.now())
        end = process.last_end
        if end is not None and (before is None or end != before.last_end):
            log = os.path.relpath(process.log, self.root)
            words = f" ends with: {end['words']}" if end.get("words") else ""
            say(f"{end.get('at', at)[11:19]} UTC  {process.name} ended {end.get('how', '')}; its log: {log}{words}")
        if before is None or _state_text(process) != _state_text(before):
            say(f"{at[11:19]} UTC  {process.name} {_state_text(process)}")

    def _print_started(self, done: list[StartResult]) -> None:
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {one.what}" + ("" if one.pid is None else f" (pid {one.pid})"))
        old, changed = self._with_old_config(done), reader.changed_at(self.root)
        if old and changed is not None:
            note(
                f"{changed[0]} was changed at {timestamp(changed[1])[11:19]} UTC, after these were started, and they "
                f"still use the old one: {', '.join(old)}. `farro down` and `farro up` restart them"
            )
        self._print_web_link(done)
        for one in done:
            if one.what in ("failed", "not ready"):
                shown = os.path.relpath(one.log, self.root)
                complain(f"{one.name} is {one.what}; {shown} ends with:" if one.said else f"{one.name} is {one.what}")
                note("\n".join(f"  {line}" for line in one.said.splitlines()))

    def _with_old_config(self, done: list[StartResult]) -> list[str]:
        """Return the services that were started before the config was last changed."""
        changed = reader.changed_at(self.root)
        found = []
        for one in done if changed is not None else ():
            seen = self.runtime.look(one.name) if one.what == "already runs" else None
            if changed is not None and seen is not None and parse_timestamp(seen.launched_at) < changed[1]:
                found.append(one.name)
        return found

    def _print_web_link(self, done: list[StartResult]) -> None:
        """Print a link to the dashboard; it is in no file."""
        if any(one.name == f"{GROUP}-web" and one.what in ("started", "already runs") for one in done):
            from farro.web.cli import sign_in_link

            link = sign_in_link(self.root)
            if link is not None:
                say(f"Dashboard, open this once: {link}")

    # --- down and ps ---

    def down(self, as_json: bool, *, kill: bool) -> None:
        done = self.services.down(kill=kill)
        swarms, orchestrator_pid = self._end_idle_orchestrator()
        if as_json:
            components = [{"name": one.name, "what": one.how} for one in done]
            ended = None if orchestrator_pid is None else "stopped"
            answer({"components": components, "others": swarms, "orchestrator": ended})
            return
        if not done and orchestrator_pid is not None:
            say(f"only an orchestrator ran here (pid {orchestrator_pid}), which had no swarm; it was stopped")
        elif not done and not swarms:
            say("nothing runs in the background here")
        self._print_stopped(done, killed="killed" if kill else None)
        if swarms:
            names = ", ".join(swarms)
            note(f"left as they are, with their orchestrator: swarm {names} (`farro swarm` stops and removes them)")
        if kill and done:
            note("they stay listed: `farro up` starts them again, `farro down` removes them from the list")

    def _has_swarms(self) -> bool:
        """Return whether this root ever had swarms; else their modules need not be imported."""
        return os.path.isdir(f"{self.root}/swarms")

    def _end_idle_orchestrator(self) -> tuple[list[str], int | None]:
        if not self._has_swarms():
            return [], None
        from farro.swarm import service

        return service.end_idle_orchestrator(self.root)

    def _print_stopped(self, done: list[Stopped], killed: str | None = None) -> None:
        words = {"was gone": "had ended before", "killed": killed or "did not end in time, and was killed"}
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {words.get(one.how, one.how)}")

    def ps(self, as_json: bool) -> None:
        services, pid = self.services.processes(), self.services.supervisor_pid()
        swarms = None
        if self._has_swarms():
            from farro.swarm.cli.inspect import SwarmProcesses

            swarms = SwarmProcesses(self.root)
        found = [*services, *(() if swarms is None else swarms.components)]
        if as_json:
            components = [asdict(process) for process in found]
            states = [] if swarms is None else swarms.states()
            answer({"supervisor": {"pid": pid}, "swarms": states, "components": components})
            return
        if not found and (swarms is None or not swarms.states()):
            say("nothing runs here; `farro up` starts what a root needs")
            return
        self._print_processes(found)
        if swarms is not None:
            swarms.print_states()
        self._print_supervisor(pid, services)

    def _print_processes(self, found: Sequence[ComponentProcess]) -> None:
        if found:
            head = ("COMPONENT", "ROLE", "STATE", "PID", "UP", "RESTARTS", "LOG")
            show_table([head, *map(self._row, found)], right=(3, 4, 5))
        for process in found:
            if process.failure is not None:
                say(f"{process.name} failed: it {process.failure}")
            elif process.pid is None and process.last_end is not None and process.state != "Stopped":
                end = process.last_end
                words = f": {end['words']}" if end.get("words") else ""
                say(f"{process.name} ended {end.get('how', '')} at {str(end.get('at'))[11:19]}{words}")

    def _row(self, process: ComponentProcess) -> tuple[str, ...]:
        return (
            process.name,
            process.role,
            process.state,
            "-" if process.pid is None else str(process.pid),
            span(process.uptime_s),
            str(process.restarts),
            os.path.relpath(process.log, self.root),
        )

    def _print_supervisor(self, pid: int | None, services: Sequence[ComponentProcess]) -> None:
        if pid is not None:
            say(f"supervisor: pid {pid}")
        elif any(one.pid is not None for one in services):
            complain("no supervisor runs here, so services that end are not restarted; `farro up --detach` starts one")
        elif services:
            say(
                "not running: killed, or the machine ended; `farro up` starts them again, `farro down` removes them "
                "from the list"
            )


class _StopSignals:
    """Note the first signal to stop; the second raises KeyboardInterrupt, at the earliest in `raise_the_next`."""

    def __init__(self) -> None:
        self._count = 0
        self._raises = False
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self._count > 0

    def raise_the_next(self) -> None:
        self._raises = True
        if self._count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> _StopSignals:
        for number in signals.ENDING:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._raises:
            raise KeyboardInterrupt


def roles_with_workers(settings: Settings) -> tuple[str, ...]:
    """Return the roles that need workers: Runner always, an agent's role if a provider answers it. The manager works
    its own queue."""
    agents = (role for role in settings.all_roles() if role not in (RUNNER, MANAGER))
    return (RUNNER, *(role for role in agents if settings.provider_of(role) is not None))


def _check_roles(roles: tuple[str, ...], settings: Settings) -> None:
    for role in roles:
        if role == MANAGER:
            raise click.BadParameter(
                "the manager's queue is worked by the manager, which starts anyway", param_hint="--role"
            )
        if role not in settings.all_roles():
            known = ", ".join(sorted(settings.all_roles()))
            raise click.BadParameter(f"{role} is not a role here; there is {known}", param_hint="--role")


def _has_web() -> bool:
    """Look the modules up without importing them, which would cost more than the rest of the command."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "sse_starlette"))


def _all_well(done: list[StartResult]) -> bool:
    return all(one.what in ("started", "already runs") for one in done)


def _state_text(process: ComponentProcess) -> str:
    state = process.state.lower()
    if process.state == "Provisioning":
        state = "is to be started again" if process.pid is None else "was started"
    return (
        state + (f": {process.failure}" if process.failure else "") + (f" (pid {process.pid})" if process.pid else "")
    )


# --- the commands ---

_service_options = option_group(
    "options",
    ServiceOptions,
    click.option(
        "--workers", default=WORKERS, show_default=True, type=click.IntRange(1, 16), help="Workers of each role."
    ),
    click.option(
        "--slots", default=SLOTS, show_default=True, type=click.IntRange(1, 64), help="Jobs at once in each worker."
    ),
    click.option(
        "--runner",
        type=click.Choice(["inline", "process"]),
        help="Run jobs in the workers, or each in a process of its own; else as the config says.",
    ),
    click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="ROLE",
        help="Workers of this role; may be repeated. Else of Runner, and of each role that a provider answers.",
    ),
    click.option(
        "--web/--no-web", "web", default=None, help="The dashboard and the HTTP API; else where they are installed."
    ),
)


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Leave it running in the background.")
@click.option(
    "--plan", "plan_file", metavar="FILE", help="Start this swarm plan instead, as a swarm; its id must be farro."
)
@_service_options
@no_checks
@common
def up(detach: bool, plan_file: str | None, options: ServiceOptions, root: str | None, as_json: bool) -> int:
    """Start what a root needs: a manager, which runs schedules too, a watchdog, workers of each role, and the web where
    it is installed. A supervisor restarts those that end.

    Until Ctrl-C, which stops everything in order; a second one does not wait. With --detach they go on in the
    background until `farro down`. Safe to repeat: only what is missing or has changed is started.
    """
    if as_json and not detach:
        raise click.UsageError("--json needs --detach: in the foreground nothing ends that could be answered")
    if plan_file is not None:
        from farro.swarm.cli.swarm import start_plan

        return start_plan(plan_file, "farro", root, as_json=as_json)
    services = RootServices(root)
    return services.up(services.wanted(options, "farro up"), detach=detach, as_json=as_json)


@click.command()
@_service_options
@click.option("--yes", "-y", is_flag=True, help="Import the jobs of .air-executor without asking.")
@no_checks
@common
def start(options: ServiceOptions, yes: bool, root: str | None, as_json: bool) -> int:
    """`farro up --detach`: start what a root needs, in the background.

    Safe to repeat: only what is missing or has changed is started. They live until `farro stop` or the machine's end;
    for services that start with it see `farro service install`. In a folder with an .air-executor it offers to import
    the jobs of that Air-Executor first.
    """
    if os.path.isdir(".air-executor/jobs"):
        from farro.air.cli import offer_import

        offer_import(root, yes=yes, as_json=as_json)
    services = RootServices(root)
    return services.up(services.wanted(options, "farro start"), detach=True, as_json=as_json)


@click.command()
@click.option("--kill", is_flag=True, help="Wait for nothing: end them at once.")
@common
def down(kill: bool, root: str | None, as_json: bool) -> None:
    """Stop what `farro up` started. Running steps have five seconds, then their jobs go back into the queue; what does
    not end in ten is killed, and its jobs are recovered at the next start. Swarms of the root are left alone."""
    RootServices(root).down(as_json, kill=kill)


@click.command()
@common
def ps(root: str | None, as_json: bool) -> None:
    """The services of `farro up` and the components of swarms, with their state and process."""
    RootServices(root).ps(as_json)


@click.command(hidden=True)
@daemon
def supervisor(root: str | None, as_json: bool) -> None:
    """Keep the services of a root running. `farro up` starts it, one per root."""
    stop_signals = Signals()
    path, settings = read_root(root)
    keeper = Supervisor(
        path,
        env=dict(os.environ),
        runtime=application().runtime(path),
        clock=SystemClock(),
        log=log_to_stdout("supervisor", as_json, settings.runners),
    )
    stop_signals.end(keeper.stop)
    keeper.run()
