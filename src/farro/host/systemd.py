"""Talk to systemd's user manager."""

from __future__ import annotations

import os
import shutil  # noqa: TID251 - `which` looks, it changes nothing
import subprocess
from collections.abc import Mapping

_PATIENCE_S = 60.0


def unit_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the user's units."""
    return os.path.join(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")


def unavailable() -> str | None:
    """Return why the user manager cannot be used; None when it can."""
    if shutil.which("systemctl") is None:
        return "systemctl is not installed"
    code, said = ask("show-environment")
    return None if code == 0 else f"the user manager does not answer ({said.splitlines()[0] if said else 'no reason'})"


def ask(*arguments: str) -> tuple[int, str]:
    """Run `systemctl --user …`; return its exit code and output."""
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
