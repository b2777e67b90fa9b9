"""Troubles of the service and of a program, met by the jobs of an ordinary user: what becomes of the job, and how many
requests are made."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.scenarios import DONE, BreakOff, Fail, Say, Turn, WriteFile
from model_server.server import ModelServer
from real_agents.jobs import MODELS, PROGRAMS, of_agent

MODEL = dict(zip(PROGRAMS, MODELS, strict=True))


class After(list[Turn]):
    """The answer, after one trouble."""

    def __init__(self, trouble: Turn) -> None:
        super().__init__([Say(content=DONE)])
        self._trouble: Turn | None = trouble

    def __getitem__(self, index: Any) -> Any:
        trouble, self._trouble = self._trouble, None
        return trouble or super().__getitem__(index)


@pytest.fixture
def root_of(user_root_of: Any) -> Any:
    return lambda name: user_root_of(name, model=MODEL[name])


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(Fail(kind="rate_limited", wait_s=1), id="a short limit"),
        pytest.param(Fail(kind="server_error"), id="500"),
        pytest.param(Fail(kind="overloaded"), id="overloaded"),
        pytest.param(Fail(kind="overloaded", in_stream=True), id="overloaded in the stream"),
        pytest.param(BreakOff(), id="cut"),
        pytest.param(Say(content=""), id="an empty answer"),
    ],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_passing_trouble_costs_one_more_request(name: str, trouble: Turn, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    server.scenarios["trouble"] = After(trouble)
    root.enqueue(rubric="SCENARIO: trouble")
    root.until_over()
    life = root.life()
    assert (life.error, life.attempt) == (None, 1)
    assert len(of_agent(name, server.model_requests)) == 2
    assert root.store().accounts().paused() == []


@pytest.mark.parametrize("wait_s", [10_800, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_usage_limit_pauses_the_account(name: str, wait_s: int | None, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    server.scenarios["limited"] = [Fail(kind="usage_limit", wait_s=wait_s)]
    root.enqueue(rubric="SCENARIO: limited")
    root.work()
    (paused,) = root.store().accounts().paused()
    assert paused.kind == "limited"
    assert (paused.tries == 0) == (wait_s is not None)
    assert root.life().status == "queued"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_key_is_one_request(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    server.keys = ["another"]
    root.enqueue(rubric="SCENARIO: edit")
    root.work()
    (paused,) = root.store().accounts().paused()
    assert (paused.kind, paused.until) == ("refused", None)
    assert len(server.model_requests) == 1
    assert root.life().status == "queued"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_outside_the_workspace_is_denied(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    server.scenarios["denied"] = [WriteFile(path="../outside.txt", text="not allowed\n"), Say(content=DONE)]
    root.enqueue(rubric="SCENARIO: denied")
    root.until_over()
    assert not (root.path.parent / "outside.txt").exists()
    assert len(of_agent(name, server.model_requests)) == 2
    assert root.life().error is None or "allowed" in str(root.life().error)
