"""Check that a confined process reaches the services of the worker that it was given, as long as it runs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farro.host.processes import NotStarted, Process
from farro.sandbox import namespace_listeners, supervised_connects, syscalls
from farro.sandbox.confinement import LocalService
from farro.sandbox.levels import Sandbox
from sandbox.greeting import greet_callers
from sandbox.test_sandbox import Box

pytestmark = pytest.mark.linux


class Greeter:
    """A service that listens here, and counts where else it was asked to."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.listeners: list[socket.socket] = []
        greet_callers(self.server)

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        self.listeners.append(listener)
        greet_callers(listener)

        def close() -> None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            self.listeners.remove(listener)

        return close


@pytest.fixture
def greeter() -> Iterator[Greeter]:
    made = Greeter()
    yield made
    with contextlib.suppress(OSError):
        made.server.shutdown(socket.SHUT_RDWR)
    made.server.close()


@pytest.fixture
def box(tmp_path: Path, sandbox: Sandbox, greeter: Greeter) -> Box:
    made = Box(tmp_path, sandbox)
    made.confinement = replace(made.confinement, services=(LocalService(greeter.port, greeter.serve),))
    return made


def talk(port: int, host: str = "127.0.0.1", more: str = "") -> tuple[str, ...]:
    script = f"import socket\ntalk = socket.create_connection(({host!r}, {port}), 10)\nprint(talk.recv(10)){more}"
    return sys.executable, "-c", script


def test_a_service_is_reached_and_nothing_else(box: Box, greeter: Greeter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert box.run(*talk(greeter.port)).code == 0
        assert box.out == "b'hello'\n"
        assert box.run(*talk(other.getsockname()[1])).code != 0
        assert box.run(*talk(greeter.port, "127.0.0.2")).code != 0
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_several_threads_reach_several_services(box: Box, greeter: Greeter) -> None:
    another = Greeter()
    services = (LocalService(greeter.port, greeter.serve), LocalService(another.port, another.serve))
    box.confinement = replace(box.confinement, services=services)
    script = f"""
import socket, threading
def talk(port):
    for _ in range(20):
        with socket.create_connection(("localhost", port), 10) as one:
            assert one.recv(10) == b"hello"
    print("heard")
threads = [threading.Thread(target=talk, args=(port,)) for port in [{greeter.port}, {another.port}] * 3]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    assert box.run(sys.executable, "-c", script).code == 0
    assert box.out.split() == ["heard"] * 6
    another.server.shutdown(socket.SHUT_RDWR)
    another.server.close()


def test_a_socket_that_does_not_wait_is_connected_without_waiting(box: Box, greeter: Greeter) -> None:
    script = f"""
import select, socket
talk = socket.socket()
talk.setblocking(False)
assert talk.connect_ex(("127.0.0.1", {greeter.port})) in (0, 115)
select.select([talk], [], [], 10)
print(talk.recv(10))
"""
    assert box.run(sys.executable, "-c", script).code == 0
    assert box.out == "b'hello'\n"


def test_a_service_is_closed_with_the_process_and_leaves_nothing_open(box: Box, greeter: Greeter) -> None:
    box.run(*talk(greeter.port))
    began = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert box.run(*talk(greeter.port)).code == 0
    for thread in threading.enumerate():
        if thread.name == "connects":
            thread.join(60)  # it ends with the last process
    assert greeter.listeners == []
    assert len(os.listdir("/proc/self/fd")) <= began  # a thread of the first run may have ended since


def test_a_process_that_is_killed_leaves_no_listener(box: Box, greeter: Greeter) -> None:
    process = box.start(*talk(greeter.port, more="\nimport time; time.sleep(1000)"))
    assert isinstance(process, Process)
    assert len(greeter.listeners) == (box.sandbox.level == "A")
    process.end(None, grace_s=0)
    assert greeter.listeners == []


def test_a_process_whose_services_cannot_listen_is_not_started(
    tmp_path: Path, level_a: Sandbox, greeter: Greeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path, level_a)
    box.confinement = replace(box.confinement, services=(LocalService(greeter.port, greeter.serve),) * 2)
    came = box.start("touch", "in/file")
    assert isinstance(came, NotStarted)
    assert "Address already in use" in came.message
    assert greeter.listeners == []
    monkeypatch.setattr(namespace_listeners, "_answer", lambda *_: threading.Event().wait())  # a child that hangs
    monkeypatch.setattr(namespace_listeners, "_ANSWER_S", 0.1)
    came = box.start("touch", "in/file")
    assert isinstance(came, NotStarted)
    assert "no listener in the sandbox's network within 0.1 s" in came.message
    assert not (box.inside / "file").exists()


def test_a_machine_that_cannot_supervise_refuses_services(
    tmp_path: Path, level_b: Sandbox, greeter: Greeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path, level_b)
    box.confinement = replace(box.confinement, services=(LocalService(greeter.port, greeter.serve),))
    monkeypatch.setattr(syscalls, "supervises", lambda: False)
    came = box.start("touch", "in/file")
    assert isinstance(came, NotStarted)
    assert "cannot let a process reach single hosts" in came.message
    assert not (box.inside / "file").exists()


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("02001f907f00000100000000", ("127.0.0.1", 8080)),
        ("0a001f900000000000000000000000000000ffff7f00000100000000", ("127.0.0.1", 8080)),
        ("0a001f900000000000000000000000000000000000000000000000010000", None),
        ("02001f907f00", None),
        ("01002f746d702f736f636b6574", None),
        ("", None),
        ("02", None),
    ],
)
def test_an_address_is_read_as_the_kernel_reads_it(raw: str, address: tuple[str, int] | None) -> None:
    assert supervised_connects._address(bytes.fromhex(raw)) == address
