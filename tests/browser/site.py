"""Roots and servers for the browser tests: a root with jobs of every kind, and `farro web` on a free port."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import farro
from farro.web import access_keys
from servers import free_port
from support import eventually

PATIENCE_S = 90.0
TASK = {
    "id": "greet",
    "title": "Greet people by name",
    "description": "Every greeting says `please`.",
    "allowed_paths": ["src/"],
    "success": "It is polite.",
    "workflow": [
        {"role": "SeniorEngineer", "rubric": "Make it polite."},
        {"role": "human", "rubric": "Is it polite enough?"},
        {"role": "DocWriter", "rubric": "Tell of it."},
    ],
}
PROMPT = {
    "role": "SeniorEngineer",
    "rubric": "Make the greeting polite.",
    "allowed_paths": ["src/"],
    "success": "It says please.",
    "routing": {"mode": "manager"},
    "inputs": {"task_id": "greet"},
}
SUMMARY = "It says **please** now.\n\n- one line changed\n- <b>no</b> tests broken"
PATCH = (
    "diff --git a/src/greet.py b/src/greet.py\n--- a/src/greet.py\n+++ b/src/greet.py\n"
    "@@ -1 +1 @@\n-print('hi')\n+print('please')\n"
)
ANSWERS: list[dict[str, Any]] = [
    {"role": "SeniorEngineer", "answer": {"summary": SUMMARY, "patch": PATCH}, "cost_usd": 0.02},
    {"role": "DocWriter", "answer": {"summary": "It is written down."}, "cost_usd": 0.01},
]
NIGHTLY = {
    "name": "nightly build",
    "parallel": 2,
    "steps": [
        {"id": "fetch", "command": "echo", "args": ["fetched"]},
        {"id": "lint", "command": "echo", "args": ["clean"], "needs": ["fetch"]},
        {"id": "unit", "command": "sh", "args": ["-c", "echo 3 passed; echo 1 failed >&2; exit 1"], "needs": ["fetch"]},
        {"id": "package", "command": "echo", "args": ["packed"], "needs": ["lint", "unit"]},
    ],
}
# Markup, script, escape sequences, a right-to-left override, a NUL: the page must show all of them as plain text.
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\x1b[31mred\x1b[0m \u202egpj.exe\u2066'


def program(root: Path, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    command = [sys.executable, "-m", "farro", *args]
    done = subprocess.run(
        command, cwd=root, env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S
    )
    assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
    return done


def init(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    program(root, "init")
    config = json.loads((root / "agents-config.json").read_text())
    config["durability"] = "process"
    config["retry"] = {"max_attempts": 1}
    config["providers"] = {"script": {"kind": "scripted", "file": "answers.json"}}
    (root / "agents-config.json").write_text(json.dumps(config))
    (root / "answers.json").write_text(json.dumps({"answers": ANSWERS}))
    (root / "src").mkdir(exist_ok=True)
    return root


def furnish(root: Path) -> Path:
    """Add succeeded, failed, queued, delayed, tagged and hostile jobs, and a task that waits for a person."""
    init(root)
    (root / "tasks").mkdir(exist_ok=True)
    (root / "tasks/greet.json").write_text(json.dumps(TASK))
    (root / "prompt.json").write_text(json.dumps(PROMPT))
    with farro.open(root) as queue:
        queue.enqueue(NIGHTLY, id="nightly-1")
        queue.enqueue(["echo", HOSTILE.replace("\0", "")], id="hostile-1")
        queue.enqueue({"name": HOSTILE, "steps": [{"id": "no", "command": "false"}]}, id="hostile-2")
        for number in range(12):
            queue.enqueue(["echo", f"parcel {number}"], id=f"parcel-{number:02d}")
    for name in ("ask-1", "ask-2", "ask-3"):
        program(root, "enqueue", "--prompt-json", "prompt.json", "--id", name)
    program(root, "worker", "--drain")
    program(root, "manager", "--once")
    program(root, "worker", "--role", "SeniorEngineer", "--drain")
    program(root, "manager", "--once")
    with farro.open(root) as queue:
        for number in range(5):
            queue.enqueue(["echo", f"waiting {number}"], id=f"queued-{number}")
        queue.enqueue(["echo", "later"], id="later-1", delay="2h")
        queue.enqueue(["echo", "gpu"], id="tagged-1", tags=["gpu"])
    return root


@dataclass(kw_only=True)
class Site:
    """Run `farro web` for one root; it can be killed and restarted on its port."""

    root: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Site:
        env = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
        log = (self.root / "web.log").open("ab")
        command = [sys.executable, "-m", "farro", "web", "--bind", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            command, cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True
        )
        log.close()
        try:
            eventually(self._answers, "farro web does not answer")
        except BaseException:
            self.stop()  # no other code has a reference to it
            raise
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "web.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def link(self) -> str:
        """Create a sign-in link that works once, as `farro web --link` does."""
        return access_keys.link(self.url, access_keys.new_code(str(self.root), secrets.token_bytes))

    def ask(self, path: str) -> Any:
        token = (self.root / "jobs/.web/token").read_text().strip()
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
