"""Steps added by running steps are run and named in the result, or refused once the plan is over; none is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.seams import Before, Counting, placed
from execution.bench import Bench, shell, step
from farro.errors import FarroError, InputError, Refused, StorageTrouble
from farro.execution import Call, PlanResult, Tools, task_file
from farro.execution.task_file import add_task
from farro.host import trees
from farro.plans.loading import MAX_STEPS_GROWN

pytestmark = pytest.mark.linux

ADD = f"{sys.executable} -m farro task add"


def ran(result: PlanResult) -> list[str]:
    return [one.id for one in result.step_results]


def around(bench: Bench, step_id: str = "1") -> dict[str, str]:
    """Return the environment of a process of that step."""
    return {"FARRO_TASKS": str(bench.attempt / "tasks"), "FARRO_STEP": step_id}


def adding(*what: Callable[[Call], object]) -> Tools:
    """Return a tool `add`, whose n-th call runs the n-th of these functions, and a tool `noop`."""
    rest = list(what)

    def add(call: Call) -> None:
        if rest:
            rest.pop(0)(call)

    return Tools({"add": add, "noop": lambda call: None})


def tool(number: int, name: str, **fields: Any) -> dict[str, Any]:
    return step(number, name, tool=name, **fields)


# --- what is added runs ------------------------------------------------------------------------------------------


def test_a_step_adds_steps_that_run_after_the_plans_own(bench: Bench) -> None:
    result = bench.run(shell(1, f"{ADD} --id late -- echo late"), step(2, "echo", "planned"))
    assert result.success
    assert ran(result) == ["1", "2", "late"]
    assert result.step_results[0].stdout == "late\n"
    assert bench.bytes_of("late") == b"late\n"


def test_the_result_says_who_added_a_step_and_counts_it(bench: Bench) -> None:
    result = bench.run(shell(1, f"{ADD} --id a -- {ADD} --id b -- true"), step(7, "true"))
    data = result.to_json("j", None)
    assert [(one["id"], one["step_number"], one.get("added_by")) for one in data["step_results"]] == [
        ("1", 1, None),
        ("7", 7, None),
        ("a", 8, "1"),
        ("b", 9, "a"),
    ]
    assert "added_by" not in data["step_results"][0]
    assert data["steps_total"] == 4
    files = [name for name in result.files if name.startswith("tasks")]
    assert [json.loads((bench.attempt / name).read_text())["id"] for name in files] == ["a", "b"]


def test_an_added_step_waits_for_its_needs_and_reads_its_input(bench: Bench) -> None:
    def add(call: Call) -> None:
        call.add_task("cat", id="third", needs=["second"], input_from="first")
        call.add_task("true", id="second")
        call.add_task("echo", ["from the first"], id="first", needs=["1"])

    result = bench.run(tool(1, "add"), tools=adding(add))
    assert ran(result) == ["1", "second", "first", "third"]
    assert bench.bytes_of("third") == b"from the first\n"


def test_an_added_step_runs_with_its_options(bench: Bench) -> None:
    (bench.work / "sub").mkdir()
    odd = 'a "b" \\ \n é \x01'

    def add(call: Call) -> None:
        call.add_task("pwd", id="here")
        call.add_task("pwd", id="there", cwd="sub")
        call.add_task("sh", ["-c", 'printf %s "$ODD$1"', "sh", odd], id="odd", env={"ODD": odd})
        call.add_task("false", id="tried", retries=2, timeout=5)

    result = bench.run(tool(1, "add"), tools=adding(add))
    here, there, said, tried = result.step_results[1:]
    assert (here.stdout, there.stdout) == (f"{bench.work}\n", f"{bench.work}/sub\n")
    assert said.stdout == odd + odd
    assert tried.attempts == 3


def test_a_function_adds_by_its_call_and_its_processes_by_their_environment(bench: Bench) -> None:
    def add(call: Call) -> None:
        call.add_task("mine", id="mine", tool="noop")
        subprocess.run(f"{ADD} --id theirs -- true", shell=True, env={**call.env}, cwd=call.cwd, check=True)

    result = bench.run(tool(1, "add"), tools=adding(add))
    assert ran(result) == ["1", "mine", "theirs"]
    assert result.success


def test_a_function_that_adds_nothing_costs_no_call(bench: Bench) -> None:
    with placed(Counting()) as counted:
        assert bench.run(tool(1, "noop"), tools=adding()).success
    assert counted.ops == []


def test_a_plan_that_adds_nothing_leaves_no_folder(bench: Bench) -> None:
    bench.run(step(1, "true"))
    assert sorted(os.listdir(bench.attempt)) == ["steps"]


def test_a_process_left_behind_adds_until_the_plan_is_over(bench: Bench) -> None:
    """The process is ended before the task folder is read for the last time: all tasks that it added until then run."""
    script = f"(cat {bench.fifo} >/dev/null; {ADD} --id late -- true; echo > {bench.fifo}; exec sleep 1000) & true"
    result = bench.run(shell(1, script), shell(2, f"echo > {bench.fifo}; cat {bench.fifo}"), shell(3, "true"))
    assert result.success
    assert ran(result) == ["1", "2", "3", "late"]
    assert result.step_results[-1].added_by == "1"


def test_the_plans_timeout_grows_with_added_steps(bench: Bench) -> None:
    def add(call: Call) -> None:
        call.add_task("sh", ["-c", f"cat {bench.fifo}"], id="long")

    teller = bench.in_background(lambda: bench.fifo.write_text("in time"))
    result = bench.run(tool(1, "add", timeout=0.2), tools=adding(add), step_timeout_s=60.0)
    teller.join()
    assert result.success
    assert bench.bytes_of("long") == b"in time"


# --- what is not run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda call: call.add_task("x", id="a", needs=["nobody"]), 'task a: needs[0]: "nobody" is not a step'),
        (lambda call: call.add_task("x", id="a", input_from="b"), 'task a: input_from_step: "b" is not a step'),
        (lambda call: call.add_task("x", id="1"), 'task 1: id: "1" is also steps[0]; ids are unique'),
        (lambda call: [call.add_task("x", id="a") for _ in "ab"], 'task a: id: "a" is also steps[1]'),
        (
            lambda call: [call.add_task("x", id="a", needs=["b"]), call.add_task("x", id="b", needs=["a"])],
            "task a: needs[0]: steps wait for each other: a → b → a",
        ),
        (lambda call: Path(call.env["FARRO_TASKS"], "0-x-1.new").write_text("{"), "a task of step 1: 0-x-1.json"),
        (
            lambda call: Path(call.env["FARRO_TASKS"], "0-x-1.new").write_text("[]"),
            "task []: must be an object, not a list",
        ),
        (lambda call: os.symlink("/etc/passwd", call.env["FARRO_TASKS"] + "/0-x-1.new"), "is not a file"),
        (lambda call: Path(call.env["FARRO_TASKS"], "0-x-1.new").mkdir(), "is not a file"),
        (
            lambda call: [call.add_task("x", id=f"t{n}") for n in range(MAX_STEPS_GROWN)],
            "a plan may grow to 1000 steps; with these it would have 1001",
        ),
    ],
    ids=["needs", "input", "id of the plan", "same id", "cycle", "torn", "list", "link", "folder", "too many"],
)
def test_a_bad_task_fails_the_plan_and_is_named(bench: Bench, add: Callable[[Call], object], said: str) -> None:
    result = bench.run(tool(1, "add"), tools=adding(add))
    assert ran(result) == ["1"]
    assert result.error is not None
    assert result.error.category == "bad_task"
    assert said in result.error.message
    assert all((bench.attempt / name).is_file() for name in result.files)


def test_tasks_added_by_a_failed_try_are_not_run(bench: Bench) -> None:
    script = f"{ADD} --id same -- true; test -e again || {{ touch again; exit 1; }}"
    result = bench.run(shell(1, script, retries=1))
    assert result.success
    assert ran(result) == ["1", "same"]


def test_tasks_added_by_a_failed_step_are_not_run(bench: Bench) -> None:
    result = bench.run(shell(1, f"{ADD} -- touch ran; exit 1"))
    assert not result.success
    assert result.steps_total == 1
    assert not (bench.work / "ran").exists()


def test_a_step_that_is_ended_while_it_adds_leaves_nothing_to_run(bench: Bench) -> None:
    """The step is killed after writing a task and before publishing it: the task is dropped, and the plan fails."""
    half = f": > $FARRO_TASKS/.tmp-half; {ADD} --id whole -- true; exec sleep 1000"
    result = bench.run(shell(1, half, timeout=2))
    assert result.error is not None
    assert result.error.category == "timeout"
    assert ran(result) == ["1"]
    assert (bench.attempt / "tasks.sealed" / ".tmp-half").exists()


def test_an_incomplete_task_of_a_killed_process_is_ignored(bench: Bench) -> None:
    result = bench.run(shell(1, f"echo '{{' > $FARRO_TASKS/.tmp-half; {ADD} --id whole -- true"))
    assert result.success
    assert ran(result) == ["1", "whole"]


def test_a_step_may_remove_its_tasks(bench: Bench) -> None:
    assert bench.run(shell(1, "rm -r $FARRO_TASKS"), step(2, "true")).success


def test_a_result_names_no_task_file_that_a_later_step_removed(bench: Bench) -> None:
    script = f"{ADD} -- sh -c 'rm $FARRO_TASKS/*; mkdir $FARRO_TASKS/x'"
    result = bench.run(shell(1, script))
    assert result.success
    assert result.task_files == ()


def test_a_retry_starts_without_tasks_of_the_attempt_before(bench: Bench) -> None:
    def add(call: Call) -> None:
        call.add_task("true", id="old")
        raise RuntimeError

    assert not bench.run(tool(1, "add"), tools=adding(add)).success
    bench.attempt = bench.folder / "0002"
    bench.attempt.mkdir()
    assert ran(bench.run(tool(1, "add"), tools=adding())) == ["1"]


# --- the end -----------------------------------------------------------------------------------------------------


def test_an_add_after_the_end_is_refused(bench: Bench) -> None:
    for number, tools in enumerate([adding(lambda call: call.add_task("true")), adding()]):
        bench.attempt = bench.folder / f"attempt-{number}"
        bench.attempt.mkdir()
        bench.run(tool(1, "add"), step(2, "true"), tools=tools)
        before = sorted(bench.attempt.rglob("*"))
        with pytest.raises(Refused, match="the job's plan is already over; nothing was added"):
            add_task("true", environ=around(bench))
        assert sorted(bench.attempt.rglob("*")) == before


def test_a_function_that_cannot_be_ended_opens_no_folder_after_the_seal(bench: Bench) -> None:
    kept: list[Call] = []
    bench.run(tool(1, "add"), tools=adding(kept.append))
    with pytest.raises(Refused):
        kept[0].add_task("true")
    assert os.listdir(bench.attempt) == []


def test_a_task_added_just_before_the_seal_is_run_and_may_add_more(bench: Bench) -> None:
    """A process outside of the tree (a shell on another machine, say) adds a task while the plan ends."""

    def late() -> None:
        add_task("x", id="late", tool="add", environ=around(bench))

    seam = Before("rmdir", late)
    tools = adding(lambda call: dict(call.env), lambda call: call.add_task("x", id="later", tool="noop"))
    with placed(seam):
        result = bench.run(tool(1, "add"), tools=tools)
    assert seam.happened
    assert ran(result) == ["1", "late", "later"]


def test_a_task_added_between_the_last_two_reads_runs_in_a_new_folder(bench: Bench) -> None:
    def late() -> None:
        add_task("x", id="late", tool="add", environ=around(bench))

    tools = adding(
        lambda call: call.add_task("x", id="first", tool="noop"),
        lambda call: call.add_task("x", id="last", tool="noop"),
    )
    seam = Before("move", late, n=2)  # the first move takes `first`, the second seals the folder
    with placed(seam):
        result = bench.run(tool(1, "add"), tools=tools)
    assert seam.happened
    assert ran(result) == ["1", "first", "late", "last"]
    assert [name.rsplit("/", 1)[0] for name in result.task_files] == ["tasks.sealed"] * 2 + ["tasks-2.sealed"]
    with pytest.raises(Refused):  # a process with the folder of the ended tree is still refused
        add_task("true", environ=around(bench))


def test_a_task_that_reaches_the_sealed_folder_is_withdrawn_or_was_taken(bench: Bench) -> None:
    """A rename resolved its path before the folder was sealed and completes afterwards."""
    folder, sealed = bench.attempt / "tasks", bench.attempt / "tasks.sealed"
    sealed.mkdir()
    (sealed / "late.new").write_text("{}")
    with pytest.raises(Refused):
        task_file._make_sure(str(folder), "late")
    assert os.listdir(sealed) == []
    (sealed / "taken.json").write_text("{}")
    task_file._make_sure(str(folder), "taken")
    with pytest.raises(FarroError, match="it is unknown whether the task was taken"):
        task_file._make_sure(str(folder), "of a job that was moved away")


ADDER = """
import random, sys
from farro.errors import Refused
from farro.execution.task_file import add_task
name = sys.argv[1]
dice = random.Random(name)
sys.stdin.readline()
with open(sys.argv[2], "w") as answers:
    for number in range(30):
        try:
            add_task("x", id=f"{name}-{number}", tool="noop")
        except Refused:
            print("no", f"{name}-{number}", file=answers)
        else:
            print("yes", f"{name}-{number}", file=answers)
        if number == 0:
            print("adding", flush=True)
        for _ in range(dice.randrange(20_000)):
            pass
"""


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("round_number", range(5))
def test_every_accepted_task_is_in_the_result(
    bench: Bench, round_number: int, in_background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes outside of the tree add tasks in a loop while the plan ends."""
    if in_background:
        monkeypatch.setattr(trees, "_background", trees.BackgroundRemoval(str(bench.work)))
    names = [f"adder{round_number}-{n}" for n in range(3)]
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, name, str(bench.folder / name)],
            env={**os.environ, **around(bench)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]

    def begin(call: Call) -> None:
        dict(call.env)  # the folder exists
        for adder in adders:
            assert adder.stdin is not None
            adder.stdin.write("go\n")
            adder.stdin.flush()
        assert adders[0].stdout is not None
        assert adders[0].stdout.readline() == "adding\n"

    result = bench.run(tool(1, "add"), tools=adding(begin))
    for adder in adders:
        adder.communicate(timeout=60)
    assert [adder.returncode for adder in adders] == [0, 0, 0]
    answers = [line.split() for name in names for line in (bench.folder / name).read_text().splitlines()]
    assert len(answers) == 90
    assert result.success, result.error
    assert sorted(ran(result)[1:]) == sorted(task_id for answer, task_id in answers if answer == "yes")


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"command": ""}, "there is no command"),
        ({"id": "../x"}, "id: '../x' is not an id"),
        ({"id": "x" * 65}, "is not an id"),
        ({"needs": "abc"}, "needs: 'abc' is a string; give a list"),
        ({"needs": ["a b"]}, "needs: 'a b' is not an id"),
        ({"input_from": ""}, "input_from: '' is not an id"),
        ({"args": ["-c", 1]}, "args[1]: 1 is not text"),
        ({"args": [None]}, "args[0]: None is not text"),
        ({"args": ["a\0b"]}, "args[0]: 'a\\x00b' holds a NUL"),
        ({"command": 1}, "command: 1 is not text"),
        ({"tool": None}, "tool: None is not text"),
        ({"env": {"A": 1}}, "env.A: 1 is not text"),
        ({"env": {1: "A"}}, "env: 1 is not text"),
        ({"timeout": 0}, "timeout: 0 must be positive"),
        ({"timeout": True}, "timeout: True must be positive"),
        ({"retries": -1}, "retries: -1 is not a whole number"),
        ({"retries": 1.5}, "retries: 1.5 is not a whole number"),
        ({"retry_delay": 3601}, "retry_delay: 3601 must not be negative, and at most an hour"),
        ({"retry_backoff": 0.5}, "retry_backoff: 0.5 is not a number from 1 to 10"),
        ({"args": ["\udcff"]}, "bytes that are not UTF-8"),
        ({"args": ["x" * task_file.LIMIT]}, "a task may have 1048576 bytes"),
        ({"environ": {}}, "from inside a running step, and this is none"),
        ({"environ": {"FARRO_TASKS": "x", "FARRO_STEP": "../up"}}, "FARRO_STEP: '../up' is not an id"),
    ],
)
def test_a_mistake_is_reported_to_the_caller_of_add_task(bench: Bench, options: dict[str, Any], said: str) -> None:
    (bench.attempt / "tasks").mkdir()
    with pytest.raises(InputError) as told:
        add_task(**{"command": "true", "environ": around(bench), **options})
    assert said in str(told.value)
    assert os.listdir(bench.attempt / "tasks") == []


def test_an_unwritable_task_folder_is_reported(bench: Bench) -> None:
    (bench.attempt / "tasks").symlink_to("tasks")
    with pytest.raises(StorageTrouble, match="the task was not added"):
        add_task("true", environ=around(bench))
