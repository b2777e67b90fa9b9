"""The folders of attempts for stores without folders (ports/workspace.py), on a real disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from farro.errors import Damaged
from farro.host import fs
from farro.host.clock import SystemClock
from farro.jobs import moves
from farro.jobs.moves import Move
from farro.jobs.outcomes import Report
from farro.jobs.states import Reason, Status
from farro.store.redis.workspace import LOOKS, LocalWorkspace
from farro.store.workspace import JobFiles, PostedFiles

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
PLAIN = JobFiles(lifecycle=b'{"status": "queued"}', prompt=b'{"steps": []}')


@pytest.fixture
def make(tmp_path: Path) -> Any:
    made = []

    def workspace(**more: Any) -> LocalWorkspace:
        one = LocalWorkspace(str(tmp_path), name="q", clock=SystemClock(), **more)
        made.append(one)
        return one

    yield workspace
    for one in made:
        one.close()


def result(*steps: str, files: tuple[str, ...] = ()) -> Report:
    told = [{"id": step, "stdout_path": f"steps/{step}/stdout", "stdout_truncated": False} for step in steps]
    named = (*(f"steps/{step}/stdout" for step in steps), *files)
    return Report(result={"success": True, "step_results": told}, markdown="# Good\n", files=named)


def said(home: str, name: str, data: bytes) -> None:
    path = Path(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_an_attempt_folder_has_the_layout_of_the_file_store(make: Callable[..., LocalWorkspace]) -> None:
    earlier = PostedFiles(
        files={"result.json": b"{}", "error.md": b"no", "steps/1/stdout": b"x", ".snapshot/task.json": b"t"}
    )
    material = JobFiles(
        lifecycle=b"{}", prompt=b"{}", narrative="words", payload={"a.txt": b"a"}, attempts={1: earlier}
    )
    home = make().begin("m.0.ab", "job-1", 2, material)
    job = Path(home).parents[1]
    assert home.endswith("/jobs/.work/m.0.ab/job-1/attempts/0002")
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()) == [
        ".snapshot/task.json",
        "attempts/0001/error.md",
        "attempts/0001/result.json",
        "attempts/0001/steps/1/stdout",
        "error.md",
        "job.json",
        "payload/a.txt",
        "prompt.json",
        "prompt.md",
    ]


def test_posted_files_make_the_same_folder_elsewhere(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    said(home, "steps/1/stdout", b"\xff\x00one\n")
    said(home, "steps.jsonl", b'{"version": 1}\n')
    said(home, ".snapshot/agents-config.json", b"{}")
    said(home, "../../.snapshot/task.md", b"the task")
    said(home, "left-by-a-step", b"nobody named it")
    posted = space.post(home, result("1"), good=True)
    space.end("m.0.ab", "job-1")
    looked = Path(make().look("job-1", "3", JobFiles(lifecycle=b"{}", prompt=b"{}", attempts={1: posted})))
    assert (looked / "attempts/0001/steps/1/stdout").read_bytes() == b"\xff\x00one\n"
    assert (looked / "attempts/0001/steps.jsonl").read_bytes() == b'{"version": 1}\n{"synced": true}\n'
    assert (looked / "attempts/0001/.snapshot/agents-config.json").exists()
    assert (looked / ".snapshot/task.md").read_text() == "the task"
    assert (looked / "result.md").read_text() == "# Good\n"
    assert not (looked / "attempts/0001/left-by-a-step").exists()
    assert not posted.cut


def test_a_promised_folder_is_made_on_first_use(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home, ask = space.promise("m.0.ab", "job-1", 3, lambda: PLAIN)
    job = Path(home).parents[1]
    assert home.endswith("/m.0.ab/job-1/attempts/0003")
    assert not job.exists()
    ask()
    ask()
    assert sorted(path.name for path in job.iterdir()) == ["attempts", "job.json", "prompt.json"]
    said(home, "steps/1/stdout", b"one")
    assert space.post(home, result("1"), good=True).files["steps/1/stdout"] == b"one"
    space.end("m.0.ab", "job-1")
    assert not job.exists()


def test_an_attempt_without_a_folder_writes_no_file(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home, ask = space.promise("m.0.ab", "job-1", 1, lambda: PLAIN)
    assert set(space.post(home, result(), good=True).files) == {"result.json", "result.md"}
    space.end("m.0.ab", "job-1")
    ask()  # a function that could not be ended asks too late
    assert not Path(home).parents[1].exists()


def test_a_released_attempt_keeps_the_output_of_its_steps(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    said(home, "steps/1/stdout", b"one")
    hostile = {"id": "x", "stdout_path": "../../prompt.json", "stderr_path": "steps/../stdout"}
    lines = [{"version": 1}, {"id": "1", "stdout_path": "steps/1/stdout", "stderr_path": None}, hostile]
    said(home, "steps.jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    posted = space.post(home, Report(result={}, markdown=""), good=True)
    assert posted.files["steps/1/stdout"] == b"one"
    assert set(posted.files) == {"result.json", "result.md", "steps.jsonl", "steps/1/stdout"}


def test_a_large_output_is_cut_and_says_so(make: Callable[..., LocalWorkspace]) -> None:
    space = make(inline_bytes=1024)
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    said(home, "steps/1/stdout", b"x" * 5000)
    said(home, "steps/2/stdout", b"y" * 1024)
    said(home, "patch.diff", b"z" * 2000)
    posted = space.post(home, result("1", "2", files=("patch.diff",)), good=True)
    assert posted.cut == {"steps/1/stdout": 5000, "patch.diff": 2000}
    assert len(posted.files["steps/1/stdout"]) == len(posted.files["steps/2/stdout"]) == 1024
    told = json.loads(posted.files["result.json"])
    assert told["step_results"][0]["truncated"] == {"stdout": 5000}
    assert told["step_results"][0]["stdout_truncated"] is True
    assert "truncated" not in told["step_results"][1]
    assert told["truncated"] == {"patch.diff": 2000}


def test_a_full_shared_directory_cuts_a_file_but_keeps_the_result(
    make: Callable[..., LocalWorkspace], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.write_bytes(b"not a folder")
    space = make(inline_bytes=1024, shared=str(shared))
    home = space.begin("m.0.ab", "job-1", 7, PLAIN)
    said(home, "steps/1/stdout", b"x" * 5000)
    posted = space.post(home, result("1"), good=True)
    assert (posted.elsewhere, posted.cut) == ({}, {"steps/1/stdout": 5000})
    assert posted.files["steps/1/stdout"] == b"x" * 1024


def test_a_large_output_goes_to_the_shared_directory(make: Callable[..., LocalWorkspace], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    space = make(inline_bytes=1024, shared=str(shared))
    home = space.begin("m.0.ab", "job-1", 7, PLAIN)
    said(home, "steps/1/stdout", b"x" * 5000)
    report = result("1")
    posted = space.post(home, report, good=True)
    assert space.post(home, report, good=True) == posted, "a commit may be tried again"
    assert posted.elsewhere == {"steps/1/stdout": "job-1/0007/steps/1/stdout"}
    assert (shared / "q/job-1/0007/steps/1/stdout").read_bytes() == b"x" * 5000
    assert sorted(path.name for path in shared.rglob("*") if path.is_file()) == ["stdout"]
    told = json.loads(posted.files["result.json"])["step_results"][0]
    assert told["elsewhere"] == {"stdout": "job-1/0007/steps/1/stdout"}
    space.end("m.0.ab", "job-1")
    looked = space.look("job-1", "1", JobFiles(lifecycle=b"{}", prompt=b"{}", attempts={7: posted}))
    assert Path(looked, "attempts/0007/steps/1/stdout").read_bytes() == b"x" * 5000
    space.forget("job-1")
    assert list((shared / "q").iterdir()) == []


def test_all_files_together_are_bounded(make: Callable[..., LocalWorkspace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.store.redis.attempt_files.TOTAL", 10_000)
    space = make(inline_bytes=4096)
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    steps = [str(number) for number in range(20)]
    for step in steps:
        said(home, f"steps/{step}/stdout", b"x" * 4096)
    posted = space.post(home, result(*steps), good=True)
    kept = [len(data) for name, data in posted.files.items() if name.startswith("steps/")]
    assert sum(kept) <= 10_000 + 20 * 1024
    assert min(kept) == 1024


def test_a_link_that_a_step_planted_is_not_posted(make: Callable[..., LocalWorkspace], tmp_path: Path) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    (tmp_path / "secret").write_text("secret")
    Path(home, "steps/1").mkdir(parents=True)
    os.symlink(tmp_path / "secret", Path(home, "steps/1/stdout"))
    assert "steps/1/stdout" not in space.post(home, result("1"), good=True).files


def test_a_posted_name_reaches_nothing_outside(make: Callable[..., LocalWorkspace]) -> None:
    hostile = PostedFiles(files={"../../../../evil": b"x"})
    with pytest.raises(Damaged):
        make().look("job-1", "1", JobFiles(lifecycle=b"{}", prompt=b"{}", attempts={1: hostile}))


def test_a_job_that_runs_here_is_shown_live(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    said(home, "steps/1/stdout", b"so far")
    running = JobFiles(lifecycle=b'{"status": "in_progress", "agent": "m.0.ab"}', prompt=b"{}")
    assert Path(make().look("job-1", "1", running), "attempts/0001/steps/1/stdout").read_bytes() == b"so far"


def test_reading_copies_are_cached_and_bounded(make: Callable[..., LocalWorkspace], tmp_path: Path) -> None:
    space = make()
    first = space.look("job-1", "1", PLAIN)
    assert space.look("job-1", "1", PLAIN) == first
    assert space.look("job-1", "2", PLAIN) != first
    for number in range(LOOKS + 5):
        space.look(f"job-{number}", "9", PLAIN)
    assert len(fs.subdirectories(os.path.dirname(first))) == LOOKS
    space.close()
    assert list((tmp_path / "jobs/.work").iterdir()) == []


def test_folders_of_a_dead_process_are_swept_after_its_child_processes(
    make: Callable[..., LocalWorkspace], tmp_path: Path
) -> None:
    program = (
        "import sys; from farro.store.redis.workspace import LocalWorkspace;"
        "from farro.host.clock import SystemClock;"
        "from farro.store.workspace import JobFiles; m = JobFiles(lifecycle=b'{}', prompt=b'{}');"
        "w = LocalWorkspace(sys.argv[1], name='q', clock=SystemClock()); w.begin('dead.0.ab', 'job-1', 1, m);"
        "w.look('job-2', '1', m); print('there', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"there\n"
    ended: list[str] = []
    space = make(reap=ended.append)
    space.begin("live.0.ab", "job-3", 1, PLAIN)
    assert space.sweep() == []
    child.kill()
    child.communicate()
    assert space.sweep() == ["dead.0.ab"] == ended
    assert [path.name for path in (tmp_path / "jobs/.work").iterdir()] == ["live.0.ab"]
    assert space.sweep() == []


class Counted:
    """A seam that only counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.calls.append(op)
        return call(*args)

    def look(self, op: str, path: str) -> None:
        self.calls.append(op)


def test_a_small_job_costs_few_calls(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    space.begin("m.0.ab", "job-0", 1, PLAIN)  # the agent's folder is made once
    space.end("m.0.ab", "job-0")
    counted = Counted()
    fs.set_seam(counted)
    try:
        home = space.begin("m.0.ab", "job-1", 1, PLAIN)
        space.post(home, Report(result={}, markdown=""), good=True)
        space.end("m.0.ab", "job-1")
    finally:
        fs.set_seam(None)
    assert len(counted.calls) <= 14, counted.calls
    assert not {"rmdir", "mkdir"} & set(counted.calls), "folders are used again"


def test_the_result_of_a_job_that_was_declared_succeeded_says_who_and_why(
    make: Callable[..., LocalWorkspace],
) -> None:
    queued = moves.claimed(
        moves.enqueued(job_id="job-1", role="Runner", now=NOON), agent="w", attempt=1, correlation_id="c", now=NOON
    )
    move = Move(reason=Reason.FORCE_COMPLETED, status=Status.SUCCEEDED, role="Runner", note="Done by hand.")
    life = moves.decided(queued, move, by="cli-ann.0.ab", attempt=1, now=NOON)
    failed = PostedFiles(files={"result.json": b"{}", "error.md": b"no"})
    home = make().begin("m.0.ab", "job-1", 2, JobFiles(lifecycle=life.to_json(), prompt=b"{}", attempts={1: failed}))
    job = Path(home).parents[1]
    assert "By cli-ann.0.ab at " in (job / "result.md").read_text()
    assert (job / "result.md").read_text().endswith("\n\nDone by hand.\n")
    assert not (job / "error.md").exists()


def test_a_reused_folder_keeps_nothing_of_its_last_job(make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    Path(home, "left").write_text("x")
    space.end("m.0.ab", "job-1")
    earlier = PostedFiles(files={"result.json": b"{}", "error.md": b"no"})
    again = space.begin("m.0.ab", "job-2", 3, JobFiles(lifecycle=b"{}", prompt=b"{}", attempts={1: earlier}))
    job = Path(again).parents[1]
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()) == [
        "attempts/0001/error.md",
        "attempts/0001/result.json",
        "error.md",
        "job.json",
        "prompt.json",
    ]
    assert list(Path(again).iterdir()) == []
    assert not Path(home).exists()
    space.end("m.0.ab", "job-2")  # not kept as a spare: it is removed
    assert [path.name for path in job.parent.iterdir()] == [".lease"]


@pytest.mark.parametrize("left", ["steps/1/stdout", ".snapshot/config", "../x/y", "../../odd/z"])
def test_a_folder_with_extra_files_is_removed(left: str, make: Callable[..., LocalWorkspace]) -> None:
    space = make()
    home = space.begin("m.0.ab", "job-1", 1, PLAIN)
    said(home, left, b"x")
    space.end("m.0.ab", "job-1")
    assert [path.name for path in Path(home).parents[2].iterdir()] == [".lease"]
