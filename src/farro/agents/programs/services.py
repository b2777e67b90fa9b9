"""The services behind programs: which one has a model, and what to say when a key is missing."""

from __future__ import annotations

from typing import Literal

from farro.errors import InputError
from farro.lazy_dataclass import dataclass

Service = Literal["anthropic", "openai", "google", "other"]
_KNOWN: dict[str, Service] = {"anthropic": "anthropic", "openai": "openai", "google": "google", "gemini": "google"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceModel:
    """A model and the service that has it."""

    service: Service  # other: a server with the chat completions API
    name: str  # as the service calls it


def service_model(program: str, model: str | None) -> ServiceModel:
    """Split a name such as `anthropic/claude-sonnet-5`; a name without a service means a chat completions server."""
    if model is None:
        raise InputError(
            f"{program} can ask several services: set model of its provider, such as anthropic/claude-sonnet-5, "
            "openai/gpt-5, google/gemini-3-flash, or the name of a model on a server of your own"
        )
    first, slash, rest = model.partition("/")
    if slash and first in _KNOWN:
        return ServiceModel(service=_KNOWN[first], name=rest)
    return ServiceModel(service="other", name=rest if slash and first == "other" else model)


def refuse_login(program: str) -> InputError:
    """Return the error for a login that cannot be used."""
    return InputError(f"{program} cannot use a login through the gateway: set api_key of its provider instead")


def missing_key(program: str, variable: str) -> InputError:
    """Return the error for a program that has neither a gateway nor a key of its own."""
    return InputError(
        f'{program} has no key: set api_key: "${{{variable}}}" of its provider, and the variable {variable} where '
        "workers are started"
    )


def missing_own_key(program: str, service: str, variable: str) -> InputError:
    """Return the error for a program that works with its maker's service and a key of its own only."""
    return InputError(
        f"{program} reaches models through {service} only, with a key of its own: leave out api_key and login of its "
        f'provider, set environment: ["{variable}"] and network: true, and that variable where workers are started'
    )
