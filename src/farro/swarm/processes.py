"""The orchestrator and the controllers as processes: one of each at a time, started, watched and ended.

The kernel keeps the lease of each (flock), so a dead process never holds one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping, Sequence

from farro.errors import AlreadyRunning, FarroError
from farro.host import fs, leases, process_identity
from farro.host.clock import Clock
from farro.log.structured import Log
from farro.swarm import views
from farro.swarm.files import FOLDER, ORCHESTRATOR, SwarmFiles, controller_instance, read_json
from farro.swarm.lifecycle import ComponentState
from farro.swarm.views import orchestrator_runs
from farro.worker.process_runtime import last_line, last_lines
from farro.worker.runtime import ComponentProcess, ProcessSpec, ProcessView, Runtime, uptime_s

PATIENCE_S = 20.0  # for the orchestrator to come up
END_S = 10.0  # for it to end
REPORT_S = 5.0  # a caller that waits longer gets the reason for the delay
_POLL_S = 0.02
_TRIES, _PAUSE_S = 40, 0.05  # a process that only tests a lease holds it for a moment


# --- one process at a time ---


def hold_lease(folder: str, what: str, clock: Clock) -> leases.Lease:
    """Take the lease of a folder for the life of this process. Raises AlreadyRunning if another process holds it."""
    path = f"{folder}/.lease"
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            fs.create(path, b"")
        lease = leases.take(path)
        if lease is not None:
            identity = json.dumps(process_identity.identity()).encode()
            fs.write_atomic(f"{folder}/.process.json", identity + b"\n", sync=False)
            return lease
        clock.sleep(_PAUSE_S)
    raise AlreadyRunning(f"{what} is already running; only one may run")


def kill_holder(folder: str, clock: Clock) -> bool:
    """Kill the process that holds the lease, but none that it started. Return whether it is gone."""
    claimed = read_json(f"{folder}/.process.json")
    if isinstance(claimed, dict) and leases.is_held(f"{folder}/.lease"):
        process_identity.kill_identified(claimed)
    for _ in range(_TRIES):
        if not leases.is_held(f"{folder}/.lease"):
            return True
        clock.sleep(_PAUSE_S)
    return False


def environment(keep: Collection[str] = ()) -> dict[str, str]:
    """Return the environment that components inherit: without FARRO_ variables, except the names in `keep`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FARRO_") or name in keep}


# --- the orchestrator ---


def orchestrator_spec(root: str, program: Sequence[str], env: Mapping[str, str]) -> ProcessSpec:
    """Describe the orchestrator's process. `program` is the command that starts farro here."""
    return ProcessSpec(
        name=ORCHESTRATOR,
        argv=(*program, "orchestrator", "--root", root),
        env=env,
        cwd=root,
        log=f"{root}/{FOLDER}/{ORCHESTRATOR}/orchestrator.log",
    )


def ensure_orchestrator(runtime: Runtime, spec: ProcessSpec, clock: Clock) -> ProcessView | None:
    """Start the orchestrator and wait until it is up; None if one already runs. Raises FarroError if it ended."""
    files = SwarmFiles(f"{spec.cwd}/{FOLDER}")
    if orchestrator_runs(files.folder):
        return None
    files.make()
    started = None
    with contextlib.suppress(AlreadyRunning):
        started = runtime.launch(spec)
    until_s = clock.monotonic_s() + PATIENCE_S
    while not orchestrator_runs(files.folder):
        seen = runtime.look(spec.name)
        if seen is None or not seen.alive:
            raise FarroError(f"the orchestrator ended at once; {spec.log} ends with:\n{last_lines(spec.log)}")
        if clock.monotonic_s() >= until_s:
            raise FarroError(f"the orchestrator (pid {seen.pid}) is not up after {PATIENCE_S:g} s; see {spec.log}")
        clock.sleep(_POLL_S)
    return started


def orchestrator_problem(folder: str) -> str | None:
    """Return the last logged problem of the orchestrator, or None."""
    message, level = last_line(f"{folder}/{ORCHESTRATOR}/orchestrator.log")
    return message or None if level in (None, "error") else None


def end_idle_orchestrator(folder: str, runtime: Runtime, clock: Clock) -> tuple[list[str], int | None]:
    """End the orchestrator unless a swarm needs it. Return the swarms, and the PID of an orchestrator that ended."""
    needed_by, seen = [view.id for view in views.swarms(folder, clock=clock)], runtime.look(ORCHESTRATOR)
    if needed_by or seen is None:
        return needed_by, None
    removed = [controller_instance(view.id) for view in views.swarms(folder, removed=True, clock=clock)]
    until_s = clock.monotonic_s() + END_S
    while any(runtime.look(name) is not None for name in removed) and clock.monotonic_s() < until_s:
        clock.sleep(_POLL_S)  # the orchestrator ends the controllers of removed swarms
    runtime.stop([ORCHESTRATOR], END_S)
    return [], seen.pid if seen.alive else None


# --- the components ---


def component_processes(folder: str, runtime: Runtime, clock: Clock) -> list[ComponentProcess]:
    """List the components of all swarms, in the order of their plans.

    A dead component is Provisioning if its controller or the orchestrator will restart it; after a kill of everything
    it is Stopped.
    """
    found: list[ComponentProcess] = []
    orchestrated = orchestrator_runs(folder)
    for view in views.swarms(folder, clock=clock):
        dead = ComponentState.PROVISIONING if view.controller["alive"] or orchestrated else ComponentState.STOPPED
        for one in view.components:
            seen = runtime.look(one.instance)
            alive = seen if seen is not None and seen.alive else None
            known = one.state in (ComponentState.FAILED, ComponentState.STOPPED)
            state = one.state if alive is not None or known else str(dead)
            if alive is not None and 0 < one.starts < alive.launches:  # the status is of the earlier process
                state = str(ComponentState.PROVISIONING)
            found.append(
                ComponentProcess(
                    name=one.instance,
                    role=one.role,
                    swarm=view.id,
                    state=state,
                    enabled=alive is not None and one.enabled,
                    pid=None if alive is None else alive.pid,
                    uptime_s=None if alive is None else uptime_s(alive, clock),
                    restarts=max(0, one.starts - 1),
                    log=seen.log if seen is not None else f"{folder}/{view.id}/logs/{one.instance}.log",
                    failure=one.failure,
                    last_end=one.last_end,
                )
            )
    return found


# --- the guard of the orchestrator ---


GUARD_S = 5.0  # between two checks of the orchestrator by a controller
LONGEST_PAUSE_S = 300.0  # between two launches of an orchestrator that keeps dying
STEADY_S = 600.0  # an orchestrator that lived this long does not keep dying


class OrchestratorGuard:
    """Restart an orchestrator that died. Each controller runs one; the orchestrator restarts controllers in turn.

    An orchestrator that was stopped on purpose has no record in the runtime any more, and is left alone; one that died
    left its record. It must be dead at two checks in a row, since a command may be stopping it just now.
    [test_an_orchestrator_that_died_is_launched_again]
    """

    def __init__(self, runtime: Runtime, spec: ProcessSpec, folder: str, clock: Clock, log: Log) -> None:
        self._runtime = runtime
        self._spec = spec
        self._folder = folder
        self._clock = clock
        self._log = log
        self._was_dead = False  # at the last check
        self._launched_s: float | None = None
        self._pause_s = 0.0

    async def run(self) -> None:
        import asyncio  # here: most commands that import this module do not need it

        while True:
            await asyncio.sleep(GUARD_S)
            await asyncio.to_thread(self.run_once)

    def run_once(self) -> None:
        was_dead, self._was_dead = self._was_dead, self._is_dead()
        now_s = self._clock.monotonic_s()
        since_s = None if self._launched_s is None else now_s - self._launched_s
        if not (was_dead and self._was_dead) or (since_s is not None and since_s < self._pause_s):
            return
        again = since_s is not None and since_s < STEADY_S
        self._launched_s = now_s
        self._pause_s = min(LONGEST_PAUSE_S, max(GUARD_S, 2 * self._pause_s)) if again else GUARD_S
        try:
            started = ensure_orchestrator(self._runtime, self._spec, self._clock)
        except (FarroError, OSError) as error:
            self._log("error", f"the orchestrator died and cannot be started again: {error}", {})
        else:
            if started is not None:
                self._log("warning", "the orchestrator died and was started again", {"pid": started.pid})

    def _is_dead(self) -> bool:
        seen = self._runtime.look(self._spec.name)
        return seen is not None and not seen.alive and not orchestrator_runs(self._folder)
