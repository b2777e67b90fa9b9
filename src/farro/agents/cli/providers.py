"""`farro provider-test`: ask the provider of a role a test question. `farro replay`: use its recorded answers again."""

from __future__ import annotations

import os

import click

from farro.agents import provider_test as testing
from farro.agents.provider_calls import CallTry
from farro.agents.provider_test import TEST_PROMPT, ProviderTestResult
from farro.agents.providers.port import ProviderTrouble, Usage
from farro.cli.options import application, common, open_root, read_root
from farro.cli.terminal import answer, note, say
from farro.config import reader
from farro.host.clock import SystemClock
from farro.queue import find_job
from farro.sandbox.redaction import Redactor

_LONGEST = 2000  # characters of an answer that are shown; --json shows all


@click.command("provider-test")
@click.option(
    "--role", metavar="ROLE", help="Ask as a job of this role would: its provider, model, tries and fallbacks."
)
@click.option("--provider", metavar="NAME", help="Ask this one alone, whatever the role is.")
@click.option("--prompt", metavar="TEXT", default=TEST_PROMPT, show_default=True, help="What to ask.")
@common
def provider_test(role: str | None, provider: str | None, prompt: str, root: str | None, as_json: bool) -> int:
    """Ask a role's provider something, to see that it can be reached: its key, its model, its time. No job is made.

    The call is a real one, and costs what it costs.
    """
    if role is None and provider is None:
        raise click.UsageError("name a role to test with --role, or a provider with --provider")
    path, settings = read_root(root)
    redact = Redactor.of_variables(settings.secret_variables(), os.environ).text
    tried: list[CallTry] = []

    def on_try(one: CallTry) -> None:
        tried.append(one)
        if one.kind != "answered":
            note(f"call {one.number}, {_who(one.provider, one.model)}: no answer ({one.kind.replace('_', ' ')})")

    try:
        tested = application().ask_provider(
            path, settings, role=role, provider=provider, prompt=prompt, redact=redact, on_try=on_try
        )
    except ProviderTrouble as trouble:
        if not as_json:
            raise
        answer(testing.failure_data(role, trouble, tried, redact))
        return trouble.exit_code
    if as_json:
        answer(testing.answer_data(role, tested, tried))
    else:
        _show(role, tested)
    return 0


def _show(role: str | None, tested: ProviderTestResult) -> None:
    reply, candidate = tested.answered.answer, tested.answered.candidate
    calls = len(tested.answered.tried)
    whose = f"{role}: " if role is not None else ""
    say(f"{whose}{_who(candidate.name, candidate.model)} answered in {tested.took_s:.1f} s, call {calls}")
    if reply.model is not None and reply.model != candidate.model:
        say(f"  model   {reply.model}")
    say(f"  tokens  {_tokens(reply.usage)}")
    say(f"  cost    {'not known' if reply.cost_usd is None else f'${reply.cost_usd:f}'}")
    text = " ".join(reply.text.split())
    say(f"  answer  {text[:_LONGEST]}{'' if reply.whole and len(text) <= _LONGEST else ' …'}")


def _who(provider: str, model: str | None) -> str:
    return provider if model is None else f"{provider} {model}"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "not said"
    cached = f" ({usage.cache_read_tokens} of them from a cache)" if usage.cache_read_tokens else ""
    return f"{usage.input_tokens} in{cached}, {usage.output_tokens} out"


@click.command()
@click.argument("job")
@common
def replay(job: str, root: str | None, as_json: bool) -> int:
    """Run an agent job again from its snapshots, with the answers that were recorded: no tokens, nothing is written.

    The same prompt, policies and answers give the same result (exit 0), or it is said where they differ (exit 1).
    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    from farro.agents.replay import replay_job

    store, _ = open_root(root)
    job_id = find_job.resolve(store, job)
    done = replay_job(store, job_id, settings_of=reader.load, clock=SystemClock())
    same = all(one.same for one in done)
    if as_json:
        attempts = [{name: getattr(one, name) for name in one.__slots__} for one in done]
        answer({"job_id": job_id, "same": same, "attempts": attempts})
        return 0 if same else 1
    for one in done:
        calls = "1 recorded answer" if one.calls == 1 else f"{one.calls} recorded answers"
        say(f"attempt {one.attempt}  {one.role}  {calls}: {'the same result' if one.same else 'it differs'}")
        if one.difference:
            say("\n".join(f"  {line}" for line in one.difference.splitlines()))
    return 0 if same else 1
