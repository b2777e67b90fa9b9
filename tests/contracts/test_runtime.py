"""The contract of the Runtime port. The only adapter so far: processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.errors import AlreadyRunning, InputError
from farro.host import cgroup, fs, process_table
from farro.host.clock import SystemClock
from farro.testing.runtime import *  # noqa: F403 - the suite
from farro.testing.runtime import RuntimeBench, alive
from farro.worker import process_runtime
from farro.worker.process_runtime import MARK, ProcessRuntime
from farro.worker.runtime import ComponentLimits, Runtime
from support import eventually


class Bench(RuntimeBench):
    """Components as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "components"
        super().__init__(folder)

    def another(self) -> Runtime:
        return ProcessRuntime(str(self.records), SystemClock())

    def record(self, name: str = "one") -> Path:
        return self.records / f"{name}.json"

    def living(self) -> list[int]:
        mark = f"{MARK}=".encode()
        found = []
        for entry in process_table.entries():
            try:
                environ = Path(f"/proc/{entry.pid}/environ").read_bytes()
                inside = os.readlink(f"/proc/{entry.pid}/cwd") == str(self.folder)
            except OSError:
                continue
            if entry.alive and inside and mark in environ:
                found.append(entry.pid)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    left = made.living()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(pid, signal.SIGKILL)
    for name in ("one", "two"):
        made.runtime.stop([name], 0.0)


def test_a_component_is_launched_with_its_environment_folder_and_log(bench: Bench) -> None:
    seen = bench.runtime.launch(bench.component("echo $COLOUR; pwd >&2; exec sleep 100000"))
    bench.saying(f"blue\n{bench.folder}\n")
    assert seen.alive
    assert seen == bench.runtime.look("one")
    assert os.getpgid(seen.pid or 0) == os.getsid(seen.pid or 0) == seen.pid


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)])
def test_the_exit_of_a_component_is_reported(bench: Bench, script: str, code: int) -> None:
    bench.runtime.launch(bench.component(f"{script}"))

    def seen() -> int | None:
        found = bench.runtime.look("one")
        return found.exit_code if found is not None else None

    eventually(lambda: seen() == code, "its exit code is not reported")
    found = bench.another().look("one")
    assert found is not None
    assert (found.alive, found.exit_code) == (False, code)  # other processes know it, too
    assert bench.runtime.launch(bench.component()).exit_code is None
    assert seen() is None  # the exit code was that of the earlier launch
    bench.runtime.stop(["one"])
    assert sorted(path.name for path in bench.records.iterdir() if path.name.startswith("one")) == []


def test_a_killed_component_is_seen_as_dead(bench: Bench) -> None:
    """It may be stopped or have children: no process is left. Its record stays and counts further launches."""
    assert not bench.runtime.kill("one")
    seen = bench.runtime.launch(bench.component("trap '' TERM; sleep 100000 & echo up; wait"))
    bench.saying("up")
    os.kill(seen.pid or 0, signal.SIGSTOP)
    assert bench.runtime.kill("one")
    assert bench.living() == []
    found = bench.another().look("one")
    assert found is not None
    assert (found.alive, found.exit_code, found.launches) == (False, -9, 1)
    assert not bench.runtime.kill("one")
    assert bench.runtime.launch(bench.component()).launches == 2


def test_an_exit_that_the_launcher_did_not_see_is_unknown(bench: Bench) -> None:
    one = launcher(bench)
    one.communicate("go\n")
    bench.saying("up")
    (seen,) = bench.another().list()
    os.kill(seen.pid or 0, signal.SIGKILL)
    eventually(lambda: not alive(bench), "it lives")
    (seen,) = bench.another().list()
    assert seen.exit_code is None


def test_leftover_processes_end_before_the_next_launch(bench: Bench) -> None:
    bench.runtime.launch(bench.component("setsid sleep 100000 & echo up"))
    bench.saying("up")
    eventually(lambda: not alive(bench), "it does not end")
    eventually(lambda: len(bench.living()) == 1, "it left nothing")
    seen = bench.runtime.launch(bench.component())
    eventually(lambda: bench.living() == [seen.pid], f"{bench.living()} are there, beside {seen.pid}")


HOG = "import sys; print('up', flush=True); kept = [bytearray(1 << 20) for _ in range(300)]; print('has', len(kept))"
BUSY = "print('up', flush=True)\nwhile True: pass"


@pytest.mark.parametrize("group", [True, False])
def test_memory_is_limited(bench: Bench, group: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is a cgroup where available, else the address space of each process."""
    if not group:
        monkeypatch.setattr(cgroup, "make", lambda **limits: None)
    limits = ComponentLimits(memory_bytes=200 << 20)
    bench.runtime.launch(bench.component(argv=(sys.executable, "-c", HOG), limits=limits))
    eventually(lambda: not alive(bench), "it does not end")
    bench.runtime.look("one")
    assert "has 300" not in bench.said()
    seen = bench.runtime.look("one")
    assert seen is not None
    assert seen.exit_code not in (None, 0)
    bench.runtime.launch(bench.component(argv=(sys.executable, "-c", HOG), name="two"))
    bench.saying("has 300", "two")  # without a limit


def test_processor_time_is_limited(bench: Bench) -> None:
    bench.runtime.launch(bench.component(argv=(sys.executable, "-c", BUSY), limits=ComponentLimits(cpu_s=1)))
    bench.saying("up")
    eventually(lambda: not alive(bench), "it does not end")
    seen = bench.runtime.look("one")
    assert seen is not None
    assert seen.exit_code == -signal.SIGXCPU


def test_a_log_is_bounded_while_its_component_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_runtime, "LOG_LIMIT", 1000)
    bench.runtime.launch(bench.component("i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done"))
    bench.saying("line 200")
    bench.another().tidy()
    bench.runtime.tidy()
    assert "line 200\n" in (bench.folder / "one.log.1").read_text()
    assert (bench.folder / "one.log.1").stat().st_size <= 1000
    eventually(lambda: bench.said().count("\n") > 3, "it writes no more")
    assert "line 1\n" not in bench.said()
    assert "\0" not in bench.said()  # the truncated log has no hole


def test_an_image_alone_is_not_for_this_runtime(bench: Bench) -> None:
    with pytest.raises(InputError, match="has an image, and this runtime starts commands only"):
        bench.runtime.launch(bench.component(argv=(), image="example/one:1"))
    assert bench.runtime.list() == []


LAUNCH = """
import json, os, sys
from farro.errors import AlreadyRunning
from farro.worker.runtime import ProcessSpec
from farro.worker.process_runtime import ProcessRuntime
from farro.host.clock import SystemClock
folder = sys.argv[1]
runtime = ProcessRuntime(folder + "/components", SystemClock())
component = ProcessSpec(name="one", argv=("sh", "-c", "echo up; exec sleep 100000"), env=dict(os.environ), cwd=folder,
                      log=folder + "/one.log")
sys.stdin.readline()
try:
    runtime.launch(component)
except AlreadyRunning:
    sys.exit(3)
"""


def launcher(bench: Bench) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LAUNCH, str(bench.folder)], stdin=subprocess.PIPE, text=True)


def test_two_launchers_at_once_start_it_once(bench: Bench) -> None:
    several = [launcher(bench) for _ in range(3)]
    for one in several:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in several:
        one.communicate()
    assert sorted(one.returncode for one in several) == [0, 3, 3]
    bench.saying("up")
    assert bench.said() == "up\n"


def test_a_component_outlives_its_launcher_and_is_adopted_by_the_next(bench: Bench) -> None:
    one = launcher(bench)
    one.communicate("go\n")
    bench.saying("up")
    (seen,) = bench.another().list()
    assert seen.alive
    assert [done.how for done in bench.another().stop(["one"])] == ["stopped"]
    assert bench.another().list() == []
    assert bench.living() == []


class Dying:
    """A seam at which this process dies at the n-th mutating call of that kind."""

    def __init__(self, op: str, count: int) -> None:
        self.op = op
        self.left = count

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if op == self.op:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return call(*args)

    def look(self, op: str, path: str) -> None:
        pass


def test_a_launcher_that_dies_before_it_wrote_the_number_leaves_nothing_unknown(bench: Bench) -> None:
    fs.set_seam(Dying("replace", 2))
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.runtime.launch(bench.component("echo up; sh -c 'exec sleep 100000' & exec sleep 100000"))
    finally:
        fs.set_seam(None)
    assert "pid" not in json.loads(bench.record().read_text())
    bench.saying("up")
    (seen,) = bench.another().list()
    assert seen.alive
    with pytest.raises(AlreadyRunning):
        bench.another().launch(bench.component())
    assert [done.how for done in bench.runtime.stop(["one"])] == ["stopped"]
    assert bench.living() == []


def test_a_launcher_that_dies_before_it_started_anything_is_no_obstacle(bench: Bench) -> None:
    fs.set_seam(Dying("create", 3))  # the lock, the record, and then the log
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.runtime.launch(bench.component())
    finally:
        fs.set_seam(None)
    assert bench.record().exists()
    (seen,) = bench.runtime.list()
    assert not seen.alive
    assert bench.runtime.launch(bench.component()).alive


def test_a_reused_process_id_is_not_the_component(bench: Bench) -> None:
    bench.runtime.launch(bench.component())
    record = json.loads(bench.record().read_text())
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        bench.record().write_text(json.dumps({**record, "pid": innocent.pid, "start": record["start"] - 1}))
        assert not alive(bench)
        assert [done.how for done in bench.runtime.stop(["one"])] == ["was gone"]
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
    assert bench.living() == []  # processes with its marker are still ended


def test_a_record_of_an_earlier_boot_is_not_the_component(bench: Bench) -> None:
    bench.runtime.launch(bench.component())
    record = json.loads(bench.record().read_text())
    bench.record().write_text(json.dumps({**record, "boot_id": "another"}))
    assert not alive(bench)


def test_launches_by_any_launcher_are_counted_until_the_component_is_stopped(bench: Bench) -> None:
    for count in (1, 2, 3):
        launcher = bench.another()
        assert launcher.launch(bench.component("exit 0")).launches == count
        eventually(lambda launcher=launcher: not launcher.list()[0].alive, "it does not end")  # type: ignore[misc]
    (seen,) = bench.runtime.list()
    assert seen.launches == 3
    record = json.loads(bench.record().read_text())
    del record["launches"]  # written by an older farro
    bench.record().write_text(json.dumps(record))
    assert [one.launches for one in bench.runtime.list()] == [1]
    bench.runtime.stop(["one"])
    assert bench.runtime.launch(bench.component("exit 0")).launches == 1


def test_a_program_that_cannot_be_executed_is_reported_and_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(InputError, match="one could not be started: no-such-program: No such file"):
        bench.runtime.launch(bench.component(argv=("no-such-program",)))
    assert bench.runtime.list() == []


def test_a_torn_record_is_no_component(bench: Bench) -> None:
    bench.records.mkdir()
    bench.record().write_text('{"name": "o')
    assert bench.runtime.look("one") is None
    assert bench.runtime.list() == []
    assert bench.runtime.launch(bench.component()).alive


def test_a_component_is_ended_without_those_that_it_launched(bench: Bench) -> None:
    assert not bench.runtime.end_alone("one", 0.0)
    bench.runtime.launch(bench.component("setsid sh -c 'echo up; exec sleep 100000' & wait"))
    bench.saying("up")
    assert bench.another().end_alone("one", 30.0)
    found = bench.another().look("one")
    assert found is not None
    assert not found.alive
    eventually(lambda: len(bench.living()) == 1, "what it launched ended with it")
    bench.runtime.stop(["one"], 0.0)
    assert bench.living() == []


def test_a_deaf_component_is_killed_alone(bench: Bench) -> None:
    seen = bench.runtime.launch(bench.component("trap '' TERM; sleep 100000 & echo up; while :; do wait; done"))
    bench.saying("up")
    assert bench.runtime.end_alone("one", 0.0)
    eventually(lambda: not alive(bench), "it lives")
    assert seen.pid not in bench.living()
    assert len(bench.living()) == 1
