"""A coding agent drives `farro mcp` over stdio with the SDK's client: queue, wait, read, stay within limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from farro.app import App
from farro.config import reader
from farro.jobs.outcomes import AccountWait, Released
from flows.program import FARRO, PATIENCE_S, Program, shell, steps
from mcp import Client
from mcp_rig import Agent, ask, refused
from one_job import claim_one, commit_one
from servers import RedisServer
from support import eventually


def test_an_agent_queues_a_command_waits_and_reads_its_result(farro: Program, agent: Agent) -> None:
    farro.start("worker").started()

    async def talk(client: Client) -> None:
        queued = await ask(client, "enqueue_command", command=["sh", "-c", "echo $WORD; pwd"], env={"WORD": "wheat"})
        waited = await ask(client, "wait_for_jobs", jobs=[queued["job_id"]], timeout_s=PATIENCE_S)
        assert [end["status"] for end in waited["ended"]] == ["succeeded"]
        assert not waited["timed_out"]
        result = await ask(client, "read_result", job=queued["job_id"])
        assert result["value"]["text"] == f"wheat\n{farro.path}\n"
        assert result["steps"][0]["exit_code"] == 0
        shown = await ask(client, "show_job", job=queued["job_id"])
        assert shown["status"] == "succeeded"
        assert "prompt.json" in shown["files"]

    agent.talk(talk, "--allow", "write")
    first = json.loads((farro.path / "logs/audit.log").read_text().splitlines()[0])
    assert (first["event"], first["actor"][:4]) == ("enqueued", "mcp-")


def test_agent_queues_a_plan_and_reads_why_it_failed(farro: Program, agent: Agent) -> None:
    plan = steps(("echo", "one"), ("sh", "-c", "echo broken >&2; exit 3"))

    async def talk(client: Client) -> None:
        assert (await ask(client, "check_plan", plan=plan)) == {"good": True, "role": "Runner"}
        queued = await ask(client, "enqueue_plan", plan=plan, id="two-steps", priority="P1", tags=[])
        assert queued["job_id"] == "two-steps"
        farro.worked()
        result = await ask(client, "read_result", job="two-steps")
        assert result["status"] == "failed"
        assert result["error"]["step"] == "2"
        assert "broken" in result["error"]["last_words"]
        assert [step["id"] for step in result["steps"]] == ["1", "2"]
        said = await ask(client, "read_log", job="two-steps", stream="stderr")
        assert "broken" in said["output"][-1]["text"]
        life = await ask(client, "job_history", job="two-steps")
        assert life["attempts"][0]["outcome"] == "failed"
        again = await ask(client, "retry_job", job="two-steps")
        assert again["retry_of"] == "two-steps"
        assert list(again["kept"]) == ["1"]

    agent.talk_here(talk, "write")


def test_server_without_permission_offers_read_tools_only(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell("true"))

    async def talk(client: Client) -> None:
        offered = {tool.name for tool in (await client.list_tools()).tools}
        assert {"list_jobs", "read_result", "wait_for_jobs", "doctor"} <= offered
        assert not offered & {"enqueue_command", "enqueue_plan", "kill_job", "approve_job"}
        assert "--allow write" in await refused(client, "kill_job", job=job)
        assert "--allow approve" in await refused(client, "approve_job", job=job)
        assert [view["job_id"] for view in (await ask(client, "list_jobs"))["jobs"]] == [job]
        assert "only looks" in (client.instructions or "")

    agent.talk(talk)
    assert farro.status(job) == "queued"


def test_config_grants_permissions_and_the_option_narrows_them(farro: Program, agent: Agent) -> None:
    config = farro.path / "agents-config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**settings, "mcp": {"allow": ["write"]}}))

    async def by_the_config(client: Client) -> None:
        killed = await ask(client, "enqueue_command", command=["true"], id="to-be-killed")
        assert (await ask(client, "kill_job", job=killed["job_id"], note="not needed"))["status"] == "killed"

    agent.talk(by_the_config)
    assert farro.job("to-be-killed")["hops"][-1]["by"].startswith("mcp-")

    async def narrowed(client: Client) -> None:
        assert "--allow write" in await refused(client, "enqueue_command", command=["true"])

    agent.talk(narrowed, "--read-only")


def test_agent_resumes_a_paused_account_where_it_may_write(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell("true"))
    store = App().open_store(str(farro.path), reader.load(str(farro.path)))
    try:
        hands = store.join("hands", role="Runner")
        claim = claim_one(store, hands)
        assert claim is not None
        commit_one(store, claim, Released(wait=AccountWait(accounts=("gpt",), delay_s=3600.0)))
        store.leave(hands)
        store.accounts().pause("gpt", kind="refused", reason="401: no such key")

        async def looking(client: Client) -> None:
            assert (await ask(client, "explain_job", job=job))["fix"] == "`farro provider resume gpt` in a shell"
            assert [one["account"] for one in (await ask(client, "inbox"))["accounts"]] == ["gpt"]
            assert "--allow write" in await refused(client, "resume_account", account="gpt")

        agent.talk_here(looking)
        assert store.accounts().paused()

        async def writing(client: Client) -> None:
            assert (await ask(client, "explain_job", job=job))["fix"] == '`resume_account(account="gpt")`'
            done = await ask(client, "resume_account", account="gpt")
            assert done == {"account": "gpt", "was_paused": True, "jobs": [job]}
            assert "neither a provider nor an account" in await refused(client, "resume_account", account="gpt")

        agent.talk_here(writing, "write")
        assert store.accounts().paused() == []
    finally:
        store.close()
    assert farro.job(job)["hops"][-1]["by"].startswith("mcp-")


def test_caps_and_policies_apply_to_agents(farro: Program, agent: Agent) -> None:
    config = farro.path / "agents-config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**settings, "capacity": {"roles": {"Runner": 1}}}))

    async def talk(client: Client) -> None:
        await ask(client, "enqueue_command", command=["true"])
        assert "no room" in await refused(client, "enqueue_command", command=["true"])
        escaping = {**shell("true"), "allowed_paths": ["../elsewhere"]}
        assert "allowed_paths" in await refused(client, "enqueue_plan", plan=escaping)

    agent.talk_here(talk, "write")


def test_all_wrong_arguments_are_reported_at_once(farro: Program, agent: Agent) -> None:
    async def talk(client: Client) -> None:
        said = await refused(client, "enqueue_command", command=[], priority="P9", colour="red")
        assert "command" in said
        assert "priority" in said
        assert "colour" in said
        assert "no job nothing-here" in await refused(client, "show_job", job="nothing-here")
        assert "known: list_jobs" in await refused(client, "make_coffee")
        bad = await ask(client, "check_plan", plan={"steps": [{"id": "a", "comand": "true"}]})
        assert not bad["good"]
        assert any("did you mean command" in problem for problem in bad["problems"])

    agent.talk_here(talk, "write")


def test_long_output_is_cut_and_the_rest_can_be_read(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell("seq 20000"))
    farro.worked()

    async def talk(client: Client) -> None:
        result = await ask(client, "read_result", job=job, max_bytes=1000)
        assert result["value"]["truncated"]
        assert len(result["value"]["text"]) <= 1000
        assert "read_log" in result["value"]["more"]
        log = await ask(client, "read_log", job=job, tail=3)
        assert log["output"][0]["text"] == "19998\n19999\n20000\n"
        name = log["output"][0]["more"].split('name="')[1].split('"')[0]
        piece = await ask(client, "read_file", job=job, name=name, max_bytes=4)
        assert (piece["text"], piece["more"]) == ("1\n2\n", "go on with offset=4")
        assert "no file" in await refused(client, "read_file", job=job, name="../../../agents-config.json")

    agent.talk_here(talk)


def test_total_size_of_an_answer_is_limited(farro: Program, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    job = farro.enqueue(steps(*(("seq", "2000") for _ in range(4))))
    farro.worked()
    monkeypatch.setattr("farro.mcp.server.MOST_CHARACTERS", 10_000)

    async def talk(client: Client) -> None:
        assert "never an instruction" in str(client.instructions)
        assert "ask for less: a smaller max_bytes" in await refused(client, "read_result", job=job)
        assert (await ask(client, "read_result", job=job, max_bytes=100))["status"] == "succeeded"
        with pytest.raises(MCPError, match="ask for less"):
            await client.read_resource(f"job://{job}/result")

    agent.talk_here(talk)


def test_file_outside_of_the_job_is_not_read(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell("echo fine"))
    farro.worked()
    folder = farro.folder(job)
    os.symlink("/etc", folder / "attempts" / "0001" / "more")
    os.symlink("/etc/hostname", folder / "host")

    async def talk(client: Client) -> None:
        assert "cannot be read" in await refused(client, "read_file", job=job, name="host")
        assert "no file" in await refused(client, "read_file", job=job, name="attempts/0001/more/hostname")

    agent.talk_here(talk)


def test_wait_reports_progress_and_ends_after_its_timeout(farro: Program, agent: Agent) -> None:
    first, second = farro.enqueue(shell("true")), farro.enqueue(shell("true"))

    async def talk(client: Client) -> None:
        heard: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            heard.append(done)

        told = await client.call_tool("wait_for_jobs", {"jobs": [first], "timeout_s": 0.2}, progress_callback=progress)
        assert told.structured_content["timed_out"]
        assert told.structured_content["waiting"] == [first]
        assert heard
        assert "no_worker" in (await ask(client, "explain_job", job=first))["reason"]
        await asyncio.to_thread(farro.worked)
        both = await ask(client, "wait_for_jobs", jobs=[first, second], timeout_s=PATIENCE_S)
        assert {end["job_id"] for end in both["ended"]} == {first, second}

    agent.talk_here(talk)


def test_jobs_are_resources(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell("echo bread"))
    farro.worked()

    async def talk(client: Client) -> None:
        assert [str(one.uri) for one in (await client.list_resources()).resources] == [f"job://{job}"]
        assert len((await client.list_resource_templates()).resource_templates) == 3
        told = await client.read_resource(f"job://{job}/result")
        assert json.loads(told.contents[0].text)["value"] == {"text": "bread\n"}
        with pytest.raises(MCPError, match="no job"):
            await client.read_resource("job://nobody")
        with pytest.raises(MCPError, match="job://JOB"):
            await client.read_resource(f"job://{job}/nothing")

    agent.talk_here(talk)


def test_every_read_tool_works_on_a_fresh_root(farro: Program, agent: Agent) -> None:
    async def talk(client: Client) -> None:
        for tool in ("list_jobs", "stats", "alerts", "list_workers", "inbox", "list_plans", "list_swarms"):
            await ask(client, tool)
        assert (await ask(client, "doctor"))["root"] == str(farro.path)
        for tool in (await client.list_tools()).tools:
            assert tool.description
            assert all("description" in field for field in tool.input_schema["properties"].values()), tool.name

    agent.talk_here(talk)


def test_hostile_jobs_are_returned_as_plain_json(farro: Program, agent: Agent) -> None:
    job = farro.enqueue(shell(r"printf '\033[31mred\377\0'", name="\u202e<script>"))
    farro.worked()

    async def talk(client: Client) -> None:
        result = await ask(client, "read_result", job=job)
        assert result["status"] == "succeeded"
        log = await ask(client, "read_log", job=job)
        assert "base64" in log["output"][0]

    agent.talk_here(talk)


def test_an_agent_works_with_a_redis_store(farro: Program, agent: Agent, redis_server: RedisServer) -> None:
    config = farro.path / "agents-config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**settings, "store": redis_server.url, "redis": {"name": "mcp-agents"}}))
    farro.start("worker").started()

    async def talk(client: Client) -> None:
        queued = await ask(client, "enqueue_command", command=["echo", "rye"])
        await ask(client, "wait_for_jobs", jobs=[queued["job_id"]], timeout_s=PATIENCE_S)
        assert (await ask(client, "read_result", job=queued["job_id"]))["value"] == {"text": "rye\n"}

    agent.talk(talk, "--allow", "write")


def test_signal_stops_the_server_while_its_input_stays_open(farro: Program) -> None:
    with subprocess.Popen(
        [FARRO, "mcp"], cwd=farro.path, env=farro.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGTERM)
        eventually(lambda: process.poll() is not None, "it did not end")
        assert process.returncode == 0


def test_mcp_list_prints_the_tools(farro: Program) -> None:
    assert "enqueue_plan" not in farro.call("mcp", "--list", code=0).out
    listed = farro.call("mcp", "--list", "--json", "--allow", "write", code=0).json["tools"]
    assert {"name", "needs", "input"} == set(listed[0])
    assert "enqueue_plan" in {tool["name"] for tool in listed}
    assert "exclude" in farro.call("mcp", "--allow", "write", "--read-only", code=2).err


def test_a_missing_library_names_what_to_install(farro: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    shadow = tmp_path_factory.mktemp("shadow")
    Path(shadow, "mcp.py").write_text("raise ModuleNotFoundError('no mcp', name='mcp')\n")
    assert "pip install 'farro[mcp]'" in farro.run("mcp", "--list", env={"PYTHONPATH": str(shadow)}, code=2).err
