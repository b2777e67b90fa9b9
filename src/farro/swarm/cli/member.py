"""`farro member`: farro's own services as components of a swarm. Hidden: a controller starts them.

While a member is disabled its service does not exist: it has no store open and claims nothing. Enabling starts it,
disabling ends it as SIGTERM does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from farro.cli.daemon_process import admit, log_to_stdout
from farro.cli.daemons import GRACE_S
from farro.cli.options import App, application, common, operator_name, read_root, starts_strictly
from farro.config.settings import Settings
from farro.errors import SyncFailed
from farro.host import worker_processes
from farro.log.structured import BatchLog, Log, LogEvent, together
from farro.store.port import Store
from farro.swarm.component import Component
from farro.swarm.component.declare import VARIABLES
from farro.worker.daemon import Daemon
from farro.worker.slot import CHANGED

Make = Callable[[App, Store, Settings, Log], Daemon]


@click.group(hidden=True)
def member() -> None:
    """farro's services as members of a swarm."""


@member.command()
@click.option("--role", required=True, help="The queue to work.")
@click.option("--slots", default=2, type=click.IntRange(1, 64), help="Jobs at once.")
@click.option("--runner", type=click.Choice(["inline", "process"]), help="Else as the config says.")
@common
def worker(role: str, slots: int, runner: str | None, root: str | None, as_json: bool) -> None:
    """A worker of a role."""
    from farro.cli import daemon_services

    path, settings = read_root(root)
    bee = _component("worker")
    log = _Counting(log_to_stdout(f"worker/{role}", as_json, settings.runners), bee)
    options = daemon_services.WorkerOptions(role=role, slots=slots, runner=runner)
    app = application()
    tools = app.announce_tools(path, settings)

    @bee.service(says_ready=True)
    def work(stop: threading.Event) -> None:
        _clear_environment()
        with daemon_services.worker(app, path, settings, options, log, tools) as service:
            service.start()
            log("info", "worker started", {"role": role, "slots": slots, "pid": os.getpid()})
            bee.ready()
            _end_on(stop, lambda: service.stop(GRACE_S))
            _run_until_failure(service.wait, log)
            log("info", "worker stopped", {"role": role})

    worker_processes.enclose()
    try:
        bee.run()
    finally:
        worker_processes.release()


@member.command()
@common
def watchdog(root: str | None, as_json: bool) -> None:
    """Recovery."""
    from farro.cli import daemon_services

    _run_daemon("watchdog", daemon_services.watchdog, root, as_json)


@member.command()
@common
def manager(root: str | None, as_json: bool) -> None:
    """Routing, stale jobs, schedules."""
    from farro.cli import daemon_services

    _run_daemon("manager", daemon_services.manager, root, as_json)


@member.command()
@common
def web(root: str | None, as_json: bool) -> None:
    """The dashboard and the HTTP API. Where its port is taken by another root's, on another."""
    import asyncio

    from farro.web.cli import open_server

    path, settings = read_root(root)
    log = log_to_stdout("web", as_json, settings.runners)
    bee, app = _component("web"), application()

    @bee.service(says_ready=True)
    def serve(stop: threading.Event) -> None:
        _clear_environment()
        with open_server(app, path, settings, log, any_port=True) as here:
            _end_on(stop, here.server.stop)
            bee.tell(url=here.url)
            bee.ready()
            asyncio.run(here.server.run(here.listening))
            log("info", "web stopped", {})

    bee.run()


def _run_daemon(name: str, make: Make, root: str | None, as_json: bool) -> None:
    path, settings = read_root(root)
    log = log_to_stdout(name, as_json, settings.runners)
    bee, app = _component(name), application()

    @bee.service(says_ready=True)
    def keep(stop: threading.Event) -> None:
        _clear_environment()
        store = app.open_store(path, settings, log=log, actor=operator_name())
        try:
            admit(app, store, name, strict=starts_strictly(settings))
            service = make(app, store, settings, log)
            log("info", f"{name} started", {"pid": os.getpid()})
            bee.ready()
            _end_on(stop, service.stop)
            _run_until_failure(lambda: service.run(settings.watchdog.every_s), log)
            log("info", f"{name} stopped", {})
        finally:
            store.close()

    bee.run()


class _Counting(BatchLog):
    """A worker's log that counts ended jobs for `done` and `tps` of the component's status."""

    def __init__(self, log: Log, bee: Component[Any]) -> None:
        super().__init__(log)
        self._bee = bee
        self._written = together(log)

    def __call__(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.many([(level, message, fields)])

    def many(self, events: Sequence[LogEvent]) -> None:
        self._bee.count(sum(1 for _, message, _ in events if message == CHANGED))
        self._written.many(events)


def _component(name: str) -> Component[Any]:
    """Declare the component under the role that its plan gives it."""
    return Component(os.environ.get("FARRO_ROLE") or name)


def _clear_environment() -> None:
    """Remove the variables of the component from the environment, which child processes inherit: the bus's address
    holds its password."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def _end_on(stop: threading.Event, end: Callable[[], None]) -> None:
    def wait() -> None:
        stop.wait()
        end()

    threading.Thread(target=wait, name="stopping", daemon=True).start()


def _run_until_failure(run: Callable[[], None], log: Log) -> None:
    try:
        run()
    except SyncFailed as error:
        # What reached the disk is unknown (R7): this process must not go on; another one starts afresh.
        log("critical", f"{type(error).__name__}: {error}", {"event": {"type": "sync_failed"}})
        raise SystemExit(error.exit_code) from error
