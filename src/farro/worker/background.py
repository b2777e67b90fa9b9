"""Start and stop the services of a root in the background."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from farro.errors import AlreadyRunning
from farro.host import fs
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass
from farro.roles.names import RUNNER
from farro.worker.runtime import STOP_S, ProcessSpec, ProcessView, Runtime, Stopped

FOLDER = "jobs/.components"
SETTLED_S = 3.0  # one that has lived so long, without a word in its log, has started
_READY = b" started"  # what each of them logs when it is ready, unless the config wants no such lines
_LAST = 4096
_LINES = 8
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedService:
    """The result of starting one service."""

    name: str
    what: Literal["started", "already runs", "runs otherwise", "died"]
    pid: int | None
    log: str
    said: str = ""  # the last lines of one that died


def components(
    root: str,
    *,
    program: Sequence[str],
    env: Mapping[str, str],
    workers: int,
    slots: int,
    runner: str | None,
    roles: Sequence[str] = (RUNNER,),
    store: str | None = None,
) -> list[ProcessSpec]:
    """Return the services that a root needs: a manager (routing, stale jobs, schedules), a watchdog, and workers of
    each role.

    `program`: how farro is started here. `store`: another than the config's.
    """
    where = ["--root", root, *([] if store is None else ["--store", store])]
    rest = [] if runner is None else ["--runner", runner]
    commands = {"manager": ["manager"], "watchdog": ["watchdog"]}
    for role in roles:
        name = "worker" if role == RUNNER else f"worker-{role.lower()}"
        work = ["worker", "--role", role, "--workers", str(slots), *rest]
        commands |= {f"{name}-{number}": work for number in range(1, workers + 1)}
    return [
        ProcessSpec(
            name=name,
            argv=(*program, *command, *where),
            env=env,
            cwd=root,
            log=f"{root}/logs/{name}.log",
        )
        for name, command in commands.items()
    ]


def start(runtime: Runtime, wanted: Sequence[ProcessSpec], clock: Clock) -> list[StartedService]:
    """Launch what is not running yet, and wait until each is ready or has ended."""
    if wanted:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(os.path.dirname(wanted[0].log))
    begun: dict[str, tuple[StartedService, int]] = {}
    for component in wanted:
        said_before = _size(component.log)
        try:
            seen = runtime.launch(component)
            begun[component.name] = _told(seen, "started"), said_before if said_before <= _size(component.log) else 0
        except AlreadyRunning:
            found = runtime.look(component.name)
            if found is not None:
                same = found.argv == component.argv
                begun[component.name] = _told(found, "already runs" if same else "runs otherwise"), 0
    until_s = clock.monotonic_s() + SETTLED_S
    return [_settled(runtime, told, offset, until_s, clock) for told, offset in begun.values()]


def stop(runtime: Runtime, grace_s: float = STOP_S) -> Sequence[Stopped]:
    """End everything that was started in the background; empty if nothing was."""
    names = [seen.name for seen in runtime.list()]
    return runtime.stop(names, grace_s) if names else []


def running(runtime: Runtime) -> Sequence[ProcessView]:
    """Return the background services of a root, dead ones included."""
    return runtime.list()


def _settled(runtime: Runtime, told: StartedService, offset: int, until_s: float, clock: Clock) -> StartedService:
    if told.what != "started":
        return told
    while True:
        seen = runtime.look(told.name)
        said = _since(told.log, offset)
        if seen is None or not seen.alive:
            lines = _since(told.log, offset).decode("utf-8", "replace").splitlines()
            return replace(told, what="died", said="\n".join(lines[-_LINES:]))
        if _READY in said or clock.monotonic_s() >= until_s:
            return told
        clock.sleep(_LOOK_S)


def _told(seen: ProcessView, what: Literal["started", "already runs", "runs otherwise"]) -> StartedService:
    return StartedService(name=seen.name, what=what, pid=seen.pid, log=seen.log)


def _size(path: str) -> int:
    try:
        return fs.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _since(path: str, offset: int) -> bytes:
    """Return the log since `offset`, or the end of it."""
    try:
        fd = fs.open_read(path)
    except OSError:
        return b""
    try:
        return fs.read_at(fd, _LAST, max(offset, os.fstat(fd).st_size - _LAST))
    finally:
        os.close(fd)
