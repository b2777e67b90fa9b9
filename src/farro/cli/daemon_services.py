"""Build the services of a root from its config: for the daemons (`farro worker`, …)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farro.cli.daemon_process import admit
from farro.cli.options import App, gate, starts_strictly
from farro.config.settings import AGQ, Settings
from farro.host import machine
from farro.host.clock import SystemClock
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.queue.scheduler import Timetable
from farro.store.port import Store, WorkerStore
from farro.worker.daemon import Daemon
from farro.worker.drain import Drained, Emptied
from farro.worker.hand_off import HandOff
from farro.worker.watchdog import Recovery
from farro.worker.worker import IDLE_S, Until, Worker, WorkerSetup

if TYPE_CHECKING:
    from farro.agq.client import AgqStore


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    role: str
    slots: int
    drain: bool = False
    tags: Sequence[str] = ()
    name: str | None = None  # of its agents; None: the host's
    runner: str | None = None  # None: as the config says
    bypass: bool = False


@contextmanager
def worker(
    app: App, path: str, settings: Settings, options: WorkerOptions, log: Log, tools: Sequence[str]
) -> Iterator[Worker]:
    """Build a worker that is not started yet; close its store at the end. `tools`: those that its steps may use."""
    clock, role = SystemClock(), options.role
    store: WorkerStore
    hand_off: HandOff | None = None
    until: Until | None = None
    if settings.store.startswith(AGQ):
        store, until = _over_agq(app, path, settings, options, tools)
    else:
        store = whole = app.open_store(path, settings, log=log, actor=f"worker/{role}")
        admit(app, whole, f"worker/{role}", strict=starts_strictly(settings))
        hand_off = app.hand_off(path, settings, whole, clock, log, bypass=options.bypass)
        if options.drain:
            until = Drained(
                store=whole, role=role, clock=clock, log=log, recovery=Recovery(sweep=lambda: app.sweep_runners(path))
            )
    performer = app.performer(path, settings, app.runner(path, settings, kind=options.runner, clock=clock), clock)
    setup = WorkerSetup(
        store=store,
        role=role,
        name=_host() if options.name is None else options.name,
        tags=options.tags,
        performer=performer,
        clock=clock,
        log=log,
        hand_off=hand_off,
        # An idle slot sends its heartbeat once per turn: with a short stale_after_s it must turn more often.
        idle_s=min(IDLE_S, settings.watchdog.stale_after_s / 4, settings.redis.lease_s / 3),
    )
    try:
        yield Worker(setup, slots=options.slots, until=until)
    finally:
        store.close()


def _over_agq(
    app: App, path: str, settings: Settings, options: WorkerOptions, tools: Sequence[str]
) -> tuple[AgqStore, Until | None]:
    """Connect a worker over AGQ. It only reports how jobs ended; the store behind AGQ routes them on."""
    store = app.open_agq(path, settings, tools=tools)
    return store, Emptied(lambda: store.pending(options.role)) if options.drain else None


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", machine.node_name())[:32].strip("-_") or "worker"


def watchdog(app: App, store: Store, settings: Settings, log: Log) -> Daemon:
    from farro.worker.watchdog import Watchdog

    return Watchdog(store=store, log=log, sweep=lambda: app.sweep_runners(store.root))


def manager(app: App, store: Store, settings: Settings, log: Log, *, auto_plan: bool | None = None) -> Daemon:
    """Build the manager. `auto_plan`: None takes the config's value."""
    plans = settings.manager.auto_plan if auto_plan is None else auto_plan
    return app.manager(
        store,
        settings,
        log,
        timetable=timetable(store, settings, log),
        gate=gate(settings, force=False) if plans else None,
    )


def timetable(store: Store, settings: Settings, log: Log) -> Timetable:
    return Timetable(store=store, root=store.root, clock=SystemClock(), log=log, gate=gate(settings, force=False))
