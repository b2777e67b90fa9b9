"""Jobs that the real coding agents answer: edits, repairs in the same session, crashes, hangs, limits.

The worker is an ordinary user on level A, but where a test needs a real farro command, or says so.
"""

from __future__ import annotations

import os
import re
import subprocess
from decimal import Decimal
from typing import Any

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot
from farro.agents.providers import checks
from farro.agents.session_folder import SessionFolder
from farro.jobs.states import Status
from flows.program import Program
from model_server.scenarios import DONE, PROSE, Hang, RunCommand, Say, Turn, WriteFile
from model_server.server import ModelServer
from real_agents.jobs import KEY, MODELS, OTHERS, PROGRAMS, of_agent
from real_agents.user_root import UserRoot
from support import eventually, torture

WITH_SESSIONS = (*PROGRAMS, "opencode", "goose") if torture() else PROGRAMS
ALL = (*WITH_SESSIONS, "aider") if torture() else PROGRAMS
MODEL = {**dict(zip(PROGRAMS, MODELS, strict=True)), **dict.fromkeys(OTHERS, "other/lab")}
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


def asked(root: AgentRoot, scenario: str) -> None:
    root.enqueue(rubric=f"SCENARIO: {scenario}")
    root.until_over()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_job_is_worked_and_its_result_names_session_and_files(
    name: str, user_root_of: Any, server: ModelServer
) -> None:
    root = user_root_of(name)
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


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_a_wrong_form_is_repaired_in_the_same_session(name: str, user_root_of: Any, server: ModelServer) -> None:
    root = user_root_of(name)
    asked(root, "wrong-form")
    assert root.life().error is None
    first, second = of_agent(name, server.model_requests)
    assert TASK in second.body
    assert PROSE.text.encode() in second.body  # the session knows its answer
    assert second.body.count(TASK) == first.body.count(TASK)  # and is not told its task again
    assert b"could not be read" in second.body


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_the_attempt_after_a_killed_worker_resumes_the_session(
    name: str, own_root_of: Any, server: ModelServer
) -> None:
    root = own_root_of(name)
    farro = Program(root.path)
    root.enqueue(rubric="SCENARIO: half-edit")
    worker = farro.start("worker", "--role", "SeniorEngineer")
    server.wait_for(3 if name == "gemini" else 2)
    eventually(lambda: said_in_home(root, b"half.py"), "it does not write down what it has done")
    worker.kill()
    begun = len(server.model_requests)
    server.scenarios["half-edit"] = HALF_DONE
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)  # no watchdog runs: it recovers by itself
    farro.clean_up()
    life = root.life()
    assert (life.error, life.attempt) == (None, 2)
    (resumed,) = of_agent(name, server.model_requests[begun:])
    assert GO_ON in resumed.body
    assert b"half.py" in resumed.body
    assert resumed.body.count(TASK) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_without_progress_is_ended_and_its_session_resumed(
    name: str, user_root_of: Any, server: ModelServer
) -> None:
    server.scenarios["hangs-once"] = HangsOnce(HALF_DONE)
    root = user_root_of(name, idle_timeout_s=12)
    asked(root, "hangs-once")
    assert root.life().error is None
    assert root.life().attempt == 1
    assert "no progress for 12 s" in (root.folder() / "attempts/0001/steps/1/stderr").read_text()
    first, hung, resumed = of_agent(name, server.model_requests)
    assert GO_ON not in hung.body
    assert GO_ON in resumed.body
    assert resumed.body.count(TASK) == first.body.count(TASK)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_review_round_goes_on_in_the_session(name: str, user_root_of: Any, server: ModelServer) -> None:
    root = user_root_of(
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
def test_every_request_is_in_the_ledger_with_the_tokens_of_the_wire(
    name: str, user_root_of: Any, server: ModelServer
) -> None:
    root = user_root_of(name, model=MODEL[name])
    asked(root, "edit")
    calls = root.calls()
    assert len(calls) == len(server.model_requests)
    assert {call.end for call in calls} == {"answered"}
    counted = [call.usage for call in calls if call.usage is not None]
    assert sum(counted[1:], counted[0]) == server.usage
    usage = server.usage
    cost = sum((call.cost_usd for call in calls if call.cost_usd is not None), Decimal(0))
    assert cost == Decimal(usage.input_tokens + 2 * usage.output_tokens) / 1_000_000
    agent = root.result()["agent"]
    assert (len(agent["calls"]), Decimal(agent["cost_usd"])) == (len(calls), cost)


def test_requests_of_unknown_price_count_together_as_the_most_that_a_call_may_cost(
    user_root_of: Any, server: ModelServer
) -> None:
    root = user_root_of("claude", prices={}, call_usd=3)
    asked(root, "several-turns")
    assert root.life().error is None
    assert sum(call.counts_usd or 0 for call in root.calls()) == 3
    assert Decimal(root.result()["agent"]["cost_usd"]) == 3


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_the_program_never_holds_the_key(name: str, user_root_of: Any, server: ModelServer) -> None:
    server.scenarios["look"] = [RunCommand(command="env; cat /proc/*/environ | tr '\\0' '\\n'"), Say(content=DONE)]
    root = user_root_of(name)
    asked(root, "look")
    assert root.life().error is None
    assert {request.credential for request in server.model_requests} == {KEY}
    assert b"FARRO_ROOT" in server.model_requests[-1].body  # it did look
    assert not any(KEY.encode() in request.body for request in server.model_requests)
    files = [path for path in root.path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_budget_ends_the_run_in_the_middle(name: str, user_root_of: Any, server: ModelServer) -> None:
    prices = {MODEL[name]: {"input_usd": 0, "output_usd": 1000}}
    root = user_root_of(
        name, model=MODEL[name], prices=prices, max_output_tokens=100, config={"budgets": {"job_usd": 0.1}}
    )
    asked(root, "several-turns")
    error = root.life().error
    assert error is not None
    assert error["category"] == "budget_exceeded"
    assert len(of_agent(name, server.model_requests)) == 1  # each may cost all that the budget has


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_login_stays_with_the_gateway(name: str, user_root_of: Any, server: ModelServer) -> None:
    root = user_root_of(name, api_key=None, login="${UPSTREAM_KEY}")
    asked(root, "edit")
    assert root.life().error is None
    assert {request.credential for request in server.model_requests} == {KEY}
    homes = [path for path in (root.path / "jobs/.homes").rglob("*") if path.is_file()]
    assert not [path for path in homes if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", ALL)
def test_a_limited_account_is_asked_once(name: str, user_root_of: Any, server: ModelServer) -> None:
    root = user_root_of(name, model=MODEL[name], config={"retry": {"max_attempts": 1}})
    root.enqueue(rubric="SCENARIO: usage-limit")
    root.work()
    assert len(server.model_requests) == 1


@pytest.mark.parametrize("kind", [AgentRoot, UserRoot])
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("name", WITH_SESSIONS)  # aider takes the JSON of an answer for an edit
def test_it_edits_on_both_levels_as_root_and_as_an_ordinary_user(
    name: str, level: str, kind: type[AgentRoot], own_root_of: Any, server: ModelServer
) -> None:
    root = own_root_of(name, kind=kind, config={"security": {"sandbox": level}})
    asked(root, "edit")
    assert root.life().error is None
    assert "def hello" in (root.path / "src/hello.py").read_text()
    assert len(of_agent(name, server.model_requests)) == 2


@pytest.mark.parametrize("name", ["claude", "gemini"])  # codex continues at a terminal only
def test_the_printed_command_continues_the_session(name: str, own_root_of: Any, server: ModelServer) -> None:
    root = own_root_of(name)
    asked(root, "edit")
    before = len(server.model_requests)
    command = Program(root.path).run("session", "one", code=0).out.strip()
    address = {"claude": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}[name]
    key = {"claude": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}[name]
    env = {**os.environ, address: server.base_url, key: KEY}
    words = f"{command} -p 'SCENARIO: prose'" + (" --skip-trust" if name == "gemini" else "")
    done = subprocess.run(["sh", "-c", words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert PROSE.text in done.stdout
    (asked_again,) = of_agent(name, server.model_requests[before:])
    assert b"SCENARIO: edit" in asked_again.body


@pytest.mark.parametrize("name", ALL)
def test_doctor_starts_it_in_the_sandbox(name: str, own_root_of: Any) -> None:
    root = own_root_of(name)
    found = {check.id: check for check in checks.checks(root.settings, os.environ, root=root.root, config="/c")}
    told = found["agents"].look()
    assert told.verdict == "ok", told
    assert re.search(rf"^{name}: .*\d+\.\d+", told.found)


def said_in_home(root: AgentRoot, text: bytes) -> bool:
    files = [path for path in (root.path / "jobs/.homes").rglob("*") if path.is_file()]
    return any(text in path.read_bytes() for path in files)


@pytest.mark.parametrize("name", PROGRAMS)
def test_jobs_of_a_limited_account_wait_and_succeed_once(name: str, own_root_of: Any, server: ModelServer) -> None:
    root = own_root_of(name, model=MODEL[name])
    for number in range(4):
        root.enqueue(f"job-{number}", rubric="SCENARIO: edit", routing={"mode": "role", "next": "SeniorEngineer"})
    farro = Program(root.path)
    workers = [farro.start("worker", "--role", "SeniorEngineer", "--slots", "1", "--drain") for _ in range(2)]
    server.wait_for(1)
    server.limit(4)  # in the middle of the first job
    assert [worker.ended().code for worker in workers] == [0, 0]
    lives = [root.life(f"job-{number}") for number in range(4)]
    assert {life.status for life in lives} == {Status.SUCCEEDED}
    assert 1 <= len([request for request in server.model_requests if request.status == 429]) <= 2  # one of each worker
    answered = [call.usage for number in range(4) for call in root.calls(f"job-{number}") if call.usage is not None]
    assert sum(answered[1:], answered[0]) == server.usage
    assert not (root.path / "jobs/.homes").exists() or not list((root.path / "jobs/.homes").iterdir())


@pytest.mark.parametrize("level", ["A", "B"])
def test_an_agent_sees_no_other_home_and_no_record_of_its_session(
    level: str, user_root_of: Any, server: ModelServer
) -> None:
    look = "cd $FARRO_ROOT; find jobs agents 2>&1; cat jobs/.homes/*/*/*/*.json jobs/.homes/other/*/*/home/*; echo SEEN"
    server.scenarios["look"] = [RunCommand(command=look), Say(content=DONE)]
    root = user_root_of("claude", config={"security": {"sandbox": level}})
    other = SessionFolder.of_step(root.root, "other", "Architect", "1")
    other.make()
    other.put({"notes": b"secret-of-the-other"})
    asked(root, "look")
    assert root.life().error is None
    told = server.model_requests[-1].body
    assert b"SEEN" in told
    assert b"secret-of-the-other" not in told
    assert b'"told"' not in told


def test_a_worktree_is_left_as_a_diff(user_root_of: Any, server: ModelServer) -> None:
    root = user_root_of("claude", workspace="worktree")
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root.path, check=True)
    asked(root, "edit")
    assert root.life().error is None
    assert not (root.path / "src/hello.py").exists()
    assert "def hello" in (root.folder() / "attempts/0001/steps/1/diff.patch").read_text()
