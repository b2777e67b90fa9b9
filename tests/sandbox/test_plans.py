"""Run confined plans as a worker does: lost claims, timeouts, swapped paths, parallel steps and parallel plans."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farro.errors import ClaimLost
from farro.execution.runner import Guarding, Work
from farro.execution.stop import Stop
from farro.execution.tools import Call, Tools
from farro.execution.work import PlanCache, perform_work
from farro.host import process_table
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Failed, Outcome, Succeeded
from farro.sandbox.levels import Sandbox
from farro.web import access_keys

pytestmark = pytest.mark.linux


class Desk:
    """A root, and all that is needed to run plans in it."""

    def __init__(self, root: Path, level: str) -> None:
        self.root, self.level = root, level
        self.guarding = Guarding(sandbox=level, required=True)  # type: ignore[arg-type]
        self.count = 0

    def perform(self, *steps: dict[str, Any], tick: Callable[[], None] = lambda: None, **plan: Any) -> Outcome:
        self.count += 1
        folder = self.root / f"agents/Runner/in-progress/a/{self.count}/attempts/0001"
        folder.mkdir(parents=True)
        tools = plan.pop("tools", Tools())
        work = Work(
            job_id=f"j{self.count}",
            prompt={"allowed_paths": ["out/"], "steps": list(steps), **plan},
            folder=str(folder),
            marker=f"desk-{self.root}",
            env={"PATH": os.environ["PATH"]},
            cwd=str(self.root),
            root=str(self.root),
            step_timeout_s=60,
            durable=False,
            guarding=self.guarding,
        )
        clock = SystemClock()
        stop = Stop(clock)
        try:
            return perform_work(
                work, plans=PlanCache(), tools=tools, clock=clock, tick=tick, stop=stop, tick_every_s=0.05
            )
        finally:
            stop.close()

    def living(self) -> list[int]:
        claim = f"FARRO_CLAIM=desk-{self.root}"
        return [e.pid for e in process_table.entries() if e.alive and process_table.carries(e.pid, claim)]


@pytest.fixture
def desk(tmp_path: Path, sandbox: Sandbox) -> Iterator[Desk]:
    made = Desk(tmp_path, sandbox.level)
    yield made
    assert made.living() == []


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "command": "sh", "args": ["-c", script], **more}


def error_of(came: Outcome) -> tuple[str, str]:
    assert isinstance(came, Failed), came
    return came.error.category, came.error.message


def test_a_job_that_was_taken_away_leaves_nothing(desk: Desk) -> None:
    def tick() -> None:
        if (desk.root / "out/ready").exists():
            raise ClaimLost("it is another's now")

    with pytest.raises(ClaimLost):
        desk.perform(shell("a", 'trap "" TERM; setsid sleep 1000 & echo > out/ready; sleep 1000'), tick=tick)
    assert desk.living() == []


def test_a_step_that_takes_too_long_has_its_grace(desk: Desk) -> None:
    script = 'trap "echo bye > out/bye; exit 0" TERM; while :; do sleep 0.01; done'
    category, message = error_of(desk.perform(shell("a", script, timeout=0.5)))
    assert category == "timeout", message
    assert (desk.root / "out/bye").read_text() == "bye\n"


def test_a_step_cannot_widen_the_allowed_paths_of_the_next(desk: Desk) -> None:
    """The step replaces an allowed folder inside another one by a link to a forbidden folder."""
    (desk.root / "out/inner").mkdir(parents=True)
    (desk.root / "other").mkdir()
    swap = shell("a", "mv out/inner out/gone && ln -s ../other out/inner")
    use = shell("b", "echo x > out/inner/planted", needs=["a"])
    came = desk.perform(swap, use, allowed_paths=["out", "out/inner"])
    assert isinstance(came, Failed)
    assert list((desk.root / "other").iterdir()) == []


def test_a_step_with_network_cannot_read_the_keys_of_the_http_front(desk: Desk) -> None:
    """With the keys it could submit a command that runs unconfined. The plans of swarms are hidden, too."""
    (desk.root / "jobs").mkdir()
    (desk.root / "swarms").mkdir()
    (desk.root / "swarms/plan.json").write_text("a password")
    access_keys.token(str(desk.root), os.urandom)
    desk.guarding = replace(desk.guarding, network=True)
    for secret in ("jobs/.web/token", "swarms/plan.json"):
        category, _ = error_of(desk.perform(shell("a", f"cat {secret} > out/stolen")))
        assert category in ("step_failed", "path_violation")
        assert (desk.root / "out/stolen").read_bytes() == b""
    assert isinstance(desk.perform(shell("a", "ls jobs > out/seen; cat out/stolen")), Succeeded)


def test_keys_created_while_a_step_runs_are_hidden_from_it(desk: Desk) -> None:
    """The first `farro web` of this root, which creates the keys, is started while the step runs."""
    (desk.root / "jobs").mkdir()
    desk.guarding = replace(desk.guarding, network=True)

    def tick() -> None:
        if (desk.root / "out/ready").exists() and not (desk.root / "out/go").exists():
            access_keys.token(str(desk.root), os.urandom)
            (desk.root / "out/go").touch()

    script = "touch out/ready; until [ -e out/go ]; do sleep 0.01; done; cat jobs/.web/token > out/stolen"
    category, _ = error_of(desk.perform(shell("a", script), tick=tick))
    assert category in ("step_failed", "path_violation")
    assert (desk.root / "jobs/.web/token").read_bytes() != b""
    assert (desk.root / "out/stolen").read_bytes() == b""


@pytest.mark.parametrize("wanted", [".", "out"])
def test_a_step_cannot_write_requests_to_swarms(desk: Desk, wanted: str) -> None:
    """The orchestrator starts everything in its folder of wishes, without a sandbox."""
    for folder in ("swarms/orchestrator/wishes", "bus/queues"):
        (desk.root / folder).mkdir(parents=True)
    for place in ("swarms/orchestrator/wishes/w", "bus/queues/q", "swarms/new", "bus/new"):
        category, _ = error_of(desk.perform(shell("a", f"echo x > {place}"), allowed_paths=[wanted]))
        assert category in ("step_failed", "path_violation")
    assert [path for name in ("swarms", "bus") for path in (desk.root / name).rglob("*") if path.is_file()] == []


def test_parallel_steps_are_each_confined(desk: Desk) -> None:
    script = "echo {0} > out/{0}; echo {0} > nope-{0} || true"
    steps = [shell(f"s{number}", script.format(number)) for number in range(6)]
    assert isinstance(desk.perform(*steps, parallel=3), Succeeded)
    assert sorted(os.listdir(desk.root / "out")) == [str(number) for number in range(6)]
    assert not list(desk.root.glob("nope*"))


def test_parallel_plans_do_not_affect_each_other(desk: Desk) -> None:
    came: list[Outcome] = []
    lock = threading.Lock()
    desks = [Desk(desk.root / f"root-{number}", desk.level) for number in range(4)]

    def run(one: Desk) -> None:
        for _ in range(3):
            told = one.perform(shell("a", "sleep 0.05 & echo x > out/x; wait"))
            with lock:
                came.append(told)

    threads = [threading.Thread(target=run, args=(one,)) for one in desks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(came) == 12
    assert all(isinstance(one, Succeeded) for one in came), came


def test_processes_left_by_a_step_end_with_the_plan(desk: Desk) -> None:
    assert isinstance(desk.perform(shell("a", "setsid sleep 1000 > /dev/null 2>&1 & echo started")), Succeeded)
    assert desk.living() == []


def test_a_function_inside_the_worker_cannot_be_confined_and_is_refused(desk: Desk) -> None:
    def write(call: Call) -> None:
        (desk.root / "nope").touch()

    step = {"id": "a", "tool": "write", "command": "x"}
    category, message = error_of(desk.perform(step, tools=Tools({"write": write})))
    assert category == "missing_tool"
    assert "cannot be confined to allowed_paths" in message
    assert not (desk.root / "nope").exists()


def test_the_folder_for_temporary_files_is_gone_afterwards(desk: Desk) -> None:
    assert isinstance(desk.perform(shell("a", 'mkdir -p "$TMPDIR/a/b"; ln -s / "$TMPDIR/a/link"')), Succeeded)
    assert not list(desk.root.glob("agents/Runner/in-progress/a/*/attempts/0001/tmp"))
    assert os.path.isdir("/proc")


def test_the_error_names_the_limit_that_was_reached(desk: Desk) -> None:
    from farro.host import cgroup
    from support import need

    group = cgroup.make(processes=5, memory_bytes=None)
    need(group is not None, "a cgroup that may be made (root, or systemd's Delegate)")
    assert group is not None
    group.close()
    desk.guarding = Guarding(sandbox=desk.level, required=True, processes=12)  # type: ignore[arg-type]
    script = "i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done"
    category, message = error_of(desk.perform(shell("a", script)))
    assert (category, "security.max_processes" in message) == ("step_failed", True), message


def test_a_busy_plan_costs_its_worker_no_descriptor(desk: Desk) -> None:
    desk.perform(shell("a", "true"))
    began = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        desk.perform(shell("a", "echo x"), shell("b", "cat", input_from_step="a"))
    until = time.monotonic() + 30
    while len(os.listdir("/proc/self/fd")) > began and time.monotonic() < until:
        time.sleep(0.01)  # a thread that fills a pipe may still be leaving
    assert len(os.listdir("/proc/self/fd")) <= began
