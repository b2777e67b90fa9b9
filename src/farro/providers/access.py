"""How a provider is reached: its address and its key, and which variable to name when the key is not there.

Reading the config lives in config; what goes over the wire, in providers.wire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farro.ports.provider import ProviderTrouble
from farro.settings import ProviderSettings

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NO_KEY = "none"  # the libraries insist on one; a server of one's own, without keys, ignores it


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Invariant: `key` is in no text that leaves this process except the request itself."""

    base_url: str
    key: str = field(repr=False)
    told_as: str  # where the key is from, for people: "the variable OPENAI_API_KEY"

    def without_key(self, text: str) -> str:
        return text if self.key == NO_KEY else text.replace(self.key, "[key]")


def access_to(
    name: str, settings: ProviderSettings, environ: Mapping[str, str], *, base_url: str, variables: Sequence[str]
) -> Access:
    """ProviderTrouble of kind `missing` names the variable that is not set.

    Without `api_key` the usual variables count, but only for the kind's own address: a key is never handed to another
    host because it happened to be in the environment.
    """
    if settings.api_key is not None:
        key, told_as = configured_key(name, settings.api_key, environ)
        return Access(base_url=settings.base_url or base_url, key=key, told_as=told_as)
    if settings.base_url is not None:
        told_as = f"providers.{name}.api_key, which is not set"
        return Access(base_url=settings.base_url, key=NO_KEY, told_as=told_as)
    for variable in variables:
        if environ.get(variable):
            return Access(base_url=base_url, key=environ[variable].strip(), told_as=f"the variable {variable}")
    raise _missing(f"provider {name} has no key: set the variable {variables[0]}, or providers.{name}.api_key")


def configured_key(name: str, api_key: Any, environ: Mapping[str, str]) -> tuple[str, str]:
    """The key that the config names, and how to speak of it: the one place that knows what `api_key` is made of."""
    text = str(api_key)
    named = _VARIABLE.findall(text)
    for variable in named:
        if not environ.get(variable):
            raise _missing(
                f"provider {name} has no key: the environment has no variable {variable}, which "
                f"providers.{name}.api_key names; set it"
            )
    told_as = f"the variable {named[0]}" if named else f"providers.{name}.api_key"
    return _VARIABLE.sub(lambda found: environ[found[1]], text).strip(), told_as


def _missing(message: str) -> ProviderTrouble:
    return ProviderTrouble(message, kind="missing", retryable=False, charged=False)
