"""An agent's death is an event: recovery begins at once, and still happens when events are lost, doubled or early.

Every daemon here would sleep for an hour between two turns, so only an event can start its turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stage
from farro.agents.manager import Manager
from farro.host import inotify, leases, waiting
from farro.jobs.states import Status
from farro.store.files import FilesStore
from farro.store.files.agents import LEASE
from farro.store.files.changes import FilesDeathWatch
from farro.store.port import Submission
from farro.worker.daemon import Daemon
from farro.worker.watchdog import Recovery, Watchdog

HOUR_S = 3600.0
LONG_S = 30.0  # for what must happen; nothing waits so long
JOB = "job-1"

WORKER = """
import os, sys
import stage
store = stage.open_files(sys.argv[1], seed=os.getpid())
agent = store.join("victim", role="Runner")
print("claimed" if store.claim(agent, 1) else "joined", flush=True)
sys.stdin.read()
store.leave(agent)
"""


def quiet(level: str, message: str, fields: object) -> None:
    pass


class Victim:
    """A process that joins as an agent and claims a job if there is one."""

    def __init__(self, root: str) -> None:
        tests = str(Path(__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tests},
        )
        assert self.process.stdout is not None
        self.state = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=LONG_S)

    def leave(self) -> None:
        self.process.communicate("", LONG_S)


@pytest.fixture
def store(shm: Path) -> Iterator[FilesStore]:
    made = stage.open_files(stage.make(str(shm / "root")))
    yield made
    made.close()


@pytest.fixture
def victims(store: FilesStore) -> Iterator[Callable[[], Victim]]:
    made: list[Victim] = []

    def start() -> Victim:
        made.append(Victim(store.root))
        return made[-1]

    yield start
    for victim in made:
        if victim.process.returncode is None:
            victim.kill()


@pytest.fixture
def watch(store: FilesStore) -> Iterator[FilesDeathWatch]:
    made = store.watch_deaths(stale=True)
    assert made is not None, "this machine has no inotify"
    yield made
    made.close()


def reported(watch: FilesDeathWatch) -> bool:
    """Wait for an event; return whether it means work for recovery."""
    assert waiting.readable([watch.fileno()], LONG_S), "no event came"
    return watch.read()


@contextlib.contextmanager
def running(daemon: Daemon) -> Iterator[None]:
    thread = threading.Thread(target=daemon.run, args=(HOUR_S,))
    thread.start()
    try:
        yield
    finally:
        daemon.stop()
        thread.join(LONG_S)
        assert not thread.is_alive()


def becomes(store: FilesStore, status: Status) -> bool:
    feed = store.changes(None)
    for _ in range(100):
        view = store.find(JOB)
        if view is not None and view.status is status:
            return True
        feed = store.changes(feed.cursor, timeout_s=LONG_S / 100)
    return False


def test_the_death_of_an_agent_is_reported(watch: FilesDeathWatch, victims: Callable[[], Victim]) -> None:
    victim = victims()
    assert not reported(watch)  # it joined
    victim.kill()
    assert reported(watch)
    assert not watch.read()


def test_an_agent_that_died_before_it_was_watched_is_reported(
    watch: FilesDeathWatch, victims: Callable[[], Victim]
) -> None:
    victims().kill()
    assert reported(watch)


def test_an_agent_that_leaves_is_not_reported(watch: FilesDeathWatch, victims: Callable[[], Victim]) -> None:
    victim = victims()
    assert not reported(watch)
    victim.leave()
    assert not watch.read()


def test_a_probe_of_a_lease_causes_no_event(store: FilesStore, watch: FilesDeathWatch) -> None:
    store.join("alive", role="Runner")
    assert not watch.read()
    (folder,) = Path(store.root, "agents/Runner/in-progress").iterdir()
    for _ in range(3):
        assert leases.is_held(f"{folder}/{LEASE}")
    assert waiting.readable([watch.fileno()], 0) == []


def test_after_lost_events_recovery_looks_at_everything(
    watch: FilesDeathWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow = inotify.InotifyEvent(-1, inotify.Q_OVERFLOW, 0, "")
    monkeypatch.setattr(inotify.Inotify, "read", lambda self, timeout_s: [overflow])
    assert watch.read()


def test_a_watchdog_recovers_at_once(store: FilesStore, victims: Callable[[], Victim]) -> None:
    store.enqueue(Submission(role="Runner", prompt=stage.plan(), job_id=JOB))
    with running(Watchdog(store=store, log=quiet)):
        victim = victims()
        assert victim.state == "claimed"
        victim.kill()
        assert becomes(store, Status.STALE)


def test_a_manager_alone_recovers_at_once(store: FilesStore, victims: Callable[[], Victim]) -> None:
    store.enqueue(Submission(role="Runner", prompt=stage.plan(), job_id=JOB))
    with running(Manager(store=store, log=quiet, recovery=Recovery())):
        victim = victims()
        assert victim.state == "claimed"
        victim.kill()
        assert becomes(store, Status.QUEUED)
    view = store.find(JOB)
    assert view is not None
    assert view.lifecycle.not_before is None, "the first death is no reason to wait"


def test_a_manager_decides_at_once_what_a_watchdog_marked_stale(
    store: FilesStore, victims: Callable[[], Victim]
) -> None:
    store.enqueue(Submission(role="Runner", prompt=stage.plan(), job_id=JOB))
    with running(Manager(store=store, log=quiet)), running(Watchdog(store=store, log=quiet)):
        victims().kill()
        assert becomes(store, Status.QUEUED)


@pytest.mark.parametrize("report", [True, False], ids=["early and doubled", "lost"])
def test_false_and_lost_reports_change_nothing(
    store: FilesStore, victims: Callable[[], Victim], monkeypatch: pytest.MonkeyPatch, report: bool
) -> None:
    """Reports of deaths that did not happen recover no live agent's job; without any, the next turn recovers."""
    store.enqueue(Submission(role="Runner", prompt=stage.plan(), job_id=JOB))
    monkeypatch.setattr(FilesDeathWatch, "_is_free", lambda self, path: report)
    monkeypatch.setattr(FilesDeathWatch, "_watch_agents", lambda self, home: report)
    victim = victims()
    dog = Watchdog(store=store, log=quiet)
    dog.run_once()
    view = store.find(JOB)
    assert view is not None
    assert view.status is Status.IN_PROGRESS
    victim.kill()
    dog.run_once()
    assert becomes(store, Status.STALE)
    dog.leave()
