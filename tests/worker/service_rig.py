"""A root with real services (small shell scripts) and supervisors inside the test process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

from farro.host import process_table
from farro.host.clock import Clock, SystemClock
from farro.worker.process_runtime import MARK, ProcessRuntime
from farro.worker.runtime import ComponentProcess
from farro.worker.supervisor import FOLDER, GROUP, Service, ServiceCommands, Supervisor
from support import eventually

ENDLESS = "echo it started; exec sleep 100000"
DEAF = "trap '' TERM; echo it started; while :; do sleep 0.1; done"


def service(name: str, script: str = ENDLESS) -> Service:
    return Service(name=f"{GROUP}-{name}", role=name, argv=("sh", "-c", script))


class ServiceRig:
    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.root = str(folder)
        self.clock = clock or SystemClock()
        for name in ("jobs", "logs"):
            (folder / name).mkdir()
        self.logged: list[str] = []

    def runtime(self) -> ProcessRuntime:
        """Return the runtime of a new process: it remembers nothing."""
        return ProcessRuntime(f"{self.root}/{FOLDER}", self.clock)

    def supervisor(self) -> Supervisor:
        env = {"PATH": os.environ["PATH"]}
        return Supervisor(self.root, env=env, runtime=self.runtime(), clock=self.clock, log=self._log)

    def _log(self, level: str, message: str, fields: object) -> None:
        self.logged.append(message)

    def commands(self) -> ServiceCommands:
        return ServiceCommands(root=self.root, runtime=self.runtime(), clock=self.clock, supervisor=("false",))

    def process(self, name: str) -> ComponentProcess:
        return {one.role: one for one in self.commands().processes()}[name]

    def kill(self, name: str) -> None:
        pid = self.process(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.process(name).pid is None, f"{name} lives on")

    def says_ready(self, name: str) -> None:
        eventually(lambda: self.process(name).state == "Running", f"{name} is not ready")

    def living(self) -> Counter[str]:
        """Count the live processes of each service: those that lead a session."""
        found: Counter[str] = Counter()
        for entry in process_table.entries():
            if entry.alive and entry.pid == entry.session:
                with contextlib.suppress(OSError):
                    environ = Path(f"/proc/{entry.pid}/environ").read_bytes().split(b"\0")
                    marks = [os.fsdecode(line) for line in environ if line.startswith(f"{MARK}={GROUP}-".encode())]
                    if marks and os.readlink(f"/proc/{entry.pid}/cwd") == self.root:
                        found[marks[0].removeprefix(f"{MARK}={GROUP}-").split(".")[0]] += 1
        return found

    def runs(self, *names: str) -> None:
        """Check that each of these services runs once, and no other. A process that executes its program at this
        moment has no environment yet, and is counted a moment later."""
        eventually(lambda: self.living() == Counter(names), f"{names} should run: {self.living()}", 10.0)

    def clean_up(self) -> None:
        """Kill what is left, and reap the children of this process."""
        self.commands().down(kill=True)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
