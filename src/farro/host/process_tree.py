"""Ends process trees: everything that a step started, however it tried to get away.

How a process is started lives in processes; whole workers are ended through their cgroup (system/cgroup.py).

A tree is found three ways at once, because each alone has a hole:
- the process group and session of its leader: misses what called setsid;
- descendants by parent: misses what was double-forked (its parent died, so it hangs under init);
- the marker `FARRO_CLAIM=<value>` in the environment, inherited by every fork and exec: misses what cleaned or
  overwrote its environment *and* left the session. A worker that adopts orphans finds it among its children, though not
  whose it was: it ends when no attempt is left here that it may belong to (`end_adopted`). Should the worker be killed
  before that, only a cgroup is left to tell (`cgroup.own_cgroup`).

Signals go through pidfds: a process is pinned, looked at again, then signalled. A PID that was reused in between
belongs to another process, and the pinned one answers ESRCH. Zombies count as dead: only their parent can take them
away. Tests: tests/host/test_processes.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator

from farro.host import process_table
from farro.host.process_table import ProcessEntry
from farro.host.thread_turns import RESTING

MARKER = "FARRO_CLAIM"
GRACE_S = 10.0

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_LOOK_AGAIN_S = 0.5  # while the grace lasts: who was forked since, and who ended without a pidfd to tell
_KILL_BOUND_S = 10.0  # a killed process may sit in the kernel (state D: a dead network mount); then it is reported
_CHILD_ENDS_MS = 50  # then it is looked at again
_PINNED_AT_ONCE = 200  # descriptors: a fork bomb must not cost the worker its last one

_PR_SET_CHILD_SUBREAPER = 36

_started: set[int] = set()  # unreaped processes of `processes.start`; set operations are atomic under the GIL
_starting: set[object] = set()  # whoever is between a fork and `started`
_spared: set[int] = set()  # of those: shells that end by themselves, and take what is in them along when they are ended
_adopting = False
_inherited: frozenset[tuple[int, int]] = frozenset()  # children of whoever this process was before it became farro


def end_tree(
    leader: int | None,
    marker: str | None,
    *,
    grace_s: float = GRACE_S,
    while_waiting: Callable[[], None] | None = None,
    every_s: float = 1.0,
) -> tuple[int, ...]:
    """SIGTERM to the whole tree, `grace_s`, SIGKILL; return when no process of it lives, with the PIDs that still do.

    `leader` must not have been reaped (its number would be free for strangers); None for a leader that is gone. With
    `grace_s` 0 it is SIGKILL at once. The answer is empty except for processes stuck in the kernel, or of other users.
    `while_waiting` is called at least every `every_s`; if it raises, the rest is killed at once, then it goes on.
    """
    patience = _Patience(grace_s, while_waiting, every_s)
    termed: set[tuple[int, int]] = set()
    try:
        while found := _members(leader, marker):
            if patience.exhausted():
                return tuple(entry.pid for entry in found)
            _signal_and_wait(found, leader, marker, patience, termed)
        return ()
    except BaseException:
        if patience.hurry():  # once: a second exception, as a second Ctrl-C, leaves
            while (found := _members(leader, marker)) and not patience.exhausted():
                _signal_and_wait(found, leader, marker, patience, termed)
        raise
    finally:
        reap_adopted()


def end_marked(
    marker: str,
    grace_s: float = 0.0,
    *,
    while_waiting: Callable[[], None] | None = None,
    every_s: float = 1.0,
) -> tuple[int, ...]:
    """`end_tree` from anywhere: a watchdog ends what a dead worker's attempt left. This process itself is spared.

    `marker` is an attempt's, or `NAME=value` for what carries another variable (`FARRO_AGENT`: everything of one slot).
    """
    return end_tree(None, marker, grace_s=grace_s, while_waiting=while_waiting, every_s=every_s)


def adopt_orphans() -> bool:
    """Make orphaned descendants of this process its children, not init's (PR_SET_CHILD_SUBREAPER). Once, by a worker.

    It makes `any_left` cheap: without it every plan would have to end with a walk over all processes of the machine.
    """
    global _adopting, _inherited
    children = process_table.children_of_main_thread() if process_table.LINUX else None
    if children is None:
        return False
    if not _adopting:
        known = [entry for pid in children if pid not in _started and (entry := process_table.entry(pid)) is not None]
        _inherited = frozenset((entry.pid, entry.start) for entry in known)
    libc = ctypes.CDLL(None, use_errno=True)
    _adopting = _adopting or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    return _adopting


def any_left() -> bool:
    """Whether processes of ended steps may still live: exact and 20 µs after `adopt_orphans`, else "perhaps".

    A survivor's line of parents ends at an orphan, and the kernel hands orphans to the first thread of a subreaper
    before their dying parent can be waited for. So: no unknown child of the first thread, no survivor.
    """
    if not _adopting:
        return True
    return bool(reap_adopted())


def childless() -> bool:
    """Whether nothing that was started here can be alive: one call, exact after `adopt_orphans`, else False.

    Every survivor is then a descendant of a child of this process, whatever it did to get away; and there is none. It
    is told of by all threads: a Python tool may have started something from its own.
    """
    if not _adopting:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def adopts_only_its_own() -> bool:
    """Whether every orphan that comes to this process was started here. Not where it inherited children (a script that
    started a daemon and became a worker with `exec`), for theirs come to it too; nor where it is the first process of a
    container, to which everybody's come."""
    if os.getpid() == 1:
        return False
    left = [process_table.entry(pid) for pid, _ in _inherited]
    return not any(entry is not None and _is_inherited(entry) for entry in left)


def _is_inherited(entry: ProcessEntry) -> bool:
    return entry.alive and (entry.pid, entry.start) in _inherited


def reap_adopted() -> list[int]:
    """Take away adopted orphans that have ended; the PIDs of the adopted that still run, without the inherited."""
    if not _adopting:
        return []
    running = []
    session = os.getsid(0)
    children = process_table.children_of_main_thread() or ()
    starting = bool(_starting)  # after the look at the children: who was forked before it is in one of the two sets
    for pid in children:
        if pid in _started:
            continue
        entry = process_table.entry(pid)
        # Every step has a session of its own, so what shares ours was started here by other means (a Python tool's
        # subprocess): taking its exit status away would break whoever waits for it.
        if entry is None or entry.session == session or _is_inherited(entry):
            continue
        if entry.alive:
            running.append(pid)
        elif not starting:  # else it may be one that ended as it was started: whoever started it waits for it
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
    return running


def end_adopted(which: Callable[[int], bool] = lambda pid: True) -> tuple[int, ...]:
    """Kill adopted orphans, and what they leave to us by that; the PIDs of those that do not end."""
    until_s = time.monotonic() + _KILL_BOUND_S
    while found := [pid for pid in reap_adopted() if which(pid)]:
        if time.monotonic() >= until_s:
            return tuple(found)
        for pid in found:
            _kill_child(pid)
    return ()


def _kill_child(pid: int) -> None:
    """It is our child, and only we wait for it: its number is its own until then."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, _KILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            with RESTING:
                poll.poll(_CHILD_ENDS_MS)
        finally:
            os.close(fd)


def exit_code_of(pid: int) -> int | None:
    """Reap a child if it has ended; return its exit code (negative: the signal that ended it), None while it runs.
    Raises ChildProcessError if it is no child of this process, or was reaped."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Around a fork and `started`, by whoever will wait for the process."""
    token = object()
    _starting.add(token)
    try:
        yield
    finally:
        _starting.discard(token)


def started(pid: int) -> None:
    """`processes` tells of a process that it will wait for itself."""
    _started.add(pid)


def reaped(pid: int) -> None:
    """`processes` has waited for it."""
    _started.discard(pid)
    _spared.discard(pid)


def spare(pid: int) -> None:
    """Send it no SIGTERM: a sandbox's monitor would end at once, and its death kills those inside it, without grace."""
    _spared.add(pid)


class _Patience:
    """When to terminate, when to kill, when to give up; and the caller's turn in between."""

    def __init__(self, grace_s: float, while_waiting: Callable[[], None] | None, every_s: float) -> None:
        now = time.monotonic()
        self.kill_at = now + grace_s
        self.leave_at = self.kill_at + _KILL_BOUND_S
        self._while_waiting = while_waiting
        self._every_s = every_s
        self._turn_at = now + every_s
        self._hurried = False

    def killing(self) -> bool:
        return time.monotonic() >= self.kill_at

    def exhausted(self) -> bool:
        return time.monotonic() >= self.leave_at

    def hurry(self) -> bool:
        first, self._hurried = not self._hurried, True
        self._while_waiting = None
        self.kill_at = time.monotonic()
        self.leave_at = self.kill_at + _KILL_BOUND_S
        return first

    def slice_s(self) -> float:
        """How long to wait before somebody has to act: the caller's turn, or the end of the grace."""
        now = time.monotonic()
        until = [now + _LOOK_AGAIN_S, self.kill_at if now < self.kill_at else self.leave_at]
        if self._while_waiting is not None:
            until.append(self._turn_at)
        return max(min(until) - now, 0.0)

    def turn(self) -> None:
        if self._while_waiting is not None and time.monotonic() >= self._turn_at:
            self._turn_at = time.monotonic() + self._every_s
            self._while_waiting()


def _members(leader: int | None, marker: str | None) -> list[ProcessEntry]:
    """Every living process of the tree but this one."""
    own = os.getpid()
    seen = (entry for entry in process_table.entries() if entry.alive and not entry.kernel)
    living = {entry.pid: entry for entry in seen if entry.pid != own}
    found = {pid for pid, entry in living.items() if _belongs(entry, leader, marker)}
    children: dict[int, list[int]] = {}
    for entry in living.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    queue = list(found) if leader is None else [*found, leader]  # a zombie leader's children hang elsewhere already
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return [living[pid] for pid in found]


def _belongs(entry: ProcessEntry, leader: int | None, marker: str | None) -> bool:
    if leader is not None and leader in (entry.pid, entry.group, entry.session):
        return True
    if marker is None:
        return False
    return process_table.carries(entry.pid, marker if "=" in marker else f"{MARKER}={marker}")


def _signal_and_wait(
    found: list[ProcessEntry], leader: int | None, marker: str | None, patience: _Patience, termed: set[tuple[int, int]]
) -> None:
    """One round: signal all that were found, then wait until they are gone or the round is over."""
    pinned: list[int] = []
    try:
        for entry in found:
            fd = _pin(entry) if len(pinned) < _PINNED_AT_ONCE else None
            if fd is not None:
                pinned.append(fd)
            elif not _still(entry):  # too many for descriptors, or no pidfds here: the shortest possible window
                continue
            if patience.killing():
                _send(entry.pid, fd, _KILL)
            elif entry.pid not in _spared and (entry.pid, entry.start) not in termed:
                termed.add((entry.pid, entry.start))
                _send(entry.pid, fd, signal.SIGTERM)
                # A stopped process would sleep through its SIGTERM until the SIGKILL.
                _send(entry.pid, fd, getattr(signal, "SIGCONT", signal.SIGTERM))
        _wait_for_all(pinned, patience)
    finally:
        for fd in pinned:
            os.close(fd)


def _pin(entry: ProcessEntry) -> int | None:
    """A pidfd that refers to exactly this process, or None."""
    try:
        fd = os.pidfd_open(entry.pid)
    except (AttributeError, OSError):  # not this platform; or gone, or no descriptors left
        return None
    if _still(entry):
        return fd
    os.close(fd)
    return None


def _still(entry: ProcessEntry) -> bool:
    """Whether that number is still that process: a PID may be reused, a PID with its start time is not."""
    now = process_table.entry(entry.pid)
    return now is not None and now.start == entry.start and now.alive


def _send(pid: int, fd: int | None, number: int) -> None:
    # Gone already, or another user's (a setuid program): the next look tells.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if fd is not None:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)


def _wait_for_all(pinned: Iterable[int], patience: _Patience) -> None:
    waiting = set(pinned)
    if not waiting:  # nobody to wait on by descriptor: a short pause, so that the loop of looks is not a busy one
        with RESTING:
            time.sleep(min(0.02, patience.slice_s()))
        patience.turn()
        return
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    look_again_at = time.monotonic() + _LOOK_AGAIN_S
    was_killing = patience.killing()
    while waiting and time.monotonic() < look_again_at and patience.killing() == was_killing:
        timeout_ms = patience.slice_s() * 1000 + 1  # poll cuts to whole milliseconds: without the 1 it would spin
        with RESTING:
            ended = poll.poll(timeout_ms)
        for fd, _ in ended:
            poll.unregister(fd)
            waiting.discard(fd)
        patience.turn()
