"""`farro top`: open the screen, or print the state once as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from farro.cli.options import common, gate, open_root, operator_name
from farro.cli.terminal import answer, draws
from farro.config.settings import Settings
from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.store.port import Store


@click.command()
@click.option("--light", is_flag=True, help="Begin with light colours; the key d changes it.")
@common
def top(light: bool, root: str | None, as_json: bool) -> int:
    """Watch queues, workers, jobs, logs and swarms on one screen, and steer them: the key ? tells what each key does.

    With --json: how the queues and workers stand now, as one document.
    """
    store, settings = open_root(root, way="top")
    if as_json:
        answer(_standing(store, settings))
        return 0
    try:
        from farro.tui.actions import ActionContext
        from farro.tui.app import TopApp
        from farro.tui.queries import Queries
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("farro"):
            raise
        raise InputError("farro top needs the textual library; install it with: pip install 'farro[tui]'") from error
    if not draws(sys.stdout) or sys.stdin is None or not sys.stdin.isatty():
        raise InputError(
            "farro top needs a terminal that is not dumb; elsewhere use `farro watch` (a line a change) or --json"
        )
    clock = SystemClock()
    hands = ActionContext(
        store=store,
        settings=settings,
        gate=gate(settings, force=False),
        clock=clock,
        by=operator_name("top"),
        rouse=lambda: _rouse(store.root),
    )
    TopApp(Queries(store, settings, clock), hands, light=light).run()
    return 0


def _rouse(root: str) -> str | None:
    """Make sure that an orchestrator runs, which carries out swarm commands."""
    from farro.cli.options import program
    from farro.swarm import service as swarms

    started = swarms.ensure_orchestrator(root, program())
    return None if started is None else f"an orchestrator was started for it (pid {started.pid})"


def _standing(store: Store, settings: Settings) -> dict[str, Any]:
    from farro.queue import queues

    agents = store.agents()
    counted = store.queue_counts()
    return {
        "queues": {role: {str(name): count for name, count in of.items()} for role, of in counted.roles.items()},
        "waiting": counted.waiting,
        "stale": counted.stale,
        "quarantined": counted.quarantined,
        "workers": [asdict(line) for line in queues.listed(agents)],
    }
