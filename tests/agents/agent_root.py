"""A root with scripted answers, and a slot that works its queues: real store, runner, ledger and sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farro.agents.manager import Manager
from farro.app import App
from farro.config.reader import load
from farro.config.settings import Settings
from farro.doctor.root import init
from farro.execution.stop import Stop
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.store.leadership import FileLeadership
from farro.store.ledger import CallRecord
from farro.store.port import Submission
from farro.worker.worker import Slot, Turn, WorkerSetup

PROMPT: dict[str, Any] = {
    "role": "SeniorEngineer",
    "rubric": "MakeRoot the greeting polite.",
    "allowed_paths": ["src/"],
    "success": "The greeting says please.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
}
CHANGE = {"summary": "It says please now."}
REVIEW = {"verdict": "approve", "findings": []}


class AgentRoot:
    """One root. `answers` are the entries of the scripted provider."""

    def __init__(self, path: Path, *, answers: list[Mapping[str, Any]] | None = None, **config: Any) -> None:
        self.root = str(path)
        self.path = path
        init(self.root, Settings())
        (path / "src").mkdir()
        (path / "src" / "greeting.txt").write_text("hand it over\n")
        self.answers(answers if answers is not None else [{"role": "SeniorEngineer", "answer": CHANGE}])
        self.configure(**config)
        self.clock = SystemClock()
        self.log: list[tuple[str, str, Mapping[str, Any]]] = []

    def answers(self, entries: list[Mapping[str, Any]]) -> None:
        (self.path / "answers.json").write_text(json.dumps({"answers": entries}))

    def configure(self, **changes: Any) -> None:
        config: dict[str, Any] = {
            "version": "1.0.0",
            "durability": "process",
            "retry": {"base_s": 0.001, "max_delay_s": 0.002},
            "security": {"max_job_bytes": 1 << 20, "payload_allowlist": [".md"]},
            "providers": {"script": {"kind": "scripted", "file": "answers.json"}},
        }
        for name, value in changes.items():
            config[name] = {**config[name], **value} if isinstance(config.get(name), dict) else value
        (self.path / "agents-config.json").write_text(json.dumps(config))

    @property
    def settings(self) -> Settings:
        return load(self.root)

    def store(self) -> Any:
        return App().open_store(self.root, self.settings, brief=True)

    def enqueue(
        self,
        job_id: str = "one",
        *,
        narrative: str | None = None,
        payload: Mapping[str, bytes] | None = None,
        **changes: Any,
    ) -> str:
        prompt = {**PROMPT, **changes}
        prompt = {name: value for name, value in prompt.items() if value is not None}
        store = self.store()
        try:
            role = prompt.get("role", "Runner")
            files = dict(payload or {})
            asked = Submission(role=role, prompt=prompt, job_id=job_id, narrative=narrative, payload=files)
            return str(store.enqueue(asked))
        finally:
            store.close()

    def work(
        self, role: str = "SeniorEngineer", *, turns: int = 1, stop: Stop | None = None, handover: bool | None = None
    ) -> list[Turn]:
        """Run some turns of one slot. With `handover` it checks for the manager first, and bypasses it if True."""
        settings = self.settings
        store = App().open_store(self.root, settings, brief=True)
        performer = App().performer(self.root, settings, App().runner(self.root, settings), self.clock)
        setup = WorkerSetup(
            store=store,
            role=role,
            name="test",
            performer=performer,
            clock=self.clock,
            log=self._noted,
            hand_off=None
            if handover is None
            else App().hand_off(self.root, settings, store, self.clock, self._noted, bypass=handover),
        )
        slot = Slot(setup, stop or Stop(self.clock))
        try:
            return [slot.run_once() for _ in range(turns)]
        finally:
            slot.leave()
            store.close()

    def until_over(self, job_id: str = "one", role: str = "SeniorEngineer") -> Lifecycle:
        """Work until the job has left the role's queue."""
        for _ in range(200):
            self.work(role)
            life = self.life(job_id)
            if life.terminal or life.role != role:
                return life
            self.clock.sleep(0.005)
        raise AssertionError(f"{job_id} is still {life.status}")

    def task(self, *hops: Mapping[str, Any], task_id: str = "greet", **more: Any) -> str:
        """Write a task to tasks/, with defaults for most fields."""
        data = {
            "id": task_id,
            "title": "A polite greeting",
            "workflow": [{"rubric": f"What {hop['role']} shall do.", **hop} for hop in hops],
            "allowed_paths": ["src/"],
            "success": "It is polite.",
            **more,
        }
        (self.path / "tasks").mkdir(exist_ok=True)
        (self.path / "tasks" / f"{task_id}.json").write_text(json.dumps(data))
        return task_id

    def manager(self, store: Any, **more: Any) -> Manager:
        return Manager(
            store=store,
            log=self._noted,
            snapshots=App().snapshots(self.root, self.settings),
            leadership=FileLeadership(root=self.root, clock=self.clock),
            **more,
        )

    def manage(self, **more: Any) -> list[Any]:
        """Run one turn of a manager."""
        store = self.store()
        boss = self.manager(store, **more)
        try:
            return boss.run_once()
        finally:
            boss.leave()
            store.close()

    def until_done(self, job_id: str = "one", *, turns: int = 60) -> Lifecycle:
        """Run the manager and all roles in turn until the job has ended or waits for a person."""
        for _ in range(turns):
            self.manage()
            life = self.life(job_id)
            if life.terminal or waits_for_person(life):
                return life
            if life.role != "Manager":
                self.work(life.role)
        raise AssertionError(f"{job_id} is still {life.status} in {life.role}: {[hop.to for hop in life.hops]}")

    def _noted(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.log.append((level, message, fields))

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "logs/audit.log").read_text().splitlines()]

    def life(self, job_id: str = "one") -> Lifecycle:
        store = self.store()
        try:
            view = store.find(job_id)
            assert view is not None
            return view.lifecycle  # type: ignore[no-any-return]
        finally:
            store.close()

    def folder(self, job_id: str = "one") -> Path:
        store = self.store()
        try:
            view = store.find(job_id)
            assert view is not None
            return self.path / view.place / job_id
        finally:
            store.close()

    def result(self, job_id: str = "one", attempt: int = 1) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder(job_id) / f"attempts/{attempt:04d}/result.json").read_text())
        return data

    def calls(self, job_id: str = "one") -> list[CallRecord]:
        return list(App().ledger(self.root, self.settings, self.clock).of_job(job_id))


MakeRoot = Callable[..., AgentRoot]
