"""Kill a supervisor, and `farro down`, at every filesystem and process call; then the next one takes over.

The services are real processes. Whatever call the kill hits, the next supervisor runs each service exactly once, and
the next `down` leaves none behind.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.host import fs, process_identity, process_tree
from farro.worker import process_runtime
from stage import Crash
from support import eventually
from worker.service_rig import ServiceRig, service

PROCESS_CALLS = frozenset({"spawn", "signal"})


@pytest.fixture(autouse=True)
def process_calls_are_kill_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: fs._perform(op, functools.partial(call, **named), *args)

    start_process = process_runtime.subprocess.Popen

    def spawn(*args: Any, **named: Any) -> Any:
        started = start_process(*args, **named)
        started.returncode = 0  # without this, Popen warns that a killed supervisor did not wait for its child
        return started

    monkeypatch.setattr(process_runtime.subprocess, "Popen", seen("spawn", spawn))
    for module, name in (
        (process_identity, "terminate_identified"),
        (process_identity, "kill_identified"),
        (process_tree, "end_tree"),
    ):
        monkeypatch.setattr(module, name, seen("signal", getattr(module, name)))


def start(rig: ServiceRig) -> None:
    rig.commands().files.want([service("a"), service("b")])
    rig.supervisor().run_once()


def restart(rig: ServiceRig) -> None:
    keeper = rig.supervisor()
    rig.kill("a")
    keeper.run_once()


def change(rig: ServiceRig) -> None:
    rig.commands().files.want([service("b", "true; exec sleep 100000"), service("c")])
    rig.supervisor().run_once()


def down(rig: ServiceRig) -> None:
    rig.commands().down()


PLAYS: dict[str, tuple[Callable[[ServiceRig], None] | None, Callable[[ServiceRig], None]]] = {
    "start": (None, start),
    "restart": (start, restart),
    "change": (start, change),
    "down": (start, down),
}


def taken_over(rig: ServiceRig, *names: str) -> None:
    """Let the next supervisor do turns until each service runs, and never one of them twice."""
    keeper = rig.supervisor()

    def turn() -> bool:
        keeper.run_once()
        found = rig.living()
        assert max(found.values(), default=0) <= 1, found
        listed = Counter(one.role for one in rig.commands().processes() if one.pid is not None)
        return found == listed == Counter(names)

    eventually(turn, f"{names} should run")


def recovered_by_up(rig: ServiceRig) -> None:
    rig.commands().files.want([service("a"), service("b")])
    taken_over(rig, "a", "b")


def recovered_by_the_next_supervisor(rig: ServiceRig) -> None:
    """No command comes; what was wanted last is what runs, each service once."""
    wanted = rig.commands().files.wanted()
    if wanted.running:
        taken_over(rig, *(one.role for one in wanted.services))
    else:
        assert not rig.supervisor().run_once()


RECOVERIES = [recovered_by_up, recovered_by_the_next_supervisor, lambda rig: None]


@pytest.mark.parametrize("recover", RECOVERIES, ids=["up", "supervisor", "down"])
@pytest.mark.parametrize("name", PLAYS)
def test_a_supervisor_killed_at_any_call_starts_no_service_twice(
    name: str, recover: Callable[[ServiceRig], None], shm: Path
) -> None:
    before, act = PLAYS[name]
    number = 0

    def played(seam: Counting | KillAt) -> None:
        nonlocal number
        number += 1
        folder = shm / str(number)
        folder.mkdir()
        rig = ServiceRig(folder)
        try:
            if before is not None:
                before(rig)
            with placed(seam), contextlib.suppress(Crash):
                act(rig)
            recover(rig)
            rig.commands().down()
            assert not rig.living(), f"{seam!r} left a process behind"
            assert rig.runtime().list() == [], f"{seam!r}"
            assert rig.commands().processes() == []
        finally:
            rig.clean_up()

    counting = Counting(frozenset({*Counting().only, *PROCESS_CALLS}))
    played(counting)
    assert PROCESS_CALLS & set(counting.ops)
    points = 0
    for n, op in enumerate(counting.ops, 1):
        kinds: list[dict[str, bool]] = [{}, {"after": True}]
        kinds += [{"torn": True}] if op == "write" else []
        for kind in kinds:
            seam = KillAt(n, **kind)
            played(seam)
            assert seam.dead
            points += 1
    add_figure("kill points, supervisor", points, "points")
