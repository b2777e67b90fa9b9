"""Limits are a state: a limited or refused account is paused, is not called, and its jobs wait uncounted."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agents.agent_root import CHANGE, AgentRoot, MakeRoot
from agents.test_provider_calls import OK, REFUSED, SERVER, Scene, failed
from farro.agents.accounts import AccountGate
from farro.agents.manager import age_s
from farro.agents.provider_calls import AllProvidersFailed
from farro.config.settings import ProviderSettings, Settings
from farro.errors import BudgetExceeded
from farro.jobs.moves import LONGEST_WAIT_S, awaited_accounts
from farro.jobs.states import Reason, Status
from farro.jobs.times import parse_timestamp
from farro.queue import accounts
from farro.store.memory import MemoryAccounts
from farro.worker.worker import Turn

LIMITED = {"kind": "limited", "retryable": True, "charged": False}
HOUR = {**LIMITED, "retry_after_s": 3600.0}


def lowest(low: float, high: float) -> float:
    return low


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.accounts = MemoryAccounts(made.clock, uniform=lowest)  # type: ignore[attr-defined]
    renew(made)
    return made


def accounts_of(scene: Scene) -> MemoryAccounts:
    return scene.accounts  # type: ignore[attr-defined, no-any-return]


def renew(scene: Scene, **providers: ProviderSettings) -> None:
    """Make the gate of the next request."""
    scene.gate = AccountGate(
        accounts=accounts_of(scene),
        settings=Settings(providers=providers),
        clock=scene.clock,
        uniform=lowest,
        redact=lambda text: text.replace("said", "***"),
    )


def waits(trouble: AllProvidersFailed) -> tuple[tuple[str, ...], float] | None:
    return None if trouble.wait is None else (trouble.wait.accounts, trouble.wait.delay_s)


# --- the calls of one request ---


def test_a_limit_pauses_the_account_and_is_not_asked_again(scene: Scene) -> None:
    assert waits(failed(scene, scene.candidate("a", HOUR))) == (("a",), 3600.0)
    (pause,) = accounts_of(scene).paused()
    assert (pause.kind, pause.reason, pause.left_s) == ("limited", "a *** no", 3600.0)
    renew(scene)
    scene.clock.advance(600)
    trouble = failed(scene, scene.candidate("a", OK))
    assert (waits(trouble), trouble.charged, trouble.tried) == ((("a",), 3000.0), False, ())
    assert "provider a was not called: account a is limited until" in str(trouble)
    assert len(scene.asked()) == 1
    renew(scene)
    scene.clock.advance(3000)
    assert scene.call(scene.candidate("a", OK)).answer == OK
    assert accounts_of(scene).find("a") is None


def test_a_reset_that_a_program_names_counts(scene: Scene) -> None:
    until = scene.clock.now() + timedelta(hours=2)
    assert waits(failed(scene, scene.candidate("a", {**LIMITED, "until": until}))) == (("a",), 7200.0)
    assert len(scene.asked()) == 1


def test_a_limit_of_a_moment_is_waited_for(scene: Scene) -> None:
    answered = scene.call(scene.candidate("a", {**LIMITED, "retry_after_s": 10.0}, OK))
    assert [one.waited_s for one in answered.tried] == [0.0, 10.0]
    trouble = failed(scene, scene.candidate("a", {**LIMITED, "retry_after_s": 1.0}))
    assert (waits(trouble), trouble.retryable) == (None, True)
    assert list(accounts_of(scene).paused()) == []


def test_an_unknown_reset_is_tried_as_specified_and_then_pauses(scene: Scene) -> None:
    assert waits(failed(scene, scene.candidate("a", LIMITED))) == (("a",), 300.0)
    assert len(scene.asked()) == 4
    once = {**LIMITED, "retryable": False}  # a program that has tried again itself
    renew(scene)
    scene.clock.advance(300)
    assert waits(failed(scene, scene.candidate("a", once))) == (("a",), 600.0)
    assert len(scene.asked()) == 5


def test_a_limit_of_a_moment_that_does_not_end_pauses_the_account_of_a_program(scene: Scene) -> None:
    passed = {**LIMITED, "retryable": False, "until": scene.clock.now()}  # "resets 3pm", said at 3pm
    assert scene.call(scene.candidate("a", passed, OK, tries=2)).answer == OK
    renew(scene)
    assert waits(failed(scene, scene.candidate("a", passed, tries=2))) == (("a",), 300.0)
    assert len(scene.asked()) == 4


def test_a_refusal_is_one_call_and_waits_for_a_person(scene: Scene) -> None:
    assert waits(failed(scene, scene.candidate("a", REFUSED))) == (("a",), LONGEST_WAIT_S)
    renew(scene)
    scene.clock.advance(30 * 86400)
    failed(scene, scene.candidate("a", OK))
    assert len(scene.asked()) == 1
    accounts_of(scene).resume("a")
    renew(scene)
    assert scene.call(scene.candidate("a", OK)).answer == OK


def test_a_fallback_is_called_before_the_job_waits(scene: Scene) -> None:
    assert scene.call(scene.candidate("a", HOUR), scene.candidate("b", OK)).candidate.name == "b"
    renew(scene)
    assert scene.call(scene.candidate("a", OK), scene.candidate("b", OK)).candidate.name == "b"
    assert [name for name, _ in scene.asked()] == ["a", "b", "b"]


def test_the_job_waits_for_the_first_account_that_may_answer(scene: Scene) -> None:
    minute = {**LIMITED, "retry_after_s": 60.0}
    trouble = failed(scene, scene.candidate("a", HOUR), scene.candidate("b", minute), scene.candidate("c", REFUSED))
    assert waits(trouble) == (("a", "b", "c"), 60.0)


def test_providers_of_one_account_share_its_pause(scene: Scene) -> None:
    shared = ProviderSettings(account="team")
    renew(scene, a=shared, b=shared)
    trouble = failed(scene, scene.candidate("a", HOUR), scene.candidate("b", OK))
    assert waits(trouble) == (("team",), 3600.0)
    assert [name for name, _ in scene.asked()] == ["a"]


def test_a_pause_of_another_worker_ends_the_tries(scene: Scene) -> None:
    elsewhere = scene.candidate("a", SERVER)
    sleep = scene.clock.sleep

    def pause_meanwhile(seconds: float) -> None:
        sleep(seconds)
        accounts_of(scene).pause("a", kind="limited", reason="too much", wait_s=60)

    scene.clock.sleep = pause_meanwhile  # type: ignore[method-assign]
    assert waits(failed(scene, elsewhere)) is not None
    assert len(scene.asked()) == 1


def test_a_job_waits_rather_than_fails_when_the_fallback_is_too_dear(scene: Scene) -> None:
    failed(scene, scene.candidate("a", HOUR))
    scene.budget = 1
    renew(scene)
    trouble = failed(scene, scene.candidate("a", OK), scene.candidate("b", OK))
    assert waits(trouble) == (("a",), 3600.0)
    scene.gate = None
    with pytest.raises(BudgetExceeded):
        scene.call(scene.candidate("b", OK))


def test_a_person_who_asks_reaches_a_paused_account(scene: Scene) -> None:
    failed(scene, scene.candidate("a", HOUR))
    scene.gate = None  # as `farro provider-test`
    assert scene.call(scene.candidate("a", OK)).answer == OK


# --- jobs ---


def limited(**more: Any) -> dict[str, Any]:
    return {"error": {"kind": "limited", "retry_after_s": 3600, **more}}


def accounts_in(root: AgentRoot) -> Any:
    return root.store().accounts()


def test_a_limited_job_goes_back_uncounted_and_no_other_call_is_made(make: MakeRoot) -> None:
    root = make(answers=[limited()], retry={"max_attempts": 1})
    for job_id in ("one", "two"):
        root.enqueue(job_id)
    assert root.work(turns=3) == [Turn.WORKED, Turn.WORKED, Turn.IDLE]
    for job_id in ("one", "two"):
        life = root.life(job_id)
        assert (life.status, life.attempts_in_hop(life.attempt), life.error) == (Status.QUEUED, 0, None)
        assert (awaited_accounts(life), life.hops[-1].reason) == (("script",), Reason.RELEASED)
        assert life.not_before is not None
        wait_s = (parse_timestamp(life.not_before) - parse_timestamp(life.updated_at)).total_seconds()
        assert 3500 < wait_s < 3600 * 1.25
    assert len(root.calls("one")) + len(root.calls("two")) == 1
    (pause,) = accounts_in(root).paused()
    assert (pause.account, pause.kind) == ("script", "limited")


def test_a_resumed_account_answers_its_jobs_at_once(make: MakeRoot) -> None:
    root = make(answers=[{"error": {"kind": "refused", "message": "wrong key"}}])
    root.enqueue()
    assert root.work(turns=2) == [Turn.WORKED, Turn.IDLE]
    assert len(root.calls()) == 1
    root.answers([{"role": "SeniorEngineer", "answer": CHANGE, "cost_usd": 0.5}])
    store = root.store()
    done = accounts.resume(store, "script", by="cli", clock=root.clock)
    assert (done.was_paused, done.jobs) == (True, ("one",))
    store.close()
    root.work()
    assert root.life().role == "CodeReviewer"
    assert [(call.end, call.counts_usd) for call in root.calls()] == [
        ("not_charged", Decimal(0)),
        ("answered", Decimal("0.5")),
    ]


def test_the_budget_of_an_account_is_common_to_its_providers(make: MakeRoot) -> None:
    script = {"kind": "scripted", "file": "answers.json", "account": "team"}
    root = make(answers=[{"answer": CHANGE, "cost_usd": 0.4}])
    root.configure(
        providers={"script": script, "other": {**script, "budget_usd": 0.5}},
        roles={"SeniorEngineer": {"provider": "script"}},
    )
    for job_id in ("one", "two"):
        root.enqueue(job_id)
    root.work(turns=2)
    assert root.life("one").role == "CodeReviewer"
    error = root.life("two").error
    assert error is not None
    assert error["category"] == "budget_exceeded"
    assert "the budget of account team" in error["message"]
    assert "Raise providers.other.budget_usd" in error["message"]
    assert list(accounts_in(root).paused()) == []


def test_a_plan_goes_on_behind_its_succeeded_steps_when_the_account_answers(make: MakeRoot) -> None:
    root = make(answers=[{**limited(), "attempt": 1}, {"answer": CHANGE}])
    steps = [
        {"id": "count", "command": "sh", "args": ["-c", "echo x >> ran"]},
        {"id": "ask", "tool": "agent", "command": "SeniorEngineer", "args": ["Say something."], "retries": 3},
    ]
    root.enqueue(role=None, rubric=None, allowed_paths=None, success=None, routing=None, steps=steps)
    root.work("Runner")
    assert root.life().status is Status.QUEUED
    assert awaited_accounts(root.life()) == ("script",)
    store = root.store()
    store.accounts().resume("script")  # and then the command was killed; it is repeated
    done = accounts.resume(store, "script", by="cli", clock=root.clock)
    assert (done.was_paused, done.jobs) == (False, ("one",))
    store.close()
    root.work("Runner")
    assert root.life().status is Status.SUCCEEDED
    assert (root.path / "ran").read_text() == "x\n"


def test_time_in_which_a_job_waited_for_an_account_does_not_count(make: MakeRoot) -> None:
    root = make(answers=[limited()])
    root.enqueue()
    root.work()
    life = root.life()
    now = datetime.fromisoformat(life.not_before or "") + timedelta(hours=9)
    claimed = life.changed(status=Status.IN_PROGRESS, not_before=None, updated_at=now.isoformat())
    age = age_s(claimed, now + timedelta(seconds=60))
    assert age is not None
    assert 60 <= age < 120


def test_the_reason_of_a_pause_shows_no_secret(make: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-0123456789")
    message = "wrong key sk-very-secret-0123456789"
    script = {"kind": "scripted", "file": "answers.json"}
    dead = {"kind": "openai", "api_key": "${MY_API_KEY}"}
    root = make(
        answers=[{"error": {"kind": "refused", "message": message}}], providers={"script": script, "dead": dead}
    )
    root.configure(providers={"script": script, "dead": dead}, roles={"SeniorEngineer": {"provider": "script"}})
    root.enqueue()
    root.work()
    (pause,) = accounts_in(root).paused()
    assert "secret" not in pause.reason
    assert "secret" not in str(root.life().hops[-1].note)
