"""The bus of a root's swarms: a folder, or a broker whose password is only in the environment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from farro.config import reader
from farro.errors import InputError
from farro.swarm import service
from farro.swarm.processes import environment
from flows.program import Program
from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
from servers import free_port
from support import eventually


def root(folder: Path, **settings: object) -> str:
    (folder / "agents-config.json").write_text(json.dumps({"version": "1.0.0", **settings}))
    return str(folder)


def address(path: str) -> str:
    return service.bus_address(path, reader.load(path))


def test_the_bus_is_a_folder_of_the_root_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    assert address(root(tmp_path)) == f"files:{tmp_path}/bus"
    assert address(root(tmp_path, bus="files:other")) == f"files:{tmp_path}/other"
    assert address(root(tmp_path, bus="files:/elsewhere")) == "files:/elsewhere"
    assert address(root(tmp_path, bus="amqp://here:5672/")) == "amqp://here:5672/"


def test_the_password_of_a_broker_is_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root(tmp_path, bus="amqp://here:5672/x", amqp={"user": "a@b", "password": "${FARRO_BROKER}"})
    monkeypatch.delenv("FARRO_BROKER", raising=False)
    with pytest.raises(InputError, match=r"FARRO_BROKER is not set, and amqp\.password needs it"):
        address(path)
    monkeypatch.setenv("FARRO_BROKER", "p/w")
    assert address(path) == "amqp://a%40b:p%2Fw@here:5672/x"
    settings = reader.load(path)
    assert settings.secret_variables() == ("FARRO_BROKER",)
    assert "p/w" not in repr(settings)
    assert "FARRO_BROKER" not in environment()
    assert environment(settings.secret_variables())["FARRO_BROKER"] == "p/w"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"bus": "amqp://a:b@here/"}, "bus: must hold no user and no password"),
        ({"bus": "redis://here"}, 'bus: must be "files"'),
        ({"amqp": {"password": "hunter2"}}, "amqp.password: must be a variable of the environment"),
    ],
)
def test_a_wrong_bus_is_reported_without_its_password(
    tmp_path: Path, settings: dict[str, object], expected: str
) -> None:
    with pytest.raises(reader.ConfigError) as caught:
        reader.load(root(tmp_path, **settings))
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "a:b@" not in str(caught.value)


@pytest.mark.parametrize("command", [("swarm", "create", "demo"), ("up", "--detach", "--plan", "farro.json")])
def test_without_the_password_nothing_is_requested_or_started(farro: Program, command: tuple[str, ...]) -> None:  # noqa: F811
    """Else requests would be left there, and carried out long after by an orchestrator that has the password."""
    root(farro.path, bus="amqp://127.0.0.1:1/", amqp={"user": "a", "password": "${FARRO_BROKER}"})
    (farro.path / "farro.json").write_text(json.dumps({"id": "farro", "bees": [{"role": "a", "command": ["true"]}]}))
    expected = farro.run(*command, code=2)
    assert "the variable FARRO_BROKER is not set, and amqp.password needs it" in expected.err
    assert farro.living() == []
    assert not (farro.path / "swarms").exists()


def test_a_command_that_waits_for_the_broker_prints_why(farro: Program) -> None:  # noqa: F811
    port = free_port()
    root(farro.path, bus=f"amqp://127.0.0.1:{port}/")
    expected = farro.run("swarm", "create", "demo", "--timeout", "8s", code=1)
    assert "still waiting; the orchestrator says: " in expected.err
    assert f"127.0.0.1:{port}" in expected.err
    farro.run("down", code=0)
    assert farro.living() == []


def test_status_of_a_silent_swarm_shows_the_problem_of_its_orchestrator(farro: Program) -> None:  # noqa: F811
    farro.run("swarm", "create", "demo", code=0)
    pid = json.loads((farro.path / "swarms/components/orchestrator.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)  # it lives, but starts nothing
    try:
        record = json.loads((farro.path / "swarms/components/demo-marshal.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)
        with (farro.path / "swarms/orchestrator/orchestrator.log").open("a") as log:
            log.write(json.dumps({"level": "error", "message": "the broker is away"}) + "\n")

        def expected(*command: str) -> bool:
            return "farro: the orchestrator says: the broker is away\n" in farro.run(*command, code=0).err

        for command in (("swarm", "status", "demo"), ("swarm", "ls"), ("ps",)):
            eventually(lambda command=command: expected(*command), f"{command} does not tell of it")  # type: ignore[misc]
    finally:
        os.kill(pid, signal.SIGCONT)
    farro.run("swarm", "remove", "demo", code=0)
    farro.run("down", code=0)


def test_a_config_that_times_out_names_the_status_command(farro: Program) -> None:  # noqa: F811
    """The status of its swarm: a component has no status command."""
    (farro.path / "demo.json").write_text(
        json.dumps(
            {
                "id": "demo",
                "bees": [{"role": "a", "command": ["sleep", "1000"]}],
                "timeouts": {"provision": 1, "stop": 1},
            }
        )
    )
    farro.run("swarm", "apply", "demo.json", code=1)
    expected = farro.run("swarm", "config", "a", "demo-a", "x=1", "--timeout", "0.1s", code=1)
    assert "it goes on: farro swarm status demo\n" in expected.err
    farro.run("swarm", "remove", "demo", code=0)
    farro.run("down", code=0)
