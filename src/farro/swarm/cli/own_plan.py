"""The swarm that `farro up --plan` starts, and what `farro ps` and `farro down` need of swarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.cli.background import program
from farro.cli.terminal import complain, say
from farro.config.settings import Settings
from farro.errors import FarroError
from farro.host.clock import SystemClock
from farro.swarm import processes, requests, service, views
from farro.swarm.cli.inspect import dead_words
from farro.swarm.cli.swarm import CommandSession, read_plan
from farro.swarm.files import ORCHESTRATOR
from farro.swarm.lifecycle import SwarmState
from farro.swarm.views import SwarmView
from farro.swarm.wire.names import Signal
from farro.worker.runtime import ComponentProcess, Stopped

SWARM = "farro"


class OwnPlan:
    def __init__(self, root: str, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._folder = service.folder(root)
        self._runtime = service.runtime(root)
        self._clock = SystemClock()

    def exists(self) -> bool:
        return self._view() is not None

    def start(self, path: str, *, as_json: bool) -> int:
        """Give the swarm the plan in a file, and let it work. Return the exit code."""
        session = CommandSession(self._root, as_json, no_wait=False, timeout_s=None)
        document, plan = read_plan(path, SWARM)
        changes, view = requests.plan_changes(self._folder, plan), self._view()
        steps = list(changes.steps)
        if Signal.START not in steps and (steps or view is None or view.state != SwarmState.RUNNING):
            steps.append(Signal.START)
        asked = [session.ask(step, SWARM, args=document.data if step is Signal.TEMPLATE else None) for step in steps]
        return session.finish(asked, SWARM, changes=changes.lines)

    def stop(self, *, kill: bool) -> list[Stopped]:
        """Stop and remove the swarm, and end an orchestrator that no swarm needs. With `kill` end its processes at
        once, and keep its desired state."""
        view = self._view()
        if kill:
            return [] if view is None and self.others() else processes.kill_swarm(self._folder, self._runtime, SWARM)
        stopped: list[Stopped] = []
        if view is not None:
            ran = {one.instance: processes.is_alive(self._runtime, one.instance) for one in view.components}
            notes = self._run(Signal.STOP) if view.state == SwarmState.RUNNING else ""
            killed = f"{notes} {self._run(Signal.REMOVE)}".replace(",", " ").split()
            stopped = [
                Stopped(name=name, how="was gone" if not runs else "killed" if name in killed else "stopped")
                for name, runs in ran.items()
            ]
        if not views.swarms(self._folder, clock=self._clock):
            processes.end_orchestrator(self._runtime, SWARM, self._clock)
        return stopped

    def _run(self, signal: Signal) -> str:
        """Run a command of the swarm to its end, and return the notes of its confirmation."""
        session = CommandSession(self._root, as_json=True, no_wait=False, timeout_s=None)
        asked = session.ask(signal, SWARM)
        service.ensure_orchestrator(self._root, program())
        end = session.wait(asked)
        if end is None or end.result != "success":
            why = "it has not ended yet" if end is None else end.message or end.code
            raise FarroError(f"{SWARM}: {signal} failed: {why}; `farro down --kill` waits for nothing")
        return end.notes or ""

    def orchestrator_pid(self) -> int | None:
        seen = self._runtime.look(ORCHESTRATOR)
        return seen.pid if seen is not None and seen.alive else None

    def others(self) -> list[str]:
        """Return the other swarms of this root."""
        return [view.id for view in views.swarms(self._folder, clock=self._clock) if view.id != SWARM]

    def processes(self) -> list[ComponentProcess]:
        return processes.component_processes(self._folder, self._runtime, self._clock)

    def states(self, found: Sequence[ComponentProcess]) -> list[dict[str, Any]]:
        return [
            {"id": view.id, "state": view.state, "health": view.health, "reason": view.reason, "stands": up}
            for view, up in self._up(found)
        ]

    def print_states(self, found: Sequence[ComponentProcess]) -> None:
        """Print a line for each swarm, and what is wrong with their orchestrator."""
        swarms = self._up(found)
        for view, up in swarms:
            say(f"swarm {view.id}: " + (_swarm_words(view, found) if up else _dead_words(view)))
            if (letters := dead_words(view)) is not None:
                say(f"swarm {view.id}: {letters}")
        problem = processes.orchestrator_problem(self._folder)
        pid, runs = self.orchestrator_pid(), views.orchestrator_runs(self._folder)
        if runs and problem is not None and any(view.health == "Unknown" for view, _ in swarms):
            complain(f"the orchestrator says: {problem}")
        if pid is not None:
            say(f"orchestrator: pid {pid}")
        elif runs:
            say("orchestrator: runs, started by another program")
        elif any(up for _, up in swarms):
            died = self._runtime.look(ORCHESTRATOR) is not None and any(view.controller["alive"] for view, _ in swarms)
            again = "a controller starts another within some ten seconds"
            again = again if died else "the next command of `farro swarm` starts one"
            complain(f"no orchestrator runs here, so commands of swarms are not carried out; {again}")

    def _up(self, found: Sequence[ComponentProcess]) -> list[tuple[SwarmView, bool]]:
        """Return each swarm, and whether a process of it runs, or one that would start it again."""
        orchestrated = views.orchestrator_runs(self._folder)
        running = {process.swarm for process in found if process.pid is not None}
        return [
            (view, orchestrated or bool(view.controller["alive"]) or view.id in running)
            for view in views.swarms(self._folder, clock=self._clock)
        ]

    def _view(self) -> SwarmView | None:
        found = [view for view in views.swarms(self._folder, clock=self._clock) if view.id == SWARM]
        return found[0] if found else None


def _swarm_words(view: SwarmView, found: Sequence[ComponentProcess]) -> str:
    """Describe a swarm. Its reason is left out if it is that of a component, which is shown above."""
    known = any(
        process.failure in (view.reason or "") for process in found if process.failure and process.swarm == view.id
    )
    return f"{view.state}, {view.health}" + (f" ({view.reason})" if view.reason and not known else "")


def _dead_words(view: SwarmView) -> str:
    """Describe a swarm whose processes are all dead: its last state is not its state any more."""
    return (
        f"not running (it was {view.state} when it was killed, or its machine ended); `farro swarm start {view.id}` "
        "starts it again"
    )
