"""Run a storm over many machines: workers, a watchdog and submitters, each on its own machine, around one Redis server.
Processes are killed and stopped, the server is killed and started again, links are cut in both directions or in one.

The random choices are seeded, the timing of the machine is not: the same seed gives a similar storm, not the same one.
Every history has every kind of fault at least once. A guard always ends all processes and removes the network.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crash.history import History, Refusal, Tree, read_effects, read_folder, read_notes, read_worker_log
from crash.storm import Member
from servers import RedisServer
from storm.network import Network
from support import ROOT

LEASE_S = 2.0  # a busy slot sends a heartbeat every second
WORKERS = ("w0", "w1", "w2")
MACHINES = ("server", *WORKERS, "keeper", "client")
PORT = 6379
CONFIG: dict[str, Any] = {
    "version": "1.0.0",
    "retry": {"base_s": 0.02, "max_delay_s": 0.2, "max_attempts": 6},
    "watchdog": {"every_s": 0.2, "stale_after_s": 10.0},
}
PROGRAM = os.path.join(ROOT, "tests", "storm", "member.py")


class Storm:
    def __init__(self, folder: Path, *, seed: int, lease_s: float = LEASE_S, retry_s: float = 1.5) -> None:
        self.folder, self.seed = folder, seed
        self.redis = {"lease_s": lease_s, "timeout_s": 0.5, "retry_s": retry_s, "name": "storm"}
        self.dice = random.Random(seed)
        self.blows: Counter[str] = Counter()
        self.hits = 0  # faults that hit a worker with a claimed job
        self.network = Network(MACHINES)
        self.server = RedisServer(
            folder=folder / "redis",
            port=PORT,
            durable=True,
            host=self.network.address("server"),
            before=tuple(self.network.inside("server")),
            options=("--unixsocket", str(folder / "redis.sock"), "--protected-mode", "no"),
        )
        self.environment = {
            **os.environ,
            "FARRO_STORM": str(folder),
            "PYTHONPATH": os.path.join(ROOT, "tests"),
            "PYTHONUNBUFFERED": "1",
        }
        self.members = [
            *(Member(name, lambda _, name=name: self._worker(name)) for name in WORKERS),
            Member("keeper", lambda life: [PROGRAM, "keeper", str(folder), f"keeper-{life}", str(seed)]),
            Member("client", lambda life: [PROGRAM, "submitter", str(folder), f"client-{life}", str(seed)]),
        ]
        self._due: list[tuple[float, Callable[[], None]]] = []

    def _worker(self, name: str) -> list[str]:
        return ["-m", "farro", "worker", "--slots", "2", "--name", name, "--json", "--root", str(self.folder / name)]

    # --- the beginning and the end ---

    def __enter__(self) -> Storm:
        (self.folder / "logs").mkdir(parents=True)
        for name in ("effects", "notes"):
            (self.folder / name).touch()
        command = [sys.executable, PROGRAM, "guard", str(self.folder), self.network.mark, "0"]
        environment = {key: value for key, value in self.environment.items() if key != "FARRO_STORM"}
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)
        try:
            self.network.make()
            self.server.start()
            for name in ("judge", *MACHINES[1:]):
                self._make_root(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self.guard.communicate()
        for member in self.members:
            if member.process is not None:
                member.process.wait()

    def _make_root(self, name: str) -> None:
        """Make a root for each machine; the checker's root reaches the server even when links are cut."""
        from farro.doctor.root import make_root

        root = self.folder / name
        address = f"unix://{self.folder}/redis.sock" if name == "judge" else self.server.url
        root.mkdir()
        make_root(str(root), ("Manager", "Runner"))
        (root / "agents-config.json").write_text(json.dumps({**CONFIG, "store": address, "redis": self.redis}))

    # --- the weather ---

    def blow(self, times: int) -> None:
        """Inject faults in random order, each kind at least once if there are enough; restart members that died."""
        kinds = [self.kill_worker, self.stop_worker, self.kill_server, self.cut, self.mute, self.deafen]
        kinds += [self.kill_client, self.kill_keeper]
        deck: list[Callable[[], None]] = []
        for _ in range(times):
            if not deck:
                deck = self.dice.sample(kinds, len(kinds))
            blow = deck.pop()
            self.blows[blow.__name__] += 1
            blow()
            self.pass_time(self.dice.uniform(0.3, 0.9))

    def pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self.tend(now)
            time.sleep(0.02)

    def kill_worker(self) -> None:
        self._victim().send(signal.SIGKILL)

    def stop_worker(self) -> None:
        """Stop a worker, mostly for longer than its lease, so that it resumes after it lost its claim."""
        victim = self._victim()
        if victim.goes_on_s is None:
            victim.send(signal.SIGSTOP)
            victim.goes_on_s = time.monotonic() + self.dice.choice((0.3, 1.2 * LEASE_S, 1.5 * LEASE_S))

    def kill_server(self) -> None:
        if self.server.process is not None:
            self.server.kill()
            self._later(self.dice.uniform(0.05, 0.6), self._start_server)

    def cut(self) -> None:
        self._part(self.network.cut, self.dice.choice((*WORKERS, "keeper", "server")))

    def mute(self) -> None:
        self._part(self.network.mute, self.dice.choice(WORKERS))

    def deafen(self) -> None:
        self._part(self.network.deafen, self.dice.choice((*WORKERS, "client")))

    def kill_client(self) -> None:
        self.member("client").send(signal.SIGKILL)

    def kill_keeper(self) -> None:
        self.member("keeper").send(signal.SIGKILL)

    def _part(self, how: Callable[[str], None], name: str) -> None:
        how(name)
        self._later(self.dice.choice((0.3, 1.2 * LEASE_S, 1.5 * LEASE_S)), lambda: self.network.mend(name))

    def _victim(self) -> Member:
        running = [member for member in self.members[: len(WORKERS)] if member.running and member.goes_on_s is None]
        working = [member for member in running if self.hands(member)]
        self.hits += bool(working)
        return self.dice.choice(working or running or self.members[: len(WORKERS)])

    def _start_server(self) -> None:
        if self.server.process is None:
            self.server.start()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, what))

    # --- members ---

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def tend(self, now: float) -> None:
        due, self._due = [what for at, what in self._due if at <= now], [item for item in self._due if item[0] > now]
        for what in due:
            what()
        for member in self.members:
            if member.goes_on_s is not None and now >= member.goes_on_s:
                member.send(signal.SIGCONT)
                member.goes_on_s = None
            if not member.running and now >= member.due_s:
                self.start(member)

    def start(self, member: Member) -> None:
        member.lives += 1
        member.goes_on_s = None
        member.due_s = time.monotonic() + self.dice.uniform(0.2, 0.5)  # no busy loop when it ends at once
        log = self.folder / "logs" / f"{member.name}-{member.lives:05d}"
        with open(f"{log}.out", "ab") as out, open(f"{log}.err", "ab") as err:
            member.process = subprocess.Popen(
                [*self.network.inside(member.name), sys.executable, *member.arguments(member.lives)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )

    def hands(self, member: Member) -> set[str]:
        """Return the jobs that a worker has claimed since its last start and not reported as finished."""
        held: set[str] = set()
        path = self.folder / "logs" / f"{member.name}-{member.lives:05d}.out"
        for line in _lines(path):
            if said := _said(line):
                (held.add if said["message"] == "job claimed" else held.discard)(said["job_id"])
        return held

    def calm(self, seconds: float) -> None:
        """Stop the faults and the submitters; let the remaining and restarted members finish all jobs."""
        client = self.member("client")
        client.send(signal.SIGKILL)
        if client.process is not None:
            client.process.wait()
        self.members.remove(client)
        for name in MACHINES:
            self.network.mend(name)
        self._due.clear()
        self._start_server()
        for member in self.members:
            member.goes_on_s = 0.0 if member.goes_on_s is not None else None
        until, quiet, lives = time.monotonic() + seconds, 0, sum(member.lives for member in self.members)
        while quiet < 3:
            now = time.monotonic()
            assert now < until, f"not finished after {seconds} s: {self.unfinished()}\n{self.last_words()}"
            restarts = sum(member.lives for member in self.members) - lives
            assert restarts < 20, f"members die repeatedly although no fault hits them:\n{self.last_words()}"
            self.tend(now)
            quiet = 0 if self.unfinished() else quiet + 1
            time.sleep(0.1)

    def end(self) -> None:
        for member in self.members:
            member.send(signal.SIGTERM)
        for member in self.members:
            if member.process is not None:
                member.process.wait(timeout=60)

    # --- judging ---

    def store(self) -> Any:
        from farro.app import App
        from farro.config import reader

        root = str(self.folder / "judge")
        return App().open_store(root, reader.load(root))

    def unfinished(self) -> list[str]:
        store = self.store()
        try:
            return [f"{view.job_id} is {view.status} in {view.place}" for view in store.list() if _open(view)]
        finally:
            store.close()

    def tree(self) -> Tree:
        """Read the jobs from the server, after a last pass of a watchdog."""
        store, tree = self.store(), Tree()
        try:
            keeper = store.join("judge", role=None)
            deadline = time.monotonic() + 30
            while [view for view in store.agents() if view.id != keeper.id] and time.monotonic() < deadline:
                store.heartbeat(keeper)
                store.recover(keeper)
                time.sleep(0.1)
            tree.stray += [f"the agent {view.id} is left" for view in store.agents() if view.id != keeper.id]
            for view in store.list():
                found = read_folder(store.folder(view), f"{view.place}/{view.job_id}", tree.stray)
                tree.jobs += [dataclasses.replace(job, attempts=view.lifecycle.attempt) for job in found]
            store.leave(keeper)
        finally:
            store.close()
        return tree

    def said(self, name: str) -> list[str]:
        """Return all lines that a worker logged, across its restarts."""
        return [line for path in sorted((self.folder / "logs").glob(f"{name}-*.out")) for line in _lines(path)]

    def history(self) -> History:
        history = History(effects=list(read_effects(str(self.folder / "effects"))))
        logs = [line for name in WORKERS for line in self.said(name)]
        history.committed += read_worker_log(logs)
        history.refused += refusals(logs)
        read_notes(_lines(self.folder / "notes"), history)
        return history

    def last_words(self) -> str:
        found = []
        for path in sorted((self.folder / "logs").iterdir()):
            found += [f"{path.name}: {line}" for line in _lines(path) if '"level": "info"' not in line][-3:]
        return "\n".join(found[-40:])

    def tracebacks(self) -> list[str]:
        return [path.name for path in sorted((self.folder / "logs").iterdir()) if "Traceback" in path.read_text()]


def refusals(lines: list[str]) -> Iterator[Refusal]:
    """Yield the claims that a worker reported as lost."""
    for line in lines:
        said = _said(line)
        if said and said["event"]["type"] == "claim_lost":
            yield Refusal(job=said["job_id"], attempt=said["attempt"], agent=said["agent"])


def _said(line: str) -> Any:
    """Parse a worker's log line about a job; ignore a line that a kill cut short."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if "job_id" in said and "event" in said else None


def _open(view: Any) -> bool:
    return view.status not in ("succeeded", "failed", "killed") or view.lifecycle.finalized_at is None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
