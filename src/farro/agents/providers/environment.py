"""The environment of the programs that a provider starts: what was named for them, and the marks they are found by.

Which variables a config names lives in settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farro.execution.step import TRY
from farro.host.processes import MARKER

ALWAYS = ("PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM")  # no secret is in these


def named(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What these name; `LC_*` names all that begin so."""
    wanted = set(names)
    beginnings = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name: value for name, value in environ.items() if name in wanted or name.startswith(beginnings)}


def own_mark(env: Mapping[str, str]) -> str:
    """What the processes of one try carry, and no other's do."""
    return f"{TRY}={env[TRY]}" if TRY in env else f"{MARKER}={env[MARKER]}"
