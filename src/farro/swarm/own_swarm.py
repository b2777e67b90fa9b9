"""The services of a root as the swarm `farro`: its default plan, starting it, stopping it, and which processes run."""

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
from farro.swarm import plan as plans
from farro.swarm import processes, requests, views
from farro.swarm.files import ORCHESTRATOR, controller_instance
from farro.swarm.lifecycle import ComponentState, SwarmState
from farro.swarm.logs import last_lines
from farro.swarm.plan import SwarmPlan
from farro.swarm.requests import CommandRequest
from farro.swarm.views import CommandView, SwarmView
from farro.swarm.wire.names import Signal
from farro.worker.runtime import ProcessView, Runtime

SWARM = "farro"
WORKERS, SLOTS = 2, 2  # per role
STOP_S = 15.0  # a worker gives its steps five seconds, and needs at most ten in all
SILENT_S = 1800.0  # as the watchdog allows an agent: a job's function may block a worker's interpreter
SETTLE_S = 30.0  # after a confirmed start, for every component to report
ORCHESTRATOR_S = 10.0  # for it to end
_LOOK_S, _CARE_S = 0.05, 1.0

_DISABLED = (ComponentState.HEALTHY, ComponentState.STOPPED)  # states of a disabled component that lives

What = Literal["started", "already runs", "disabled", "failed", "not ready"]


def roles(settings: Settings) -> tuple[str, ...]:
    """Return the roles that need workers: Runner always, an agent's role if a provider answers it. The manager works
    its own queue."""
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
    """Build the plan: a manager (routing, stale jobs, schedules), a watchdog, workers of each role, and the web.

    `program` is the command that starts farro here; `store` overrides the one of the config.
    """
    where = ["--root", root, *([] if store is None else ["--store", store])]
    runner_options = [] if runner is None else ["--runner", runner]

    def bee(name: str, *words: str, instances: int = 1) -> dict[str, Any]:
        command = [*program, "member", *words, *where]
        return {"role": name, "command": command, "restart": "always", "instances": instances}

    bees = [bee("manager", "manager"), bee("watchdog", "watchdog")]
    for role in roles:
        name = "worker" if role == RUNNER else f"worker-{role.lower().replace('_', '-')}"
        bees.append(bee(name, "worker", "--role", role, "--slots", str(slots), *runner_options, instances=workers))
    if web:
        bees.append(bee("web", "web"))
    return {"id": SWARM, "bees": bees, "timeouts": {"stop": STOP_S, "silent": SILENT_S}}


# --- which processes run ---


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentProcess:
    """One component of one swarm."""

    name: str
    role: str
    swarm: str
    state: str
    enabled: bool
    pid: int | None  # None if it does not run
    uptime_s: float | None
    restarts: int
    log: str
    failure: str | None = None
    last_end: dict[str, str] | None = None  # at, how, words: of the earlier process, or of a dead one


def component_processes(
    folder: str, runtime: Runtime, clock: Clock, *, swarm: str | None = None
) -> list[ComponentProcess]:
    """List the components of all swarms, or of one, in the order of their plans.

    A dead component is Provisioning if its controller or the orchestrator will restart it; after a kill of everything
    it is Stopped.
    """
    found: list[ComponentProcess] = []
    orchestrated = views.orchestrator_runs(folder)
    for view in views.swarms(folder, clock=clock):
        if swarm not in (None, view.id):
            continue
        dead = ComponentState.PROVISIONING if view.controller["alive"] or orchestrated else ComponentState.STOPPED
        for one in view.components:
            seen = runtime.look(one.instance)
            alive = seen is not None and seen.alive
            known = one.state in (ComponentState.FAILED, ComponentState.STOPPED)
            state = one.state if alive or known else str(dead)
            if seen is not None and alive and 0 < one.starts < seen.launches:  # the status is of the earlier process
                state = str(ComponentState.PROVISIONING)
            found.append(
                ComponentProcess(
                    name=one.instance,
                    role=one.role,
                    swarm=view.id,
                    state=state,
                    enabled=alive and one.enabled,
                    pid=seen.pid if seen is not None and alive else None,
                    uptime_s=_uptime_s(seen, clock) if seen is not None and alive else None,
                    restarts=max(0, one.starts - 1),
                    log=seen.log if seen is not None else f"{folder}/{view.id}/logs/{one.instance}.log",
                    failure=one.failure,
                    last_end=one.last_end,
                )
            )
    return found


def is_up(folder: str, view: SwarmView, found: Sequence[ComponentProcess]) -> bool:
    """Return whether a process of that swarm runs, or one that would start it again."""
    runs = any(process.pid is not None for process in found if process.swarm == view.id)
    return runs or bool(view.controller["alive"]) or views.orchestrator_runs(folder)


def _uptime_s(seen: ProcessView, clock: Clock) -> float:
    return round(max(0.0, (clock.now() - parse_timestamp(seen.launched_at)).total_seconds()), 1)


# --- up and down ---


@dataclass(frozen=True, kw_only=True, slots=True)
class StartResult:
    """The result of `up` for one component."""

    name: str
    what: What
    pid: int | None
    log: str
    said: str = ""  # the last log lines of one with a problem


@dataclass(frozen=True, kw_only=True, slots=True)
class StopResult:
    name: str
    what: Literal["stopped", "killed", "was gone"]


class WaitInterrupted(FarroError):
    """The caller stopped waiting."""


@dataclass(frozen=True, kw_only=True)
class OwnSwarm:
    """Start and stop the swarm of a root. `ensure` starts the orchestrator if none runs; `over` returns whether the
    caller stopped waiting; `tell` prints progress."""

    folder: str
    runtime: Runtime
    clock: Clock
    ensure: Callable[[], None]
    tell: Callable[[str], None]
    over: Callable[[], bool] = lambda: False
    origin: str | None = None
    durable: bool = True
    swarm: str = SWARM

    def up(self, data: Mapping[str, Any]) -> list[StartResult]:
        """Make the swarm run with that plan. Safe to repeat: what already runs as planned is left alone."""
        plan = plans.load(Document(dict(data), "the plan"))
        before = {seen.name: seen.pid for seen in self.runtime.list() if seen.alive}
        self._wait_for_others()
        steps = self._steps(plan)
        for step in steps:
            self._run_command(step, dict(data) if step is Signal.TEMPLATE else None)
        self.ensure()
        return self._results(plan, before, asked=bool(steps))

    def down(self) -> list[StopResult]:
        """Stop and remove the swarm, in order. See `end_orchestrator` for the orchestrator."""
        view = self.view()
        if view is None:
            return []
        ran = {one.instance: self._runs(one.instance) for one in view.components}
        self._wait_for_others(but=(Signal.REMOVE,))
        forced = ""
        view = self.view()
        if view is not None and view.state == SwarmState.RUNNING:
            forced = self._run_command(Signal.STOP, None).notes or ""
        if self.view() is not None:
            forced += self._run_command(Signal.REMOVE, None).notes or ""
        words = forced.replace(",", " ").split()
        return [
            StopResult(name=name, what="was gone" if not runs else "killed" if name in words else "stopped")
            for name, runs in ran.items()
        ]

    def end_orchestrator(self) -> list[str]:
        """End the orchestrator unless other swarms need it, and return those swarms."""
        others = [view.id for view in views.swarms(self.folder, clock=self.clock)]
        if not others and self.runtime.look(ORCHESTRATOR) is not None:
            until_s = self.clock.monotonic_s() + ORCHESTRATOR_S
            while self.runtime.look(controller_instance(self.swarm)) is not None and self.clock.monotonic_s() < until_s:
                if self.over():
                    raise WaitInterrupted("stopped")
                self.clock.sleep(_LOOK_S)  # the orchestrator removes the controller of a removed swarm
            self.runtime.stop([ORCHESTRATOR], ORCHESTRATOR_S)
        return others

    def others(self) -> list[str]:
        """Return the other swarms of this root."""
        return [view.id for view in views.swarms(self.folder, clock=self.clock) if view.id != self.swarm]

    def kill(self) -> list[StopResult]:
        """Kill every process of the swarm, and the orchestrator, which would start them again. The desired state stays.
        Other swarms go on; if there is nothing else, their orchestrator goes on too."""
        view = self.view()
        if view is None and self.others():
            return []
        known = [] if view is None else [one.instance for one in view.components]
        ran = {name: self._runs(name) for name in known}
        own = [one for one in self.runtime.list() if one.log.startswith(f"{self.folder}/{self.swarm}/")]
        above = [ORCHESTRATOR, controller_instance(self.swarm)]
        # End these first, without the runtime: one of them may hold the runtime's lock, and the runtime would also end
        # all that they started.
        for name in above:
            seen = self.runtime.look(name)
            if seen is not None and seen.alive and seen.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seen.pid, signals.KILL)
        until_s = self.clock.monotonic_s() + ORCHESTRATOR_S
        while any(map(self._runs, above)) and self.clock.monotonic_s() < until_s:
            self.clock.sleep(_LOOK_S)
        self.runtime.stop([ORCHESTRATOR, *(one.name for one in own)], 0.0)
        return [StopResult(name=name, what="killed" if runs else "was gone") for name, runs in ran.items()]

    def view(self) -> SwarmView | None:
        """Return the swarm; None if it was never created, or was removed."""
        found = [view for view in views.swarms(self.folder, clock=self.clock) if view.id == self.swarm]
        return found[0] if found else None

    # --- one step ---

    def _steps(self, plan: SwarmPlan) -> list[Signal]:
        steps = list(requests.plan_changes(self.folder, plan).steps)
        view = self.view()
        running = view is not None and view.state == SwarmState.RUNNING
        return steps if Signal.START in steps or (running and not steps) else [*steps, Signal.START]

    def _wait_for_others(self, but: Sequence[Signal] = ()) -> None:
        """Wait for commands that others requested: they may change the swarm."""
        for one in views.commands(self.folder, self.swarm):
            if one.result is None and one.signal not in [str(other) for other in but]:
                self.tell(f"waiting for the end of {one.signal}, which was asked for before")
                self._wait_for(one.correlation_id)

    def _run_command(self, step: Signal, args: Mapping[str, Any] | None) -> CommandView:
        asked = requests.submit(
            self.folder,
            CommandRequest(signal=step, swarm=self.swarm, args=args, origin=self.origin),
            durable=self.durable,
            clock=self.clock,
        )
        end = self._wait_for(asked.correlation_id)
        if end.result != "success":
            raise FarroError(f"{self.swarm}: {step} failed: {end.message or end.code}")
        return end

    def _wait_for(self, correlation_id: str) -> CommandView:
        """Wait for the end of a command, which has its own time limit. After a while print what the orchestrator's
        problem is. [test_a_caller_that_waits_for_an_unreachable_broker_is_told_why]"""
        care_s, tell_s = 0.0, self.clock.monotonic_s() + processes.REPORT_S
        while True:
            if self.clock.monotonic_s() >= tell_s:
                tell_s += 4 * processes.REPORT_S
                problem = processes.orchestrator_problem(self.folder)
                self.tell("still waiting" if problem is None else f"still waiting; the orchestrator says: {problem}")
            if self.clock.monotonic_s() >= care_s:
                self.ensure()
                care_s = self.clock.monotonic_s() + _CARE_S
            end = requests.wait(self.folder, correlation_id, 2 * _LOOK_S, self.clock)
            if end is not None:
                return end
            if self.over():
                raise WaitInterrupted("stopped")

    # --- results ---

    def _results(self, plan: SwarmPlan, before: Mapping[str, int | None], *, asked: bool) -> list[StartResult]:
        """Wait until all components have reported. `asked` says that all were told to work; else a component that was
        disabled alone stays so."""
        members = [member.instance for member in plan.members()]
        off = {} if asked else before
        until_s = self.clock.monotonic_s() + SETTLE_S
        while (
            not (reported := self._all_reported(members, off))
            and self.clock.monotonic_s() < until_s
            and not self.over()
        ):
            self.clock.sleep(_LOOK_S)
        found = {
            process.name: process
            for process in component_processes(self.folder, self.runtime, self.clock, swarm=self.swarm)
        }
        return [self._result(found.get(name), name, before, reported=reported) for name in members]

    def _all_reported(self, members: Sequence[str], off: Mapping[str, int | None]) -> bool:
        """Return whether every component has reported since its launch, and works or failed."""
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

    def _result(
        self, process: ComponentProcess | None, name: str, before: Mapping[str, int | None], *, reported: bool
    ) -> StartResult:
        log = f"{self.folder}/{self.swarm}/logs/{name}.log" if process is None else process.log
        pid = None if process is None else process.pid
        if process is not None and process.state == ComponentState.FAILED:
            return StartResult(
                name=name, what="failed", pid=pid, log=log, said=last_lines(log) or str(process.failure or "")
            )
        if process is None or pid is None or not (reported or process.enabled):
            return StartResult(name=name, what="not ready", pid=pid, log=log, said=last_lines(log))
        if not process.enabled:
            return StartResult(name=name, what="disabled", pid=pid, log=log)
        return StartResult(name=name, what="already runs" if before.get(name) == pid else "started", pid=pid, log=log)

    def _runs(self, name: str) -> bool:
        seen = self.runtime.look(name)
        return seen is not None and seen.alive
