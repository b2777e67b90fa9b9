"""Collect what a program may read besides what every program needs (docs/sandbox.md, "Know what an agent can read")."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from farro.agents.providers.port import Reach
from farro.config.settings import ProviderSettings


def read_paths(settings: ProviderSettings, reach: Reach, root: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what the config names: as `read_paths`, and as a word of the command; the job's payload; and the
    repository of `root`, where the program works."""
    home = environ.get("HOME", "/")
    listed = (*settings.read_paths, *reach.reads)
    paths = [f"{home}/{path[2:]}" if path.startswith("~/") else path for path in listed]
    named = [word for word in (settings.command or ())[1:] if os.path.isabs(word) and os.path.exists(word)]
    return tuple(os.path.join(reach.root, path) for path in (*paths, *named, *_repository(root)))


def _repository(root: str) -> Iterator[str]:
    """Yield where git keeps the repository: beside the root of it, or elsewhere if it is a worktree."""
    while not os.path.lexists(f"{root}/.git"):
        if root == os.path.dirname(root):
            return
        root = os.path.dirname(root)
    place = f"{root}/.git"
    yield place
    with contextlib.suppress(OSError, ValueError):
        if os.path.isfile(place):
            own = os.path.join(root, _line(place).removeprefix("gitdir: "))
            yield own
            yield os.path.join(own, _line(f"{own}/commondir"))


def _line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(4096).strip()
