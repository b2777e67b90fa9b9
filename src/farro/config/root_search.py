"""Look for a root. It imports only `os`: Tab waits for it."""

from __future__ import annotations

import os

NAMES = ("agents-config.json", "agents-config.yaml")


def search(given: str | None, *, own: bool) -> str | None:
    """Return the given root, or FARRO_ROOT, or the nearest folder upwards with a config and a jobs folder, or, with
    `own`, the user's own root; None where that is no root."""
    named = given or os.environ.get("FARRO_ROOT")
    if named:
        root = os.path.abspath(named)
        return root if os.path.isdir(f"{root}/jobs") else None
    here = os.getcwd()
    while not (any(os.path.lexists(f"{here}/{name}") for name in NAMES) and os.path.isdir(f"{here}/jobs")):
        parent = os.path.dirname(here)
        if parent == here:
            return own_root() if own and os.path.isdir(f"{own_root()}/jobs") else None
        here = parent
    return here


def own_root() -> str:
    """Return the root for users who made none: in their state folder, not in the current repository."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = state if os.path.isabs(state) else os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "farro")
