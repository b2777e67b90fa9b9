"""Check the job of a role: what the agent is asked, what it leaves, where the job goes, what survives a crash."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import CHANGE, PROMPT, REVIEW, MakeRoot
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.agents.providers.scripted import ScriptedProvider
from farro.jobs.states import Status
from farro.worker.worker import Turn

REVIEWER = {"role": "CodeReviewer", "answer": REVIEW}
ENGINEER = {"role": "SeniorEngineer", "answer": CHANGE}


def test_a_prompt_is_answered_and_goes_on_to_the_next_role(make: MakeRoot) -> None:
    agent_root = make(answers=[ENGINEER, REVIEWER])
    agent_root.enqueue()
    assert agent_root.work() == [Turn.WORKED]
    life = agent_root.life()
    assert (life.role, life.status) == ("CodeReviewer", Status.QUEUED)
    assert "It says please now." in (agent_root.folder() / "result.md").read_text()
    agent_root.work("CodeReviewer")
    life = agent_root.life()
    assert (life.role, life.status, life.finalized_at is not None) == ("CodeReviewer", Status.SUCCEEDED, True)
    result = agent_root.result(attempt=2)
    assert result["agent"]["answer"]["verdict"] == "approve"
    assert (agent_root.folder() / "result.md").read_text().startswith("# CodeReviewer: approved")


def test_a_prompt_for_the_manager_goes_to_the_manager_and_is_not_final(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work()
    life = agent_root.life()
    assert (life.role, life.status, life.finalized_at) == ("Manager", Status.QUEUED, None)


def test_the_next_role_gets_the_result_of_the_one_before(make: MakeRoot) -> None:
    reviewer = {"role": "CodeReviewer", "match": "It says please now.", "answer": REVIEW}
    agent_root = make(answers=[ENGINEER, reviewer])  # without that text no entry matches
    agent_root.enqueue()
    agent_root.work()
    agent_root.work("CodeReviewer")
    assert agent_root.life().status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "words",
    ["MakeRoot the greeting polite.", "The greeting says please.", "src/", "task-7", "Read this first."],
)
def test_the_request_contains_every_part_of_the_prompt(make: MakeRoot, words: str) -> None:
    agent_root = make(answers=[{"match": words, "answer": CHANGE}])
    agent_root.enqueue(inputs={"task_id": "task-7"}, context_md="prompt.md", narrative="Read this first.\n")
    agent_root.work()
    assert agent_root.life().role == "CodeReviewer", agent_root.life().error


def test_changes_after_the_claim_do_not_affect_the_job(make: MakeRoot) -> None:
    """SPEC-1 §11: the config is read when the job is claimed."""
    agent_root = make()
    agent_root.enqueue()
    agent_root.work()
    folder = agent_root.folder()
    before = (folder / ".snapshot/agents-config.json").read_bytes()
    assert before == (agent_root.path / "agents-config.json").read_bytes()
    agent_root.configure(timeouts={"http_seconds": 7})
    assert (folder / ".snapshot/agents-config.json").read_bytes() == before
    agent_root.enqueue("two")
    agent_root.work()
    assert b'"http_seconds": 7' in (agent_root.folder("two") / ".snapshot/agents-config.json").read_bytes()


def test_equal_snapshots_share_one_file(make: MakeRoot) -> None:
    agent_root = make()
    for name in ("one", "two"):
        agent_root.enqueue(name)
        agent_root.work()
    inodes = {os.stat(agent_root.folder(name) / ".snapshot/AGENTS-ROLE.md").st_ino for name in ("one", "two")}
    assert len(inodes) == 1
    assert {path.name for path in (agent_root.folder() / ".snapshot").iterdir()} == {
        "agents-config.json",
        "policy.lock.json",
        "AGENTS.md",
        "AGENTS-ROLE.md",
    }


def test_a_job_records_the_version_of_its_policy(make: MakeRoot) -> None:
    agent_root = make()
    policy = agent_root.path / "agents/SeniorEngineer/AGENTS-ROLE.md"
    policy.write_text("---\nversion: 2.5.0\n---\n# Be polite\n")
    agent_root.enqueue()
    agent_root.work()
    version = agent_root.life().policy_version
    assert version is not None
    assert version.startswith("2.5.0+")
    policy.write_text("---\nversion: 2.5.0\n---\n# Be very polite\n")
    agent_root.enqueue("two")
    agent_root.work()
    other = agent_root.life("two").policy_version
    assert other is not None
    assert other.startswith("2.5.0+")
    assert other != version  # the same number, other words: the hash tells


def test_the_policies_are_in_the_system_message(make: MakeRoot) -> None:
    agent_root = make(
        providers={"script": {"kind": "cli", "command": ["cat"], "workspace": "temp"}}, roles={"Poet": {}}
    )
    from farro.doctor.root import init  # again: for the role that the config declares

    init(agent_root.root, agent_root.settings)
    (agent_root.path / "agents/Poet/AGENTS-ROLE.md").write_text("---\nversion: 1.0.0\n---\nRhyme always.\n")
    agent_root.enqueue(role="Poet", routing={"mode": "manager"})
    agent_root.work("Poet")
    said = (agent_root.folder() / "result.md").read_text()  # cat answers with its prompt
    assert "Rhyme always." in said
    assert "version: 1.0.0" not in said
    assert said.index("Rhyme always.") < said.index("MakeRoot the greeting polite.")


def test_an_answer_of_the_wrong_form_is_repaired_and_every_call_is_charged(make: MakeRoot) -> None:
    repaired = {"match": "could not be read", "answer": CHANGE}
    agent_root = make(answers=[repaired, {"answer": "I would rather chat."}])
    agent_root.enqueue()
    agent_root.work()
    assert agent_root.life().role == "CodeReviewer"
    assert [call.end for call in agent_root.calls()] == ["answered", "answered"]
    assert len(agent_root.result()["agent"]["calls"]) == 2


def test_an_answer_that_stays_wrong_fails_the_job_with_the_reason(make: MakeRoot) -> None:
    agent_root = make(answers=[{"answer": "I would rather chat."}], roles={"SeniorEngineer": {"repairs": 1}})
    agent_root.enqueue()
    agent_root.work()
    life = agent_root.life()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert life.error["category"] == "bad_answer"
    assert len(agent_root.calls()) == 2


@pytest.mark.parametrize(
    ("role", "said"), [("CodeReviewer", '{"verdict": "approve"} is what I'), ("Manager", "To begi")]
)
def test_a_cut_off_answer_is_refused_though_its_beginning_can_be_read(make: MakeRoot, role: str, said: str) -> None:
    cut = {"answer": said, "whole": False}
    plan = {"plan_id": "p", "steps": [{"step_number": 1, "tool": "agent", "command": role, "args": ["Look."]}]}
    nothing = dict.fromkeys(PROMPT)
    agent_root = make(answers=[{"match": "cut off at the end", "answer": REVIEW}, cut])
    agent_root.enqueue(**{**nothing, **plan})
    agent_root.work("Runner")
    assert agent_root.life().status is Status.SUCCEEDED
    assert len(agent_root.calls()) == 2
    agent_root.answers([cut])
    agent_root.enqueue("two", **{**nothing, **plan})
    agent_root.work("Runner")
    error = agent_root.life("two").error
    assert error is not None
    assert error["category"] == "bad_answer"
    assert f"roles.{role}.max_output_tokens" in error["message"]


def test_a_temporary_trouble_is_retried_and_then_left_to_the_next_attempt(make: MakeRoot) -> None:
    down = {"error": {"kind": "overloaded"}, "attempt": 1}
    agent_root = make(answers=[down, ENGINEER])
    agent_root.enqueue()
    life = agent_root.until_over()
    assert (life.role, life.attempt) == ("CodeReviewer", 2)
    # Four tries, as over HTTP, then another attempt.
    assert [call.charge.attempt for call in agent_root.calls()] == [1, 1, 1, 1, 2]


def test_a_refusal_is_final_at_once(make: MakeRoot) -> None:
    agent_root = make(answers=[{"error": {"kind": "denied", "message": "no such model"}}])
    agent_root.enqueue()
    agent_root.work()
    life = agent_root.life()
    assert (life.status, life.attempt) == (Status.FAILED, 1)
    assert life.error is not None
    assert life.error["category"] == "provider_refused"
    assert "no such model" in (agent_root.folder() / "error.md").read_text()
    assert len(agent_root.calls()) == 1


def test_a_fallback_answers_when_the_first_provider_is_given_up(make: MakeRoot) -> None:
    agent_root = make(
        providers={
            "script": {"kind": "scripted", "file": "answers.json"},
            "spare": {"kind": "scripted", "file": "spare.json"},
        },
        roles={"SeniorEngineer": {"provider": "script", "fallbacks": [{"provider": "spare"}]}},
        answers=[{"error": {"kind": "denied"}}],
    )
    (agent_root.path / "spare.json").write_text(json.dumps({"answers": [ENGINEER]}))
    agent_root.enqueue()
    agent_root.work()
    assert agent_root.life().role == "CodeReviewer"
    assert [call.charge.provider for call in agent_root.calls()] == ["script", "spare"]


def test_without_a_provider_the_error_says_what_to_configure(make: MakeRoot) -> None:
    agent_root = make()
    config = json.loads((agent_root.path / "agents-config.json").read_text())
    config["providers"] = {}
    (agent_root.path / "agents-config.json").write_text(json.dumps(config))
    agent_root.enqueue()
    agent_root.work()
    error = agent_root.life().error
    assert error is not None
    assert error["category"] == "no_provider"
    assert "`farro init --agents claude` (or codex, or gemini) adds one" in error["message"]


def test_a_budget_refuses_the_call_that_would_exceed_it(make: MakeRoot) -> None:
    agent_root = make(
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
    agent_root.enqueue()
    agent_root.work()
    life = agent_root.life()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert life.error["category"] == "budget_exceeded"
    assert agent_root.calls() == []  # it was not made
    assert agent_root.result()["step_results"][0]["exit_code"] == 3


def test_a_scripted_answer_is_reserved_with_its_cost(make: MakeRoot) -> None:
    """Reserved at zero, every answer would fit into any budget, and the budget would be exceeded."""
    entries = [{**ENGINEER, "cost_usd": 0.03}, {**REVIEWER, "cost_usd": 0.03}]
    agent_root = make(answers=entries, budgets={"day_usd": 0.05})
    agent_root.enqueue()
    agent_root.work()
    assert agent_root.life().role == "CodeReviewer"
    agent_root.work("CodeReviewer")
    error = agent_root.life().error
    assert error is not None
    assert (error["category"], "0.03 of 0.05 are spent" in error["message"]) == ("budget_exceeded", True)
    assert "or lower cost_usd in answers.json" in error["message"]
    assert [str(call.charge.most_usd) for call in agent_root.calls()] == ["0.03"]


def test_the_cost_of_a_job_is_in_its_result(make: MakeRoot) -> None:
    entry = {**ENGINEER, "usage": {"input_tokens": 1000, "output_tokens": 500}, "cost_usd": 0.25}
    agent_root = make(answers=[entry])
    agent_root.enqueue()
    agent_root.work()
    agent = agent_root.result()["agent"]
    assert (agent["cost_usd"], agent["cost_estimated"]) == ("0.25", False)
    assert "cost $0.25" in (agent_root.folder() / "result.md").read_text()


def test_a_result_separates_its_own_calls_from_the_jobs(make: MakeRoot) -> None:
    """The last of three roles made one call: the other six belong to the job, not to its result."""
    usage = {"input_tokens": 100, "output_tokens": 50}
    script = {"kind": "scripted", "file": "answers.json"}
    agent_root = make(
        answers=[{**ENGINEER, "usage": usage, "cost_usd": 0.25}, {**REVIEWER, "usage": usage, "cost_usd": 0.0125}],
        providers={"script": script, "judge": script},
        roles={"CodeReviewer": {"provider": "judge"}, "SeniorEngineer": {"provider": "script"}},
    )
    agent_root.enqueue()
    agent_root.work()
    assert "\n*script: 1 call, 150 tokens, cost $0.25*\n" in (agent_root.folder() / "result.md").read_text()
    agent_root.work("CodeReviewer")
    said = "*judge: 1 call, 150 tokens, cost $0.0125; the job so far: 2 calls, 300 tokens, cost $0.2625*"
    assert said in (agent_root.folder() / "result.md").read_text()
    agent = agent_root.result(attempt=2)["agent"]
    assert ([call["provider"] for call in agent["calls"]], agent["cost_usd"]) == (["judge"], "0.0125")
    assert agent["job"] == {"calls": 2, "cost_usd": "0.2625", "cost_estimated": False}


def test_a_plan_may_have_an_agent_step(make: MakeRoot) -> None:
    agent_root = make(answers=[{"match": "hand it over", "answer": "Please hand it over."}])
    plan: dict[str, Any] = {
        "plan_id": "mixed",
        "steps": [
            {"id": "read", "command": "cat", "args": ["src/greeting.txt"]},
            {"id": "ask", "tool": "agent", "command": "Manager", "args": ["Be polite."], "input_from_step": "read"},
            {"id": "shout", "command": "tr", "args": ["a-z", "A-Z"], "input_from_step": "ask"},
        ],
    }
    agent_root.enqueue(**dict.fromkeys(PROMPT), **plan)
    agent_root.work("Runner")
    assert agent_root.life().status is Status.SUCCEEDED, agent_root.life().error
    assert agent_root.result()["step_results"][2]["stdout"] == "PLEASE HAND IT OVER."


def test_an_agent_step_gets_the_policy_of_its_own_role(make: MakeRoot) -> None:
    agent_root = make(providers={"script": {"kind": "cli", "command": ["cat"]}})
    for role, words in (("Manager", "Decide gently."), ("Runner", "Run fast.")):
        (agent_root.path / f"agents/{role}/AGENTS-ROLE.md").write_text(f"---\nversion: 1.0.0\n---\n{words}\n")
    step = {"id": "ask", "tool": "agent", "command": "Manager", "args": ["Which one?"]}
    agent_root.enqueue(**dict.fromkeys(PROMPT), plan_id="ask", steps=[step])
    agent_root.work("Runner")
    said = agent_root.result()["step_results"][0]["stdout"]  # cat answers with its prompt
    assert "Decide gently." in said
    assert "Run fast." not in said


def test_texts_of_the_payload_are_sent_and_other_files_are_named(make: MakeRoot) -> None:
    seen = "File notes\\.md\\n\\nMind the gap\\."
    agent_root = make(answers=[{"pattern": seen, "answer": CHANGE}])
    agent_root.enqueue(
        payload={"notes.md": b"Mind the gap.\n", "logo.png": b"\x89PNG\0\xff", "long.md": b"x" * (300 << 10)}
    )
    agent_root.work()
    assert agent_root.life().error is None
    asked = json.loads((agent_root.folder() / "attempts/0001/steps/1/calls/1.json").read_text())["asked"]
    assert "- logo.png\n" in asked
    assert "- long.md\n" in asked  # too long to be sent
    assert "PNG" not in asked
    assert "xxx" not in asked


def test_unreported_tokens_are_not_written_as_zero(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue()
    agent_root.work()
    assert "*script: 1 call, cost $0*" in (agent_root.folder() / "result.md").read_text()


def test_a_planted_link_is_not_sent_to_a_provider(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue(context_md="prompt.md", narrative="x")
    secret = agent_root.path.parent / "secret.txt"
    secret.write_text("the crown jewels")
    (agent_root.folder() / "prompt.md").unlink()
    (agent_root.folder() / "prompt.md").symlink_to(secret)
    agent_root.work()
    error = agent_root.life().error
    assert error is not None
    assert (error["category"], "not an ordinary file" in error["message"]) == ("bad_prompt", True)


def test_a_job_may_not_grow_beyond_its_cap(make: MakeRoot) -> None:
    words = "x" * 3000
    agent_root = make(answers=[{"answer": {"summary": words}}], security={"max_job_bytes": 2000})
    agent_root.enqueue()
    agent_root.work()
    error = agent_root.life().error
    assert error is not None
    assert error["category"] == "artifact_cap"


def test_a_job_beyond_its_cap_is_in_the_audit_log(make: MakeRoot) -> None:
    agent_root = make(answers=[{"answer": {"summary": "x" * 3000}}], security={"max_job_bytes": 2000})
    agent_root.enqueue()
    agent_root.work()
    told = [(line["job_id"], line["status"], line["error"]) for line in agent_root.audit() if "error" in line]
    assert told == [("one", "failed", "artifact_cap")]


def test_both_mirrors_are_repaired_by_the_next_claim(make: MakeRoot) -> None:
    """SPEC-1 §9: a worker that finds both reconciles them from the attempts."""
    down = {"error": {"kind": "overloaded"}, "attempt": 1}
    agent_root = make(answers=[down, ENGINEER])
    agent_root.enqueue()
    agent_root.work()
    folder = agent_root.folder()
    assert (folder / "error.md").exists()
    (folder / "result.md").write_text("of a worker that was killed while it put the mirrors right")
    agent_root.until_over()
    assert not (agent_root.folder() / "error.md").exists()
    assert "please" in (agent_root.folder() / "result.md").read_text()


def test_a_long_pause_that_a_provider_asks_for_delays_the_job(make: MakeRoot) -> None:
    busy = {"error": {"kind": "overloaded", "retry_after_s": 300}, "attempt": 1}
    agent_root = make(answers=[busy, ENGINEER])
    agent_root.enqueue()
    agent_root.work()
    life = agent_root.life()
    assert life.status is Status.QUEUED
    assert life.not_before is not None
    waits_s = (datetime.fromisoformat(life.not_before) - datetime.fromisoformat(life.updated_at)).total_seconds()
    assert 299 < waits_s < 302  # as it asked, not as the job's own backoff would have it
    assert agent_root.work() == [Turn.IDLE]


def test_a_refusal_is_charged_by_its_tokens(make: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ScriptedProvider, request: Request) -> Answer:
        used = Usage(input_tokens=100, output_tokens=5)
        raise ProviderTrouble("refused to answer", kind="refused", retryable=False, usage=used)

    monkeypatch.setattr(ScriptedProvider, "answer", refuse)
    script = {"kind": "scripted", "file": "answers.json", "model": "m"}
    agent_root = make(providers={"script": {**script, "prices": {"m": {"input_usd": 1, "output_usd": 2}}}})
    agent_root.enqueue()
    agent_root.work()
    (call,) = agent_root.calls()
    assert (call.end, call.estimated, call.cost_usd) == ("failed", False, Decimal("0.00011"))


@pytest.mark.parametrize("wait_s", [1e8, 1e15, 1e300])
def test_no_provider_delays_a_job_for_ever(make: MakeRoot, wait_s: float) -> None:
    busy = {"error": {"kind": "overloaded", "retry_after_s": wait_s}, "attempt": 1}
    agent_root = make(answers=[busy, ENGINEER])
    agent_root.enqueue()
    agent_root.work()
    life = agent_root.life()
    assert life.not_before is not None
    waits = datetime.fromisoformat(life.not_before) - datetime.fromisoformat(life.updated_at)
    assert waits <= timedelta(days=1)


def test_an_unreadable_policy_stops_agent_jobs_and_no_command_plan(make: MakeRoot) -> None:
    agent_root = make()
    (agent_root.path / "AGENTS.md").unlink()
    (agent_root.path / "AGENTS.md").mkdir()
    agent_root.enqueue("plain", role=None, rubric=None, allowed_paths=None, success=None, routing=None, steps=[STEP])
    agent_root.work("Runner")
    assert agent_root.life("plain").status is Status.SUCCEEDED
    agent_root.enqueue()
    agent_root.until_over()
    error = agent_root.life().error
    assert error is not None
    assert "AGENTS.md" in error["message"]
    (agent_root.path / "AGENTS.md").rmdir()
    agent_root.enqueue("later")
    agent_root.until_over("later")
    assert agent_root.life("later").role == "CodeReviewer"


STEP = {"id": "a", "command": "true"}


def test_a_worker_that_lost_its_job_makes_no_further_call(make: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception that ends its thread may come late, or a library may swallow it: nothing more is paid."""
    down = {"error": {"kind": "overloaded"}}
    agent_root = make(answers=[down, ENGINEER])
    agent_root.enqueue()
    asked: list[int] = []
    answer = ScriptedProvider.answer

    def taken_away(own: ScriptedProvider, request: Request) -> Answer:
        asked.append(1)
        if len(asked) == 2:
            os.rename(Path(request.folder).parents[4], agent_root.path / "taken")
        return answer(own, request)

    monkeypatch.setattr(ScriptedProvider, "answer", taken_away)
    agent_root.work()
    assert len(asked) == 2
    assert len(agent_root.calls()) == 2


def test_the_lock_that_init_makes_is_copied_with_a_claim(make: MakeRoot) -> None:
    """SPEC-1 §11: copy policy.lock.json into .snapshot/ on claim."""
    agent_root = make()
    agent_root.enqueue()
    agent_root.work()
    copy = agent_root.folder() / ".snapshot/policy.lock.json"
    assert copy.read_bytes() == (agent_root.path / "policy.lock.json").read_bytes()
