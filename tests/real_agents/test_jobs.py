"""Jobs that the real coding agents answer: edits, repairs in the same session, crashes, hangs, limits."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot
from farro.agents.providers import checks
from model_server.scenarios import DONE, PROSE, Hang, Say, Turn, WriteFile
from model_server.server import ModelServer, ServedRequest
from real_agents.jobs import agent_root

PROGRAMS = ("claude", "codex", "gemini")
HALF = WriteFile(path="src/half.py", text="def half(:\n")
HALF_DONE = [HALF, Say(content=DONE)]
GO_ON = b"You were interrupted"
TASK = b"SCENARIO:"


class HangsOnce(list[Turn]):
    """Turns whose last one is preceded, once, by a silence."""

    hung = False

    def __getitem__(self, index: Any) -> Any:
        if index == len(self) - 1 and not self.hung:
            self.hung = True
            return Hang()
        return super().__getitem__(index)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    with ModelServer(within=[str(tmp_path)]) as models:
        yield models


@pytest.fixture
def root_of(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda name, **changes: agent_root(tmp_path / "root", name, server, monkeypatch, **changes)


def asked(root: AgentRoot, scenario: str) -> None:
    root.enqueue(rubric=f"SCENARIO: {scenario}")
    root.until_over()


def of_agent(name: str, requests: list[ServedRequest]) -> list[ServedRequest]:
    """Leave out the requests with which gemini lets a model choose the model."""
    return [request for request in requests if name != "gemini" or request.tools]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_job_is_worked_and_its_result_names_session_and_files(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    asked(root, "edit")
    assert root.life().error is None
    assert "def hello" in (root.path / "src/hello.py").read_text()
    agent = root.result()["agent"]
    assert agent["answer"]["summary"] == DONE["summary"]
    assert agent["files"] == ["src/hello.py"]
    assert agent["session_id"]
    assert len(of_agent(name, server.model_requests)) == 2
    policy = (root.path / "AGENTS.md").read_text().splitlines()[-1]
    assert server.model_requests[-1].body.count(policy.encode()) == 1  # AGENTS.md is not given twice
    assert "src/hello.py" in (root.folder() / "attempts/0001/steps/1/stderr").read_text()  # `farro logs --follow`
    kept = [path for path in root.folder().rglob("*") if path.suffix == ".jsonl" or path.name == "home"]
    assert [path for path in kept if path.name != "steps.jsonl"] == []  # nothing of its home


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_form_is_repaired_in_the_same_session(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    asked(root, "wrong-form")
    assert root.life().error is None
    first, second = of_agent(name, server.model_requests)
    assert TASK in second.body
    assert PROSE.text.encode() in second.body  # the session knows its answer
    assert second.body.count(TASK) == first.body.count(TASK)  # and is not told its task again
    assert b"could not be read" in second.body


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_attempt_after_a_killed_worker_resumes_the_session(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(name)
    root.enqueue(rubric="SCENARIO: half-edit")
    killed = os.fork()
    if killed == 0:
        with contextlib.suppress(BaseException):
            root.work()
        os._exit(1)
    server.wait_for(3 if name == "gemini" else 2)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    begun = len(server.model_requests)
    server.scenarios["half-edit"] = HALF_DONE
    recover(root)
    root.until_over()
    life = root.life()
    assert (life.error, life.attempt) == (None, 2)
    (resumed,) = of_agent(name, server.model_requests[begun:])
    assert GO_ON in resumed.body
    assert b"half.py" in resumed.body
    assert resumed.body.count(TASK) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_without_progress_is_ended_and_its_session_resumed(
    name: str, root_of: Any, server: ModelServer
) -> None:
    server.scenarios["hangs-once"] = HangsOnce(HALF_DONE)
    root = root_of(name, idle_timeout_s=6)
    asked(root, "hangs-once")
    assert root.life().error is None
    assert root.life().attempt == 1
    assert "no progress for 6 s" in (root.folder() / "attempts/0001/steps/1/stderr").read_text()
    first, hung, resumed = of_agent(name, server.model_requests)
    assert GO_ON not in hung.body
    assert GO_ON in resumed.body
    assert resumed.body.count(TASK) == first.body.count(TASK)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_review_round_goes_on_in_the_session(name: str, root_of: Any, server: ModelServer) -> None:
    root = root_of(
        name, config={"roles": {"SeniorEngineer": {"provider": name}, "CodeReviewer": {"provider": "script"}}}
    )
    wish = {"verdict": "changes_requested", "findings": [{"message": "say please", "path": "src/a", "line": 1}]}
    root.answers(
        [
            {"role": "CodeReviewer", "match": "Please is said", "answer": REVIEW},
            {"role": "CodeReviewer", "answer": wish},
            {"role": "DocWriter", "answer": {"summary": "It is written down."}},
        ]
    )
    server.scenarios["round"] = [Say(content=CHANGE)]
    root.task({"role": "SeniorEngineer", "rubric": "SCENARIO: round"}, {"role": "CodeReviewer"})
    root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"}, rubric="SCENARIO: round")
    while not server.model_requests:
        root.manage()
        root.work()
    server.scenarios["round"] = [Say(content={"summary": "Please is said"})]
    root.until_done()
    assert root.life().error is None
    first, second = of_agent(name, server.model_requests)
    assert b"say please" in second.body
    assert CHANGE["summary"].encode() in second.body  # its own words of the round before
    assert second.body.count(b"POLICY") == first.body.count(b"POLICY")


@pytest.mark.parametrize("name", PROGRAMS)
def test_doctor_starts_it_in_the_sandbox(name: str, root_of: Any) -> None:
    root = root_of(name)
    found = {check.id: check for check in checks.checks(root.settings, os.environ, root=root.root, config="/c")}
    told = found["agents"].look()
    assert told.verdict == "ok", told
    assert re.search(rf"^{name}: .*\d+\.\d+", told.found)


def recover(root: AgentRoot) -> None:
    """Do what the watchdog and the manager do for a dead worker's jobs."""
    store = root.store()
    keeper = store.join("keeper", role=None)
    try:
        store.recover(keeper)
        for stale in store.stale():
            store.resolve_stale(keeper, stale)
    finally:
        store.leave(keeper)
        store.close()
