"""Runner slots: limited in number, freed by the kernel, awaited without polling; and the records of their holders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.execution.runners import runner_slots
from farro.execution.runners.runner_slots import RunnerSlot, RunnerSlots
from farro.execution.stop import Stop
from farro.host import process_identity
from farro.host.clock import SystemClock
from support import eventually

HOLDER = """
import sys, time
from farro.execution.stop import Stop
from farro.execution.runners.runner_slots import RunnerSlots
from farro.host import process_identity
from farro.host.clock import SystemClock
place = RunnerSlots(sys.argv[1], 1).take(tick=lambda: None, every_s=1.0, stop=Stop(SystemClock()))
place.note({"job_id": "held", **process_identity.identity()})
print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "jobs").mkdir()
    return str(tmp_path)


@pytest.fixture
def stop() -> Iterator[Stop]:
    made = Stop(SystemClock())
    yield made
    made.close()


def take(root: str, stop: Stop, limit: int = 2) -> RunnerSlot | None:
    return RunnerSlots(root, limit).take(tick=lambda: None, every_s=0.05, stop=stop)


def taken(root: str, stop: Stop, limit: int = 2) -> RunnerSlot:
    place = take(root, stop, limit)
    assert place is not None
    return place


def test_no_more_runner_slots_are_taken_than_the_limit(root: str, stop: Stop) -> None:
    held = [taken(root, stop), taken(root, stop)]
    assert len({place.path for place in held}) == 2
    stop.request(0.0)
    assert take(root, stop) is None
    held[0].free()
    again = taken(root, stop)
    assert again.path == held[0].path
    for place in (again, held[1]):
        place.free()


def test_a_freed_runner_slot_wakes_a_waiting_thread(root: str, stop: Stop) -> None:
    held = taken(root, stop, 1)
    came: list[RunnerSlot | None] = []
    patient = RunnerSlots(root, 1)
    # A tick every ten minutes: only the notification can wake it in time.
    thread = threading.Thread(target=lambda: came.append(patient.take(tick=lambda: None, every_s=600.0, stop=stop)))
    thread.start()
    eventually(_watching, "no thread waits")
    held.free()
    thread.join(60)
    assert came[0] is not None
    came[0].free()


def test_waiting_threads_take_a_runner_slot_in_turn(root: str, stop: Stop) -> None:
    shared = RunnerSlots(root, 1)
    held = taken(root, stop, 1)
    at_once: list[int] = []
    inside = threading.Lock()

    def use() -> None:
        place = shared.take(tick=lambda: None, every_s=600.0, stop=stop)
        assert place is not None
        at_once.append(inside.acquire(blocking=False))
        inside.release()
        place.free()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(_watching, "no thread waits")
    held.free()
    for thread in threads:
        thread.join(60)
    assert at_once == [True] * 8


def _watching() -> bool:
    """Check that a thread waits: the process has an inotify instance with a watch."""
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            if "inotify wd:" in Path("/proc/self/fdinfo", name).read_text():
                return True
        except OSError:
            continue
    return False


def test_a_dead_holder_frees_its_runner_slot_and_its_record_is_swept(root: str, stop: Stop) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, root], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert [record["pid"] for record in runner_slots.records(root)] == [holder.pid]
    assert runner_slots.sweep(root) == []
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert runner_slots.records(root) == []
    assert [record["job_id"] for record in runner_slots.sweep(root)] == ["held"]
    assert runner_slots.sweep(root) == []
    taken(root, stop, 1).free()


def test_a_torn_record_names_no_holder_and_is_swept(root: str, stop: Stop) -> None:
    taken(root, stop, 1).free()
    path = Path(root, runner_slots.FOLDER, "0")
    path.write_text('{"job_id": "ha')
    assert runner_slots.records(root) == []
    assert runner_slots.sweep(root) == []
    assert path.read_text() == ""


def test_a_stale_record_with_a_reused_pid_kills_no_process(root: str, stop: Stop) -> None:
    taken(root, stop, 1).free()
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        record = {**process_identity.identity_of(innocent.pid), "job_id": "gone"}
        record["start"] = 1
        Path(root, runner_slots.FOLDER, "0").write_text(json.dumps(record))
        assert len(runner_slots.sweep(root)) == 1
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_stale_record_does_not_block_its_runner_slot(root: str, stop: Stop) -> None:
    taken(root, stop, 1).free()
    Path(root, runner_slots.FOLDER, "0").write_text('{"job_id": "gone"}\n')
    place = taken(root, stop, 1)
    assert runner_slots.records(root) == []
    place.note({"job_id": "new"})
    assert runner_slots.records(root) == [{"job_id": "new"}]
    place.free()
