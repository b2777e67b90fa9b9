"""Fixtures for providers over HTTP: a fake server of one kind, and the provider that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from contracts.providers import MODELS, make_ready
from fake_providers import FakeProvider, Reply
from farro.agents.providers.port import Provider
from farro.agents.providers.registry import make_provider
from farro.config.settings import ProviderSettings, Secret
from farro.testing.provider import KEY

Open = Callable[..., tuple[Provider, FakeProvider]]


@pytest.fixture
def talk() -> Iterator[Open]:
    """Return `talk(kind, reply, …, stream=…)`, which makes a provider and the server that it calls."""
    made: list[Provider | FakeProvider] = []

    def opened(kind: str, *replies: Reply, **settings: Any) -> tuple[Provider, FakeProvider]:
        make_ready(kind)
        server = FakeProvider(kind, *replies)
        options = {"api_key": Secret("CANARY"), "base_url": server.base_url, "model": MODELS[kind], **settings}
        provider = make_provider("p", ProviderSettings(kind=kind, **options), root="/nowhere", environ={"CANARY": KEY})
        made.extend((provider, server))
        return provider, server

    yield opened
    for each in made:
        each.close()
