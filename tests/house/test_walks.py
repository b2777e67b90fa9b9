"""Trace one real job and compare the functions it passes with the two walks of ARCHITECTURE.md."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import farro
from farro.app import App
from farro.config.reader import load
from farro.documents import parse_json
from farro.execution.stop import Stop
from farro.host.clock import SystemClock
from farro.jobs.request import JobRequest
from farro.jobs.states import Status
from farro.queue.submit import SubmitPolicy, submit
from farro.store.port import Store
from farro.worker.worker import Slot, Turn, WorkerSetup
from stage import make
from support import ROOT

SOURCE = os.path.dirname(farro.__file__) + os.sep
PAGE = Path(ROOT, "ARCHITECTURE.md").read_text()
STEP = re.compile(r"^\d+\. `(\w+/[\w/]+\.py)` `([\w.<>]+)`", re.MULTILINE)


def walk(title: str) -> list[tuple[str, str]]:
    """Return the listed functions under a heading: the file and the function's name."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return STEP.findall(found[1])


class Trace:
    """The functions of farro that a call enters, in order of their first call."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, str]] = []

    def run(self, call: Callable[[], object]) -> None:
        sys.setprofile(self._enter)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            function = (code.co_filename.removeprefix(SOURCE), code.co_qualname)
            if function not in self.functions:
                self.functions.append(function)

    def until(self, last: tuple[str, str]) -> list[tuple[str, str]]:
        return self.functions[: self.functions.index(last) + 1]


def packages(functions: list[tuple[str, str]]) -> set[str]:
    return {file.split("/")[0] for file, _ in functions if "/" in file}


def check(listed: list[tuple[str, str]], traced: list[tuple[str, str]], limit: int) -> None:
    assert [function for function in traced if function in listed] == listed, "the page lists another order"
    assert packages(traced) == packages(listed), "the page names every package on the way"
    assert len(packages(traced)) <= limit


@pytest.fixture
def store(shm: Path) -> Iterator[Store]:
    make(str(shm))
    opened = App().open_store(str(shm), load(str(shm)))
    yield opened
    opened.close()


def submit_one(store: Store) -> str:
    plan = b'{"plan_id": "p", "steps": [{"step_number": 1, "command": "true"}]}'
    policy = SubmitPolicy.of(store.root, load(store.root), user="someone")
    (submitted,) = submit(store, [JobRequest(document=parse_json(plan, source="plan.json"))], policy)
    return submitted.id


def test_the_walk_of_a_submission_is_the_listed_one(store: Store) -> None:
    submit_one(store)  # imports and caches are not part of the walk
    trace = Trace()
    trace.run(lambda: submit_one(store))
    listed = walk("From `submit` to the acknowledged rename")
    walked = trace.functions[trace.functions.index(listed[0]) :]
    check(listed, walked[: walked.index(listed[-1]) + 1], limit=7)


def test_the_walk_of_an_attempt_is_the_listed_one(store: Store) -> None:
    app, settings, clock = App(), load(store.root), SystemClock()
    log = lambda level, message, fields: None  # noqa: E731
    setup = WorkerSetup(
        store=store,
        role="Runner",
        name="walker",
        performer=app.performer(store.root, settings, app.runner(store.root, settings, kind="inline"), clock),
        clock=clock,
        log=log,
        hand_off=app.hand_off(store.root, settings, store, clock, log, bypass=False),
    )
    slot = Slot(setup, Stop(clock))
    submit_one(store)
    assert slot.run_once() is Turn.WORKED
    job_id = submit_one(store)
    trace = Trace()
    trace.run(slot.run_once)
    slot.leave()
    view = store.find(job_id)
    assert view is not None
    assert view.status is Status.SUCCEEDED
    listed = walk("From claim to commit")
    check(listed, trace.until(listed[-1]), limit=9)
