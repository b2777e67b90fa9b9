"""Kill real processes with SIGKILL: strace kills a process at each of its system calls in turn; nothing may be lost.

The other suites kill at every mutating call that passes the seam; this one uses the kernel's calls. The process, forked
anew for every kill, is strace_target.py. Reads, closes and the C library's own calls are killed at as well: a kill
between two of them must be like a kill at the next mutating call, and here it is seen to be. strace delivers the signal
when the call is entered, and the kernel then does not make the call (`test_the_kill_comes_before_the_call`).
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stage
from crash import seams
from farro.errors import ClaimLost
from farro.host import trees
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Succeeded
from farro.jobs.states import Reason, Status
from farro.store.files import FilesStore, journal_file
from one_job import claim_one, commit_one
from stage import Crash, History
from support import ROOT, need, torture

pytestmark = pytest.mark.linux

BEGIN, END = "/farro-begin", "/farro-end"
JOB = "chosen-1"
SCENARIOS = ("minted", "chosen", "many", "commit", "children", "recover", "kill", "journalled")

# The short form kills at one of so many reads, and at every mutating call.
SPARSE = {"recover": 4, "journalled": 8}

# The interpreter allocates memory at any time: such a call may be missing in the next run of the same code.
WHIMS = frozenset({"brk", "mmap", "munmap", "mremap", "madvise", "mprotect", "futex", "rt_sigtimedwait"})

# The kernel's name of each call, and the seam's.
MUTATING = {
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
    "write": "write",
    "symlink": "symlink",
    "symlinkat": "symlink",
    "link": "link",
    "linkat": "link",
    "unlink": "unlink",
    "rmdir": "rmdir",
    "rename": "replace",
    "renameat": "replace",
    "renameat2": "move",
    "utimensat": "utime",
    "fsync": "fsync",
    "pwritev2": "write_sync",
    "io_submit": "write_begun",
    "io_getevents": "write_sync",
    "syncfs": "syncfs",
}
READING = frozenset(
    {"access", "faccessat", "faccessat2", "newfstatat", "stat", "lstat", "fstat", "statx", "readlink", "readlinkat"}
    | {"getdents64", "read", "pread64", "lseek", "close", "fcntl", "flock", "inotify_add_watch", "ioctl", "fadvise64"}
)


class Target:
    """The zygote process, and methods that trace or kill its children with strace."""

    def __init__(self, scratch: Path) -> None:
        self.strace = need("strace", "to kill a real process at each of its system calls")
        self.scratch = scratch
        self.runs = 0
        target = os.path.join(ROOT, "tests", "crash", "strace_target.py")
        packages = os.path.dirname(os.path.dirname(pytest.__file__))  # farro.testing, which the stage uses, needs it
        paths = [os.path.join(ROOT, "src"), os.path.join(ROOT, "tests"), packages]
        command = [sys.executable, "-I", "-S", target, *paths]
        self.zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        self.zygote.kill()
        self.zygote.communicate()

    def _ask(self, line: str) -> int:
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.write(line.encode() + b"\n")
        self.zygote.stdin.flush()
        return int(self.zygote.stdout.readline())

    def run(self, scenario: str, root: str, options: list[str], *, seam: bool = False) -> tuple[int, list[list[Any]]]:
        """Run one child under strace; return its wait status and its acknowledgements."""
        self.runs += 1
        acks = f"{self.scratch}/acks-{self.runs}"
        pid = self._ask(json.dumps({"scenario": scenario, "root": root, "acks": acks, "seam": seam}))
        command = [self.strace, "-f", "-p", str(pid), *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            first = tracer.stderr.readline()
            attached = first.endswith("attached\n")
            os.kill(pid, signal.SIGUSR1 if attached else signal.SIGKILL)
            tracer.stderr.read()
        status = self._ask("wait")
        need(attached, f"strace may not trace here: {first.strip()}")
        lines = Path(acks).read_text().splitlines()
        os.unlink(acks)
        return status, [json.loads(line) for line in lines]

    def trace(self, scenario: str, root: str, *, seam: bool = False) -> tuple[list[str], list[list[Any]]]:
        """Run a child to its end; return strace's line for every call, and the child's acknowledgements."""
        path = f"{self.scratch}/trace"
        status, said = self.run(scenario, root, ["-y", "-o", path], seam=seam)
        assert status == 0, f"{scenario}: the target failed without being killed"
        lines = [line.split(None, 1)[1] for line in Path(path).read_text().splitlines()]
        return [line for line in lines if re.match(r"\w+\(", line)], said

    def kill(self, scenario: str, root: str, point: tuple[str, int]) -> tuple[bool, list[list[Any]]]:
        name, nth = point
        options = ["-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={nth}"]
        status, said = self.run(scenario, root, options)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"{scenario}: ended without a kill, with status {status}"
        return killed, said


@pytest.fixture
def target(shm: Path) -> Iterator[Target]:
    (shm / "target").mkdir()
    with contextlib.closing(Target(shm / "target")) as target:
        yield target


def between_marks(lines: list[str]) -> list[tuple[str, int]]:
    """Return every call from BEGIN to END as strace's `when` counts it: its name, and its number since the attach."""
    counts: collections.Counter[str] = collections.Counter()
    points, inside = [], False
    for line in lines:
        name = line.partition("(")[0]
        counts[name] += 1
        inside = inside or BEGIN in line
        if inside:
            points.append((name, counts[name]))
        if END in line:
            return points
    raise AssertionError("the target did not reach its end")


# --- preparation and checks -------------------------------------------------------------------------------------


class Scene:
    """The prepared root of a scenario, and its history."""

    def __init__(self, root: str, scenario: str) -> None:
        self.root = stage.make(root)
        self.scenario = scenario
        self.history = History()
        self.live: FilesStore | None = None
        self.boot = "0"
        self.expected = 0  # jobs that exist after any kill
        getattr(self, f"_before_{scenario}", lambda: None)()

    def copy(self, root: str) -> Scene:
        """Copy the scene, to continue from it in another way. It must have no live process."""
        assert self.live is None
        shutil.copytree(self.root, root, symlinks=True)
        other = copy.deepcopy(self)
        other.root = root
        return other

    def _enqueue(self, job_id: str) -> None:
        store = stage.open_files(self.root, seed=100 + self.expected)
        self.history.enqueued.add(store.enqueue(stage.submission(1, job_id=job_id)))
        store.close()
        self.expected += 1

    def _before_commit(self) -> None:
        self._enqueue(JOB)

    def _before_children(self) -> None:
        """Prepare the second attempt of a failed job: its hops and its mirror could be lost."""
        self._enqueue(JOB)
        store = stage.open_files(self.root, seed=200)
        claim = claim_one(store, store.join("first", role="Runner"))
        assert claim is not None
        failure = Failed(error=ErrorInfo(category="x", message="no"), report=stage.report(claim), retryable=True)
        self.history.ack_commit(JOB, claim.attempt, commit_one(store, claim, failure))
        store.close()

    def _before_recover(self) -> None:
        """Leave dead agents: undecided, decided but not moved, decided with children, and an operator during a kill."""
        for number, (op, nth, children) in enumerate([("", 0, 0), ("move", 1, 0), ("move", 2, 2), ("unlink", 1, 0)]):
            job_id = f"left-{number}"
            self._enqueue(job_id)
            store = stage.open_files(self.root, seed=300 + number)
            claim = claim_one(store, store.join("dead", role="Runner"))
            assert claim is not None
            if op:
                offspring = tuple(Child(role="CodeReviewer", prompt=stage.plan(n)) for n in range(children))
                with contextlib.suppress(Crash), seams.placed(seams.KillAt(nth, only=frozenset({op}))):
                    commit_one(store, claim, Succeeded(report=stage.report(claim), children=offspring))
            stage.die(store)
        self._enqueue("left-4")
        store = stage.open_files(self.root, seed=400)
        operator = store.join("operator", role=None)
        with contextlib.suppress(Crash), seams.placed(seams.KillAt(1, only=frozenset({"exchange"}))):
            store.kill(operator, "left-4")
        stage.die(store)

    def _before_kill(self) -> None:
        """Start a live worker, which will try to commit after the operator's death."""
        self._enqueue(JOB)
        self.live = stage.open_files(self.root, seed=500)
        self.claim = claim_one(self.live, self.live.join("live", role="Runner"))

    def hear(self, said: list[list[Any]]) -> None:
        """Add acknowledgements to the history, which the store must honour."""
        for what, *told in said:
            if what == "enqueued":
                self.history.enqueued.add(told[0])
            elif what == "committed":
                self.history.committed.setdefault(told[0], []).append((told[1], Status(told[2])))
            elif what == "claimed":
                self.history.executed.append((told[0], told[1]))

    def finish(self, said: list[list[Any]]) -> None:
        """Let the live worker commit; then let healthy processes finish everything."""
        if self.live is not None:
            assert self.claim is not None
            try:
                told = commit_one(self.live, self.claim, Succeeded(report=stage.report(self.claim)))
                self.history.ack_commit(JOB, self.claim.attempt, told)
            except ClaimLost:
                self.history.lost.append((JOB, self.claim.attempt))
            self.live.close()
            self.live = None
        drain = stage.drain(self.root, self.history, boot=self.boot)
        assert not drain._context.local_agents
        assert journal_file.names(self.root) == []

    def sweep(self) -> None:
        """Run clean-up as if hours later: it publishes staged jobs with a registered id and removes the rest."""
        clock = stage.QuickClock()
        clock.offset_s = time.time() - stage.EPOCH.timestamp() + 7200
        store = stage.open_files(self.root, seed=600, clock=clock, boot=self.boot)
        keeper = store.join("keeper", role=None)
        store.recover(keeper)
        store.close()
        left = os.listdir(f"{self.root}/jobs/.staging")
        assert left == [], f"UNEXPECTED: in staging after clean-up: {left}"

    def judge(self, said: list[list[Any]]) -> None:
        stage.judge(self.root, self.history)
        where = stage.everywhere(self.root)
        for home in ("jobs/.held", "jobs/outbox", "jobs/stale", "jobs/quarantine"):
            left = os.listdir(f"{self.root}/{home}")
            assert left == [], f"UNEXPECTED: {left} in {home}"
        for role in stage.ROLES:
            left = os.listdir(f"{self.root}/agents/{role}/in-progress")
            assert left == [], f"UNEXPECTED: dead agents of {role}: {left}"
        if self.scenario in ("commit", "children", "recover", "kill"):
            # An attempt that was not decided delivers none of its children, a decided one all of them (RELIABILITY 30).
            decided = self.scenario == "recover" or any(what == "committed" for what, *_ in said)
            allowed = {"children": (2,) if decided else (0, 2), "recover": (2,)}.get(self.scenario, (0,))
            assert len(where) - self.expected in allowed, f"UNEXPECTED: {sorted(where)}"
        else:
            most = {"many": 2, "journalled": 4}.get(self.scenario, 1)
            assert len(where) <= most, f"DUPLICATED: one submission became {sorted(where)}"
        for what, *told in said:
            if what == "killed":
                assert self.lifecycle(told[0]).status is Status.KILLED, "LOST: an acknowledged kill"
            elif what == "settled":
                reasons = [hop.reason for hop in self.lifecycle(told[0]).hops]
                assert Reason.REQUEUED in reasons, "LOST: an acknowledged requeue"

    def lifecycle(self, job_id: str) -> Lifecycle:
        (folder,) = stage.everywhere(self.root)[job_id]
        return Lifecycle.from_json(Path(self.root, folder, job_id, "job.json").read_bytes())


def resubmit(scene: Scene) -> None:
    """Submit the same id again, as a submitter without an answer does (RELIABILITY 19)."""
    store = stage.open_files(scene.root, seed=700)
    scene.history.enqueued.add(store.enqueue(stage.submission(1, job_id=JOB)))
    store.close()


def play(target: Target, scenario: str, root: str, point: tuple[str, int]) -> bool:
    """Kill at one call and check the result; return whether the process reached the call and was killed."""
    scene = Scene(root, scenario)
    killed, said = target.kill(scenario, root, point)
    scene.hear(said)
    if scenario in ("chosen", "many"):
        # Two variants: the submitter submits again at once; or never, or after the clean-up.
        later = Scene.__new__(Scene)
        later.__dict__.update(
            scene.__dict__, root=f"{root}-later", history=History(enqueued=set(scene.history.enqueued))
        )
        shutil.copytree(root, later.root, symlinks=True)
        later.sweep()
        later.finish(said)
        later.judge(said)
        resubmit(later)
        later.finish(said)
        later.judge(said)
        resubmit(scene)
    if scenario == "journalled":
        # The machine may restart with the process: then the replay comes first.
        later = scene.copy(f"{root}-later")
        later.boot = "1"
        later.finish(said)
        later.judge(said)
    scene.finish(said)
    scene.judge(said)
    scene.sweep()
    scene.finish(said)
    scene.judge(said)
    return killed


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sigkill_at_every_system_call(scenario: str, target: Target, shm: Path, figure: Callable[..., None]) -> None:
    lines, _ = target.trace(scenario, Scene(f"{shm}/whole", scenario).root)
    points = between_marks(lines)
    assert len(points) > 20
    kills = 0
    for number, point in enumerate(points):
        if scenario in SPARSE and number % SPARSE[scenario] and not torture() and point[0] not in MUTATING:
            continue  # it mostly reads, and between two reads the tree is unchanged
        root = f"{shm}/{number}"
        try:
            killed = play(target, scenario, root, point)
        except BaseException as error:
            error.add_note(f"{scenario}: SIGKILL at {point[0]} number {point[1]}, call {number} of {len(points)}")
            raise
        assert killed or point[0] in WHIMS, f"{scenario}: {point} did not come: the runs are not alike"
        kills += killed
        shutil.rmtree(root)
        shutil.rmtree(f"{root}-later", ignore_errors=True)
    figure(f"SIGKILL at every syscall, {TITLES[scenario]}", kills, "kills")


TITLES = {
    "minted": "enqueue with a minted id",
    "chosen": "enqueue with a chosen id",
    "many": "enqueue of many",
    "commit": "claim to acknowledgement",
    "children": "claim to acknowledgement, second attempt, with children",
    "recover": "a watchdog's pass and the manager's decision",
    "kill": "an operator's kill",
    "journalled": "a journal from its making to its end",
}


@pytest.mark.torture
def test_sigkill_at_every_mutating_call_of_recovery_after_sigkill_at_every_call_of_a_commit(
    target: Target, shm: Path, figure: Callable[..., None]
) -> None:
    first, _ = target.trace("children", Scene(f"{shm}/whole", "children").root)
    kills = 0
    for number, point in enumerate(between_marks(first)):
        base = Scene(f"{shm}/{number}", "children")
        _, said = target.kill("children", base.root, point)
        shutil.copytree(base.root, f"{shm}/look", symlinks=True)
        second, _ = target.trace("recover", f"{shm}/look")
        for then in [point for point in between_marks(second) if point[0] in {*MUTATING, "openat"}]:
            scene = base.copy(f"{shm}/then")
            killed, more = target.kill("recover", scene.root, then)
            kills += killed
            scene.hear(said)
            scene.hear(more)
            try:
                scene.finish(said)
                scene.judge(said)
            except BaseException as error:
                error.add_note(f"SIGKILL at {point} of the commit, then at {then} of recovery")
                raise
            shutil.rmtree(scene.root)
        shutil.rmtree(base.root)
        shutil.rmtree(f"{shm}/look")
    figure("SIGKILL at every syscall, commit and then recovery", kills, "pairs of kills")


# --- the tools of this suite -----------------------------------------------------------------------------------


def test_the_kill_comes_before_the_call(target: Target, shm: Path) -> None:
    """Otherwise "killed at the rename" would mean "after it", and the state before the first call would be untested."""
    for nth, there in ((1, False), (2, True)):
        root = stage.make(f"{shm}/{nth}")
        store = stage.open_files(root, seed=1)
        store.enqueue(stage.submission(1, job_id=JOB))
        store.close()
        killed, said = target.kill("commit", root, ("renameat2", nth))
        assert killed
        assert said == []
        agents = os.listdir(f"{root}/agents/Runner/in-progress")
        assert bool(agents) is there, "the first rename puts the agent's folder in place; the second takes the job"
        assert os.listdir(f"{root}/agents/Runner/incoming") == [JOB]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_kernel_sees_exactly_the_calls_that_the_seam_sees(
    scenario: str, target: Target, shm: Path, figure: Callable[..., None]
) -> None:
    """Otherwise the suites that kill through the seam would miss points, and their figures would be too high."""
    root = Scene(f"{shm}/counted", scenario).root
    lines, said = target.trace(scenario, root, seam=True)
    seen = [op for line in between_lines(lines) if (op := seam_name(line, root)) is not None]
    noted = next(told[0] for what, *told in said if what == "seam")
    assert seen == noted
    assert len(noted) >= 8
    if scenario == "journalled":
        assert {"write_sync", "syncfs", "exchange"} <= set(noted)
    if scenario == "commit":
        figure("mutating calls, claim to acknowledgement: strace and the seam agree", len(noted), "calls")


def between_lines(lines: list[str]) -> list[str]:
    first = next(number for number, line in enumerate(lines) if BEGIN in line)
    last = next(number for number, line in enumerate(lines) if END in line)
    return lines[first + 1 : last]


def seam_name(line: str, root: str) -> str | None:
    """Return the seam's name of a call that changes something below the root; None for a read; ?name if unknown."""
    name, _, arguments = line.partition("(")
    by_path = re.search(rf'"{re.escape(root)}(/[^"]*)?"', arguments)
    by_descriptor = re.match(rf"\d+<{re.escape(root)}[/>]", arguments)
    if name.startswith("io_"):  # nothing else is written so
        return MUTATING.get(name)
    if not (by_descriptor or (by_path and not name.startswith(("write", "pwrite")))) or name in READING:
        return None
    if name in ("open", "openat", "openat2"):
        if "O_CREAT" in arguments:
            return "create"
        return "?open for writing" if re.search(r"O_(WRONLY|RDWR|TRUNC)", arguments) else None
    if name == "unlinkat":
        return "rmdir" if "AT_REMOVEDIR" in arguments else "unlink"
    if name == "renameat2" and "RENAME_EXCHANGE" in arguments:
        return "exchange"
    if name == "renameat2" and "RENAME_NOREPLACE" not in arguments:
        return "replace"
    return MUTATING.get(name, f"?{name}")


def test_a_mutating_call_outside_the_seam_is_noticed() -> None:
    """The comparison does not treat calls that farro never makes as reads."""
    assert seam_name('truncate("/r/jobs/x", 0) = 0', "/r") == "?truncate"
    assert seam_name('pwrite64(3</r/jobs/x>, "a", 1, 0) = 1', "/r") == "?pwrite64"
    assert seam_name('openat(AT_FDCWD</>, "/r/x", O_WRONLY|O_CLOEXEC) = 3', "/r") == "?open for writing"
    assert seam_name('rename("/r/a", "/r/b") = 0', "/r") == "replace"
    assert seam_name('renameat2(AT_FDCWD</>, "/r/a", AT_FDCWD</>, "/r/b", RENAME_NOREPLACE) = 0', "/r") == "move"
    assert seam_name('rename("/elsewhere/a", "/elsewhere/b") = 0', "/r") is None
    assert seam_name('write(3</elsewhere>, "\\"/r/x\\"", 6) = 6', "/r") is None


def test_a_lost_job_is_noticed(target: Target, shm: Path) -> None:
    """The checks of this suite fail on a tree without an acknowledged job."""
    scene = Scene(f"{shm}/lost", "minted")
    _, said = target.trace("minted", scene.root)
    scene.hear(said)
    (job_id,) = scene.history.enqueued
    trees.remove_tree(f"{scene.root}/agents/Runner/incoming/{job_id}")
    scene.finish(said)
    with pytest.raises(AssertionError, match="LOST"):
        scene.judge(said)
