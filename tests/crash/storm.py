"""Run a storm: real workers, watchdogs, managers, submitters and operators, killed, stopped and restarted at random.

history.py checks the result. As a program, this file runs one submitter, one operator, or the guard:
`python storm.py submitter|operator|guard FOLDER NAME SEED`.

The random choices are seeded, the machine's timing is not: the same seed gives a similar storm, not the same one.
A guard always ends every process of the storm and their children: all have its folder in their environment. The guard
is a separate process that waits for a pipe to close, so it also works when the test itself is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from farro.store.files import journal_file

CONFIG = {
    "version": "1.0.0",
    "retry": {"base_s": 0.02, "max_delay_s": 0.3, "max_attempts": 4},
    "watchdog": {"every_s": 0.2, "stale_after_s": 4.0},
}
BACKLOG = 40  # queued jobs at which submitters pause, so that draining takes a bounded time
EFFECT = 'echo "$FARRO_CLAIM" >> "$0"'  # O_APPEND: whole lines, in the order in which they happened


# --- the actors that are not farro's own -----------------------------------------------------------------------------


def plan(token: str, effects: str) -> dict[str, Any]:
    """Return a plan of real commands; the same token always gives the same plan."""
    dice = random.Random(token)

    def step(number: int, script: str) -> dict[str, Any]:
        return {"step_number": number, "command": "sh", "args": ["-c", script, effects]}

    kind = dice.choices(("quick", "two", "long", "fails", "spawns"), (25, 30, 15, 10, 20))[0]
    wait = f"sleep {dice.uniform(0.05, 0.5):.2f}"
    steps = {
        "quick": [step(1, EFFECT)],
        "two": [step(1, EFFECT), step(2, f"{wait}; {EFFECT}")],
        "long": [step(1, f"{EFFECT}; sleep {dice.uniform(0.8, 2.5):.2f}; {EFFECT}")],
        "fails": [step(1, f"{EFFECT}; {wait}; exit 3")],
        "spawns": [step(1, f"sleep 600 & setsid sleep 600 & {wait}; {EFFECT}")],  # must not outlive the attempt
    }
    return {"plan_id": token, "steps": steps[kind]}


class Actor:
    """A client of farro that logs to a file which survives a kill: one O_APPEND write for each line."""

    def __init__(self, folder: str, name: str, seed: int) -> None:
        from farro.app import App
        from farro.config import reader

        self.root, self.effects, self.name = f"{folder}/root", f"{folder}/effects", name
        self.dice = random.Random(f"{name}/{seed}")
        self.store = App().open_store(self.root, reader.load(self.root))
        self.notebook = os.open(f"{folder}/notes", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **more: Any) -> None:
        os.write(self.notebook, (json.dumps({"what": what, "by": self.name, **more}) + "\n").encode())

    def farro(self, *arguments: str, stdin: str = "") -> Any:
        """Run a farro command as a user would; return None when it was refused."""
        command = [sys.executable, "-m", "farro", *arguments, "--json", "--root", self.root]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.stdout.startswith("{") else None


def submit(actor: Actor) -> None:
    from farro import documents
    from farro.errors import FarroError
    from farro.jobs.request import JobRequest
    from farro.queue import submit

    for number in itertools.count():
        while len(os.listdir(f"{actor.root}/agents/Runner/incoming")) >= BACKLOG:
            time.sleep(0.05)
        draw = actor.dice.random()
        token, job_id = f"{actor.name}-{number}", None
        if draw < 0.2:
            job_id = f"own-{token}"
        elif draw < 0.45:  # a shared id: every submitter submits it, and again after a restart
            token = job_id = f"shared-{int(time.time() * 2) - actor.dice.randrange(3)}"
        elif draw < 0.5:
            token, job_id = f"other-{token}", f"shared-{int(time.time() * 2) - actor.dice.randrange(3)}"
        actor.note("try", token=token, id=job_id)
        content = plan(token, actor.effects)
        try:
            if actor.dice.random() < 0.04:
                told = actor.farro("enqueue", *(("--id", job_id) if job_id else ()), "-", stdin=json.dumps(content))
                (queued,) = told["jobs"] if told else (None,)
            else:
                document = documents.parse(json.dumps(content).encode(), token)
                request = JobRequest(document=document, id=job_id)
                queued = submit.submit(actor.store, [request], submit.ANYTHING)[0].id
        except FarroError as error:
            actor.note("refused", token=token, why=str(error))
        else:
            actor.note("enqueued" if queued else "refused", token=token, id=queued)
        time.sleep(actor.dice.uniform(0.0, 0.08))


def operate(actor: Actor) -> None:
    from farro.errors import FarroError
    from farro.queue import jobs

    verbs: dict[str, Callable[..., Any]] = {
        "kill": jobs.kill,
        "requeue": jobs.requeue,
        "force-complete": jobs.force_complete,
    }
    while True:
        time.sleep(actor.dice.uniform(0.05, 0.4))
        size = os.fstat(actor.notebook).st_size
        recent = os.pread(actor.notebook, 8000, max(0, size - 8000)).decode().splitlines()[1:]
        known = [note["id"] for note in map(json.loads, recent) if note["what"] == "enqueued"]
        if not known:
            continue
        job_id, verb = actor.dice.choice(known), actor.dice.choice(["kill", "kill", "requeue", "force-complete"])
        actor.note("asks", verb=verb, id=job_id)
        try:
            if actor.dice.random() < 0.1:
                life = actor.farro(verb, job_id)
            else:
                told = verbs[verb](actor.store, job_id, by=actor.name, note=None)
                life = json.loads(told.to_json())
        except FarroError as error:
            actor.note("refused", verb=verb, id=job_id, why=str(error))
        else:
            actor.note("told" if life else "refused", verb=verb, id=job_id, life=life)


# --- the storm -------------------------------------------------------------------------------------------------------


class Member:
    """A process of the storm that is restarted whenever it ends."""

    def __init__(self, name: str, arguments: Callable[[int], list[str]]) -> None:
        self.name = name
        self.arguments = arguments
        self.lives = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.due_s = 0.0  # when to restart it
        self.goes_on_s: float | None = None  # when a stopped one is continued

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        if self.running:
            assert self.process is not None
            self.process.send_signal(number)


class Storm:
    def __init__(self, folder: str, *, durability: str, seed: int, workers: int = 3, runner: str = "inline") -> None:
        self.folder, self.root = folder, f"{folder}/root"
        self.dice = random.Random(seed)
        self.kills = self.stops = self.terms = 0
        self.hits = 0  # kills of a worker that held jobs
        self.journals: set[str] = set()  # every one that was seen
        self.environment = {**os.environ, "FARRO_STORM": folder}
        os.makedirs(f"{folder}/logs")
        self._farro("init")
        with open(f"{self.root}/agents-config.json", "w", encoding="utf-8") as file:
            json.dump({**CONFIG, "durability": durability, "runners": {"kind": runner}}, file)
        with open(f"{folder}/effects", "w", encoding="utf-8"), open(f"{folder}/notes", "w", encoding="utf-8"):
            pass
        farro = ["-m", "farro"]
        rooted = ["--root", self.root]
        self.farro_members = [
            *(
                Member(f"worker{n}", lambda _, n=n: [*farro, "worker", "--workers", "4", "--name", f"w{n}", *rooted])
                for n in range(workers)
            ),
            *(Member(f"watchdog{n}", lambda _: [*farro, "watchdog", *rooted]) for n in range(2)),
            Member("manager", lambda _: [*farro, "manager", *rooted]),
        ]
        self.clients = [
            Member(name, lambda life, name=name: [__file__, name[:-1], folder, f"{name}-{life}", str(seed)])
            for name in ("submitter0", "submitter1", "operator0")
        ]

    def __enter__(self) -> Storm:
        command = [sys.executable, __file__, "guard", self.folder, "guard", "0"]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.guard.communicate()
        for member in (*self.farro_members, *self.clients):
            if member.process is not None:
                member.process.wait()

    def blow(self, seconds: float, hits: int) -> None:
        """Kill, stop and end members at random; members that ended are restarted after a moment.

        On a busy machine starting is slow, and the storm may hit no busy worker: then it lasts up to four times longer.
        """
        members = [*self.farro_members, *self.clients]
        start = time.monotonic()
        while (now := time.monotonic()) < start + (seconds if self.hits >= hits else 4 * seconds):
            self._tend(members, now)
            self.journals.update(self.journals_now())
            # Half of the faults hit workers with claimed jobs, which have most to lose.
            working = [member for member in self.farro_members if self._at_work(member)]
            member = self.dice.choice(working if working and self.dice.random() < 0.5 else members)
            action = self.dice.choices(("kill", "stop", "term"), (50, 35, 15))[0]
            # An interpreter needs half a second to start: most faults hit members that have started.
            young = now - member.started_s < 1.0 and self.dice.random() < 0.8
            if member.running and member.goes_on_s is None and not young:
                if action == "kill":
                    self.hits += self._at_work(member)
                    member.send(signal.SIGKILL)
                    self.kills += 1
                elif action == "stop":
                    # Most stops are short; some outlast `stale_after_s`: the watchdog ends such a member as hung.
                    pause_s = self.dice.uniform(5, 7) if self.dice.random() < 0.2 else self.dice.uniform(0.05, 1.0)
                    member.send(signal.SIGSTOP)
                    member.goes_on_s = now + pause_s
                    self.stops += 1
                elif action == "term":
                    member.send(signal.SIGTERM)
                    self.terms += 1
            time.sleep(self.dice.uniform(0.02, 0.25))

    def journals_now(self) -> list[str]:
        return journal_file.names(self.root)

    def watch_once(self) -> None:
        self._farro("watchdog", "--once")

    def _at_work(self, member: Member) -> bool:
        agents = f"agents/Runner/in-progress/w{member.name.removeprefix('worker')}."
        return any(path.startswith(agents) for path in self.unfinished())

    def calm(self, seconds: float) -> None:
        """Stop the faults and the clients; let the remaining and restarted members finish all jobs."""
        for member in self.clients:
            member.send(signal.SIGKILL)
            if member.process is not None:
                member.process.wait()
        for member in self.farro_members:
            member.goes_on_s = 0.0 if member.goes_on_s is not None else None
        until = time.monotonic() + seconds
        lives, quiet = sum(member.lives for member in self.farro_members), 0
        while quiet < 3:  # a job may move between two folders during the read
            now = time.monotonic()
            restarts = sum(member.lives for member in self.farro_members) - lives
            assert restarts < 30, f"members die repeatedly although no fault hits them:\n{self.last_words()}"
            assert now < until, f"not finished after {seconds} s: {self.unfinished()}\n{self.last_words()}"
            self._tend(self.farro_members, now)
            quiet = 0 if self.unfinished() else quiet + 1
            time.sleep(0.1)

    def end(self) -> list[str]:
        """Send SIGTERM to all members; return the processes of attempts that outlive the last worker."""
        for member in self.farro_members:
            member.send(signal.SIGTERM)
        for member in self.farro_members:
            if member.process is not None:
                member.process.wait(timeout=60)
        return [_describe(pid) for pid in related(self.folder) if b"FARRO_CLAIM=" in _read(f"/proc/{pid}/environ")]

    def drain(self) -> None:
        """Run healthy processes in turn until no work is left."""
        for _ in range(20):
            for verb in (["watchdog", "--once"], ["manager", "--once"], ["worker", "--drain"]):
                self._farro(*verb)
            if not self.unfinished():
                return
        raise AssertionError(f"not drained: {self.unfinished()}")

    def unfinished(self) -> list[str]:
        homes = ["agents/Runner/incoming", "jobs/stale", "jobs/outbox"]
        for agents in ("agents/Runner/in-progress", "jobs/.held"):
            homes += [f"{agents}/{name}" for name in os.listdir(f"{self.root}/{agents}")]
        found = []
        for home in homes:
            with contextlib.suppress(FileNotFoundError):
                found += [f"{home}/{name}" for name in os.listdir(f"{self.root}/{home}") if name[0] != "."]
        return found

    def worker_logs(self) -> Iterator[str]:
        for name in sorted(os.listdir(f"{self.folder}/logs")):
            if name.startswith("worker") and name.endswith(".out"):
                with open(f"{self.folder}/logs/{name}", encoding="utf-8") as file:
                    yield from file

    def last_words(self) -> str:
        """Return the last log lines of every member, for debugging."""
        found = []
        for name in sorted(os.listdir(f"{self.folder}/logs")):
            text = _read(f"{self.folder}/logs/{name}").decode(errors="replace")
            found += [f"{name}: {line}" for line in text.splitlines() if '"level": "info"' not in line][-3:]
        return "\n".join(found[-40:])

    def tracebacks(self) -> list[str]:
        """Return the logs with a traceback: always a bug, even if no job was lost."""
        names = sorted(os.listdir(f"{self.folder}/logs"))
        return [name for name in names if b"Traceback" in _read(f"{self.folder}/logs/{name}")]

    def _tend(self, members: list[Member], now: float) -> None:
        for member in members:
            if member.goes_on_s is not None and now >= member.goes_on_s:
                member.send(signal.SIGCONT)
                member.goes_on_s = None
            if member.process is None or (not member.running and member.due_s and now >= member.due_s):
                self._start(member)
            elif not member.running and not member.due_s:
                member.due_s = now + self.dice.uniform(0.0, 0.3)
                member.goes_on_s = None

    def _start(self, member: Member) -> None:
        member.lives += 1
        member.started_s, member.due_s, member.goes_on_s = time.monotonic(), 0.0, None
        log = f"{self.folder}/logs/{member.name}-{member.lives:05d}"
        with open(f"{log}.out", "ab") as out, open(f"{log}.err", "ab") as err:
            member.process = subprocess.Popen(
                [sys.executable, *member.arguments(member.lives)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )

    def _farro(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "farro", *arguments, "--root", self.root]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=120)


def related(folder: str) -> Iterator[int]:
    """Yield the live processes of a storm: its members, their commands and all steps; they inherit the environment."""
    mark = f"FARRO_STORM={folder}\0".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and mark in _read(f"/proc/{name}/environ") + b"\0" and not _is_zombie(name):
            yield int(name)


def guard(folder: str) -> None:
    """Wait until the pipe closes, because the test ended or died; then end all processes of the storm."""
    sys.stdin.buffer.read()
    for _ in range(100):
        found = list(related(folder))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.05)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _is_zombie(pid: str) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(b") ")[2][:1] in (b"Z", b"X", b"")


def _describe(pid: int) -> str:
    words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    claim = [part for part in _read(f"/proc/{pid}/environ").split(b"\0") if part.startswith(b"FARRO_CLAIM=")]
    return f"{pid} {words} {claim[0].decode(errors='replace') if claim else ''}"


if __name__ == "__main__":
    _kind, _folder, _name, _seed = sys.argv[1:]
    if _kind == "guard":
        guard(_folder)
    else:
        {"submitter": submit, "operator": operate}[_kind](Actor(_folder, _name, int(_seed)))
