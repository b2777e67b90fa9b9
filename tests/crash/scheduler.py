"""Schedule several farro "processes" in one Python process deterministically: exactly one runs at a time.

This module knows actors, points and schedules only.

An actor is a greenlet with its own FilesStore. Every call that passes the seam of system/fs is a *point*: before a
mutating call, before a read that a decision depends on, before a flock is tried or dropped, and before a command's
answer. At each point a strategy may switch to another actor, stop this one for long (SIGSTOP), or kill it. A killed
actor's greenlet is ended at once: Crash is raised at its point and again at each later point, so that no `finally`
changes the disk, while every lease that it held drops, as the kernel does it.

What would otherwise tie the actors of one Python process together:
- group commit waits on a condition: each actor has its own group, put into fs._group whenever it runs, as each process
  has its own; so no actor waits for another and every fsync is a point;
- locks inside a store belong to one actor, since a store does;
- flock is per open file, so that leases exclude each other as between processes;
- inotify is left out (`watch.source` answers None): a worker finds jobs by its rescan, on the stage's clock;
- order in a queue is by file time, and a tick of the kernel's clock may fall anywhere: every job.json gets the number
  of the step as its time, else a schedule could not be repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import greenlet

from farro.host import fs, leases
from farro.host.group_commit import GroupCommit
from farro.store.files import FilesStore, changes
from stage import Crash, die

LOOKS = ("read", "list", "stat", "readlink", "flock")
MUTATING = ("mkdir", "create", "write", "symlink", "link", "unlink", "rmdir", "replace", "exchange", "move")
MUTATING += ("utime", "fsync")
MUTATING += ("write_begun", "write_sync", "syncfs")
OTHER = ("drop", "told")
_BY_DESCRIPTOR = ("fsync", "write_begun", "write_sync", "syncfs")
_CODES = {op: code for code, op in enumerate((*LOOKS, *MUTATING, *OTHER), 1)}
_KILLED = 31
MOST_STEPS = 5000  # ten times the longest play
_BIG_BANG_NS = 1_700_000_000 * 10**9
# In staging an actor is alone (except for clean-up, which random schedules cover): a preemption there equals one at
# its next point. A kill there leaves debris, so kills stay.
PRIVATE = "private"
_TIMED = frozenset({"create", "write", "replace", "exchange"})
KILL_POINTS = frozenset({*MUTATING, *OTHER, "flock"}) - {
    "fsync"
}  # a kill before a read equals a kill before the next change


def stamp(path: str, number: int) -> None:
    """Set the file's time from a clock that ticks once for each step."""
    os.utime(path, ns=(_BIG_BANG_NS + number * 1000, _BIG_BANG_NS + number * 1000))


class Actor:
    """One process of the scenario. `script` is what it does; it ends when the script returns."""

    def __init__(self, index: int, name: str, store: FilesStore, script: Callable[[], None]) -> None:
        self.index = index
        self.name = name
        self.store = store
        self.group = GroupCommit(lambda path: fs._sync_one(path))
        self.greenlet = greenlet.greenlet(script)
        self.dead = False
        self.at_point = False  # preempted at a point: it passes the point when it resumes
        self.ended_at: int | None = None  # the step at which it returned or was killed
        self.leases: set[leases.Lease] = set()  # released by the kernel at its death

    def exit(self) -> None:
        """Release the actor's leases, as the kernel does for a dead process."""
        for lease in list(self.leases):
            lease.drop()
        die(self.store)

    @property
    def over(self) -> bool:
        return self.ended_at is not None


@dataclass(frozen=True)
class Act:
    """A strategy's action at a point: switch to another actor, stop this one for long, or kill it."""

    kind: str  # "to", "stop", "kill"
    to: int | None = None  # index of the actor that runs next


class Strategy(Protocol):
    """Choose the next action. Both methods must be deterministic: they may use only their seed and arguments."""

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        """Choose an action at a point; None lets the actor continue."""

    def pick(self, run: Run, ready: deque[Actor]) -> Actor:
        """Choose the next actor after one ended, idled, stopped or was killed."""


class Watcher(Protocol):
    """Check every change as it is made; raise an error for a broken rule."""

    def changed(self, actor: Actor, op: str, args: tuple[Any, ...]) -> None: ...


class Run:
    """One schedule being played: the seam, and the hub to which actors return."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.watcher: Watcher | None = None
        self.actors: list[Actor] = []
        self.ready: deque[Actor] = deque()
        self.stopped: list[Actor] = []
        self.running: Actor | None = None
        self.step = 0
        self.trace: list[tuple[int, str, str]] = []  # (actor, op, path) of every point that was passed, and kills
        self.segments: list[list[int]] = []  # [actor, points passed, killed]
        self.kills = 0
        self._fresh: dict[int, str] = {}  # descriptors of job.json files that are being written
        self._hub = greenlet.getcurrent()
        self._act: Act | None = None
        self._idled = False

    def add(self, name: str, store: FilesStore, script: Callable[[], None]) -> Actor:
        actor = Actor(len(self.actors), name, store, script)
        self.actors.append(actor)
        self.ready.append(actor)
        return actor

    # --- the seam ---

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        actor = self.running
        if actor is None:
            return call(*args)
        path = args[0] if isinstance(args[0], str) else args[1] if op in _BY_DESCRIPTOR else ""
        self._point(actor, op, path)
        result = call(*args)
        if op in _TIMED:
            self._set_time(op, args, result)
        if self.watcher is not None:
            self.watcher.changed(actor, op, args)
        return result

    def look(self, op: str, path: str) -> None:
        if self.running is not None:
            self._point(self.running, op, path)

    def _set_time(self, op: str, args: tuple[Any, ...], result: Any) -> None:
        if op in ("replace", "exchange") and args[1].endswith("/job.json"):
            stamp(args[1], self.step)
        elif op == "create":
            self._fresh.pop(result, None)
            if args[0].endswith("/job.json"):
                self._fresh[result] = args[0]
        elif op == "write" and args[0] in self._fresh:
            stamp(self._fresh[args[0]], self.step)

    def told(self, what: str) -> None:
        """Mark the point before an answer: a kill here loses the acknowledgement, not the change."""
        if self.running is not None:
            self._point(self.running, "told", what)

    def idle(self) -> None:
        """Let the other actors run because this one has nothing to do. Not a preemption."""
        actor = self.running
        if actor is None:
            return
        if actor.dead:
            raise Crash
        self._idled = True
        self._hub.switch()

    def _point(self, actor: Actor, op: str, path: str) -> None:
        if actor.dead:
            raise Crash
        act = self.strategy.at(self, actor, op)
        if act is not None:
            self._act, actor.at_point = act, True
            self._hub.switch()  # a kill raises Crash from here
            actor.at_point = False
        self.trace.append((actor.index, op, path))
        self.segments[-1][1] += 1
        self.step += 1
        if self.step > MOST_STEPS:
            raise AssertionError(f"{actor.name} goes round and round: {MOST_STEPS} points and no end")

    # --- the hub ---

    def play(self) -> None:
        """Run until every actor has ended or is dead."""
        while True:
            if not self.ready:
                if not self.stopped:
                    return
                self.ready.extend(self.stopped)  # SIGCONT, when all other actors have ended
                self.stopped.clear()
            actor = self.strategy.pick(self, self.ready)
            self.ready.remove(actor)
            self._enter(actor)

    def _enter(self, actor: Actor) -> None:
        self.segments.append([actor.index, 0, 0])
        self.running, fs._group = actor, actor.group
        self._act, self._idled = None, False
        try:
            actor.greenlet.switch()
        finally:
            self.running = None
        act = self._act
        if actor.greenlet.dead:
            actor.ended_at = self.step
            actor.exit()
        elif self._idled:
            self.ready.append(actor)
        elif act is not None:
            self._obey(actor, act)

    def _obey(self, actor: Actor, act: Act) -> None:
        if act.kind == "kill":
            self.kill(actor)
        elif act.kind == "stop":
            self.stopped.append(actor)
        else:
            self.ready.appendleft(actor)
        target = None if act.to is None else self.actors[act.to]
        if target in self.ready:
            self.ready.remove(target)
            self.ready.appendleft(target)

    def kill(self, actor: Actor) -> None:
        self.trace.append((actor.index, "KILL", ""))
        self.segments[-1][2] = 1
        self.kills += 1
        actor.dead, actor.ended_at = True, self.step
        self.running = actor
        try:
            actor.greenlet.throw(Crash)
        except Crash:
            pass
        finally:
            self.running = None
        actor.exit()

    def end(self) -> None:
        """End the remaining actors after a failure, so that no greenlet survives."""
        for actor in self.actors:
            if not actor.over and actor.greenlet:
                self.segments.append([actor.index, 0, 0])
                self.kill(actor)
            actor.exit()

    # --- what was played ---

    @property
    def schedule(self) -> str:
        """Return the schedule in replayable form: each actor, its number of points, and `!` if it was then killed."""
        return " ".join(
            f"{self.actors[index].name}*{count}{'!' if killed else ''}" for index, count, killed in self.segments
        )

    def digest(self, salt: str = "") -> int:
        """Hash the (actor, op) sequence: two schedules with the same digest are the same interleaving."""
        codes = bytes(
            value for index, op, _ in self.trace for value in (index, _KILLED if op == "KILL" else _CODES[op])
        )
        return int.from_bytes(hashlib.blake2b(codes, digest_size=8, key=salt.encode()[:64]).digest(), "big")

    def story(self, root: str) -> str:
        """Format the trace: a line for each uninterrupted run of an actor with its changes and answers."""
        lines = []
        for number, (index, op, path) in enumerate(self.trace):
            lines.append(f"{number:4} {self.actors[index].name:<10} {op:<8} {path.removeprefix(root + '/')}")
        return "\n".join(lines)


# --- what holds while schedules are played -----------------------------------------------------------------------

_current: Run | None = None


@contextlib.contextmanager
def theatre() -> Iterator[None]:
    """Apply the patches that runs need (see the module docstring), and remove them afterwards."""
    lock, drop, made, source = leases._lock, leases.Lease.drop, leases.Lease.__init__, changes.source
    group = fs._group

    def lock_at_a_point(fd: int, *, wait: bool = False) -> None:
        if _current is not None:
            _current.look("flock", "")
        lock(fd, wait=wait)

    def made_by_an_actor(self: leases.Lease, fd: int) -> None:
        made(self, fd)
        if _current is not None and _current.running is not None:
            _current.running.leases.add(self)

    def drop_at_a_point(self: leases.Lease) -> None:
        actor = None if _current is None else _current.running
        if actor is not None and not actor.dead and self.fd in leases._held:
            assert _current is not None
            _current.look("drop", "")
        drop(self)
        for owner in () if _current is None else _current.actors:
            owner.leases.discard(self)

    leases._lock = lock_at_a_point
    leases.Lease.drop = drop_at_a_point  # type: ignore[method-assign]
    leases.Lease.__init__ = made_by_an_actor  # type: ignore[method-assign]
    changes.source = lambda context, role: None  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        leases._lock, changes.source, fs._group = lock, source, group
        leases.Lease.drop, leases.Lease.__init__ = drop, made  # type: ignore[method-assign]


@contextlib.contextmanager
def on_stage(run: Run) -> Iterator[None]:
    global _current
    group = fs._group
    _current = run
    fs.set_seam(run)
    try:
        yield
    finally:
        run.end()
        fs.set_seam(None)
        fs._group = group
        _current = None


# --- strategies --------------------------------------------------------------------------------------------------


class Turns:
    """Never preempt: each actor runs until it ends or idles; then the next in the queue."""

    def __init__(self, first: int = 0) -> None:
        self._first: int | None = first

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        return None

    def pick(self, run: Run, ready: deque[Actor]) -> Actor:
        if self._first is not None:
            ready.rotate(-self._first)
            self._first = None
        return ready[0]


class Preempting(Turns):
    """CHESS: as Turns, with acts at a few chosen points. Such bugs need one or two preemptions, seldom three."""

    def __init__(self, first: int, acts: Sequence[tuple[int, Act]]) -> None:
        super().__init__(first)
        self._acts = dict(acts)

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        return self._acts.pop(run.step, None) if self._acts else None


class Random:
    """Switch to any actor at any point, with a probability chosen by the seed; up to two kills and stops."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._chance = self._dice.choice((0.01, 0.03, 0.1, 0.3, 0.7))
        self._kills = self._dice.choice((0, 1, 1, 2))
        self._kill_chance = self._dice.choice((0.002, 0.01, 0.03))
        self._stop_chance = self._dice.choice((0.0, 0.05, 0.3))

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        dice = self._dice
        if self._kills and op in KILL_POINTS and dice.random() < self._kill_chance:
            self._kills -= 1
            return Act("kill")
        if dice.random() >= self._chance or not run.ready:
            return None
        if dice.random() < self._stop_chance:
            return Act("stop")
        return Act("to", dice.choice(run.ready).index)

    def pick(self, run: Run, ready: deque[Actor]) -> Actor:
        return self._dice.choice(ready) if self._chance > 0.05 else ready[0]


class Priorities:
    """PCT (Burckhardt et al. 2010): random priorities, lowered at d-1 random points, find any bug of depth d with a
    chance of at least 1/(n·k^(d-1)). An actor that idles gets the lowest priority, otherwise it would idle forever."""

    def __init__(self, seed: int, actors: int, steps: int, depth: int = 3) -> None:
        self._dice = random.Random(seed)
        order = list(range(actors))
        self._dice.shuffle(order)
        self._priority = {actor: depth + place for place, actor in enumerate(order)}
        self._changes = {self._dice.randrange(max(1, steps)): depth - 1 - n for n in range(depth - 1)}
        self._kills = {self._dice.randrange(max(1, steps)) for _ in range(self._dice.choice((0, 1, 1, 2)))}
        self._low = 0
        self._last: Actor | None = None

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        if self._kills and run.step >= min(self._kills) and op in KILL_POINTS:
            self._kills.remove(min(self._kills))
            return Act("kill")
        if run.step not in self._changes:
            return None
        self._priority[actor.index] = self._changes.pop(run.step)
        if not run.ready:
            return None
        best = max(run.ready, key=lambda other: self._priority[other.index])
        return Act("to", best.index) if self._priority[best.index] > self._priority[actor.index] else None

    def pick(self, run: Run, ready: deque[Actor]) -> Actor:
        if self._last is not None and ready[-1] is self._last and len(ready) > 1:
            self._low -= 1  # it idled: any other ready actor goes first
            self._priority[self._last.index] = self._low
        self._last = max(ready, key=lambda actor: self._priority[actor.index])
        return self._last


class Replayed:
    """Replay a schedule in the form that `Run.schedule` prints."""

    def __init__(self, schedule: str) -> None:
        self._segments = deque(_segment(text) for text in schedule.split())
        self._left = 0
        self._killed = False

    def at(self, run: Run, actor: Actor, op: str) -> Act | None:
        if self._left:
            self._left -= 1
            return None
        following = self._following(run)
        if self._killed:
            return Act("kill", following)
        return None if following is None else Act("to", following)

    def _following(self, run: Run) -> int | None:
        if not self._segments:
            return None
        return next(actor.index for actor in run.actors if actor.name == self._segments[0][0])

    def pick(self, run: Run, ready: deque[Actor]) -> Actor:
        if not self._segments:
            self._left, self._killed = 1 << 30, False
            return ready[0]
        name, count, self._killed = self._segments.popleft()
        chosen = next((actor for actor in (*ready, *run.stopped) if actor.name == name), ready[0])
        if chosen in run.stopped:
            run.stopped.remove(chosen)
            ready.append(chosen)
        # An actor that waits at a point passes it without another choice.
        self._left = count - 1 if chosen.at_point else count
        return chosen


def _segment(text: str) -> tuple[str, int, bool]:
    name, _, count = text.partition("*")
    return name, int(count.rstrip("!")), count.endswith("!")


# --- choosing schedules ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """What exploration needs to know about a run to preempt it at another point."""

    first: int
    acts: tuple[tuple[int, Act], ...]
    points: tuple[tuple[int, str], ...]  # (actor, op) by step
    ended_at: tuple[int, ...]

    @classmethod
    def of(cls, run: Run, first: int, acts: Sequence[tuple[int, Act]]) -> Played:
        points = tuple(
            (index, PRIVATE if "/.staging/" in path else op) for index, op, path in run.trace if op != "KILL"
        )
        return cls(first, tuple(acts), points, tuple(actor.ended_at or 0 for actor in run.actors))

    def further(self) -> Iterator[tuple[tuple[int, Act], ...]]:
        """Yield every schedule that adds one later act: a switch to each other actor, a stop, a kill, or a kill
        followed by each other actor."""
        start = self.acts[-1][0] + 1 if self.acts else 0
        for step in range(start, len(self.points)):
            actor, op = self.points[step]
            for act in _acts_at(op, self._others(actor, step)):
                yield (*self.acts, (step, act))

    def one_further(self, dice: random.Random) -> tuple[tuple[int, Act], ...] | None:
        """Return a random one of `further` without building them all: a random step, then a random act."""
        start = self.acts[-1][0] + 1 if self.acts else 0
        if start >= len(self.points):
            return None
        step = dice.randrange(start, len(self.points))
        actor, op = self.points[step]
        acts = list(_acts_at(op, self._others(actor, step)))
        return (*self.acts, (step, dice.choice(acts))) if acts else None

    def _others(self, actor: int, step: int) -> list[int]:
        return [other for other, end in enumerate(self.ended_at) if other != actor and end > step]


def _acts_at(op: str, others: list[int]) -> Iterable[Act]:
    if op != PRIVATE:
        for other in others:
            yield Act("to", other)
        if others:
            yield Act("stop")
    if op in KILL_POINTS or op == PRIVATE:
        yield Act("kill")
        for other in others[1:] if op != PRIVATE else ():
            yield Act("kill", other)
