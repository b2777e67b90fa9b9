"""systemd's user manager: whether it is there, and asking it. Nothing here knows what a unit is for.

The text of units lives in operations.service_units.
"""

from __future__ import annotations

import os
import shutil  # noqa: TID251 - `which` looks, it changes nothing
import subprocess
from collections.abc import Mapping

_PATIENCE_S = 60.0


def unit_folder(env: Mapping[str, str]) -> str:
    """Where a user's units lie."""
    return os.path.join(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")


def unavailable() -> str | None:
    """Why the user manager cannot be asked here; None when it can."""
    if shutil.which("systemctl") is None:
        return "systemctl is not installed"
    code, said = ask("show-environment")
    return None if code == 0 else f"the user manager does not answer ({said.splitlines()[0] if said else 'no reason'})"


def ask(*arguments: str) -> tuple[int, str]:
    """`systemctl --user …`: its exit code and what it said."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()
