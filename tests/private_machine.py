"""A machine of its own for an engine: network, mounts, processes and control groups, which end together.

An engine such as dockerd makes bridges, firewall rules, mounts, processes and files that outlive it. Here it runs in
namespaces. Their first process is killed at the end, or by the kernel if the tests are killed, and the kernel then
removes everything in them. Only control groups have to be removed one by one.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from support import eventually, need

CGROUPS = Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()

# Debian's packages of the engine are laid over the folders of this machine as if they were installed. Engines write
# keys, sockets and states to fixed paths: what they write there is in memory, and ends with them.
SETUP = """
set -e
ip link set lo up
for group in /sys/fs/cgroup/{name} /sys/fs/cgroup/*/{name}; do
  if [ -d $group ]; then mount --bind $group ${{group%/*}}; fi
done
mount -t tmpfs tmpfs /run
for folder in usr etc opt var/lib; do
  mkdir -p /run/own/$folder/upper /run/own/$folder/work
  layers=/$folder
  if [ -d {packages}/$folder ]; then layers={packages}/$folder:$layers; fi
  mount -t overlay overlay -o lowerdir=$layers,upperdir=/run/own/$folder/upper,workdir=/run/own/$folder/work /$folder
done
{setup}
echo ready
exec sleep infinity
"""
# With cgroup v2 a group that has groups for containers in it may have no processes itself.
JOIN = """
for group in /sys/fs/cgroup/{name} /sys/fs/cgroup/*/{name}; do
  if [ -d $group/init ]; then group=$group/init; fi
  if [ -d $group ]; then echo $$ >$group/cgroup.procs; fi
done
exec "$@"
"""


@dataclass(kw_only=True)
class PrivateMachine:
    """Namespaces of network, mounts, processes and control groups. Programs in it see the files of this machine."""

    packages: Path  # the engine's packages, unpacked; with tini, the first process, which reaps the others
    setup: str = ""  # shell commands, run in it before all others
    name: str = field(default_factory=lambda: f"farro-test-{os.getpid()}-{next(_NUMBERS)}")
    first_process: int = 0  # its number on this machine
    _daemons: list[Daemon] = field(default_factory=list)
    _holder: subprocess.Popen[str] | None = None

    def start(self) -> PrivateMachine:
        need(os.geteuid() == 0, "only root makes network and mount namespaces")
        for tool in ("unshare", "nsenter", "setpriv", "ip"):
            need(tool, "scripts/packages.sh installs it")
        remove_stale_cgroups()
        for hierarchy in cgroup_hierarchies():
            make_cgroup(hierarchy, self.name)
        namespaces = [
            "--net",
            "--mount",
            "--pid",
            "--cgroup",
            "--propagation",
            "private",
            "--mount-proc",
            "--kill-child",
        ]
        setup = SETUP.format(name=self.name, packages=self.packages, setup=self.setup)
        command = [*self._joined, "unshare", *namespaces, self.packages / "usr/bin/tini", "--", "sh", "-c", setup]
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise AssertionError(f"the namespaces could not be made: {self._holder.communicate()[1]}")
        self.first_process = psutil.Process(self._holder.pid).children()[0].pid
        if is_unified(CGROUPS):
            make_room(CGROUPS / self.name)
        return self

    @property
    def _joined(self) -> list[str]:
        """Return the command prefix for a process in the control groups of the machine, which ends with the tests."""
        return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", JOIN.format(name=self.name), "sh"]

    @property
    def network(self) -> tuple[str, ...]:
        """Return the command prefix for a client: it runs on this machine and connects to addresses of that one."""
        return ("nsenter", "--target", str(self.first_process), "--net", "--")

    @property
    def inside(self) -> tuple[str, ...]:
        """Return the command prefix for a program of the engine. It ends with the machine."""
        return ("nsenter", "--target", str(self.first_process), "--net", "--mount", "--pid", "--cgroup", "--")

    def run(self, *command: str | Path) -> str:
        """Run a command to its end inside, and return its output."""
        done = subprocess.run([*self.inside, *command], env=with_sbin(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def daemon(self, command: Sequence[str | Path], *, log: Path) -> Daemon:
        """Start a program inside that goes on until it is killed."""
        with log.open("ab") as output:
            entry = subprocess.Popen(
                [*self._joined, *self.inside, *command],
                env=with_sbin(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        # nsenter waits for its child, which is the program.
        found = eventually(
            lambda: entry.poll() is not None or psutil.Process(entry.pid).children(), "nsenter starts no program"
        )
        assert isinstance(found, list), f"{command[0]} ended at once: {log.read_text()[-2000:]}"
        daemon = Daemon(entry=entry, process=found[0], log=log)
        self._daemons.append(daemon)
        return daemon

    def stop(self) -> None:
        """Kill all processes in it, and remove its control groups; the kernel removes its network and its mounts."""
        if self._holder is None:
            return
        os.kill(self.first_process, signal.SIGKILL)  # the kernel then kills the others
        # The first process waits until all are reaped; each nsenter reaps the program that it started.
        for daemon in self._daemons:
            daemon.entry.send_signal(signal.SIGCONT)  # it may be frozen
            daemon.entry.wait()
        self._holder.communicate()
        self._holder = None
        for hierarchy in cgroup_hierarchies():
            remove_cgroup(hierarchy / self.name)


@dataclass(kw_only=True)
class Daemon:
    """A running program of an engine, and the nsenter that waits for it."""

    entry: subprocess.Popen[bytes]
    process: psutil.Process
    log: Path

    def is_running(self) -> bool:
        return self.entry.poll() is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends it, and wait for the end."""
        self.process.send_signal(number)
        self.entry.send_signal(signal.SIGCONT)  # it may be frozen
        self.entry.wait()

    def freeze(self) -> None:
        """Stop it without ending it: its socket accepts connections, and no request is answered."""
        self.process.suspend()
        # nsenter stops itself after its child, and once it goes on, so does the child.
        eventually(lambda: psutil.Process(self.entry.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        self.entry.send_signal(signal.SIGCONT)
        self.process.resume()


def with_sbin() -> dict[str, str]:
    """Return the environment for engines: they start programs of sbin, which an ordinary user's PATH leaves out."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"}


def is_unified(group: Path) -> bool:
    """Return whether this is a control group of version 2 that has controllers."""
    controllers = group / "cgroup.controllers"
    return controllers.exists() and "memory" in controllers.read_text().split()


def cgroup_hierarchies() -> list[Path]:
    """Return the root of each mounted hierarchy: one for version 2, one for each controller with version 1."""
    if is_unified(CGROUPS):
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def make_cgroup(hierarchy: Path, name: str) -> None:
    group = hierarchy / name
    group.mkdir()
    if not is_unified(hierarchy):
        for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which then accepts no process
            if (hierarchy / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def make_room(group: Path) -> None:
    """Move the processes of a group of version 2 to one below it, and let its groups have all its controllers."""
    (group / "init").mkdir()
    for pid in (group / "cgroup.procs").read_text().split():
        (group / "init" / "cgroup.procs").write_text(pid)
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def remove_stale_cgroups() -> None:
    """Remove the control groups of tests that were killed."""
    for hierarchy in cgroup_hierarchies():
        for group in hierarchy.glob("farro-test-*-*"):
            if not psutil.pid_exists(int(group.name.split("-")[2])):
                remove_cgroup(group)


def remove_cgroup(group: Path) -> None:
    """Remove a control group and those in it, when their last processes have ended."""
    for folder, _, _ in os.walk(group, topdown=False):
        eventually(lambda folder=folder: removed(folder), f"{folder} still holds processes")


def removed(cgroup: str) -> bool:
    """Remove an empty control group; return False while a dead process is still in it."""
    try:
        os.rmdir(cgroup)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
