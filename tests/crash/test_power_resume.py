"""Cut the power in a plan that syncs its steps' results: the next attempt resumes, and never from a torn file."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import stage
from crash.powermodel import Log, Recorder, State, Synced, states
from crash.tally import add_figure
from farro.execution import records
from farro.execution.records import Records
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Call, Tools
from farro.host import fs
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Outcome, Succeeded
from farro.jobs.retry import RetryPolicy
from farro.store.files import FilesStore
from farro.store.port import Claim, Submission
from farro.worker.perform import Performer
from one_job import claim_one, commit_one
from stage import Crash
from support import torture

NAMES = "abcd"
PROMPT = {
    "steps": [
        {"id": name, "tool": "piece", "command": name, **({"input_from_step": before} if before else {})}
        for before, name in zip(["", *NAMES], NAMES, strict=False)
    ]
}
STATES = 20_000 if torture() else 400
RANDOMS = 200 if torture() else 3


def piece(name: str) -> bytes:
    """Return a step's output: its input and its own text; more than a sector, so that it can be torn."""
    return b"".join(one.encode() * 700 + b"\n" for one in NAMES[: NAMES.index(name) + 1])


def opened(root: str, *, seed: int, boot: str = "0") -> FilesStore:
    enough = stage.policy(retry=RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=9))
    return stage.open_files(root, seed=seed, boot=boot, store_policy=enough)


class Steps:
    """The tool of the plan. It writes its stdout through the seam, so that the model records it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.halves: list[str] = []  # steps whose input differs from the previous step's output

    def tool(self, call: Call) -> None:
        name = call.command
        self.ran.append(name)
        given = call.stdin.read()
        if name != NAMES[0] and given != piece(NAMES[NAMES.index(name) - 1]):
            self.halves.append(name)
        for folder in (f"{call.attempt_dir}/steps", f"{call.attempt_dir}/steps/{name}"):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
        fs.create(f"{call.attempt_dir}/steps/{name}/stdout", given + name.encode() * 700 + b"\n")

    def perform(self, root: str, claim: Claim) -> Outcome:
        clock = SystemClock()
        stop = Stop(clock)
        runner = InlineRunner(tools=Tools({"piece": self.tool}), clock=clock)
        try:
            return Performer(root=root, base_env={}, runner=runner, clock=clock).perform(claim, lambda: None, stop)
        finally:
            stop.close()


@dataclass(frozen=True)
class Kept:
    """An acknowledgement: the worker continued because these steps were on disk."""

    names: tuple[str, ...]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    """Report to the recorder which successes each sync of the records covers."""

    def of(recorder: Recorder) -> None:
        sync = Records._sync

        def synced(self: Records) -> None:
            sync(self)
            lines = records.read(self._attempt_dir)
            recorder.tell(Kept(tuple(line["id"] for line in lines if line.get("success"))))

        monkeypatch.setattr(Records, "_sync", synced)

    return of


Syncing = Callable[[bool], None]


@pytest.fixture
def syncing(monkeypatch: pytest.MonkeyPatch) -> Syncing:
    def switch(on: bool) -> None:
        monkeypatch.setattr(records, "_WORK_S", 0.0 if on else float("inf"))
        monkeypatch.setattr(records, "_SHARE", 0.0)

    return switch


def attempt(root: str, recorder: Recorder, seed: int, *, dies_at: str | None) -> None:
    """Let a worker claim the job and die when it records that step; then recover the job."""
    store = opened(root, seed=seed)
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    if dies_at is not None:
        line = f'"id": "{dies_at}"'.encode()
        recorder.trap = lambda op, args: Crash() if op == "write" and line in bytes(args[1]) else None
    with contextlib.suppress(Crash):
        commit_one(store, claim, Steps().perform(root, claim))
    assert recorder.trap is None
    stage.die(store)
    recovered(root, seed + 1)


def recovered(root: str, seed: int, boot: str = "0") -> None:
    store = opened(root, seed=seed, boot=boot)
    keeper = store.join("keeper", role=None)
    store.recover(keeper)
    for job_id in store.stale():
        store.resolve_stale(keeper, job_id)
    store.close()


def record(root: str, syncing: Syncing, told: Callable[[Recorder], None], *, at_once: bool) -> Log:
    """Record three attempts: killed in the third step, killed in the last, finished. `at_once`: the first attempt syncs
    too; otherwise only the later ones do, including the steps that they took over."""
    stage.make(root)
    store = opened(root, seed=1)
    store.enqueue(Submission(role="Runner", prompt=PROMPT))
    store.close()
    recorder = Recorder(root)
    told(recorder)
    fs.set_seam(recorder)
    try:
        syncing(at_once)
        attempt(root, recorder, 10, dies_at="c")
        syncing(True)
        attempt(root, recorder, 20, dies_at="d")
        attempt(root, recorder, 30, dies_at=None)
    finally:
        fs.set_seam(None)
    return Log.of(recorder)


class Broken(AssertionError):
    """An attempt resumed from a torn step, or did not resume a kept one."""


def check(state: State, root: str, *, keeps: bool = True) -> bool:
    """Boot again, recover and run the job; return whether it resumed any step."""
    state.write_out(root)
    try:
        return _judge(state, root, keeps=keeps)
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}\n  in the state: {state.story}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _judge(state: State, root: str, *, keeps: bool) -> bool:
    store = opened(root, seed=40, boot="1")
    recovered(root, 50, boot="1")
    claim = claim_one(store, store.join("second", role="Runner"))
    if claim is None:
        (place,) = (places[0] for places in stage.everywhere(root).values())
        assert place.endswith("completed/succeeded"), place
        store.close()
        return False
    steps = Steps()
    came = steps.perform(root, claim)
    assert isinstance(came, Succeeded), came
    assert not steps.halves, f"half an input for {steps.halves}"
    for name in NAMES:
        assert Path(claim.folder, "steps", name, "stdout").read_bytes() == piece(name), f"TORN: {name}"
    resumed = [one["id"] for one in came.report.result["step_results"] if one.get("resumed")]
    assert sorted([*resumed, *steps.ran]) == list(NAMES), f"{resumed} was resumed, then {steps.ran} ran"
    kept = [ack for ack in state.acks if isinstance(ack, Kept)]
    if keeps and kept:
        assert set(kept[-1].names) <= set(resumed), f"LOST: {kept[-1].names} were kept, {resumed} was resumed"
    store.close()
    return bool(resumed)


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def cut() -> None:
        monkeypatch.setattr(records, "boot_id", lambda: "the boot after the cut")

    return cut


@pytest.mark.parametrize("at_once", [True, False], ids=["first_attempt", "second_attempt"])
def test_an_attempt_after_a_power_cut_resumes_all_kept_steps_and_no_torn_one(
    shm: Path,
    syncing: Syncing,
    told: Callable[[Recorder], None],
    another_boot: Callable[[], None],
    at_once: bool,
) -> None:
    log = record(str(shm / "root"), syncing, told, at_once=at_once)
    another_boot()
    count = resumed = 0
    for state in itertools.islice(states(log, seed=31, randoms=RANDOMS), STATES):
        resumed += check(state, str(shm / f"state-{os.getpid()}"))
        count += 1
    assert count >= 300
    assert resumed >= 20
    add_figure("power-loss states, resumed plans", count, "states")


def missing(log: Log, pattern: str) -> Iterator[State]:
    dropped = [one for one in log.entries if isinstance(one, Synced) and re.fullmatch(rf"(.*/)?{pattern}", one.what)]
    assert dropped, f"no such sync: {[one.what for one in log.entries if isinstance(one, Synced)]}"
    return states(log.without_syncs(lambda entry: any(entry is one for one in dropped)), seed=1, randoms=RANDOMS)


@pytest.mark.parametrize(
    ("pattern", "at_once"),
    [
        (r"attempts/0001/steps/a/stdout", True),
        (r"attempts/0002/steps/[ab]/stdout", False),
        (r"attempts/0001/steps/a", True),
        (r"attempts/0002/steps/[ab]", False),
        (r"steps\.jsonl", True),
    ],
    ids=["output", "output_taken_over", "its_folder", "folder_taken_over", "records"],
)
def test_a_sync_that_is_missing_under_a_resumed_step_is_noticed(
    shm: Path,
    syncing: Syncing,
    told: Callable[[Recorder], None],
    another_boot: Callable[[], None],
    pattern: str,
    at_once: bool,
) -> None:
    log = record(str(shm / "root"), syncing, told, at_once=at_once)
    another_boot()
    for count, state in enumerate(missing(log, pattern)):
        try:
            check(state, str(shm / f"state-{os.getpid()}"))
        except Broken:
            return
        assert count < 5_000, f"no state of {count} needs the sync of {pattern}"
    pytest.fail(f"no state needs the sync of {pattern}")
