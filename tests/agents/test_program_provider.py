"""Check the provider of known programs with a scripted program that writes what claude writes.

The real programs are run in tests/real_agents; here is what they cannot be made to do.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import REVIEW, AgentRoot, MakeRoot
from farro.agents.providers import checks
from farro.agents.session_folder import SessionFolder, SessionRecord, is_over, sweep
from farro.doctor.checks import Finding
from farro.execution.stop import Stop
from farro.jobs.states import Status
from flows.program import Program
from model_server import ModelServer
from model_server.scenarios import Fail, Say, Turn
from support import eventually

# It keeps a transcript as claude does, and does what the last line of its prompt says.
FAKE = """
import json, os, sys, time
prompt = sys.stdin.read()
session = sys.argv[sys.argv.index("--resume" if "--resume" in sys.argv else "--session-id") + 1]
resumed = "--resume" in sys.argv
transcript = os.path.expanduser(f"~/.claude/projects/here/{session}.jsonl")
def say(text, **more):
    event = {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session}
    print(json.dumps({**event, **more}), flush=True)
def tool(name, path):
    part = {"type": "tool_use", "id": "1", "name": name, "input": {"file_path": path}}
    print(json.dumps({"type": "assistant", "session_id": session, "message": {"content": [part]}}), flush=True)
    done = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    print(json.dumps({"type": "user", "message": {"content": [done]}}), flush=True)
def remember():
    os.makedirs(os.path.dirname(transcript), exist_ok=True)
    with open(transcript, "a") as file:
        file.write(json.dumps(prompt) + "\\n")
with open(os.environ["HOME"] + "/runs", "a") as file:
    file.write(json.dumps({"args": sys.argv[1:], "prompt": prompt, "env": dict(os.environ)}) + "\\n")
runs = sum(1 for _ in open(os.environ["HOME"] + "/runs"))
ANSWER = json.dumps({"summary": "done"})
"""
CODEX = """
import json, os, sys, time
prompt = sys.stdin.read()
with open(os.environ["HOME"] + "/runs", "a") as file:
    file.write(json.dumps({"args": sys.argv[1:], "prompt": prompt}) + "\\n")
print(json.dumps({"type": "thread.started", "thread_id": "session-1"}), flush=True)
# then
item = {"type": "agent_message", "text": json.dumps({"summary": "done"})}
print(json.dumps({"type": "item.completed", "item": item}))
print(json.dumps({"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}))
"""


@pytest.fixture
def program(make: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AgentRoot]:
    """Make a root whose engineer is a scripted program; `body` is what it does."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-its-own")

    def staged(body: str, *, config: dict[str, Any] | None = None, **provider: Any) -> AgentRoot:
        script = tmp_path / "root" / "agent.py"
        described = {
            "kind": "cli",
            "program": "claude",
            "command": [sys.executable, str(script)],
            "workspace": "root",
            "environment": ["ANTHROPIC_API_KEY"],
            **provider,
        }
        roles = {"SeniorEngineer": {"provider": "fake"}, "CodeReviewer": {"provider": "script"}}
        root = make(providers={"fake": described}, **{"roles": roles, **(config or {})})
        script.write_text(FAKE + body)
        return root

    return staged


def folder_of(root: AgentRoot) -> SessionFolder:
    return SessionFolder.of_step(root.root, "one", "SeniorEngineer", "1")


def runs(root: AgentRoot) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder_of(root).home, "runs").read_text().splitlines()]


def test_a_program_works_in_a_private_home_outside_of_the_job(program: Any) -> None:
    root = program("remember(); say(ANSWER)")
    root.enqueue()
    root.until_over()
    assert root.life().error is None
    home = Path(folder_of(root).home)
    assert home == root.path.resolve() / "jobs/.homes/one/SeniorEngineer/1/home"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((root.path / "jobs/.homes").stat().st_mode) == 0o700
    (run,) = runs(root)
    assert run["env"]["HOME"] == str(home)
    assert run["prompt"].startswith("# ")
    assert not [path for path in root.folder().rglob("*") if path.name == "transcript" or path.suffix == ".jsonl"][1:]


def test_the_id_is_recorded_before_the_program_starts(program: Any) -> None:
    root = program("", command=["no-such-program"])
    root.enqueue()
    root.work()
    record = folder_of(root).read()["fake"]
    assert record.program == "claude"
    assert record.session_id


def test_a_session_that_never_began_is_begun(program: Any) -> None:
    root = program("sys.exit(1) if runs == 1 else say(ANSWER)")
    root.enqueue()
    root.until_over()
    first, second = runs(root)
    assert [run["args"].count("--session-id") for run in (first, second)] == [1, 1]
    assert first["prompt"] == second["prompt"]
    ids = [run["args"][run["args"].index("--session-id") + 1] for run in (first, second)]
    assert ids[0] != ids[1]  # gemini refuses an id that it has seen


def test_a_resumed_session_is_told_only_what_is_new(program: Any) -> None:
    root = program("remember(); say('not of the form' if runs == 1 else ANSWER)")
    root.enqueue()
    root.until_over()
    first, second = runs(root)
    assert "--resume" in second["args"]
    assert "MakeRoot the greeting polite." in first["prompt"]
    assert second["prompt"].startswith("Your answer could not be read")
    assert "MakeRoot the greeting polite." not in second["prompt"]


def test_a_session_that_cannot_be_resumed_is_begun_with_the_whole_conversation(program: Any) -> None:
    body = "remember() if runs > 1 else None\nsay('not of the form' if runs == 1 else ANSWER)"
    root = program(body)
    root.enqueue()
    root.until_over()
    _, second = runs(root)
    assert "--session-id" in second["args"]
    assert "MakeRoot the greeting polite." in second["prompt"]
    assert "You answered:\n\nnot of the form" in second["prompt"]


def test_a_session_that_is_refused_for_good_is_not_resumed(program: Any) -> None:
    body = "remember()\nsay('too long', is_error=True, api_error_status=400) if runs == 1 else say(ANSWER)"
    root = program(body)
    root.enqueue()
    root.work()
    assert folder_of(root).read()["fake"].given_up
    assert len(runs(root)) == 1


def test_a_resumed_session_that_fails_is_replaced_by_one_that_is_told_everything(program: Any) -> None:
    root = program("remember()\nsay('not of the form') if runs == 1 else sys.exit(3) if runs == 2 else say(ANSWER)")
    root.enqueue()
    root.until_over()
    assert root.life().error is None
    first, second, third = runs(root)
    begun = [run["args"][run["args"].index("--session-id") + 1] for run in (first, third)]
    assert second["args"][second["args"].index("--resume") + 1] == begun[0] != begun[1]
    assert "MakeRoot the greeting polite." in third["prompt"]
    assert not folder_of(root).read()["fake"].given_up


def test_a_program_that_is_stuck_is_ended_and_resumed_once(program: Any) -> None:
    body = "remember()\ntime.sleep(60 if runs == 1 else 0)\nsay(ANSWER)"
    root = program(body, idle_timeout_s=1)
    root.enqueue()
    root.until_over()
    assert (root.life().error, root.life().attempt) == (None, 1)
    _, second = runs(root)
    assert "--resume" in second["args"]
    assert second["prompt"].startswith("You were interrupted.")


def test_what_a_program_reports_is_in_the_result(program: Any) -> None:
    denied = [{"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}}]
    body = f"tool('Edit', os.getcwd() + '/src/greeting.txt')\nsay(ANSWER, permission_denials={denied!r})"
    root = program(body)
    root.enqueue()
    root.until_over()
    agent = root.result()["agent"]
    assert agent["files"] == ["src/greeting.txt"]
    assert agent["denied"] == ["Write /etc/passwd"]
    assert agent["session_id"] == folder_of(root).read()["fake"].session_id
    said = (root.folder() / "attempts/0001/steps/1/stderr").read_text()
    assert "Edit" in said
    markdown = (root.folder() / "result.md").read_text()
    assert "src/greeting.txt" in markdown
    assert "Write /etc/passwd" in markdown


def test_an_exit_code_of_zero_is_no_answer(program: Any) -> None:
    root = program("sys.exit(0)", config={"retry": {"max_attempts": 1}})
    root.enqueue()
    root.until_over()
    error = root.life().error
    assert error is not None
    assert "ended in the middle of its work" in error["message"]


def test_a_link_that_an_agent_leaves_in_its_home_is_never_followed(program: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "farro.json").write_text("mine")
    body = (
        "import shutil\nhome = os.environ['HOME']\nshutil.rmtree(home + '/.claude')\n"
        f"os.symlink({str(outside)!r}, home + '/.claude')\nos.remove(home + '/.farro-prompt')\n"
        f"os.symlink({str(outside / 'farro.json')!r}, home + '/.farro-prompt')\n"
        "say('not of the form' if runs == 1 else ANSWER)"
    )
    root = program(body)
    root.enqueue()
    root.until_over()
    assert len(runs(root)) == 2
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("farro.json", "mine")]


def test_a_home_that_an_agent_made_unusable_is_made_again(program: Any) -> None:
    body = (
        "home = os.environ['HOME']\nos.remove(home + '/.farro-prompt')\n"
        "os.makedirs(home + '/.farro-prompt/inside')\nsay('not of the form' if 'answered' not in prompt else ANSWER)"
    )
    root = program(body)
    root.enqueue()
    root.until_over()
    assert root.life().error is None


def test_a_key_that_is_not_set_is_refused_before_the_program_starts(program: Any) -> None:
    root = program("say(ANSWER)", api_key="${NO_SUCH_KEY}")
    root.enqueue()
    root.work()
    error = root.life().error
    assert error is not None
    assert "the variable NO_SUCH_KEY is not set" in error["message"]
    assert root.calls() == []
    assert not Path(folder_of(root).home, "runs").exists()


def test_a_program_without_a_key_is_refused_with_what_to_do(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    root = program("say(ANSWER)")
    root.enqueue()
    root.work()
    error = root.life().error
    assert error is not None
    assert "claude has no key" in error["message"]
    assert [call.end for call in root.calls()] == ["not_charged"]


def test_homes_of_ended_jobs_are_swept(program: Any) -> None:
    root = program("remember(); say(ANSWER)")
    root.enqueue()
    root.until_over()
    for name in ("gone", "two"):
        os.makedirs(f"{root.root}/jobs/.homes/{name}/Architect/1/home")
    store = root.store()
    try:
        assert sorted(sweep(store, datetime.now(UTC))) == ["gone", "two"]
        assert Path(folder_of(root).home).exists()  # it goes on, with the reviewer
        root.answers([{"role": "CodeReviewer", "answer": REVIEW}])
        root.work("CodeReviewer")
        sweep(store, datetime.now(UTC))
    finally:
        store.close()
    assert not (root.path / "jobs/.homes/one").exists()


def test_sessions_of_a_failed_job_are_kept_for_a_week(program: Any) -> None:
    root = program("remember(); sys.exit(3)", config={"retry": {"max_attempts": 1}})
    root.enqueue()
    root.until_over()
    life = root.life()
    assert life.status is Status.FAILED
    assert not is_over(life, datetime.now(UTC))
    assert is_over(life, datetime.now(UTC) + timedelta(days=8))
    assert "Continue its session by hand: `farro session one`" in (root.folder() / "error.md").read_text()


def test_the_command_that_continues_a_session_is_printed(program: Any) -> None:
    root = program("remember(); say(ANSWER)")
    root.enqueue()
    root.until_over()
    farro = Program(root.path)
    done = farro.run("session", "one", code=0)
    session_id = root.result()["agent"]["session_id"]
    home = folder_of(root).home
    assert done.out.strip().startswith(f"cd {root.root} && HOME={home} {sys.executable} ")
    assert done.out.strip().endswith(f"--resume {session_id}")
    (told,) = json.loads(farro.run("session", "one", "--json", code=0).out)["sessions"]
    assert (told["role"], told["session_id"], told["home"]) == ("SeniorEngineer", session_id, home)
    assert farro.run("session", "one", "--role", "Architect").code == 2


def test_a_session_without_a_known_id_is_not_resumed(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker died after it had started the program, and before the program named its session."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-its-own")
    root = program("", program="codex", environment=["OPENAI_API_KEY"])
    (root.path / "agent.py").write_text(CODEX)
    folder = folder_of(root)
    folder.make()
    folder.write("fake", SessionRecord(program="codex", cwd=os.path.realpath(root.root), session_id=None))
    root.enqueue()
    root.until_over()
    assert root.life().error is None
    (run,) = runs(root)
    assert "resume" not in run["args"]
    assert "MakeRoot the greeting polite." in run["prompt"]
    assert folder.read()["fake"].session_id == "session-1"


def test_a_session_is_recorded_as_soon_as_the_program_names_it(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-its-own")
    config = {"retry": {"max_attempts": 1}}
    root = program("", program="codex", environment=["OPENAI_API_KEY"], idle_timeout_s=1, config=config)
    (root.path / "agent.py").write_text(CODEX.replace("# then", "time.sleep(60)"))
    root.enqueue()
    root.until_over()
    assert root.life().error is not None
    assert folder_of(root).read()["fake"].session_id == "session-1"


def test_a_worker_removes_the_home_of_a_job_that_it_has_ended(program: Any) -> None:
    root = program("remember(); say(ANSWER)")
    root.enqueue(routing={"mode": "role", "next": "SeniorEngineer"})
    farro = Program(root.path)
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert root.life().status is Status.SUCCEEDED
    assert not (root.path / "jobs/.homes/one").exists()


def test_doctor_starts_the_program_in_the_sandbox(program: Any) -> None:
    root = program("")
    script = root.path / "agent.py"
    script.write_text("import os, sys\nassert 'ANTHROPIC_API_KEY' not in os.environ\nprint('9.9 (Fake)', sys.argv[1])")
    assert agents_check(root).found == "fake: 9.9 (Fake) --version"
    script.write_text("import sys\nsys.exit('libfoo.so is missing')")
    found = agents_check(root)
    assert found.verdict == "failed"
    assert found.found == "provider fake: exit code 1: libfoo.so is missing"
    assert list((root.path / "jobs/.staging").iterdir()) == []


def test_doctor_says_how_a_missing_program_is_installed(make: MakeRoot) -> None:
    root = make(providers={"claude": {"kind": "cli", "program": "claude"}})
    found = agents_check(root, "programs", PATH="/nowhere")
    assert found.found == "claude not found on PATH"
    assert found.repair == ("npm install --global @anthropic-ai/claude-code",)


def test_a_test_question_reaches_the_program_and_leaves_nothing(program: Any) -> None:
    root = program("say('ready' if 'Are you there?' in prompt else 'no')")
    farro = Program(root.path)
    asked = farro.run("provider-test", "--provider", "fake", "--prompt", "Are you there?", code=0)
    assert "answer  ready" in asked.out
    assert list((root.path / "jobs/.staging").iterdir()) == []
    assert not (root.path / "jobs/.homes").exists()


def agents_check(root: AgentRoot, name: str = "agents", **changes: str) -> Finding:
    environ = {**os.environ, **changes}
    found = {check.id: check for check in checks.checks(root.settings, environ, root=root.root, config="/c")}
    return found[name].look()


ASKS_AND_FAILS = """
import urllib.request
said = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "SCENARIO: ok"}]}
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
urllib.request.urlopen(urllib.request.Request(address, json.dumps(said).encode(), headers)).read()
sys.exit("error: the tool says: not logged in, usage limit reached")
"""


def test_words_of_a_program_do_not_pause_an_account_that_has_answered(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "a-key-of-the-account")
    with ModelServer() as server:
        root = program(ASKS_AND_FAILS, api_key="${UPSTREAM_KEY}", base_url=server.base_url, environment=[], call_usd=1)
        root.enqueue()
        root.work()
        assert {request.status for request in server.model_requests} == {200}
    assert list(root.store().accounts().paused()) == []
    assert "not logged in" in root.life().error["message"]


def test_a_refused_request_of_unknown_price_names_the_setting_that_counts_for_it(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "a-key-of-the-account")
    with ModelServer() as server:
        own = {"api_key": "${UPSTREAM_KEY}", "base_url": server.base_url, "environment": [], "call_usd": 1}
        root = program(ASKS_AND_FAILS, config={"budgets": {"job_usd": 0.5}}, **own)
        root.enqueue()
        root.work()
        assert server.model_requests == []
    error = root.life().error
    assert error["category"] == "budget_exceeded"
    assert "Raise budgets.job_usd, or lower providers.fake.call_usd, if a call costs less" in error["message"]


class RefusesOnce(list[Turn]):
    """The first request meets a limit that is over in a moment."""

    refused = False

    def __getitem__(self, index: Any) -> Any:
        if not self.refused:
            self.refused = True
            return Fail(kind="rate_limited", wait_s=1)
        return super().__getitem__(index)


def test_a_limit_of_a_moment_is_waited_for_in_the_call(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "a-key-of-the-account")
    body = ASKS_AND_FAILS.replace("sys.exit(", "say(ANSWER); (")
    with ModelServer(scenarios={"ok": RefusesOnce([Say(content="Yes.")])}) as server:
        root = program(body, api_key="${UPSTREAM_KEY}", base_url=server.base_url, environment=[], call_usd=1)
        root.enqueue()
        root.work()
        assert [request.status for request in server.model_requests] == [429, 200]
    assert list(root.store().accounts().paused()) == []
    assert (root.life().error, root.life().attempt) == (None, 1)
    assert [call.end for call in root.calls()] == ["not_charged", "answered"]


def test_each_thing_that_it_does_is_shown_at_once_and_without_secrets(program: Any) -> None:
    body = "tool('Read', 'a-key-of-its-own')\nprint(flush=True)\ntime.sleep(60)"
    root = program(body, idle_timeout_s=30)
    root.enqueue()
    seen: list[str] = []
    stop = Stop(root.clock)

    def looked() -> bool:
        seen[:] = [path.read_text() for path in root.path.glob("agents/*/in-progress/*/one/attempts/*/steps/1/stderr")]
        return any(text.endswith("\n") for text in seen)

    working = threading.Thread(target=lambda: root.work(stop=stop))
    working.start()
    try:
        eventually(looked, "nothing was shown")
    finally:
        stop.request(0)
        working.join()
    assert seen == ["Read [redacted:ANTHROPIC_API_KEY]\n"]


def test_temporary_files_of_a_killed_run_are_removed_before_the_next(program: Any) -> None:
    root = program("open(os.environ['TMPDIR'] + '/mine', 'w').close()\nremember(); say(ANSWER)")
    folder = folder_of(root)
    os.makedirs(f"{folder.path}/tmp/left")
    root.enqueue()
    root.until_over()
    assert root.life().error is None
    assert sorted(os.listdir(folder.path)) == ["home", "sessions.json"]
