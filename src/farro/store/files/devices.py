"""Detect queue folders on another device or mount: a rename works only within one filesystem, mounted once."""

from __future__ import annotations

import os

from farro.host import fs, mounts
from farro.jobs import places
from farro.jobs.states import FINISHED


def queue_folders(root: str) -> list[str]:
    """Return every folder between which jobs are moved, relative to the root. Agents' own folders are inside these."""
    found = [
        "agents",
        "jobs",
        *(f"jobs/{name}" for name in (".staging", ".held", ".ids", "outbox", "stale", "quarantine")),
    ]
    for role in sorted(fs.subdirectories(f"{root}/agents")):
        found += [f"agents/{role}", places.incoming(role), places.in_progress(role), f"agents/{role}/completed"]
        found += [places.completed(role, status) for status in FINISHED]
    return [*found, places.WAITING]


def apart(root: str) -> list[str]:
    """Return the queue folders that a rename from the root's own device cannot reach: on another device, or mounted
    into the root. A mount of the same device raises EXDEV too."""
    inside = [os.path.relpath(point, os.path.realpath(root)) for point in mounts.points_below(root)]
    home, found = os.stat(root).st_dev, []
    for name in queue_folders(root):
        try:
            other = os.stat(f"{root}/{name}").st_dev != home
        except FileNotFoundError:
            continue
        if other or any(name == point or name.startswith(f"{point}/") for point in inside):
            found.append(name)
    return found
