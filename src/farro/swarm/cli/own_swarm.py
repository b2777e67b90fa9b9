"""A root's own swarm as a command steers it: bringing it up in front or behind, taking it down, telling of both.

The commands live in up; what is done lives in operations.own_swarm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from types import FrameType
from typing import Any

import click

from farro.cli.background import program
from farro.cli.options import application, asked_store, operator_name, read_root
from farro.cli.tables import span
from farro.cli.terminal import answer, complain, note, say
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.errors import FarroError
from farro.host import signals
from farro.host.clock import SystemClock
from farro.jobs.times import parse_timestamp, timestamp
from farro.roles.workflow import MANAGER
from farro.swarm import orchestrator_process, own_swarm, service
from farro.swarm.files import ORCHESTRATOR
from farro.swarm.lifecycle import ComponentState
from farro.swarm.own_swarm import Down, Left, Line, Steering, Up
from farro.worker import background

_LOOK_S = 0.5


class Here:
    """A root, and how its swarm is steered from this command."""

    def __init__(self, root: str | None) -> None:
        self.root, self.settings = read_root(root)
        self.place = service.place(self.root, self.settings).folder
        self.runtime = service.runtime(self.root)
        self.clock = SystemClock()
        self._ending = _Ending()

    def steering(self, *, over: Callable[[], bool] = lambda: False, quiet: bool = False) -> Steering:
        wanted = orchestrator_process.component(self.root, program(), dict(os.environ))
        return Steering(
            place=self.place,
            runtime=self.runtime,
            clock=self.clock,
            ensure=lambda: (orchestrator_process.ensure(self.runtime, wanted, self.clock), None)[1],
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
            done = self.steering(quiet=as_json).up(plan)
        except KeyboardInterrupt:
            note("what was begun goes on in the background; `farro down` ends it")
            raise
        if as_json:
            answer({"components": [asdict(one) for one in done], "old_config": self._with_old_config(done)})
        else:
            self._tell(done)
            self._tell_web(done)
            say("Look: farro ps, farro status, farro logs JOB. End: farro down.")
        return 0 if _well(done) else 1

    def up_in_front(self, plan: dict[str, Any]) -> int:
        code = 0
        self._prepare()
        with self._ending:
            steering = self.steering(over=lambda: self._ending.asked)
            try:
                done = steering.up(plan)
                self._tell(done)
                code = 0 if _well(done) else 1
                if not self._ending.asked:
                    self._tell_web(done)
                    say("Running. Ctrl-C stops it; `farro up --detach` leaves it running.")
                    self._follow(steering)
            except Left:
                pass
            except FarroError as error:
                complain(str(error))
                code = 1
            except KeyboardInterrupt:
                return self._kill(steering)
            impatient = self.steering(over=lambda: self._ending.again)
            try:
                if impatient.view() is not None:
                    note("stopping … (again: without waiting)")
                self._tell_down(impatient.down())
                self._tell_rest(impatient.rest())
            except (Left, KeyboardInterrupt):
                return self._kill(impatient)
        return code

    def _prepare(self) -> None:
        service.check_bus(self.root, self.settings)
        if roots.renew_ignored(self.root):
            note("/bus/ and /swarms/ are in .gitignore now: what swarms keep is no part of the repository")

    def _follow(self, steering: Steering) -> None:
        """Tell what changes, until somebody wants it to end."""
        known = {line.name: line for line in own_swarm.lines(self.place, self.runtime, self.clock)}
        while not self._ending.asked:
            self.clock.sleep(_LOOK_S)
            if steering.view() is None:
                note("the swarm was removed by somebody else")
                return
            steering.ensure()
            now = {line.name: line for line in own_swarm.lines(self.place, self.runtime, self.clock)}
            for name, line in now.items():
                self._tell_news(line, known.get(name))
            known = now

    def _tell_news(self, line: Line, before: Line | None) -> None:
        """An end with its time and its reason, and where to read more; then how the component is."""
        at = timestamp(self.clock.now())
        end = line.last_end
        if end is not None and (before is None or end != before.last_end):
            log = os.path.relpath(line.log, self.root)
            words = f" ends with: {end['words']}" if end.get("words") else ""
            say(f"{end.get('at', at)[11:19]} UTC  {line.name} ended {end.get('how', '')}; its log: {log}{words}")
        if before is None or _said(line) != _said(before):
            say(f"{at[11:19]} UTC  {line.name} {_said(line)}")

    def _kill(self, steering: Steering) -> int:
        steering.kill()
        complain("killed what was left; jobs that ran are recovered at the next start")
        return 130

    def _tell(self, done: list[Up]) -> None:
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {one.what}" + ("" if one.pid is None else f" (pid {one.pid})"))
        if any(one.what == "disabled" for one in done):
            note("disabled by somebody: `farro swarm config ROLE NAME --enable` lets it work again")
        self._tell_old_config(done)
        for one in done:
            if one.what in ("failed", "not ready"):
                shown = os.path.relpath(one.log, self.root)
                complain(f"{one.name} is {one.what}; {shown} ends with:" if one.said else f"{one.name} is {one.what}")
                note("\n".join(f"  {line}" for line in one.said.splitlines()))

    def _with_old_config(self, done: list[Up]) -> list[str]:
        """Those that were started before the config was last written, and read it then."""
        changed = reader.changed_at(self.root)
        found = []
        for one in done if changed is not None else ():
            seen = self.runtime.look(one.name) if one.what in ("already runs", "disabled") else None
            if changed is not None and seen is not None and parse_timestamp(seen.launched_at) < changed[1]:
                found.append(one.name)
        return found

    def _tell_old_config(self, done: list[Up]) -> None:
        old, changed = self._with_old_config(done), reader.changed_at(self.root)
        if old and changed is not None:
            note(
                f"{changed[0]} was changed at {timestamp(changed[1])[11:19]} UTC, after these were started, and they "
                f"go on as it said then: {', '.join(old)}. `farro down` and `farro up` start them anew"
            )

    def _tell_web(self, done: list[Up]) -> None:
        """A link for the person who sits here; in no file."""
        if any(one.name == f"{own_swarm.SWARM}-web" and one.what in ("started", "already runs") for one in done):
            from farro.web.cli import sign_in_link

            link = sign_in_link(self.root)
            if link is not None:
                say(f"Dashboard, open this once: {link}")

    # --- down ---

    def down(self, as_json: bool, *, kill: bool = False) -> None:
        old = background.stop(
            application().runtime(self.root)
        )  # what a demo that was killed left, or a farro without swarms
        steering = self.steering(quiet=as_json)
        there = self._orchestrator()
        ended = steering.kill() if kill else steering.down()
        done = [*(Down(name=one.name, what=one.how) for one in old), *ended]
        others = steering.others() if kill else steering.rest()
        queen = there is not None and self._orchestrator() is None
        if as_json:
            told = {"components": [asdict(one) for one in done], "others": others}
            answer({**told, "orchestrator": ("killed" if kill else "stopped") if queen else None})
            return
        if not done and not others:
            alone = f"only an orchestrator ran here (pid {there}), which had no swarm; it was stopped"
            say(alone if queen else "nothing runs in the background here")
        self._tell_down(done, killed="killed" if kill else None)
        self._tell_rest(others, alone=queen)
        if kill and done:
            note("the swarm itself is kept: `farro up` starts it again, `farro down` removes it")

    def _orchestrator(self) -> int | None:
        seen = self.runtime.look(ORCHESTRATOR)
        return seen.pid if seen is not None and seen.alive else None

    def _tell_down(self, done: list[Down], killed: str | None = None) -> None:
        words = {"was gone": "had ended before", "killed": killed or "did not end in time, and was killed"}
        width = max([10, *(len(one.name) for one in done)])
        for one in done:
            say(f"{one.name:<{width}} {words.get(one.what, one.what)}")

    def _tell_rest(self, others: list[str], *, alone: bool = False) -> None:
        """`alone`: their orchestrator was killed."""
        if others:
            whose = "without an orchestrator until the next command" if alone else "with their orchestrator"
            note(f"left as they are, {whose}: swarm {', '.join(others)} (`farro swarm` stops and removes them)")

    def row(self, line: Line) -> tuple[str, ...]:
        return (
            line.name,
            line.role,
            line.state,
            "-" if line.pid is None else str(line.pid),
            span(line.uptime_s),
            str(line.restarts),
            os.path.relpath(line.log, self.root),
        )


class _Ending:
    """The first signal asks, the second does not want to wait: both are seen by whoever waits. A third interrupts
    whatever does not look."""

    def __init__(self) -> None:
        self.asked = False
        self.again = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ending:
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
            raise click.BadParameter(f"{role} is not a role here; there is {known}", param_hint="--role")


def _has_web() -> bool:
    """Looked up, not imported: that would cost more than the rest of this command."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "sse_starlette"))


def _well(done: list[Up]) -> bool:
    return all(one.what in ("started", "already runs", "disabled") for one in done)


def _said(line: Line) -> str:
    state = line.state.lower()
    if line.state == ComponentState.PROVISIONING:
        state = "is to be started again" if line.pid is None else "was started"
    return state + (f": {line.failure}" if line.failure else "") + (f" (pid {line.pid})" if line.pid else "")
