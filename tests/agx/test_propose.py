"""From a request to steps: the answer is checked, repaired and reviewed, then shown and never run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agx.conftest import Agx, step
from fake_providers import answers, hangs_up, says, serving
from flows.program import Done, Program, listing

OK = {"ok": True}
COUNT = {"steps": [step(1, "wc", "-l", "names.txt")]}


def commands(done: Done) -> list[str]:
    return [one["command"] for one in done.json["plan"]["steps"]]


def test_words_become_steps_of_the_draft(agx: Agx, provider: Callable[..., None]) -> None:
    provider(COUNT, OK)
    told = agx("add", "count", "the", "names", code=0).json
    assert told["plan"]["steps"] == COUNT["steps"]
    assert (told["added"], told["review"], told["calls"], told["cost_usd"]) == (1, "ok", 2, 0.0)
    assert agx("preview", code=0).json["plan"] == told["plan"]


def test_nothing_is_run_and_nothing_is_queued_by_planning(
    farro: Program, agx: Agx, provider: Callable[..., None]
) -> None:
    provider({"steps": [step(1, "touch", "made")]}, OK)
    agx("add", "make a file", code=0)
    for verb in ("preview", "validate"):
        agx(verb, code=0)
    agx("submit", "--dry-run", code=0)
    assert "made" not in listing(farro.path)
    assert agx("jobs", code=0).json == {"jobs": []}


def test_model_receives_the_draft_the_tools_and_the_request(farro: Program, agx: Agx) -> None:
    agx("add", "--", "cat names.txt", code=0)
    with serving(
        "openai", says(json.dumps({"steps": [step(2, "sort", input_from_step=1)]})), says('{"ok": true}')
    ) as fake:
        configured(farro, {"openai": {"base_url": fake.base_url, "model": "m", "stream": False, "call_usd": 1.0}})
        told = agx("add", "sort them", code=0).json
    assert [one["command"] for one in told["plan"]["steps"]] == ["cat", "sort"]
    assert told["provider"] == "openai"
    first, second = (json.dumps(asked.body) for asked in fake.asked)
    for wanted in ("sort them", "names.txt", "unix", "no shell"):
        assert wanted in first
    assert "You review" in second


def test_secrets_are_redacted_in_both_directions(farro: Program, agx: Agx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-0123456789")
    agx("add", "--", "curl", "-H", "sk-very-secret-0123456789", code=0)
    with serving("openai", says(json.dumps({"steps": [step(2, "echo", "sk-very-secret-0123456789")]}))) as fake:
        configured(
            farro,
            {"openai": {"base_url": fake.base_url, "model": "m", "api_key": "${OPENAI_API_KEY}", "stream": False}},
        )
        told = agx("add", "say it", "--no-review", code=0)
    assert "very-secret" not in json.dumps(fake.asked[0].body)
    assert "very-secret" not in json.dumps(told.json["plan"]["steps"][1])


def test_wrong_answer_is_sent_back_with_positions_and_repaired(agx: Agx, provider: Callable[..., None]) -> None:
    provider(
        "I think you want this:",
        {"steps": [step(1, "sort", input_from_step=7)]},
        {"steps": [step(1, "read", tool="agx-no-such-tool")]},
        COUNT,
        OK,
    )
    told = agx("add", "count the names", code=0).json
    assert told["plan"]["steps"] == COUNT["steps"]
    assert told["calls"] == 5


@pytest.mark.parametrize(
    "answer",
    [
        "no",
        "{" * 10_000,
        {"steps": [step(1, "echo", "\x1b]0;owned\x07")]},
        {"steps": [step(1, "sort", input_from_step=9)]},
        {"steps": [step(1, "x", tool="agx-no-such-tool")]},
        {"steps": [{"step_number": 1}]},
        {"steps": [step(1, "a", needs=[2]), step(2, "b", needs=[1])]},
        {"steps": [step(1, "agent", tool="agent")]},
        {"cannot": "it is \x1b[31mred\x1b[0m"},
    ],
)
def test_an_answer_that_stays_wrong_leaves_the_draft_as_it_was(
    agx: Agx, provider: Callable[..., None], answer: Any
) -> None:
    agx("add", "--", "true", code=0)
    before = agx("preview", code=0).json["plan"]
    shifted = (
        json.loads(json.dumps(answer).replace('"step_number": 1', '"step_number": 2'))
        if isinstance(answer, dict)
        else answer
    )
    provider(shifted)
    done = agx("add", "do it", code=1)
    assert "\x1b" not in done.err
    assert agx("preview", code=0).json["plan"] == before


def test_shell_string_is_taken_as_a_program_name_with_a_warning(agx: Agx, provider: Callable[..., None]) -> None:
    """It is passed on unchanged: no shell interprets it."""
    provider({"steps": [step(1, "rm -rf / && reboot")]}, OK)
    told = agx("add", "clean up", code=0).json
    assert told["warnings"]
    assert "one program" in told["warnings"][0]["message"]


def test_a_review_may_correct_the_steps(agx: Agx, provider: Callable[..., None]) -> None:
    provider(COUNT, {"ok": False, "problems": ["they want words"], "steps": [step(1, "wc", "-w", "names.txt")]})
    told = agx("add", "count the words", code=0).json
    assert told["plan"]["steps"][0]["args"] == ["-w", "names.txt"]
    assert (told["review"], told["objections"]) == ("corrected", ["they want words"])


def test_invalid_correction_is_ignored_and_its_objections_are_shown(agx: Agx, provider: Callable[..., None]) -> None:
    provider(COUNT, {"ok": False, "problems": ["hm\x1b[2J"], "steps": [step(9, "wc")]})
    done = agx("add", "count", "--text", code=0)
    assert "wc -l names.txt" in done.out
    assert "review: hm" in done.out
    assert "\x1b" not in done.out


def test_the_review_can_be_left_out(agx: Agx, provider: Callable[..., None]) -> None:
    provider(COUNT)
    told = agx("add", "count", "--no-review", code=0).json
    assert (told["review"], told["calls"]) == ("skipped", 1)


def test_model_cannot_change_the_existing_steps(agx: Agx, provider: Callable[..., None]) -> None:
    agx("add", "--", "cat a", code=0)
    provider({"steps": [step(1, "rm", "a"), step(2, "sort")]})
    agx("add", "sort", code=1)
    assert commands(agx("preview")) == ["cat"]


def test_missing_provider_is_reported_with_the_config_and_an_alternative(agx: Agx) -> None:
    done = agx("add", "count the names", code=2)
    assert "providers" in done.err
    assert "agx add -- sort" in done.err
    assert "if that is a command: agx add -- ls it" in agx("add", "ls it", code=2).err


def test_failing_provider_is_reported_and_the_draft_stays(farro: Program, agx: Agx) -> None:
    with serving("openai", answers(401, "bad key")) as fake:
        configured(farro, {"openai": {"base_url": fake.base_url, "model": "m"}})
        done = agx("add", "count", code=1)
    assert "401" in done.err or "key" in done.err
    assert agx("preview", code=0).json["plan"]["steps"] == []


def test_a_fallback_of_the_architect_answers_when_the_first_does_not(
    farro: Program, agx: Agx, provider: Callable[..., None]
) -> None:
    provider(COUNT, OK)
    with serving("openai", answers(400, "no")) as fake:
        made = {"openai": {"base_url": fake.base_url, "model": "m"}, "scripted": {"file": "answers.json"}}
        roles = {"Architect": {"provider": "openai", "fallbacks": [{"provider": "scripted"}]}}
        configured(farro, made, roles=roles)
        # numbers count all calls: the scripted provider gets the second and the fourth
        provider_answers = {"answers": [{"answer": COUNT, "times": 2}, {"answer": OK}]}
        (farro.path / "answers.json").write_text(json.dumps(provider_answers))
        told = agx("add", "count", code=0).json
    assert told["provider"] == "scripted"


def test_config_chooses_the_planning_provider(farro: Program, agx: Agx, provider: Callable[..., None]) -> None:
    provider(COUNT, OK)
    with serving("openai", hangs_up) as fake:
        made = {"openai": {"base_url": fake.base_url, "model": "m"}, "scripted": {"file": "answers.json"}}
        configured(farro, made, agx={"provider": "scripted", "model": "small"})
        told = agx("add", "count", code=0).json
    assert (told["provider"], told["model"]) == ("scripted", "small")
    assert fake.asked == []
    configured(farro, made, agx={"provider": "nobody"})
    assert "nobody" in agx("add", "count", code=2).err


def test_calls_are_in_the_ledger_and_a_budget_refuses_before_the_call(farro: Program, agx: Agx) -> None:
    with serving("openai", says(json.dumps(COUNT))) as fake:
        made = {"openai": {"base_url": fake.base_url, "model": "m", "call_usd": 0.5, "stream": False}}
        configured(farro, made, agx={"budget_usd": 0.7})
        agx("add", "count", "--no-review", code=0)
        assert farro.call("costs", "--by", "role", "--json", code=0).json["lines"][0]["role"] == "Planner"
        done = agx("add", "count", "--no-review", code=3)
    assert "agx.budget_usd" in done.err
    assert len(fake.asked) == 1


def test_draft_changed_during_the_model_call_is_not_overwritten(
    farro: Program, agx: Agx, provider: Callable[..., None]
) -> None:
    provider({"answer": COUNT, "delay_s": 1.5, "times": 1}, OK)
    thinking = farro.start("agx", "add", "count")
    while not list((farro.path / "jobs" / ".ledger").glob("*/*")):
        assert thinking.process.poll() is None
    agx("add", "--", "true", code=0)
    done = thinking.ended()
    assert done.code == 3
    assert "changed elsewhere" in done.err
    assert commands(agx("preview")) == ["true"]


def configured(farro: Program, providers: Any, **more: Any) -> None:
    settings = json.loads((farro.path / "agents-config.json").read_text())
    (farro.path / "agents-config.json").write_text(json.dumps({**settings, "providers": providers, **more}))
