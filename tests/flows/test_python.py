"""The Python API as a program uses it, beside a real worker: queues, jobs, and functions as tasks."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import farro as api
from farro import Job, Queue
from flows.program import PATIENCE_S, Program
from support import eventually

SHOP = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
import farro

@farro.task
def add(a, b=0, *more, **named):
    print("adding", a, b)
    return [a, b, *more, named]

@farro.task
def nothing():
    pass

class SoldOut(Exception):
    pass

@farro.task
def refuse(why):
    sys.stderr.write("about to\\n")
    raise SoldOut(why)

@farro.task(retries=2)
def third_time(path):
    with open(path, "a") as file:
        file.write("x")
    tries = os.path.getsize(path)
    if tries < 3:
        raise RuntimeError(f"try {tries}")
    return tries

@farro.task(timeout=60)
def alone(text):
    print("printed")
    subprocess.run(["echo", "by a process"])
    return [os.getpid(), len(text), os.getcwd()]

@farro.task
def inside():
    return os.getpid()

@farro.task(timeout=0.5, retries=1)
def endless():
    time.sleep(100_000)

@farro.task
def forever(path):
    Path(path).touch()
    while True:
        time.sleep(0.01)

@farro.task
async def soon(value):
    await asyncio.sleep(0)
    print("from a coroutine")
    await asyncio.to_thread(print, "from its thread")
    return value

@farro.task
def grow():
    farro.add_task("echo", ["hello"], id="said")
    return [add.add(1, 2), add.call(3).add(id="three", needs=["said"])]

@farro.task(timeout=60)
def grow_alone():
    return add.add(1, 2)

@farro.task
def queue_another():
    return add.delay(5).id

@farro.task
def about():
    call = farro.current()
    return [call.job_id, call.attempt, call.stdin.read().decode(), call.env["FARRO_STEP"]]

@farro.task
def not_json():
    return {1, 2}

@farro.task
def leave():
    sys.exit(7)

@farro.task
def read():
    return sys.stdin.read()

class Odd(Exception):
    def __str__(self):
        raise ValueError

@farro.task
def odd():
    raise Odd

@farro.task
def long():
    return "x" * 200_000

def unmarked():
    raise SystemExit("called")
"""


@pytest.fixture
def shop(farro: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a module of tasks into the root, and import it here too."""
    (farro.path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.setenv("FARRO_ROOT", str(farro.path))
    monkeypatch.syspath_prepend(str(farro.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("shop", None)
    yield importlib.import_module("shop")
    sys.modules.pop("shop", None)


@pytest.fixture
def queue(farro: Program) -> Iterator[Queue]:
    with api.open(farro.path) as opened:
        yield opened


@pytest.fixture
def worker(farro: Program) -> None:
    farro.start("worker").started()


def value(job: Job[Any]) -> Any:
    return job.result(timeout=PATIENCE_S)


def failure(job: Job[Any]) -> api.JobFailed:
    with pytest.raises(api.JobFailed) as caught:
        value(job)
    return caught.value


# --- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_task_runs_in_a_worker_and_its_value_comes_back(shop: Any) -> None:
    assert shop.add(1, b=2) == [1, 2, {}]
    job = shop.add.delay("ü\0\ud800", {"a": [None, True, 1.5]}, 3, c=(4, 5))
    assert value(job) == ["ü\0\ud800", {"a": [None, True, 1.5]}, 3, {"c": [4, 5]}]
    assert (job.status, job.done, job.error) == ("succeeded", True, None)


def test_function_prints_into_its_steps_stderr_and_not_into_the_workers_log(farro: Program, shop: Any) -> None:
    jobs = [shop.add.delay(number) for number in range(20)]
    log = farro.worked().out
    assert [job.stderr() for job in jobs] == [f"adding {number} 0\n" for number in range(20)]
    assert all(line.startswith("{") for line in log.splitlines())
    assert jobs[3].stdout("call") == "[3, 0, {}]\n"
    assert jobs[3].logs() == "[3, 0, {}]\nadding 3 0\n"


def test_function_without_value_and_output_leaves_no_files(farro: Program, shop: Any) -> None:
    job = shop.nothing.delay()
    farro.worked()
    assert value(job) is None
    assert not Path(job.folder, "attempts/0001/steps").exists()


@pytest.mark.usefixtures("worker")
def test_an_exception_is_a_failed_job_with_its_type_message_and_traceback(shop: Any) -> None:
    job = shop.refuse.delay("no <b>eggs</b>")
    failed = failure(job)
    assert (failed.status, failed.category, failed.step) == ("failed", "step_failed", "call")
    assert (failed.error_type, failed.message) == ("shop.SoldOut", "no <b>eggs</b>")
    assert failed.last_words.endswith("shop.SoldOut: no <b>eggs</b>\n")
    assert job.stderr().startswith("about to\nTraceback")
    assert "calls.py" not in job.stderr()
    for again in (copy.copy(failed), pickle.loads(pickle.dumps(failed))):
        assert (str(again), again.error_type, again.last_words) == (str(failed), "shop.SoldOut", failed.last_words)


@pytest.mark.usefixtures("worker")
def test_raising_function_is_called_as_often_as_its_retries_allow(shop: Any, tmp_path: Path) -> None:
    assert value(shop.third_time.delay(str(tmp_path / "tries"))) == 3
    assert failure(shop.third_time.options(retries=1).delay(str(tmp_path / "others"))).message == "try 2"


@pytest.mark.usefixtures("worker")
def test_a_task_with_a_timeout_runs_in_a_process_of_its_own(farro: Program, shop: Any) -> None:
    first, second = shop.alone.delay("a"), shop.inside.delay()
    pid, _, folder = value(first)
    assert pid != value(second)
    assert folder == str(farro.path)
    assert first.stderr() == "printed\nby a process\n"


@pytest.mark.usefixtures("worker")
def test_arguments_beyond_the_kernels_limit_reach_a_process(shop: Any) -> None:
    assert value(shop.alone.delay("ü" * 100_000))[1] == 100_000


@pytest.mark.usefixtures("worker")
def test_value_too_large_for_the_result_file_is_returned_whole(shop: Any) -> None:
    assert value(shop.long.delay()) == "x" * 200_000


@pytest.mark.usefixtures("worker")
def test_call_beyond_its_timeout_is_ended_and_retried(shop: Any) -> None:
    job = shop.endless.delay()
    assert failure(job).category == "timeout"
    assert [record["attempts"] for record in job.result_json["step_results"]] == [2]


@pytest.mark.usefixtures("worker")
def test_a_coroutine_function_is_run_to_its_end(shop: Any) -> None:
    job = shop.soon.delay([1])
    assert value(job) == [1]
    assert job.stderr() == "from a coroutine\nfrom its thread\n"


@pytest.mark.usefixtures("worker")
def test_a_task_adds_steps_to_its_own_job(shop: Any) -> None:
    job = shop.grow.delay()
    added, three = value(job)
    records = {record["id"]: record for record in job.result_json["step_results"]}
    assert three == "three"
    assert list(records) == ["call", "said", added, "three"]
    assert records["said"]["stdout"] == "hello\n"
    assert json.loads(records[added]["stdout"]) == [1, 2, {}]
    alone = shop.grow_alone.delay()
    assert [record["id"] for record in alone.wait(PATIENCE_S).result_json["step_results"]] == ["call", value(alone)]


@pytest.mark.usefixtures("worker")
def test_a_task_queues_jobs_in_the_root_of_its_worker(shop: Any, queue: Queue) -> None:
    assert value(queue.job(value(shop.queue_another.delay()))) == [5, 0, {}]


@pytest.mark.usefixtures("worker")
def test_a_task_knows_its_job_and_reads_the_step_before(shop: Any, queue: Queue) -> None:
    steps = [{"id": "text", "command": "echo", "args": ["hi"]}, shop.about.call().step("about", input_from="text")]
    job = queue.enqueue({"steps": steps})
    assert value(job) == [job.id, 1, "hi\n", "about"]
    assert api.current() is None


@pytest.mark.usefixtures("worker")
def test_a_value_is_the_input_of_the_step_after(shop: Any, queue: Queue) -> None:
    steps = [shop.add.call(1).step("first"), {"id": "second", "command": "cat", "input_from_step": "first"}]
    assert value(queue.enqueue({"steps": steps})) == "[1, 0, {}]\n"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("apart", [{}, {"timeout": 60}], ids=["in the worker", "in a process of its own"])
def test_standard_input_is_the_input_of_the_step(shop: Any, queue: Queue, apart: dict[str, Any]) -> None:
    steps = [
        {"id": "first", "command": "echo", "args": ["said"]},
        {**shop.read.call().step("second"), "input_from_step": "first", **apart},
    ]
    assert value(queue.enqueue({"steps": steps})) == "said\n"


@pytest.mark.usefixtures("worker")
def test_a_value_that_is_not_json_fails_the_job(shop: Any) -> None:
    failed = failure(shop.not_json.delay())
    assert (failed.error_type, failed.message[:29]) == ("TypeError", "what shop:not_json returned i")
    assert failure(shop.leave.delay()).message == "step call: exit code 7"


@pytest.mark.usefixtures("worker")
def test_exception_without_a_readable_message_is_reported_by_its_type(shop: Any) -> None:
    failed = failure(shop.odd.delay())
    assert (failed.error_type, failed.message) == ("shop.Odd", "<exception str() failed>")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("command", "args", "why"),
    [
        ("shop:unmarked", [], "shop:unmarked is not marked with @farro.task, and nothing else is called by a plan"),
        ("os:system", ['{"args": ["touch called"]}'], "os:system is not marked with @farro.task"),
        ("shop:add.function", [], "'shop:add.function' does not name a function; write module:function"),
        ("shop:farro", [], "shop:farro is not marked"),
        ("shop:missing", [], "shop has no missing; a worker keeps the code that it started with: restart it"),
        ("no_such.module:f", [], "no module no_such for this worker: it looks in its own Python"),
        ("add", [], "'add' does not name a function; write module:function"),
        ("shop:add", ["[1]"], 'the arguments of shop:add must be {"args": [ … ], "kwargs": { … }}, not [1]'),
        ("shop:add", ["{"], "the arguments of shop:add are not JSON"),
    ],
)
def test_only_task_functions_can_be_called(
    shop: ModuleType, queue: Queue, farro: Program, command: str, args: list[str], why: str
) -> None:
    plan = {"steps": [{"id": "x", "tool": "function", "command": command, "args": args}]}
    failed = failure(queue.enqueue(plan))
    assert failed.error_type == "CannotCall"
    assert failed.message.startswith(why)
    assert not (farro.path / "called").exists()


def test_options_determine_how_a_call_is_queued(farro: Program, shop: Any, queue: Queue) -> None:
    first = shop.add.options(id="first", priority="P0", tags="gpu", timeout="90s", retries=4, retry_delay="5s").delay(1)
    second = shop.add.options(after=first, queue=queue).delay(2)
    plan = json.loads(Path(first.folder, "prompt.json").read_text())
    assert (first.id, plan["metadata"]) == ("first", {"tags": ["gpu"], "priority": "P0"})
    assert (plan["steps"][0]["timeout"], plan["steps"][0]["retries"]) == (90.0, 4)
    assert plan["steps"][0]["retry_delay"] == 5.0
    assert second.view.waits_for == ("first",)
    assert (
        shop.add.options(id="first", priority="P0", tags=["gpu"], timeout=90, retries=4, retry_delay=5).delay(1)
        == first
    )
    with pytest.raises(api.IdConflict):
        shop.add.options(id="first").delay(2)
    farro.worked("--tag", "gpu")
    assert value(second) == [2, 0, {}]


def test_delayed_call_waits_for_its_start_time(shop: Any) -> None:
    soon = shop.add.options(delay=timedelta(hours=1))
    job = soon.delay(1)
    due = datetime.fromisoformat(str(job.view.lifecycle.not_before))
    assert timedelta(minutes=59) < due - datetime.now(UTC) <= timedelta(hours=1)
    at = datetime.now() + timedelta(days=1)  # noqa: DTZ005 - local, as a person would write it
    at = at.replace(microsecond=0)
    other = soon.options(at=at).delay(1)
    assert datetime.fromisoformat(str(other.view.lifecycle.not_before)) == at.astimezone(UTC)
    with pytest.raises(api.StillRunning, match=rf"not ended after 0 s: {job.id}; `farro explain {job.id}` says why"):
        job.result(timeout=0)
    assert issubclass(api.StillRunning, TimeoutError)


@pytest.mark.parametrize(
    ("args", "named", "why"),
    [
        (({1},), {}, "add(): the argument a is of the type set; a job's arguments are kept as JSON"),
        ((0, [1, {"x": (2, b"")}]), {}, "add(): the argument b[1]['x'][1] is of the type bytes; "),
        ((1, {2: 3}), {}, "add(): the argument b has the key 2, which is not text; "),
        ((float("nan"),), {}, "add(): the argument a is nan, which JSON does not have; "),
        ((1, 2, 3), {"far": object()}, "add(): the argument named['far'] is of the type object; "),
        ((), {}, "add(): missing a required argument: 'a'"),
    ],
)
def test_arguments_that_are_not_json_are_refused_by_name(
    shop: Any, queue: Queue, args: tuple[Any, ...], named: dict[str, Any], why: str
) -> None:
    with pytest.raises(api.BadArgument) as caught:
        shop.add.delay(*args, **named)
    assert str(caught.value).startswith(why)
    assert isinstance(caught.value, TypeError)
    assert sum(queue.counts().values()) == 0


def test_an_argument_that_contains_itself_is_refused(shop: Any) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(api.BadArgument, match="nested too deeply, or contains itself"):
        shop.add.delay(loop)


def test_function_that_no_worker_can_import_is_refused_with_advice(shop: Any) -> None:
    def nested() -> None: ...

    class Holder:
        @api.task
        def method(self) -> None: ...

    typed: dict[str, Any] = {"__name__": "__main__", "farro": api}
    exec("@farro.task\ndef typed(): pass", typed)
    lost: dict[str, Any] = {"__name__": "no_module", "farro": api}
    exec("@farro.task\ndef lost(): pass", lost)
    shop.renamed, shop.nothing = shop.nothing, shop.add
    for unfit, why in [
        (api.task(nested), "it is made inside of a function"),
        (api.task(lambda: None), "it is made inside of a function"),
        (Holder.method, "it is made inside of a function"),
        (typed["typed"], r"at a prompt, in a notebook or in the script that is running \(__main__\)"),
        (lost["lost"], "no_module.lost is not there"),
        (shop.renamed, "shop.nothing is something else"),
    ]:
        with pytest.raises(api.InputError, match=rf"cannot be found by a worker: .*{why}.*; put it into a module"):
            unfit.delay()
    with pytest.raises(api.InputError, match="is for functions"):
        api.task(Holder)
    with pytest.raises(api.InputError, match="retries: -1 is not a whole number from 0 to 100"):
        api.task(retries=-1)
    with pytest.raises(api.InputError, match="retry_delay: 7200 must not be negative, and at most an hour"):
        api.task(retries=1, retry_delay="2h")
    with pytest.raises(api.InputError, match="retry_backoff: 0 is not a number from 1 to 10"):
        api.task(retries=1, retry_backoff=0)
    with pytest.raises(api.InputError, match="timeout: 'soon' is not a duration such as"):
        api.task(timeout="soon")


def test_task_behaves_as_its_function_otherwise(shop: Any) -> None:
    assert pickle.loads(pickle.dumps(shop.add)) is copy.copy(shop.add) is shop.add
    assert (shop.add.__name__, shop.add.__module__, repr(shop.add)) == ("add", "shop", "<farro.task shop:add>")
    assert list(inspect.signature(shop.add).parameters) == ["a", "b", "more", "named"]


def test_many_threads_queue_at_once(farro: Program, shop: Any) -> None:
    made: list[Job[Any]] = []

    def some(start: int) -> None:
        made.extend(shop.add.delay(number) for number in range(start, start + 10))

    threads = [threading.Thread(target=some, args=(start,)) for start in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    farro.worked()
    assert sorted(value(job)[0] for job in made) == list(range(80))


# --- queues --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_every_form_of_a_plan_can_be_queued(farro: Program, queue: Queue, shop: Any) -> None:
    numbered = {
        "plan_id": "p",
        "steps": [
            {"step_number": 1, "command": "echo", "args": ("b", "a")},
            {"step_number": 2, "command": "cat", "input_from_step": 1, "needs": (1,), "env": {"X": "1"}},
        ],
    }
    named = {"name": "n", "steps": [{"id": "x", "command": "echo", "args": ["b a"], "timeout": 9, "retries": 1}]}
    (farro.path / "plan.yaml").write_text("steps:\n- {id: x, command: echo, args: [b a]}\n")
    tasks = [{"id": "x", "job_name": "j", "command": "echo", "args": ["b a"], "dependencies": []}]
    for plan in (
        numbered,
        named,
        api.load_plan(numbered),
        api.load_plan(named),
        farro.path / "plan.yaml",
        str(farro.path / "plan.yaml"),
        tasks,
        ["echo", "b a"],
        ("echo", "b", "a"),
    ):
        assert value(queue.enqueue(plan)) == "b a\n"
    assert value(queue.enqueue(shop.add.call(7))) == [7, 0, {}]
    assert api.load_plan(api.load_plan(numbered)) == api.load_plan(numbered)


@pytest.mark.usefixtures("worker")
def test_a_command_runs_where_it_was_queued(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert value(queue.enqueue(["pwd"])) == f"{tmp_path / 'here'}\n"
    assert value(queue.enqueue(["sh", "-c", "pwd; echo $X"], cwd=tmp_path, env={"X": "7"})) == f"{tmp_path}\n7\n"


@pytest.mark.parametrize(
    ("plan", "options", "why"),
    [
        ("make test", {}, 'make test: no such plan file; for a command give its words: ["make", …]'),
        ([], {}, "the command is empty"),
        (["sleep", 3], {}, "word 1 of the command is 3, which is not text; write str(3)"),
        (7, {}, "plan: 7 cannot be queued; give a plan"),
        ({"steps": [{"id": "x", "command": {1}}]}, {}, "plan: is not JSON: {1} has the type set"),
        ({"steps": [{"id": "x"}]}, {}, "plan: steps[0].command: is required"),
        (["true"], {"id": "no/id"}, "id: "),
        (["true"], {"after": "job-of-nobody"}, "after: no job job-of-nobody in "),
        (["true"], {"after": [7]}, "7 is neither a job nor a job's id"),
        (["true"], {"role": "Nobody"}, "role: no role Nobody here; known: "),
        (["true"], {"priority": "high"}, "priority: 'high' is not a priority; choose one of P0, P1, P2, P3"),
        (["true"], {"tags": ["a b"]}, "tags: "),
        (["true"], {"delay": "soon"}, "delay: 'soon' is not a duration such as "),
        (["true"], {"delay": -1}, "delay: -1 must not be negative, and at most ten years"),
        (["true"], {"delay": True}, "delay: True is not a duration; give seconds, a timedelta, or text such as 10m"),
        (["true"], {"delay": 1, "at": "09:00"}, "delay and at both set the start time"),
        (["true"], {"at": "2001-01-01T09:00"}, "at: '2001-01-01T09:00' is in the past"),
        (["true"], {"at": datetime(2001, 1, 1, tzinfo=UTC)}, "at: 2001-01-01 00:00:00+00:00 is in the past"),
        (["true"], {"timeout": 0}, "timeout: 0 must be positive and at most a year"),
        (["true"], {"cwd": "/no/such"}, "cwd: /no/such is not a folder"),
    ],
)
def test_mistake_raises_with_advice_and_nothing_is_queued(
    queue: Queue, plan: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(api.InputError) as caught:
        queue.enqueue(plan, **options)
    assert str(caught.value).startswith(why)
    if not options.keys() & {"id", "timeout", "cwd"}:  # options for a single job only
        with pytest.raises(api.InputError):
            queue.enqueue_many([["true"], plan], **options)
    assert sum(queue.counts().values()) == 0


def test_an_unknown_option_is_a_type_error(queue: Queue) -> None:
    options: dict[str, Any] = {"dealy": 1}
    with pytest.raises(TypeError, match=r"enqueue\(\) got an unexpected keyword argument 'dealy'"):
        queue.enqueue(["true"], **options)
    with pytest.raises(TypeError, match=r"options\(\) got an unexpected keyword argument 'dealy'"):
        api.task(print_name).options(**options)
    with pytest.raises(TypeError, match=r"add_task\(\) got an unexpected keyword argument 'dealy'"):
        api.add_task("true", **options)
    assert sum(queue.counts().values()) == 0


def print_name(name: str) -> None:
    print(name)


@pytest.mark.usefixtures("worker")
def test_as_completed_yields_jobs_as_they_end_and_dependents_follow(queue: Queue, tmp_path: Path) -> None:
    gate = tmp_path / "gate"  # no job ends until it opens: a job after a failed one would be refused
    fails = ["sh", "-c", 'until [ -e "$1" ]; do sleep 0.02; done; exit 1', "sh", str(gate)]
    first, second = queue.enqueue_many([["true"], fails])
    third = queue.enqueue(["echo", "third"], after=first, after_any=[second.id])
    never = queue.enqueue(["echo", "never"], after=[first, second])
    gate.touch()
    assert set(queue.as_completed([first, second.id, third], timeout=PATIENCE_S)) == {first, second, third}
    queue.wait(never, timeout=PATIENCE_S)
    assert [job.status for job in (first, second, third, never)] == ["succeeded", "failed", "succeeded", "killed"]
    assert failure(never).status == "killed"
    assert (failure(second).message, failure(second).error_type) == ("step 1: exit code 1", None)
    assert set(queue.jobs(status=["failed", "killed"])) == {second, never}
    assert queue.jobs(limit=1, status="succeeded") == [third]
    assert queue.result(third.id) == queue.logs(third) == "third\n"
    assert queue.job(third.id[:-3]) == third


@pytest.mark.usefixtures("worker")
def test_retry_of_a_failed_job_skips_the_steps_that_succeeded(queue: Queue, tmp_path: Path) -> None:
    plan = {
        "steps": [
            {"id": "first", "command": "sh", "args": ["-c", f"echo ran >> {tmp_path}/log"]},
            {"id": "second", "command": "test", "args": ["-e", f"{tmp_path}/ok"]},
        ]
    }
    job = queue.enqueue(plan).wait(60)
    assert job.status == "failed"
    (tmp_path / "ok").touch()
    again = job.retry()
    assert again.wait(60).status == "succeeded"
    assert (again.view.lifecycle.retry_of, (tmp_path / "log").read_text()) == (job.id, "ran\n")
    with pytest.raises(api.FarroError, match="queued"):
        queue.enqueue(plan, delay="1h").retry()


@pytest.mark.usefixtures("worker")
def test_a_running_task_is_killed(shop: Any, queue: Queue, tmp_path: Path) -> None:
    job = shop.forever.delay(str(tmp_path / "started"))
    eventually((tmp_path / "started").exists, "the task never started")
    assert job.kill(note="enough").status == "killed"
    assert failure(job).status == "killed"
    assert job.kill().status == "killed"
    other = shop.add.delay(1)
    assert value(other) == [1, 0, {}]
    assert queue.kill(other).status == "succeeded"


def test_a_cap_holds_for_programs_too(farro: Program) -> None:
    farro.run("init", code=0)
    config = json.loads((farro.path / "agents-config.json").read_text())
    config["capacity"] = {"roles": {"Runner": 2}}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    with api.open(farro.path) as queue:
        queue.enqueue_many([["true"], ["true"]])
        with pytest.raises(api.CapacityReached):
            queue.enqueue(["true"])
        with pytest.raises(api.Refused, match="may not exceed the caps"):
            queue.enqueue(["true"], force=True)


def test_a_closed_queue_says_so(farro: Program, shop: Any) -> None:
    with api.open(farro.path) as queue:
        job = queue.enqueue(["true"])
    queue.close()
    with pytest.raises(api.InputError, match=r"is closed; open another: farro\.open\("):
        queue.enqueue(["true"])
    with pytest.raises(api.InputError, match="is closed"):
        shop.add.options(queue=queue).delay(1)
    assert repr(queue).endswith(" closed>")
    assert repr(job) == f"<farro.Job {job.id} closed>"
    with api.open(farro.path) as again:
        assert repr(again.job(job.id)) == f"<farro.Job {job.id} queued>"


def test_the_root_is_found_as_the_commands_find_it(
    empty: Program, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FARRO_ROOT", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(empty.path / ".state"))
    monkeypatch.chdir(empty.path)
    with pytest.raises(api.NotARoot, match="farro init"):
        api.open()
    with api.open(make=True) as own:
        assert own.root == str(empty.path / ".state" / "farro")
    with api.open() as again:
        assert again.root == own.root
    with api.open("made", make=True) as made:
        assert made.root == str(empty.path / "made")
    (empty.path / "made" / "deeper").mkdir()
    monkeypatch.chdir(empty.path / "made" / "deeper")
    with api.open() as nearest:
        assert nearest.root == made.root
    monkeypatch.setenv("FARRO_ROOT", own.root)
    with api.open() as named:
        assert named.root == own.root
    with pytest.raises(api.InputError, match="it is empty"):
        api.open("")


def test_html_of_jobs_and_plans_is_escaped(farro: Program, queue: Queue) -> None:
    evil = "<script>alert('&')</script>"
    plan = {"name": evil, "steps": [{"id": "x", "command": evil, "args": [evil, '"'], "env": {"A": evil}}]}
    job = queue.enqueue(plan)
    farro.worked()
    shown: list[Any] = [api.load_plan(plan), job, queue.jobs(), queue]
    pages = [thing._repr_html_() for thing in shown]
    for page in pages:
        assert "<script" not in page
        assert "<table>" in page
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in pages[0]
    assert "&lt;script&gt;" in pages[1]


def test_a_forked_process_uses_the_queue_of_its_parent(farro: Program) -> None:
    script = """
import os, sys, farro
queue = farro.open()
first = queue.enqueue(["true"], id="parent")
if (pid := os.fork()) == 0:
    queue.enqueue(["true"], id="child")
    assert queue.job("parent").status == "queued"
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
queue.enqueue(["true"], id="parent-again")
print(sorted(job.id for job in queue.jobs()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=farro.path, env=farro.env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['child', 'parent', 'parent-again']\n", done.stderr
    told = (farro.path / "logs" / "audit.log").read_text()
    assert {json.loads(line)["job_id"] for line in told.splitlines()} == {"child", "parent", "parent-again"}


def test_audit_log_is_complete_without_closing_the_queue(farro: Program) -> None:
    script = "import farro; print(farro.open().enqueue(['true']).id)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=farro.path,
        env=farro.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in (farro.path / "logs" / "audit.log").read_text()


def test_importing_farro_and_marking_a_task_stay_light() -> None:
    script = """
import sys, farro
assert not {"typing", "json", "re", "dataclasses"} & set(sys.modules), sorted(sys.modules)
farro.task, farro.add_task, farro.current
heavy = {"asyncio", "click", "farro.store", "farro.execution.executor", "farro.queue", "importlib.metadata"}
assert not heavy & set(sys.modules), sorted(heavy & set(sys.modules))
assert set(farro.__all__) <= set(dir(farro))
[getattr(farro, name) for name in farro.__all__]
try:
    farro.nothing
except AttributeError as error:
    assert "no attribute 'nothing'" in str(error)
"""
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            script.replace("import sys, farro", f"import sys; sys.path[:0] = {_path()}; import farro"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _path() -> list[str]:
    return [os.path.dirname(os.path.dirname(api.__file__)), *(path for path in sys.path if path.endswith("-packages"))]
