"""Make the folders of a root."""

from __future__ import annotations

import os
from collections.abc import Iterable

from farro.host import fs
from farro.jobs import ids, places
from farro.jobs.states import Status


def wanted_folders(roles: Iterable[str]) -> list[str]:
    """Return every folder that the store needs, relative to the root, parents first."""
    wanted = ["agents", "jobs", "logs"]
    wanted += [
        f"jobs/{name}"
        for name in (".staging", ".ids", ".names", ".held", ".snapshots", ".trash", "outbox", "stale", "quarantine")
    ]
    for role in roles:
        ids.check_role(role)
        wanted += [f"agents/{role}", places.incoming(role), places.in_progress(role), f"agents/{role}/completed"]
        wanted += [places.completed(role, status) for status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED)]
    return list(dict.fromkeys([*wanted, "agents/Manager", places.WAITING]))


def make_root(root: str, roles: Iterable[str]) -> list[str]:
    """Make every folder that the store needs; return those that were missing. The store itself never makes a parent
    folder (R7)."""
    wanted = wanted_folders(roles)
    missing = [name for name in wanted if not os.path.isdir(f"{root}/{name}")]
    for name in missing:
        fs.mkdir(f"{root}/{name}")
    fs.sync_all(dict.fromkeys([root, *(os.path.dirname(f"{root}/{name}") for name in wanted)]))
    return missing
