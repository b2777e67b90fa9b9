"""Run a web server in a thread of the test, on a real port with its own store, and talk to it over HTTP only."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farro.app import App
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.doctor.report import Examination
from farro.jobs.outcomes import ErrorInfo, Failed, Report, Succeeded
from farro.queue.admission import Gate
from farro.store.port import Agent, Store, Submission
from farro.web import access_keys, server
from one_job import claim_one, commit_one
from support import eventually

PATIENCE_S = 60.0
TOKEN = "a-token-of-the-tests"
REPORT = Report(result={"success": True}, markdown="done\n")


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class WebStage:
    """A running server. `change_store` may wrap its store."""

    def __init__(
        self,
        root: Path,
        *,
        config_of: Mapping[str, Any] | None = None,
        change_store: Callable[[Store], Store] = lambda store: store,
        wait: bool = True,
        beyond: bool = False,
    ) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "jobs").exists():
            (root / "agents-config.json").write_text(json.dumps({"durability": "process", **(config_of or {})}))
            roots.init(str(root), reader.load(str(root)))
        self.settings: Settings = reader.load(str(root))
        self.log: list[tuple[str, str, Mapping[str, Any]]] = []
        self.store = App().open_store(str(root), self.settings)
        self.web = App().web(
            change_store(self.store),
            self.settings,
            log=lambda level, message, fields: self.log.append((level, message, fields)),
            token=TOKEN,
            beyond=beyond,
            person="web-tester",
            gate=lambda force: Gate.of(self.settings, user="tester", force=force),
            examine=lambda: Examination(results=(), strict=False),
        )
        self._server = server.WebServer(self.web, lambda *told: None)
        self._listening = server.bind("127.0.0.1", 0)
        self.port: int = self._listening.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.run(self._listening)))
        self._thread.start()
        eventually(lambda: self._server.started)
        if wait:
            eventually(lambda: self.get("/api").json["ready"])

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        told = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            told["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, {**told, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.ask("POST", path, {} if body is None else body, **more)

    def listed(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.get(f"/api/jobs{query}")
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.json["jobs"]
        return found

    def link(self) -> str:
        code = access_keys.new_code(str(self.root), lambda count: b"x" * (count - 1) + bytes([len(self.log)]))
        return f"/login?code={code}"

    def events(self, path: str = "/api/events", last: str | None = None) -> Events:
        return Events(self.port, path, last)

    def close(self) -> None:
        self._server.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.store.close()


class Events:
    """A client that reads Server-Sent Events."""

    def __init__(self, port: int, path: str, last: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if last is not None:
            headers["Last-Event-ID"] = last
        self._connection.request("GET", path, headers=headers)
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.last = last or ""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        kind, data = "message", ""
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            name, _, value = text.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data += value
            elif name == "id":
                self.last = value
            elif not text:
                if data:
                    yield kind, json.loads(data)
                kind, data = "message", ""

    def until(self, wanted: Callable[[str, Any], bool]) -> tuple[str, Any]:
        for kind, data in self:
            if wanted(kind, data):
                return kind, data
        raise AssertionError("the stream ended")

    def changes(self) -> Iterator[tuple[str, str]]:
        """Yield the job and status of each change."""
        for kind, data in self:
            if kind == "changes":
                for one in data["jobs"]:
                    yield one["job_id"], one["status"]

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def submission(command: str = "true", *, role: str = "Runner", **more: Any) -> Submission:
    prompt = {"plan_id": "p", "steps": [{"step_number": 1, "command": command}], **more.pop("prompt", {})}
    return Submission(role=role, prompt=prompt, **more)


class ManualWorker:
    """A worker that claims and commits jobs without running them."""

    def __init__(self, store: Store, role: str = "Runner") -> None:
        self._store = store
        self.agent: Agent = store.join("hands", role=role)

    def one(self, *, fail: str | None = None) -> str | None:
        claim = claim_one(self._store, self.agent)
        if claim is None:
            return None
        if fail is None:
            commit_one(self._store, claim, Succeeded(report=REPORT))
        else:
            error = ErrorInfo(category="step_failed", message=fail)
            commit_one(self._store, claim, Failed(error=error, report=REPORT))
        return claim.job_id

    def leave(self) -> None:
        self._store.leave(self.agent)
