"""Check Air-Executor's view: how farro's states are translated, and what remains of a task list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.air import import_jobs as records
from farro.air.status import JobState, TaskState, job_state, task_state
from farro.documents import Document
from farro.errors import BadDocument
from farro.jobs.states import Status
from farro.plans.loading import load_data


@pytest.mark.parametrize(
    ("status", "state", "noted"),
    [
        (Status.QUEUED, JobState.WAITING, False),
        (Status.IN_PROGRESS, JobState.WORKING, False),
        (Status.SUCCEEDED, JobState.COMPLETED, False),
        (Status.FAILED, JobState.FAILED, False),
        (Status.STALE, JobState.WAITING, True),
        (Status.KILLED, JobState.FAILED, True),
    ],
)
def test_every_status_has_an_air_executor_word(status: Status, state: JobState, noted: bool) -> None:
    told = job_state(status)
    assert (told.state, told.note is not None) == (state, noted)


def test_an_orphaned_job_is_not_working() -> None:
    assert job_state(Status.IN_PROGRESS, orphaned=True).state is JobState.WAITING
    assert job_state(Status.FAILED, terminal=False).note is not None


@given(st.booleans() | st.none(), st.booleans(), st.booleans())
def test_a_task_is_running_only_while_its_job_is_worked_on(success: bool | None, begun: bool, working: bool) -> None:
    state = task_state(success=success, begun=begun, working=working)
    assert (state is TaskState.RUNNING) == (success is None and begun and working)
    assert (state is TaskState.COMPLETED) == (success is True)
    assert (state is TaskState.FAILED) == (success is False)


def task(name: str, status: str, *needs: str) -> dict[str, Any]:
    return {"id": name, "command": "true", "dependencies": list(needs), "status": status}


def left(*tasks: dict[str, Any]) -> records.RemainingTasks:
    return records.remaining_tasks(Document(list(tasks), "tasks.json"), task_timeout_s=None, cwd="/x")


JOB = records.AirJob(id="1", name="n", state="working")

lists = st.lists(st.sampled_from(["pending", "running", "completed", "failed"]), min_size=1, max_size=8)


@given(lists, st.data())
def test_the_remaining_tasks_are_a_plan_of_all_that_is_not_completed(states: list[str], data: st.DataObject) -> None:
    tasks = []
    for place, status in enumerate(states):
        earlier = [f"t{number}" for number in range(place)]
        needs = data.draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        tasks.append(task(f"t{place}", status, *needs))
    found = left(*tasks)
    undone = [item["id"] for item in tasks if item["status"] != "completed"]
    assert [item["id"] for item in found.tasks] == undone
    assert (records.imported_state(JOB, found) is JobState.COMPLETED) == (not undone)
    assert (records.imported_state(JOB, found) is JobState.FAILED) == ("failed" in states)
    if undone:
        plan = load_data({"tasks": list(found.tasks)}, "left")
        wanted = {item["id"]: set(item["dependencies"]) - set(found.completed) for item in tasks}
        assert {step.id: set(step.needs) for step in plan.steps} == {name: wanted[name] for name in undone}


def test_a_completed_state_with_open_tasks_is_not_trusted() -> None:
    said = records.AirJob(id="1", name="n", state="completed")
    assert records.imported_state(said, left(task("a", "running"))) is JobState.WAITING


@pytest.mark.parametrize("data", [None, {}, "x", [{"id": "a"}], [task("a", "maybe")], [task("a", "pending", "b")], [3]])
def test_a_broken_task_list_is_refused_and_never_counts_as_done(data: Any) -> None:
    with pytest.raises(BadDocument):
        records.remaining_tasks(Document(data, "tasks.json"), task_timeout_s=None, cwd="/x")


def test_a_task_that_runs_itself_is_detected() -> None:
    itself = {"id": "a", "command": "air-executor", "args": ["run-task", "--task", "a"], "status": "pending"}
    assert left(itself, task("b", "pending")).themselves == ("a",)
