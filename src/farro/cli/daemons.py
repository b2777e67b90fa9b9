"""`farro worker`, `watchdog`, `manager`: start a loop, turn signals into a graceful end. The loops live in services."""

from __future__ import annotations

import os
import platform
import re
import signal
from collections.abc import Callable
from types import FrameType

import click

from farro import app
from farro.cli.options import answer, common, open_root
from farro.observe.log import json_lines
from farro.system.clock import SystemClock


def _on_signals(stop: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


@click.command()
@click.option("--role", default="Runner", show_default=True, metavar="ROLE", help="The queue to work.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Slots in this process.")
@click.option("--drain", is_flag=True, help="Exit 0 when nothing is queued, running or due in that queue.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="What this worker offers; jobs may require tags.")
@click.option("--name", metavar="NAME", help="The agents' name; else this machine's.")
@common
def worker(
    role: str, workers: int, drain: bool, tags: tuple[str, ...], name: str | None, root: str | None, as_json: bool
) -> None:
    """Work a role's queue. Logs JSON lines. SIGTERM: five seconds for running steps, then their jobs are released."""
    from farro.execution.stop import Stop
    from farro.services.perform import Performer
    from farro.services.worker import Slot, Worker

    clock = SystemClock()
    log = json_lines(f"worker/{role}", clock.now)
    store, settings = open_root(root, log=log)
    performer = Performer(root=store.root, base_env=dict(os.environ), tools=app.tools(settings), clock=clock)
    agent_name = name or re.sub(r"[^A-Za-z0-9_-]", "-", platform.node())[:32].strip("-_") or "worker"

    def slot(number: int, stop: Stop) -> Slot:
        return Slot(
            store=store,
            role=role,
            name=agent_name,
            number=number,
            tags=tags,
            performer=performer,
            stop=stop,
            clock=clock,
            log=log,
        )

    app.enclose_worker()
    service = Worker(store=store, role=role, slots=workers, drain=drain, make_slot=slot, clock=clock)
    asked = [5.0, 0.0]  # the second signal does not wait
    _on_signals(lambda: service.stop(asked.pop(0) if asked else 0.0))
    log("info", "worker started", {"role": role, "slots": workers, "pid": os.getpid()})
    try:
        service.run()
    finally:
        store.close()
        app.release_worker()
        log("info", "worker stopped", {"role": role})


@click.command()
@click.option("--once", is_flag=True, help="One pass, then exit.")
@common
def watchdog(once: bool, root: str | None, as_json: bool) -> None:
    """Recover what dead agents left: decided jobs are carried out, others become stale. Any number may run."""
    from farro.services.watchdog import Watchdog

    clock = SystemClock()
    log = json_lines("watchdog", clock.now)
    store, settings = open_root(root, log=None if once else log)
    service = Watchdog(store=store, log=(lambda level, message, fields: None) if once else log)
    if not once:
        _on_signals(service.stop)
        log("info", "watchdog started", {"pid": os.getpid()})
        service.run(settings.watchdog.every_s)
        store.close()
        return
    done = service.run_once()
    service.leave()
    if as_json:
        answer({"recovered": [{"job_id": item.job_id, "agent": item.agent, "what": item.what} for item in done]})
    elif not done:
        click.echo("nothing to recover")
    for item in [] if as_json else done:
        click.echo(f"{item.what:<16} {item.job_id or item.agent or ''}")


@click.command()
@click.option("--once", is_flag=True, help="Decide what is stale now, then exit.")
@common
def manager(once: bool, root: str | None, as_json: bool) -> None:
    """Decide what becomes of stale jobs: queued again while attempts remain, else killed with the reason."""
    from farro.services.manager import Manager

    clock = SystemClock()
    log = json_lines("manager", clock.now)
    store, settings = open_root(root, log=None if once else log)
    service = Manager(store=store, log=(lambda level, message, fields: None) if once else log)
    if not once:
        _on_signals(service.stop)
        log("info", "manager started", {"pid": os.getpid()})
        service.run(settings.watchdog.every_s)
        store.close()
        return
    done = service.run_once()
    service.leave()
    if as_json:
        answer({"decided": [{"job_id": life.job_id, "status": life.status} for life in done]})
    elif not done:
        click.echo("no stale jobs")
    for life in [] if as_json else done:
        click.echo(f"{life.job_id} is {life.status}")
