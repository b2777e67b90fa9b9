"""Messages to agents name tools instead of commands; a command without a tool is marked as one for a shell."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import farro as package
from farro.cli.main import farro as program
from farro.mcp import server, wording
from flows.program import Program, shell
from mcp import Client
from mcp_rig import Agent, ask, refused

EVERY = list(server.BY_NAME)
LOOKING = [tool.name for tool in server.allowed(())]


def test_every_named_tool_exists_with_its_argument() -> None:
    for tool, argument in wording.TOOLS.values():
        fields = {field.name for field in dataclasses.fields(server.BY_NAME[tool].shape)}
        assert argument is None or argument in fields, tool
    assert "roles" in {field.name for field in dataclasses.fields(server.BY_NAME["list_jobs"].shape)}
    assert "from_start" in {field.name for field in dataclasses.fields(server.BY_NAME["retry_job"].shape)}


def test_every_command_named_in_a_message_exists() -> None:
    """Otherwise an agent would be sent to a shell for a command that does not exist."""
    named = set(wording.TOOLS)
    for room in ("queue", "store", "jobs", "plans", "roles", "log"):
        for file in (Path(package.__file__).parent / room).rglob("*.py"):
            named.update(re.findall(r"`farro ([a-z][a-z -]*)", file.read_text()))
    known = set(program.list_commands(None))  # type: ignore[arg-type]
    assert {words.split()[0] for words in named} <= known


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        ("no job x; `farro ls` lists what there is", "no job x; `list_jobs` lists what there is"),
        ("full (`farro ls --role Runner`)", 'full (`list_jobs(roles=["Runner"])`)'),
        ("`farro wait a` or `farro kill a`", '`wait_for_jobs(jobs=["a"])` or `kill_job(job="a")`'),
        ("`farro retry a --from-start`", '`retry_job(job="a", from_start=true)`'),
        ("`farro retry a --after JOB`", "`farro retry a --after JOB` in a shell"),
        ("`farro provider resume gpt`", '`resume_account(account="gpt")`'),
        ("`farro stats --alerts`", "`alerts`"),
        ("`farro prune` makes room", "`farro prune` in a shell makes room"),
        ("nothing of ours: `rm x`", "nothing of ours: `rm x`"),
    ],
)
def test_command_is_translated_to_the_equivalent_tool(told: str, heard: str) -> None:
    assert wording.for_agents(told, EVERY) == heard


def test_a_tool_that_is_not_offered_is_not_named() -> None:
    assert wording.for_agents("`farro kill a` ends it", LOOKING) == "`farro kill a` in a shell ends it"


def test_advice_with_a_command_is_translated_too() -> None:
    assert wording.fix_for_agents("farro logs a --follow", EVERY) == '`read_log(job="a")`'
    both = "farro watchdog --once && farro manager --once"
    assert wording.fix_for_agents(both, EVERY) == f"`{both}` in a shell"
    assert wording.fix_for_agents("use the farro that wrote it", EVERY) == "use the farro that wrote it"


def test_errors_and_advice_of_a_server_name_tools(farro: Program, agent: Agent) -> None:
    farro.enqueue(shell("true"), "--id", "waits")

    async def talk(client: Client) -> None:
        assert "`list_jobs` lists" in await refused(client, "show_job", job="nothing-here")
        said = await ask(client, "explain_job", job="waits")
        assert said["fix"] == "`farro worker --role Runner` in a shell"

    agent.talk_here(talk, "write")


def test_translated_messages_contain_no_secret(farro: Program, agent: Agent) -> None:
    farro.env["OPENAI_API_KEY"] = "hunter-424242"
    providers = {"own": {"kind": "openai", "model": "m", "api_key": "${OPENAI_API_KEY}"}}
    (farro.path / "agents-config.json").write_text(json.dumps({"providers": providers}))

    async def talk(client: Client) -> None:
        said = await refused(client, "show_job", job="hunter-424242")
        assert "hunter-424242" not in said
        assert "`list_jobs`" in said
        assert "redacted:OPENAI_API_KEY" in said

    agent.talk(talk)
