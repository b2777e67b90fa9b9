"""Everything that doctor looks at: the checks of every room, made for one root. The other half of app.

What is checked lives in the rooms, judging it in operations.doctor; which adapters there are, in app.
"""

from __future__ import annotations

import os
from typing import Any

from farro import app, config
from farro.guard import checks as guard_checks
from farro.observe import checks as audit_checks
from farro.operations import doctor, policy_lock, root_checks
from farro.ports.checks import Check, Finding, ok
from farro.ports.store import StorePolicy
from farro.providers import chat, cli
from farro.providers import checks as provider_checks
from farro.settings import Settings
from farro.stores.files import checks as store_checks
from farro.stores.files import devices
from farro.stores.files.ground import Ground
from farro.system import disk_checks, disk_probes
from farro.system.clock import SystemClock


def checks(root: str, *, finished: int | None, conformance: bool = False) -> list[Check]:
    """In the order in which they are told. `finished`: how many finished jobs are opened; None: all."""
    clock, path = SystemClock(), config.path_of(root)
    try:
        settings = config.load(root)
    except config.ConfigError:
        settings = Settings()  # the check of the config says what is wrong; the others go by the defaults
    security = settings.security
    found = [
        *config.checks(root),
        *disk_checks.checks(
            root,
            folders=devices.queue_folders(root),
            apart=lambda: devices.apart(root),
            config=path,
            durable=settings.durability == "power",
            allow_cross_volume=settings.allow_cross_volume,
            min_free_bytes=security.min_free_bytes,
            now=clock.now,
        ),
        *disk_probes.checks(f"{root}/jobs"),
        *root_checks.checks(root, settings, config=path, now=clock.now),
        *provider_checks.checks(settings, os.environ, root=root, config=path),
        *audit_checks.checks(f"{root}/logs", app.audit_policy(settings), clock, config=path),
        *guard_checks.checks(security.sandbox, required=security.require_sandbox, config=path),
        Check(id="store", title="store", look=lambda: _opens(root, settings)),
        *store_checks.checks(_looking(root), settings.all_roles(), finished=finished),
    ]
    if conformance:
        found += doctor.conformance_checks(root, lambda: lock(root, settings), config=path)
    return found


def _opens(root: str, settings: Settings) -> Finding:
    """As every command opens it: after a power cut this puts the tree right, before anybody looks through it."""
    app.open_store(root, settings, brief=True).close()
    return ok("the root opens")


def _looking(root: str) -> Ground:
    """A ground for who only looks: no agent joins by it, and nothing is written."""
    return Ground(
        root=root,
        policy=StorePolicy(),
        clock=SystemClock(),
        reap=lambda markers, identity: None,
        kill_hung=lambda identity: False,
        identity=dict,
    )


def lock(root: str, settings: Settings) -> dict[str, Any]:
    """What policy.lock.json would say now."""
    return policy_lock.lock(root, settings, tries={"http": chat.TRIES, "cli": cli.TRIES})


def admit(root: str, what: str) -> None:
    """Refuse to start a daemon that is to start strictly, where doctor finds something at a quick look."""
    doctor.admit(checks(root, finished=0), what)
