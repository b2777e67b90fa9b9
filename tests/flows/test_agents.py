"""Jobs for agents on the command line: `farro init`, `farro enqueue --prompt-json`, and the messages of mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farro.doctor import root
from farro.roles import policy
from farro.roles.names import AGENTS, ROLES
from flows.program import Program, listing
from support import ROOT

PROMPT: dict[str, Any] = {
    "role": "SeniorEngineer",
    "rubric": "Make the change.",
    "allowed_paths": ["src/"],
    "success": "It is made.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
}
PROVIDERS: dict[str, Any] = {"local": {"kind": "cli", "command": ["ask"]}}


@pytest.fixture
def agents(farro: Program) -> Program:
    """Make a root with a config for agents."""
    path = farro.path / "agents-config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "providers": PROVIDERS}))
    return farro


def configure(farro: Program, **security: Any) -> None:
    path = farro.path / "agents-config.json"
    config = json.loads(path.read_text())
    config["security"].update(security)
    path.write_text(json.dumps(config))


def written(farro: Program, **change: Any) -> str:
    path = farro.path / "p.json"
    path.write_text(json.dumps({**PROMPT, **change}))
    return path.name


def job_of(farro: Program, *args: str, **change: Any) -> Path:
    job_id = farro.call("enqueue", "--prompt-json", written(farro, **change), *args, code=0).out.strip()
    return farro.folder(job_id)


def refused(farro: Program, *args: str, code: int = 2, **change: Any) -> str:
    name = written(farro, **change)
    before = listing(farro.path / "agents")
    told = farro.call("enqueue", "--prompt-json", name, *args, code=code).err
    assert listing(farro.path / "agents") == before
    assert listing(farro.path / "jobs/.staging") == {}
    return told


# --- the page


def test_the_examples_of_the_page_are_a_prompt_and_a_config(agents: Program) -> None:
    page = Path(ROOT, "docs/agents.md").read_text()
    example = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    config = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    assert config is not None
    (agents.path / "agents-config.json").unlink()
    (agents.path / "agents-config.yaml").write_text(config[1])
    (agents.path / "notes.md").write_text("Hello.")
    (agents.path / "prompt.json").write_text(example[1])
    agents.call("enqueue", "--prompt-json", "prompt.json", "--id", "one", code=0)
    assert agents.status("one") == "queued"


# --- init


def test_init_makes_policies_that_an_agent_can_work_with(farro: Program) -> None:
    for role in ROLES:
        text = (farro.path / "agents" / role / "AGENTS-ROLE.md").read_text()
        found = policy.read(text, role)
        assert (found.version, found.warning) == ("1.0.0", None)
        assert len(text.splitlines()) < 60
    for role in AGENTS:
        text = (farro.path / "agents" / role / "AGENTS-ROLE.md").read_text()
        for part in ("Responsibilities", "What you are given", "What you answer", "How it is judged", "Do", "Don't"):
            assert re.search(rf"^## {part}$", text, re.MULTILINE), (role, part)
    assert policy.read((farro.path / "AGENTS.md").read_text(), "AGENTS.md").version == "1.0.0"


def test_init_writes_schemas_a_config_for_editors_and_how_tasks_look(farro: Program) -> None:
    config = json.loads((farro.path / "agents-config.json").read_text())
    assert (farro.path / config["$schema"]).is_file()
    assert len(list((farro.path / "schemas").glob("*.schema.json"))) == 5
    example = re.search(r"```json\n(.*?)```", (farro.path / "tasks/README.md").read_text(), re.DOTALL)
    assert example is not None
    (farro.path / "tasks/task-0001.json").write_text(example[1])
    configure(farro)


def test_init_adds_to_gitignore_once_and_keeps_what_is_in_it(empty: Program) -> None:
    (empty.path / ".gitignore").write_text("*.pyc")
    empty.call("init", code=0)
    lines = (empty.path / ".gitignore").read_text().splitlines()
    assert lines[0] == "*.pyc"
    assert {"/jobs/", "/logs/", "/agents/*/incoming/"} <= set(lines)
    assert not any("AGENTS" in line and not line.startswith("#") for line in lines)
    (empty.path / ".gitignore").write_text("\n".join(line for line in lines if line != "/logs/"))
    empty.call("init", code=0)
    assert "/logs/" not in (empty.path / ".gitignore").read_text()


def test_git_ignores_the_files_of_swarms(empty: Program) -> None:
    empty.call("init", code=0)
    for name in ("swarms/farro/plan.json", "bus/queues/x", "jobs/x", "src/bus/x.py"):
        (empty.path / name).parent.mkdir(parents=True, exist_ok=True)
        (empty.path / name).write_text("a password")
    subprocess.run(["git", "init", "--quiet"], cwd=empty.path, check=True)
    told = subprocess.run(
        ["git", "status", "--short", "--untracked-files=all"],
        cwd=empty.path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert not any(name in told for name in (" swarms/", " bus/", " jobs/")), told
    assert "src/bus/x.py" in told


def test_init_adds_missing_lines_to_an_older_gitignore_unless_it_was_edited(empty: Program) -> None:
    empty.call("init", code=0)
    ignored = empty.path / ".gitignore"
    before = root._IGNORED_BEFORE[0]
    ignored.write_text(f"*.pyc\n\n{before}*.o\n")
    assert ".gitignore" in empty.call("init", code=0).out
    assert ignored.read_text() == f"*.pyc\n\n{root._IGNORED}*.o\n"
    ignored.write_text(before.rstrip())  # as an editor that writes no final newline
    assert root.renew_ignored(str(empty.path)) == [".gitignore"]
    assert ignored.read_text() == root._IGNORED
    for own in (before.replace("/logs/\n", ""), root._IGNORED.replace("/swarms/\n", ""), "*.pyc\n"):
        ignored.write_text(own)
        assert root.renew_ignored(str(empty.path)) == []
        assert ignored.read_text() == own


def test_init_does_not_restore_removed_task_files(farro: Program) -> None:
    (farro.path / "tasks/README.md").unlink()
    assert "nothing was missing" in farro.call("init", code=0).out


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_init_agents_writes_a_config_that_takes_prompts(empty: Program, name: str) -> None:
    told = empty.call("init", "--agents", name, code=0).out
    assert f"agents-config.json: added providers.{name}, roles.SeniorEngineer.provider" in told
    assert f"{name}: " in told
    config = json.loads((empty.path / "agents-config.json").read_text())
    assert {config["roles"][role]["provider"] for role in AGENTS[1:]} == {name}
    provider = config["providers"][name]
    assert (provider["kind"], provider["program"], provider["workspace"]) == ("cli", name, "root")
    assert provider["call_usd"] > 0
    assert "network" not in provider  # the gateway is all that it reaches
    assert job_of(empty, "--id", "one").name == "one"


def test_init_agents_uses_a_login_where_there_is_no_key(empty: Program) -> None:
    told = empty.run("init", "--agents", "claude", env={"CLAUDE_CODE_OAUTH_TOKEN": "a-login"}, code=0).out
    assert "Needs CLAUDE_CODE_OAUTH_TOKEN, which `claude setup-token` makes" in told
    provider = json.loads((empty.path / "agents-config.json").read_text())["providers"]["claude"]
    assert provider["login"] == "${CLAUDE_CODE_OAUTH_TOKEN}"
    assert "api_key" not in provider


def test_init_takes_a_second_program_without_its_option_for_a_mistake(empty: Program) -> None:
    refused = empty.call("init", "--agents", "codex", "gemini", code=2)
    assert "repeat the option for each program: --agents codex --agents gemini" in refused.err
    assert not (empty.path / "gemini").exists()


def test_init_agents_keeps_edits_and_can_be_repeated(agents: Program) -> None:
    path = agents.path / "agents-config.json"
    config = json.loads(path.read_text())
    mine = {"kind": "cli", "command": ["my-claude"]}
    config["providers"]["claude"] = mine
    config["roles"] = {"Architect": {"provider": "local", "timeout_s": 5}}
    del config["security"]
    path.write_text(json.dumps(config))
    told = agents.call("init", "--agents", "claude", "--agents", "codex", code=0).out
    assert "kept as they are: providers.claude, roles.Architect.provider" in told
    merged = json.loads(path.read_text())
    assert merged["providers"]["claude"] == mine
    assert merged["roles"]["Architect"] == {"provider": "local", "timeout_s": 5}
    assert merged["roles"]["CodeReviewer"] == {"provider": "codex", "read_only": True}
    assert merged["security"]["max_job_bytes"] == 25 << 20
    before = path.read_bytes()
    again = agents.call("init", "--agents", "claude", "--agents", "codex", "--json", code=0).json
    assert again["agents"]["made"] == []
    assert path.read_bytes() == before


def test_init_agents_does_not_rewrite_yaml(empty: Program) -> None:
    text = "version: 1.0.0  # mine\n"
    (empty.path / "agents-config.yaml").write_text(text)
    told = empty.call("init", "--agents", "gemini", code=0).out
    assert "the config is YAML, which farro does not rewrite" in told
    assert "providers:\n  gemini:\n" in told
    assert (empty.path / "agents-config.yaml").read_text() == text
    assert not (empty.path / "agents-config.json").exists()


def test_init_agents_prints_the_missing_yaml_for_a_yaml_config(empty: Program) -> None:
    path = empty.path / "agents-config.yaml"
    path.write_text("providers:\n  mine: {kind: cli, command: [mine]}\nroles:\n  DocWriter: {provider: mine}\n")
    lacks = empty.call("init", "--agents", "gemini", "--json", code=0).json["agents"]["by_hand"]
    assert "DocWriter" not in lacks
    assert "mine" not in lacks
    path.write_text(lacks)
    assert empty.call("init", "--agents", "gemini", "--json", code=0).json["agents"]["by_hand"].split() == [
        "roles:",
        "DocWriter:",
        "provider:",
        '"gemini"',
    ]


def test_init_names_a_new_role_once_and_not_each_of_its_folders(agents: Program) -> None:
    path = agents.path / "agents-config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "roles": {"Packer": {"description": "Packs."}}}))
    assert agents.call("init", code=0).out.strip().endswith("is whole again; made agents/Packer")


# --- enqueue


def test_a_prompt_becomes_a_job_with_its_routing(agents: Program) -> None:
    folder = job_of(agents)
    assert folder.parent == agents.path / "agents/SeniorEngineer/incoming"
    assert json.loads((folder / "prompt.json").read_text()) == PROMPT
    assert json.loads((folder / "job.json").read_text())["routing"] == PROMPT["routing"]


def test_agent_cli_takes_the_command_line_of_the_seed(agents: Program) -> None:
    (agents.path / "tasks/task-0007.md").write_text("# Greet")
    (agents.path / "prompt.md").write_text("The story.")
    name = written(agents)
    args = ("--role", "SeniorEngineer", "--task", "tasks/task-0007", "--prompt-json", name, "--context-md", "prompt.md")
    program = os.path.join(os.path.dirname(sys.executable), "agent-cli")
    done = subprocess.run([program, "enqueue", *args], cwd=agents.path, env=agents.env, capture_output=True, check=True)
    folder = agents.folder(done.stdout.decode().strip())
    prompt = json.loads((folder / "prompt.json").read_text())
    assert prompt["inputs"] == {"task_id": "task-0007"}
    assert prompt["context_md"] == "prompt.md"
    assert (folder / "prompt.md").read_text() == "The story."


def test_the_task_option_replaces_the_task_of_the_prompt_with_a_warning(agents: Program) -> None:
    """The document's command line, its example prompt, which names task-0001, and a task of title and workflow."""
    task = {"title": "Greet people", "workflow": [{"role": "SeniorEngineer"}, {"role": "CodeReviewer"}]}
    (agents.path / "tasks/task-0007.json").write_text(json.dumps(task))
    name = written(agents, inputs={"task_id": "task-0001"})
    args = ("--role", "SeniorEngineer", "--task", "tasks/task-0007", "--prompt-json", name)
    done = agents.run("enqueue", *args, code=0)
    assert "inputs.task_id: is task-0001; --task task-0007 replaces it" in done.err
    assert json.loads((agents.folder(done.out.strip()) / "prompt.json").read_text())["inputs"] == {
        "task_id": "task-0007"
    }


def test_a_prompt_may_come_as_a_plan_in_yaml_and_from_stdin(agents: Program) -> None:
    (agents.path / "p.yaml").write_text(
        "role: DocWriter\nrubric: Write.\nallowed_paths: [docs/]\nsuccess: Written.\nrouting: {mode: manager}\n"
    )
    assert agents.call("enqueue", "p.yaml", "--id", "a", code=0).out == "a\n"
    assert agents.call("enqueue", "--prompt-json", "p.yaml", "--id", "b", code=0).out == "b\n"
    assert agents.run("enqueue", "--prompt-json", "-", "--id", "c", stdin=json.dumps(PROMPT), code=0).out == "c\n"
    assert agents.status("a") == "queued"


def test_job_options_work_for_prompts(agents: Program) -> None:
    folder = job_of(agents, "--id", "one", "--tag", "gpu", "--priority", "P1", "--delay", "1h")
    prompt = json.loads((folder / "prompt.json").read_text())
    assert prompt["metadata"] == {"tags": ["gpu"], "priority": "P1"}
    assert json.loads((folder / "job.json").read_text())["not_before"] is not None
    assert job_of(agents, "--id", "two", "--after", "one").name == "two"


def test_repeated_id_with_the_same_files_is_one_job_and_other_files_are_refused(agents: Program) -> None:
    (agents.path / "a.md").write_text("1")
    job_of(agents, "--id", "one", "--payload", "a.md")
    job_of(agents, "--id", "one", "--payload", "a.md")
    (agents.path / "a.md").write_text("2")
    assert "submitted before with other content" in refused(agents, "--id", "one", "--payload", "a.md")


def test_context_file_beside_the_prompt_is_copied_into_the_job(agents: Program) -> None:
    (agents.path / "notes.md").write_text("The story.")
    folder = job_of(agents, context_md="notes.md")
    assert (folder / "prompt.md").read_text() == "The story."
    assert json.loads((folder / "prompt.json").read_text())["context_md"] == "prompt.md"


def test_payload_files_are_copied_by_their_names(agents: Program) -> None:
    (agents.path / "deep").mkdir()
    (agents.path / "deep/a.patch").write_bytes(b"\x00\xff")
    (agents.path / "B.MD").write_text("b")
    os.link(agents.path / "B.MD", agents.path / "linked.md")
    folder = job_of(agents, "--payload", "deep/a.patch", "--payload", "B.MD", "--payload", "linked.md")
    assert sorted(file.name for file in (folder / "payload").iterdir()) == ["B.MD", "a.patch", "linked.md"]
    assert (folder / "payload/a.patch").read_bytes() == b"\x00\xff"
    assert (folder / "payload/linked.md").stat().st_nlink == 1


def test_all_problems_of_a_prompt_are_reported_at_once(agents: Program) -> None:
    told = refused(
        agents, role="Enginer", allowed_paths=["/etc", "../x", ".git/hooks", "jobs/"], routing={"mode": "x"}, a=1
    )
    for said in (
        "role: Enginer is not a role here; did you mean SeniorEngineer?",
        'allowed_paths[0]: "/etc" is absolute',
        'allowed_paths[1]: "../x" leads out of the repository',
        'allowed_paths[2]: ".git/hooks" belongs to the queue or to git',
        'allowed_paths[3]: "jobs/" belongs to the queue',
        "routing.mode: must be 'manager' or 'role'",
        "a: is not a known field",
    ):
        assert f": {said}" in told
    assert all(line.startswith("farro: p.json:1:") for line in told.splitlines())


def test_repeated_job_keeps_its_files(agents: Program) -> None:
    (agents.path / "a.md").write_text("The file.")
    job_of(agents, "--id", "one", "--payload", "a.md", "--context-md", "a.md")
    agents.call("kill", "one", code=0)
    again = agents.call("retry", "one", "--json", code=0).json
    folder = agents.folder(again["job_id"])
    assert (folder / "prompt.md").read_text() == (folder / "payload/a.md").read_text() == "The file."
    assert folder.parent.parent.name == "SeniorEngineer"


@pytest.mark.parametrize(
    ("args", "change", "told"),
    [
        (["--role", "Architect"], {}, "role: is SeniorEngineer, but --role says Architect"),
        (["--timeout", "5m"], {}, "--timeout is for commands"),
        (["--env", "A=b"], {}, "--env is for commands"),
        (["--context-md", "nope.md"], {}, "--context-md: nope.md: cannot be read: No such file"),
        ([], {"context_md": "nope.md"}, "nope.md: cannot be read: No such file"),
        ([], {"context_md": "../nope.md"}, "context_md: is not a plain file name"),
        (["--context-md", "raw.md"], {}, "--context-md: raw.md: is not UTF-8 text"),
        (["--context-md", "long.md"], {}, "--context-md: long.md: is larger than 1048576 bytes"),
        ([], {"steps": []}, "steps: is not a field of a prompt; this is a plan, which is queued with --plan"),
        (["--payload", "link.md"], {}, "--payload: link.md: is a link; name the file itself"),
        (["--context-md", "link.md"], {}, "--context-md: link.md: is a link; name the file itself"),
        (["--payload", "fifo.md"], {}, "--payload: fifo.md: is not a regular file"),
        (["--payload", "folder.md"], {}, "--payload: folder.md: is not a regular file"),
        (["--payload", "/dev/null"], {}, "security.payload_allowlist has .md"),
        (["--payload", "a b.md"], {}, "--payload: a b.md: is not a plain file name"),
        (["--payload", ".md"], {}, "--payload: .md: is not a plain file name"),
        (["--payload", "raw.md", "--payload", "deep/raw.md"], {}, "deep/raw.md: another payload file is also called"),
        (["--task", "task-0001"], {}, "tasks/task-0001.json nor .md"),
        (["--task", "src/task-0001"], {}, "--task: src/task-0001: is not in "),
        (["--task", "../tasks/x"], {}, "is not in "),
        (["--task", "README"], {}, "is not a task's id"),
        (["--task", "bad"], {}, "tasks/bad.json:1:"),
    ],
)
def test_each_mistake_is_refused_before_anything_is_written(
    agents: Program, args: list[str], change: dict[str, Any], told: str
) -> None:
    path = agents.path
    (path / "deep").mkdir()
    for name in ("raw.md", "deep/raw.md", "a b.md", ".md"):
        (path / name).write_bytes(b"\xff")
    (path / "long.md").write_bytes(b"x" * ((1 << 20) + 1))
    (path / "link.md").symlink_to("raw.md")
    (path / "folder.md").mkdir()
    os.mkfifo(path / "fifo.md")
    (path / "tasks/bad.json").write_text('{"id": "bad", "roles": []}')
    (path / "tasks/good.md").write_text("# Good")
    code = 3 if "allowlist" in told else 2
    assert told in refused(agents, *args, code=code, **change)


def test_payload_that_the_config_forbids_is_refused_and_audited(agents: Program) -> None:
    configure(agents, max_job_bytes=1000)
    (agents.path / "a.md").write_bytes(b"x" * 600)
    (agents.path / "b.md").write_bytes(b"x" * 600)
    (agents.path / "c.exe").write_bytes(b"x")
    told = refused(agents, "--payload", "a.md", "--payload", "c.exe", "--payload", "b.md", code=3)
    assert "--payload: c.exe: its ending is not allowed" in told
    assert "--payload: b.md: is too large: a job may have 1000 bytes in all" in told
    assert '"event": "payload_refused"' in (agents.path / "logs/audit.log").read_text()
    configure(agents, payload_allowlist=[".exe"])
    assert (job_of(agents, "--payload", "c.exe") / "payload/c.exe").is_file()


def test_absolute_paths_must_be_allowed_by_the_config(agents: Program) -> None:
    assert "security.allow_absolute_paths" in refused(agents, allowed_paths=["/srv/out"])
    configure(agents, allow_absolute_paths=True)
    job_of(agents, allowed_paths=["/srv/out"])
    assert "belongs to the queue" in refused(agents, allowed_paths=[f"{agents.path}/agents/"])


def test_config_without_agents_is_refused_with_the_lines_to_add(farro: Program) -> None:
    config = farro.path / "agents-config.json"
    told = refused(farro, code=1)
    assert told.startswith(f"farro: {config}:5:16: providers: is required for agent work")
    assert "farro init --agents claude" in told
    config.write_text(json.dumps({"providers": {**PROVIDERS, "other": PROVIDERS["local"]}}))
    told = refused(farro, code=1)
    for said in (
        "version: is required",
        "security.max_job_bytes: is required",
        "roles.SeniorEngineer.provider: is required",
    ):
        assert said in told
    config.unlink()
    assert "there is no such file, and agents need one" in farro.call("enqueue", "--root", ".", "p.json", code=1).err
    farro.call("enqueue", "--root", ".", "--", "true", code=0)  # commands need no config


def test_missing_key_blocks_only_the_roles_that_need_it(agents: Program) -> None:
    path = agents.path / "agents-config.json"
    config = json.loads(path.read_text())
    config["providers"]["openai"] = {"api_key": "${NOT_SET}"}
    path.write_text(json.dumps(config))
    agents.call("ls", code=0)


def test_a_plan_may_ask_agents_and_their_roles_are_checked(agents: Program) -> None:
    def plan(role: str, *args: str) -> str:
        step = {"id": "ask", "tool": "agent", "command": role, "args": list(args)}
        (agents.path / "plan.json").write_text(json.dumps({"steps": [step]}))
        return "plan.json"

    assert agents.call("enqueue", plan("Architect", "Plan it."), "--id", "one", code=0).out == "one\n"
    told = agents.call("enqueue", plan("Architct", "Plan it."), code=2).err
    assert re.search(
        r"plan.json:1:\d+: steps\[0\].command: Architct is not a role here; did you mean Architect\?", told
    )
    assert "steps[0].args: must say what the agent shall do" in agents.call("enqueue", plan("Architect"), code=2).err
    told = agents.call("plan", "lint", plan("Nobody", "x"), code=2).out
    assert "steps[0].command: Nobody is not a role here" in told


def test_paths_of_plans_follow_the_same_rules(agents: Program) -> None:
    (agents.path / "plan.json").write_text('{"allowed_paths": ["../x"], "steps": [{"id": "a", "command": "true"}]}')
    assert 'allowed_paths[0]: "../x" leads out' in agents.call("enqueue", "plan.json", code=2).err


def test_file_of_many_prompts_takes_no_payload_files(agents: Program) -> None:
    lines = [json.dumps(PROMPT), json.dumps({**PROMPT, "role": "Architect"})]
    (agents.path / "many.ndjson").write_text("\n".join(lines))
    assert len(agents.call("enqueue", "--many", "many.ndjson", "--json", code=0).json["jobs"]) == 2
    (agents.path / "many.ndjson").write_text(json.dumps({**PROMPT, "context_md": "prompt.md"}))
    refused = agents.call("enqueue", "--many", "many.ndjson", code=2).err
    assert "context_md: names a file, but files cannot be attached this way" in refused


def test_payload_files_are_refused_without_a_prompt(agents: Program) -> None:
    told = agents.call("enqueue", "--payload", "x.md", "--", "true", code=2).err
    assert "--payload belongs to an agent prompt" in told


def test_status_and_plan_commands_show_a_prompt(agents: Program) -> None:
    job_of(agents, "--id", "one")
    assert "one" in agents.call("status", "--job", "one", code=0).out
    assert "SeniorEngineer" in agents.call("plan", "show", "one", code=0).out
    agents.call("plan", "lint", written(agents), code=0)
    assert "rubric: must be text, not null" in agents.call("plan", "lint", written(agents, rubric=None), code=2).out
