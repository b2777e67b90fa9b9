"""Check the cli provider: any command answers for a role, in the sandbox, with only what the config gives it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import AgentRoot, MakeRoot
from farro.app import App
from farro.execution.runner import Work
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import PlanCache, perform_work
from farro.host import fs
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Status
from farro.sandbox.levels import Sandbox
from sandbox.greeting import greet_callers
from support import need

ANSWER = json.dumps({"summary": "done"})


@pytest.fixture(autouse=True)
def sandbox() -> None:
    for level in ("A", "B"):
        works = Sandbox.available(level)  # type: ignore[arg-type]
        need(works.level == level, f"level {level} of the sandbox: {[probe.why for probe in works.probes]}")


@pytest.fixture
def answered_by(make: MakeRoot, tmp_path: Path) -> Any:
    """Make a root whose roles a Python program answers: it reads its prompt, runs `body`, and reports success."""

    def staged(body: str, *, config: dict[str, Any] | None = None, **provider: Any) -> AgentRoot:
        script = tmp_path / "root" / "agent.py"
        described = {"kind": "cli", "command": [sys.executable, str(script)], **provider}
        agent_root: AgentRoot = make(providers={"script": described}, **(config or {}))
        script.write_text(f"import json, os, sys, time\nprompt = sys.stdin.read()\n{body}\nprint({ANSWER!r})\n")
        return agent_root

    return staged


def worked(agent_root: AgentRoot, **changes: Any) -> dict[str, str] | None:
    agent_root.enqueue(**changes)
    agent_root.until_over()
    error = agent_root.life().error
    return None if error is None else dict(error)


def test_the_prompt_comes_on_stdin_and_the_answer_from_stdout(answered_by: Any) -> None:
    agent_root = answered_by("assert 'MakeRoot the greeting polite.' in prompt\nassert len(sys.argv) == 1")
    assert worked(agent_root) is None
    assert agent_root.life().role == "CodeReviewer"
    assert agent_root.result()["agent"]["answer"]["summary"] == "done"


def test_a_program_writes_where_the_prompt_allows(answered_by: Any) -> None:
    agent_root = answered_by("open(os.environ['FARRO_ROOT'] + '/src/greeting.txt', 'w').write('please\\n')")
    assert worked(agent_root) is None
    assert (agent_root.path / "src/greeting.txt").read_text() == "please\n"


@pytest.mark.parametrize("level", ["A", "B"])
def test_a_program_reads_its_workspace_and_what_the_config_names(answered_by: Any, tmp_path: Path, level: str) -> None:
    """Not farro's own folders, and nothing else that its user can read."""
    for name in ("library", "notes", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    body = """
def opens(path):
    try:
        return bool(open(path).read(1))
    except OSError:
        return False
root = os.environ["FARRO_ROOT"]
beside = os.path.dirname(root)
given = [root + "/src/greeting.txt", root + "/AGENTS.md", beside + "/library/file", beside + "/notes/file"]
kept = [root + "/agents-config.json", root + "/logs/audit.log", beside + "/other/file", "/etc/shadow"]
assert [path for path in (*given, *kept) if opens(path)] == given, [path for path in (*given, *kept) if opens(path)]
"""
    agent_root = answered_by(
        body,
        read_paths=[str(tmp_path / "library")],
        config={"security": {"sandbox": level}, "roles": {"SeniorEngineer": {"read_paths": ["../notes"]}}},
    )
    (agent_root.path / "src/greeting.txt").write_text("hello\n")
    assert worked(agent_root) is None


@pytest.mark.parametrize("level", ["A", "B"])
def test_a_program_reaches_the_hosts_of_its_provider_and_its_role(answered_by: Any, level: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        greet_callers(one)
        greet_callers(two)
        first, second = (f"127.0.0.1:{server.getsockname()[1]}" for server in (one, two))
        body = f"""
import base64, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
own = base64.b64encode(f"{{proxy.username}}:{{proxy.password}}".encode()).decode()
for host, answer in (({first!r}, b"200"), ({second!r}, b"200"), ("127.0.0.1:1", b"403")):
    with socket.create_connection((proxy.hostname, proxy.port), 20) as talk:
        talk.sendall(f"CONNECT {{host}} HTTP/1.1\\r\\nProxy-Authorization: Basic {{own}}\\r\\n\\r\\n".encode())
        assert talk.recv(1000).split()[1] == answer
"""
        roles = {"SeniorEngineer": {"network": [second]}}
        agent_root = answered_by(body, network=[first], config={"security": {"sandbox": level}, "roles": roles})
        assert worked(agent_root) is None
        one.shutdown(socket.SHUT_RDWR)
        two.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("workspace", ["root", "worktree"])
def test_a_program_uses_git_where_it_works(answered_by: Any, workspace: str, level: str) -> None:
    body = "import subprocess\nassert subprocess.run(['git', 'log', '-1', '--format=%s']).returncode == 0"
    agent_root = answered_by(body, workspace=workspace, config={"security": {"sandbox": level}})
    committed(agent_root)
    assert worked(agent_root) is None


@pytest.mark.parametrize("level", ["A", "B"])
def test_a_write_elsewhere_fails_the_job_is_audited_and_changes_nothing(answered_by: Any, level: str) -> None:
    body = "open(os.environ['FARRO_ROOT'] + '/AGENTS.md', 'a').write('obey me')"
    agent_root = answered_by(body, config={"security": {"sandbox": level}})
    before = (agent_root.path / "AGENTS.md").read_text()
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "path_violation"
    assert (agent_root.life().status, agent_root.life().attempt) == (Status.FAILED, 1)  # not tried again
    assert len(agent_root.calls()) == 1
    assert (agent_root.path / "AGENTS.md").read_text() == before
    lines = [json.loads(line) for line in (agent_root.path / "logs/audit.log").read_text().splitlines()]
    assert any(line.get("error") == "path_violation" for line in lines)
    assert not any("obey" in json.dumps(line) for line in lines)


def test_a_read_only_role_writes_nowhere(answered_by: Any) -> None:
    body = "open(os.environ['FARRO_ROOT'] + '/src/greeting.txt', 'w').write('please\\n')"
    agent_root = answered_by(body, config={"roles": {"SeniorEngineer": {"read_only": True}}})
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "path_violation"
    assert (agent_root.path / "src/greeting.txt").read_text() == "hand it over\n"


def test_a_program_works_in_a_private_folder_that_is_removed(answered_by: Any) -> None:
    agent_root = answered_by("open('notes', 'w').write('x')\nprint('at ' + os.getcwd(), file=sys.stderr)\nsys.exit(7)")
    agent_root.enqueue()
    agent_root.work()
    said = (agent_root.folder() / "attempts/0001/steps/1/stderr").read_text()
    assert "exit code 7" in said
    cwd = said.split("at ", 1)[1].split()[0]
    assert cwd.startswith(os.path.realpath(agent_root.root))
    assert not os.path.exists(cwd)


def test_a_program_gets_only_the_variables_that_were_named(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for you")
    body = "assert os.environ['WANTED'] == 'yes' and 'AWS_SECRET_ACCESS_KEY' not in os.environ, sorted(os.environ)"
    assert worked(answered_by(body, environment=["WANTED"])) is None


def test_a_failing_program_is_tried_twice_and_its_stderr_is_reported(answered_by: Any) -> None:
    agent_root = answered_by("print('I am tired', file=sys.stderr)\nsys.exit(4)", config={"retry": {"max_attempts": 1}})
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "provider_unavailable"
    assert "exit code 4: I am tired" in error["message"]
    assert len(agent_root.calls()) == 2  # SPEC-1 §9


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"is_error": True, "result": "Credit balance is too low"}, "exit code 1: Credit balance is too low (2 calls)"),
        ({"problem": "no credit"}, 'exit code 1: {"problem": "no credit"} (2 calls)'),
    ],
)
def test_stdout_of_a_failing_program_is_reported(answered_by: Any, said: Any, told: str) -> None:
    once = {"retry": {"max_attempts": 1}}
    agent_root = answered_by(f"print({json.dumps(said)!r})\nsys.exit(1)", answer_field="result", config=once)
    error = worked(agent_root)
    assert error is not None
    assert error["message"] == f"provider script: {told}"
    assert "Before that" not in (agent_root.folder() / "error.md").read_text()  # it would be the same again


def test_stderr_is_streamed_when_the_answer_is_inside_json(answered_by: Any) -> None:
    said = json.dumps({"result": ANSWER})
    agent_root = answered_by(
        f"sys.stderr.write('reading the code')\nprint({said!r})\nsys.exit()", answer_field="result"
    )
    assert worked(agent_root) is None
    assert (agent_root.folder() / "attempts/0001/steps/1/stderr").read_text() == "reading the code\n"


@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("workspace", ["temp", "root"])
def test_a_variable_names_the_folder_of_the_payload(answered_by: Any, level: str, workspace: str) -> None:
    body = "assert 'logo.png' in prompt and open(os.environ['FARRO_PAYLOAD'] + '/logo.png').read() == 'png'"
    agent_root = answered_by(body, workspace=workspace, config={"security": {"sandbox": level}})
    assert worked(agent_root, payload={"logo.png": b"png"}) is None


def test_a_fatal_exit_code_is_not_retried(answered_by: Any) -> None:
    agent_root = answered_by("sys.exit(4)", fatal_exit_codes=[4])
    error = worked(agent_root)
    assert error is not None
    assert (agent_root.life().attempt, len(agent_root.calls())) == (1, 1)


def test_a_program_that_never_answers_is_ended_at_its_timeout(answered_by: Any) -> None:
    agent_root = answered_by("time.sleep(600)", timeout_s=0.3, config={"retry": {"max_attempts": 1}})
    error = worked(agent_root)
    assert error is not None
    assert "no answer within 0.3 s" in error["message"]
    assert living(agent_root) == []


def test_the_timeout_of_all_programs_ends_one_without_a_timeout_of_its_own(answered_by: Any) -> None:
    config = {"timeouts": {"cli_seconds": 0.3}, "retry": {"max_attempts": 1}}
    error = worked(answered_by("time.sleep(60)", config=config))
    assert error is not None
    assert "no answer within 0.3 s" in error["message"]


def test_processes_that_a_program_leaves_behind_are_ended(answered_by: Any) -> None:
    body = "if os.fork() == 0:\n    os.setsid()\n    os.close(1)\n    os.close(2)\n    time.sleep(600)"
    agent_root = answered_by(body)
    assert worked(agent_root) is None
    assert living(agent_root) == []


def test_a_missing_command_is_reported_at_once(make: MakeRoot) -> None:
    agent_root = make(providers={"script": {"kind": "cli", "command": ["no-such-agent"]}})
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "provider_refused"
    assert "no-such-agent" in error["message"]
    assert "installed" in error["message"]


def test_a_budget_does_not_hide_why_a_program_failed(answered_by: Any) -> None:
    """The first try uses up the budget, because its cost is unknown; the second one is refused."""
    body = "print('auth error: log in first', file=sys.stderr)\nsys.exit(7)"
    agent_root = answered_by(body, call_usd=0.05, config={"budgets": {"day_usd": 0.05}})
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "provider_unavailable"
    first, _, rest = error["message"].partition(". No further try was made: ")
    assert ("exit code 7" in first, "auth error: log in first" in first) == (True, True), error["message"]
    assert "0.05 of 0.05 are spent (0.05 of it estimated)" in rest
    assert "Raise budgets.day_usd, or lower providers.script.call_usd, if a call costs less" in rest
    assert "max_output_tokens" not in rest
    assert len(agent_root.calls()) == 1


def test_a_budget_that_refuses_the_next_attempt_reports_the_earlier_failure(answered_by: Any) -> None:
    body = "print('auth error: log in first', file=sys.stderr)\nsys.exit(7)"
    agent_root = answered_by(body, call_usd=0.05, config={"budgets": {"day_usd": 0.1}, "retry": {"max_attempts": 3}})
    error = worked(agent_root)
    assert error is not None
    assert (error["category"], len(agent_root.calls())) == ("budget_exceeded", 2)
    assert error["message"].startswith("provider script: ")
    assert "auth error: log in first" in error["message"]
    assert ". It was not tried again: the call to script may cost up to 0.05 USD" in error["message"]


def test_an_answer_in_json_is_read_from_the_configured_fields(make: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"result": ANSWER, "usage": {"total": 0.0375}})
    script = 'cat > /dev/null; printf %s "$SAID"'
    described = {"kind": "cli", "command": ["sh", "-c", script], "answer_field": "result", "cost_field": "usage.total"}
    agent_root = make(providers={"script": {**described, "environment": ["SAID"]}})
    monkeypatch.setenv("SAID", said)
    assert worked(agent_root) is None
    assert agent_root.result()["agent"]["cost_usd"] == "0.0375"


def test_a_worktree_leaves_the_repository_alone_and_its_diff_in_the_result(answered_by: Any) -> None:
    agent_root = answered_by(
        "open('src/greeting.txt', 'w').write('please\\n')\nopen('src/new.txt', 'w').write('new\\n')",
        workspace="worktree",
    )
    git = committed(agent_root)
    assert worked(agent_root) is None
    assert (agent_root.path / "src/greeting.txt").read_text() == "hand it over\n"
    agent = agent_root.result()["agent"]
    diff = (agent_root.folder() / "attempts/0001" / agent["diff"]).read_text()
    assert "-hand it over\n+please" in diff
    assert "src/new.txt" in diff
    assert os.listdir(agent_root.path / "jobs/.worktrees") == []
    listed = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1


def test_a_worktree_needs_a_repository(answered_by: Any) -> None:
    error = worked(answered_by("pass", workspace="worktree"))
    assert error is not None
    assert error["category"] == "provider_refused"  # asking again would not help
    assert "git repository" in error["message"]


def test_a_program_is_not_started_without_the_required_sandbox(answered_by: Any) -> None:
    agent_root = answered_by("pass", config={"security": {"sandbox": "none", "require_sandbox": True}})
    error = worked(agent_root)
    assert error is not None
    assert error["category"] == "provider_refused"
    assert "provider script was not asked: " in error["message"]
    assert agent_root.calls()[0].end == "not_charged"


def test_a_diff_that_is_too_large_fails_the_job_and_the_call_is_paid(
    answered_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farro.agents.providers.worktrees._LIMIT", 100)
    said = json.dumps({"result": ANSWER, "cost": 0.25})
    body = f"open('src/new.txt', 'w').write('x' * 1000)\nprint({said!r})\nsys.exit()"
    agent_root = answered_by(body, workspace="worktree", answer_field="result", cost_field="cost")
    committed(agent_root)
    error = worked(agent_root)
    assert error is not None
    assert "the diff has more than 100 bytes" in error["message"]
    assert [str(call.counts_usd) for call in agent_root.calls()] == ["0.25"]


def living(agent_root: AgentRoot) -> list[str]:
    """List processes that carry a mark of this root's jobs, except this one."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if agent_root.root.encode() in environ and b"FARRO_CLAIM=" in environ:
            found.append(words.replace(b"\0", b" ").decode())
    return found


def test_a_shortened_message_contains_no_part_of_a_key(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "canary-" + "0123456789" * 5)
    body = "print('x' * 280, os.environ['ACME_API_KEY'], 'y' * 270, file=sys.stderr)\nsys.exit(1)"
    agent_root = answered_by(body, environment=["ACME_API_KEY"], config={"retry": {"max_attempts": 1}})
    error = worked(agent_root)
    assert error is not None
    assert "yyy" in error["message"]
    for path in agent_root.path.rglob("*"):
        if path.is_file():
            assert b"0123456789" not in path.read_bytes(), path


def test_a_diff_contains_no_secret(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "canary-0123456789")
    body = "open('src/greeting.txt', 'w').write(os.environ['ACME_API_KEY'])"
    agent_root = answered_by(body, workspace="worktree", environment=["ACME_API_KEY"])
    committed(agent_root)
    assert worked(agent_root) is None
    diff = (agent_root.folder() / "attempts/0001/steps/1/diff.patch").read_text()
    assert "redacted:ACME_API_KEY" in diff
    assert "canary" not in diff


def committed(agent_root: AgentRoot) -> list[str]:
    """Make the root a repository with one commit; return a function that runs git in it."""
    (agent_root.path / ".gitignore").write_text("agents/\njobs/\nlogs/\n")
    git = ["git", "-C", agent_root.root, "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for words in (["init", "-q", "."], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], check=True)
    return git


def test_git_runs_nothing_that_a_program_left_in_its_worktree(answered_by: Any) -> None:
    """A repository inside the worktree has its own config, which names programs; git would ask it for changes."""
    body = """
import subprocess
os.makedirs('src/sub')
os.chdir('src/sub')
git = lambda *words: subprocess.run(['git', '-c', 'user.name=t', '-c', 'user.email=t@e.invalid', *words], check=True)
git('init', '-q', '.')
open('file', 'w').write('one')
git('add', 'file')
git('commit', '-qm', 'one')
open('.gitattributes', 'w').write('* filter=x')
git('config', 'filter.x.clean', f"sh -c 'touch {os.environ['OUT']}; cat'")
git('config', 'core.fsmonitor', f"touch {os.environ['OUT']}")
open('file', 'w').write('two')
"""
    agent_root = answered_by(body, workspace="worktree", environment=["OUT", "HOME"])
    committed(agent_root)
    out = agent_root.path.parent / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUT", str(out))
        assert worked(agent_root) is None
    assert not out.exists()
    diff = (agent_root.folder() / "attempts/0001/steps/1/diff.patch").read_text()
    assert "+two" in diff  # what is in it is told as it is


def test_git_gets_none_of_the_workers_secrets(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_root = answered_by("open('src/greeting.txt', 'w').write('please')", workspace="worktree")
    seen = agent_root.path.parent / "seen"
    (agent_root.path / ".gitattributes").write_text("*.txt filter=look\n")
    git = committed(agent_root)
    subprocess.run([*git, "config", "filter.look.clean", f"sh -c 'env > {seen}; cat'"], check=True)
    monkeypatch.setenv("ACME_API_KEY", "canary-0123456789")
    assert worked(agent_root) is None
    assert "canary" not in seen.read_text()
    assert "FARRO_CLAIM=" in seen.read_text()  # so that it ends with its job


def test_a_root_inside_a_repository_is_the_same_folder_of_the_worktree(answered_by: Any) -> None:
    agent_root = answered_by("open('src/greeting.txt', 'w').write('please\\n')", workspace="worktree")
    above = agent_root.path.parent
    (agent_root.path / ".gitignore").write_text("agents/\njobs/\nlogs/\n")
    git = ["git", "-C", str(above), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for words in (["init", "-q", "."], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], check=True)
    assert worked(agent_root) is None
    diff = (agent_root.folder() / "attempts/0001/steps/1/diff.patch").read_text()
    assert "+++ b/root/src/greeting.txt" in diff


def test_a_worktree_of_a_dead_worker_is_removed_by_the_next_attempt(answered_by: Any) -> None:
    agent_root = answered_by("pass", workspace="worktree")
    git = committed(agent_root)
    left = agent_root.path / "jobs/.worktrees/one.0000.1.1"
    left.parent.mkdir()
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(left), "HEAD"], check=True)
    others = agent_root.path / "jobs/.worktrees/two.0001.1.1"
    others.mkdir()
    assert worked(agent_root) is None
    assert os.listdir(left.parent) == [others.name]


def test_an_endless_diff_is_not_read_into_memory(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.agents.providers.worktrees._LIMIT", 1 << 16)
    agent_root = answered_by("open('src/new', 'wb').write(os.urandom(1 << 20))", workspace="worktree")
    committed(agent_root)
    error = worked(agent_root)
    assert error is not None
    assert "the diff has more than 65536 bytes" in error["message"]
    assert os.listdir(agent_root.path / "jobs/.worktrees") == []


def test_a_recorded_answer_is_not_asked_again_and_its_diff_is_kept(
    answered_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died after the answer came and before the job was committed: the next attempt has answer and diff."""
    body = "open('src/greeting.txt', 'w').write('please\\n')\nopen(os.environ['COUNT'], 'a').write('x')"
    agent_root = answered_by(
        body, workspace="worktree", environment=["COUNT"], config={"security": {"sandbox": "none"}}
    )
    committed(agent_root)
    monkeypatch.setenv("COUNT", str(agent_root.path.parent / "count"))
    seen: list[Work] = []
    spawn = InlineRunner.spawn
    monkeypatch.setattr(InlineRunner, "spawn", lambda own, work, **more: seen.append(work) or spawn(own, work, **more))
    assert worked(agent_root) is None
    first = str(agent_root.folder() / "attempts/0001")
    next_one = Path(first).with_name("0002")
    shutil.copytree(f"{first}/.snapshot", next_one / ".snapshot")
    again = perform_work(
        replace(seen[0], folder=str(next_one), attempt=2, earlier=(first,)),
        plans=PlanCache(),
        tools=Tools(),
        clock=agent_root.clock,
        tick=lambda: None,
        stop=Stop(agent_root.clock),
        agents=App().agents(agent_root.root, agent_root.settings, agent_root.clock),
    )
    assert isinstance(again, Succeeded)
    assert (agent_root.path.parent / "count").read_text() == "x"
    assert "+please" in (next_one / again.report.result["agent"]["diff"]).read_text()
    assert len(agent_root.calls()) == 1
    assert [call["attempt"] for call in again.report.result["agent"]["calls"]] == [1]  # it rests on that one


def test_a_diff_is_written_without_secrets_or_not_at_all(answered_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "canary-0123456789")
    body = "open('src/greeting.txt', 'w').write(os.environ['ACME_API_KEY'])"
    agent_root = answered_by(body, workspace="worktree", environment=["ACME_API_KEY"])
    committed(agent_root)
    written: list[bytes] = []
    create = fs.create
    monkeypatch.setattr(fs, "create", lambda path, data: written.append(data) or create(path, data))
    assert worked(agent_root) is None
    assert any(b"redacted:ACME_API_KEY" in data for data in written)
    assert not any(b"canary" in data for data in written)
