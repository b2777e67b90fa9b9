"""Build the planner (agx): the clients that submit plans, and the planner that turns words into steps."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from farro.agents.provider_calls import CallTry
from farro.agx.client import PlanClient
from farro.agx.propose import Planner
from farro.config.settings import Settings
from farro.execution import tool_catalog
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.queue.admission import Gate
from farro.queue.agent_rules import Contract
from farro.sandbox.redaction import Redactor, secret_variables
from farro.store.port import Store

if TYPE_CHECKING:
    from farro.app import App


def planner(
    app: App, root: str, settings: Settings, *, folder: str, name: str, on_try: Callable[[CallTry], None]
) -> Planner:
    clock, context = SystemClock(), app.plan_context(settings)
    return Planner(
        name=name,
        root=root,
        folder=folder,
        settings=settings,
        context=context,
        tools=tool_catalog.listed(
            context.tools,
            tool_catalog.ProgramSearch(env=os.environ, cwd=context.cwd),
            configured=tuple(settings.tools),
            on_path=True,
        ),
        provider=app.providers(root),
        ledger=app.ledger(root, durable=settings.durability == "power", clock=clock),
        prices=app.prices(settings),
        redactor=Redactor.of_variables(secret_variables(settings, os.environ), os.environ),
        clock=clock,
        uniform=random.SystemRandom().uniform,
        on_try=on_try,
    )


def local(app: App, store: Store, settings: Settings, *, contract: Contract, by: str, user: str) -> PlanClient:
    from farro.agx.local_client import LocalPlanClient

    return LocalPlanClient(
        store=store,
        library=app.library(store.root, settings),
        contract=contract,
        gate=lambda force: Gate.of(settings, user=user, force=force),
        clock=SystemClock(),
        by=by,
        mint=lambda: f"plan-{random.SystemRandom().getrandbits(64):016x}",
        max_bytes=settings.security.max_job_bytes,
    )


def remote(address: str, settings: Settings) -> PlanClient:
    from farro.agx.remote_client import RemotePlanClient

    variable = "AGQ_KEY" if settings.agq.key is None else settings.agq.key.name
    mint = IdMint(SystemClock().now, random.SystemRandom().getrandbits)
    return RemotePlanClient.at(address, key=os.environ.get("AGQ_KEY") or os.environ.get(variable), mint=mint.mint)
