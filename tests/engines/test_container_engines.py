"""The container engines that other suites use: they start, run containers, survive kills and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from docker_rig import IMAGE, ContainerEngine, start_dockerd, start_podman
from private_machine import cgroup_hierarchies, remove_stale_cgroups
from support import ROOT, eventually

PODMAN = pytest.param(start_podman, marks=pytest.mark.engines, id="podman")


@pytest.fixture(params=[pytest.param(start_dockerd, id="dockerd"), PODMAN])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ContainerEngine]:
    start: Callable[[Path], ContainerEngine] = request.param
    (tmp_path / "engine").mkdir()
    engine = start(tmp_path / "engine")
    yield engine
    engine.stop()


def leftovers(engine: ContainerEngine) -> list[str]:
    """Return the processes, mounts, groups and files of an engine that are still there."""
    folder = str(engine.folder)
    processes = [
        line for each in psutil.process_iter(["cmdline"]) if folder in (line := " ".join(each.info["cmdline"] or ()))
    ]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if folder in line]
    groups = [str(path) for root in cgroup_hierarchies() for path in root.glob(f"**/{engine.machine.name}")]
    return [*processes, *mounts, *groups, *([folder] if engine.folder.exists() else [])]


def test_a_container_goes_on_while_its_engine_is_killed_and_started_again(engine: ContainerEngine) -> None:
    assert engine.docker("run", "--rm", "--network", "none", IMAGE, "python3", "-c", "print(6 * 7)") == "42"
    container = engine.docker("run", "--detach", "--init", "--memory", "64m", IMAGE, "sleep", "1000")
    state = ("inspect", "--format", "{{.State.Running}} {{.State.Pid}}", container)
    before = engine.docker(*state)
    assert before.startswith("true ")
    engine.kill()
    engine.start()
    assert engine.docker(*state) == before

    interfaces = set(os.listdir("/sys/class/net"))
    assert not [name for name in interfaces if name.startswith(("docker", "podman", "veth"))]
    assert leftovers(engine) != []
    engine.stop()
    assert leftovers(engine) == []


def test_a_frozen_engine_accepts_connections_and_answers_later(dockerd: ContainerEngine) -> None:
    dockerd.freeze()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(0.5)
        client.connect(str(dockerd.socket))
        client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            client.recv(1)
        dockerd.thaw()
        client.settimeout(60)
        assert client.recv(100).startswith(b"HTTP/1.0 200 OK")


def test_a_client_reaches_the_ports_of_containers_through_the_network_of_the_engine(dockerd: ContainerEngine) -> None:
    container = dockerd.docker("run", "--detach", "--publish", "8080:80", IMAGE, "python3", "-m", "http.server", "80")
    fetch = (
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/etc/hostname', timeout=5).read().decode())"
    )

    def answer() -> str:
        command = [*dockerd.machine.network, sys.executable, "-c", fetch]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    assert eventually(answer) == container[:12]
    dockerd.docker("rm", "--force", container)


def test_an_engine_ends_with_the_tests_that_are_killed() -> None:
    start = "machine = PrivateMachine(packages=built('docker.sh')).start(); print(machine.first_process, flush=True)"
    script = f"from private_machine import PrivateMachine; from cached import built; {start}; input()"
    env = {**os.environ, "PYTHONPATH": str(Path(ROOT, "tests"))}
    tests = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tests.stdout is not None
    first = psutil.Process(int(tests.stdout.readline()))
    assert first.is_running()
    tests.send_signal(signal.SIGKILL)
    tests.communicate()
    eventually(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
    remove_stale_cgroups()  # as the next start of an engine does
    assert not [group for root in cgroup_hierarchies() for group in root.glob(f"farro-test-{tests.pid}-*")]
