"""Plans with allowed_paths from the command line: they run confined with every runner, and violations are reported."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from farro.sandbox.levels import Sandbox
from flows.program import Program
from support import need

pytestmark = pytest.mark.linux


@pytest.fixture(params=["A", "B"])
def level(request: pytest.FixtureRequest) -> str:
    sandbox = Sandbox.available(request.param)
    need(sandbox.level == request.param, f"level {request.param}: {'; '.join(p.why for p in sandbox.probes)}")
    name: str = request.param
    return name


def configure(farro: Program, **security: Any) -> None:
    (farro.path / "agents-config.json").write_text(json.dumps({"security": security}))


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"id": "a", "command": "sh", "args": ["-c", script], **more}


def work(farro: Program, runner: str, *steps: dict[str, Any], **plan: Any) -> dict[str, Any]:
    """Enqueue the plan, run it, and return the job."""
    text = json.dumps({"id": "boxed", "allowed_paths": ["out/", "report.md"], "steps": list(steps), **plan})
    (job,) = farro.call("enqueue", "-", stdin=text, code=0).out.split()
    farro.call("worker", "--drain", "--runner", runner, code=0)
    shown: dict[str, Any] = farro.call("show", job, "--json", code=0).json
    return shown


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_confined_plan_writes_its_paths_pipes_and_adds_tasks(farro: Program, level: str, runner: str) -> None:
    configure(farro, sandbox=level, require_sandbox=True)
    adds = 'import farro, sys; print(sys.stdin.read().upper()); farro.add_task("sh", ["-c", "echo late > out/late"])'
    shown = work(
        farro,
        runner,
        shell('echo text | tee out/first report.md; touch "$TMPDIR/x"'),
        {"id": "b", "command": sys.executable, "args": ["-c", adds], "input_from_step": "a"},
    )
    assert shown["status"] == "succeeded", shown
    assert (farro.path / "out/first").read_text() == (farro.path / "report.md").read_text() == "text\n"
    assert (farro.path / "out/late").read_text() == "late\n"
    attempt = next(farro.path.glob("agents/Runner/completed/succeeded/boxed/attempts/0001"))
    assert (attempt / "steps/b/stdout").read_text() == "TEXT\n\n"
    assert not (attempt / "tmp").exists()


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_violation_fails_the_job_and_is_audited_without_its_path(farro: Program, level: str, runner: str) -> None:
    configure(farro, sandbox=level, require_sandbox=True)
    shown = work(farro, runner, shell("echo x > secret-name", retries=3))
    assert shown["status"] == "failed"
    assert shown["error"]["category"] == "path_violation"
    assert "secret-name" in shown["error"]["message"]
    assert not (farro.path / "secret-name").exists()
    assert not (farro.path / "report.md").exists()  # it was created for the job, and no step wrote to it
    audit = (farro.path / "logs/audit.log").read_text()
    assert '"error":"path_violation"' in audit.replace(" ", "")
    assert "secret-name" not in audit
    result = next(farro.path.glob("agents/Runner/completed/failed/boxed/attempts/0001/result.json"))
    assert json.loads(result.read_text())["step_results"][0]["attempts"] == 1


def test_refused_write_that_the_program_handles_does_not_fail_the_job(farro: Program, level: str) -> None:
    configure(farro, sandbox=level, require_sandbox=True)
    (farro.path / "package").mkdir()
    (farro.path / "package/__init__.py").write_text("value = 1\n")
    step = {"id": "a", "command": sys.executable, "args": ["-c", "import package; print(package.value)"]}
    assert work(farro, "inline", {**step, "env": {"PYTHONPATH": str(farro.path)}})["status"] == "succeeded"
    assert not (farro.path / "package/__pycache__").exists()


def test_what_level_b_cannot_stop_is_seen_and_fails_the_job(farro: Program) -> None:
    need(Sandbox.available("B").level == "B", "level B of the sandbox")
    configure(farro, sandbox="B")
    (farro.path / "file").write_text("x")
    shown = work(farro, "inline", shell("chmod 600 file"))
    assert shown["error"]["category"] == "path_violation"
    assert "changed outside allowed_paths: file" in shown["error"]["message"]


def test_violation_without_a_sandbox_is_found_by_comparing_the_tree(farro: Program) -> None:
    configure(farro, sandbox="none")
    assert work(farro, "inline", shell("echo x > out/x"))["status"] == "succeeded"
    error = work(farro, "inline", shell("echo x > nope"), id="two")["error"]
    assert error["category"] == "path_violation"
    assert error["message"].endswith("changed outside allowed_paths: nope")


def test_functions_run_confined_in_their_own_process(farro: Program, level: str) -> None:
    configure(farro, sandbox=level, require_sandbox=True)
    (farro.path / "jobs_of_mine.py").write_text(
        "import farro\n\n@farro.task\ndef write(path):\n    open(path, 'w').close()\n    return path\n"
    )
    step = {"id": "a", "tool": "function", "command": "jobs_of_mine:write"}
    for path, status in (("out/x", "succeeded"), ("nope", "failed")):
        arguments = [json.dumps({"args": [str(farro.path / path)]})]
        text = json.dumps({"id": status, "allowed_paths": ["out/"], "steps": [{**step, "args": arguments}]})
        farro.call("enqueue", "-", stdin=text, code=0)
        farro.call("worker", "--drain", code=0)
        assert farro.call("show", status, "--json", code=0).json["status"] == status
    assert (farro.path / "out/x").exists()
    assert not (farro.path / "nope").exists()


def test_forbidden_allowed_path_fails_the_job_before_it_runs(farro: Program) -> None:
    (farro.path / "link").symlink_to("/etc")
    shown = work(farro, "inline", shell("echo ran"), allowed_paths=["link/"])
    assert shown["error"]["category"] == "path_violation"
    assert "leads out of the root through a link" in shown["error"]["message"]


def test_confined_plan_runs_in_the_foreground(farro: Program, level: str) -> None:
    configure(farro, sandbox=level, require_sandbox=True)
    text = json.dumps({"allowed_paths": ["out/"], "steps": [shell("echo hello; echo x > out/x")]})
    assert farro.call("run", "--plan", "-", stdin=text, code=0).out == "hello\n"
    assert (farro.path / "out/x").exists()


def test_the_command_tells_level_probes_and_gaps(farro: Program) -> None:
    told = farro.call("sandbox", "--json", code=0).json
    assert told["level"] in ("A", "B", "none")
    assert [probe["level"] for probe in told["probes"]] == ["A", "B"]
    assert all(probe["why"] for probe in told["probes"])
    assert told["gaps"]
    configure(farro, sandbox="none", require_sandbox=True)
    said = farro.call("sandbox", code=0).out
    assert said.startswith("level      none: ")
    assert "security.require_sandbox is on" in said


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_confined_step_gets_no_key_of_the_config(
    farro: Program, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key and a network it could run commands unconfined through agq or the HTTP API."""
    for name in ("AGQ_KEY", "AGQ_SESSION_KEY", "OTHER_KEY", "WEB_TOKEN", "ASKED"):
        monkeypatch.setenv(name, f"canary-{name}")
    monkeypatch.setenv("PLAIN", "plain")
    config = {
        "agq": {"key": "${OTHER_KEY}"},
        "web": {"token": "${WEB_TOKEN}"},
        "redis": {"password": "${ASKED}"},
        "security": {"network": True},
    }
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    given = shell("env > out/env", env={"OWN": "own"})
    assert work(farro, runner, given)["status"] == "succeeded"
    lines = (farro.path / "out/env").read_text().splitlines()
    assert {"PLAIN=plain", "OWN=own"} <= {*lines}
    assert not any("canary" in line for line in lines)
    named = {**config, "runners": {"environment": ["ASKED", "OTHER_*", "PLAIN"]}}
    (farro.path / "agents-config.json").write_text(json.dumps(named))
    assert work(farro, runner, given, id="again")["status"] == "succeeded"
    lines = (farro.path / "out/env").read_text().splitlines()
    assert [line for line in lines if "canary" in line] == ["ASKED=canary-ASKED"]


def test_a_command_is_tried_as_the_program_of_an_agent(
    farro: Program, level: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    given, kept = (tmp_path_factory.mktemp(name, numbered=True) for name in ("given", "kept"))
    for folder in (given, kept):
        (folder / "file").write_text(f"{folder.name[:-1]}\n")
    providers = {"agent": {"kind": "cli", "command": ["true"], "network": ["index.example:443"]}}
    roles = {"SeniorEngineer": {"provider": "agent", "read_paths": [str(given)]}}
    config = {"security": {"sandbox": level}, "providers": providers, "roles": roles}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    script = f"cat {given}/file {kept}/file; echo > out/new; echo $HTTPS_PROXY; exit 3"
    args = ("sandbox", "try", "--role", "SeniorEngineer", "--write", "out/", "--", "sh", "-c", script)
    done = farro.call(*args, code=3)
    assert done.out.startswith("given\nhttp://farro:")
    assert "kept" not in done.out
    assert f"level      {level}" in done.err
    assert "network    index.example:443" in done.err
    assert (farro.path / "out/new").exists()
    told = farro.call("sandbox", "try", "--json", "--role", "SeniorEngineer", "--", "true", code=0).json
    assert (told["level"], told["network"], told["exit_code"]) == (level, ["index.example:443"], 0)
    assert {str(given), str(farro.path)} <= set(told["reads"])
    assert str(farro.path / "agents-config.json") in told["hidden"]
    assert list((farro.path / "jobs/.staging").iterdir()) == []


def test_an_unknown_role_or_program_of_a_trial_is_reported(farro: Program) -> None:
    done = farro.call("sandbox", "try", "--provider", "claud", "--", "true", code=2)
    assert "claud is not one of `providers` in the config" in done.err
    assert "command not found" in farro.call("sandbox", "try", "--", "no-such-program", code=127).err
