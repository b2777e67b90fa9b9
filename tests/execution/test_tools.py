"""Python callables as tools."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execution.bench import Bench, step
from farro.errors import ClaimLost
from farro.execution import Call, Interrupted, Tools
from farro.execution.functions import CallFiles, FunctionRun
from farro.execution.tools import Program, Python, ToolTrouble
from farro.host import fs
from support import eventually

pytestmark = pytest.mark.linux


def upper(call: Call) -> None:
    call.stdout.write(call.stdin.read().upper())
    call.stderr.write(f"{call.command} {call.args} {call.job_id} {call.env['FARRO_STEP']}".encode())


def test_a_callable_reads_the_step_before_and_writes_for_the_step_after(bench: Bench) -> None:
    result = bench.run(
        step(1, "echo", "hi"),
        step(2, "loud", "a", "b", tool="upper", input_from_step=1),
        step(3, "cat", input_from_step=2),
        tools=Tools({"upper": upper}),
    )
    assert result.success
    assert result.step_results[2].stdout == "HI\n"
    assert result.step_results[1].stderr == "loud ('a', 'b') job-1 2"


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3), (256 + 4, 4)])
def test_the_return_value_of_a_callable_is_its_exit_code(bench: Bench, returned: int | None, code: int) -> None:
    result = bench.run(step(1, "x", tool="t"), tools=Tools({"t": lambda call: returned}))
    assert result.step_results[0].exit_code == code
    assert result.success == (code == 0)


def leave(call: Call) -> None:
    sys.exit(5)


def test_a_callable_may_leave_by_sys_exit(bench: Bench) -> None:
    assert bench.run(step(1, "x", tool="t"), tools=Tools({"t": leave})).step_results[0].exit_code == 5


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [(None, 0, ""), (True, 1, ""), (-1, 255, ""), (256, 0, ""), ("no such page", 1, "no such page\n")],
)
def test_sys_exit_in_a_callable_works_as_in_a_program(bench: Bench, given: Any, code: int, said: str) -> None:
    def leave_so(call: Call) -> None:
        sys.exit(given)

    result = bench.run(step(1, "x", tool="t"), tools=Tools({"t": leave_so})).step_results[0]
    assert (result.exit_code, type(result.exit_code), result.stderr) == (code, int, said)
    program = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.exit({given!r})"], capture_output=True, text=True, check=False
    )
    assert (program.returncode, program.stderr) == (code, said)


def explode(call: Call) -> int:
    raise RuntimeError("boom")


def close_and_explode(call: Call) -> int:
    call.stderr.close()
    raise KeyboardInterrupt


def return_nonsense(call: Call) -> int:
    return True


@pytest.mark.parametrize("tool", [explode, close_and_explode, return_nonsense])
def test_an_exception_in_a_callable_is_a_failed_step(bench: Bench, tool: Callable[[Call], int]) -> None:
    result = bench.run(step(1, "x", tool="t"), step(2, "true"), tools=Tools({"t": tool}))
    assert len(result.step_results) == 1
    assert result.step_results[0].exit_code == 1
    if tool is not close_and_explode:
        assert "Traceback" in result.step_results[0].stderr
        assert tool.__name__ in result.step_results[0].stderr or tool is return_nonsense


def test_the_caller_is_ticked_while_a_callable_runs(bench: Bench) -> None:
    enough = threading.Event()
    bench.on_tick = lambda: enough.set() if bench.ticks >= 3 else None
    tools = Tools({"t": lambda call: int(not enough.wait(60))})
    assert bench.run(step(1, "x", tool="t"), tools=tools, tick_every_s=0.02).success


def test_a_callable_that_runs_python_is_ended_with_its_claim(bench: Bench) -> None:
    ended = threading.Event()

    def busy(call: Call) -> None:
        try:
            while True:
                time.sleep(0.005)
        finally:
            ended.set()

    def lose() -> None:
        raise ClaimLost("taken away")

    bench.on_tick = lose
    with pytest.raises(ClaimLost):
        bench.run(step(1, "x", tool="t"), tools=Tools({"t": busy}), tick_every_s=0.02)
    assert ended.wait(60)


def test_a_callable_that_cannot_be_ended_is_left_behind_and_does_not_hold_the_worker(bench: Bench) -> None:
    release = threading.Event()
    blocked = threading.Lock()
    blocked.acquire()

    def stuck(call: Call) -> None:
        bench.stop.request(0)
        blocked.acquire()  # in C, where no exception can interrupt it
        release.set()

    with pytest.raises(Interrupted):
        bench.run(step(1, "x", tool="t"), tools=Tools({"t": stuck}))
    assert not release.is_set()
    blocked.release()
    for thread in threading.enumerate():
        if thread.name == "tool x":
            thread.join(60)


def test_processes_of_a_callable_end_with_the_plan(bench: Bench) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def leave_one(call: Call) -> None:
        started.append(subprocess.Popen(["sleep", "1000"], env=dict(call.env)))

    assert bench.run(step(1, "x", tool="t"), tools=Tools({"t": leave_one})).success
    assert started[0].wait() == -15


def test_a_callable_with_a_timeout_runs_in_a_child_that_can_be_ended(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "farro_test_tool.py").write_text(
        "import os, time\n"
        "def quick(call):\n"
        "    call.stdout.write(b'%d %s' % (os.getppid(), call.stdin.read()))\n"
        "    call.stdout.write(f' {call.command} {call.args} {call.job_id} {call.cwd}'.encode())\n"
        "    return 0\n"
        "def slow(call):\n"
        "    while True: time.sleep(1000)\n"
        "def bad(call): raise RuntimeError('boom')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tools = Tools({name: f"farro_test_tool:{name}" for name in ("quick", "slow", "bad")})
    result = bench.run(
        step(1, "echo", "-n", "in"),
        step(2, "x", "y", tool="quick", timeout=60, input_from_step=1),
        step(3, "x", tool="bad", timeout=60, ok_exit_codes=[1]),
        step(4, "x", tool="slow", timeout=1.5),
        tools=tools,
    )
    assert result.step_results[1].stdout == f"{os.getpid()} in x ('y',) job-1 {bench.work}"
    assert "RuntimeError: boom" in result.step_results[2].stderr
    assert result.step_results[3].timed_out


# --- finding -----------------------------------------------------------------------------------------------------


def test_a_tool_is_found_by_reference_by_object_and_as_a_command_line() -> None:
    tools = Tools({"a": "os.path:join", "b": upper, "c": ["/bin/echo", "-n"]})
    found = tools.find("a")
    assert isinstance(found, Python)
    assert found.reference == "os.path:join"
    assert tools.find("b") == Python(upper, None)
    assert tools.find("c") == Program(("/bin/echo", "-n"))
    assert tools.find("d") is None


def test_a_registered_command_line_comes_before_command_and_args(bench: Bench) -> None:
    result = bench.run(step(1, "a", "b", tool="say"), tools=Tools({"say": ["echo", "-n"]}))
    assert result.step_results[0].stdout == "a b"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nonsense", "write pkg.mod:function"),
        ("no_such_module:x", "No module named"),
        ("os:no_such_function", "no_such_function"),
        ("os:sep", "not callable"),
        ([], "empty command line"),
    ],
)
def test_an_unavailable_tool_says_why(bench: Bench, value: str | list[str], message: str) -> None:
    tools = Tools({"t": value})
    with pytest.raises(ToolTrouble, match=message):
        tools.find("t")
    result = bench.run(step(1, "x", tool="t"), tools=tools)
    assert result.error is not None
    assert message in result.error.message


def test_installed_packages_offer_tools_and_are_asked_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        return [importlib.metadata.EntryPoint("joined", "os.path:join", group)]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    tools = Tools({"mine": upper})
    tools.find("mine")
    assert asked == []
    found = tools.find("joined")
    assert isinstance(found, Python)
    assert tools.find("other") is None
    assert asked == ["farro.tools"]
    assert tools.names() == ["function", "joined", "mine"]


def test_a_callable_that_is_ended_before_it_began_leaves_nothing_open(tmp_path: Path) -> None:
    """The thread has not called the function yet, or has just returned from it: the end is reported exactly once."""
    began = len(os.listdir("/proc/self/fd"))

    (tmp_path / "in").write_bytes(b"x")
    for number in range(300):
        run = FunctionRun(
            lambda call: None,
            _call,
            stdin=str(tmp_path / "in"),
            stdout=str(tmp_path / f"out{number}"),
            stderr=str(tmp_path / f"err{number}"),
        )
        assert run.end(None, grace_s=10.0) == ()
        assert run.exit is not None
        run.close()
    # The last threads close their descriptors a moment later; an idle thread keeps two.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= began + 2, "a descriptor is left open")


def test_ending_a_callable_that_syncs_leaves_other_syncs_alone(tmp_path: Path) -> None:
    """Syncs of several threads are merged: ending one thread must neither fail the others nor block them."""
    first, own, other = (str(tmp_path / name) for name in ("first", "own", "other"))
    for path in (first, own, other):
        fs.create(path, b"x")
    leading, let_go, syncing = threading.Event(), threading.Event(), threading.Event()

    class Seam:
        def perform(self, op: str, call: Callable[..., object], args: tuple[object, ...]) -> object:
            if op == "fsync" and args[-1] == first:
                leading.set()
                let_go.wait(30)
            if op == "fsync" and args[-1] == own:
                syncing.set()
                while True:  # in Python code, where an exception can interrupt this thread
                    time.sleep(0.001)
            return call(*args)

        def look(self, op: str, path: str) -> None: ...

    came: list[BaseException | None] = []

    def sync(path: str) -> None:
        try:
            fs.sync_all([path])
            came.append(None)
        except BaseException as error:
            came.append(error)

    def reached(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.001)

    fs.set_seam(Seam())
    try:
        threads = [threading.Thread(target=sync, args=(path,), daemon=True) for path in (first, other)]
        threads[0].start()
        assert leading.wait(20)
        run = FunctionRun(lambda call: fs.sync_all([own]), _call, stdin=None, stdout=f"{own}.o", stderr=f"{own}.e")
        reached(lambda: syncing.is_set() or len(fs._group.waiting) == 1)
        before = len(fs._group.waiting)
        threads[1].start()
        reached(lambda: len(fs._group.waiting) == before + 1)
        let_go.set()
        assert syncing.wait(20)
        run.end(None, grace_s=20)
        run.close()
        for thread in threads:
            thread.join(20)
        assert came == [None, None]
        fs.set_seam(None)
        later = threading.Thread(target=sync, args=(first,), daemon=True)
        later.start()
        later.join(20)
        assert came == [None, None, None]
    finally:
        fs.set_seam(None)


def _call(files: CallFiles) -> Call:
    return Call(
        command="",
        args=(),
        stdin=files.stdin,
        stdout=files.stdout,
        stderr=files.stderr,
        env={},
        cwd="/",
        job_id="job",
        attempt_dir="0001",
    )
