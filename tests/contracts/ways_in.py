"""The five ways in, for tests/contracts/test_ways_in.py: each submits the same input to one root.

An input is an `Asked`: a plan, prompt or command, and options by the names of `JobRequest`. Each way encodes it in its
own form, and reports what came of it as a `Told`.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import redis

import farro as api
from agq.stage import PATIENCE_S, connected
from farro.agq import memo_jobs
from farro.agq.server import AgqServer, ServerOptions
from farro.app import App
from farro.config import reader
from farro.doctor import root as roots
from farro.errors import FarroError
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.mcp import server as mcp_server
from farro.mcp.cli import make_context
from farro.queue.submit import SubmitPolicy
from farro.store.port import Store
from flows.program import Program
from http_stage import WebStage
from mcp import Client

CONFIG: dict[str, Any] = {
    "durability": "process",
    "capacity": {"roles": {"DocWriter": 1}},
    "providers": {"own": {"kind": "scripted", "file": "answers.json"}},
    "roles": {name: {"provider": "own"} for name in ("SeniorEngineer", "Architect", "CodeReviewer", "DocWriter")},
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One input. `options` are named as the fields of `JobRequest`; a duration is in seconds."""

    plan: Mapping[str, Any] | None = None
    plans: Sequence[Mapping[str, Any]] = ()
    command: Sequence[str] = ()
    prompt: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> set[str]:
        """What a way must be able to express."""
        forms = {"plan": self.plan, "plans": self.plans, "command": self.command, "prompt": self.prompt}
        return {name for name, value in forms.items() if value} | set(self.options)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of an input: the jobs, or the refusal in words, and how many jobs are new."""

    ids: tuple[str, ...] = ()
    refusal: str | None = None
    new: int = 0

    @property
    def existed(self) -> bool:
        return bool(self.ids) and not self.new


class Way(ABC):
    """One way in. `expresses` lists the forms and options that it has; `id` may be part of the document."""

    expresses: ClassVar[frozenset[str]]

    def __init__(self, house: House) -> None:
        self.house = house

    def submit(self, asked: Asked) -> Told:
        before = len(self.house.store.list())
        try:
            ids = tuple(self.send(asked))
        except Refusal as refusal:
            assert len(self.house.store.list()) == before, "a refused submission queued something"
            return Told(refusal=str(refusal))
        return Told(ids=ids, new=len(self.house.store.list()) - before)

    @abstractmethod
    def send(self, asked: Asked) -> Sequence[str]:
        """Submit, and return the ids. Raise Refusal with the message."""

    def close(self) -> None:  # noqa: B027 - most open something
        """Close what it opened."""


class Refusal(Exception):
    """A way in refused the input."""


_COMMON = {"id", "role", "tags", "priority", "after", "after_any"}


class CommandLine(Way):
    expresses = frozenset(
        {"plan", "plans", "command", "prompt", "delay", "at", "timeout", "cwd", "env", "context_md", "task", *_COMMON}
    )

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._program = Program(house.root)

    def send(self, asked: Asked) -> Sequence[str]:
        words: list[str] = []
        for name, value in asked.options.items():
            option = {"tags": "--tag"}.get(name, f"--{name.replace('_', '-')}")
            if name == "env":
                value = [f"{key}={text}" for key, text in value.items()]
            words += [f"{option}={item}" for item in (value if isinstance(value, list) else [value])]
        given = asked.prompt or asked.plan
        text = "\n".join(map(json.dumps, asked.plans)) if asked.plans else json.dumps(given)
        words += ["--", *asked.command] if asked.command else ["--many", "-"] if asked.plans else ["-"]
        done = self._program.call("enqueue", *words, stdin=text)
        if done.code:
            raise Refusal(done.err)
        return done.out.split()

    def close(self) -> None:
        self._program.clean_up()


class PythonApi(Way):
    expresses = frozenset({"plan", "plans", "command", "prompt", "delay", "at", "timeout", "cwd", "env", *_COMMON})

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._queue = api.open(str(house.root))

    def send(self, asked: Asked) -> Sequence[str]:
        options: dict[str, Any] = dict(asked.options)
        try:
            if asked.plans:
                return [job.id for job in self._queue.enqueue_many(asked.plans, **options)]
            return [self._queue.enqueue(asked.plan or asked.prompt or list(asked.command), **options).id]
        except FarroError as error:
            raise Refusal(str(error)) from error

    def close(self) -> None:
        self._queue.close()


class Http(Way):
    expresses = frozenset(
        {"plan", "plans", "command", "prompt", "delay", "at", "timeout", "cwd", "env", "narrative", "task", *_COMMON}
    )

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._stage = WebStage(house.root)

    def send(self, asked: Asked) -> Sequence[str]:
        body: dict[str, Any] = dict(asked.options)
        for name in ("delay", "timeout"):
            if name in body:
                body[name] = str(body[name])
        for name in ("plan", "plans", "command", "prompt"):
            if value := getattr(asked, name):
                body[name] = value
        answer = self._stage.post("/api/jobs", body)
        if answer.status != 201:
            raise Refusal(answer.json["error"]["message"])
        made: list[str] = answer.json["jobs"]
        return made

    def close(self) -> None:
        self._stage.close()


class Mcp(Way):
    expresses = frozenset({"plan", "command", "prompt", "delay", "timeout", "cwd", "env", "task", *_COMMON})

    def send(self, asked: Asked) -> Sequence[str]:
        arguments = {{"delay": "delay_s", "timeout": "timeout_s"}.get(k, k): v for k, v in asked.options.items()}
        if asked.command:
            tool, more = "enqueue_command", {"command": list(asked.command)}
        elif asked.prompt is not None:
            tool, more = "enqueue_agent_task", {k: v for k, v in asked.prompt.items() if k != "routing"}
        else:
            tool, more = "enqueue_plan", {"plan": dict(asked.plan or {})}

        async def call() -> Any:
            serving = mcp_server.make(self._context(), ("write",), "0")
            async with asyncio.timeout(PATIENCE_S), Client(serving) as client:
                return await client.call_tool(tool, {**arguments, **more})

        told = asyncio.run(call())
        if told.is_error:
            raise Refusal(told.content[0].text)
        return [told.structured_content["job_id"]]

    def _context(self) -> Any:
        context = make_context(App(), self.house.store, reader.load(str(self.house.root)))
        return replace(context, folder=str(self.house.root))


class Agq(Way):
    """A job is one document: options are part of it, and the role is the queue."""

    expresses = frozenset({"plan", "plans", "prompt", *_COMMON})

    def __init__(self, house: House) -> None:
        super().__init__(house)
        settings, root = reader.load(str(house.root)), str(house.root)
        self._server = AgqServer(
            store=house.store,
            library=App().library(root, settings),
            options=ServerOptions(port=0, version="test", remote_store=False),
            log=lambda level, message, fields: None,
            mint=IdMint(SystemClock().now, random.SystemRandom().getrandbits).mint,
            policy=SubmitPolicy.of(root, settings, user="tester", spell=memo_jobs.spell),
        )
        started = threading.Event()

        async def serve() -> None:
            await self._server.start()
            started.set()
            await self._server.ended()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        assert started.wait(PATIENCE_S)
        self._client = connected(self._server.port)

    def send(self, asked: Asked) -> Sequence[str]:
        options: dict[str, Any] = dict(asked.options)
        role = options.pop("role", asked.prompt["role"] if asked.prompt else "Runner")
        job_id = options.pop("id", None)
        jobs = [dict(plan) for plan in asked.plans] or [dict(asked.prompt or asked.plan or {})]
        for job in jobs:
            if job_id is not None:
                job["id"] = job_id
            if options:
                job["metadata"] = {**job.get("metadata", {}), **options}
        before = {view.job_id for view in self.house.store.list()}
        try:
            self._client.lpush("queue:ready" if role == "Runner" else f"queue:{role}", *map(json.dumps, jobs))
        except redis.ResponseError as error:
            raise Refusal(str(error)) from error
        there = {view.job_id for view in self.house.store.list()}
        return [job["id"] if "id" in job else (there - before).pop() for job in jobs]

    def close(self) -> None:
        self._client.close()
        self._server.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


WAYS: dict[str, type[Way]] = {"cli": CommandLine, "python": PythonApi, "http": Http, "mcp": Mcp, "agq": Agq}


class House:
    """One root with every way into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        program = Program(root)
        program.call("init", code=0)
        path = root / "agents-config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **CONFIG}))
        settings = reader.load(str(root))
        roots.init(str(root), settings)
        (root / "tasks").mkdir(exist_ok=True)
        self.store: Store = App().open_store(str(root), settings)
        self.ways = {name: way(self) for name, way in WAYS.items()}

    def close(self) -> None:
        for way in self.ways.values():
            way.close()
        self.store.close()


@contextmanager
def opened(root: Path) -> Iterator[House]:
    house = House(root)
    try:
        yield house
    finally:
        house.close()
