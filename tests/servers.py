"""Real servers for tests, each on a free loopback port and in a folder of its own, ended with whoever started them.

What is played against them lives in the tests.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PATIENCE_S = 30.0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(kw_only=True)
class RedisServer:
    """A redis-server (or valkey-server) that can be killed and started again with what it had on its disk."""

    folder: Path
    port: int = field(default_factory=free_port)
    durable: bool = False  # appendonly with appendfsync always: what it acknowledged survives a kill
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
        """As a power switch: nothing is written any more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill
