"""Wires the planner: which desk plans are handed in at, and who turns words into steps. Apart from app for its size.

Other adapters are chosen in app; what a desk and a planner do lives in operations.planning.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from farro import app
from farro.agents.calling import CallTry
from farro.agents.providers.prices import GenaiPrices
from farro.agx.client import Desk
from farro.agx.propose import Planner
from farro.config.settings import Settings
from farro.execution import tool_catalog as listing
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.queue.admission import Gate
from farro.queue.agent_rules import Contract
from farro.queue.plan_check import Ground
from farro.sandbox.redaction import Redactor, secret_variables
from farro.store.ledger import Prices
from farro.store.port import Store


def planner(root: str, settings: Settings, *, folder: str, name: str, on_try: Callable[[CallTry], None]) -> Planner:
    """Who turns words into steps. `folder`: an empty one, for the files of providers that are programs."""
    clock, here = SystemClock(), ground(settings)
    return Planner(
        name=name,
        root=root,
        folder=folder,
        settings=settings,
        ground=here,
        tools=listing.listed(
            here.tools, listing.Place(env=os.environ, cwd=here.cwd), configured=tuple(settings.tools), on_path=True
        ),
        provider=app.providers(root),
        ledger=app.ledger(root, durable=settings.durability == "power", clock=clock),
        prices=prices(settings),
        redactor=Redactor.of_variables(secret_variables(settings, os.environ), os.environ),
        clock=clock,
        uniform=random.SystemRandom().uniform,
        on_try=on_try,
    )


def ground(settings: Settings) -> Ground:
    """What a draft is held against: this machine, and the folder that its commands were typed in."""
    return Ground(settings=settings, tools=app.tools(settings), cwd=os.getcwd(), env=os.environ)


def prices(settings: Settings) -> Prices:
    return GenaiPrices(settings.providers)


def local_desk(store: Store, settings: Settings, *, contract: Contract, by: str, user: str) -> Desk:
    """Where plans are handed in at this root, and asked for."""
    from farro.agx.local_client import LocalDesk

    return LocalDesk(
        store=store,
        library=app.library(store.root, settings),
        contract=contract,
        gate=lambda force: Gate.of(settings, user=user, force=force),
        clock=SystemClock(),
        by=by,
        mint=lambda: f"plan-{random.SystemRandom().getrandbits(64):016x}",
        max_bytes=settings.security.max_job_bytes,
    )


def remote_desk(address: str, settings: Settings) -> Desk:
    """A RESP queue on another machine: agq://HOST:PORT."""
    from farro.agx.remote_client import RemoteDesk

    secret = settings.agq.key
    named = "AGQ_KEY" if secret is None else secret.name
    mint = IdMint(SystemClock().now, random.SystemRandom().getrandbits)
    return RemoteDesk.at(address, key=os.environ.get("AGQ_KEY") or os.environ.get(named), mint=mint.mint)
