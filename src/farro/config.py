"""Finding a root and reading its config: the only reader of config files and of farro's environment variables.

What can be configured lives in settings; what the values do lives where they are used.
"""

from __future__ import annotations

import os

from farro import documents
from farro.errors import BadDocument, InputError, NotARoot, Problem
from farro.settings import Settings
from farro.system import fs

NAMES = ("agents-config.json", "agents-config.yaml")


def find_root(given: str | None) -> str:
    """The root that was named, or FARRO_ROOT, or the nearest folder upwards that has a config and a jobs folder."""
    named = given or os.environ.get("FARRO_ROOT")
    if named:
        root = os.path.abspath(named)
        if not os.path.isdir(f"{root}/jobs"):
            raise NotARoot(f"{root} is not a farro root; make one with: farro init --root {named}")
        return root
    here = os.getcwd()
    while True:
        if any(os.path.isfile(f"{here}/{name}") for name in NAMES) and os.path.isdir(f"{here}/jobs"):
            return here
        parent = os.path.dirname(here)
        if parent == here:
            raise NotARoot(f"no farro root in {os.getcwd()} or above it; make one here with: farro init")
        here = parent


def load(root: str) -> Settings:
    """The root's settings; every problem at once, with its place. No config file means the defaults."""
    present = [name for name in NAMES if os.path.exists(f"{root}/{name}")]
    if not present:
        return Settings()
    if len(present) > 1:
        raise ConfigError(root, [Problem(path="", message=f"both {' and '.join(present)} are there; keep one of them")])
    path = f"{root}/{present[0]}"
    try:
        text = fs.read_bytes(path, documents.DEFAULT.size)
    except OSError as error:
        raise ConfigError(path, [Problem(path="", message=f"cannot be read: {error.strerror}")]) from error
    from pydantic import ValidationError

    try:
        document = documents.parse(text, path)
        return Settings.model_validate(document.data)
    except BadDocument as error:
        raise ConfigError(error.source, error.problems) from error
    except ValidationError as error:
        found = documents.problems_from_pydantic(document, error)
        raise ConfigError(found.source, found.problems) from error


class ConfigError(BadDocument, InputError):
    """The config is wrong: exit 1 (DESIGN §9)."""

    exit_code = 1
