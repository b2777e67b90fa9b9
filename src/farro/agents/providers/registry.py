"""Make providers of every kind: farro's own and those of installed packages.

A kind is a name and a ProviderFactory. A package adds one as an entry point in the group `farro.providers`:

    [project.entry-points."farro.providers"]
    acme = "acme_farro:make"

`kind: acme` in the config then means what `make` returns. docs/providers.md shows a complete provider.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from farro.agents.providers.port import Provider
from farro.config.settings import ProviderSettings
from farro.documents import did_you_mean
from farro.errors import InputError
from farro.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from farro.agents.gateway.port import Admission, GatewayRun

GROUP = "farro.providers"

BUILT_IN = {
    "openai": "farro.agents.providers.http:openai",
    "google": "farro.agents.providers.http:google",
    "openrouter": "farro.agents.providers.http:openrouter",
    "cli": "farro.agents.providers.cli:make",
    "acp": "farro.agents.providers.acp:make",
    "scripted": "farro.agents.providers.scripted:make",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a provider is made."""

    root: str  # relative paths in the config are relative to this
    environ: Mapping[str, str]  # holds the secrets; never os.environ itself
    admit: Callable[[GatewayRun], Admission] | None = None  # to the model gateway; None: there is none


class ProviderFactory(Protocol):
    def __call__(self, name: str, settings: ProviderSettings, place: Place, /) -> Provider:
        """Return the provider that the config calls `name`.

        Cheap: libraries are imported and connections made by the first call. What a call lacks (a key, a file) is that
        call's ProviderTrouble of kind `failed`; settings that cannot work raise InputError.
        """


class UnknownProvider(InputError):
    """The config names a kind of provider that is not installed or cannot be loaded."""


def make_provider(
    name: str,
    settings: ProviderSettings,
    *,
    root: str,
    environ: Mapping[str, str],
    admit: Callable[[GatewayRun], Admission] | None = None,
) -> Provider:
    """Make the provider of that name as configured. Raises UnknownProvider for an unknown kind."""
    kind = settings.kind or name
    return _factory(name, kind)(name, settings, Place(root=root, environ=environ, admit=admit))


def kinds() -> tuple[str, ...]:
    """List every kind that is built in or installed."""
    return (*BUILT_IN, *sorted(name for name in _installed() if name not in BUILT_IN))


def _factory(name: str, kind: str) -> ProviderFactory:
    reference = BUILT_IN.get(kind)
    if reference is not None:
        return _load(reference)
    reference = _installed().get(kind)
    if reference is None:
        raise UnknownProvider(f"providers.{name}.kind: {_unknown(kind)}")
    try:
        return _load(reference)
    except Exception as error:  # a package may raise anything while it is imported
        message = f"providers.{name}.kind: {kind} cannot be loaded from {reference}: {type(error).__name__}: {error}"
        raise UnknownProvider(message) from error


def _load(reference: str) -> ProviderFactory:
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError("it is not a function")
    factory: ProviderFactory = found
    return factory


def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # imported late: slow, and the built-in kinds do not need it

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def _unknown(kind: str) -> str:
    known = kinds()
    hint = did_you_mean(kind, known)
    return (
        f"there is no provider {kind} here; {hint}{hint and ' '}There is {', '.join(known)}; others come with packages"
    )
