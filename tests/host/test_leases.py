"""Leases are dropped whenever their holder dies, and no child process keeps one alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from farro.host import fs, leases

pytestmark = pytest.mark.linux


@contextmanager
def holder(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process that prints a line when it is ready. The fixture ends it and its children."""
    command = [sys.executable, "-c", script, *args]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def line(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    assert stream is not None
    return stream.readline().strip()


HOLD = """
import sys
from farro.host import leases
lease = leases.create(sys.argv[1], b"me")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lease_is_dropped_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    with holder(HOLD, path) as process:
        assert line(process) == "held"
        assert leases.is_held(path)
        assert leases.take(path) is None
        process.kill()
        process.wait()
        assert not leases.is_held(path)
        lease = leases.take(path)
        assert lease is not None
        lease.drop()


def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    with holder(HOLD, path) as process:
        assert line(process) == "held"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert leases.is_held(path), "a zombie is fenced by its paths, not by its lease"


SPAWN = """
import subprocess, sys
from farro.host import leases
lease = leases.create(sys.argv[1], b"me")
child = subprocess.Popen(["sleep", "600"])
loose = subprocess.Popen(["sleep", "600"], close_fds=False)
print(child.pid, loose.pid, flush=True)
sys.stdin.read()
"""


def test_a_subprocess_does_not_inherit_the_lease(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    with holder(SPAWN, path) as process:
        children = [int(pid) for pid in line(process).split()]
        process.kill()
        process.wait()
        for pid in children:
            os.kill(pid, 0)  # they live on
        assert not leases.is_held(path)


FORK = """
import os, sys
from farro.host import leases
lease = leases.create(sys.argv[1], b"me")
folder = leases.take(sys.argv[2])
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(tell, b"x")  # fork has returned here: its descriptors are closed
    os.read(0, 1)
    os._exit(0)
os.read(ready, 1)
print(pid, flush=True)
sys.stdin.read()
"""


def test_a_bare_fork_does_not_inherit_the_lease(tmp_path: Path) -> None:
    """A child made by multiprocessing in a Python tool outlives its worker and must not keep the lease."""
    path, folder = str(tmp_path / ".lease"), str(tmp_path / "folder")
    os.mkdir(folder)
    with holder(FORK, path, folder) as process:
        child = int(line(process))
        assert leases.is_held(path), "the parent keeps it"
        assert leases.is_held(folder)
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives on
        assert not leases.is_held(path)
        assert not leases.is_held(folder)


class ForkAfter:
    """A seam that forks right after a file was opened, as another thread might."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.child = 0
        self.gate = os.pipe()
        self.ready = os.pipe()

    def fork(self) -> None:
        if self.child == 0:
            self.child = os.fork()
            if self.child == 0:
                os.close(self.gate[1])
                os.write(self.ready[1], b"x")  # fork has returned here: its descriptors are closed
                os.read(self.gate[0], 1)  # until the parent has closed its end
                os._exit(0)
            os.read(self.ready[0], 1)

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        answer = call(*args)
        if op == self.op:
            self.fork()
        return answer

    def look(self, op: str, path: str) -> None:
        if op == self.op:
            self.fork()

    def end(self) -> None:
        for fd in (*self.gate, *self.ready):
            os.close(fd)
        os.waitpid(self.child, 0)


@pytest.mark.parametrize("op", ["create", "write", "stat"])
def test_a_fork_while_a_lease_is_being_opened_does_not_inherit_it(tmp_path: Path, op: str) -> None:
    path = str(tmp_path / ".lease")
    if op == "stat":
        leases.create(path, b"x").drop()
    seam = ForkAfter(op)
    fs.set_seam(seam)
    try:
        lease = leases.take(path) if op == "stat" else leases.create(path, b"x")
    finally:
        fs.set_seam(None)
    try:
        assert lease is not None
        assert leases.is_held(path)
        lease.drop()
        os.kill(seam.child, 0)
        assert not leases.is_held(path), "the living child holds it"
    finally:
        seam.end()


def test_a_lease_is_held_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    mine = leases.create(path, b"content")
    assert leases.take(path) is None
    assert Path(path).read_bytes() == b"content", "every process may read the holder"
    mine.drop()
    mine.drop()  # dropping twice is no error, and closes no foreign descriptor
    second = leases.take(path)
    assert second is not None
    assert leases.take(path) is None
    second.drop()


def test_a_lease_dropped_twice_closes_no_foreign_file(tmp_path: Path) -> None:
    lease = leases.create(str(tmp_path / "a"), b"")
    lease.drop()
    other = leases.create(str(tmp_path / "b"), b"")  # reuses the descriptor number of the first
    lease.drop()
    assert leases.is_held(str(tmp_path / "b"))
    other.drop()


def test_of_two_takers_one_gets_it(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    leases.create(path, b"").drop()
    for _ in range(50):
        together = threading.Barrier(4)
        got: list[leases.Lease | None] = []

        def take(together: threading.Barrier = together, got: list[leases.Lease | None] = got) -> None:
            together.wait()
            got.append(leases.take(path))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [lease for lease in got if lease is not None]
        assert len(winners) == 1
        winners[0].drop()


def test_a_missing_lease_has_no_holder(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    assert not leases.is_held(path)
    with pytest.raises(FileNotFoundError):
        leases.take(path)


def test_an_existing_file_is_not_leased_again(tmp_path: Path) -> None:
    path = str(tmp_path / ".lease")
    leases.create(path, b"first").drop()
    with pytest.raises(FileExistsError):
        leases.create(path, b"second")
    assert Path(path).read_bytes() == b"first"


class BeforeStat:
    """A seam that acts between the lock and the stat that follows it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return call(*args)

    def look(self, op: str, path: str) -> None:
        if op == "stat":
            self.act()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_lock_on_a_removed_file_is_no_lease(tmp_path: Path, replaced: bool) -> None:
    """A watchdog recovered the folder and unlinked the file between our open and our lock."""
    path = tmp_path / ".lease"
    leases.create(str(path), b"old").drop()

    def remove() -> None:
        path.unlink()
        if replaced:
            path.write_bytes(b"new")

    before = set(os.listdir("/proc/self/fd"))
    fs.set_seam(BeforeStat(remove))
    try:
        with pytest.raises(FileNotFoundError):
            leases.take(str(path))
    finally:
        fs.set_seam(None)
    assert len(os.listdir("/proc/self/fd")) == len(before), "no descriptor is left open"
    assert not leases.is_held(str(path))


def test_a_folder_can_be_leased(tmp_path: Path) -> None:
    mine = leases.take(str(tmp_path))
    assert mine is not None
    assert leases.take(str(tmp_path)) is None
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    assert leases.is_held(str(moved)), "the lease moves with the folder"
    moved.rename(tmp_path)
    mine.drop()
    assert not leases.is_held(str(tmp_path))


def test_a_planted_fifo_or_link_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.symlink(tmp_path, tmp_path / "link")
    for name in ("fifo", "link"):
        with pytest.raises(OSError):
            leases.take(str(tmp_path / name))


def test_a_heartbeat_changes_the_files_time(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    lease = leases.create(str(path), b"x")
    os.utime(path, ns=(1, 1))
    lease.beat()
    assert path.stat().st_mtime_ns > 1
    lease.drop()


def test_a_lock_that_is_waited_for_can_be_opened_by_no_other_user(tmp_path: Path) -> None:
    """Every process that can read a file can lock it for any time."""
    path = tmp_path / "lock"
    before = os.umask(0)
    try:
        with leases.exclusively(str(path)):
            assert path.stat().st_mode & 0o777 == 0o660
    finally:
        os.umask(before)


def test_a_briefly_held_lock_is_awaited(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    inside: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with leases.exclusively(path):
            inside.append("second")

    with leases.exclusively(path):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
        inside.append("first")
    thread.join()
    assert inside == ["first", "second"]
