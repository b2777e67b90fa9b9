"""Prepare the stage of the hostile program: a root with an allowed and a forbidden folder, a victim, and servers.

hostile.py holds the attacks; src/farro/sandbox must stop them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from copies import Original
from farro.sandbox.levels import Sandbox
from sandbox.greeting import greet_callers
from support import ROOT, need

NOBODY = 65534
SECRET = "canary-of-the-worker-4711"
HERE = Path(__file__).parent


def working(level: str) -> Sandbox:
    """Return a sandbox level that works on this machine, or skip the test with the reason."""
    sandbox = Sandbox.available(level)  # type: ignore[arg-type]
    need(sandbox.level == level, f"level {level} of the sandbox: {'; '.join(probe.why for probe in sandbox.probes)}")
    return sandbox


def python() -> str:
    """Return a Python that every user may execute: root's own may be in its private home."""
    for place in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        folders = [place, *map(str, Path(place).parents)]
        if all(os.path.exists(folder) and os.stat(folder).st_mode & 0o001 for folder in folders):
            return os.path.realpath(place)
    need(False, "a Python that every user may execute")
    raise AssertionError


@dataclass
class Came:
    """The effects of one attack."""

    succeeded: bool
    category: str | None
    message: str
    left: list[int]  # processes
    changes: list[str] = field(default_factory=list)  # changes that the stage noticed


@functools.cache
def driver() -> Original:
    """Share one driver between all tests of this process."""
    path = os.pathsep.join((os.path.join(ROOT, "src"), os.path.join(ROOT, "tests")))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    env["WORKERS_OWN"] = SECRET
    made = Original(str(HERE / "drive.py"), env=env)
    atexit.register(made.close)
    return made


def drive(order: dict[str, Any], timeout_s: float) -> str:
    """Return the answer of a copy of the driver."""
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = driver().copy(json.dumps(order).encode(), [nothing.fileno(), out.fileno(), err.fileno()])
        code = driver().ended(timeout_s)
        if code is None:
            driver().kill(pid)
        for said in (out, err):
            said.seek(0)
        assert code == 0, err.read()
        return out.read()


class Ground:
    def __init__(self, folder: Path, user: int) -> None:
        self.user = user
        self.python = python()
        self.folder = folder
        self.root, self.inside, self.outside = folder / "root", folder / "root/in", folder / "root/out"
        self.attempt = self.root / "agents/Runner/in-progress/a.0/hostile/attempts/0001"
        for path in (self.inside, self.outside, self.outside / "empty", self.attempt):
            path.mkdir(parents=True)
        (self.outside / "file").write_text("untouched\n")
        (self.outside / "held").write_text("untouched\n")
        (self.outside / "file").chmod(0o644)
        lock = self.root / "logs/.audit.lock"
        lock.parent.mkdir()
        lock.touch()
        self.home = folder / "home/me"
        secrets = {
            "key": self.home / ".ssh/id_ed25519",
            "cloud": self.home / ".aws/credentials",
            "login": self.home / ".claude/.credentials.json",
            "other_home": folder / "home/other/notes",
            "other_job": self.root / "agents/Runner/in-progress/a.0/other/attempts/0001/result.md",
            "ledger": self.root / "jobs/.ledger/2026-11-19.jsonl",
            "config": self.root / "agents-config.json",
        }
        for path in secrets.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{SECRET}\n")
        self.heard: list[str] = []
        self._flushed = threading.Event()
        self._servers: list[socket.socket] = []
        self.hostile: dict[str, Any] = {
            "secret": SECRET[::-1],
            "home": str(self.home),
            **{name: str(path) for name, path in secrets.items()},
            "in": str(self.inside),
            "out": str(self.outside),
            "lock": str(lock),
            "socket": str(self.outside / "socket"),
            "datagrams": str(self.outside / "datagrams"),
            "abstract": f"@farro-test-{os.getpid()}-{folder.name}",
            "many": 300,
            "at_once": True,
            "memory": 512 << 20,
            "disk": 32 << 20,
            "pause": 0.0,
            "greets": False,
        }
        self.hostile["service"] = self._greet()
        self._listen(socket.AF_INET, ("127.0.0.2", self.hostile["service"]))
        self.hostile["tcp"] = self._listen(socket.AF_INET, ("127.0.0.1", 0))
        self._listen(socket.AF_UNIX, self.hostile["socket"])
        self._listen(socket.AF_UNIX, self.hostile["abstract"].replace("@", "\0"))
        self.hostile["udp"] = self._receive(socket.AF_INET, ("127.0.0.1", 0))
        self._receive(socket.AF_UNIX, self.hostile["datagrams"])
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
            for name in ("socket", "datagrams"):
                os.chmod(self.outside / name, 0o777)
        self.victim = subprocess.Popen(
            [self.python, "-S", str(HERE / "victim.py"), str(self.outside / "held")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.outside,
            text=True,
            **self._as_user(),
        )
        assert self.victim.stdout is not None
        held, address = self.victim.stdout.readline().split()
        self.hostile |= {"victim": self.victim.pid, "held_fd": int(held), "address": int(address)}
        self._before = self._state()

    def run(
        self,
        way: str,
        level: str | None,
        *,
        without_cgroup: bool = False,
        without: Sequence[str] = (),
        timeout_s: float = 120,
        provider: bool = False,
        services: bool = False,
        **guarding: Any,
    ) -> Came:
        """Run one attack, confined on that level; None: not confined. `without`: protections to remove (drive.py)."""
        order = {
            "way": way,
            "level": level,
            "root": str(self.root),
            "attempt": str(self.attempt),
            "hostile": self.hostile,
            "command": [self.python, "-S", str(HERE / "hostile.py"), way],
            "guarding": guarding,
            "without_cgroup": without_cgroup,
            "without": list(without),
            "user": self.user,
            "provider": provider,  # as the provider of a role, instead of a step of a plan
            "services": services,  # it may reach one service of the worker
        }
        over = threading.Event()
        visitor = threading.Thread(target=self._visit, args=(over,), daemon=True)
        if way == "listen_without_bind":
            visitor.start()
        told = drive(order, timeout_s)
        over.set()
        came = Came(**{"left": [], **json.loads(told.splitlines()[-1])})
        came.changes = self.changes()
        return came

    def changes(self) -> list[str]:
        """Return everything that changed."""
        found = [name for name, now in self._state().items() if self._before.get(name) != now]
        found += [name for name in self._before if name not in self._state()]
        if self.victim.poll() is not None:
            found.append("the victim is dead")
        else:
            assert self.victim.stdin is not None
            assert self.victim.stdout is not None
            self.victim.stdin.write("?\n")
            self.victim.stdin.flush()
            if self.victim.stdout.readline() != "unharmed\n":
                found.append("the victim's memory")
        self._until_all_was_heard()
        return sorted({*found, *self.heard})

    def living(self) -> list[str]:
        """Return the processes that name this ground in their arguments, except the victim."""
        found = []
        for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != self.victim.pid):
            with contextlib.suppress(OSError):
                words = Path("/proc", pid, "cmdline").read_bytes()
                if os.fsencode(str(self.folder)) in words:
                    found.append(words.decode(errors="replace"))
        return found

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for path in (self.outside, *self.outside.rglob("*"), *self.attempt.glob("steps/before/*")):
            status = path.lstat()
            attributes = os.listxattr(path, follow_symlinks=False)
            content = path.read_bytes() if path.is_file() else b""
            name = str(path.relative_to(self.root))
            if "before" in name and name not in getattr(self, "_before", {}):
                expected = b"untouched\n" if path.name == "stdout" else b""
                if (content, status.st_mode & 0o600, status.st_mtime > 1000) != (expected, 0o600, True):
                    state[name] = content
                continue
            state[name] = (content, status.st_mode, status.st_uid, status.st_mtime_ns, status.st_ctime_ns, attributes)
        return state

    def _listen(self, family: int, address: Any) -> Any:
        server = socket.socket(family)
        server.bind(address)
        server.listen()
        self._servers.append(server)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    self.heard.append(f"{address} was spoken to")

        threading.Thread(target=accept, daemon=True).start()
        return server.getsockname()[1] if family == socket.AF_INET else None

    def _greet(self) -> int:
        """Serve what an attacker may reach."""
        server = socket.create_server(("127.0.0.1", 0))
        self._servers.append(server)
        greet_callers(server)
        port: int = server.getsockname()[1]
        return port

    def _visit(self, over: threading.Event) -> None:
        """Connect to the port on which an attacker listens, if it can be reached."""
        place = self.inside / "port"
        while not place.exists():
            if over.wait(0.01):
                return
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", int(place.read_text())), timeout=5).close()

    def _receive(self, family: int, address: Any) -> Any:
        server = socket.socket(family, socket.SOCK_DGRAM)
        server.bind(address)
        self._servers.append(server)

        def receive() -> None:
            with contextlib.suppress(OSError):
                while said := server.recv(100):
                    if said == b"flush":
                        self._flushed.set()
                    else:
                        self.heard.append("a datagram came")

        threading.Thread(target=receive, daemon=True).start()
        return server.getsockname()[1] if family == socket.AF_INET else None

    def _until_all_was_heard(self) -> None:
        """Wait until a later datagram on the same socket has arrived, because datagrams are not answered."""
        self._flushed.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as talk:
            talk.sendto(b"flush", ("127.0.0.1", self.hostile["udp"]))
        assert self._flushed.wait(60)

    def _as_user(self) -> dict[str, Any]:
        if self.user == os.geteuid():
            return {}
        return {"user": self.user, "group": self.user, "extra_groups": []}


@contextlib.contextmanager
def ground(user: int, base: str | None = None) -> Iterator[Ground]:
    """Use a folder that every user may enter: pytest's folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="farro-guard-", dir=base))
    folder.chmod(0o755)
    try:
        made = Ground(folder, user)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
