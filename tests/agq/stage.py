"""A RESP server in a thread of the test, over its own file store, and standard clients."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from farro.agq import memo_jobs
from farro.agq.server import AgqServer, ServerOptions
from farro.app import App
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.queue.submit import SubmitPolicy

PATIENCE_S = 30.0


class Front:
    """One server. Everything that a test opens through it is closed with it."""

    def __init__(self, root: Path, *, config_of: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "agents-config.json").write_text(json.dumps({"durability": "process", **(config_of or {})}))
        self.settings: Settings = reader.load(str(root))
        roots.init(str(root), self.settings)
        self.log: list[tuple[str, str, Mapping[str, Any]]] = []
        self.store = App().open_store(str(root), self.settings)
        self.server = AgqServer(
            store=self.store,
            library=App().library(str(root), self.settings),
            options=ServerOptions(port=0, version="test", **{"beat_s": 0.2, "remote_store": False, **options}),
            log=lambda level, message, fields: self.log.append((level, message, fields)),
            mint=IdMint(SystemClock().now, random.SystemRandom().getrandbits).mint,
            policy=SubmitPolicy.of(str(root), self.settings, user="tester", spell=memo_jobs.spell),
        )
        self._open: list[Any] = []
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    async def _serve(self) -> None:
        await self.server.start()
        self._started.set()
        await self.server.ended()

    @property
    def port(self) -> int:
        return self.server.port

    def client(self, *, protocol: int = 2, **options: Any) -> redis.Redis:
        """Open redis-py with one connection, so that it is one worker."""
        made = connected(self.port, protocol=protocol, **options)
        self._open.append(made)
        return made

    def raw(self) -> Raw:
        made = Raw(self.port)
        self._open.append(made)
        return made

    def status(self, job_id: str) -> str | None:
        view = self.store.find(job_id)
        return None if view is None else str(view.status)

    def close(self) -> None:
        for each in self._open:
            each.close()
        self.server.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.store.close()


def connected(port: int, **options: Any) -> redis.Redis:
    """Connect without hidden retries: errors must be visible."""
    once = {"retry": Retry(NoBackoff(), 0), "socket_timeout": None}
    return redis.Redis(port=port, decode_responses=True, single_connection_client=True, **{**once, **options})


class Raw:
    """A socket, for input that no client would send."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        received = b""
        while not received.endswith(b"\r\n"):
            piece = self.socket.recv(1)
            if not piece:
                break
            received += piece
        return received

    def read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                break
            received += piece
        return received

    def rest_until(self, end: bytes) -> bytes:
        received = b""
        while not received.endswith(end):
            piece = self.socket.recv(1)
            if not piece:
                break
            received += piece
        return received

    def rest(self) -> bytes:
        """Return everything until the server closes."""
        received = b""
        try:
            while piece := self.socket.recv(65536):
                received += piece
        except ConnectionResetError:
            pass
        return received

    def close(self) -> None:
        self.socket.close()


def command(*words: str | bytes) -> bytes:
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def job(job_id: str, *commands: str, **more: Any) -> str:
    """Return the memo's job: each command reads the stdout of the one before it."""
    steps: list[dict[str, Any]] = [
        {
            "step_number": at,
            "tool": "unix",
            "command": each,
            "args": [],
            **({"input_from_step": at - 1} if at > 1 else {}),
        }
        for at, each in enumerate(commands or ("true",), start=1)
    ]
    return json.dumps({"id": job_id, "plan_id": f"plan-of-{job_id}", "steps": steps, **more})


def result(job_id: str, *, success: bool = True, stdout: str = "out\n", **more: Any) -> str:
    step = {
        "step_number": 1,
        "stdout": stdout,
        "stderr": "" if success else "no\n",
        "exit_code": 0 if success else 3,
        "success": success,
    }
    posted = {"job_id": job_id, "plan_id": f"plan-of-{job_id}", "success": success, "step_results": [step], **more}
    return json.dumps(posted)
