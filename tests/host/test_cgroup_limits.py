"""A cgroup around the processes of one job limits and ends them and is then removed, where cgroups are available."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from farro.host import cgroup
from farro.host.cgroup import LimitGroup
from support import need

pytestmark = pytest.mark.linux


@pytest.fixture
def group() -> Iterator[LimitGroup]:
    made = cgroup.make(processes=20, memory_bytes=256 << 20)
    need(made is not None, "a cgroup that may be made (root, or systemd's Delegate)")
    assert made is not None
    yield made
    made.close()
    assert not any(os.path.exists(folder) for folder in made.folders)


def test_ending_a_limit_group_ends_its_processes(group: LimitGroup) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.attach(process.pid)
        assert group.close() == ()
        assert process.wait(60) == -9


def test_a_limit_group_bounds_processes_and_reports_refusals(group: LimitGroup) -> None:
    assert not group.full()
    script = "read x; i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done; wait"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        group.attach(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        until = time.monotonic() + 60
        while not group.full() and time.monotonic() < until:
            time.sleep(0.005)
        assert group.full()
        group.close()


def test_a_thread_enters_a_limit_group_without_its_process(group: LimitGroup) -> None:
    need(group.by_thread, "cgroups of version 1")
    entered, leave = threading.Event(), threading.Event()

    def visit() -> None:
        group.enter()
        entered.set()
        leave.wait(60)

    thread = threading.Thread(target=visit)
    thread.start()
    entered.wait(60)
    closing = threading.Timer(0.05, leave.set)
    closing.start()
    assert group.close() == ()  # and this process is still alive
    thread.join()


def test_attaching_an_ended_process_is_no_error(group: LimitGroup) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    group.attach(process.pid)


def test_no_limit_group_is_made_without_a_cgroup_hierarchy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_place", lambda *_: None)
    assert cgroup.make(processes=5, memory_bytes=None) is None


def test_no_limit_group_is_made_in_a_read_only_hierarchy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_place", lambda *_: "/proc/self")
    assert cgroup.make(processes=5, memory_bytes=1 << 30) is None
