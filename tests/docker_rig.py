"""Container engines for tests: a private dockerd, and podman's API service. Both speak the Docker API on a UNIX socket.

    def test_a_container_runs(dockerd: ContainerEngine) -> None:
        assert dockerd.docker("run", "--rm", IMAGE, "python3", "-c", "print(1)") == "1"

The fixture `dockerd` (conftest.py) shares one daemon between all tests of a process; each test removes its containers.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cached import built
from private_machine import Daemon, PrivateMachine
from support import eventually

IMAGE = "farro-test/python:latest"  # busybox and the Python of the tests
PATH_IN_IMAGE = "/usr/local/bin:/usr/bin:/bin"

PODMAN_CONF = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=10000:10000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


@dataclass(kw_only=True)
class ContainerEngine:
    """A service of the Docker API that can be killed, frozen and started again. Its containers go on without it."""

    folder: Path
    machine: PrivateMachine
    command: Callable[[ContainerEngine], list[str | Path]]
    daemon: Daemon | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "api.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> ContainerEngine:
        """Start the service, or start it again after `kill`, and wait until it answers."""
        # Left by a kill. Their process numbers may now be those of others, and dockerd would wait for their end.
        self.machine.run("rm", "-f", "/run/docker.pid", "/run/docker/containerd/containerd.pid", self.socket)
        self.daemon = self.machine.daemon(self.command(self), log=self.folder / "log")
        eventually(self._answers, f"no answer on {self.socket}; its log is {self.folder / 'log'}")
        return self

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.is_running(), self.daemon.log.read_text()[-4000:]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(self.socket))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(100)
        return False

    def docker(self, *arguments: str) -> str:
        """Run Docker's own command against it and return its output."""
        command = [built("docker.sh") / "usr/bin/docker", "--host", self.url, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def kill(self) -> None:
        """Kill the service like a crash."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon = None

    def freeze(self) -> None:
        """Let the service hang: requests are accepted and not answered, until `thaw`."""
        assert self.daemon is not None
        self.daemon.freeze()

    def thaw(self) -> None:
        assert self.daemon is not None
        self.daemon.thaw()

    def stop(self) -> None:
        """End everything: service, containers, networks, mounts, control groups and files."""
        self.machine.stop()
        self.daemon = None
        if self.folder.exists():
            shutil.rmtree(self.folder)


def start_dockerd(folder: Path) -> ContainerEngine:
    """Start a dockerd that has the image IMAGE, with all its files in `folder`."""
    machine = PrivateMachine(packages=built("docker.sh")).start()
    return with_image(ContainerEngine(folder=folder, machine=machine, command=dockerd_command))


def dockerd_command(engine: ContainerEngine) -> list[str | Path]:
    command: list[str | Path] = ["dockerd", "--live-restore", "--host", engine.url]
    # The sockets of exec-root must have short paths.
    command += ["--data-root", engine.folder / "data", "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"]
    return [*command, "--group", "root", "--exec-opt", "native.cgroupdriver=cgroupfs"]


def start_podman(folder: Path) -> ContainerEngine:
    """Start podman's API service, which has the image IMAGE, with all its files in `folder`."""
    conf = f"cat >/etc/containers/containers.conf <<'END'\n{PODMAN_CONF}END"
    machine = PrivateMachine(packages=built("docker.sh", "podman"), setup=conf).start()
    return with_image(ContainerEngine(folder=folder, machine=machine, command=podman_command))


def podman_command(engine: ContainerEngine) -> list[str | Path]:
    command: list[str | Path] = ["podman", "--root", engine.folder / "data"]
    return [*command, "--runroot", "/run/podman", "system", "service", "--time", "0", engine.url]


def with_image(engine: ContainerEngine) -> ContainerEngine:
    """Start an engine and import IMAGE."""
    try:
        engine.start()
        tar = str(engine.machine.packages / "image.tar")
        engine.docker("import", "--change", f"ENV PATH={PATH_IN_IMAGE}", tar, IMAGE)
    except BaseException:
        engine.machine.stop()
        raise
    return engine
