"""A job of a role: what the agent is told, what it leaves, where the job goes, what survives a crash."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agents.stage import CHANGE, PROMPT, REVIEW, Make
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.agents.providers.scripted import ScriptedProvider
from farro.jobs.states import Status
from farro.worker.slot import Turn

REVIEWER = {"role": "CodeReviewer", "answer": REVIEW}
ENGINEER = {"role": "SeniorEngineer", "answer": CHANGE}


def test_a_prompt_is_answered_and_goes_on_to_the_next_role(make: Make) -> None:
    stage = make(answers=[ENGINEER, REVIEWER])
    stage.enqueue()
    assert stage.work() == [Turn.WORKED]
    life = stage.life()
    assert (life.role, life.status) == ("CodeReviewer", Status.QUEUED)
    assert "It says please now." in (stage.folder() / "result.md").read_text()
    stage.work("CodeReviewer")
    life = stage.life()
    assert (life.role, life.status, life.finalized_at is not None) == ("CodeReviewer", Status.SUCCEEDED, True)
    result = stage.result(attempt=2)
    assert result["agent"]["answer"]["verdict"] == "approve"
    assert (stage.folder() / "result.md").read_text().startswith("# CodeReviewer: approved")


def test_a_prompt_for_the_manager_goes_to_the_manager_and_is_not_final(make: Make) -> None:
    stage = make()
    stage.enqueue(routing={"mode": "manager"})
    stage.work()
    life = stage.life()
    assert (life.role, life.status, life.finalized_at) == ("Manager", Status.QUEUED, None)


def test_the_next_role_gets_the_result_of_the_one_before(make: Make) -> None:
    told = {"role": "CodeReviewer", "match": "It says please now.", "answer": REVIEW}
    stage = make(answers=[ENGINEER, told])  # without that text nobody answers
    stage.enqueue()
    stage.work()
    stage.work("CodeReviewer")
    assert stage.life().status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "words",
    ["Make the greeting polite.", "The greeting says please.", "src/", "task-7", "Read this first."],
)
def test_the_request_contains_every_part_of_the_prompt(make: Make, words: str) -> None:
    stage = make(answers=[{"match": words, "answer": CHANGE}])
    stage.enqueue(inputs={"task_id": "task-7"}, context_md="prompt.md", narrative="Read this first.\n")
    stage.work()
    assert stage.life().role == "CodeReviewer", stage.life().error


def test_changes_after_the_claim_do_not_affect_the_job(make: Make) -> None:
    """SPEC-1 §11: the config is taken when the job is claimed."""
    stage = make()
    stage.enqueue()
    stage.work()
    folder = stage.folder()
    before = (folder / ".snapshot/agents-config.json").read_bytes()
    assert before == (stage.path / "agents-config.json").read_bytes()
    stage.configure(timeouts={"http_seconds": 7})
    assert (folder / ".snapshot/agents-config.json").read_bytes() == before
    stage.enqueue("two")
    stage.work()
    assert b'"http_seconds": 7' in (stage.folder("two") / ".snapshot/agents-config.json").read_bytes()


def test_equal_snapshots_share_one_file(make: Make) -> None:
    stage = make()
    for name in ("one", "two"):
        stage.enqueue(name)
        stage.work()
    inodes = {os.stat(stage.folder(name) / ".snapshot/AGENTS-ROLE.md").st_ino for name in ("one", "two")}
    assert len(inodes) == 1
    assert {path.name for path in (stage.folder() / ".snapshot").iterdir()} == {
        "agents-config.json",
        "AGENTS.md",
        "AGENTS-ROLE.md",
    }


def test_a_job_records_the_version_of_its_policy(make: Make) -> None:
    stage = make()
    policy = stage.path / "agents/SeniorEngineer/AGENTS-ROLE.md"
    policy.write_text("---\nversion: 2.5.0\n---\n# Be polite\n")
    stage.enqueue()
    stage.work()
    version = stage.life().policy_version
    assert version is not None
    assert version.startswith("2.5.0+")
    policy.write_text("---\nversion: 2.5.0\n---\n# Be very polite\n")
    stage.enqueue("two")
    stage.work()
    other = stage.life("two").policy_version
    assert other is not None
    assert other.startswith("2.5.0+")
    assert other != version  # the same number, other words: the hash tells


def test_the_policies_are_in_the_system_message(make: Make) -> None:
    stage = make(providers={"script": {"kind": "cli", "command": ["cat"], "workspace": "temp"}}, roles={"Poet": {}})
    from farro.doctor.root import init  # again: for the role that the config declares

    init(stage.root, stage.settings)
    (stage.path / "agents/Poet/AGENTS-ROLE.md").write_text("---\nversion: 1.0.0\n---\nRhyme always.\n")
    stage.enqueue(role="Poet", routing={"mode": "manager"})
    stage.work("Poet")
    said = (stage.folder() / "result.md").read_text()  # cat says what it was told
    assert "Rhyme always." in said
    assert "version: 1.0.0" not in said
    assert said.index("Rhyme always.") < said.index("Make the greeting polite.")


def test_an_answer_of_the_wrong_form_is_repaired_and_every_call_is_charged(make: Make) -> None:
    repaired = {"match": "could not be read", "answer": CHANGE}
    stage = make(answers=[repaired, {"answer": "I would rather chat."}])
    stage.enqueue()
    stage.work()
    assert stage.life().role == "CodeReviewer"
    assert [call.end for call in stage.calls()] == ["answered", "answered"]
    assert len(stage.result()["agent"]["calls"]) == 2


def test_an_answer_that_stays_wrong_fails_the_job_with_the_reason(make: Make) -> None:
    stage = make(answers=[{"answer": "I would rather chat."}], roles={"SeniorEngineer": {"repairs": 1}})
    stage.enqueue()
    stage.work()
    life = stage.life()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert life.error["category"] == "bad_answer"
    assert len(stage.calls()) == 2


@pytest.mark.parametrize(
    ("role", "said"), [("CodeReviewer", '{"verdict": "approve"} is what I'), ("Manager", "To begi")]
)
def test_a_cut_off_answer_is_refused_though_its_beginning_can_be_read(make: Make, role: str, said: str) -> None:
    cut = {"answer": said, "whole": False}
    plan = {"plan_id": "p", "steps": [{"step_number": 1, "tool": "agent", "command": role, "args": ["Look."]}]}
    nothing = dict.fromkeys(PROMPT)
    stage = make(answers=[{"match": "cut off at the end", "answer": REVIEW}, cut])
    stage.enqueue(**{**nothing, **plan})
    stage.work("Runner")
    assert stage.life().status is Status.SUCCEEDED
    assert len(stage.calls()) == 2
    stage.answers([cut])
    stage.enqueue("two", **{**nothing, **plan})
    stage.work("Runner")
    error = stage.life("two").error
    assert error is not None
    assert error["category"] == "bad_answer"
    assert f"roles.{role}.max_output_tokens" in error["message"]


def test_a_temporary_trouble_is_retried_and_then_left_to_the_next_attempt(make: Make) -> None:
    down = {"error": {"kind": "server"}, "attempt": 1}
    stage = make(answers=[down, ENGINEER])
    stage.enqueue()
    life = stage.until_over()
    assert (life.role, life.attempt) == ("CodeReviewer", 2)
    # Four tries, as over HTTP, then another attempt.
    assert [call.charge.attempt for call in stage.calls()] == [1, 1, 1, 1, 2]


def test_a_refusal_is_final_at_once(make: Make) -> None:
    stage = make(answers=[{"error": {"kind": "refused", "message": "no such model"}}])
    stage.enqueue()
    stage.work()
    life = stage.life()
    assert (life.status, life.attempt) == (Status.FAILED, 1)
    assert life.error is not None
    assert life.error["category"] == "provider_refused"
    assert "no such model" in (stage.folder() / "error.md").read_text()
    assert len(stage.calls()) == 1


def test_a_fallback_answers_when_the_first_provider_is_given_up(make: Make) -> None:
    stage = make(
        providers={
            "script": {"kind": "scripted", "file": "answers.json"},
            "spare": {"kind": "scripted", "file": "spare.json"},
        },
        roles={"SeniorEngineer": {"provider": "script", "fallbacks": [{"provider": "spare"}]}},
        answers=[{"error": {"kind": "refused"}}],
    )
    (stage.path / "spare.json").write_text(json.dumps({"answers": [ENGINEER]}))
    stage.enqueue()
    stage.work()
    assert stage.life().role == "CodeReviewer"
    assert [call.charge.provider for call in stage.calls()] == ["script", "spare"]


def test_without_a_provider_the_error_says_what_to_configure(make: Make) -> None:
    stage = make()
    config = json.loads((stage.path / "agents-config.json").read_text())
    config["providers"] = {}
    (stage.path / "agents-config.json").write_text(json.dumps(config))
    stage.enqueue()
    stage.work()
    error = stage.life().error
    assert error is not None
    assert error["category"] == "no_provider"
    assert "`farro init --agents claude` (or codex, or gemini) adds one" in error["message"]


def test_a_budget_refuses_the_call_that_would_exceed_it(make: Make) -> None:
    stage = make(
        providers={
            "script": {
                "kind": "scripted",
                "file": "answers.json",
                "model": "m",
                "prices": {"m": {"input_usd": 1000, "output_usd": 1000}},
            }
        },
        budgets={"job_usd": 0.01},
    )
    stage.enqueue()
    stage.work()
    life = stage.life()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert life.error["category"] == "budget_exceeded"
    assert stage.calls() == []  # it was not made
    assert stage.result()["step_results"][0]["exit_code"] == 3


def test_a_scripted_answer_is_reserved_with_its_cost(make: Make) -> None:
    """At nothing, every answer fits into any budget, and the budget is overrun."""
    entries = [{**ENGINEER, "cost_usd": 0.03}, {**REVIEWER, "cost_usd": 0.03}]
    stage = make(answers=entries, budgets={"day_usd": 0.05})
    stage.enqueue()
    stage.work()
    assert stage.life().role == "CodeReviewer"
    stage.work("CodeReviewer")
    error = stage.life().error
    assert error is not None
    assert (error["category"], "0.03 of 0.05 are spent" in error["message"]) == ("budget_exceeded", True)
    assert "or lower cost_usd in answers.json" in error["message"]
    assert [str(call.charge.most_usd) for call in stage.calls()] == ["0.03"]


def test_the_cost_of_a_job_is_in_its_result(make: Make) -> None:
    entry = {**ENGINEER, "usage": {"input_tokens": 1000, "output_tokens": 500}, "cost_usd": 0.25}
    stage = make(answers=[entry])
    stage.enqueue()
    stage.work()
    agent = stage.result()["agent"]
    assert (agent["cost_usd"], agent["cost_estimated"]) == ("0.25", False)
    assert "cost $0.25" in (stage.folder() / "result.md").read_text()


def test_a_result_separates_its_own_calls_from_the_jobs(make: Make) -> None:
    """The last role of three asked once: six calls are not its own, and not its provider's."""
    usage = {"input_tokens": 100, "output_tokens": 50}
    script = {"kind": "scripted", "file": "answers.json"}
    stage = make(
        answers=[{**ENGINEER, "usage": usage, "cost_usd": 0.25}, {**REVIEWER, "usage": usage, "cost_usd": 0.0125}],
        providers={"script": script, "judge": script},
        roles={"CodeReviewer": {"provider": "judge"}, "SeniorEngineer": {"provider": "script"}},
    )
    stage.enqueue()
    stage.work()
    assert "\n*script: 1 call, 150 tokens, cost $0.25*\n" in (stage.folder() / "result.md").read_text()
    stage.work("CodeReviewer")
    said = "*judge: 1 call, 150 tokens, cost $0.0125; the job so far: 2 calls, 300 tokens, cost $0.2625*"
    assert said in (stage.folder() / "result.md").read_text()
    agent = stage.result(attempt=2)["agent"]
    assert ([call["provider"] for call in agent["calls"]], agent["cost_usd"]) == (["judge"], "0.0125")
    assert agent["job"] == {"calls": 2, "cost_usd": "0.2625", "cost_estimated": False}


def test_a_plan_may_have_an_agent_step(make: Make) -> None:
    stage = make(answers=[{"match": "hand it over", "answer": "Please hand it over."}])
    plan: dict[str, Any] = {
        "plan_id": "mixed",
        "steps": [
            {"id": "read", "command": "cat", "args": ["src/greeting.txt"]},
            {"id": "ask", "tool": "agent", "command": "Manager", "args": ["Be polite."], "input_from_step": "read"},
            {"id": "shout", "command": "tr", "args": ["a-z", "A-Z"], "input_from_step": "ask"},
        ],
    }
    stage.enqueue(**dict.fromkeys(PROMPT), **plan)
    stage.work("Runner")
    assert stage.life().status is Status.SUCCEEDED, stage.life().error
    assert stage.result()["step_results"][2]["stdout"] == "PLEASE HAND IT OVER."


def test_an_agent_step_gets_the_policy_of_its_own_role(make: Make) -> None:
    stage = make(providers={"script": {"kind": "cli", "command": ["cat"]}})
    for role, words in (("Manager", "Decide gently."), ("Runner", "Run fast.")):
        (stage.path / f"agents/{role}/AGENTS-ROLE.md").write_text(f"---\nversion: 1.0.0\n---\n{words}\n")
    step = {"id": "ask", "tool": "agent", "command": "Manager", "args": ["Which one?"]}
    stage.enqueue(**dict.fromkeys(PROMPT), plan_id="ask", steps=[step])
    stage.work("Runner")
    said = stage.result()["step_results"][0]["stdout"]  # cat says what it was told
    assert "Decide gently." in said
    assert "Run fast." not in said


def test_texts_of_the_payload_are_sent_and_other_files_are_named(make: Make) -> None:
    seen = "File notes\\.md\\n\\nMind the gap\\."
    stage = make(answers=[{"pattern": seen, "answer": CHANGE}])
    stage.enqueue(payload={"notes.md": b"Mind the gap.\n", "logo.png": b"\x89PNG\0\xff", "long.md": b"x" * (300 << 10)})
    stage.work()
    assert stage.life().error is None
    asked = json.loads((stage.folder() / "attempts/0001/steps/1/calls/1.json").read_text())["asked"]
    assert "- logo.png\n" in asked
    assert "- long.md\n" in asked  # too long to be told
    assert "PNG" not in asked
    assert "xxx" not in asked


def test_unreported_tokens_are_not_written_as_zero(make: Make) -> None:
    stage = make()
    stage.enqueue()
    stage.work()
    assert "*script: 1 call, cost $0*" in (stage.folder() / "result.md").read_text()


def test_a_planted_link_is_not_sent_to_a_provider(make: Make) -> None:
    stage = make()
    stage.enqueue(context_md="prompt.md", narrative="x")
    secret = stage.path.parent / "secret.txt"
    secret.write_text("the crown jewels")
    (stage.folder() / "prompt.md").unlink()
    (stage.folder() / "prompt.md").symlink_to(secret)
    stage.work()
    error = stage.life().error
    assert error is not None
    assert (error["category"], "not an ordinary file" in error["message"]) == ("bad_prompt", True)


def test_a_job_may_not_grow_beyond_its_cap(make: Make) -> None:
    words = "x" * 3000
    stage = make(answers=[{"answer": {"summary": words}}], security={"max_job_bytes": 2000})
    stage.enqueue()
    stage.work()
    error = stage.life().error
    assert error is not None
    assert error["category"] == "artifact_cap"


def test_both_mirrors_are_repaired_by_the_next_claim(make: Make) -> None:
    """SPEC-1 §9: a worker that finds both reconciles them from the attempts."""
    down = {"error": {"kind": "server"}, "attempt": 1}
    stage = make(answers=[down, ENGINEER])
    stage.enqueue()
    stage.work()
    folder = stage.folder()
    assert (folder / "error.md").exists()
    (folder / "result.md").write_text("of a worker that was killed while it put the mirrors right")
    stage.until_over()
    assert not (stage.folder() / "error.md").exists()
    assert "please" in (stage.folder() / "result.md").read_text()


def test_a_long_pause_that_a_provider_asks_for_delays_the_job(make: Make) -> None:
    busy = {"error": {"kind": "rate_limited", "retry_after_s": 300}, "attempt": 1}
    stage = make(answers=[busy, ENGINEER])
    stage.enqueue()
    stage.work()
    life = stage.life()
    assert life.status is Status.QUEUED
    assert life.not_before is not None
    waits_s = (datetime.fromisoformat(life.not_before) - datetime.fromisoformat(life.updated_at)).total_seconds()
    assert 299 < waits_s < 302  # as it asked, not as the job's own backoff would have it
    assert stage.work() == [Turn.IDLE]


def test_a_refusal_is_charged_by_its_tokens(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ScriptedProvider, request: Request) -> Answer:
        used = Usage(input_tokens=100, output_tokens=5)
        raise ProviderTrouble("refused to answer", kind="refused", retryable=False, usage=used)

    monkeypatch.setattr(ScriptedProvider, "answer", refuse)
    script = {"kind": "scripted", "file": "answers.json", "model": "m"}
    stage = make(providers={"script": {**script, "prices": {"m": {"input_usd": 1, "output_usd": 2}}}})
    stage.enqueue()
    stage.work()
    (call,) = stage.calls()
    assert (call.end, call.estimated, call.cost_usd) == ("failed", False, Decimal("0.00011"))


@pytest.mark.parametrize("wait_s", [1e8, 1e15, 1e300])
def test_no_provider_delays_a_job_for_ever(make: Make, wait_s: float) -> None:
    busy = {"error": {"kind": "rate_limited", "retry_after_s": wait_s}, "attempt": 1}
    stage = make(answers=[busy, ENGINEER])
    stage.enqueue()
    stage.work()
    life = stage.life()
    assert life.not_before is not None
    waits = datetime.fromisoformat(life.not_before) - datetime.fromisoformat(life.updated_at)
    assert waits <= timedelta(days=1)


def test_an_unreadable_policy_stops_agent_jobs_and_no_command_plan(make: Make) -> None:
    stage = make()
    (stage.path / "AGENTS.md").unlink()
    (stage.path / "AGENTS.md").mkdir()
    stage.enqueue("plain", role=None, rubric=None, allowed_paths=None, success=None, routing=None, steps=[STEP])
    stage.work("Runner")
    assert stage.life("plain").status is Status.SUCCEEDED
    stage.enqueue()
    stage.until_over()
    error = stage.life().error
    assert error is not None
    assert "AGENTS.md" in error["message"]
    (stage.path / "AGENTS.md").rmdir()
    stage.enqueue("later")
    stage.until_over("later")
    assert stage.life("later").role == "CodeReviewer"


STEP = {"id": "a", "command": "true"}


def test_a_worker_that_lost_its_job_makes_no_further_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception that ends its thread may come late, or be swallowed by a library: it pays for nothing more."""
    down = {"error": {"kind": "server"}}
    stage = make(answers=[down, ENGINEER])
    stage.enqueue()
    asked: list[int] = []
    answer = ScriptedProvider.answer

    def taken_away(own: ScriptedProvider, request: Request) -> Answer:
        asked.append(1)
        if len(asked) == 2:
            os.rename(Path(request.folder).parents[4], stage.path / "taken")
        return answer(own, request)

    monkeypatch.setattr(ScriptedProvider, "answer", taken_away)
    stage.work()
    assert len(asked) == 2
    assert len(stage.calls()) == 2
