"""Check the acp provider with an agent that is written with the official library: a real process over stdio.

gemini, which asks for permissions, is run in tests/real_agents.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.agent_root import AgentRoot, MakeRoot
from farro.agents import inbox
from farro.agents.inbox import InboxItem
from farro.agents.session_folder import SessionFolder
from farro.errors import IllegalTransition
from farro.jobs.states import Status
from farro.sandbox.levels import Sandbox
from flows.program import Program
from support import ROOT, eventually, need

ANSWER = """await turn.say(json.dumps({"summary": "done"}))\n"""
Staged = Callable[..., AgentRoot]


@pytest.fixture
def agent(make: MakeRoot, tmp_path: Path) -> Staged:
    """Make a root whose engineer is an ACP agent; `body` is what it does in a turn."""

    def staged(body: str, *, config: dict[str, Any] | None = None, **provider: Any) -> AgentRoot:
        act = tmp_path / "root" / "act.py"
        described = {
            "kind": "acp",
            "command": [sys.executable, f"{ROOT}/tests/agents/acp_agent.py", str(act)],
            "workspace": "root",
            **provider,
        }
        roles = {"SeniorEngineer": {"provider": "fake"}, "CodeReviewer": {"provider": "script"}}
        root = make(providers={"fake": described}, **{"roles": roles, **(config or {})})
        act.write_text(body)
        root.enqueue()
        return root

    return staged


def folder_of(root: AgentRoot) -> SessionFolder:
    return SessionFolder.of_step(root.root, "one", "SeniorEngineer", "1")


def turns(root: AgentRoot) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder_of(root).home, "turns").read_text().splitlines()]


def pauses(root: AgentRoot) -> list[Any]:
    store = root.store()
    try:
        return list(store.accounts().paused())
    finally:
        store.close()


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


def said(root: AgentRoot) -> str:
    return (root.folder() / "attempts/0001/steps/1/stderr").read_text()


@pytest.mark.parametrize("level", ["A", "B"])
def test_an_agent_edits_what_it_may_and_reports_it(agent: Staged, level: str) -> None:
    need(Sandbox.available(level).level == level, f"level {level} of the sandbox")  # type: ignore[arg-type]
    path = "path = os.getcwd() + '/src/greeting.txt'\n"
    root = agent(
        f"{path}await turn.say('I look.\\n')\nassert await turn.edits(path, 'please') == 'yes'\n{ANSWER}",
        config={"security": {"sandbox": level}},
    )
    root.until_over()
    assert root.life().error is None
    assert (root.path / "src/greeting.txt").read_text() == "please"
    told = root.result()["agent"]
    assert (told["files"], told["denied"]) == (["src/greeting.txt"], [])
    assert told["answer"]["summary"] == "done"
    assert "I look.\nWrite " in said(root)
    (turn,) = turns(root)
    assert "MakeRoot the greeting polite." in turn["prompt"]
    assert told["session_id"] == turn["session"] == folder_of(root).read()["fake"].session_id


@pytest.mark.parametrize("level", ["A", "B"])
def test_what_an_agent_started_ends_with_its_turn(agent: Staged, level: str) -> None:
    need(Sandbox.available(level).level == level, f"level {level} of the sandbox")  # type: ignore[arg-type]
    body = """
import subprocess
left = "import time; time.sleep(3000)"
subprocess.Popen([sys.executable, "-c", left, "left-by-" + os.environ["HOME"]], start_new_session=True)
"""
    root = agent(body + ANSWER, config={"security": {"sandbox": level}})
    root.until_over()
    assert root.life().error is None
    mark = f"left-by-{folder_of(root).home}"
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in commands if mark in words]


def test_a_change_outside_the_allowed_paths_is_refused(agent: Staged) -> None:
    body = (
        "for path in (os.getcwd() + '/AGENTS.md', '/etc/passwd', 'src/../secret'):\n"
        "    assert await turn.asks(f'Write {path}', 'edit', path) == 'no'\n"
        "assert await turn.asks('Run make', 'execute', command='make') == 'yes'\n"
    )
    root = agent(body + ANSWER)
    root.until_over()
    assert root.life().error is None
    denied = root.result()["agent"]["denied"]
    assert [line.rpartition("/")[2] for line in denied] == ["AGENTS.md", "passwd", "secret"]


def test_a_policy_refuses_all_that_is_asked(agent: Staged) -> None:
    root = agent(f"assert await turn.asks('Run make', 'execute') == 'no'\n{ANSWER}", permissions="refuse")
    root.until_over()
    assert root.life().error is None
    assert root.result()["agent"]["denied"] == ["Run make"]


def test_files_and_terminals_are_left_to_the_agents_own_tools(agent: Staged) -> None:
    body = """
client, session, refused = turn.client, turn.session, []
for ask in (
    lambda: client.read_text_file(session_id=session, path=os.getcwd() + "/src/greeting.txt"),
    lambda: client.write_text_file(session_id=session, path=os.getcwd() + "/src/greeting.txt", content="bad"),
    lambda: client.create_terminal(session_id=session, command="id"),
):
    try:
        await ask()
    except acp.RequestError as error:
        refused.append(error.code)
assert refused == [-32601] * 3, refused
"""
    root = agent(body + ANSWER)
    root.until_over()
    assert root.life().error is None
    assert (root.path / "src/greeting.txt").read_text() == "hand it over\n"


def test_a_repair_goes_on_in_the_loaded_session(agent: Staged) -> None:
    root = agent("await turn.say('not of the form' if turn.number == 1 else json.dumps({'summary': 'done'}))")
    root.until_over()
    assert root.life().error is None
    first, second = turns(root)
    assert first["session"] == second["session"]
    assert second["prompt"].startswith("Your answer could not be read")
    assert root.result()["agent"]["answer"]["summary"] == "done"
    assert "of the past" not in said(root)  # what it repeats of the session is no answer


@pytest.mark.parametrize("lost", ["the agent cannot load", "the session is gone"])
def test_a_session_that_cannot_be_loaded_is_begun_with_the_whole_conversation(
    agent: Staged, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    forget = "os.unlink(os.environ['HOME'] + '/sessions/' + turn.session)\n" if lost == "the session is gone" else ""
    if not forget:
        monkeypatch.setenv("NO_LOAD", "1")
    words = "await turn.say('not of the form' if turn.number == 1 else json.dumps({'summary': 'done'}))"
    root = agent(f"{forget}{words}", environment=["NO_LOAD"])
    root.until_over()
    assert root.life().error is None
    first, second = turns(root)
    assert first["session"] != second["session"]
    assert "You answered:\n\nnot of the form" in second["prompt"]


def test_tokens_and_cost_are_taken_if_the_agent_tells_them(agent: Staged) -> None:
    root = agent(f"turn.bills(100, 7, 20)\nawait turn.costs(0.25)\n{ANSWER}")
    root.until_over()
    (call,) = root.calls()
    assert call.usage is not None
    assert (call.usage.input_tokens, call.usage.output_tokens, call.usage.cache_read_tokens) == (120, 7, 20)
    assert str(call.cost_usd) == "0.25"


def test_an_agent_without_progress_is_told_to_stop_and_ended(agent: Staged) -> None:
    root = agent(f"await asyncio.sleep(60 if turn.number == 1 else 0)\n{ANSWER}", idle_timeout_s=4)
    root.until_over()
    assert (root.life().error, root.life().attempt) == (None, 1)
    first, second = turns(root)
    assert Path(folder_of(root).home, "cancelled").read_text() == first["session"]
    assert second["session"] == first["session"]
    assert second["prompt"].startswith("You were interrupted.")


def test_the_attempt_after_a_killed_worker_goes_on_in_the_session(agent: Staged) -> None:
    root = agent(f"await asyncio.sleep(600 if turn.number == 1 else 0)\n{ANSWER}")
    killed = os.fork()
    if killed == 0:
        with contextlib.suppress(BaseException):
            root.work()
        os._exit(1)
    home = Path(folder_of(root).home)
    eventually(lambda: (home / "turns").exists() and "fake" in folder_of(root).read(), "no turn began")
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    recover(root)
    root.until_over()
    assert (root.life().error, root.life().attempt) == (None, 2)
    first, second = turns(root)
    assert second["session"] == first["session"]
    assert second["prompt"].startswith("You were interrupted.")


def test_an_agent_that_is_not_signed_in_is_asked_once(agent: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_SIGNED_IN", "1")
    root = agent(ANSWER, environment=["NOT_SIGNED_IN"])
    root.work(turns=2)
    (pause,) = pauses(root)
    assert (pause.account, pause.kind) == ("fake", "refused")
    assert "it is not signed in: name the variable of its key under `environment`" in pause.reason
    assert len(root.calls()) == 1


def test_an_agent_at_its_limit_pauses_the_account(agent: Staged) -> None:
    root = agent("raise acp.RequestError(429, 'You have hit your usage limit. Try again in 3 hours.')")
    root.work(turns=2)
    (pause,) = pauses(root)
    assert (pause.account, pause.kind) == ("fake", "limited")
    assert 10_700 < pause.left_s < 10_900
    assert len(turns(root)) == 1
    assert root.life().status is Status.QUEUED


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os._exit(3)", "exit code 3"),
        ("turn.stop = 'refusal'", "refused to go on"),
        ("turn.stop = 'max_turn_requests'", "stopped before its end (max_turn_requests)"),
        ("pass", "finished without an answer"),
        ("print('no json', [1], {}, sep='\\n', flush=True)\nos._exit(0)", "ended in the middle of its work"),
    ],
)
def test_a_turn_without_an_answer_says_why(agent: Staged, body: str, words: str) -> None:
    root = agent(body, config={"retry": {"max_attempts": 1}})
    root.until_over()
    error = root.life().error
    assert error is not None
    assert words in error["message"]
    assert "farro session" not in (root.folder() / "error.md").read_text()  # no command continues it


# --- a person is asked ---


def worked(root: AgentRoot) -> threading.Thread:
    working = threading.Thread(target=root.until_over, daemon=True)
    working.start()
    return working


def asked(root: AgentRoot) -> InboxItem:
    """Return the first thing that waits for a person."""
    store = root.store()
    try:
        return eventually(lambda: inbox.list_inbox(store), "nothing waits for a person")[0]
    finally:
        store.close()


RUN = "await turn.asks('Run tests', 'execute', command='make test\\nrm -rf \\x1b[1m/')"


def test_a_person_allows_what_an_agent_asks(agent: Staged) -> None:
    root = agent(f"assert {RUN} == 'yes'\n{ANSWER}", permissions="inbox", idle_timeout_s=4)
    working = worked(root)
    item = asked(root)
    assert (item.job_id, item.role, item.permission) == ("one", "SeniorEngineer", True)
    assert item.question == "May the agent do this (execute)? Run tests\n  make test\n  rm -rf /"
    farro = Program(root.path)
    assert "? May the agent do this (execute)? Run tests" in farro.run("inbox", code=0).out
    assert farro.run("approve", "one", code=0).out.strip() == "one: allowed; its agent goes on"
    working.join(60)
    assert root.life().error is None
    assert root.result()["agent"]["denied"] == []
    assert [line["event"] for line in root.audit() if line["event"].startswith("permission")] == ["permission_given"]
    assert farro.run("inbox", code=0).out.strip() == "nothing waits for you"


def test_a_person_refuses_what_an_agent_asks(agent: Staged) -> None:
    root = agent(f"assert {RUN} == 'no'\n{ANSWER}", permissions="inbox")
    working = worked(root)
    asked(root)
    out = Program(root.path).run("refuse", "one", "--note", "not today", code=0).out
    assert out.strip() == "one: refused; its agent goes on"
    working.join(60)
    assert root.life().error is None
    assert root.result()["agent"]["denied"] == ["Run tests"]


def test_requests_of_one_agent_are_answered_one_after_the_other(agent: Staged) -> None:
    body = """
first = asyncio.ensure_future(turn.asks("Run one", "execute"))
second = asyncio.ensure_future(turn.asks("Run two", "execute"))
assert [await first, await second] == ["yes", "no"]
"""
    root = agent(body + ANSWER, permissions="inbox")
    working = worked(root)
    assert asked(root).question.endswith("Run one")
    farro = Program(root.path)
    farro.run("approve", "one", code=0)
    assert asked(root).question.endswith("Run two")
    farro.run("refuse", "one", "--note", "no", code=0)
    working.join(60)
    assert root.life().error is None
    assert root.result()["agent"]["denied"] == ["Run two"]


def test_what_nobody_answers_in_time_is_refused(agent: Staged) -> None:
    root = agent(f"assert {RUN} == 'no'\n{ANSWER}", permissions="inbox", permission_timeout_s=0.5)
    root.until_over()
    assert root.life().error is None
    assert root.result()["agent"]["denied"] == ["Run tests"]


def test_a_question_of_a_dead_attempt_is_not_shown(agent: Staged) -> None:
    root = agent(f"if turn.number == 1:\n    {RUN}\n{ANSWER}", permissions="inbox")
    killed = os.fork()
    if killed == 0:
        with contextlib.suppress(BaseException):
            root.work()
        os._exit(1)
    asked(root)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    recover(root)
    store = root.store()
    try:
        assert inbox.list_inbox(store) == []
        with pytest.raises(IllegalTransition):
            inbox.approve(store, "one", by="me")
    finally:
        store.close()
    root.until_over()
    assert root.life().error is None
    assert not Path(folder_of(root).path, "permissions").exists()


def test_a_permission_is_not_a_text_to_edit(agent: Staged) -> None:
    root = agent(f"assert {RUN} == 'yes'\n{ANSWER}", permissions="inbox")
    working = worked(root)
    asked(root)
    store = root.store()
    try:
        with pytest.raises(IllegalTransition):
            inbox.edit(store, "one", "other words", by="me")
        inbox.approve(store, "one", by="me")
    finally:
        store.close()
    working.join(60)
    assert root.life().error is None
