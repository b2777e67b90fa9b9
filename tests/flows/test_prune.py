"""`farro prune` removes the chosen final jobs, and keeps jobs that are not final, new, or needed by others."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import farro.store.files.prune  # noqa: F401 - else the next line imports what stands for it
from crash.seams import Call, Open, placed
from farro.app import App
from farro.config.settings import Settings
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.queue.prune import PruneFilter, candidates
from farro.store.files import prune as pruning
from flows.program import Program, listing, steps


@pytest.fixture
def worked(farro: Program) -> Program:
    """Make jobs that ended 5, 4, 3, 2 and 1 days ago, the last two failed, and one queued job."""
    for days in range(5, 0, -1):
        farro.enqueue(steps(["false" if days < 3 else "true"]), "--id", f"days-{days}")
    farro.worked()
    for days in range(5, 0, -1):
        path = farro.folder(f"days-{days}") / "job.json"
        ended = timestamp(datetime.now(UTC) - timedelta(days=days))
        path.write_text(json.dumps({**json.loads(path.read_text()), "finalized_at": ended}))
    farro.enqueue(steps(["true"]), "--id", "queued")
    return farro


def left(farro: Program) -> set[str]:
    return {job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"]} - {"queued"}


@pytest.mark.parametrize(
    ("args", "stay"),
    [
        (["--older-than", "84h"], {1, 2, 3}),
        (["--keep", "1"], {1}),
        (["--keep", "4", "--older-than", "36h"], {1, 2, 3, 4}),
        (["--keep", "1", "--older-than", "84h"], {1, 2, 3}),
        (["--keep", "0", "--status", "failed"], {3, 4, 5}),
        (["--keep", "0", "--status", "failed", "--status", "succeeded"], set()),
        (["--keep", "0", "--role", "DocWriter"], {1, 2, 3, 4, 5}),
    ],
)
def test_prune_removes_the_chosen_jobs_only(worked: Program, args: list[str], stay: set[int]) -> None:
    would = worked.call("prune", *args, "--dry-run", "--json", code=0).json
    assert left(worked) == {f"days-{days}" for days in range(1, 6)}
    told = worked.call("prune", *args, "--json", code=0).json
    assert left(worked) == {f"days-{days}" for days in stay}
    assert told["jobs"] == len(would["jobs"]) == 5 - len(stay)
    assert told["bytes"] == would["bytes"]
    assert worked.status("queued") == "queued"
    assert [name for name in listing(worked.path / "jobs/.trash") if name != ".lock"] == []
    worked.worked()
    assert worked.status("queued") == "succeeded"


def test_prune_without_a_choice_removes_nothing_and_a_dry_run_lists(worked: Program) -> None:
    told = worked.call("prune", code=2)
    assert "--older-than" in told.err
    assert "--keep" in told.err
    assert len(left(worked)) == 5
    page = worked.call("prune", "--keep", "3", "--dry-run", code=0).out
    assert [line.split()[0] for line in page.splitlines()[1:3]] == ["days-5", "days-4"]
    assert "nothing was removed" in page
    assert "removed 2 jobs" in worked.call("prune", "--keep", "3", code=0).out
    assert worked.call("prune", "--keep", "3", code=0).out == "nothing to remove\n"


def test_a_failed_job_that_is_not_final_is_not_removed(worked: Program) -> None:
    path = worked.folder("days-1") / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finalized_at": None}))
    worked.call("prune", "--keep", "0", code=0)
    assert left(worked) == {"days-1"}


def test_job_that_another_waits_for_is_not_removed(worked: Program) -> None:
    worked.enqueue(steps(["true"], metadata={"after": ["days-4"]}), "--id", "then")
    worked.folder("then").rename(worked.path / "agents/Manager/waiting/then")
    worked.call("prune", "--keep", "0", code=0)
    assert left(worked) == {"days-4", "then"}


def test_a_removed_job_is_unknown_and_its_id_may_be_used_again(worked: Program) -> None:
    worked.call("prune", "--keep", "0", code=0)
    assert "no job days-5" in worked.call("show", "days-5", code=2).err
    worked.enqueue(steps(["echo", "other"]), "--id", "days-5")
    assert worked.status("days-5") == "queued"


def test_debris_of_an_earlier_prune_is_removed_by_the_next(worked: Program) -> None:
    aside = worked.path / "jobs/.trash/days-5.0123456789abcdef"
    aside.mkdir(parents=True)
    (aside / "prompt.json").write_text("{}")
    worked.call("watchdog", "--once", code=0)
    assert aside.exists()
    assert "what an earlier prune had left of 1" in worked.call("prune", "--keep", "10", code=0).out
    assert not aside.exists()
    assert (worked.path / "jobs/.ids/days-5").is_symlink()


class Counted(SystemClock):
    """A clock that records each sleep instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_prune_slows_down_while_jobs_are_queued(worked: Program) -> None:
    clock = Counted()
    store = App().open_store(str(worked.path), Settings(), clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "BATCH", 2)
        patch.setattr(pruning, "BUSY_BATCH", 1)
        chosen = candidates(store, PruneFilter(keep=3), now=clock.now())
        store.remove(chosen, by="test")
        assert clock.pauses == [pruning.BUSY_PAUSE_S]
        worked.call("kill", "queued", code=0)
        clock.pauses.clear()
        store.remove(candidates(store, PruneFilter(keep=0), now=clock.now()), by="test")
        assert clock.pauses == [pruning.PAUSE_S]
    store.close()


class OthersFiles(Open):
    """Refuse to remove output of days-5, as if a step of another user had written it."""

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        path = next((arg for arg in args if isinstance(arg, str)), "")
        if op == "chmod" or (op == "unlink" and "/days-5." in path and path.endswith("/stdout")):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return super().perform(op, call, args)


def test_job_that_cannot_be_removed_does_not_stop_the_prune(worked: Program) -> None:
    with placed(OthersFiles()):
        told = worked.call("prune", "--older-than", "1h", code=1)
        assert told.out.startswith("removed 4 jobs; ")
        assert "/stdout: Operation not permitted. A step that ran as another user left it: `sudo chown -R" in told.err
        assert "/proc/self" not in told.err
        assert left(worked) == set()
        told = worked.call("prune", "--older-than", "1h", "--json", code=1)
        assert (told.json["jobs"], told.json["debris"], len(told.json["left"])) == (0, 0, 1)
    assert "removed what an earlier prune had left of 1" in worked.call("prune", "--older-than", "1h", code=0).out
    worked.enqueue(steps(["true"]), "--id", "days-5")
