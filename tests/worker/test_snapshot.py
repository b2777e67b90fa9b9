"""Keep the config of a claim's agents with the job, for any number of earlier jobs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from crash.seams import Call, Open, placed
from farro.execution.size_limit import SNAPSHOT
from farro.host import fs
from farro.host.clock import SystemClock
from farro.worker.snapshot import KEPT, Snapshots


class NoMoreNames(Open):
    """A filesystem on which the kept file has reached the limit of hard links (ext4: 65,000)."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if op == "link" and f"/{KEPT}/" in args[0]:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), args[0])
        if op == "fsync":
            self.synced.append(args[1])
        return super().perform(op, call, args)


@pytest.mark.parametrize("before", [False, True], ids=["new", "in the place of an earlier one"])
def test_a_snapshot_at_the_hard_link_limit_is_copied(shm: Path, before: bool) -> None:
    (shm / KEPT).mkdir(parents=True)
    (shm / "tasks").mkdir()
    (shm / "tasks/t.md").write_text("# A task\n")
    config, job = shm / "agents-config.json", shm / "job"
    attempts = [job / "attempts/0001", job / "attempts/0002"]
    for attempt in attempts:
        attempt.mkdir(parents=True)
    snapshots = Snapshots(root=str(shm), clock=SystemClock())
    if before:
        config.write_text('{"before": 1}')
        snapshots.keep(snapshots.now("Runner", exactly=True), str(attempts[0]))
    config.write_text("{}")
    with placed(NoMoreNames()) as seam:
        snapshots.keep(snapshots.now("Runner", exactly=True), str(attempts[1]))
        snapshots.keep_task("t", str(job))
    homes = [attempts[1] / SNAPSHOT, job / SNAPSHOT]
    for home in homes:
        assert (home / "agents-config.json").read_text() == "{}"
        assert not [name for name in os.listdir(home) if name.startswith(fs.TEMPORARY)]
        assert str(home / "agents-config.json") in seam.synced, "a copy must be synced"
    assert sorted(os.listdir(homes[1])) == ["agents-config.json", "task.md"]
