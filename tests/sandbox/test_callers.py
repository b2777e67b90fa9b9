"""Check who may use a server without a key: its own user, and no process of a sandbox."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farro.host.processes import Process
from farro.sandbox import callers, leftovers
from farro.sandbox.levels import Sandbox
from sandbox.hostile_stage import NOBODY, python
from sandbox.test_sandbox import Box
from support import need

pytestmark = pytest.mark.linux

CLIENT = "import socket, sys; talk = socket.create_connection(('{host}', {port}), 60); talk.recv(1)"


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((request.param, 0))
        except OSError as error:
            need(False, f"{request.param}: {error}")
        listener.listen()
        listener.settimeout(60)
        yield listener


def client(server: socket.socket) -> str:
    host, port = server.getsockname()[:2]
    return CLIENT.format(host=host, port=port)


def judged(server: socket.socket) -> str | None:
    """Judge the next caller, and send it away."""
    accepted, peer = server.accept()
    with accepted:
        return verdict(accepted, peer)


def verdict(accepted: socket.socket, peer: tuple[str, int]) -> str | None:
    (why,) = callers.refusals([(peer[:2], accepted.getsockname()[:2])])
    return why


def test_the_servers_own_user_is_served(server: socket.socket) -> None:
    with subprocess.Popen([sys.executable, "-c", client(server)]):
        assert judged(server) is None


def test_a_caller_who_speaks_ipv4_by_an_ipv6_socket_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; talk = socket.socket(10); talk.connect(('::ffff:127.0.0.1', {port})); talk.recv(1)"
        with subprocess.Popen([sys.executable, "-c", script]):
            assert judged(server) is None


def test_another_user_is_refused(server: socket.socket) -> None:
    need(os.geteuid() == 0, "only root starts processes of another user")
    with subprocess.Popen([python(), "-c", client(server)], user=NOBODY, group=NOBODY, extra_groups=[]):
        assert judged(server) == "it comes from another user of this machine"


def test_a_sandboxed_caller_is_refused_and_its_neighbour_is_not(
    server: socket.socket, tmp_path: Path, sandbox: Sandbox
) -> None:
    box = Box(tmp_path, sandbox)
    box.confinement = replace(box.confinement, network=True)
    process = box.start(sys.executable, "-c", f"import os; os.fork(); {client(server)}")
    assert isinstance(process, Process), process
    try:
        accepted, peer = server.accept()
        with accepted, subprocess.Popen([sys.executable, "-c", client(server)]) as neighbour:
            why = verdict(accepted, peer)
            assert why is not None
            assert "sandbox" in why
            verdicts = {judged(server), judged(server)}  # of the fork, and of the neighbour
            assert verdicts == {None, why}
            neighbour.kill()
    finally:
        process.end(None, grace_s=0)


def test_a_caller_whom_nobody_outside_a_sandbox_is_seen_to_be_is_refused(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandboxed process may hide what it has open."""
    monkeypatch.setattr(callers, "_open_files", lambda _: iter(()))
    with subprocess.Popen([sys.executable, "-c", client(server)]) as caller:
        accepted, peer = server.accept()
        with accepted:
            monkeypatch.setattr(leftovers, "confined", lambda pid: pid == caller.pid)
            assert "sandbox" in (verdict(accepted, peer) or "")
            monkeypatch.setattr(leftovers, "confined", lambda pid: False)
            assert verdict(accepted, peer) is None


def test_a_caller_who_has_gone_is_refused(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname()[:2]):
        accepted, peer = server.accept()
    with accepted:
        assert verdict(accepted, peer) == "the connection is gone"
