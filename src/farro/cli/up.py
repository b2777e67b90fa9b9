"""`farro up`, `down`, `ps`, and `start` and `stop`, which are the same: the services of a root as a swarm.

What they do lives in operations.own_swarm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import Any, TypeVar

import click

from farro import app
from farro.cli.background import program
from farro.cli.options import asked_store, common, person, read_root
from farro.cli.tables import show_table, span
from farro.cli.terminal import answer, complain, note, say
from farro.errors import FarroError
from farro.operations import background, own_swarm, swarm_service, swarms
from farro.operations.own_swarm import SLOTS, WORKERS, Down, Left, Line, Steering, Up
from farro.operations.swarm_place import ORCHESTRATOR
from farro.roles.workflow import MANAGER
from farro.settings import Settings
from farro.system.clock import SystemClock

F = TypeVar("F", bound=Callable[..., Any])
_LOOK_S = 0.5
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def _sized(command: F) -> F:
    """The options that shape the default plan."""
    for option in (
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
@_sized
@common
def up(
    detach: bool,
    plan_file: str | None,
    workers: int,
    slots: int,
    runner: str | None,
    roles: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> int:
    """Start what a root needs: a manager, which runs schedules too, a watchdog, workers of each role, and the web where
    it is installed. They are the swarm `farro`, kept running by its controller.

    Until Ctrl-C, which stops everything in order; a second one does not wait. With --detach they go on in the
    background until `farro down`. Safe to repeat: only what is missing or has changed is started.
    """
    if as_json and not detach:
        raise click.UsageError("--json needs --detach: in the foreground nothing ends that could be answered")
    here = _Here(root)
    plan = here.plan(plan_file, workers=workers, slots=slots, runner=runner, roles=roles)
    if detach:
        return here.up_detached(plan, as_json)
    return here.up_in_front(plan)


@click.command()
@_sized
@common
def start(workers: int, slots: int, runner: str | None, roles: tuple[str, ...], root: str | None, as_json: bool) -> int:
    """`farro up --detach`: start what a root needs, in the background.

    Safe to repeat: only what is missing or has changed is started. They live until `farro stop` or the machine's end;
    for services that start with it see `farro service install`.
    """
    here = _Here(root)
    return here.up_detached(here.plan(None, workers=workers, slots=slots, runner=runner, roles=roles), as_json)


@click.command()
@common
def down(root: str | None, as_json: bool) -> None:
    """Stop what `farro up` started. Running steps have five seconds, then their jobs go back into the queue; what does
    not end is killed, and its jobs are recovered at the next start. Other swarms of the root are left alone."""
    _Here(root).down(as_json)


@click.command()
@common
def stop(root: str | None, as_json: bool) -> None:
    """`farro down`: stop what runs in the background. Running steps have five seconds, then their jobs go back into the
    queue; what does not end is killed, and its jobs are recovered at the next start."""
    _Here(root).down(as_json)


@click.command()
@common
def ps(root: str | None, as_json: bool) -> None:
    """The components that run here, of every swarm: `farro up` makes the swarm farro, `farro swarm` others."""
    here = _Here(root)
    found = own_swarm.lines(here.place, here.runtime, here.clock)
    views = swarms.list_(here.place, clock=here.clock)
    orchestrator = here.runtime.look(ORCHESTRATOR)
    pid = orchestrator.pid if orchestrator is not None and orchestrator.alive else None
    if as_json:
        told = [{"id": view.id, "state": view.state, "health": view.health, "reason": view.reason} for view in views]
        answer({"orchestrator": {"pid": pid}, "swarms": told, "components": [asdict(line) for line in found]})
        return
    if not views:
        say("nothing runs here; `farro up` starts what a root needs")
        return
    if found:
        show_table(
            [("COMPONENT", "ROLE", "STATE", "PID", "UP", "RESTARTS", "LOG"), *map(here.row, found)], right=(3, 4, 5)
        )
    for view in views:
        say(f"swarm {view.id}: {view.state}, {view.health}" + (f" ({view.reason})" if view.reason else ""))
    say(f"orchestrator: pid {pid}" if pid else "orchestrator: does not run; `farro up` starts it")


class _Here:
    """A root, and how its swarm is steered from this command."""

    def __init__(self, root: str | None) -> None:
        self.root, self.settings = read_root(root)
        self.place = app.swarm_place(self.root, self.settings).folder
        self.runtime = app.swarm_runtime(self.root)
        self.clock = SystemClock()
        self._ending = _Ending()

    def steering(self, *, over: Callable[[], bool] = lambda: False, quiet: bool = False) -> Steering:
        wanted = swarm_service.component(self.root, program(), dict(os.environ))
        return Steering(
            place=self.place,
            runtime=self.runtime,
            clock=self.clock,
            ensure=lambda: (swarm_service.ensure(self.runtime, wanted, self.clock), None)[1],
            tell=(lambda text: None) if quiet else note,
            over=over,
            origin=person(),
            durable=self.settings.durability == "power",
        )

    def plan(
        self, path: str | None, *, workers: int, slots: int, runner: str | None, roles: tuple[str, ...]
    ) -> dict[str, Any]:
        if path is not None:
            from farro.cli.swarm import read_plan

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
            web=_has_web(),
        )

    # --- up ---

    def up_detached(self, plan: dict[str, Any], as_json: bool) -> int:
        try:
            done = self.steering(quiet=as_json).up(plan)
        except KeyboardInterrupt:
            note("what was begun goes on in the background; `farro down` ends it")
            raise
        if as_json:
            answer({"components": [asdict(one) for one in done]})
        else:
            self._tell(done)
            say("Look: farro ps, farro status, farro logs JOB. End: farro down.")
        return 0 if _well(done) else 1

    def up_in_front(self, plan: dict[str, Any]) -> int:
        code = 0
        with self._ending:
            steering = self.steering(over=lambda: self._ending.asked)
            try:
                done = steering.up(plan)
                self._tell(done)
                code = 0 if _well(done) else 1
                if not self._ending.asked:
                    say("Running. Ctrl-C stops it; `farro up --detach` leaves it running.")
                    self._follow(steering)
            except Left:
                pass
            except FarroError as error:
                complain(str(error))
                code = 1
            except KeyboardInterrupt:
                return self._kill(steering)
            try:
                if steering.view() is not None:
                    note("stopping … (again: without waiting)")
                self._tell_down(self.steering().down())
                self._tell_rest(steering.rest())
            except KeyboardInterrupt:
                return self._kill(steering)
        return code

    def _follow(self, steering: Steering) -> None:
        """Tell what changes, until somebody wants it to end."""
        known = {line.name: _said(line) for line in own_swarm.lines(self.place, self.runtime, self.clock)}
        while not self._ending.asked:
            self.clock.sleep(_LOOK_S)
            if steering.view() is None:
                note("the swarm was removed by somebody else")
                return
            steering.ensure()
            now = {line.name: _said(line) for line in own_swarm.lines(self.place, self.runtime, self.clock)}
            for name, words in now.items():
                if known.get(name) != words:
                    say(f"{name} {words}")
            known = now

    def _kill(self, steering: Steering) -> int:
        steering.kill()
        complain("killed what was left; jobs that ran are recovered at the next start")
        return 130

    def _tell(self, done: list[Up]) -> None:
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {one.what}" + ("" if one.pid is None else f" (pid {one.pid})"))
        for one in done:
            if one.what in ("failed", "not ready"):
                shown = os.path.relpath(one.log, self.root)
                complain(f"{one.name} is {one.what}; {shown} ends with:" if one.said else f"{one.name} is {one.what}")
                note("\n".join(f"  {line}" for line in one.said.splitlines()))

    # --- down ---

    def down(self, as_json: bool) -> None:
        old = background.stop(app.runtime(self.root))  # of a farro before 0.9, which had no swarms
        steering = self.steering(quiet=as_json)
        done = [*(Down(name=one.name, what=one.how) for one in old), *steering.down()]
        others = steering.rest()
        if as_json:
            answer({"components": [asdict(one) for one in done], "others": others})
            return
        if not done:
            say("nothing runs in the background here")
        self._tell_down(done)
        self._tell_rest(others)

    def _tell_down(self, done: list[Down]) -> None:
        words = {"was gone": "had ended before", "killed": "did not end in time, and was killed"}
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {words.get(one.what, one.what)}")

    def _tell_rest(self, others: list[str]) -> None:
        if others:
            names = ", ".join(others)
            note(f"left as they are, with their orchestrator: swarm {names} (`farro swarm` stops and removes them)")

    def row(self, line: Line) -> tuple[str, ...]:
        return (
            line.name,
            line.role,
            line.state if line.failure is None else f"{line.state}: {line.failure}",
            "-" if line.pid is None else str(line.pid),
            span(line.uptime_s),
            str(line.restarts),
            os.path.relpath(line.log, self.root),
        )


class _Ending:
    """The first signal asks; the second interrupts whatever waits."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ending:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


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
    return False


def _well(done: list[Up]) -> bool:
    return all(one.what in ("started", "already runs") for one in done)


def _said(line: Line) -> str:
    return (
        line.state.lower() + (f": {line.failure}" if line.failure else "") + (f" (pid {line.pid})" if line.pid else "")
    )
