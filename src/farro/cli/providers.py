"""`farro provider-test`: does the provider of a role answer? Asking it lives in operations.provider_test."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from farro.cli.options import common, read_root
from farro.cli.terminal import answer, note, say
from farro.execution.agents.calling import Tried
from farro.guard.redaction import Redactor
from farro.operations import provider_test as operations
from farro.operations.provider_test import PROMPT, Tested
from farro.ports.provider import ProviderTrouble, Usage
from farro.providers.prices import GenaiPrices
from farro.providers.registry import make_provider
from farro.system import fs, trees
from farro.system.clock import SystemClock

_LONGEST = 2000  # characters of an answer that are shown; --json has all


@click.command("provider-test")
@click.option(
    "--role", metavar="ROLE", help="Ask as a job of this role would: its provider, model, tries and fallbacks."
)
@click.option("--provider", metavar="NAME", help="Ask this one alone, whatever the role is.")
@click.option("--prompt", metavar="TEXT", default=PROMPT, show_default=True, help="What to ask.")
@common
def provider_test(role: str | None, provider: str | None, prompt: str, root: str | None, as_json: bool) -> int:
    """Ask a role's provider something, to see that it can be reached: its key, its model, its time. No job is made.

    The call is a real one, and costs what it costs.
    """
    if role is None and provider is None:
        raise click.UsageError("name a role to test with --role, or a provider with --provider")
    path, settings = read_root(root)
    redact = Redactor.of_variables(settings.secret_variables(), os.environ).text
    tried: list[Tried] = []
    scratch = fs.temporary(f"{path}/jobs/.staging")
    folder = f"{scratch}/calls"

    def on_try(one: Tried) -> None:
        tried.append(replace(one, message=redact(one.message)))
        if one.kind != "answered":
            note(f"call {one.number}, {_who(one.provider, one.model)}: no answer ({one.kind.replace('_', ' ')})")

    fs.mkdir(scratch)
    try:
        fs.mkdir(folder)
        tested = operations.provider_test(
            settings,
            role=role,
            provider=provider,
            prompt=prompt,
            open_provider=lambda name, its: make_provider(name, its, root=path, environ=os.environ),
            clock=SystemClock(),
            uniform=random.SystemRandom().uniform,
            root=path,
            folder=folder,
            prices=GenaiPrices(settings.providers),
            on_try=on_try,
        )
    except ProviderTrouble as trouble:
        if not as_json:
            raise
        answer(
            {"ok": False, "role": role, "error": _trouble(trouble, redact), "tried": [one.to_json() for one in tried]}
        )
        return trouble.exit_code
    finally:
        trees.remove_tree(scratch)
    tested = operations.without_secrets(tested, redact)
    if as_json:
        answer(_told(role, tested, tried))
    else:
        _show(role, tested)
    return 0


def _show(role: str | None, tested: Tested) -> None:
    come, asked = tested.answered.answer, tested.answered.candidate
    calls = len(tested.answered.tried)
    whose = f"{role}: " if role is not None else ""
    say(f"{whose}{_who(asked.name, asked.model)} answered in {tested.took_s:.1f} s, call {calls}")
    if come.model is not None and come.model != asked.model:
        say(f"  model   {come.model}")
    say(f"  tokens  {_tokens(come.usage)}")
    say(f"  cost    {'not known' if tested.cost_usd is None else f'${tested.cost_usd:f}'}")
    text = " ".join(come.text.split())
    say(f"  answer  {text[:_LONGEST]}{'' if come.whole and len(text) <= _LONGEST else ' …'}")


def _who(provider: str, model: str | None) -> str:
    return provider if model is None else f"{provider} {model}"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "not said"
    cached = f" ({usage.cache_read_tokens} of them from a cache)" if usage.cache_read_tokens else ""
    return f"{usage.input_tokens} in{cached}, {usage.output_tokens} out"


def _told(role: str | None, tested: Tested, tried: list[Tried]) -> dict[str, Any]:
    come, asked = tested.answered.answer, tested.answered.candidate
    return {
        "ok": True,
        "role": role,
        "provider": asked.name,
        "model": come.model or asked.model,
        "seconds": round(tested.took_s, 3),
        "usage": None if come.usage is None else come.usage.to_json(),
        "cost_usd": None if tested.cost_usd is None else float(tested.cost_usd),
        "answer": come.text,
        "whole": come.whole,
        "tried": [one.to_json() for one in tried],
    }


def _trouble(trouble: ProviderTrouble, redact: Callable[[str], str]) -> dict[str, Any]:
    return {
        "kind": trouble.kind,
        "message": redact(str(trouble)),
        "retryable": trouble.retryable,
        "retry_after_s": trouble.retry_after_s,
    }
