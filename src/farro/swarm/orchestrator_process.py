"""The orchestrator of a root as a background process: what it is launched as, and launching it where there is none.

What it does lives in services; how a process is launched, in runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.errors import AlreadyRunning, FarroError
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass
from farro.swarm import requests
from farro.swarm.files import FOLDER, ORCHESTRATOR, Place
from farro.swarm.logs import last_line, last_words
from farro.worker.runtime import Component, Runtime

PATIENCE_S = 20.0
TELL_S = 5.0  # who waits for so long is told what keeps the orchestrator
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    pid: int | None
    log: str


def component(root: str, program: Sequence[str], env: Mapping[str, str]) -> Component:
    return Component(
        name=ORCHESTRATOR,
        argv=(*program, "orchestrator", "--root", root),
        env=env,
        cwd=root,
        log=f"{root}/{FOLDER}/{ORCHESTRATOR}/orchestrator.log",
    )


def ensure(runtime: Runtime, wanted: Component, clock: Clock) -> Started | None:
    """Start the orchestrator and wait until it is there; None: one runs. FarroError: it ended at once, and why."""
    place = Place(f"{wanted.cwd}/{FOLDER}")
    if requests.running(place.folder):
        return None
    place.make()
    try:
        pid = runtime.launch(wanted).pid
    except AlreadyRunning:
        pid = None
    until_s = clock.monotonic_s() + PATIENCE_S
    while not requests.running(place.folder):
        seen = runtime.look(wanted.name)
        if seen is None or not seen.alive:
            raise FarroError(f"the orchestrator ended at once; {wanted.log} ends with:\n{last_words(wanted.log)}")
        if clock.monotonic_s() >= until_s:
            raise FarroError(f"the orchestrator (pid {seen.pid}) is not up after {PATIENCE_S:g} s; see {wanted.log}")
        clock.sleep(_LOOK_S)
    return None if pid is None else Started(pid=pid, log=wanted.log)


def trouble(place: str) -> str | None:
    """What keeps the orchestrator from its work, as it said last; None: nothing that it knows of."""
    said, level = last_line(f"{place}/{ORCHESTRATOR}/orchestrator.log")
    return said or None if level in (None, "error") else None
