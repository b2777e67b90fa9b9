"""`farro up`, `down`, `ps`, `start` and `stop`: run the services of a root as the swarm `farro`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from types import FrameType
from typing import Any, TypeVar

import click

from farro.cli.background import program
from farro.cli.options import application, asked_store, common, operator_name, read_root
from farro.cli.tables import show_table, span
from farro.cli.terminal import answer, complain, note, say
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.errors import FarroError
from farro.host import signals
from farro.host.clock import SystemClock
from farro.jobs.times import parse_timestamp, timestamp
from farro.roles.workflow import MANAGER
from farro.swarm import own_swarm, processes, service, views
from farro.swarm.cli.tables import dead_words, ended_words
from farro.swarm.files import ORCHESTRATOR
from farro.swarm.lifecycle import ComponentState
from farro.swarm.own_swarm import SLOTS, WORKERS, ComponentProcess, OwnSwarm, StartResult, StopResult, WaitInterrupted
from farro.swarm.views import SwarmView
from farro.worker import background

_LOOK_S = 0.5


class RootServices:
    """The services of a root, as `up`, `down` and `ps` use them."""

    def __init__(self, root: str | None) -> None:
        self.root, self.settings = read_root(root)
        self.folder = service.folder(self.root)
        self.runtime = service.runtime(self.root)
        self.clock = SystemClock()
        self._ending = _StopSignals()

    def own_swarm(self, *, over: Callable[[], bool] = lambda: False, quiet: bool = False) -> OwnSwarm:
        spec = processes.orchestrator_spec(self.root, program(), dict(os.environ))
        return OwnSwarm(
            folder=self.folder,
            runtime=self.runtime,
            clock=self.clock,
            ensure=lambda: (processes.ensure_orchestrator(self.runtime, spec, self.clock), None)[1],
            tell=(lambda text: None) if quiet else note,
            over=over,
            origin=operator_name(),
            durable=self.settings.durability == "power",
        )

    def plan(
        self,
        path: str | None,
        *,
        workers: int,
        slots: int,
        runner: str | None,
        roles: tuple[str, ...],
        web: bool | None,
    ) -> dict[str, Any]:
        if path is not None:
            from farro.swarm.cli.swarm import read_plan

            document, _ = read_plan(path, own_swarm.SWARM)
            return dict(document.data)
        _check_roles(roles, self.settings)
        return own_swarm.default_plan(
            self.root,
            program=program(),
            roles=tuple(dict.fromkeys(roles)) or own_swarm.roles(self.settings),
            workers=workers,
            slots=slots,
            runner=runner,
            store=asked_store() or os.environ.get("FARRO_STORE"),
            web=_has_web() if web is None else web,
        )

    # --- up ---

    def up_detached(self, plan: dict[str, Any], as_json: bool) -> int:
        self._prepare()
        try:
            done = self.own_swarm(quiet=as_json).up(plan)
        except KeyboardInterrupt:
            note("what was begun goes on in the background; `farro down` ends it")
            raise
        if as_json:
            answer({"components": [asdict(one) for one in done], "old_config": self._with_old_config(done)})
        else:
            self._print_started(done)
            self._print_web_link(done)
            say("Look: farro ps, farro status, farro logs JOB. End: farro down.")
        return 0 if _all_well(done) else 1

    def up_in_foreground(self, plan: dict[str, Any]) -> int:
        code = 0
        self._prepare()
        with self._ending:
            swarm = self.own_swarm(over=lambda: self._ending.asked)
            try:
                done = swarm.up(plan)
                self._print_started(done)
                code = 0 if _all_well(done) else 1
                if not self._ending.asked:
                    self._print_web_link(done)
                    say("Running. Ctrl-C stops it; `farro up --detach` leaves it running.")
                    self._follow(swarm)
            except WaitInterrupted:
                pass
            except FarroError as error:
                complain(str(error))
                code = 1
            except KeyboardInterrupt:
                return self._kill(swarm)
            impatient = self.own_swarm(over=lambda: self._ending.again)
            try:
                if impatient.view() is not None:
                    note("stopping … (again: without waiting)")
                self._print_stopped(impatient.down())
                self._print_others(impatient.end_orchestrator())
            except (WaitInterrupted, KeyboardInterrupt):
                return self._kill(impatient)
        return code

    def _prepare(self) -> None:
        service.check_bus(self.root, self.settings)
        if roots.renew_ignored(self.root):
            note("/bus/ and /swarms/ are in .gitignore now: what swarms keep is no part of the repository")

    def _follow(self, swarm: OwnSwarm) -> None:
        """Print what changes, until the user stops it."""
        known = {
            process.name: process for process in own_swarm.component_processes(self.folder, self.runtime, self.clock)
        }
        while not self._ending.asked:
            self.clock.sleep(_LOOK_S)
            if swarm.view() is None:
                note("the swarm was removed by another command")
                return
            swarm.ensure()
            now = {
                process.name: process
                for process in own_swarm.component_processes(self.folder, self.runtime, self.clock)
            }
            for name, process in now.items():
                self._print_change(process, known.get(name))
            known = now

    def _print_change(self, process: ComponentProcess, before: ComponentProcess | None) -> None:
        """Print the end of a component with its reason and log, then its state."""
        at = timestamp(self.clock.now())
        end = process.last_end
        if end is not None and (before is None or end != before.last_end):
            log = os.path.relpath(process.log, self.root)
            words = f" ends with: {end['words']}" if end.get("words") else ""
            say(f"{end.get('at', at)[11:19]} UTC  {process.name} ended {end.get('how', '')}; its log: {log}{words}")
        if before is None or _state_text(process) != _state_text(before):
            say(f"{at[11:19]} UTC  {process.name} {_state_text(process)}")

    def _kill(self, swarm: OwnSwarm) -> int:
        swarm.kill()
        complain("killed what was left; jobs that ran are recovered at the next start")
        return 130

    def _print_started(self, done: list[StartResult]) -> None:
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {one.what}" + ("" if one.pid is None else f" (pid {one.pid})"))
        if any(one.what == "disabled" for one in done):
            note("disabled by a command: `farro swarm config ROLE NAME --enable` lets it work again")
        self._warn_old_config(done)
        for one in done:
            if one.what in ("failed", "not ready"):
                shown = os.path.relpath(one.log, self.root)
                complain(f"{one.name} is {one.what}; {shown} ends with:" if one.said else f"{one.name} is {one.what}")
                note("\n".join(f"  {process}" for process in one.said.splitlines()))

    def _with_old_config(self, done: list[StartResult]) -> list[str]:
        """Return the components that were started before the config was last changed."""
        changed = reader.changed_at(self.root)
        found = []
        for one in done if changed is not None else ():
            seen = self.runtime.look(one.name) if one.what in ("already runs", "disabled") else None
            if changed is not None and seen is not None and parse_timestamp(seen.launched_at) < changed[1]:
                found.append(one.name)
        return found

    def _warn_old_config(self, done: list[StartResult]) -> None:
        old, changed = self._with_old_config(done), reader.changed_at(self.root)
        if old and changed is not None:
            note(
                f"{changed[0]} was changed at {timestamp(changed[1])[11:19]} UTC, after these were started, and they "
                f"still use the old one: {', '.join(old)}. `farro down` and `farro up` restart them"
            )

    def _print_web_link(self, done: list[StartResult]) -> None:
        """Print a link to the dashboard; it is in no file."""
        if any(one.name == f"{own_swarm.SWARM}-web" and one.what in ("started", "already runs") for one in done):
            from farro.web.cli import sign_in_link

            link = sign_in_link(self.root)
            if link is not None:
                say(f"Dashboard, open this once: {link}")

    # --- down ---

    def down(self, as_json: bool, *, kill: bool = False) -> None:
        old = background.stop(application().runtime(self.root))  # left by a killed demo, or by a farro without swarms
        swarm = self.own_swarm(quiet=as_json)
        orchestrator_pid = self._orchestrator()
        ended = swarm.kill() if kill else swarm.down()
        done = [*(StopResult(name=one.name, what=one.how) for one in old), *ended]
        others = swarm.others() if kill else swarm.end_orchestrator()
        orchestrator_ended = orchestrator_pid is not None and self._orchestrator() is None
        if as_json:
            result = {"components": [asdict(one) for one in done], "others": others}
            answer({**result, "orchestrator": ("killed" if kill else "stopped") if orchestrator_ended else None})
            return
        if not done and not others:
            alone = f"only an orchestrator ran here (pid {orchestrator_pid}), which had no swarm; it was stopped"
            say(alone if orchestrator_ended else "nothing runs in the background here")
        self._print_stopped(done, killed="killed" if kill else None)
        self._print_others(others, alone=orchestrator_ended)
        if kill and done:
            note("the swarm itself is kept: `farro up` starts it again, `farro down` removes it")

    def _orchestrator(self) -> int | None:
        seen = self.runtime.look(ORCHESTRATOR)
        return seen.pid if seen is not None and seen.alive else None

    def _print_stopped(self, done: list[StopResult], killed: str | None = None) -> None:
        words = {"was gone": "had ended before", "killed": killed or "did not end in time, and was killed"}
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {words.get(one.what, one.what)}")

    def _print_others(self, others: list[str], *, alone: bool = False) -> None:
        """`alone` says that their orchestrator was killed."""
        if others:
            whose = "without an orchestrator until the next command" if alone else "with their orchestrator"
            note(f"left as they are, {whose}: swarm {', '.join(others)} (`farro swarm` stops and removes them)")

    def table_row(self, process: ComponentProcess) -> tuple[str, ...]:
        return (
            process.name,
            process.role,
            process.state,
            "-" if process.pid is None else str(process.pid),
            span(process.uptime_s),
            str(process.restarts),
            os.path.relpath(process.log, self.root),
        )


class _StopSignals:
    """Count signals: the first asks to stop, the second not to wait. A third raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self.again = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _StopSignals:
        for number in signals.ENDING:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.again:
            raise KeyboardInterrupt
        self.again, self.asked = self.asked, True


def _check_roles(roles: tuple[str, ...], settings: Settings) -> None:
    for role in roles:
        if role == MANAGER:
            raise click.BadParameter(
                "the manager's queue is worked by the manager, which starts anyway", param_hint="--role"
            )
        if role not in settings.all_roles():
            known = ", ".join(sorted(settings.all_roles()))
            raise click.BadParameter(f"{role} is not a role here; known: {known}", param_hint="--role")


def _has_web() -> bool:
    """Look the modules up without importing them, which would cost more than the rest of the command."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "sse_starlette"))


def _all_well(done: list[StartResult]) -> bool:
    return all(one.what in ("started", "already runs", "disabled") for one in done)


def _state_text(process: ComponentProcess) -> str:
    state = process.state.lower()
    if process.state == ComponentState.PROVISIONING:
        state = "is to be started again" if process.pid is None else "was started"
    return (
        state + (f": {process.failure}" if process.failure else "") + (f" (pid {process.pid})" if process.pid else "")
    )


# --- the commands ---

F = TypeVar("F", bound=Callable[..., Any])


def _plan_options(command: F) -> F:
    """Add the options of the default plan."""
    for option in (
        click.option(
            "--web/--no-web", "web", default=None, help="The dashboard and the HTTP API; else where they are installed."
        ),
        click.option(
            "--role",
            "roles",
            multiple=True,
            metavar="ROLE",
            help="Workers of this role; may be repeated. Else of Runner, and of each role that a provider answers.",
        ),
        click.option(
            "--runner",
            type=click.Choice(["inline", "process"]),
            help="Run jobs in the workers, or each in a process of its own; else as the config says.",
        ),
        click.option(
            "--slots", default=SLOTS, show_default=True, type=click.IntRange(1, 64), help="Jobs at once in each worker."
        ),
        click.option(
            "--workers", default=WORKERS, show_default=True, type=click.IntRange(1, 16), help="Workers of each role."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Leave it running in the background.")
@click.option("--plan", "plan_file", metavar="FILE", help="A swarm plan of your own instead; its id must be farro.")
@_plan_options
@common
def up(
    detach: bool,
    plan_file: str | None,
    workers: int,
    slots: int,
    runner: str | None,
    roles: tuple[str, ...],
    web: bool | None,
    root: str | None,
    as_json: bool,
) -> int:
    """Start what a root needs: a manager, which runs schedules too, a watchdog, workers of each role, and the web where
    it is installed. They are the swarm `farro`, kept running by its controller.

    Until Ctrl-C, which stops everything in order; a second one does not wait. With --detach they go on in the
    background until `farro down`. Safe to repeat: only what is missing or has changed is started.
    """
    if as_json and not detach:
        raise click.UsageError("--json needs --detach: a foreground `up` has no answer to print")
    services = RootServices(root)
    plan = services.plan(plan_file, workers=workers, slots=slots, runner=runner, roles=roles, web=web)
    if detach:
        return services.up_detached(plan, as_json)
    return services.up_in_foreground(plan)


@click.command()
@_plan_options
@common
def start(
    workers: int,
    slots: int,
    runner: str | None,
    roles: tuple[str, ...],
    web: bool | None,
    root: str | None,
    as_json: bool,
) -> int:
    """`farro up --detach`: start what a root needs, in the background.

    Safe to repeat: only what is missing or has changed is started. They live until `farro stop` or the machine's end;
    for services that start with it see `farro service install`.
    """
    services = RootServices(root)
    plan = services.plan(None, workers=workers, slots=slots, runner=runner, roles=roles, web=web)
    return services.up_detached(plan, as_json)


_kill = click.option("--kill", is_flag=True, help="Wait for nobody, not even for a bus that is away: end them at once.")


@click.command()
@_kill
@common
def down(kill: bool, root: str | None, as_json: bool) -> None:
    """Stop what `farro up` started. Running steps have five seconds, then their jobs go back into the queue; what does
    not end is killed, and its jobs are recovered at the next start. Other swarms of the root are left alone."""
    RootServices(root).down(as_json, kill=kill)


@click.command()
@_kill
@common
def stop(kill: bool, root: str | None, as_json: bool) -> None:
    """`farro down`: stop what runs in the background. Running steps have five seconds, then their jobs go back into the
    queue; what does not end is killed, and its jobs are recovered at the next start."""
    RootServices(root).down(as_json, kill=kill)


@click.command()
@common
def ps(root: str | None, as_json: bool) -> None:
    """The components that run here, of every swarm: `farro up` makes the swarm farro, `farro swarm` others."""
    services = RootServices(root)
    found = own_swarm.component_processes(services.folder, services.runtime, services.clock)
    swarms = views.swarms(services.folder, clock=services.clock)
    orchestrator = services.runtime.look(ORCHESTRATOR)
    pid = orchestrator.pid if orchestrator is not None and orchestrator.alive else None
    runs = views.orchestrator_runs(services.folder)
    is_up = {view.id: own_swarm.is_up(services.folder, view, found) for view in swarms}
    if as_json:
        shown = [
            {"id": one.id, "state": one.state, "health": one.health, "reason": one.reason, "stands": is_up[one.id]}
            for one in swarms
        ]
        components = [asdict(process) for process in found]
        answer({"orchestrator": {"pid": pid, "running": runs}, "swarms": shown, "components": components})
        return
    if not swarms:
        say("nothing runs here; `farro up` starts what a root needs")
        return
    _print_processes(services, found, is_up)
    for view in swarms:
        say(f"swarm {view.id}: " + (_swarm_words(view, found) if is_up[view.id] else _dead_words(view)))
        if (letters := dead_words(view)) is not None:
            say(f"swarm {view.id}: {letters}")
    problem = processes.orchestrator_problem(services.folder)
    if runs and problem is not None and any(view.health == "Unknown" for view in swarms):
        complain(f"the orchestrator says: {problem}")
    if pid is not None:
        say(f"orchestrator: pid {pid}")
    elif runs:
        say("orchestrator: runs, started by another program")
    elif any(is_up.values()):
        again = "a controller starts another within some ten seconds"
        died = orchestrator is not None and any(view.controller["alive"] for view in swarms)
        again = again if died else "the next command of `farro swarm` or `farro up --detach` starts one"
        complain(f"no orchestrator runs here, so commands of swarms are not carried out; {again}")


def _print_processes(services: RootServices, found: Sequence[ComponentProcess], is_up: Mapping[str, bool]) -> None:
    if found:
        head = ("COMPONENT", "ROLE", "STATE", "PID", "UP", "RESTARTS", "LOG")
        show_table([head, *map(services.table_row, found)], right=(3, 4, 5))
    for process in found:
        if process.failure is not None:
            say(f"{process.name} failed: it {process.failure}")
        elif process.pid is None and process.last_end is not None and is_up[process.swarm]:
            say(f"{process.name} {ended_words(process.last_end)}")


def _swarm_words(view: SwarmView, found: Sequence[ComponentProcess]) -> str:
    """Describe a swarm. Its reason is left out if it is that of a component, which is shown above."""
    known = any(
        process.failure in (view.reason or "") for process in found if process.failure and process.swarm == view.id
    )
    return f"{view.state}, {view.health}" + (f" ({view.reason})" if view.reason and not known else "")


def _dead_words(view: SwarmView) -> str:
    """Describe a swarm whose processes are all dead: its last state is not its state any more."""
    own = view.id == own_swarm.SWARM
    again = "`farro up` starts it again, `farro down` removes it"
    again = again if own else f"`farro swarm start {view.id}` starts it again"
    return f"not running (it was {view.state} when it was killed, or its machine ended); {again}"
