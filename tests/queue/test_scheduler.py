"""Schedules: every due time runs exactly once, in spite of several managers, crashes and clock changes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters import Files, make_adapter
from crash import seams
from crash.powermodel import Log, Order, Recorder, states
from farro.agents.manager import Manager
from farro.config.settings import Settings
from farro.queue import schedules
from farro.queue.admission import Caps, Gate
from farro.queue.schedules import Scheduler, Timetable
from farro.queue.submit import ANYTHING, SubmitPolicy

PLAN = {"steps": [{"id": "one", "command": "true"}]}


@pytest.fixture
def files(shm: Path) -> Iterator[Files]:
    made = make_adapter("process", str(shm / "root"))
    assert isinstance(made, Files)
    made.clock._now = datetime(2026, 11, 16, 8, 58, 30, tzinfo=UTC)
    yield made
    made.close()


def put(files: Files, name: str = "tidy", **changes: Any) -> None:
    folder = Path(files.root, "schedules")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"cron": "* * * * *", "plan": PLAN, **changes}))


def timetable(files: Files, policy: SubmitPolicy = ANYTHING) -> Timetable:
    def log(level: str, message: str, fields: Mapping[str, Any]) -> None:
        files.logged.append((level, message, fields))

    return Timetable(store=files.process(), clock=files.clock, log=log, policy=policy)


def runs(files: Files) -> list[str]:
    """Return the due times of all jobs, read from their ids."""
    return sorted(view.job_id.split("-")[-1][9:15] for view in files.store.list())


def fired(table: Timetable) -> list[str]:
    return [f"{run.due:%H:%M}" for run in table.turn()]


def test_a_schedule_runs_when_it_is_due_and_not_before(files: Files) -> None:
    put(files)
    table = timetable(files)
    assert fired(table) == []
    assert table.patience_s(300) == 30
    assert table.patience_s(5) == 5
    files.clock.advance(29.5)
    assert fired(table) == []
    files.clock.advance(0.5)
    assert fired(table) == ["08:59"]
    assert fired(table) == []
    files.clock.advance(60)
    assert fired(table) == ["09:00"]
    assert [view.job_id for view in files.store.list()] == [
        "sched-tidy-20261116T085900Z",
        "sched-tidy-20261116T090000Z",
    ]


def test_the_manager_runs_schedules_too(files: Files) -> None:
    put(files)
    manager = Manager(store=files.store, log=lambda *_: None, timetable=timetable(files))
    assert manager.run_once() == []
    assert manager.patience_s(300) == 30
    files.clock.advance(30)
    assert len(manager.run_once()) == 1
    assert Manager(store=files.store, log=lambda *_: None).patience_s(5) == 5


def test_a_restart_runs_nothing_twice_and_misses_nothing(files: Files) -> None:
    put(files, missed="run_all")
    timetable(files).turn()
    for _ in range(4):
        files.clock.advance(60)
        timetable(files).turn()
        timetable(files).turn()
    assert runs(files) == ["085900", "090000", "090100", "090200"]


@pytest.mark.parametrize(
    ("missed", "told"),
    [
        ("skip", []),
        ("run_once", ["11:20"]),
        ("run_all", ["09:00", "09:20", "09:40", "10:00", "10:20", "10:40", "11:00", "11:20"]),
    ],
)
def test_missed_runs_follow_the_policy(files: Files, missed: str, told: list[str]) -> None:
    put(files, cron="*/20 * * * *", missed=missed)
    timetable(files).turn()
    files.clock.advance(2.5 * 3600)
    assert fired(timetable(files)) == told
    assert fired(timetable(files)) == []
    events = [event for event in files.audited if event["event"] == "schedule_missed"]
    assert [event["missed"] for event in events] == ([] if missed == "run_all" else [8 - len(told)])
    files.clock.advance(12 * 60)
    assert fired(timetable(files)) == ["11:40"], "later runs are on time"


def test_run_all_is_bounded(files: Files) -> None:
    put(files, missed="run_all")
    timetable(files).turn()
    files.clock.advance(10 * 24 * 3600)
    assert len(timetable(files).turn()) == 100
    assert timetable(files).turn() == []


def test_two_managers_run_each_time_once(files: Files) -> None:
    put(files, missed="run_all")
    timetable(files).turn()
    files.clock.advance(20 * 60)
    tables = [timetable(files) for _ in range(4)]
    threads = [threading.Thread(target=table.turn) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs(files)) == len(set(runs(files))) == 20
    assert [event["event"] for event in files.audited].count("enqueued") == 20


def test_firing_killed_at_any_call_runs_each_time_once(files: Files) -> None:
    put(files, missed="run_all")
    timetable(files).turn()
    for number in range(1, 400):
        files.clock.advance(60)
        seam = seams.KillAt(number)
        try:
            with seams.placed(seam):
                timetable(files).turn()
        except seams.Crash:
            pass
        timetable(files).turn()  # the next manager
        if not seam.dead:
            break
    else:
        raise AssertionError("firing never ended")
    assert number > 10
    told = runs(files)
    assert len(told) == len(set(told)) == number, "a time was lost or ran twice"


def test_a_clock_that_is_set_back_repeats_nothing(files: Files) -> None:
    put(files, missed="run_all")
    table = timetable(files)
    table.turn()
    files.clock.advance(180)
    assert len(table.turn()) == 3
    files.clock.jump(-7200)
    for _ in range(121):
        files.clock.advance(60)
        table.turn()
        timetable(files).turn()
    told = runs(files)
    assert told == sorted(set(told))
    assert told[:4] == ["085900", "090000", "090100", "090200"], "it continues where it was"


def test_a_clock_that_was_years_ahead_does_not_stop_a_schedule(files: Files) -> None:
    put(files)
    files.clock.jump(4 * 365 * 86400)
    table = timetable(files)
    table.turn()
    files.clock.advance(60)
    assert len(table.turn()) == 1
    files.clock.jump(-4 * 365 * 86400)
    files.clock.advance(61)
    table.turn()
    files.clock.advance(60)
    assert len(table.turn()) == 1


def test_a_new_a_changed_and_a_removed_file_are_noticed(files: Files) -> None:
    table = timetable(files)
    assert table.turn() == []
    put(files)
    table.turn()
    files.clock.advance(60)
    assert len(table.turn()) == 1
    put(files, enabled=False)
    files.clock.advance(60)
    assert table.turn() == []
    Path(files.root, "schedules", "tidy.json").unlink()
    files.clock.advance(60)
    assert table.turn() == []
    assert table.patience_s(7) == 7


def test_a_bad_schedule_is_reported_once_and_stops_no_other(files: Files) -> None:
    put(files)
    put(files, "broken", cron="61 * * * *")
    table = timetable(files)
    table.turn()
    files.clock.advance(60)
    assert fired(table) == ["08:59"]
    assert [message for level, message, _ in files.logged if level == "error"] == [
        "schedules/broken.json:1:10: cron: minute: 61 is not between 0 and 59"
    ]


def test_a_full_queue_leaves_the_run_due(files: Files) -> None:
    put(files, cron="0 9 * * *")
    table = timetable(files, SubmitPolicy(gate=Gate(caps=Caps(role=0, roles={}))))
    table.turn()
    files.clock.advance(90)
    assert table.turn() == []
    assert [level for level, *_ in files.logged] == ["warning"]
    assert fired(timetable(files)) == ["09:00"], "there is room again"


def test_agent_work_of_a_schedule_obeys_the_rules_of_its_root(files: Files) -> None:
    prompt = {
        "role": "CodeReviewer",
        "rubric": "Make the change.",
        "allowed_paths": ["src/"],
        "success": "It is made.",
        "routing": {"mode": "manager"},
    }
    Path(files.root, "agents-config.json").unlink(missing_ok=True)
    put(files, cron="0 9 * * *", plan=prompt)
    table = timetable(files, SubmitPolicy.of(files.root, Settings(), user="bob"))
    table.turn()
    files.clock.advance(90)
    assert table.turn() == []
    (message,) = [message for level, message, _ in files.logged if level == "error"]
    assert "agents need one; make it with: farro init" in message


def test_a_plan_that_was_edited_between_two_managers_is_one_run(files: Files) -> None:
    put(files)
    early, late = timetable(files), timetable(files)
    early.turn()
    late.turn()
    files.clock.advance(60)
    early.turn()
    Path(files.root, schedules.STATES, "tidy.json").write_text('{"handled": "2026-11-16T08:58:30.000Z"}')
    put(files, plan={"steps": [{"id": "two", "command": "false"}]})
    late.turn()
    assert runs(files) == ["085900"]


def test_a_schedule_with_a_torn_state_starts_from_now(files: Files) -> None:
    put(files, missed="run_all")
    timetable(files).turn()
    Path(files.root, schedules.STATES, "tidy.json").write_text('{"handled": "20')
    files.clock.advance(600)
    assert timetable(files).turn() == []
    files.clock.advance(60)
    assert len(timetable(files).turn()) == 1


def test_a_scheduler_runs_as_a_separate_keeper(files: Files) -> None:
    put(files)
    keeper = Scheduler(store=files.store, log=lambda *_: None, timetable=timetable(files))
    assert keeper.run_once() == []
    assert keeper.patience_s(300) == 30
    files.clock.advance(60)
    assert [run.job_id for run in keeper.run_once()] == ["sched-tidy-20261116T085900Z"]
    keeper.stop()
    keeper.run(5)


def test_a_power_cut_does_not_tear_the_state_of_a_schedule(files: Files, shm: Path) -> None:
    """A torn state would count as a new schedule: runs that fell due during the power cut would be skipped."""
    root = str(shm / "disk")
    os.makedirs(f"{root}/jobs/.schedules")
    recorder = Recorder(root)
    with seams.placed(recorder):
        for minute in range(3):
            now = files.clock.now() + timedelta(minutes=minute)
            schedules._remember(root, "tidy", schedules.Handled(until=now, last_due=now, last_job=f"j{minute}"))
    for state in itertools.islice(states(Log.of(recorder), seed=43, randoms=5, order=Order.BORN), 300):
        state.write_out(str(shm / "state"))
        path = shm / "state/jobs/.schedules/tidy.json"
        assert not path.exists() or schedules.handled(str(shm / "state"), "tidy") is not None, state.story
        shutil.rmtree(shm / "state")
