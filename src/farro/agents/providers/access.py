"""How a provider is reached: its address and its key, and which variable to name when the key is not there.

Reading the config lives in config; what goes over the wire, in providers.wire.
"""

from __future__ import annotations

from collections.abc import Mapping

from farro.agents.providers.port import ProviderTrouble
from farro.config.settings import ProviderSettings, Secret
from farro.errors import InputError
from farro.lazy_dataclass import dataclass, field

NO_KEY = "none"  # the libraries insist on one; a server of one's own, without keys, ignores it


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderAccess:
    """Invariant: `key` is in no text that leaves this process except the request itself."""

    base_url: str
    key: str = field(repr=False)
    told_as: str  # where the key is from, for people: "the variable OPENAI_API_KEY"

    def without_key(self, text: str) -> str:
        return text if self.key == NO_KEY else text.replace(self.key, "[key]")


def access_to(
    name: str, settings: ProviderSettings, environ: Mapping[str, str], *, base_url: str, variable: str
) -> ProviderAccess:
    """ProviderTrouble of kind `missing` names the variable that is not set, or would usually hold the key.

    A key is sent only where the config names it: one that merely happens to be in the environment is nobody's to send,
    least of all to another address than its owner's.
    """
    if settings.api_key is not None:
        key, told_as = configured_key(name, settings.api_key, environ)
        return ProviderAccess(base_url=settings.base_url or base_url, key=key, told_as=told_as)
    if settings.base_url is None:
        raise _missing(f"provider {name} has no key: set providers.{name}.api_key, such as to ${{{variable}}}")
    return ProviderAccess(base_url=settings.base_url, key=NO_KEY, told_as=f"providers.{name}.api_key, which is not set")


def configured_key(name: str, api_key: Secret, environ: Mapping[str, str]) -> tuple[str, str]:
    """The key that the config names, and how to speak of it."""
    try:
        key = api_key.reveal(environ, f"provider {name}")
    except InputError as error:
        raise _missing(str(error)) from None
    if not (key.isascii() and key.isprintable() and " " not in key):
        # Libraries complain of such a header by showing it, and in a form that is not searched for.
        raise _missing(f"the variable {api_key.name} holds no key: there is a blank, a line break or the like in it")
    return key, f"the variable {api_key.name}"


def _missing(message: str) -> ProviderTrouble:
    return ProviderTrouble(message, kind="missing", retryable=False, charged=False)
