"""Jobs that real coding agents answer over ACP: gemini in every form, the adapter of claude in the long one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import AgentRoot
from agents.test_acp_provider import recover
from model_server.scenarios import DONE, PROSE, Say, WriteFile
from model_server.server import ModelServer, ServedRequest
from real_agents.programs import TOKEN, executable
from support import torture

COMMANDS = {"gemini": ("gemini", "--acp", "--skip-trust"), "claude": ("claude-agent-acp",)}
VARIABLES = {
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    "claude": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
}
AGENTS = ("gemini", "claude") if torture() else ("gemini",)
HALF = WriteFile(path="src/half.py", text="def half(:\n")
Staged = Callable[..., AgentRoot]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    with ModelServer(within=[str(tmp_path)]) as models:
        yield models


@pytest.fixture
def root_of(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Staged:
    def made(name: str, *, config: dict[str, Any] | None = None, **changes: Any) -> AgentRoot:
        path = tmp_path / "root"
        path.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=path, check=True)
        key, address = VARIABLES[name]
        monkeypatch.setenv(key, TOKEN)
        monkeypatch.setenv(address, server.base_url)
        monkeypatch.setenv("PATH", os.pathsep.join((str(Path(shutil.which("node") or "").parent), os.environ["PATH"])))
        first, *others = COMMANDS[name]
        provider = {
            "kind": "acp",
            "command": [executable(first), *others],
            "environment": [key, address],
            "workspace": "root",
            "network": True,
            **changes,
        }
        return AgentRoot(
            path, providers={name: provider}, roles={"SeniorEngineer": {"provider": name}}, **(config or {})
        )

    return made


def pauses(root: AgentRoot) -> list[Any]:
    store = root.store()
    try:
        return list(store.accounts().paused())
    finally:
        store.close()


def asked(root: AgentRoot, scenario: str) -> None:
    root.enqueue(rubric=f"SCENARIO: {scenario}")
    root.until_over()


def of_agent(requests: list[ServedRequest]) -> list[ServedRequest]:
    """Leave out the requests with which an agent lets a model choose the model, or a title."""
    return [request for request in requests if request.tools]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_edits_a_file(name: str, root_of: Staged, server: ModelServer) -> None:
    root = root_of(name)
    asked(root, "edit")
    assert root.life().error is None
    assert "def hello" in (root.path / "src/hello.py").read_text()
    agent = root.result()["agent"]
    assert agent["answer"]["summary"] == DONE["summary"]
    assert (agent["files"], agent["denied"]) == (["src/hello.py"], [])


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_refused_what_the_policy_refuses(name: str, root_of: Staged, server: ModelServer) -> None:
    root = root_of(name, permissions="refuse")
    server.scenarios["edit"] = [server.scenarios["edit"][0], Say(content={"summary": "I may not."})]
    asked(root, "edit")
    assert not (root.path / "src/hello.py").exists()
    assert root.life().error is None
    assert root.result()["agent"]["denied"]


@pytest.mark.parametrize("name", AGENTS)
def test_a_wrong_form_is_repaired_in_the_loaded_session(name: str, root_of: Staged, server: ModelServer) -> None:
    root = root_of(name)
    asked(root, "wrong-form")
    assert root.life().error is None
    first = of_agent(server.model_requests)[0]
    second = next(one for one in of_agent(server.model_requests) if b"could not be read" in one.body)
    assert PROSE.text.encode() in second.body  # the session knows its answer
    assert second.body.count(b"SCENARIO:") == first.body.count(b"SCENARIO:")  # and is not told its task again


@pytest.mark.parametrize("name", AGENTS)
def test_a_bad_key_is_asked_once(
    name: str, root_of: Staged, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_of(name)
    monkeypatch.setenv(VARIABLES[name][0], "bad-key")
    root.enqueue(rubric="SCENARIO: edit")
    root.work(turns=2)
    (pause,) = pauses(root)
    assert (pause.account, pause.kind) == (name, "refused")
    assert "bad-key" not in pause.reason
    assert len(root.calls()) == 1


@pytest.mark.parametrize("name", AGENTS)
def test_the_attempt_after_a_killed_worker_finishes_the_job(name: str, root_of: Staged, server: ModelServer) -> None:
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
    server.scenarios["half-edit"] = [HALF, Say(content=DONE)]
    recover(root)
    root.until_over()
    life = root.life()
    assert (life.error, life.attempt) == (None, 2)
    # gemini 0.61 cannot load a session that it began in the same minute, and begins another: test_acp_provider.py
    # shows the rest with an agent that can.
    assert root.result(attempt=2)["agent"]["answer"]["summary"] == DONE["summary"]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_at_its_limit_is_ended(name: str, root_of: Staged, server: ModelServer) -> None:
    root = root_of(name, idle_timeout_s=20)
    root.enqueue(rubric="SCENARIO: usage-limit")
    root.work(turns=2)
    (pause,) = pauses(root)
    assert (pause.account, pause.kind) == (name, "limited")
    assert len(server.model_requests) <= 2
