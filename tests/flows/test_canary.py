"""Secrets are stored nowhere: after failures, retries, a fallback and a success, no file contains a key.

Two keys are used, one sent over HTTP and one passed to a program. Both receivers print their key in many encodings.
tests/sandbox/test_redaction.py covers redaction itself.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_providers as fake
from fake_providers import FakeProvider
from farro.app import App
from farro.config.settings import Settings
from farro.store.port import Submission
from flows.program import Done, Program
from support import eventually

KEY = "sk-canary-over-the-wire-Zm9v+bar/baz=="
TOKEN = "canary-of-a-program-7f3a9c/+e1d5b2"
PROMPT = {
    "role": "SeniorEngineer",
    "rubric": "Make the greeting polite.",
    "allowed_paths": ["src/"],
    "success": "The greeting says please.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
}
REVIEW = json.dumps({"verdict": "approve", "findings": [{"message": f"I was asked with {KEY}."}]})

# First it fails and prints its key; then it prints the key while it works, writes it to files, and answers with it.
PROGRAM = """
import base64, json, os, sys, time, urllib.parse
prompt = sys.stdin.read()
key, root = os.environ["AGENT_TOKEN"], os.environ["FARRO_ROOT"]
assert "OPENAI_API_KEY" not in os.environ
if not os.path.exists(root + "/src/failed"):
    open(root + "/src/failed", "w").close()
    print("partial", key, flush=True)
    sys.stderr.write(json.dumps({"token": key}) + urllib.parse.quote(key, safe="") + "\\n")
    sys.stderr.write("Authorization: Basic " + base64.b64encode(("me:" + key).encode()).decode() + "\\n")
    raise RuntimeError("refused: " + key)
open(root + "/src/started", "w").close()
while not os.path.exists(root + "/src/go"):
    time.sleep(0.02)
for piece in ('{"summary": "I used ' + key[:9], key[9:] + ' for it."}'):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.2)
"""


def forms(value: str) -> list[bytes]:
    whole = base64.b64encode(value.encode())
    told = [value, json.dumps(value)[1:-1], urllib.parse.quote(value, safe=""), urllib.parse.quote(value)]
    return [*(one.encode() for one in told), whole, whole.rstrip(b"="), base64.b64encode(b"me:" + value.encode())]


def told(data: bytes) -> list[bytes]:
    return [form for value in (KEY, TOKEN) for form in forms(value) if form in data]


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    """Return errors with the key, two temporary and one permanent; later answer."""
    body = json.dumps({"error": {"message": f"the key {KEY} is not good enough"}})
    replies = (fake.answers(500, body), fake.answers(429, body), fake.answers(401, body), fake.says(REVIEW))
    with fake.serving("openai", *replies) as one:
        yield one


@pytest.fixture
def root(farro: Program, server: FakeProvider) -> Program:
    script = farro.path / "agent.py"
    script.write_text(PROGRAM)
    (farro.path / "src").mkdir()
    path = farro.path / "agents-config.json"
    config: dict[str, Any] = {
        **json.loads(path.read_text()),
        "retry": {"base_s": 0.001, "max_delay_s": 0.01},
        "providers": {
            "openai": {"api_key": "${OPENAI_API_KEY}", "base_url": server.base_url, "model": "gpt-5"},
            "agent": {
                "kind": "cli",
                "command": [sys.executable, str(script)],
                "environment": ["AGENT_TOKEN"],
            },
        },
        "roles": {
            "SeniorEngineer": {"provider": "openai", "fallbacks": [{"provider": "agent"}]},
            "CodeReviewer": {"provider": "openai"},
        },
    }
    path.write_text(json.dumps(config))
    farro.env |= {"OPENAI_API_KEY": KEY, "AGENT_TOKEN": TOKEN}
    return farro


def processes(what: str) -> Iterator[tuple[int, bytes]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), Path("/proc", name, what).read_bytes()
            except OSError:
                continue


def holders(value: str) -> dict[int, bytes]:
    """Return the processes with that value in their environment."""
    return {pid: data for pid, data in processes("environ") if value.encode() in data}


def found_in(root: Path) -> list[tuple[str, list[bytes]]]:
    """Return every file below the root with a secret in its name or content."""
    found = []
    for path in root.rglob("*"):
        data = os.fsencode(path) + (path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
        if forms_told := told(data):
            found.append((path.relative_to(root).as_posix(), forms_told))
    return found


def test_secrets_appear_in_no_file_or_output(root: Program, server: FakeProvider) -> None:
    worker = root.start("worker", "--role", "SeniorEngineer").started()
    store = App().open_store(str(root.path), Settings(), brief=True)
    store.enqueue(Submission(role="SeniorEngineer", prompt=PROMPT, job_id="polite"))
    store.close()
    said: list[Done] = []
    eventually((root.path / "src/started").exists, "the program is not started a second time")
    # While it works, only the worker has the HTTP key; the program has the other one. Neither is an argument.
    assert [pid for pid, line in processes("cmdline") if told(line)] == []
    assert set(holders(KEY)) == {worker.pid}
    for pid, environ in holders(TOKEN).items():
        assert pid == worker.pid or b"FARRO_JOB=polite" in environ.split(b"\0"), pid
    (root.path / "src/go").touch()
    eventually(lambda: root.job("polite")["role"] == "CodeReviewer", "the answer does not arrive")
    said.append(worker.end())
    left = root.run("worker", "--role", "CodeReviewer", "--drain", code=0)
    assert "account openai is refused: what is queued stays (farro provider resume openai)" in left.out
    said += [left, root.run("provider", "resume", "openai", code=0)]
    said.append(root.run("worker", "--role", "CodeReviewer", "--drain", code=0))
    assert root.status("polite") == "succeeded"
    assert len(server.asked) == 4
    for command in (("show", "polite"), ("logs", "polite"), ("history", "polite"), ("costs", "polite"), ("ls",)):
        said.append(root.run(*command, code=0))
        said.append(root.run(*command, "--json", code=0))
    assert found_in(root.path) == []
    for done in said:
        assert told((done.out + done.err).encode()) == [], done
    # The output itself was kept: redaction marks stand in place of the keys.
    marks = b"".join(path.read_bytes() for path in root.folder("polite").rglob("*") if path.is_file())
    assert b"[redacted:AGENT_TOKEN]" in marks
    assert b"[redacted:OPENAI_API_KEY]" in marks
