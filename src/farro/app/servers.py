"""Build the adapters that reach a server: the store in Redis, and a worker's queue over AGQ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farro.config.settings import AGQ, AGQ_KEYS, Settings
from farro.errors import InputError
from farro.host import machine, worker_processes
from farro.host.clock import Clock
from farro.log.audit import AuditLog
from farro.log.structured import Log
from farro.store.accounts import Accounts
from farro.store.library import Library
from farro.store.port import Store, StoreContext, StoreFactory, StorePolicy

if TYPE_CHECKING:
    from farro.agq.client import AgqStore
    from farro.store.ledger import Ledger
    from farro.store.redis.client import RedisAddress

BRIEF_S = 5.0  # for how long a command asks a server that does not answer


def open_redis(
    root: str, settings: Settings, *, policy: StorePolicy, clock: Clock, log: Log, audit: AuditLog, brief: bool
) -> Store:
    """Open the store in a Redis server. The root on this machine keeps the config, the policies, and the files of the
    jobs that run here."""
    address = redis_address(settings, brief=brief)
    from farro.store.redis import RedisStore
    from farro.store.redis.context import RedisContext
    from farro.store.redis.workspace import LocalWorkspace

    section = settings.redis
    workspace = LocalWorkspace(
        root,
        name=section.name,
        clock=clock,
        shared=section.shared,
        inline_bytes=section.inline_bytes,
        reap=_reap_agent,
    )

    def close() -> None:
        workspace.close()
        audit.close()

    return RedisStore(
        RedisContext(
            root=root,
            name=section.name,
            address=address,
            roles=settings.all_roles(),
            policy=policy,
            clock=clock,
            workspace=workspace,
            lease_s=section.lease_s,
            keep_changes=section.keep_changes,
            keep_audit=section.keep_audit,
            identity=worker_processes.identity,
            reap=worker_processes.reap,
            actor=audit.actor,
            log=log,
            audit=audit,
        ),
        on_close=close,
    )


def open_from_package(
    root: str, settings: Settings, *, policy: StorePolicy, clock: Clock, log: Log, audit: AuditLog
) -> Store:
    """Open a store of another package. Its module may also be in the root's folder, as the modules of tools are."""
    from farro.execution.tools import ToolTrouble, import_from, load

    import_from(root)
    try:
        factory: StoreFactory = load(settings.store)  # type: ignore[assignment]  # what it returns shows at its first call
    except ToolTrouble as error:
        raise InputError(f"store: {error}; it must be a function that returns a store (docs/adapters.md)") from error
    return factory(
        StoreContext(
            root=root,
            roles=settings.all_roles(),
            policy=policy,
            clock=clock,
            audit=audit,
            log=log,
            identity=worker_processes.identity,
            reap=worker_processes.reap,
            on_close=audit.close,
        )
    )


def open_agq(root: str, settings: Settings, *, clock: Clock, tools: Sequence[str]) -> AgqStore:
    """Connect a worker to a queue over AGQ. The key: AGQ_KEY, else the variable that `agq.key` in the config names."""
    from farro.agq.client import AgqStore
    from farro.agq.client.connection import AgqAddress
    from farro.store.redis.workspace import LocalWorkspace

    section = settings.agq
    key = next((os.environ[name] for name in AGQ_KEYS if os.environ.get(name)), None)
    if key is None and section.key is not None:
        key = section.key.reveal(os.environ, "agq.key")
    return AgqStore(
        AgqAddress.of(settings.store, key),
        workspace=LocalWorkspace(root, name="agq", clock=clock, reap=_reap_agent),
        clock=clock,
        tools=lambda: tools,
        timeout_s=settings.redis.timeout_s,
        inline_bytes=settings.redis.inline_bytes,
    )


def redis_address(settings: Settings, *, brief: bool = False) -> RedisAddress:
    """Say where the server is and how long to ask it. `brief`: a person waits, so an unreachable server is reported
    soon."""
    if settings.store.startswith(AGQ):
        raise InputError(
            f"{settings.store} is a queue for workers (`farro worker`, agw) and planners (agx); this command needs the "
            "store behind it: --store redis://HOST:PORT/DB, or --root of the machine on which `farro agq` runs"
        )
    try:
        from farro.store.redis.client import RedisAddress
    except ImportError as error:
        raise InputError(
            f"{settings.store} needs the Redis client, and {error.name} is not installed: pip install 'farro[redis]'"
        ) from error
    section = settings.redis
    return RedisAddress(
        url=settings.store,
        user=section.user,
        password=None if section.password is None else section.password.reveal(os.environ, "redis.password"),
        timeout_s=section.timeout_s,
        retry_s=min(section.retry_s, BRIEF_S) if brief else section.retry_s,
        wait_replicas=section.wait_replicas,
        wait_s=section.wait_s,
    )


def library(settings: Settings, clock: Clock) -> Library:
    """Open the library of plans and actions that every machine sees."""
    address = redis_address(settings, brief=True)
    from farro.store.redis.client import RedisClient
    from farro.store.redis.library import RedisLibrary
    from farro.store.redis.scripts import RedisKeys

    name = settings.redis.name
    return RedisLibrary(RedisClient(address, RedisKeys(name).prefix, clock), name)


def accounts(settings: Settings, clock: Clock) -> Accounts:
    """Open the pauses of accounts that every machine sees."""
    address = redis_address(settings)
    from farro.store.redis.accounts import RedisAccounts
    from farro.store.redis.client import RedisClient
    from farro.store.redis.scripts import RedisKeys

    name = settings.redis.name
    return RedisAccounts(RedisClient(address, RedisKeys(name).prefix, clock), name, clock, uniform=machine.uniform)


def ledger(settings: Settings, clock: Clock) -> Ledger:
    """Open the ledger that every machine shares."""
    address = redis_address(settings)
    from farro.store.redis.client import RedisClient
    from farro.store.redis.ledger import RedisLedger
    from farro.store.redis.scripts import RedisKeys

    name = settings.redis.name
    return RedisLedger(RedisClient(address, RedisKeys(name).prefix, clock), name, clock)


def _reap_agent(agent_id: str) -> None:
    from farro.host import process_tree

    process_tree.end_marked(f"FARRO_AGENT={agent_id}")
