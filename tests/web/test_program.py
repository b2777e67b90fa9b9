"""`farro web` as a process: its link, its shutdown, and the addresses that it refuses."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servers import PATIENCE_S, free_port

FARRO = (sys.executable, "-P", "-m", "farro")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FARRO, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def root(shm: Path) -> Path:
    subprocess.run([*FARRO, "init", "--root", str(shm)], check=True, capture_output=True)
    return shm


def test_web_serves_until_a_signal_and_never_logs_its_link(root: Path) -> None:
    port = free_port()
    command = [*FARRO, "web", "--bind", f"127.0.0.1:{port}", "--root", str(root), "--json"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    try:
        link = re.search(r"http://127\.0\.0\.1:\d+(/login\?code=[0-9a-f]+)", program.stderr.readline())
        assert link is not None
        deadline = time.monotonic() + 3 * PATIENCE_S
        while True:
            assert time.monotonic() < deadline
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            try:
                connection.request("GET", link[1])
                answer = connection.getresponse()
                assert answer.status == 303
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
            finally:
                connection.close()
        assert os.stat(root / "jobs/.web").st_mode & 0o077 == 0
        told = subprocess.run(
            [*FARRO, "web", "--link", "--bind", f"127.0.0.1:{port}", "--root", str(root), "--json"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(told.stdout)["link"].startswith(f"http://127.0.0.1:{port}/login?code=")
        plain = run("web", "--link", "--root", str(root)).stdout
        assert plain.startswith(f"http://127.0.0.1:{port}/login?code=")  # it knows the address without --bind
        token = (root / "jobs/.web/token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/api/jobs", b'{"command": ["true"]}', headers)
        assert connection.getresponse().status == 201
        connection.close()
        program.send_signal(signal.SIGTERM)
        output, _ = program.communicate(timeout=2 * PATIENCE_S)
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == 0
    assert run("web", "--link", "--root", str(root)).returncode == 1
    lines = [json.loads(line)["message"] for line in output.splitlines()]
    assert lines == ["web started", "web stopped"]
    assert "code=" not in output
    (line,) = (root / "logs/audit.log").read_text().splitlines()
    assert json.loads(line)["actor"].startswith("web-")  # the actor is named


def test_no_link_without_a_running_server(root: Path) -> None:
    """Print no link before the first server, nor after a killed one: another root may use its port now."""
    for words in ((), ("--bind", "127.0.0.1:8420")):
        done = run("web", "--link", "--root", str(root), *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no web runs here" in done.stderr
        assert "farro up" in done.stderr
    assert not (root / "jobs/.web/codes").exists()

    command = [*FARRO, "web", "--bind", "127.0.0.1:0", "--root", str(root)]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    try:
        link = program.stderr.readline()
        told = run("web", "--link", "--root", str(root), "--json")
        assert json.loads(told.stdout)["link"].partition("?")[0] in link
    finally:
        program.kill()
        program.communicate()
    done = run("web", "--link", "--root", str(root))
    assert (done.returncode, done.stdout) == (1, "")
    assert list((root / "jobs/.web/servers").iterdir()) == []


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "192.0.2.1:80", "[::]:0"])
def test_listening_beyond_loopback_requires_a_token(root: Path, bind: str) -> None:
    done = subprocess.run(
        [*FARRO, "web", "--bind", bind, "--root", str(root)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "web.token" in done.stderr


def test_taken_port_is_reported_without_a_traceback(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*FARRO, "web", "--bind", bind, "--root", str(root)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["web", "agq"])
def test_option_port_hints_at_bind(command: str) -> None:
    done = subprocess.run([*FARRO, command, "--port", "8000"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--bind 127.0.0.1:8000" in done.stderr
