"""The contract of the Library port: saved plans and actions, and the jobs made from them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from farro.app import servers
from farro.config.settings import RedisSettings, Settings
from farro.documents import Document
from farro.errors import BadDocument, BadName, Damaged, IdConflict, InputError
from farro.host.clock import SystemClock
from farro.queue import library as verbs
from farro.store.files.library import FilesLibrary
from farro.store.library import Library
from farro.store.redis.library import RedisLibrary
from servers import RedisServer
from stage import ROLES

STEPS = [{"step_number": 1, "tool": "unix", "command": "echo", "args": ["{{input.word}}"]}]


@pytest.fixture(params=["files", "redis"])
def library(request: pytest.FixtureRequest, shm: Path) -> Library:
    if request.param == "files":
        return FilesLibrary(str(shm), durable=True)
    server: RedisServer = request.getfixturevalue("redis_server")
    settings = Settings(store=server.url, redis=RedisSettings(name=f"lib-{os.urandom(6).hex()}"))
    return servers.library(settings, SystemClock())


def save(library: Library, **document: object) -> str:
    return verbs.save_plan(
        library, Document({"steps": STEPS, **document}, "-"), roles=ROLES, mint=lambda: "plan-1", name=None
    )


def test_a_plan_is_saved_once(library: Library) -> None:
    assert save(library, plan_id="greet", id="job-1", name="Greets") == "greet"
    assert save(library, plan_id="greet", name="Greets") == "greet"
    with pytest.raises(IdConflict, match="plan greet is kept already"):
        save(library, plan_id="greet", name="Other")
    assert verbs.plan(library, "greet") == {"plan_id": "greet", "name": "Greets", "steps": STEPS}
    assert verbs.plans(library) == [verbs.PlanLine(id="greet", name="Greets", steps=1, wants=("word",))]
    assert save(library) == "plan-1"
    assert library.ids("plan") == ["greet", "plan-1"]
    library.put("plan", "greet", {"steps": []}, replace=True)
    assert library.get("plan", "greet") == {"steps": []}
    assert (library.remove("plan", "greet"), library.remove("plan", "greet")) == (True, False)
    assert library.ids("plan") == ["plan-1"]


def test_of_two_plans_for_one_name_one_is_saved(library: Library) -> None:
    told: list[str] = []

    def put(number: int) -> None:
        try:
            library.put("plan", "p", {"number": number})
            told.append("kept")
        except IdConflict:
            told.append("refused")

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["kept", "refused", "refused", "refused"]


def test_a_bad_plan_is_not_saved(library: Library) -> None:
    with pytest.raises(BadDocument, match=r"steps\[0\].input_from_step"):
        save(library, steps=[{"step_number": 1, "tool": "unix", "command": "cat", "input_from_step": 7}])
    with pytest.raises(BadName):
        library.get("plan", "../../etc/passwd")
    assert library.ids("plan") == []


def test_an_action_is_a_job_for_each_input(library: Library) -> None:
    save(library, plan_id="greet")
    action = {"action_id": "all", "plan_id": "greet", "inputs": [{"word": "a"}, {"word": "b"}]}
    assert verbs.save_action(library, Document(action, "-"), mint=lambda: "x") == "all"
    jobs = verbs.jobs_of_action(library, "all")
    assert [(job.job_id, job.prompt["steps"][0]["args"]) for job in jobs] == [("all-001", ["a"]), ("all-002", ["b"])]
    assert verbs.actions(library) == [verbs.ActionLine(id="all", plan_id="greet", inputs=2)]
    with pytest.raises(BadDocument, match=r"inputs\[1\]: has no word"):
        verbs.save_action(library, Document({**action, "inputs": [{"word": "a"}, {}]}, "-"), mint=lambda: "x")
    with pytest.raises(InputError, match="no plan gone is kept; known: greet"):
        verbs.save_action(library, Document({**action, "plan_id": "gone"}, "-"), mint=lambda: "x")


def test_unknown_and_damaged_documents_are_reported(library: Library, shm: Path) -> None:
    with pytest.raises(InputError, match="no plan p is kept; none is"):
        verbs.plan(library, "p")
    with pytest.raises(InputError, match="no action p is kept; none is"):
        verbs.action(library, "p")
    save(library, plan_id="p")
    if isinstance(library, FilesLibrary):
        (shm / "library/plans/p.json").write_text("[")
    else:
        assert isinstance(library, RedisLibrary)
        library._ask("HSET", library._key("plan"), "p", "[")
    with pytest.raises(Damaged, match="cannot be read as a plan"):
        verbs.plan(library, "p")
