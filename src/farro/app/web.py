"""Build the HTTP API and dashboard of a root: its state, and who may sign in."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import policy_lock
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.log.structured import Log
from farro.queue import admission
from farro.queue.catalog.catalog import Catalog
from farro.queue.plan_check import PlanContext
from farro.queue.time_travel import QueueHistory
from farro.store.port import Store
from farro.web import access_keys
from farro.web.access import AccessRules
from farro.web.application import WebApplication
from farro.web.request_handling import WebState

if TYPE_CHECKING:
    from farro.app import App
    from farro.doctor.report import Examination
    from farro.queue.admission import Gate


def state(
    app: App,
    store: Store,
    settings: Settings,
    *,
    log: Log,
    person: str,
    gate: Callable[[bool], Gate],
    examine: Callable[[], Examination],
    orchestrate: Callable[[], None],
) -> WebState:
    """Collect what the requests work with."""
    clock, root = SystemClock(), store.root
    return WebState(
        store=store,
        settings=settings,
        catalog=Catalog(store, clock),
        clock=clock,
        ledger=app.ledger(root, settings, clock),
        log=log,
        version=metadata.version("farro"),
        person=person,
        user=admission.current_user(),
        gate=gate,
        library=functools.cache(lambda: app.library(root, settings)),
        plan_context=lambda: PlanContext(settings=settings, tools=app.tools(settings, root), cwd=root, env=os.environ),
        examine=examine,
        ensure_orchestrator=orchestrate,
        settings_of=reader.load,
        policy_lock=lambda: policy_lock.lock(root, settings),
        test_provider=functools.partial(_ask_provider, app, root, settings),
        queue_history=QueueHistory(store),
        store_name=settings.store.partition(":")[0],
        started_at=timestamp(clock.now()),
        read_only=settings.web.read_only,
    )


def application(state: WebState, *, token: str | None, beyond: bool) -> WebApplication:
    """Guard the state with a token: `token`, else the root's own. `beyond`: it listens beyond loopback."""
    root, clock, web = state.store.root, state.clock, state.settings.web
    own_token = access_keys.token(root, secrets.token_bytes)  # made even where the config has one: it may go again
    token = token or own_token
    access = AccessRules(
        token=token,
        key=hashlib.sha256(f"farro session {token}".encode()).digest(),
        use_code=lambda code: access_keys.use_code(root, code, clock.now().timestamp()),
        hosts=frozenset(host.lower() for host in web.hosts),
        beyond=beyond,
        secure=web.secure_cookie,
        now_s=lambda: clock.now().timestamp(),
    )
    return WebApplication(state, access, epoch=secrets.token_hex(4))


def _ask_provider(
    app: App, root: str, settings: Settings, role: str | None, provider: str | None, prompt: str
) -> Mapping[str, Any]:
    """Test a provider; answer as `farro provider-test --json` does."""
    from farro.agents import provider_test
    from farro.agents.provider_calls import CallTry
    from farro.agents.providers.port import ProviderTrouble
    from farro.sandbox.redaction import Redactor

    redact = Redactor.of_variables(settings.secret_variables(), os.environ).text
    tried: list[CallTry] = []
    try:
        tested = app.ask_provider(
            root, settings, role=role, provider=provider, prompt=prompt, redact=redact, on_try=tried.append
        )
    except ProviderTrouble as trouble:
        return provider_test.failure_data(role, trouble, tried, redact)
    return provider_test.answer_data(role, tested, tried)
