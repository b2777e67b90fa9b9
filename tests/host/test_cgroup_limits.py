"""A cgroup around the processes of one job: it bounds them, ends them, and goes. Where none can be made, it says so."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from farro.host import cgroup_limits
from farro.host.cgroup_limits import LimitGroup
from support import need

pytestmark = pytest.mark.linux


@pytest.fixture
def group() -> Iterator[LimitGroup]:
    made = cgroup_limits.make(processes=20, memory_bytes=256 << 20)
    need(made is not None, "a cgroup that may be made (root, or systemd's Delegate)")
    assert made is not None
    yield made
    made.close()
    assert not any(os.path.exists(folder) for folder in made.folders)


def test_what_is_inside_is_ended_with_it(group: LimitGroup) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.attach(process.pid)
        assert group.close() == ()
        assert process.wait(60) == -9


def test_it_holds_so_many_processes_and_tells_when_more_were_refused(group: LimitGroup) -> None:
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


def test_a_thread_that_entered_does_not_take_its_process_along(group: LimitGroup) -> None:
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
    assert group.close() == ()  # and we are here to tell
    thread.join()


def test_one_that_has_ended_can_be_attached(group: LimitGroup) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    group.attach(process.pid)


def test_where_there_is_no_hierarchy_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_limits, "_place", lambda *_: None)
    assert cgroup_limits.make(processes=5, memory_bytes=None) is None


def test_where_it_may_not_be_written_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_limits, "_place", lambda *_: "/proc/self")
    assert cgroup_limits.make(processes=5, memory_bytes=1 << 30) is None
