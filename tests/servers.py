"""Real servers for tests, each on a free loopback port and in its own folder; they end with their test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

PATIENCE_S = 30.0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(kw_only=True)
class RedisServer:
    """A redis-server (or valkey-server) that can be killed and started again with the data on its disk."""

    folder: Path
    port: int = field(default_factory=free_port)
    durable: bool = False  # appendonly with appendfsync always: acknowledged changes survive a kill
    options: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # such as ip netns exec NAME
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def start(self) -> RedisServer:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            pytest.skip("there is no redis-server; scripts/packages.sh installs it")
        self.folder.mkdir(parents=True, exist_ok=True)
        log = (self.folder / "log").open("ab")
        command = [*self.before, program, "--port", str(self.port), "--bind", self.host, "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes" if self.durable else "no", "--appendfsync", "always"]
        self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        done = subprocess.run(
            [*self.before, "redis-cli", "-h", self.host, "-p", str(self.port), "PING"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() in ("PONG", "NOAUTH Authentication required.")

    def kill(self) -> None:
        """Kill it like a power cut: nothing more is written."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill


@dataclass(kw_only=True)
class RabbitServer:
    """A rabbitmq-server with its own node name, ports, home and epmd, which end with it."""

    PROGRAMS: ClassVar[str] = "/usr/lib/rabbitmq/bin"  # not Debian's wrappers, which insist on their own user

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._epmd_port, self._dist_port = free_port(), free_port()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _env(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            **os.environ,
            "HOME": folder,  # for the cookie
            "RABBITMQ_NODENAME": f"farro{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # no scheduler that spins on every core
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> RabbitServer:
        program = f"{self.PROGRAMS}/rabbitmq-server"
        if shutil.which(program) is None:
            pytest.skip("there is no rabbitmq-server; scripts/packages.sh installs it")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text("loopback_users = none\ndisk_free_limit.absolute = 50MB\n")
        with (self.folder / "out").open("ab") as log:
            self.process = subprocess.Popen(
                [program], env=self._env(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "out").read_text()
            assert time.monotonic() < deadline, "rabbitmq-server does not answer"
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        """Return whether it speaks AMQP: it replies to a header of another version."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(b"AMQP\x00\x00\x00\x00")
                return connection.recv(4) == b"AMQP"
        except OSError:
            return False

    def control(self, *command: str) -> str:
        """Return the output of rabbitmqctl. It starts its own Erlang, so use it rarely."""
        program = f"{self.PROGRAMS}/rabbitmqctl"
        done = subprocess.run([program, *command], env=self._env(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self) -> None:
        """Kill it like a power cut, with its whole process group and its epmd."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        subprocess.run(["epmd", "-port", str(self._epmd_port), "-kill"], capture_output=True, check=False)
        self._end_epmd()

    def _end_epmd(self) -> None:
        for process in psutil.process_iter(["name", "environ"]):
            environ = process.info["environ"] or {}
            if process.info["name"] == "epmd" and environ.get("ERL_EPMD_PORT") == str(self._epmd_port):
                process.kill()

    stop = kill
