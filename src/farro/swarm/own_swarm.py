"""The services of a root as a swarm of its own, called farro: its plan, bringing it up, taking it down, who runs.

What swarms are lives in swarm and services; asking for commands, in operations.swarms; printing, in cli.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from farro.config.settings import Settings
from farro.documents import Document
from farro.errors import FarroError
from farro.host import signals
from farro.host.clock import Clock
from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass
from farro.roles.names import RUNNER
from farro.roles.workflow import MANAGER
from farro.swarm import orchestrator_process, plan_changes, requests
from farro.swarm import plan as plans
from farro.swarm.files import FOLDER, ORCHESTRATOR, controller
from farro.swarm.lifecycle import ComponentState, SwarmState
from farro.swarm.logs import last_words
from farro.swarm.plan import SwarmPlan
from farro.swarm.requests import CommandView, SwarmView
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Runtime, Seen

SWARM = "farro"
WORKERS, SLOTS = 2, 2  # of each role
STOP_S = 15.0  # a worker gives its steps five seconds, and needs at most ten in all
SILENT_S = 1800.0  # as the watchdog allows an agent: a function of a job may keep a worker's interpreter for itself
SETTLE_S = 30.0  # after a start was confirmed: for every component to have said how it is
ORCHESTRATOR_S = 10.0  # for it to end
_LOOK_S, _CARE_S = 0.05, 1.0

_DISABLED = (ComponentState.HEALTHY, ComponentState.STOPPED)  # of one that lives

What = Literal["started", "already runs", "disabled", "failed", "not ready"]


def roles(settings: Settings) -> tuple[str, ...]:
    """Whose queues somebody shall work: command plans always, an agent's role where a provider answers it. The
    manager's own queue is the manager's."""
    agents = (role for role in settings.all_roles() if role not in (RUNNER, MANAGER))
    return (RUNNER, *(role for role in agents if settings.provider_of(role) is not None))


def default_plan(
    root: str,
    *,
    program: Sequence[str],
    roles: Sequence[str],
    workers: int = WORKERS,
    slots: int = SLOTS,
    runner: str | None = None,
    store: str | None = None,
    web: bool = False,
) -> dict[str, Any]:
    """A manager (routing, stale jobs, schedules), a watchdog, workers of each role, and the web. `program` is how farro
    is started here; `store`: another than the config's."""
    where = ["--root", root, *([] if store is None else ["--store", store])]
    rest = [] if runner is None else ["--runner", runner]

    def bee(name: str, *words: str, instances: int = 1) -> dict[str, Any]:
        command = [*program, "member", *words, *where]
        return {"role": name, "command": command, "restart": "always", "instances": instances}

    bees = [bee("manager", "manager"), bee("watchdog", "watchdog")]
    for role in roles:
        name = "worker" if role == RUNNER else f"worker-{role.lower().replace('_', '-')}"
        bees.append(bee(name, "worker", "--role", role, "--slots", str(slots), *rest, instances=workers))
    if web:
        bees.append(bee("web", "web"))
    return {"id": SWARM, "bees": bees, "timeouts": {"stop": STOP_S, "silent": SILENT_S}}


# --- who runs ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One component of one swarm."""

    name: str
    role: str
    swarm: str
    state: str
    enabled: bool
    pid: int | None  # None: it does not live
    uptime_s: float | None
    restarts: int
    log: str
    failure: str | None = None
    last_end: dict[str, str] | None = None  # at, how, words: of the process before this one, or of one that is dead


def lines(place: str, runtime: Runtime, clock: Clock, *, swarm: str | None = None) -> list[Line]:
    """The components of every swarm, or of one, in the order of their plans. One that is dead is about to be started
    again (Provisioning) only where somebody is there to do so; after a kill of everything it is Stopped."""
    found: list[Line] = []
    orchestrated = requests.running(place)
    for view in requests.list_(place, clock=clock):
        if swarm not in (None, view.id):
            continue
        dead = ComponentState.PROVISIONING if view.controller["alive"] or orchestrated else ComponentState.STOPPED
        for one in view.components:
            seen = runtime.look(one.instance)
            alive = seen is not None and seen.alive
            known = one.state in (ComponentState.FAILED, ComponentState.STOPPED)
            state = one.state if alive or known else str(dead)
            if seen is not None and alive and 0 < one.starts < seen.launches:  # that was the process before it
                state = str(ComponentState.PROVISIONING)
            found.append(
                Line(
                    name=one.instance,
                    role=one.role,
                    swarm=view.id,
                    state=state,
                    enabled=alive and one.enabled,
                    pid=seen.pid if seen is not None and alive else None,
                    uptime_s=_uptime_s(seen, clock) if seen is not None and alive else None,
                    restarts=max(0, one.starts - 1),
                    log=seen.log if seen is not None else f"{place}/{view.id}/logs/{one.instance}.log",
                    failure=one.failure,
                    last_end=one.last_end,
                )
            )
    return found


def stands(place: str, view: SwarmView, found: Sequence[Line]) -> bool:
    """Whether anything of that swarm lives, or anybody who would start it again; `found`: its lines, or more."""
    lives = any(line.pid is not None for line in found if line.swarm == view.id)
    return lives or bool(view.controller["alive"]) or requests.running(place)


def _uptime_s(seen: Seen, clock: Clock) -> float:
    return round(max(0.0, (clock.now() - parse_timestamp(seen.launched_at)).total_seconds()), 1)


# --- up and down ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Up:
    """What became of one component."""

    name: str
    what: What
    pid: int | None
    log: str
    said: str = ""  # the last lines of one that is not well


@dataclass(frozen=True, kw_only=True, slots=True)
class Down:
    name: str
    what: Literal["stopped", "killed", "was gone"]


class Left(FarroError):
    """Whoever waited does not wait any more."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """How the swarm of a root is steered. `ensure` sees that an orchestrator runs; `over` says that nobody waits any
    longer; `tell` is told what goes on, in words."""

    place: str
    runtime: Runtime
    clock: Clock
    ensure: Callable[[], None]
    tell: Callable[[str], None]
    over: Callable[[], bool] = lambda: False
    origin: str | None = None
    durable: bool = True
    swarm: str = SWARM

    def up(self, data: Mapping[str, Any]) -> list[Up]:
        """Have the swarm run with that plan. Safe to repeat: what runs as the plan says is left alone."""
        wanted = plans.load(Document(dict(data), "the plan"))
        before = {seen.name: seen.pid for seen in self.runtime.list() if seen.alive}
        self._calm()
        steps = self._steps(wanted)
        for step in steps:
            self._carry_out(step, dict(data) if step is Signal.TEMPLATE else None)
        self.ensure()
        return self._settled(wanted, before, asked=bool(steps))

    def down(self) -> list[Down]:
        """Stop and remove it, in order. The orchestrator goes too, unless other swarms need it: see `rest`."""
        view = self.view()
        if view is None:
            return []
        lived = {one.instance: self._lives(one.instance) for one in view.components}
        self._calm(but=(Signal.REMOVE,))
        forced = ""
        view = self.view()
        if view is not None and view.state == SwarmState.RUNNING:
            forced = self._carry_out(Signal.STOP, None).notes or ""
        if self.view() is not None:
            forced += self._carry_out(Signal.REMOVE, None).notes or ""
        words = forced.replace(",", " ").split()
        return [
            Down(name=name, what="was gone" if not lives else "killed" if name in words else "stopped")
            for name, lives in lived.items()
        ]

    def rest(self) -> list[str]:
        """End the orchestrator when it has nothing left to do; the swarms that it still has otherwise."""
        others = [view.id for view in requests.list_(self.place, clock=self.clock)]
        if not others and self.runtime.look(ORCHESTRATOR) is not None:
            until_s = self.clock.monotonic_s() + ORCHESTRATOR_S
            while self.runtime.look(controller(self.swarm)) is not None and self.clock.monotonic_s() < until_s:
                if self.over():
                    raise Left("stopped")
                self.clock.sleep(_LOOK_S)  # a removed swarm's controller is the orchestrator's to take away
            self.runtime.stop([ORCHESTRATOR], ORCHESTRATOR_S)
        return others

    def others(self) -> list[str]:
        """The swarms of this root beside its own."""
        return [view.id for view in requests.list_(self.place, clock=self.clock) if view.id != self.swarm]

    def kill(self) -> list[Down]:
        """End every process of the swarm at once, and the orchestrator, which would start them again. What is wanted of
        the swarm stays as it is; others go on, and where there is nothing but these, so does their orchestrator."""
        view = self.view()
        if view is None and self.others():
            return []
        known = [] if view is None else [one.instance for one in view.components]
        lived = {name: self._lives(name) for name in known}
        own = [one for one in self.runtime.list() if one.log.startswith(f"{self.place}/{self.swarm}/")]
        above = [ORCHESTRATOR, controller(self.swarm)]
        # Those first, and not by the runtime: one of them may hold its lock, and it would end all that they started.
        for name in above:
            seen = self.runtime.look(name)
            if seen is not None and seen.alive and seen.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seen.pid, signals.KILL)
        until_s = self.clock.monotonic_s() + ORCHESTRATOR_S
        while any(map(self._lives, above)) and self.clock.monotonic_s() < until_s:
            self.clock.sleep(_LOOK_S)
        self.runtime.stop([ORCHESTRATOR, *(one.name for one in own)], 0.0)
        return [Down(name=name, what="killed" if lives else "was gone") for name, lives in lived.items()]

    def view(self) -> SwarmView | None:
        """None: it was never made, or was removed."""
        found = [view for view in requests.list_(self.place, clock=self.clock) if view.id == self.swarm]
        return found[0] if found else None

    # --- one step ---

    def _steps(self, wanted: SwarmPlan) -> list[Signal]:
        steps = list(plan_changes.between(self.place, wanted).steps)
        view = self.view()
        running = view is not None and view.state == SwarmState.RUNNING
        return steps if Signal.START in steps or (running and not steps) else [*steps, Signal.START]

    def _calm(self, but: Sequence[Signal] = ()) -> None:
        """Wait for what somebody else has asked for: after it this is another swarm."""
        for one in requests.commands(self.place, self.swarm):
            if one.result is None and one.signal not in [str(other) for other in but]:
                self.tell(f"waiting for the end of {one.signal}, which was asked for before")
                self._end_of(one.correlation_id)

    def _carry_out(self, step: Signal, args: Mapping[str, Any] | None) -> CommandView:
        asked = requests.ask(
            self.place, step, self.swarm, args=args, origin=self.origin, durable=self.durable, clock=self.clock
        )
        end = self._end_of(asked.correlation_id)
        if end.result != "success":
            raise FarroError(f"{self.swarm}: {step} failed: {end.message or end.code}")
        return end

    def _end_of(self, correlation_id: str) -> CommandView:
        """A command ends by itself when its own time is over: no limit here. Whoever waits for long is told why:
        the bus may be away. [test_who_waits_for_a_broker_that_is_away_is_told_so]"""
        care_s, tell_s = 0.0, self.clock.monotonic_s() + orchestrator_process.TELL_S
        while True:
            if self.clock.monotonic_s() >= tell_s:
                tell_s += 4 * orchestrator_process.TELL_S
                trouble = orchestrator_process.trouble(self.place)
                self.tell("still waiting" if trouble is None else f"still waiting; the orchestrator says: {trouble}")
            if self.clock.monotonic_s() >= care_s:
                self.ensure()
                care_s = self.clock.monotonic_s() + _CARE_S
            end = requests.wait(self.place, correlation_id, 2 * _LOOK_S, self.clock)
            if end is not None:
                return end
            if self.over():
                raise Left("stopped")

    # --- how everybody is ---

    def _settled(self, wanted: SwarmPlan, before: Mapping[str, int | None], *, asked: bool) -> list[Up]:
        """`asked`: everybody was told to work. Else somebody may have told one alone not to, and that holds."""
        members = [member.instance for member in wanted.members()]
        off = {} if asked else before
        until_s = self.clock.monotonic_s() + SETTLE_S
        while not (heard := self._heard(members, off)) and self.clock.monotonic_s() < until_s and not self.over():
            self.clock.sleep(_LOOK_S)
        found = {line.name: line for line in lines(self.place, self.runtime, self.clock, swarm=self.swarm)}
        return [self._told(found.get(name), name, before, heard=heard) for name in members]

    def _heard(self, members: Sequence[str], off: Mapping[str, int | None]) -> bool:
        """Whether everybody has said, since it was launched, how it is; and works, or failed."""
        view = self.view()
        if view is None or view.state != SwarmState.RUNNING:
            return False
        states = {one.instance: one for one in view.components}
        born = []
        for name in members:
            one, seen = states.get(name), self.runtime.look(name)
            if one is None:
                return False
            if one.state == ComponentState.FAILED:
                continue
            if seen is None or not seen.alive:
                return False
            if not one.enabled and (one.state not in _DISABLED or off.get(name) != seen.pid):
                return False
            born.append(parse_timestamp(seen.launched_at))
        if len(born) < len(members):
            return True
        return view.watermark is not None and parse_timestamp(view.watermark) >= max(born)

    def _told(self, line: Line | None, name: str, before: Mapping[str, int | None], *, heard: bool) -> Up:
        log = f"{self.place}/{self.swarm}/logs/{name}.log" if line is None else line.log
        pid = None if line is None else line.pid
        if line is not None and line.state == ComponentState.FAILED:
            return Up(name=name, what="failed", pid=pid, log=log, said=last_words(log) or str(line.failure or ""))
        if line is None or pid is None or not (heard or line.enabled):
            return Up(name=name, what="not ready", pid=pid, log=log, said=last_words(log))
        if not line.enabled:
            return Up(name=name, what="disabled", pid=pid, log=log)
        return Up(name=name, what="already runs" if before.get(name) == pid else "started", pid=pid, log=log)

    def _lives(self, name: str) -> bool:
        seen = self.runtime.look(name)
        return seen is not None and seen.alive


def place_of(root: str) -> str:
    return f"{root}/{FOLDER}"
