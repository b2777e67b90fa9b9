"""Talk to systemd's user manager."""

from __future__ import annotations

import os
from collections.abc import Mapping

from farro.host import programs

_PATIENCE_S = 60.0
_LIMIT = 1 << 20  # bytes of an answer


def unit_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the user's units."""
    return os.path.join(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")


def unavailable() -> str | None:
    """Return why the user manager cannot be used; None when it can."""
    if programs.which("systemctl", os.environ.get("PATH"), "/") is None:
        return "systemctl is not installed"
    code, said = ask("show-environment")
    return None if code == 0 else f"the user manager does not answer ({said.splitlines()[0] if said else 'no reason'})"


def ask(*arguments: str) -> tuple[int, str]:
    """Run `systemctl --user …`; return its exit code and output."""
    argv = ["systemctl", "--user", *arguments]
    answer = programs.ask(argv, timeout_s=_PATIENCE_S, limit=_LIMIT, cwd="/", env=os.environ, errors=True)
    said = answer.stdout.decode("utf-8", "replace").strip()
    return (0, said) if answer.trouble is None else (answer.code or 1, said or answer.trouble)
