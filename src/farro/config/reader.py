"""Find a root and read its config. No other module reads config files or farro's environment variables."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from farro import documents
from farro.config import root_search
from farro.config.root_search import NAMES as NAMES
from farro.config.root_search import own_root as own_root
from farro.config.settings import AGQ, ROLES, STORE_ADDRESS, Secret, Settings
from farro.documents import Document, Path, shapes
from farro.documents.model import SURROGATE
from farro.documents.shapes import Fault
from farro.errors import BadDocument, BadName, InputError, NotARoot, Problem
from farro.jobs import ids
from farro.lazy_dataclass import replace
from farro.roles import provider_rules


def find_root(given: str | None, *, own: bool = False, make: bool = False) -> str:
    """Return the given root, or FARRO_ROOT, or the nearest folder upwards with a config and a jobs folder. With `own`,
    fall back to the user's own root when it exists or, with `make`, to the place where the caller makes it."""
    root = root_search.search(given, own=own)
    if root is not None:
        return root
    named = given or os.environ.get("FARRO_ROOT")
    if named:
        root = os.path.abspath(named)
        raise NotARoot(f"{root} {_why_not(root)}; make one with: farro init --root {named}")
    if own and make:
        return own_root()
    begin = "; or begin without one: farro run -- COMMAND" if own else ""
    raise NotARoot(f"no farro root in {os.getcwd()} or above it; make one here with: farro init{begin}")


def _why_not(root: str) -> str:
    if not os.path.lexists(root):
        return "does not exist"
    if not os.path.isdir(root):
        return "is not a folder, let alone a farro root"
    return "is not a farro root" if os.access(root, os.R_OK | os.X_OK) else "may not be read by you"


def load(root: str, *, warn: Callable[[str], None] = lambda _: None) -> Settings:
    """Load the settings of a root, or raise every problem with its position. No config file means the defaults.

    `warn` is told of each key that is ignored, where the config says `strict: false`.
    """
    try:
        document = _document(root)
        return Settings() if document is None else settings_of(document, os.environ, warn)
    except BadDocument as error:
        raise ConfigError(error.source, error.problems) from error


def changed_at(root: str) -> tuple[str, datetime] | None:
    """Return the name of the config file and when it was last written; None when there is none."""
    for name in NAMES:
        with contextlib.suppress(OSError):
            return name, datetime.fromtimestamp(os.stat(f"{root}/{name}").st_mtime, UTC)
    return None


class Remembered:
    """Loads the settings of a folder, once per content."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Settings] = {}

    def __call__(self, folder: str) -> Settings:
        found = None
        for name in NAMES:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(f"{folder}/{name}")
        if found is None:
            return load(folder)
        which = found.st_ino, found.st_size, found.st_mtime_ns  # a hard link: one file per content
        if which not in self._known:
            if len(self._known) >= _CONFIGS:
                self._known.pop(next(iter(self._known)), None)
            self._known[which] = load(folder)
        return self._known[which]


_CONFIGS = 16


def with_store(settings: Settings, given: str | None = None) -> Settings:
    """Return the settings with the store that `--store` or FARRO_STORE names, if any."""
    named = given if given is not None else os.environ.get("FARRO_STORE") or None
    if named is None:
        return settings
    # agq is not a store: only workers and agx can use it, and opening a store refuses it.
    fault = None if named.startswith(AGQ) else STORE_ADDRESS.fault(named)
    if fault is not None:
        raise InputError(f"{'--store' if given is not None else 'FARRO_STORE'}: {fault}")
    return replace(settings, store=named)


def check_contract(root: str, settings: Settings, roles: Collection[str]) -> None:
    """Refuse agent work for those roles where the config lacks what SPEC-1 §3.1 requires of it. A queue of commands
    needs none of it, so `load` does not ask."""
    document = _document(root)
    if document is None:
        path = f"{root}/{NAMES[0]}"
        message = f"there is no such file, and agents need one; make it with: farro init --root {root}"
        raise ConfigError(path, [Problem(path="", message=message)])
    faults = list(contract_faults(document.data))
    for role in dict.fromkeys(roles):
        if role != "Manager" and settings.providers and settings.provider_of(role) is None:
            message = f"is required for agent work: which of {', '.join(settings.providers)} shall answer it?"
            faults.append(Fault(("roles", role, "provider"), message))
    if faults:
        problems = [_problem(document, fault) for fault in faults]
        raise ConfigError(document.source, documents.refusal(document.source, problems).problems)


def path_of(root: str) -> str:
    """The file of the config, or where it would be."""
    return next((f"{root}/{name}" for name in NAMES if os.path.lexists(f"{root}/{name}")), f"{root}/{NAMES[0]}")


def contract_faults(data: Any) -> Iterator[Fault]:
    """What a config for agents must say, and this one does not."""
    defaults = Settings()
    required: list[tuple[Path, str]] = [
        (("version",), f'"{defaults.version}"'),
        (("security", "max_job_bytes"), str(defaults.security.max_job_bytes)),
        (("security", "payload_allowlist"), json.dumps(defaults.security.payload_allowlist)),
    ]
    for path, example in required:
        if path[-1] not in (data if len(path) == 1 else _members(data, str(path[0]))):
            yield Fault(path, f"is required for agent work, such as {example}")
    if not _members(data, "providers"):
        yield Fault(
            ("providers",),
            "is required for agent work, with somebody who answers; "
            "`farro init --agents claude` (or codex, or gemini) adds one",
        )


def secrets(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What must never be written anywhere: the values of the variables that hold secrets, as far as they are set."""
    found = (environ.get(name, "").strip() for name in settings.secret_variables())
    return tuple(dict.fromkeys(value for value in found if value))


def _document(root: str) -> Document | None:
    """The config's document; None when there is no file."""
    present = [name for name in NAMES if os.path.lexists(f"{root}/{name}")]
    if not present:
        return None
    if len(present) > 1:
        raise ConfigError(root, [Problem(path="", message=f"both {' and '.join(present)} are there; keep one of them")])
    path = f"{root}/{present[0]}"
    try:
        text = _read_file(path, documents.DEFAULT.size)
    except OSError as error:
        raise ConfigError(path, [Problem(path="", message=f"cannot be read: {error.strerror}")]) from error
    return documents.parse(text, path)


def _read_file(path: str, limit: int) -> bytes:
    """Read a regular file, also through a link; a FIFO would block for ever. The parser refuses more than `limit`."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    with open(path, "rb") as file:
        return file.read(limit + 1)


def settings_of(document: Document, environ: Mapping[str, str], warn: Callable[[str], None]) -> Settings:
    """The settings in a document; raises `BadDocument` with every problem and its place, in text order."""
    data, faults = _expand(documents.without_schema(document.data), environ)
    checked = shapes.check(Settings, data)
    unset = {fault.path for fault in faults}  # what stands there instead is nobody's mistake
    faults += [
        fault
        for fault in (*checked.faults, *_wrong_roles(data), *_wrong_providers(document.data))
        if fault.path not in unset
    ]
    lenient = isinstance(data, dict) and data.get("strict") is False
    ignored = [fault for fault in faults if lenient and fault.unknown]
    problems = [_problem(document, fault) for fault in faults if not (lenient and fault.unknown)]
    if checked.value is None or problems:
        raise documents.refusal(document.source, problems)
    for fault in ignored:
        warn(f"{_problem(document, fault).render(document.source)} (ignored)")
    return checked.value


def _wrong_providers(data: Any) -> Iterator[Fault]:
    yield from provider_rules.faults(data, _installed)


def _installed(group: str) -> list[str]:
    """Return the names that installed packages offer in an entry point group. None of them is imported."""
    from importlib.metadata import entry_points  # here: most kinds and programs are farro's own

    return [point.name for point in entry_points(group=group)]


def _problem(document: Document, fault: Fault) -> Problem:
    return document.problem(fault.path, fault.message, key=fault.key)


_VARIABLE = r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{"


def _expand(data: Any, environ: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """`${NAME}` in every text that is a value, from the environment; `$${` is a plain `${`. The value is never told."""
    faults: list[Fault] = []

    def text_at(path: Path, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[0] == "$${":
                return "${"
            name = found[1]
            if name is None:
                faults.append(Fault(path, "`${` begins a variable, ${NAME}; write $${ for these characters themselves"))
            elif name not in environ:
                message = f"the environment has no variable {name}; set it, or write $${{{name}}} for the text itself"
                faults.append(Fault(path, message))
            elif SURROGATE.search(environ[name]):
                faults.append(Fault(path, f"the variable {name} holds bytes that are not UTF-8"))
            return environ.get(name or "", "")

        return re.sub(_VARIABLE, value, text) if "${" in text else text

    def walk(path: Path, value: Any) -> Any:
        if isinstance(value, str):
            return _secret(path, value) or text_at(path, value)
        if isinstance(value, dict):
            return {name: walk((*path, name), member) for name, member in value.items()}
        if isinstance(value, list):
            return [walk((*path, index), member) for index, member in enumerate(value)]
        return value

    return walk((), data), faults


def _secret(path: Path, text: str) -> str | Secret | None:
    """What is not expanded, for it may be a secret: it stays a name until it is used."""
    if path in (("redis", "password"), ("agq", "key"), ("amqp", "password"), ("web", "token")):
        return text
    if path[:1] != ("providers",):
        return None
    if path[2:] in (("api_key",), ("login",)):
        return text
    if path[2:3] == ("options",):
        try:
            return Secret.of_text(text)
        except ValueError:
            return None
    return None


def _wrong_roles(data: Any) -> Iterator[Fault]:
    """Names of roles that no queue could have, and caps for roles that are not there."""
    declared = _members(data, "roles")
    for role in declared:
        try:
            ids.check_role(role)
        except BadName as error:
            yield Fault(("roles", role), str(error), key=True)
    known = (*ROLES, *declared)
    for role in _members(_members(data, "capacity"), "roles"):
        if role not in known:
            message = f"is not a role here; known: {', '.join(known)}. A new one is declared under `roles`"
            yield Fault(("capacity", "roles", role), message, key=True)


def _members(data: Any, name: str) -> dict[str, Any]:
    members = data.get(name) if isinstance(data, dict) else None
    return members if isinstance(members, dict) else {}


class ConfigError(BadDocument):
    """The config is wrong: exit 1 (DESIGN §9)."""

    exit_code = 1
