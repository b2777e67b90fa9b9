"""Kill a worker at every call that prepares an agent's home: the session is the old one, the new one or none."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.agents.session_folder import SessionFolder, SessionRecord
from stage import Crash

OLD = SessionRecord(program="claude", cwd="/old", session_id="old-id", told=("a",))
NEW = SessionRecord(program="claude", cwd="/new", session_id="new-id", told=("a", "b"))
OTHER = SessionRecord(program="codex", cwd="/old", session_id="other-id")
FILES = {".claude/farro.json": b"{}", ".farro-prompt": b"do it"}


def prepare(root: str) -> SessionFolder:
    folder = SessionFolder.of_step(root, "job-1", "Architect", "1")
    folder.make()
    folder.put(FILES)
    folder.write("claude", NEW)
    return folder


def begun(root: str) -> None:
    folder = SessionFolder.of_step(root, "job-1", "Architect", "1")
    folder.make()
    folder.put({".farro-prompt": b"before"})
    folder.write("codex", OTHER)
    folder.write("claude", OLD)


def test_kill_at_every_call_that_prepares_a_session(tmp_path: Path) -> None:
    points = 0
    for used in (False, True):
        before = str(tmp_path / f"before-{used}")
        os.makedirs(f"{before}/jobs")
        if used:
            begun(before)
        whole = str(tmp_path / f"whole-{used}")
        shutil.copytree(before, whole, symlinks=True)
        with placed(Counting()) as calls:
            prepare(whole)
        seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
        seams += [KillAt(n, torn=True) for n, op in enumerate(calls.ops, 1) if op == "write"]
        for number, seam in enumerate(seams):
            root = str(tmp_path / f"{number}-{used}")
            shutil.copytree(before, root, symlinks=True)
            with placed(seam), contextlib.suppress(Crash):
                prepare(root)
            assert seam.dead
            found = SessionFolder.of_step(root, "job-1", "Architect", "1").read()
            assert found.get("claude") in ((OLD, NEW) if used else (None, NEW))
            assert found.get("codex") == (OTHER if used else None)
            folder = prepare(root)  # the next attempt
            assert folder.read()["claude"] == NEW
            assert {name: Path(folder.home, name).read_bytes() for name in FILES} == FILES
            shutil.rmtree(root)
        points += len(seams)
    add_figure("kill points, agents' sessions", points, "points")
