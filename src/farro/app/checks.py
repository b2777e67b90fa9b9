"""Collect doctor's checks: those of every package, made for one root. Importing this module imports them all."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

from farro.agents.providers import checks as provider_checks
from farro.app import servers
from farro.config import reader
from farro.config.settings import Settings, is_factory
from farro.doctor import audit_checks, disk_checks, report
from farro.doctor.checks import Check, Finding, edit, failed, ok, warning
from farro.errors import FarroError
from farro.host.clock import SystemClock
from farro.lazy_dataclass import replace
from farro.queue import root_checks
from farro.roles.names import AGENTS
from farro.sandbox import checks as guard_checks
from farro.store.files import checks as store_checks
from farro.store.files.context import FilesContext, folders_apart, queue_folders
from farro.store.port import Store, StorePolicy

if TYPE_CHECKING:
    from farro.app import App

_ASK_THE_SERVER = frozenset(
    {"redis", "redis-persistence", "redis-memory", "redis-clock", "redis-rights", "caps", "manager-heartbeat"}
)


def checks(
    app: App, root: str, *, finished: int | None, conformance: bool = False, store: str | None = None
) -> list[Check]:
    """Make doctor's checks in the order of its report (App.checks)."""
    clock, path = SystemClock(), reader.path_of(root)
    settings = reader.with_store(_settings(root), store)
    security = settings.security
    in_folders = settings.store == "files"

    def opened() -> contextlib.closing[Store]:
        return contextlib.closing(app.open_store(root, settings, brief=True))

    found = [
        *_config_checks(root),
        *disk_checks.checks(
            root,
            folders=queue_folders(root) if in_folders else ["jobs"],
            apart=lambda: folders_apart(root) if in_folders else [],
            config=path,
            durable=settings.durability == "power" and in_folders,
            allow_cross_volume=settings.allow_cross_volume,
            min_free_bytes=security.min_free_bytes,
            now=clock.now,
        ),
        *disk_checks.probes(f"{root}/jobs"),
        *root_checks.checks(root, settings, config=path, now=clock.now, open_store=opened, conformance=conformance),
        report.lock_check(root, settings, conformance=conformance),
        *provider_checks.checks(settings, os.environ, root=root, config=path),
        *audit_checks.checks(f"{root}/logs", app.audit_policy(settings), clock, config=path),
        *guard_checks.checks(
            security.sandbox,
            required=security.require_sandbox,
            networks=_networks(settings),
            served=[f"providers.{name}.program" for name, one in settings.providers.items() if one.uses_gateway],
            config=path,
        ),
        Check(id="store", title="store", look=lambda: _opens(app, root, settings)),
    ]
    if in_folders:
        found += store_checks.checks(read_only_context(root), settings.all_roles(), finished=finished)
    elif not is_factory(settings.store):
        found += _redis_checks(settings, path, clock)
        found = _where_it_answers(found, settings, path, clock)
    if conformance:
        found += report.conformance_checks(root, settings, config=path)
    return found


def _redis_checks(settings: Settings, path: str, clock: SystemClock) -> list[Check]:
    from farro.store.redis import checks as redis_checks

    section = settings.redis
    return redis_checks.checks(
        lambda: _server(settings, clock),
        address=settings.store,
        name=section.name,
        config=path,
        shared=section.shared,
        now=clock.now,
    )


def _server(settings: Settings, clock: SystemClock) -> contextlib.closing[Any]:
    from farro.store.redis.client import RedisClient

    return contextlib.closing(RedisClient(servers.redis_address(settings, brief=True), "", clock))


def _where_it_answers(found: list[Check], settings: Settings, path: str, clock: SystemClock) -> list[Check]:
    """Ask a server that does not answer only once, and let the check `redis` alone report it."""

    @functools.cache
    def trouble() -> FarroError | None:
        try:
            with _server(settings, clock) as server:
                server.call("INFO", "server")
        except FarroError as error:
            return error
        return None

    def guarded(check: Check) -> Check:
        def look() -> Finding:
            if (error := trouble()) is None:
                return check.look()
            if check.id != "redis":
                return ok("not asked: see `redis`")
            cause = "no job can be queued, worked or looked at; put right what it says, or `store` in the config"
            return failed(str(error), cause, edit(path))

        return replace(check, look=look) if check.id in _ASK_THE_SERVER else check

    return [guarded(check) for check in found]


def _settings(root: str) -> Settings:
    """Read the config; where it is wrong take the defaults, since another check reports that."""
    try:
        return reader.load(root)
    except reader.ConfigError:
        return Settings()


def _config_checks(root: str) -> list[Check]:
    """Check the config file itself."""
    path = reader.path_of(root)

    def loads() -> Finding:
        ignored: list[str] = []
        try:
            reader.load(root, warn=ignored.append)
        except reader.ConfigError as error:
            lines = str(error).splitlines()
            cause = "no command works with it; each mistake is listed with its place"
            return failed(
                f"{len(lines)} wrong in {os.path.basename(path)}", cause, edit(path), details=tuple(lines[:9])
            )
        if ignored:
            cause = "keys that farro does not know do nothing; remove them, or write them right"
            return warning(f"{len(ignored)} ignored", cause, edit(path), details=tuple(ignored[:9]))
        return ok(os.path.basename(path) if os.path.lexists(path) else "no file: the defaults")

    def strict() -> Finding:
        if _settings(root).strict:
            return ok("unknown fields are refused")
        cause = "a misspelt key is ignored without a word; remove `strict: false`"
        return warning("unknown fields are ignored", cause, edit(path))

    def agents() -> Finding:
        settings = _settings(root)
        if not settings.providers:
            return ok("no providers: commands only")
        try:
            reader.check_contract(root, settings, [role for role in AGENTS if role in settings.all_roles()])
        except reader.ConfigError as error:
            lines = tuple(str(error).splitlines())
            cause = "prompts for agents are refused until the config says this"
            return failed(f"{len(lines)} missing for agent work", cause, edit(path), details=lines[:9])
        return ok(f"made for agents; {len(settings.providers)} answer")

    return [
        Check(id="config", title="config", look=loads, quick=True),
        Check(id="config-strict", title="unknown fields", look=strict, quick=True),
        Check(id="agents-contract", title="config for agents", look=agents, quick=True),
    ]


def _networks(settings: Settings) -> dict[str, bool | tuple[str, ...]]:
    """Return each key of the config that gives a network, with its value."""
    found = {f"providers.{name}.network": provider.network for name, provider in settings.providers.items()}
    found |= {f"roles.{name}.network": role.network for name, role in settings.roles.items()}
    return {"security.network": settings.security.network, **found}


def _opens(app: App, root: str, settings: Settings) -> Finding:
    """Open the root as every command does: after a power cut this repairs the tree before the checks read it."""
    app.open_store(root, settings, brief=True).close()
    return ok("the root opens")


def read_only_context(root: str) -> FilesContext:
    """Make a store context for looking only: it registers no agent and writes nothing."""
    return FilesContext(
        root=root,
        policy=StorePolicy(),
        clock=SystemClock(),
        reap=lambda markers, identity: None,
        kill_hung=lambda identity: False,
        identity=dict,
    )
