"""Prices of models (port: Prices): from the config, else from the installed tables of genai-prices.

Uses no network; genai-prices is imported by the first question.

- Amounts are exact decimals: nothing is rounded on the way into the ledger.
- `most_usd` is an upper bound, not an estimate: a token has at least one byte, so a prompt has no more tokens than
  bytes; all of them are charged at the highest rate (read, written to a cache, in the most expensive tier in reach).
- Unknown (None): a model without a price in both sources, a command whose model nobody knows, and a server elsewhere
  (`base_url`) that the tables do not know by its address: what it calls gpt-5 need not cost what OpenAI's does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from farro.agents.providers.port import Usage
from farro.config.settings import PriceSettings, ProviderSettings
from farro.host.clock import Clock, SystemClock
from farro.roles.money import exact

FREE = "scripted"  # answers from a file cost nothing
OVERHEAD_TOKENS = 256  # what a provider adds to the messages: roles, separators, words about the schema
_SELLERS = {"claude": "anthropic", "codex": "openai", "gemini": "google"}  # others: as the model's name begins
_MILLION = Decimal(1_000_000)
_THOUSAND = Decimal(1_000)
_CACHE = ("cache_read", "cache_write", "cache_write_5m", "cache_write_1h")
_INPUT = ("input_mtok", "input_text_mtok", *(f"{kind}_mtok" for kind in _CACHE))
_OUTPUT = ("output_mtok", "output_text_mtok", "output_reasoning_mtok")


class GenaiPrices:
    """Prices by the name of a provider in the config. Safe from many threads."""

    def __init__(self, providers: Mapping[str, ProviderSettings], clock: Clock | None = None) -> None:
        self._providers = providers
        self._clock = clock or SystemClock()

    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        settings, model = self._asked(provider, model)
        if (own := _own(settings, model)) is not None:
            return _configured(own, usage.input_tokens, usage.output_tokens)
        if (settings.kind or provider) == FREE:
            return Decimal(0)
        found = _find(_seller(provider, settings), settings.base_url, model)
        prices = None if found is None else found.get_prices(self._clock.now())
        if prices is None or not _whole(prices):
            return Decimal(0) if found is not None and _free(found) else None
        from genai_prices import Usage as Counted

        counted = Counted(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
        )
        with contextlib.suppress(ValueError):  # more cached tokens than tokens: the cost is unknown
            return Decimal(prices.calc_price(counted)["total_price"])
        return None

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        settings, model = self._asked(provider, model)
        tokens = prompt_bytes + OVERHEAD_TOKENS
        if (own := _own(settings, model)) is not None:
            return _configured(own, tokens, max_output_tokens)
        if (settings.kind or provider) == FREE:
            return Decimal(0)
        found = _find(_seller(provider, settings), settings.base_url, model)
        if found is not None and _free(found):
            return Decimal(0)
        if found is not None:
            now = self._clock.now()
            # A price may change during the call: the higher one counts.
            bounds = [_most(found.get_prices(at), tokens, max_output_tokens) for at in (now, now + timedelta(days=1))]
            if None not in bounds:
                return max(bound for bound in bounds if bound is not None)
        return None if settings.call_usd is None else exact(settings.call_usd)

    def _asked(self, provider: str, model: str | None) -> tuple[ProviderSettings, str | None]:
        settings = self._providers.get(provider) or ProviderSettings()
        return settings, model or settings.model


def _seller(provider: str, settings: ProviderSettings) -> str:
    """Return the service that sells the tokens, as the tables call it."""
    if settings.program is None:
        return settings.kind or provider
    return _SELLERS.get(settings.program) or (settings.model or "").partition("/")[0]


def _own(settings: ProviderSettings, model: str | None) -> PriceSettings | None:
    return None if model is None else settings.prices.get(model)


def _configured(price: PriceSettings, input_tokens: int, output_tokens: int) -> Decimal:
    return (exact(price.input_usd) * input_tokens + exact(price.output_usd) * output_tokens) / _MILLION


def _find(kind: str, base_url: str | None, model: str | None) -> Any:
    """Return the model in the tables, or None."""
    if model is None:
        return None
    try:
        from genai_prices import data_snapshot
    except ImportError:  # installed without the extra `agents`
        return None
    tables = data_snapshot.get_snapshot()
    if base_url is None and not any(known.id == kind for known in tables.providers):
        return None
    with contextlib.suppress(LookupError):
        return tables.find_provider_model(model, None, None if base_url else kind, base_url)[1]
    return None


def _free(model: Any) -> bool:
    return bool(model.id.endswith(":free"))  # OpenRouter marks free models so


def _whole(prices: Any) -> bool:
    """Tell whether both directions have a price: without one of them those tokens would count as free."""
    return _dearest(prices, _INPUT, 0) is not None and _dearest(prices, _OUTPUT, 0) is not None


def _most(prices: Any, input_tokens: int, output_tokens: int) -> Decimal | None:
    reading, writing = _dearest(prices, _INPUT, input_tokens), _dearest(prices, _OUTPUT, input_tokens)
    if reading is None or writing is None:
        return None
    asking = getattr(prices, "requests_kcount", None)
    return (reading * input_tokens + writing * output_tokens) / _MILLION + (asking or Decimal(0)) / _THOUSAND


def _dearest(prices: Any, keys: tuple[str, ...], input_tokens: int) -> Decimal | None:
    return max((rate for key in keys for rate in _rates(getattr(prices, key, None), input_tokens)), default=None)


def _rates(price: Any, input_tokens: int) -> Iterator[Decimal]:
    """Yield the base rate and the rate of each tier in reach; a higher tier may be cheaper."""
    if isinstance(price, Decimal):
        yield price
    elif price is not None:
        yield price.base
        yield from (tier.price for tier in price.tiers if input_tokens > tier.start)
