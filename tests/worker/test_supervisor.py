"""The supervisor of a root's services: starting, restarting, adopting and stopping them, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.errors import FarroError
from farro.host import leases
from farro.worker import supervisor as supervisors
from farro.worker.restarts import RESTARTS, STEADY_S
from farro.worker.supervisor import FOLDER, StoppedMeanwhile
from stage import QuickClock
from support import eventually
from worker.service_rig import DEAF, ENDLESS, ServiceRig, service


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ServiceRig]:
    made = ServiceRig(tmp_path)
    yield made
    made.clean_up()
    assert not made.living()


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[ServiceRig]:
    """A rig whose time passes only by sleeping."""
    made = ServiceRig(tmp_path, QuickClock())
    yield made
    made.clean_up()
    assert not made.living()


def seconds_pass(rig: ServiceRig, seconds: float) -> None:
    rig.clock.sleep(seconds)


def test_wanted_services_run_and_unwanted_ones_are_stopped(rig: ServiceRig) -> None:
    keeper, files = rig.supervisor(), rig.commands().files
    assert not keeper.run_once()  # no service should run
    files.want([service("a"), service("b")])
    assert keeper.run_once()
    rig.runs("a", "b")
    rig.says_ready("a")
    before = rig.process("a").pid
    files.want([service("a"), service("c")])
    keeper.run_once()
    rig.runs("a", "c")
    assert rig.process("a").pid == before
    files.want([service("a", f"true; {ENDLESS}")])  # another command
    keeper.run_once()
    rig.runs("a")
    assert rig.process("a").pid != before
    assert [one.how for one in rig.commands().down()] == ["stopped"]
    assert not keeper.run_once()
    assert os.listdir(f"{rig.root}/{FOLDER}") == [name for name in os.listdir(f"{rig.root}/{FOLDER}") if name[0] == "."]


def test_a_service_that_ends_is_restarted_and_its_end_is_reported(rig: ServiceRig) -> None:
    keeper = rig.supervisor()
    rig.commands().files.want([service("a", "echo it started; echo no more ideas; exit 3"), service("b")])
    keeper.run_once()
    eventually(lambda: rig.process("a").pid is None, "it does not end")
    keeper.run_once()
    shown = rig.process("a")
    assert shown.restarts == 1
    assert shown.last_end is not None
    assert (shown.last_end["how"], shown.last_end["words"]) == ("with exit code 3", "no more ideas")
    rig.kill("b")
    keeper.run_once()
    assert "farro-b ended by signal 9" in rig.logged
    eventually(lambda: rig.living()["b"] == 1, "it is not restarted")


def test_restarts_pause_longer_and_longer_until_the_service_counts_as_failed(timed: ServiceRig) -> None:
    keeper, files = timed.supervisor(), timed.commands().files
    files.want([service("a", "echo it failed >&2; exit 1")])
    pauses, failures = [], []
    for _ in range(RESTARTS + 1):
        before_s = timed.clock.monotonic_s()
        launches = timed.logged.count("farro-a was started")
        while timed.logged.count("farro-a was started") == launches:
            keeper.run_once()
            if timed.logged.count("farro-a was started") == launches:
                failures.append(timed.process("a").failure)
                seconds_pass(timed, 0.5)
        pauses.append(timed.clock.monotonic_s() - before_s)
        eventually(lambda: timed.process("a").pid is None, "it does not end")
    assert pauses == [0, 0, 1, 2, 4, 8]
    for _ in range(3):
        keeper.run_once()
        seconds_pass(timed, 60)
    shown = timed.process("a")
    assert (shown.state, shown.restarts) == ("Failed", RESTARTS)
    assert "ended with exit code 1, and is started again after 8 s; logs/farro-a.log ends with: it failed" in failures
    said = "ended with exit code 1, and was started 6 times in a row; logs/farro-a.log ends with: it failed"
    assert shown.failure == said
    files.want([service("a")])  # the next command
    keeper.run_once()
    timed.runs("a")
    assert timed.process("a").failure is None


def test_a_service_that_lived_for_a_minute_begins_a_new_row_of_restarts(timed: ServiceRig) -> None:
    keeper = timed.supervisor()
    timed.commands().files.want([service("a")])
    for _ in range(2 * RESTARTS):
        keeper.run_once()
        timed.runs("a")
        seconds_pass(timed, STEADY_S + 1)
        timed.kill("a")


def test_a_service_that_cannot_be_executed_is_tried_again_and_then_failed(timed: ServiceRig) -> None:
    keeper, missing = timed.supervisor(), supervisors.Service(name="farro-a", role="a", argv=("/nowhere/at-all",))
    timed.commands().files.want([missing, service("b")])
    keeper.run_once()
    timed.runs("b")  # the others are not affected
    for _ in range(20):
        seconds_pass(timed, 10)
        keeper.run_once()
    shown = timed.process("a")
    assert (shown.state, shown.pid) == ("Failed", None)
    assert shown.last_end is not None
    assert "farro-a could not be started: /nowhere/at-all" in shown.last_end["words"]


def test_a_service_that_ignores_signals_is_killed_after_ten_seconds(timed: ServiceRig) -> None:
    keeper = timed.supervisor()
    timed.commands().files.want([service("deaf", DEAF), service("b")])
    keeper.run_once()
    timed.says_ready("deaf")
    before_s = timed.clock.monotonic_s()
    done = {one.name: one.how for one in timed.commands().down()}
    assert done == {"farro-deaf": "killed", "farro-b": "stopped"}
    assert 10 <= timed.clock.monotonic_s() - before_s < 10.5
    assert not timed.living()


def test_the_next_supervisor_adopts_the_services(rig: ServiceRig) -> None:
    rig.commands().files.want([service("a"), service("b")])
    rig.supervisor().run_once()
    before = [one.pid for one in rig.commands().processes()]
    for _ in range(3):
        adopting = rig.supervisor()
        adopting.run_once()
        adopting.run_once()
    assert [one.pid for one in rig.commands().processes()] == before
    rig.kill("b")  # its parent is none of these supervisors
    assert rig.process("b").state == "Stopped"  # no supervisor process runs
    adopting.run_once()
    rig.runs("a", "b")


def test_down_without_a_supervisor_stops_what_runs(rig: ServiceRig) -> None:
    rig.commands().files.want([service("a"), service("b")])
    rig.supervisor().run_once()
    rig.kill("b")
    assert [(one.name, one.how) for one in rig.commands().down()] == [("farro-a", "stopped"), ("farro-b", "was gone")]
    assert rig.commands().down() == []


def test_down_with_kill_keeps_the_list(rig: ServiceRig) -> None:
    rig.commands().files.want([service("a"), service("deaf", DEAF)])
    keeper = rig.supervisor()
    keeper.run_once()
    assert {one.how for one in rig.commands().down(kill=True)} == {"killed"}
    assert [one.state for one in rig.commands().processes()] == ["Stopped", "Stopped"]
    assert not keeper.run_once()  # and starts nothing again
    assert {one.how for one in rig.commands().down(kill=True)} == {"was gone"}
    rig.commands().down()
    assert rig.commands().processes() == []


def test_one_process_acts_at_a_time(rig: ServiceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second supervisor waits for the lock of the first, and `down` acts under it."""
    rig.commands().files.want([service("a")])
    keeper = rig.supervisor()
    held = []

    def turn() -> bool:
        held.append(leases.is_held(f"{rig.root}/{FOLDER}/.supervisor"))
        return False

    monkeypatch.setattr(keeper, "run_once", turn)
    keeper.run()
    assert held == [True]
    keeper = rig.supervisor()
    keeper.run_once()
    runtime = rig.commands().runtime
    stop = type(runtime).stop

    def stop_under_lock(self: object, *args: object) -> object:
        held.append(leases.is_held(f"{rig.root}/{FOLDER}/.supervisor"))
        return stop(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(runtime), "stop", stop_under_lock)
    rig.commands().down()
    assert held[1:]
    assert all(held)


def test_up_that_is_stopped_by_another_command_says_so(rig: ServiceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = rig.commands()
    monkeypatch.setattr(type(commands), "ensure", lambda self: bool(rig.commands().down()) and False)
    with pytest.raises(StoppedMeanwhile, match="another command stopped the services"):
        commands.up([service("a")])


def test_down_stops_what_another_up_started_meanwhile(rig: ServiceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.commands().files.want([service("a")])
    keeper, commands = rig.supervisor(), rig.commands()
    keeper.run_once()

    def up_meanwhile(*_: object) -> bool:
        rig.commands().files.want([service("a"), service("b")])
        return keeper.run_once()

    monkeypatch.setattr(type(commands.runtime), "end_alone", up_meanwhile)
    assert [(one.name, one.how) for one in commands.down()] == [("farro-a", "stopped"), ("farro-b", "stopped")]
    assert not rig.living()
    assert rig.commands().files.wanted().running  # that command came later, and its supervisor starts them again


def test_a_supervisor_that_ends_at_once_is_reported(rig: ServiceRig) -> None:
    with pytest.raises(FarroError, match=r"the supervisor ends at once; .*logs/farro-supervisor\.log ends with:"):
        rig.commands().up([service("a")])


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"command": "x", "running": true, "services": [{}]}'])
def test_damaged_files_start_and_stop_nothing(rig: ServiceRig, damage: bytes) -> None:
    rig.commands().files.want([service("a")])
    keeper = rig.supervisor()
    keeper.run_once()
    for name in (".wanted", ".status"):
        Path(f"{rig.root}/{FOLDER}/{name}").write_bytes(damage)
    assert not keeper.run_once()
    rig.runs("a")
    assert [one.how for one in rig.commands().down()] == ["stopped"]


def test_a_full_disk_ends_no_supervisor(rig: ServiceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.commands().files.want([service("a")])
    keeper = rig.supervisor()
    turns = iter([OSError(28, "No space left on device"), None, None])
    real = keeper.run_once

    def turn() -> bool:
        error = next(turns, None)
        if error is not None:
            raise error
        with contextlib.suppress(StopIteration):
            return real()
        return False

    monkeypatch.setattr(keeper, "run_once", turn)
    assert keeper._safe_turn()
    assert keeper._safe_turn()
    rig.runs("a")
    assert "No space left" in rig.logged[0]


def test_a_service_is_ready_when_its_log_says_so_or_after_a_while(timed: ServiceRig) -> None:
    timed.commands().files.want([service("quiet", "exec sleep 100000")])
    Path(timed.root, "logs", "farro-quiet.log").write_text("it started\n")  # of an earlier process
    timed.supervisor().run_once()
    assert timed.process("quiet").state == "Provisioning"
    seconds_pass(timed, supervisors.READY_S)
    assert timed.process("quiet").state == "Running"
    record = json.loads(Path(timed.root, FOLDER, "farro-quiet.json").read_text())
    assert record["log_offset"] == len("it started\n")
