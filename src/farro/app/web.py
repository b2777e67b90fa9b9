"""The HTTP front of a root, put together of its store, its operations and who may come in.

What it serves lives in fronts.http; where it listens, in cli.web.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farro import app
from farro.config import reader
from farro.config.settings import Settings
from farro.host.clock import SystemClock
from farro.log.structured import Log
from farro.queue.agent_rules import contract_of
from farro.store.port import Store

if TYPE_CHECKING:
    from farro.doctor.report import Examination
    from farro.queue.admission import Gate
    from farro.web.application import Web


def opened(
    store: Store,
    settings: Settings,
    *,
    log: Log,
    token: str | None,
    beyond: bool,
    person: str,
    gate: Callable[[bool], Gate],
    version: str,
    examine: Callable[[], Examination],
    lock: Callable[[], Mapping[str, Any]],
    orchestrate: Callable[[], None] = lambda: None,
) -> Web:
    """The HTTP front of a store. `token`: None takes the root's own; `beyond`: it listens beyond loopback."""
    from farro.jobs.times import timestamp
    from farro.queue import actors
    from farro.queue.catalog.catalog import Catalog
    from farro.queue.plan_check import Ground as PlanGround
    from farro.queue.time_travel import Past
    from farro.web import access_keys
    from farro.web.application import Web
    from farro.web.state import Access, House

    clock, root = SystemClock(), store.root
    own = access_keys.token(root, secrets.token_bytes)
    house = House(
        store=store,
        settings=settings,
        catalog=Catalog(store, clock),
        clock=clock,
        ledger=app.ledger(root, durable=False, clock=clock),
        log=log,
        version=version,
        person=person,
        user=actors.user(),
        gate=gate,
        contract=lambda: contract_of(root, settings),
        library=functools.cache(lambda: app.library(root, settings)),
        ground=lambda: PlanGround(settings=settings, tools=app.tools(settings, root), cwd=root, env=os.environ),
        examine=examine,
        orchestrate=orchestrate,
        settings_of=reader.load,
        lock=lock,
        ask_provider=functools.partial(_ask_provider, root, settings),
        past=Past(store),
        store_name="files" if settings.store == "files" else settings.store.partition(":")[0],
        started_at=timestamp(clock.now()),
        read_only=settings.web.read_only,
    )
    access = Access(
        token=token or own,
        key=hashlib.sha256(f"farro session {token or own}".encode()).digest(),
        use_code=lambda told: access_keys.use(root, told, clock.now().timestamp()),
        hosts=frozenset(host.lower() for host in settings.web.hosts),
        beyond=beyond,
        secure=settings.web.secure_cookie,
        now_s=lambda: clock.now().timestamp(),
    )
    return Web(house, access, epoch=secrets.token_hex(4))


def _ask_provider(
    root: str, settings: Settings, role: str | None, provider: str | None, prompt: str
) -> Mapping[str, Any]:
    """As `farro provider-test --json` tells it."""
    from farro.agents import provider_test
    from farro.agents.calling import CallTry
    from farro.agents.providers.port import ProviderTrouble
    from farro.sandbox.redaction import Redactor

    redact = Redactor.of_variables(settings.secret_variables(), os.environ).text
    tried: list[CallTry] = []
    try:
        tested = app.ask_provider(
            root, settings, role=role, provider=provider, prompt=prompt, redact=redact, on_try=tried.append
        )
    except ProviderTrouble as trouble:
        return provider_test.not_told(role, trouble, tried, redact)
    return provider_test.told(role, tested, tried)
