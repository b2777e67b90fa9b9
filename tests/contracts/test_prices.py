"""Prices of models come from the config, then from the installed tables; an unknown price is never 0."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.agents.providers.port import Usage
from farro.agents.providers.prices import OVERHEAD_TOKENS, GenaiPrices
from farro.config.settings import PriceSettings, ProviderSettings
from farro.host.clock import ManualClock
from farro.store.ledger import Prices

MILLION = Decimal(1_000_000)


def prices(**providers: ProviderSettings) -> GenaiPrices:
    return GenaiPrices(providers, ManualClock(datetime(2026, 11, 16, tzinfo=UTC)))


def usage(given: int, made: int, read: int = 0, written: int = 0) -> Usage:
    return Usage(input_tokens=given, output_tokens=made, cache_read_tokens=read, cache_write_tokens=written)


@pytest.mark.parametrize(
    ("provider", "model", "rates", "used"),
    [
        # dollars per million tokens: input, output, cache read, cache write
        ("openai", "gpt-4o-mini", ("0.15", "0.6", "0.075", "0.15"), usage(1000, 200)),
        ("openai", "gpt-4o-mini", ("0.15", "0.6", "0.075", "0.15"), usage(1000, 200, 900)),
        ("openai", "gpt-5", ("1.25", "10", "0.125", "1.25"), usage(123_457, 8191, 100_001, 10)),
        ("google", "gemini-2.5-pro", ("1.25", "10", "0.125", "1.25"), usage(200_000, 1000, 3)),
        ("google", "gemini-2.5-pro", ("2.5", "15", "0.25", "2.5"), usage(200_001, 1000, 3)),
        ("openrouter", "openai/gpt-5", ("1.25", "10", "0.125", "1.25"), usage(77, 1)),
        ("openrouter", "anthropic/claude-sonnet-4.5", ("3", "15", "0.3", "3.75"), usage(1000, 10, 300, 200)),
        ("openrouter", "anthropic/claude-sonnet-4.5", ("6", "22.5", "0.6", "7.5"), usage(200_001, 10, 300, 200)),
    ],
)
def test_the_prices_of_known_models_come_from_the_tables(
    provider: str, model: str, rates: tuple[str, str, str, str], used: Usage
) -> None:
    given_, made, read, written = map(Decimal, rates)
    plain = used.input_tokens - used.cache_read_tokens - used.cache_write_tokens
    wanted = plain * given_ + used.cache_read_tokens * read + used.cache_write_tokens * written
    wanted = (wanted + used.output_tokens * made) / MILLION
    assert prices().cost_usd(provider, model, used) == wanted


@pytest.mark.parametrize(
    ("provider", "model", "prompt", "rates"),
    [
        ("openai", "gpt-5", 10_000, ("1.25", "10")),
        ("google", "gemini-2.5-pro", 200_000 - OVERHEAD_TOKENS, ("1.25", "10")),
        ("google", "gemini-2.5-pro", 200_001, ("2.5", "15")),  # the higher rate applies to all of its tokens
        ("openrouter", "anthropic/claude-sonnet-4.5", 1000, ("3.75", "15")),  # all tokens may be written to a cache
    ],
)
def test_the_highest_cost_uses_the_dearest_tier_in_reach(
    provider: str, model: str, prompt: int, rates: tuple[str, str]
) -> None:
    given_, made = map(Decimal, rates)
    wanted = ((prompt + OVERHEAD_TOKENS) * given_ + 8192 * made) / MILLION
    assert prices().most_usd(provider, model, prompt_bytes=prompt, max_output_tokens=8192) == wanted


@pytest.mark.parametrize(
    ("provider", "model", "settings"),
    [
        ("openai", "no-such-model", None),
        ("openai", None, None),
        ("nobody", "gpt-5", None),
        ("agent", "gpt-5", ProviderSettings(kind="cli")),
        ("mine", "gpt-5", ProviderSettings(kind="openai", base_url="http://127.0.0.1:8000/v1")),
        ("openai", "text-embedding-3-small", None),  # no price for its output
    ],
)
def test_an_unknown_price_is_none_and_never_zero(
    provider: str, model: str | None, settings: ProviderSettings | None
) -> None:
    asked: Prices = prices(**({} if settings is None else {provider: settings}))
    assert asked.cost_usd(provider, model, usage(1000, 100)) is None
    assert asked.most_usd(provider, model, prompt_bytes=1000, max_output_tokens=100) is None


def test_the_configs_prices_come_first() -> None:
    own = {"gpt-5": PriceSettings(input_usd=0.1, output_usd=0.2), "mine": PriceSettings(input_usd=0.0, output_usd=0.0)}
    asked = prices(openai=ProviderSettings(prices=own, model="gpt-5"))
    assert asked.cost_usd("openai", "gpt-5", usage(10, 1)) == Decimal("0.0000012")
    assert asked.cost_usd("openai", None, usage(10, 1)) == Decimal("0.0000012")  # its own model
    assert asked.cost_usd("openai", "mine", usage(10, 1)) == 0
    assert asked.cost_usd("openai", "gpt-4o-mini", usage(10, 0)) == Decimal("0.0000015")
    wanted = (1000 + OVERHEAD_TOKENS) * Decimal("0.1") / MILLION + 100 * Decimal("0.2") / MILLION
    assert asked.most_usd("openai", "gpt-5", prompt_bytes=1000, max_output_tokens=100) == wanted


def test_the_config_sets_the_highest_cost_of_a_call_that_cannot_be_computed() -> None:
    asked = prices(agent=ProviderSettings(kind="cli", call_usd=0.1), openai=ProviderSettings(call_usd=99.0))
    assert asked.most_usd("agent", None, prompt_bytes=10**6, max_output_tokens=10**6) == Decimal("0.1")
    assert asked.cost_usd("agent", None, usage(10, 1)) is None
    known = asked.most_usd("openai", "gpt-5", prompt_bytes=10, max_output_tokens=10)
    assert known is not None
    assert known < 1


def test_a_scripted_answer_and_a_free_model_cost_nothing() -> None:
    asked = prices(demo=ProviderSettings(kind="scripted"))
    for provider, model in (("demo", "any"), ("scripted", None), ("openrouter", "qwen/qwen3-coder:free")):
        assert asked.cost_usd(provider, model, usage(1000, 100)) == 0
        assert asked.most_usd(provider, model, prompt_bytes=1000, max_output_tokens=100) == 0


def test_a_server_elsewhere_is_priced_by_its_address() -> None:
    asked = prices(deep=ProviderSettings(kind="openai", base_url="https://api.deepseek.com/v1"))
    assert asked.cost_usd("deep", "deepseek-chat", usage(1000, 100)) is not None
    assert asked.cost_usd("deep", "gpt-5", usage(1000, 100)) is None


def test_more_cached_tokens_than_input_is_an_unknown_cost() -> None:
    assert prices().cost_usd("openai", "gpt-5", usage(10, 10, read=11)) is None


def test_a_price_change_during_the_call_stays_within_the_highest_cost() -> None:
    """OpenRouter's gemini-2.5-pro has tiers from 2026-10-19 on."""
    eve = datetime(2026, 10, 18, 23, 59, 59, tzinfo=UTC)
    asked, later = GenaiPrices({}, ManualClock(eve)), prices()
    ask = ("openrouter", "google/gemini-2.5-pro")
    most = asked.most_usd(*ask, prompt_bytes=300_000, max_output_tokens=100)
    cost = later.cost_usd(*ask, usage(300_000, 100))
    assert most is not None
    assert cost is not None
    assert asked.cost_usd(*ask, usage(300_000, 100)) != cost
    assert cost <= most


@cache
def known() -> list[tuple[str, str]]:
    return list(_known())


def _known() -> Iterator[tuple[str, str]]:
    from genai_prices import data_snapshot

    for provider in data_snapshot.get_snapshot().providers:
        if provider.id in ("openai", "google", "openrouter"):
            yield from ((provider.id, model.id) for model in provider.models)


@given(data=st.data(), prompt=st.integers(0, 2_000_000), most_made=st.integers(1, 200_000))
def test_a_call_within_its_bounds_never_exceeds_the_highest_cost(data: Any, prompt: int, most_made: int) -> None:
    provider, model = data.draw(st.sampled_from(known()))
    given_ = data.draw(st.integers(0, prompt + OVERHEAD_TOKENS))
    made = data.draw(st.integers(0, most_made))
    read = data.draw(st.integers(0, given_))
    written = data.draw(st.integers(0, given_ - read))
    asked = prices()
    most = asked.most_usd(provider, model, prompt_bytes=prompt, max_output_tokens=most_made)
    cost = asked.cost_usd(provider, model, usage(given_, made, read, written))
    assert (most is None) == (cost is None)
    if most is not None and cost is not None:
        assert 0 <= cost <= most


def test_prices_are_loaded_on_first_use() -> None:
    code = "import sys, farro.agents.providers.prices as p; p.GenaiPrices({}); print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
