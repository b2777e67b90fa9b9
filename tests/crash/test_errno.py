"""Fail every mutating call of every command with EIO, ENOSPC, EMFILE and EINTR, once and permanently; and every read.

Each call returns its answer or raises a FarroError that says what happened and what to do; stored data stays intact.
When the error is over, the running processes finish everything, and none has to die for it: the process that got the
error lives on, and its agent leaves as a worker's slot does.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash import verbplays
from crash.seams import TAKES_EFFECT, BadLook, Call, Counting, Errno, KillAt, Open, placed
from crash.tally import add_figure
from crash.verbplays import ALL, BY_NAME, Scenario, World
from farro.errors import FarroError, StorageTrouble, SyncFailed, TryAgain
from farro.host import fs
from stage import Crash
from support import torture

NAMES = [scenario.name for scenario in ALL]
CODES = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR)
SAID = (TryAgain, SyncFailed)  # the errors that may report a filesystem error


def play(
    root: Path,
    name: str,
    seam: Errno | BadLook,
    *,
    alive: bool,
    durable: bool = True,
    journal: bool = False,
    restarts: bool = False,
) -> FarroError | None:
    """Play the scenario under `seam`, then finish it without. Return the error, or None when it succeeded.

    `restarts`: the machine restarts before all processes have finished.
    """
    scenario = BY_NAME[name]
    world = verbplays.begin(str(root), scenario, durable=durable, journal=journal)
    told: FarroError | None = None
    try:
        with placed(seam):
            scenario.act(world)
    except FarroError as error:
        told = error
    except OSError as error:
        raise AssertionError(f"{name}, {seam!r}: a bare {error!r}") from error
    try:
        if told is not None:
            assert isinstance(told, SAID), f"{type(told).__name__} for trouble of the filesystem"
            assert "None" not in str(told), f"not clear: {told}"
        assert not (world.history.lost and "in_progress" not in name), "ClaimLost, but no process took the job"
        if restarts:
            world.restart()
        elif alive:
            _go_on(world, scenario, told)
        else:
            world.die(world.actor)
        verbplays.end(world, scenario, alive=alive)
    except Exception as error:
        raise AssertionError(f"{name}, {seam!r}, told {told!r}: {type(error).__name__}: {error}") from error
    return told


def _go_on(world: World, scenario: Scenario, told: FarroError | None) -> None:
    """Continue as the services do: a watchdog makes its next pass, a failed agent leaves, a worker goes on."""
    if "keeper" in world.agents and scenario.name.startswith("recover"):
        world.actor.recover(world.agents["keeper"])
        return
    if told is not None:
        for agent in world.agents.values():
            if agent.id in world.actor._context.local_agents:
                world.actor.leave(agent)
    elif scenario.name.startswith(("claim", "write_a_row")):
        for claim in world.claims:
            owner = world.actor._context.local_agents.get(claim.agent.id)
            if owner is not None and owner.claims:
                world.commit(claim, verbplays.success(claim))


def calls(root: Path, name: str, *, durable: bool = True, journal: bool = False) -> list[str]:
    world = verbplays.begin(str(root), BY_NAME[name], durable=durable, journal=journal)
    with placed(Counting()) as counting:
        BY_NAME[name].act(world)
    world.everybody_dies()
    return counting.ops


@pytest.mark.parametrize("name", NAMES)
def test_errno_at_every_call(name: str, shm: Path) -> None:
    """Row 22: ENOSPC, no inodes, EIO, EMFILE, EINTR in any transaction: a clear error, state intact, retried."""
    count = 0
    for n, op in enumerate(calls(shm / "whole", name), 1):
        for code in CODES:
            seam = Errno(n, code)
            told = play(shm / f"{n}-{code}", name, seam, alive=True)
            if op == "fsync" and seam.hit == "fsync" and not name.startswith("recover"):
                assert isinstance(told, SyncFailed), f"{seam!r}: a failed sync must not be acknowledged"
            count += 1
    add_figure("errno matrix, single errors", count, "points")


JOURNALLED = (
    "enqueue",
    "enqueue_one_more",
    "commit_success",
    "commit_for_another_try",
    "route",
    "release",
    "recover_undecided",
)


@pytest.mark.parametrize("restarts", [False, True], ids=["alive", "restart"])
@pytest.mark.parametrize("name", JOURNALLED)
def test_errno_at_every_call_with_a_journal(name: str, restarts: bool, shm: Path) -> None:
    """The same promises hold with a journal. A failed record or sync is never acknowledged; an error while a
    journal file is created fails no call, because the caller then syncs each file. The error may also persist."""
    count = 0
    ops = calls(shm / "whole", name, journal=True)
    for n, op in enumerate(ops, 1):
        for place, code in enumerate(CODES):
            for persistent in (False, True):
                if persistent and (n + place) % 2 and not torture():
                    continue  # persistent errors: half of the codes at each call, the others at the next
                seam = Errno(n, code, persistent=persistent)
                told = play(
                    shm / f"{n}-{code}-{persistent}", name, seam, alive=not restarts, journal=True, restarts=restarts
                )
                if op in ("fsync", "write_sync") and not persistent and not name.startswith("recover"):
                    careful = op == "write_sync" and code == errno.ENOSPC
                    assert isinstance(told, SyncFailed) is not careful, f"{seam!r}: told {told!r}"
                count += 1
    if not name.startswith("recover"):
        made = ops.index("write_sync")
        for n in [at + 1 for at, op in enumerate(ops[:made]) if op in ("create", "write", "mkdir")][-3:]:
            assert play(shm / f"made-{n}", name, Errno(n, errno.ENOSPC), alive=True, journal=True) is None
    add_figure("errno matrix, with a journal", count, "points")


@pytest.mark.parametrize("name", NAMES)
def test_an_error_after_the_call_took_effect(name: str, shm: Path) -> None:
    """After an ambiguous error both source and destination are checked before any decision (R7)."""
    count = 0
    for n, op in enumerate(calls(shm / "whole", name), 1):
        if op not in TAKES_EFFECT:
            continue
        play(shm / f"{n}", name, Errno(n, errno.EIO, after=True), alive=True)
        count += 1
    add_figure("errno matrix, ambiguous errors", count, "points")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_lasting_error_loses_nothing(name: str, code: int, shm: Path) -> None:
    """Every call fails from the n-th on: a clear error, and nothing is lost afterwards. At each call the process dies
    with one error code and lives on with the other."""
    count = 0
    for n, _ in enumerate(calls(shm / "whole", name, durable=False), 1):
        for alive in (True, False) if torture() else (bool((n + (code == errno.EIO)) % 2),):
            seam = Errno(n, code, persistent=True)
            play(shm / f"{n}-{alive}", name, seam, alive=alive, durable=False)
            count += 1
    add_figure("errno matrix, lasting errors", count, "points")


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_read_leads_to_no_guess(name: str, shm: Path) -> None:
    """A decision that depends on a failed read (too many open files, an unreadable sector) is not guessed."""
    n = 0
    while True:
        n += 1
        seam = BadLook(n)
        play(shm / f"{n}", name, seam, alive=bool(n % 2), durable=False)
        if seam.hit is None:
            break
    add_figure("errno matrix, failed looks", n - 1, "points")


# --- group commit ------------------------------------------------------------------------------------------------


class _OneRound(Open):
    """Delay the first sync until `others` threads wait behind it; then fail each sync of `bad`."""

    def __init__(self, others: int, bad: Callable[[str], bool]) -> None:
        self.others = others
        self.bad = bad
        self.first = threading.Event()
        self.rounds = 0

    def perform(self, op: str, call: Call, args: tuple[object, ...]) -> object:
        if op == "fsync":
            path = str(args[1])
            if not self.first.is_set():
                self.first.set()
                while len(fs._group.waiting) < self.others:
                    threading.Event().wait(0.001)
            if self.bad(path):
                raise OSError(errno.EIO, "Input/output error", path)
        return super().perform(op, call, args)


def _sync_together(shm: Path, bad: Callable[[str], bool]) -> dict[str, Exception | None]:
    """Let thread `a` lead one round and `b` and `c` form the next; return the error of each."""
    for name in "abc":
        (shm / name).write_text(name)
    told: dict[str, Exception | None] = {}

    def sync(name: str) -> None:
        try:
            fs.sync_all([str(shm / name)])
        except (SyncFailed, OSError) as error:
            told[name] = error
        else:
            told[name] = None

    with placed(_OneRound(2, bad)) as seam:
        leader = threading.Thread(target=sync, args=("a",))
        leader.start()
        assert seam.first.wait(10)
        followers = [threading.Thread(target=sync, args=(name,)) for name in "bc"]
        for thread in followers:
            thread.start()
        for thread in [leader, *followers]:
            thread.join(10)
    return told


def test_a_failed_sync_acknowledges_no_call_of_its_group(shm: Path) -> None:
    """After EIO for one file it is unknown what reached the disk, so no call of that round is acknowledged (R7)."""
    told = _sync_together(shm, lambda path: path.endswith("/b"))
    assert told["a"] is None
    assert isinstance(told["b"], SyncFailed)
    assert isinstance(told["c"], SyncFailed)
    told = _sync_together(shm, lambda path: False)
    assert list(told.values()) == [None, None, None]


def test_a_missing_path_fails_only_its_own_member(shm: Path) -> None:
    """A fenced slot learns that it was fenced, and does not stop the others of its group."""

    def remove_b(path: str) -> bool:
        if path.endswith("/a"):
            (shm / "b").unlink()
        return False

    told = _sync_together(shm, remove_b)
    assert told["a"] is None
    assert isinstance(told["b"], FileNotFoundError)
    assert told["c"] is None


def test_two_enqueues_in_one_group_commit_are_both_refused(shm: Path) -> None:
    store = stage.open_files(stage.make(str(shm / "root")), seed=1)
    told: list[object] = []

    def enqueue(number: int) -> None:
        try:
            told.append(store.enqueue(stage.submission(number)))
        except SyncFailed as error:
            told.append(error)

    class FirstRoundWaits(_OneRound):
        def perform(self, op: str, call: Call, args: tuple[object, ...]) -> object:
            self.others = 1
            return super().perform(op, call, args)

    refused = {"prompt.json"}
    with placed(FirstRoundWaits(1, lambda path: path.rsplit("/", 1)[1] in refused)) as seam:
        threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(2)]
        threads[0].start()
        assert seam.first.wait(10)
        threads[1].start()
        for thread in threads:
            thread.join(10)
    assert [type(answer) for answer in told] == [SyncFailed, SyncFailed]
    assert stage.everywhere(store.root) == {}


def test_the_message_of_a_full_disk_says_what_happened_and_what_to_do(shm: Path) -> None:
    store = stage.open_files(stage.make(str(shm / "root")), seed=1)
    seam = Errno(1, errno.ENOSPC, persistent=True)
    with placed(seam), pytest.raises(StorageTrouble, match=r"No space left on device.*df -h"):
        store.enqueue(stage.submission())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, r"^/.*Permission denied: this user may not write there.*`farro doctor`"),
        (errno.EPERM, r"^/.*Operation not permitted: this user may not write there"),
        (errno.EROFS, r"^/.*Read-only file system: the root is mounted read-only.*Mount it for writing"),
    ],
)
def test_an_error_that_free_space_would_not_solve_says_so(shm: Path, number: int, said: str) -> None:
    store = stage.open_files(stage.make(str(shm / "root")), seed=1)
    for call in (lambda: store.enqueue(stage.submission()), lambda: store.join("me", role="Runner")):
        with placed(Errno(1, number, persistent=True)), pytest.raises(StorageTrouble, match=said) as told:
            call()
        assert "df -h" not in str(told.value)


@pytest.mark.parametrize("again", ["same", "other"])
@pytest.mark.parametrize("name", ["commit_success", "commit_with_children", "commit_unroutable", "release"])
def test_a_failed_commit_can_be_tried_again(name: str, again: str, shm: Path) -> None:
    """StorageTrouble is a TryAgain. A decision that the failed try wrote stands, even if the next try asks for another;
    and a kill anywhere in the next try never leaves a decision with the other try's result."""
    stride = 1 if torture() else 4 if name == "commit_with_children" else 2
    for n in range(1, len(calls(shm / "whole", name, durable=False)) + 1, stride):
        m = 0
        while True:
            m += 1 if m == 0 else stride
            world = verbplays.begin(str(shm / f"{n}-{m}"), BY_NAME[name], durable=False)
            with placed(Errno(n, errno.EIO, persistent=True)), contextlib.suppress(StorageTrouble):
                BY_NAME[name].act(world)
            seam = KillAt(m)
            if not world.history.committed:  # no answer was given
                with placed(seam), contextlib.suppress(Crash):
                    if again == "same":
                        BY_NAME[name].act(world)
                    else:
                        world.commit(world.claims[0], verbplays.failure(world.claims[0]))
            world.die(world.actor)
            verbplays.end(world, BY_NAME[name if again == "same" else "commit_success"])
            if not seam.dead:
                break
