"""Kill a worker or a person at every call around a permission: it is answered once, or asked again."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.agents.permissions import Permission, PermissionBox, answer_permission
from farro.agents.session_folder import SessionFolder
from farro.errors import IllegalTransition
from stage import Crash


def box_of(root: str) -> PermissionBox:
    folder = SessionFolder.of_step(root, "job-1", "Architect", "1")
    folder.make()
    return PermissionBox(folder=folder.path, role="Architect", now=lambda: "now", redact=str)


def asked(root: str) -> str:
    return box_of(root).ask("May it?")


def allow(path: str) -> None:
    answer_permission(
        Permission(path=path, role="Architect", asked_at="now", question="May it?"), allowed=True, by="me"
    )


def killed_everywhere(tmp_path: Path, before: Callable[[str], object], act: Callable[[str], object]) -> list[str]:
    """Return the roots in which `act` was killed, one for each call that it makes."""
    whole = str(tmp_path / "whole")
    os.makedirs(f"{whole}/jobs")
    before(whole)
    start = str(tmp_path / "start")
    shutil.copytree(whole, start)
    with placed(Counting()) as calls:
        act(whole)
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    seams += [KillAt(n, torn=True) for n, op in enumerate(calls.ops, 1) if op == "write"]
    roots = []
    for number, seam in enumerate(seams):
        roots.append(str(tmp_path / f"{number}"))
        shutil.copytree(start, roots[-1])
        with placed(seam), contextlib.suppress(Crash):
            act(roots[-1])
        assert seam.dead
    add_figure("kill points, permissions", len(roots), "points")
    return roots


def path_in(root: str) -> str:
    return f"{SessionFolder.of_step(root, 'job-1', 'Architect', '1').path}/permissions/0001"


def test_a_person_killed_at_every_call_of_an_answer_answers_once(tmp_path: Path) -> None:
    for root in killed_everywhere(tmp_path, asked, lambda root: allow(path_in(root))):
        box, path = box_of(root), path_in(root)
        held = box.answer(path)
        with contextlib.suppress(IllegalTransition):
            allow(path)
        assert box.answer(path) is True
        assert held in (True, None)
        assert box.give_up(path) is True  # the worker's patience ends too late


def test_a_worker_killed_at_every_call_that_gives_up_leaves_one_answer(tmp_path: Path) -> None:
    for root in killed_everywhere(tmp_path, asked, lambda root: box_of(root).give_up(path_in(root))):
        box, path = box_of(root), path_in(root)
        held = box.answer(path)
        try:
            allow(path)
            assert held is None
        except IllegalTransition:
            assert held is False
        with box:  # the next call of the step
            assert not os.path.exists(f"{box.folder}/permissions")


def test_a_worker_killed_at_every_call_of_a_question_asks_it_again(tmp_path: Path) -> None:
    for root in killed_everywhere(tmp_path, lambda root: box_of(root), asked):
        with box_of(root) as box:
            path = box.ask("May it?")
            assert (path, box.answer(path)) == (path_in(root), None)
        assert not os.path.exists(f"{box.folder}/permissions")
