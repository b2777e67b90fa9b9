"""Check the calls of providers: tries, waits, fallbacks, and the ledger before and after each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from farro.agents.accounts import AccountGate
from farro.agents.provider_calls import (
    AllProvidersFailed,
    AnsweredCall,
    CallTry,
    ProviderCaller,
    ProviderCandidate,
    providers_of_role,
)
from farro.agents.providers.port import SLICE_S, Answer, ChatMessage, ProviderTrouble, Request, Usage
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.errors import BudgetExceeded, InputError
from farro.host.clock import ManualClock

OK = Answer(text="yes", usage=Usage(input_tokens=2, output_tokens=1), cost_usd=Decimal("0.5"))
SERVER = {"kind": "overloaded", "retryable": True}
LIMITED = {"kind": "limited", "retryable": True, "charged": False}
REFUSED = {"kind": "refused", "retryable": False, "charged": False}


class Scene:
    """Scripted providers, a clock that only sleeping moves, and a ledger that records everything."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.events: list[Any] = []
        self.tries: list[CallTry] = []
        self.budget = 100
        self.gate: AccountGate | None = None

    def candidate(self, name: str, *does: Answer | dict[str, Any], tries: int = 4) -> ProviderCandidate:
        return ProviderCandidate(
            name=name, provider=ScriptedProvider(self, name, list(does), tries), model=f"{name}-model"
        )

    def call(self, *candidates: ProviderCandidate, **more: Any) -> AnsweredCall:
        caller = ProviderCaller(
            make_request=self.request,
            reserve=self.reserve,
            settle=self.settle,
            clock=self.clock,
            uniform=lambda low, high: high,
            on_try=self.tries.append,
            gate=self.gate,
        )
        return caller.call(candidates, **more)

    def request(self, candidate: ProviderCandidate, number: int) -> Request:
        return Request(
            key=f"job/1/step/{number}",
            system="",
            messages=(ChatMessage(author="user", text="?"),),
            model=candidate.model,
            max_output_tokens=10,
            timeout_s=30,
        )

    def reserve(self, candidate: ProviderCandidate, request: Request, number: int) -> str:
        if len([event for event in self.events if event[0] == "reserve"]) >= self.budget:
            raise BudgetExceeded("nothing left")
        self.events.append(("reserve", candidate.name, number))
        return f"call-{number}"

    def settle(self, call_id: str, *, end: str, usage: Usage | None, cost_usd: Decimal | None) -> None:
        self.events.append(("settle", call_id, end, usage, cost_usd))

    def asked(self) -> list[tuple[str, str]]:
        return [(event[1], event[2]) for event in self.events if event[0] == "ask"]

    def ends(self) -> list[str]:
        return [event[2] for event in self.events if event[0] == "settle"]


@dataclass
class ScriptedProvider:
    scene: Scene
    name: str
    does: list[Answer | dict[str, Any] | BaseException]
    tries: int
    requests: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        self.scene.events.append(("ask", self.name, request.key.rpartition("/")[2]))
        does = self.does.pop(0) if len(self.does) > 1 else self.does[0]
        if isinstance(does, Answer):
            return does
        if isinstance(does, BaseException):
            raise does
        raise ProviderTrouble(f"{self.name} said no", **does)

    def close(self) -> None:
        pass


@pytest.fixture
def scene() -> Scene:
    return Scene()


def failed(scene: Scene, *candidates: ProviderCandidate, **more: Any) -> AllProvidersFailed:
    with pytest.raises(AllProvidersFailed) as raised:
        scene.call(*candidates, **more)
    return raised.value


def test_the_first_answer_is_returned(scene: Scene) -> None:
    answered = scene.call(scene.candidate("a", OK), scene.candidate("b", OK))
    assert (answered.answer, answered.candidate.name) == (OK, "a")
    assert [(one.provider, one.number, one.kind) for one in answered.tried] == [("a", 1, "answered")]


def test_every_call_is_reserved_before_and_settled_after(scene: Scene) -> None:
    scene.call(scene.candidate("a", SERVER, LIMITED, OK))
    assert scene.events == [
        ("reserve", "a", 1),
        ("ask", "a", "1"),
        ("settle", "call-1", "failed", None, None),
        ("reserve", "a", 2),
        ("ask", "a", "2"),
        ("settle", "call-2", "not_charged", None, None),
        ("reserve", "a", 3),
        ("ask", "a", "3"),
        ("settle", "call-3", "answered", OK.usage, OK.cost_usd),
    ]


@pytest.mark.parametrize("tries", [4, 2])
def test_a_provider_is_called_as_often_as_it_has_tries(scene: Scene, tries: int) -> None:
    trouble = failed(scene, scene.candidate("a", SERVER, tries=tries))
    assert len(scene.asked()) == tries == len(trouble.tried)
    assert (trouble.kind, trouble.retryable) == ("overloaded", True)
    assert f"a said no ({tries} calls)" == str(trouble)


def test_the_waits_grow_as_specified(scene: Scene) -> None:
    trouble = failed(scene, scene.candidate("a", SERVER))
    assert [one.waited_s for one in trouble.tried] == [0.0, 0.375, 0.5625, 0.84375]
    assert scene.clock.monotonic_s() - 1000.0 == pytest.approx(0.375 + 0.5625 + 0.84375)


def test_a_pause_that_a_provider_asks_for_is_kept(scene: Scene) -> None:
    answered = scene.call(scene.candidate("a", {**LIMITED, "retry_after_s": 20.0}, SERVER, OK))
    assert [one.waited_s for one in answered.tried] == [0.0, 20.0, 10.0]  # the jitter goes on from its own cap


def test_a_long_pause_is_left_to_the_job_and_the_fallback_is_called_at_once(scene: Scene) -> None:
    slow = scene.candidate("a", {**LIMITED, "retry_after_s": 3600.0})
    assert scene.call(slow, scene.candidate("b", OK)).candidate.name == "b"
    assert scene.clock.monotonic_s() == 1000.0
    assert scene.asked() == [("a", "1"), ("b", "2")]


def test_the_job_waits_for_the_shortest_pause_that_may_help(scene: Scene) -> None:
    trouble = failed(
        scene,
        scene.candidate("a", {**LIMITED, "retry_after_s": 3600.0}),
        scene.candidate("b", {**LIMITED, "retry_after_s": 600.0}),
        scene.candidate("c", REFUSED),
    )
    assert (trouble.kind, trouble.retryable, trouble.retry_after_s) == ("refused", True, 600.0)
    assert "a said no; b said no; c said no" in str(trouble)


def test_the_job_does_not_wait_if_one_provider_asks_for_no_pause(scene: Scene) -> None:
    limited = scene.candidate("a", {**LIMITED, "retry_after_s": 3600.0})
    assert failed(scene, limited, scene.candidate("b", SERVER)).retry_after_s is None


def test_only_permanent_troubles_make_the_failure_permanent(scene: Scene) -> None:
    trouble = failed(scene, scene.candidate("a", REFUSED), scene.candidate("b", REFUSED))
    assert not trouble.retryable
    assert scene.asked() == [("a", "1"), ("b", "2")]


def test_call_numbers_continue_over_providers_and_from_the_first_number(scene: Scene) -> None:
    answered = scene.call(scene.candidate("a", REFUSED), scene.candidate("b", SERVER, OK), first_number=5)
    assert [(one.provider, one.number) for one in answered.tried] == [("a", 5), ("b", 6), ("b", 7)]
    assert scene.tries == list(answered.tried)


def test_a_violation_ends_all_calls_at_once(scene: Scene) -> None:
    bad = {"kind": "failed", "retryable": True, "violation": True}
    trouble = failed(scene, scene.candidate("a", bad), scene.candidate("b", OK))
    assert trouble.violation
    assert not trouble.retryable
    assert scene.asked() == [("a", "1")]


def test_a_budget_refuses_the_first_call(scene: Scene) -> None:
    scene.budget = 0
    with pytest.raises(BudgetExceeded, match=r"^nothing left$"):
        scene.call(scene.candidate("a", SERVER), scene.candidate("b", OK))
    assert scene.asked() == []


def test_a_budget_that_refuses_a_retry_does_not_hide_the_trouble(scene: Scene) -> None:
    scene.budget = 2
    trouble = failed(scene, scene.candidate("a", SERVER), scene.candidate("b", OK))
    assert str(trouble) == "a said no (2 calls). No further try was made: nothing left"
    assert not trouble.retryable  # the next attempt of the job would be refused at once
    assert len(scene.asked()) == 2
    assert scene.ends() == ["failed", "failed"]
    scene.budget = 3
    again = failed(scene, scene.candidate("a", REFUSED), scene.candidate("b", OK))  # the fallback is too dear
    assert str(again) == "a said no. No further try was made: nothing left"


class Ended(BaseException):
    pass


def test_an_interrupted_call_stays_unsettled(scene: Scene) -> None:
    candidate = scene.candidate("a", SERVER)
    candidate.provider.does = [Ended()]  # type: ignore[attr-defined]
    with pytest.raises(Ended):
        scene.call(candidate, scene.candidate("b", OK))
    assert scene.ends() == []


def test_a_wait_is_slept_in_slices(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene.clock.advance(seconds)

    monkeypatch.setattr(scene.clock, "sleep", sleep)
    scene.call(scene.candidate("a", {**LIMITED, "retry_after_s": 3.0}, OK))
    assert max(slept) <= SLICE_S


def settings(**roles: RoleSettings) -> Settings:
    return Settings(providers={"a": ProviderSettings(), "b": ProviderSettings()}, roles=roles)


def test_a_role_calls_its_provider_and_then_its_fallbacks() -> None:
    fallback = FallbackSettings(provider="b", model="small")
    config = settings(DocWriter=RoleSettings(provider="a", model="big", fallbacks=(fallback,)))
    assert providers_of_role(config, "DocWriter") == (FallbackSettings(provider="a", model="big"), fallback)


def test_the_only_provider_answers_for_every_role() -> None:
    config = Settings(providers={"a": ProviderSettings()}, roles={"DocWriter": RoleSettings(model="big")})
    assert providers_of_role(config, "DocWriter") == (FallbackSettings(provider="a", model="big"),)
    assert providers_of_role(config, "Architect") == (FallbackSettings(provider="a"),)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings(), "role R has no provider; set roles.R.provider \\(configured: a, b\\)"),
        (Settings(), "no provider can answer R: the config has no `providers`"),
        (settings(R=RoleSettings(provider="A")), "role R asks provider A, which `providers` does not have"),
        (
            settings(R=RoleSettings(provider="a", fallbacks=(FallbackSettings(provider="bb"),))),
            "did you mean b\\?",
        ),
    ],
)
def test_a_role_without_a_provider_is_reported(config: Settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        providers_of_role(config, "R")


def test_tries_are_serialised_as_json() -> None:
    one = CallTry(provider="a", model=None, number=1, kind="overloaded", message="no", waited_s=0.0)
    keys: Sequence[str] = list(one.to_json())
    assert keys == ["provider", "model", "number", "kind", "message", "waited_s"]
