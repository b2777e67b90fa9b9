"""Ask the provider of a role a test question, with the same retries and fallbacks as a job of that role."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from farro.agents.provider_calls import (
    AnsweredCall,
    CallTry,
    ProviderCaller,
    ProviderCandidate,
    open_candidates,
    providers_of_role,
)
from farro.agents.providers.port import ChatMessage, Provider, ProviderTrouble, Reach, Request
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.errors import InputError, UnknownRole
from farro.execution.runner import Guarding
from farro.host import fs, trees
from farro.host.clock import Clock
from farro.host.process_tree import MARKER
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, replace
from farro.store.ledger import Prices

TEST_PROMPT = "Answer with the single word: ready"
SYSTEM = "You are asked whether you can be reached. Be brief."
MAX_OUTPUT_TOKENS = 1024  # models that think before they answer need some tokens for that


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderTestResult:
    """The answer to a test question."""

    answered: AnsweredCall
    took_s: float  # duration of the call that was answered


@dataclass(frozen=True, kw_only=True)
class ProviderTest:
    """Asks the provider of a role as a job of that role would. No job is made.

    `folder` is empty, for the files of providers that are programs; they may write nowhere else.
    """

    settings: Settings
    open_provider: Callable[[str, ProviderSettings], Provider]
    clock: Clock
    uniform: Uniform
    root: str
    folder: str
    prices: Prices | None = None
    on_try: Callable[[CallTry], None] = lambda _: None

    def run(self, *, role: str | None, provider: str | None, prompt: str) -> ProviderTestResult:
        """Ask once. With `provider`, only that one is asked. Raises ProviderTrouble if no provider answers."""
        settings = self.settings
        if role is not None and role not in settings.all_roles():
            raise UnknownRole(f"{role} is not a role here; known: {', '.join(settings.all_roles())}")
        began_s = self.clock.monotonic_s()

        def request(candidate: ProviderCandidate, number: int) -> Request:
            nonlocal began_s
            began_s = self.clock.monotonic_s()
            return self._request(role, prompt, candidate, number)

        caller = ProviderCaller(
            make_request=request,
            prices=self.prices,
            clock=self.clock,
            uniform=self.uniform,
            on_try=self.on_try,
        )
        candidates = open_candidates(settings, _wanted(settings, role, provider), self.open_provider)
        try:
            answered = caller.call(candidates)
        finally:
            for candidate in candidates:
                candidate.provider.close()
        return ProviderTestResult(answered=answered, took_s=self.clock.monotonic_s() - began_s)

    def _request(self, role: str | None, prompt: str, candidate: ProviderCandidate, number: int) -> Request:
        own = self.settings.roles.get(role or "", RoleSettings())
        provider = self.settings.providers[candidate.name]
        return Request(
            key=f"provider-test/1/test/{number}",
            system=SYSTEM,
            messages=(ChatMessage(author="user", text=prompt),),
            model=candidate.model,
            max_output_tokens=min(own.max_output_tokens or provider.max_output_tokens, MAX_OUTPUT_TOKENS),
            timeout_s=self.settings.call_timeout_s(candidate.name, own),
            role=role or "",
            folder=self.folder,
            env={MARKER: self.folder},
            reach=Reach(
                root=self.root,
                reads=own.read_paths,
                network=own.network,
                guarding=Guarding.of(self.settings.security),
            ),
        )


def without_secrets(tested: ProviderTestResult, redact: Callable[[str], str]) -> ProviderTestResult:
    """Remove secrets from the answer: a program may print its environment."""
    answer = replace(tested.answered.answer, text=redact(tested.answered.answer.text))
    return replace(tested, answered=replace(tested.answered, answer=answer))


@contextlib.contextmanager
def scratch_folder(root: str) -> Iterator[str]:
    """Make an empty folder for the files of one test; it is removed afterwards."""
    home = fs.temporary(f"{root}/jobs/.staging")
    fs.mkdir(home)
    try:
        fs.mkdir(f"{home}/calls")
        yield f"{home}/calls"
    finally:
        trees.remove_tree(home)


def answer_data(role: str | None, tested: ProviderTestResult, tried: Sequence[CallTry]) -> dict[str, Any]:
    """Return an answer as JSON data."""
    answer, candidate = tested.answered.answer, tested.answered.candidate
    return {
        "ok": True,
        "role": role,
        "provider": candidate.name,
        "model": answer.model or candidate.model,
        "seconds": round(tested.took_s, 3),
        "usage": None if answer.usage is None else answer.usage.to_json(),
        "cost_usd": None if answer.cost_usd is None else float(answer.cost_usd),
        "answer": answer.text,
        "whole": answer.whole,
        "tried": [one.to_json() for one in tried],
    }


def failure_data(
    role: str | None, trouble: ProviderTrouble, tried: Sequence[CallTry], redact: Callable[[str], str]
) -> dict[str, Any]:
    """Return a failure as JSON data."""
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
        raise InputError(f"{provider} is not a provider here; known: {there}. `providers` in the config has them")
    own = settings.roles.get(role or "", RoleSettings())
    return (FallbackSettings(provider=provider, model=own.model if own.provider == provider else None),)
