"""Asking a role's provider something, as a job of that role would: the same tries, waits and fallbacks. No job is made.

Which provider a role has lives in execution.agents.calling; printing the answer, in cli.providers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from farro.agents.gateway import AnsweredCall, CallTry, ProviderCandidate, call_providers, providers_of_role
from farro.agents.providers.port import ChatMessage, Provider, ProviderTrouble, Reach, Request
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.errors import InputError, UnknownRole
from farro.execution.runner import Guarding
from farro.host import fs, trees
from farro.host.clock_port import Clock
from farro.host.processes import MARKER
from farro.jobs.retry import RetryPolicy, Uniform
from farro.lazy_dataclass import dataclass
from farro.store.ledger import Prices

TEST_PROMPT = "Answer with the single word: ready"
SYSTEM = "You are asked whether you can be reached. Be brief."
MAX_OUTPUT_TOKENS = 1024  # models that think before they answer need some for that


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderTestResult:
    answered: AnsweredCall
    took_s: float  # the call that was answered, without those before it
    cost_usd: Decimal | None  # as the provider says it, else as the prices do; None: nobody knows


def run_provider_test(
    settings: Settings,
    *,
    role: str | None,
    provider: str | None,
    prompt: str,
    open_provider: Callable[[str, ProviderSettings], Provider],
    clock: Clock,
    uniform: Uniform,
    root: str,
    folder: str,
    prices: Prices | None = None,
    on_try: Callable[[CallTry], None] = lambda _: None,
) -> ProviderTestResult:
    """ProviderTrouble: nobody answered. With `provider` that one alone is asked. `folder` is empty, for the files of
    providers that are programs; they may write nowhere else."""
    if role is not None and role not in settings.all_roles():
        raise UnknownRole(f"{role} is not a role here; there is {', '.join(settings.all_roles())}")
    own = settings.roles.get(role or "", RoleSettings())
    opened: list[Provider] = []
    began_s = clock.monotonic_s()

    def candidate(wanted: FallbackSettings) -> ProviderCandidate:
        its = settings.providers[wanted.provider]
        opened.append(open_provider(wanted.provider, its))
        return ProviderCandidate(name=wanted.provider, provider=opened[-1], model=wanted.model or its.model)

    def request(candidate: ProviderCandidate, number: int) -> Request:
        nonlocal began_s
        began_s = clock.monotonic_s()
        its = settings.providers[candidate.name]
        most = own.max_output_tokens or its.max_output_tokens
        return Request(
            key=f"provider-test/1/test/{number}",
            system=SYSTEM,
            messages=(ChatMessage(author="user", text=prompt),),
            model=candidate.model,
            max_output_tokens=min(most, MAX_OUTPUT_TOKENS),
            timeout_s=own.timeout_s or its.timeout_s or _timeout_s(settings, its, candidate.name),
            role=role or "",
            folder=folder,
            env={MARKER: folder},
            reach=Reach(root=root, network=own.network, guarding=Guarding.of(settings.security)),
        )

    try:
        answered = call_providers(
            [candidate(wanted) for wanted in _wanted(settings, role, provider)],
            request,
            reserve=lambda candidate, request, number: "",
            settle=lambda call_id, *, end, usage, cost_usd: None,
            clock=clock,
            uniform=uniform,
            policy=RetryPolicy(),
            on_try=on_try,
        )
    finally:
        for each in opened:
            each.close()
    return ProviderTestResult(
        answered=answered,
        took_s=clock.monotonic_s() - began_s,
        cost_usd=_cost_usd(answered, prices),
    )


def without_secrets(tested: ProviderTestResult, redact: Callable[[str], str]) -> ProviderTestResult:
    """A program may say what it was given in its environment."""
    answer = replace(tested.answered.answer, text=redact(tested.answered.answer.text))
    return replace(tested, answered=replace(tested.answered, answer=answer))


@contextlib.contextmanager
def scratch_folder(root: str) -> Iterator[str]:
    """An empty folder for the files of one test; it goes afterwards."""
    home = fs.temporary(f"{root}/jobs/.staging")
    fs.mkdir(home)
    try:
        fs.mkdir(f"{home}/calls")
        yield f"{home}/calls"
    finally:
        trees.remove_tree(home)


def answer_data(role: str | None, tested: ProviderTestResult, tried: Sequence[CallTry]) -> dict[str, Any]:
    """An answer as data."""
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


def failure_data(
    role: str | None, trouble: ProviderTrouble, tried: Sequence[CallTry], redact: Callable[[str], str]
) -> dict[str, Any]:
    """That there is none, as data."""
    error = {
        "kind": trouble.kind,
        "message": redact(str(trouble)),
        "retryable": trouble.retryable,
        "retry_after_s": trouble.retry_after_s,
    }
    return {"ok": False, "role": role, "error": error, "tried": [one.to_json() for one in tried]}


def _wanted(settings: Settings, role: str | None, provider: str | None) -> tuple[FallbackSettings, ...]:
    if provider is None:
        if role is None:
            raise InputError("name a role, or a provider")
        return providers_of_role(settings, role)
    if provider not in settings.providers:
        there = ", ".join(settings.providers) or "none"
        raise InputError(f"{provider} is not a provider here; there is {there}. `providers` in the config has them")
    own = settings.roles.get(role or "", RoleSettings())
    return (FallbackSettings(provider=provider, model=own.model if own.provider == provider else None),)


def _timeout_s(settings: Settings, its: ProviderSettings, name: str) -> float:
    return settings.timeouts.cli_seconds if (its.kind or name) == "cli" else settings.timeouts.http_seconds


def _cost_usd(answered: AnsweredCall, prices: Prices | None) -> Decimal | None:
    answer = answered.answer
    if answer.cost_usd is not None or prices is None or answer.usage is None:
        return answer.cost_usd
    return prices.cost_usd(answered.candidate.name, answer.model or answered.candidate.model, answer.usage)
