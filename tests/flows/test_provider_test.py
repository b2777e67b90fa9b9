"""`farro provider-test`: call the provider of a role for real, and report its answer or failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fake_providers import FakeProvider, Reply, answers, hangs, says
from flows.program import Program

Serve = Callable[..., FakeProvider]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[FakeProvider] = []

    def server(kind: str, *replies: Reply) -> FakeProvider:
        made.append(FakeProvider(kind, *replies))
        return made[-1]

    yield server
    for each in made:
        each.close()


def configure(farro: Program, providers: dict[str, Any], roles: dict[str, Any]) -> None:
    path = farro.path / "agents-config.json"
    path.write_text(json.dumps({"version": "1.0.0", "providers": providers, "roles": roles}))


def test_provider_test_reports_model_tokens_and_cost(farro: Program, serve: Serve) -> None:
    server = serve("openrouter", answers(500), says("ready"))
    providers = {"router": {"kind": "openrouter", "base_url": server.base_url, "model": "some/model"}}
    configure(farro, providers, {"DocWriter": {"provider": "router"}})
    done = farro.run("provider-test", "--role", "DocWriter", "--prompt", "are you there?", code=0)
    first, *rest = done.out.splitlines()
    assert first.startswith("DocWriter: router some/model answered in ")
    assert first.endswith(" s, call 2")
    assert [line.split(maxsplit=1) for line in rest] == [
        ["model", "model-that-answered"],
        ["tokens", "120 in (64 of them from a cache), 7 out"],
        ["cost", "$0.0042"],
        ["answer", "ready"],
    ]
    assert done.err == "call 1, router some/model: no answer (overloaded)\n"
    assert len(server.asked) == 2
    assert "are you there?" in json.dumps(server.asked[1].body)
    assert farro.run("ls", code=0).out.count("job-") == 0


def test_provider_test_uses_the_fallback_as_a_job_would(farro: Program, serve: Serve) -> None:
    server = serve("openai", answers(401, "who are you"))
    providers = {
        "first": {"kind": "openai", "base_url": server.base_url, "model": "m"},
        "second": {"kind": "scripted", "file": "answers.json"},
    }
    configure(farro, providers, {"Architect": {"provider": "first", "fallbacks": [{"provider": "second"}]}})
    (farro.path / "answers.json").write_text('{"answers": [{"role": "Architect", "answer": "ready"}]}')
    told = farro.run("provider-test", "--role", "Architect", "--json", code=0).json
    assert (told["ok"], told["provider"], told["answer"]) == (True, "second", "ready")
    assert [one["kind"] for one in told["tried"]] == ["refused", "answered"]
    assert len(server.asked) == 1


def test_single_provider_can_be_tested(farro: Program, serve: Serve) -> None:
    server = serve("google", says("ready"))
    configure(farro, {"g": {"kind": "google", "base_url": server.base_url, "model": "gemini-x"}}, {})
    told = farro.run("provider-test", "--provider", "g", "--json", code=0).json
    assert (told["role"], told["provider"], told["usage"]["output_tokens"]) == (None, "g", 7)


def test_timeout_of_all_http_calls_holds_for_provider_without_its_own(farro: Program, serve: Serve) -> None:
    server = serve("openai", hangs, answers(401))
    provider = {"kind": "openai", "base_url": server.base_url, "model": "m"}
    config = {"version": "1.0.0", "providers": {"gpt": provider}, "timeouts": {"http_seconds": 0.5}}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    first, *_ = farro.run("provider-test", "--provider", "gpt", "--json", code=1).json["tried"]
    assert (first["kind"], "gave no answer within 0.5 s" in first["message"]) == ("timed_out", True)


def test_refused_key_fails_with_advice(farro: Program, serve: Serve) -> None:
    farro.env["MY_KEY"] = "sk-very-secret-indeed"
    server = serve("openai", answers(401, "bad key sk-very-secret-indeed"))
    providers = {"gpt": {"kind": "openai", "base_url": server.base_url, "model": "m", "api_key": "${MY_KEY}"}}
    configure(farro, providers, {})
    done = farro.run("provider-test", "--role", "DocWriter", code=1)
    assert "provider gpt answered 401" in done.err
    assert "check " in done.err
    told = farro.run("provider-test", "--role", "DocWriter", "--json", code=1)
    assert told.json["error"]["kind"] == "refused"
    assert "sk-very-secret-indeed" not in done.out + done.err + told.out + told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a role to test with --role, or a provider with --provider"),
        (("--role", "Nobody"), "Nobody is not a role here"),
        (("--role", "Architect"), "role Architect has no provider; set roles.Architect.provider (configured: a, b)"),
        (("--provider", "c"), "c is not a provider here; known: a, b"),
    ],
)
def test_mistakes_are_reported(farro: Program, arguments: tuple[str, ...], message: str) -> None:
    scripted = {"kind": "scripted", "file": "answers.json"}
    configure(farro, {"a": scripted, "b": scripted}, {})
    assert message in farro.run("provider-test", *arguments, code=2).err


def test_provider_program_is_tested_and_leaves_nothing_behind(farro: Program) -> None:
    farro.env["MY_TOKEN"] = "tok-very-secret-indeed"
    command = ["sh", "-c", "cat >/dev/null; echo ready $MY_TOKEN"]
    configure(farro, {"tool": {"kind": "cli", "command": command, "environment": ["MY_TOKEN"]}}, {})
    told = farro.run("provider-test", "--role", "DocWriter", "--json", code=0)
    assert told.json["answer"].startswith("ready")
    assert "tok-very-secret-indeed" not in told.out + told.err
    assert list((farro.path / "jobs" / ".staging").iterdir()) == []


def test_failing_provider_program_is_tried_twice(farro: Program) -> None:
    configure(farro, {"tool": {"kind": "cli", "command": ["sh", "-c", "echo broken >&2; exit 3"]}}, {})
    told = farro.run("provider-test", "--provider", "tool", "--json", code=1).json
    assert (told["ok"], [one["kind"] for one in told["tried"]]) == (False, ["failed", "failed"])
    assert "broken" in told["error"]["message"]
