"""Wrong roots and wrong configs: the message, the exit code, and that nothing is lost or created."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from flows.program import Program, listing, steps, unprivileged

EVERY = (
    ["ls"],
    ["show", "x"],
    ["kill", "x"],
    ["worker", "--drain"],
    ["watchdog", "--once"],
    ["manager"],
    ["enqueue", "-"],
)


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command[0])
def test_every_command_reports_a_wrong_root(empty: Program, command: list[str]) -> None:
    (empty.path / "file").write_text("")
    (empty.path / "folder").mkdir()
    before = listing(empty.path)
    for root, says in (
        ("nowhere", f"{empty.path}/nowhere does not exist; make one with: farro init --root nowhere"),
        ("file", f"{empty.path}/file is not a folder, let alone a farro root"),
        ("folder", f"{empty.path}/folder is not a farro root; make one with: farro init --root folder"),
    ):
        told = empty.call(*command, "--root", root, code=2)
        assert says in told.err
        assert told.out == ""
    assert "no farro root in" in empty.call(*command, code=2).err
    assert "it is empty" in empty.call(*command, "--root", "", code=2).err
    assert listing(empty.path) == before


def test_init_accepts_the_folder_as_an_argument(empty: Program) -> None:
    assert empty.run("init", "desk", "--json", code=0).json["root"] == f"{empty.path}/desk"
    assert "nothing was missing" in empty.run("init", "--root", "desk", code=0).out
    told = empty.run("init", "desk", "--root", "other", code=2).err
    assert "desk and --root other both say which folder; keep one of them" in told
    assert not (empty.path / "other").exists()
    assert empty.run("init", ".", "--json", code=0).json["root"] == str(empty.path)


def test_init_refuses_what_cannot_be_a_folder(empty: Program) -> None:
    (empty.path / "file").write_text("")
    before = listing(empty.path)
    assert "file is not a folder" in empty.run("init", "--root", "file", code=2).err
    assert "file is not a folder" in empty.run("init", "--root", "file/below", code=2).err
    (empty.path / "dangling").symlink_to("nowhere")
    assert "dangling is not a folder" in empty.run("init", "--root", "dangling", code=2).err
    (empty.path / "dangling").unlink()
    assert listing(empty.path) == before


def test_read_only_root_can_be_read_and_loses_nothing(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    before = listing(farro.path)
    folders = [folder for folder, _, _ in os.walk(farro.path)]
    for folder in folders:
        os.chmod(folder, 0o555)
    try:
        prefix = unprivileged()
        assert "one" in farro.run("ls", prefix=prefix, code=0).out
        assert "one  queued" in farro.run("show", "one", prefix=prefix, code=0).out
        for command in (["enqueue", "-"], ["kill", "one"], ["watchdog", "--once"]):
            told = farro.run(*command, stdin=json.dumps(steps(["true"])), prefix=prefix, code=1)
            assert "Permission denied" in told.err, command
        told = farro.run("worker", "--drain", prefix=prefix, code=3)
        assert f"permissions: {farro.path} may not be written by this user" in told.err
        assert "nothing was missing" in farro.run("init", prefix=prefix, code=0).out
    finally:
        for folder in folders:
            os.chmod(folder, 0o755)
    assert listing(farro.path) == before


def test_root_without_search_permission_is_reported(farro: Program) -> None:
    farro.path.chmod(0)
    try:
        told = farro.run("ls", "--root", str(farro.path), cwd=farro.path.parent, prefix=unprivileged(), code=2)
    finally:
        farro.path.chmod(0o755)
    assert "may not be read by you" in told.err


@pytest.mark.parametrize("command", [*EVERY, ["init"]], ids=lambda command: command[0])
def test_every_problem_of_a_config_is_reported_with_its_position(farro: Program, command: list[str]) -> None:
    (farro.path / "agents-config.json").write_text(
        '{"version": 1,\n "durability": "maybe", "zzzzz": true,\n'
        ' "retry": {"max_attempts": 0, "base": 3},\n "tools": {"x": {"pyton": "a:b"}}, "roles": {"lower": {}}}\n'
    )
    before = listing(farro.path)
    told = farro.call(*command, code=1)
    config = farro.path / "agents-config.json"
    assert told.err.splitlines() == [
        f"farro: {config}:1:13: version: must be text, not the number 1",
        f"farro: {config}:2:16: durability: must be 'power' or 'process', not another word",
        f"farro: {config}:2:25: zzzzz: is not a known field; known: version, strict, store, bus, durability, "
        "strict_start, allow_cross_volume, roles, tools, retry, watchdog, runners, capacity, audit, prune, retention, "
        "security, providers, budgets, timeouts, manager, routing, redis, agq, agx, amqp, swarm, mcp, web",
        f"farro: {config}:3:28: retry.max_attempts: must be at least 1, not 0",
        f"farro: {config}:3:31: retry.base: is not a known field; did you mean base_s?",
        f"farro: {config}:4:18: tools.x.pyton: is not a known field; did you mean python?",
        f"farro: {config}:4:46: roles.lower: 'lower' is not a role: a capital letter, then up to 31 letters or digits, "
        "such as Runner",
    ]
    assert told.out == ""
    assert listing(farro.path) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", ":1:2: not JSON: expecting property name"),
        (b"", ":1:1: not JSON: the document is empty"),
        (b"\xff", ":1:1: byte 0xff is not UTF-8 here"),
        (b"[]", ":1:1: must be an object, not a list"),
        (b'{"version": "1", "version": "2"}', ":1:18: version: this key is in the object twice"),
        (b"[" * 5000, ":1:65: nested deeper than 64 levels"),
    ],
)
def test_config_that_does_not_parse_is_reported_with_its_position(farro: Program, text: bytes, says: str) -> None:
    (farro.path / "agents-config.json").write_bytes(text)
    assert f"agents-config.json{says}" in farro.call("ls", code=1).err


def test_unreadable_config_is_not_treated_as_missing(farro: Program) -> None:
    config = farro.path / "agents-config.json"
    config.unlink()
    config.mkdir()
    assert "agents-config.json: cannot be read: not a regular file" in farro.call("ls", code=1).err
    config.rmdir()
    os.mkfifo(config)
    assert "agents-config.json: cannot be read: not a regular file" in farro.call("ls", code=1).err
    config.unlink()
    config.symlink_to("nowhere")
    assert "agents-config.json: cannot be read: No such file" in farro.call("ls", code=1).err
    config.unlink()
    config.write_text("{}")
    config.chmod(0)
    assert "cannot be read: Permission denied" in farro.run("ls", prefix=unprivileged(), code=1).err


def test_the_config_may_be_yaml_but_not_both(farro: Program) -> None:
    (farro.path / "agents-config.yaml").write_text("retry:\n  max_attempts: many\n")
    assert "both agents-config.json and agents-config.yaml are there" in farro.call("ls", code=1).err
    (farro.path / "agents-config.json").unlink()
    assert "agents-config.yaml:2:17: retry.max_attempts: must be a whole number" in farro.call("ls", code=1).err
    (farro.path / "agents-config.yaml").write_text("retry:\n  max_attempts: 5\n")
    assert farro.run("ls", code=0).out.startswith("no jobs")


def configure(farro: Program, **sections: Any) -> None:
    (farro.path / "agents-config.json").write_text(json.dumps(sections))


def test_config_values_may_name_environment_variables(farro: Program) -> None:
    configure(farro, tools={"say": {"command": "${SPEAKER}"}})
    told = farro.run("ls", code=1)
    assert ":1:31: tools.say.command: the environment has no variable SPEAKER; set it" in told.err
    plan = {"steps": [{"id": "a", "tool": "say", "command": "hello"}]}
    farro.run("enqueue", "-", "--id", "one", stdin=json.dumps(plan), env={"SPEAKER": "echo"}, code=0)
    farro.run("worker", "--drain", env={"SPEAKER": "echo"}, code=0)
    told = farro.run("show", "one", "--json", env={"SPEAKER": "echo"}, code=0)
    folder = farro.path / told.json["place"] / "one"
    assert (folder / "attempts/0001/steps/a/stdout").read_text() == "hello\n"


def test_lenient_config_warns_once_per_command_and_works(farro: Program) -> None:
    configure(farro, strict=False, retries=3)
    config = farro.path / "agents-config.json"
    for command in (["ls", "--json"], ["init", "--json"], ["worker", "--drain"], ["watchdog", "--once", "--json"]):
        told = farro.run(*command, code=0)
        warning = f"farro: {config}:1:19: retries: is not a known field; did you mean retry? (ignored)\n"
        assert told.err == warning
        for line in told.out.splitlines():
            json.loads(line)
    configure(farro, strict=True, retries=3)
    assert "did you mean retry?\n" in farro.run("ls", code=1).err


def test_daemons_log_as_the_config_says(farro: Program) -> None:
    configure(farro, runners={"log_format": "text"})
    assert "worker started" in farro.run("worker", "--drain", code=0).out
    assert not farro.run("worker", "--drain", code=0).out.startswith("{")
    assert farro.run("worker", "--drain", "--json", code=0).out.startswith("{")
    configure(farro, runners={"log_level": "WARNING"})
    farro.enqueue(steps(["true"]))
    assert farro.run("worker", "--drain", code=0).out == ""
    configure(farro, runners={"log_level": "info", "log_format": "json"})
    told = farro.run("worker", "--drain", code=0)
    assert [json.loads(line)["message"] for line in told.out.splitlines()] == ["worker started", "worker stopped"]


def test_init_creates_the_queue_of_a_configured_role(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"roles": {"Packer": {"description": "Packs."}}}')
    assert (
        "no role Packer" in farro.run("enqueue", "-", "--role", "Packer", stdin=json.dumps(steps(["true"])), code=2).err
    )
    assert "agents/Packer/incoming" in farro.run("init", "--json", code=0).json["made"]
    assert "Packs." in (farro.path / "agents/Packer/AGENTS-ROLE.md").read_text()
    farro.enqueue(steps(["true"]), "--role", "Packer", "--id", "box")
    farro.run("worker", "--role", "Packer", "--drain", code=0)
    assert farro.job("box")["place"] == "agents/Packer/completed/succeeded"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--role", "Nobody"], "has no role Nobody; it has Architect"),
        (["--role", "../Runner"], "'../Runner' is not a role"),
        (["--name", "x y"], "'x y' is not a"),
        (["--name", ""], "'' is not a"),
        (["--tag", "a b"], "'a b' is not a tag"),
        (["--workers", "0"], "Invalid value for '--slots'"),
        (["--workers", "many"], "Invalid value for '--slots'"),
    ],
)
def test_worker_with_wrong_options_is_refused_before_it_starts(farro: Program, args: list[str], says: str) -> None:
    before = listing(farro.path)
    told = farro.call("worker", *args, code=2)
    assert says in told.err
    assert told.out == ""
    assert listing(farro.path) == before


def test_result_survives_a_missing_folder_until_init_restores_it(farro: Program) -> None:
    farro.enqueue(steps(["echo", "kept"]), "--id", "one")
    (farro.path / "agents/Runner/completed/succeeded").rmdir()
    worker = farro.start("worker", "--workers", "1")
    lines = iter(worker.process.stdout or ())
    trouble = next(line for line in lines if "slot_trouble" in line)
    assert "`farro init` makes it again" in trouble
    assert worker.end().code == 0
    assert "its agent is dead" in farro.run("ls", code=0).out
    assert "succeeded is missing" in farro.run("watchdog", "--once", code=1).err
    farro.run("init", code=0)
    farro.run("watchdog", "--once", code=0)
    job = farro.job("one")
    assert (job["status"], job["attempt"]) == ("succeeded", 1)


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_steps_see_only_the_variables_that_the_config_allows(farro: Program, runner: str) -> None:
    config = farro.path / "agents-config.json"
    settings = {**json.loads(config.read_text()), "runners": {"kind": runner, "environment": ["LC_*"]}}
    config.write_text(json.dumps(settings))
    job_id = farro.enqueue(steps(["env"]))
    farro.run("worker", "--drain", env={"SECRET_TOKEN": "no"}, code=0)
    names = {line.split("=", 1)[0] for line in farro.call("logs", job_id, code=0).out.splitlines()}
    assert {"PATH", "LC_ALL", "FARRO_JOB"} <= names
    assert not names & {"SECRET_TOKEN", "HOME"}
