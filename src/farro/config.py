"""Finding a root and reading its config: the only reader of config files and of farro's environment variables.

What can be configured lives in settings; what the values do lives where they are used.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from farro import documents
from farro.documents import Document, Path
from farro.errors import BadDocument, BadName, NotARoot, Problem
from farro.kernel import ids
from farro.settings import RoleSettings, Settings, ToolSettings
from farro.system import fs

NAMES = ("agents-config.json", "agents-config.yaml")


def find_root(given: str | None) -> str:
    """The root that was named, or FARRO_ROOT, or the nearest folder upwards that has a config and a jobs folder."""
    named = given or os.environ.get("FARRO_ROOT")
    if named:
        root = os.path.abspath(named)
        if not os.path.isdir(f"{root}/jobs"):
            raise NotARoot(f"{root} {_why_not(root)}; make one with: farro init --root {named}")
        return root
    here = os.getcwd()
    while True:
        if any(os.path.lexists(f"{here}/{name}") for name in NAMES) and os.path.isdir(f"{here}/jobs"):
            return here
        parent = os.path.dirname(here)
        if parent == here:
            raise NotARoot(f"no farro root in {os.getcwd()} or above it; make one here with: farro init")
        here = parent


def _why_not(root: str) -> str:
    if not os.path.lexists(root):
        return "does not exist"
    if not os.path.isdir(root):
        return "is not a folder, let alone a farro root"
    return "is not a farro root" if os.access(root, os.R_OK | os.X_OK) else "may not be read by you"


def load(root: str) -> Settings:
    """The root's settings; every problem at once, with its place. No config file means the defaults."""
    present = [name for name in NAMES if os.path.lexists(f"{root}/{name}")]
    if not present:
        return Settings()
    if len(present) > 1:
        raise ConfigError(root, [Problem(path="", message=f"both {' and '.join(present)} are there; keep one of them")])
    path = f"{root}/{present[0]}"
    try:
        text = fs.read_regular(path, documents.DEFAULT.size)
    except OSError as error:
        raise ConfigError(path, [Problem(path="", message=f"cannot be read: {error.strerror}")]) from error
    try:
        return _settings(documents.parse(text, path))
    except BadDocument as error:
        raise ConfigError(error.source, error.problems) from error


def _settings(document: Document) -> Settings:
    from pydantic import ValidationError

    problems = list(_bad_roles(document))
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        problems += documents.problems_from_pydantic(document, error, known=_known).problems
        raise documents.refusal(document.source, problems) from error
    if problems:
        raise documents.refusal(document.source, problems)
    return settings


def _bad_roles(document: Document) -> list[Problem]:
    roles = document.data.get("roles") if isinstance(document.data, dict) else None
    found = []
    for role in roles if isinstance(roles, dict) else ():
        try:
            ids.check_role(role)
        except BadName as error:
            found.append(document.problem(("roles", role), str(error), key=True))
    return found


def _known(path: Path) -> Collection[str]:
    """The fields that may stand where the last part of that path stands."""
    match path:
        case (_,):
            return list(Settings.model_fields)
        case ("tools", _, _):
            return list(ToolSettings.model_fields)
        case ("roles", _, _):
            return list(RoleSettings.model_fields)
        case (str(section), _) if section in Settings.model_fields:
            return list(getattr(Settings.model_fields[section].annotation, "model_fields", ()))
    return ()


class ConfigError(BadDocument):
    """The config is wrong: exit 1 (DESIGN §9)."""

    exit_code = 1
