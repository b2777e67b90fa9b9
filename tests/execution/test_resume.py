"""A retried attempt starts after the steps that succeeded and verifies what it takes over from them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execution.bench import Bench, shell, step
from farro.execution import PlanResult, records, results
from farro.execution.tools import Call, Tools


class Attempts:
    """Run successive attempts of one plan, each in its own folder."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.count = 0
        self.folders: list[str] = []
        self.straggler: Callable[..., str]

    def run(self, *steps: dict[str, Any], **options: Any) -> PlanResult:
        self.count += 1
        self.bench.attempt = self.bench.folder / f"a{self.count:04d}"
        self.bench.attempt.mkdir()
        result = self.bench.run(*steps, earlier=tuple(self.folders), **options)
        self.folders.append(str(self.bench.attempt))
        return result

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(self.folders[-1], records.NAME).read_text().splitlines()]

    def ran(self) -> list[str]:
        """Return the lines that the steps of `chain` logged in all attempts."""
        return (self.bench.work / "log").read_text().split()


@pytest.fixture
def attempts(bench: Bench) -> Attempts:
    return Attempts(bench)


def chain(*, ok: str) -> list[dict[str, Any]]:
    """Return three piped steps; the last succeeds once the file exists."""
    return [
        shell(1, "echo one; echo 1 >> log"),
        shell(2, "cat; echo two; echo 2 >> log", input_from_step=1),
        shell(3, f"cat; echo 3 >> log; test -e {ok}", input_from_step=2),
    ]


def test_steps_that_succeeded_are_not_run_again(attempts: Attempts) -> None:
    assert not attempts.run(*chain(ok="ok")).success
    (attempts.bench.work / "ok").touch()
    result = attempts.run(*chain(ok="ok"))
    assert result.success
    assert attempts.ran() == ["1", "2", "3", "3"]
    assert [(one.id, one.resumed, one.stdout) for one in result.step_results] == [
        ("1", True, "one\n"),
        ("2", True, "one\ntwo\n"),
        ("3", False, "one\ntwo\n"),
    ]


def test_each_attempt_needs_only_the_folder_of_the_last_one(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    attempts.run(*chain(ok="ok"))
    assert attempts.bench.bytes_of(2) == b"one\ntwo\n"
    attempts.folders = attempts.folders[1:]  # the first is gone
    (attempts.bench.work / "ok").touch()
    assert attempts.run(*chain(ok="ok")).success
    assert attempts.ran() == ["1", "2", "3", "3", "3"]


def test_an_attempt_that_died_before_taking_over_steps_loses_none(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    empty = attempts.bench.folder / "empty"
    empty.mkdir()
    torn = attempts.bench.folder / "torn"
    torn.mkdir()
    (torn / records.NAME).write_text('{"version": 1, "bo')
    attempts.folders += [str(empty), str(torn)]
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "3"]


def test_a_torn_last_line_is_a_step_that_did_not_end(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    path = Path(attempts.folders[-1], records.NAME)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + whole[2][:40])
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "2", "3"]


def test_a_step_whose_output_changed_is_run_again(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    Path(attempts.folders[-1], "steps", "1", "stdout").write_bytes(b"o")
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "1", "2", "3"]


def test_tasks_added_by_a_successful_step_are_taken_over(attempts: Attempts) -> None:
    add = "import farro; farro.add_task('sh', ['-c', 'echo child >> log'], id='child')"
    plan = [shell(1, f'{sys.executable} -c "{add}"; echo 1 >> log'), shell(2, "echo 2 >> log; test -e ok")]
    assert not attempts.run(*plan).success
    (attempts.bench.work / "ok").touch()
    result = attempts.run(*plan)
    assert result.success
    assert attempts.ran() == ["1", "2", "2", "child"]
    assert [(one.id, one.added_by) for one in result.step_results] == [("1", None), ("2", None), ("child", "1")]
    assert result.steps_total == 3


def test_an_added_step_that_succeeded_is_not_run_again(attempts: Attempts) -> None:
    def grow(call: Call) -> int | None:
        with (attempts.bench.work / "log").open("a") as log:
            log.write(call.command + "\n")
        if call.command == "root":
            call.add_task("child", id="child", tool="grow")
            call.add_task("last", id="last", needs=["child"], tool="grow")
        return 1 if call.command == "last" and not (attempts.bench.work / "ok").exists() else None

    tools = Tools({"grow": grow})
    plan = {"id": "root", "tool": "grow", "command": "root"}
    assert not attempts.run(plan, tools=tools).success
    (attempts.bench.work / "ok").touch()
    result = attempts.run(plan, tools=tools)
    assert result.success
    assert attempts.ran() == ["root", "child", "last", "last"]
    assert [one.step_number for one in result.step_results] == [1, 2, 3]


def test_after_a_reboot_only_synced_steps_count(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.run(*chain(ok="ok"))
    monkeypatch.setattr(records, "boot_id", lambda: "another")
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "1", "2", "3"]


def test_a_second_of_work_is_synced_and_survives_the_power(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_WORK_S", 0.0)
    monkeypatch.setattr(records, "_SHARE", 0.0)
    attempts.run(*chain(ok="ok"))
    assert [line.get("id", "synced") for line in attempts.lines()[1:]] == ["1", "synced", "2", "synced", "3", "synced"]
    monkeypatch.setattr(records, "boot_id", lambda: "another")
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "3"]


def test_durability_process_syncs_nothing(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_WORK_S", 0.0)
    monkeypatch.setattr(records, "_SHARE", 0.0)
    attempts.run(*chain(ok="ok"), durable=False)
    assert not any("synced" in line for line in attempts.lines())


def test_a_plan_of_one_step_writes_no_record(attempts: Attempts) -> None:
    attempts.run(step(1, "true"))
    assert not Path(attempts.folders[-1], records.NAME).exists()


def test_steps_that_ran_together_are_resumed_each_for_itself(attempts: Attempts) -> None:
    plan = [
        {"id": name, "command": "sh", "args": ["-c", f"echo {name} >> log; {more}"]}
        for name, more in (
            ("a", "true"),
            ("b", "while [ ! -e late ]; do sleep 0.01; done"),
            ("c", "touch late; test -e ok"),
        )
    ]
    assert not attempts.run(*plan, parallel=2).success
    (attempts.bench.work / "ok").touch()
    assert attempts.run(*plan, parallel=2).success
    assert sorted(attempts.ran()) == ["a", "b", "c", "c"]


def test_files_are_linked_not_copied(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    attempts.run(*chain(ok="ok"))
    first, second = (Path(folder, "steps", "1", "stdout").stat() for folder in attempts.folders)
    assert first.st_ino == second.st_ino


def test_the_output_in_a_result_is_bounded_for_any_number_of_steps(attempts: Attempts) -> None:
    """A NUL takes six bytes in JSON. The files hold the whole output; the result is marked as truncated."""
    told = 3 * results.INLINE_LIMIT

    def talk(call: Call) -> None:
        call.stdout.write(b"\0" * told)
        call.stderr.write(b"\0" * 10)

    count = 2 * results.INLINE_TOTAL // results.INLINE_LIMIT
    grow = [{"id": f"s{number}", "tool": "talk", "command": "x"} for number in range(99)]

    def add(call: Call) -> None:
        for number in range(99, count):
            call.add_task("x", id=f"s{number}", tool="talk")

    plan = [*grow, {"id": "adds", "tool": "add", "command": "x"}]
    tools = Tools({"talk": talk, "add": add})
    for _ in range(2):  # the second attempt takes over all steps
        result = attempts.run(*plan, tools=tools)
        assert result.success
        said = [one for one in result.step_results if one.id != "adds"]
        assert sum(len(one.stdout) + len(one.stderr) for one in said) <= results.INLINE_TOTAL + count * 2048
        assert len(said[0].stdout) == results.INLINE_LIMIT
        assert len(said[-1].stdout) == results.INLINE_LEAST
        assert all(one.stdout_truncated and not one.stderr_truncated for one in said)
        assert said[-1].stdout_path is not None
        assert Path(attempts.folders[-1], said[-1].stdout_path).stat().st_size == told
    assert {one.resumed for one in said} == {True}


def adder(attempts: Attempts) -> Tools:
    """`adds` succeeds, and a process that it left running adds tasks later; here a thread stands for that process."""

    def work(call: Call) -> None:
        with (attempts.bench.work / "log").open("a") as log:
            log.write(call.command + "\n")
        if call.command == "adds":
            attempts.straggler = lambda **task: call.add_task("child", tool="work", **task)
        while call.command == "waits" and not (attempts.bench.work / "ok").exists():
            time.sleep(0.01)  # until it is ended

    return Tools({"work": work})


def worker_step(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "tool": "work", "command": name, **more}


@pytest.mark.parametrize("taken", [False, True], ids=["new", "taken"])
def test_tasks_added_by_processes_left_running_are_taken_over(attempts: Attempts, taken: bool) -> None:
    """The worker died before it read the new task, or before it recorded that it took it."""
    tools = adder(attempts)

    class Killed(BaseException):
        pass

    def die() -> None:
        log = attempts.bench.work / "log"
        if log.exists() and log.read_text().split()[-1:] == ["waits"]:
            attempts.straggler(id="child")
            raise Killed

    attempts.bench.on_tick = die
    plan = [worker_step("adds"), worker_step("waits")]
    with pytest.raises(Killed):
        attempts.run(*plan, tools=tools, tick_every_s=0.0)
    attempts.folders.append(str(attempts.bench.attempt))
    (task,) = (attempts.bench.attempt / "tasks").glob("*.new")
    if taken:
        task.rename(task.with_suffix(".json"))
    attempts.bench.on_tick = lambda: None
    (attempts.bench.work / "ok").touch()
    for again in ("waits", "child"), ():  # the second attempt has nothing left to do
        before = len(attempts.ran())
        result = attempts.run(*plan, tools=tools)
        assert result.success
        assert attempts.ran()[before:] == list(again)
        assert {one.id: one.added_by for one in result.step_results} == {"adds": None, "waits": None, "child": "adds"}


def test_a_single_step_whose_leftovers_add_a_task_is_not_run_again(attempts: Attempts) -> None:
    add = "import farro; farro.add_task('sh', ['-c', 'echo child >> log; test -e ok'], id='c')"
    (attempts.bench.work / "add.py").write_text(add)
    # At the end of the plan the process left running gets SIGTERM: then it adds its task.
    waits = f"trap '{sys.executable} add.py; exit' TERM; touch ready; while :; do sleep 0.01; done"
    (attempts.bench.work / "left.sh").write_text(waits)
    plan = [shell(1, "echo 1 >> log; setsid sh left.sh & while [ ! -e ready ]; do sleep 0.01; done")]
    assert not attempts.run(*plan).success
    assert attempts.ran() == ["1", "child"]
    (attempts.bench.work / "ok").touch()
    assert attempts.run(*plan).success
    assert attempts.ran() == ["1", "child", "child"]


def test_a_step_that_added_bad_tasks_is_run_again(attempts: Attempts) -> None:
    add = "import farro, os; farro.add_task('true', id='child', needs=[] if os.path.exists('ok') else ['nobody'])"
    plan = [shell(1, "echo 1 >> log"), shell(2, f'echo 2 >> log; {sys.executable} -c "{add}"')]
    result = attempts.run(*plan)
    assert result.error is not None
    assert result.error.category == "bad_task"
    (attempts.bench.work / "ok").touch()
    result = attempts.run(*plan)
    assert result.success
    assert attempts.ran() == ["1", "2", "2"]
    assert result.steps_total == 3


@pytest.mark.parametrize(
    "damage",
    [
        {"id": ["1"]},
        {"added": 5},
        {"added": [{"task": {}}]},
        {"duration_s": "long"},
        {"step_number": None},
        {"stdout_path": "../../elsewhere"},
        {"stdout_bytes": None},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_foreign_line_in_the_records_is_ignored(attempts: Attempts, damage: dict[str, Any]) -> None:
    attempts.run(*chain(ok="ok"))
    lines = attempts.lines()
    lines[2] |= damage
    Path(attempts.folders[-1], records.NAME).write_bytes(records.text(lines))
    (attempts.bench.work / "ok").touch()
    assert attempts.run(*chain(ok="ok")).success
    assert attempts.ran() == ["1", "2", "3", "2", "3"]


def test_a_step_whose_output_became_a_link_is_run_again(attempts: Attempts) -> None:
    attempts.run(*chain(ok="ok"))
    output = Path(attempts.folders[-1], "steps", "1", "stdout")
    output.unlink()
    output.symlink_to("four")  # of the same length as the output
    attempts.run(*chain(ok="ok"))
    assert attempts.ran() == ["1", "2", "3", "1", "2", "3"]


def test_a_success_parallel_to_a_step_with_bad_tasks_is_taken_over(attempts: Attempts) -> None:
    add = "import farro; farro.add_task('true', id='child', needs=['nobody'])"
    told = f"while ! grep -q -s bad_is_over {attempts.bench.work}/bad; do sleep 0.01; done; sleep 0.3"
    plan = [
        {"id": "bad", "command": "sh", "args": ["-c", f'{sys.executable} -c "{add}"; echo bad_is_over > bad']},
        {"id": "good", "command": "sh", "args": ["-c", f"{told}; echo good >> log"]},
    ]
    for _ in range(2):
        result = attempts.run(*plan, parallel=2)
        assert result.error is not None
        assert result.error.category == "bad_task"
    assert attempts.ran() == ["good"]
