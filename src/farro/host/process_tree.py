"""End process trees: everything that a step started, however it tried to escape.

A tree is found in three ways at once, because each alone misses some processes:
- the process group and session of its leader: misses processes that called setsid;
- descendants by parent: misses double-forked processes (their parent died, so they are children of init);
- the marker `FARRO_CLAIM=<value>` in the environment, inherited by every fork and exec: misses processes that cleared
  or overwrote their environment *and* left the session. A worker that adopts orphans finds those among its children,
  but not which attempt they belong to: they are ended when no attempt runs here any more (`end_adopted`). If the worker
  is killed before that, only its cgroup can find them (`cgroup.own_cgroup`).

Signals go through pidfds: a process is pinned, its entry read again, then signalled. If the PID was reused in between,
the pinned process is dead and the signal fails with ESRCH. Zombies count as dead: only their parent can reap them.
Tests: tests/host/test_processes.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator

from farro.host import process_table, waiting
from farro.host.process_table import ProcessEntry
from farro.host.thread_turns import RESTING

MARKER = "FARRO_CLAIM"
GRACE_S = 10.0

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_LOOK_AGAIN_S = 0.5  # during the grace: find new forks, and ends that no pidfd reported
_KILL_BOUND_S = (
    10.0  # a killed process may hang in the kernel (state D: a dead network mount); then its PID is returned
)
_CHILD_ENDS_S = 0.05  # then its state is read again
_PINNED_AT_ONCE = 200  # descriptors: a fork bomb must not use up the worker's

_PR_SET_CHILD_SUBREAPER = 36

_started: set[int] = set()  # unreaped processes of `processes.start`; set operations are atomic under the GIL
_starting: set[object] = set()  # a token for each thread between a fork and `started`
_spared: set[int] = set()  # of those: monitors of sandboxes; ending one kills the processes inside it
_adopting = False
_inherited: frozenset[tuple[int, int]] = frozenset()  # children that this process had before it became farro (exec)


def end_tree(
    leader: int | None,
    marker: str | None,
    *,
    grace_s: float = GRACE_S,
    while_waiting: Callable[[], None] | None = None,
    every_s: float = 1.0,
) -> tuple[int, ...]:
    """Send SIGTERM to the whole tree, wait `grace_s`, send SIGKILL, and wait until it is dead. Return the PIDs that are
    still alive: processes stuck in the kernel, or of other users.

    `leader` must not have been reaped (its PID could be reused); None for a leader that is gone. With `grace_s` 0
    SIGKILL is sent at once. `while_waiting` is called at least every `every_s`; if it raises, the tree is killed at
    once and the exception propagates.
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
        if patience.hurry():  # once: a second exception, such as a second Ctrl-C, propagates at once
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
    """End every process that carries a marker: a watchdog ends what a dead worker's attempt left. Spares this process.

    `marker` is an attempt's value, or `NAME=value` of another variable (`FARRO_AGENT`: everything of one slot).
    """
    return end_tree(None, marker, grace_s=grace_s, while_waiting=while_waiting, every_s=every_s)


def adopt_orphans() -> bool:
    """Make orphaned descendants of this process its children, not init's (PR_SET_CHILD_SUBREAPER).

    It makes `any_left` cheap: without it every plan would end with a walk over all processes of the machine.
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


def adopting() -> bool:
    """Return whether orphaned descendants become children of this process."""
    return _adopting


def any_left() -> bool:
    """Return whether processes of ended steps may still live: exact and 20 µs after `adopt_orphans`, else always True.

    The line of parents of a survivor ends at an orphan, and the kernel gives orphans to the first thread of a subreaper
    before their dying parent can be waited for. So without an unknown child of the first thread there is no survivor.
    """
    if not _adopting:
        return True
    return bool(reap_adopted())


def childless() -> bool:
    """Return whether this process has no child at all, so that nothing it started can be alive: one system call, exact
    after `adopt_orphans`, else always False.

    Counts the children of all threads: a Python tool may have started a process from its own thread.
    """
    if not _adopting:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def adopts_only_its_own() -> bool:
    """Return whether every orphan that this process adopts was started by it. Not if it inherited children (a script
    that started a daemon and became a worker by `exec`), whose orphans it adopts too; nor as the first process of a
    container, which adopts all orphans."""
    if os.getpid() == 1:
        return False
    left = [process_table.entry(pid) for pid, _ in _inherited]
    return not any(entry is not None and _is_inherited(entry) for entry in left)


def _is_inherited(entry: ProcessEntry) -> bool:
    return entry.alive and (entry.pid, entry.start) in _inherited


def reap_adopted() -> list[int]:
    """Reap adopted orphans that have ended; return the PIDs of those that still run, without inherited children."""
    if not _adopting:
        return []
    running = []
    session = os.getsid(0)
    children = process_table.children_of_main_thread() or ()
    starting = bool(_starting)  # after listing the children: a process forked before is in one of the two sets
    for pid in children:
        if pid in _started:
            continue
        entry = process_table.entry(pid)
        # Every step has a session of its own, so a process in ours was started by other means (a Python tool's
        # subprocess): reaping it would take its exit status from the code that waits for it.
        if entry is None or entry.session == session or _is_inherited(entry):
            continue
        if entry.alive:
            running.append(pid)
        elif not starting:  # else it may be a step that ended at once: the thread that started it reaps it
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
    return running


def end_adopted(which: Callable[[int], bool] = lambda pid: True) -> tuple[int, ...]:
    """Kill adopted orphans, and those that become orphans by that; return the PIDs that do not end."""
    until_s = time.monotonic() + _KILL_BOUND_S
    while found := [pid for pid in reap_adopted() if which(pid)]:
        if time.monotonic() >= until_s:
            return tuple(found)
        for pid in found:
            _kill_child(pid)
    return ()


def _kill_child(pid: int) -> None:
    """Kill a child that only this process reaps: its PID cannot be reused before."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, _KILL)
            with RESTING:
                waiting.readable([fd], _CHILD_ENDS_S)
        finally:
            os.close(fd)


def exit_code_of(pid: int) -> int | None:
    """Reap a child if it has ended; return its exit code (negative: the signal that ended it), None while it runs.
    Raises ChildProcessError if it is not a child of this process, or was reaped."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Enclose a fork and `started`, so that `reap_adopted` reaps no process in between."""
    token = object()
    _starting.add(token)
    try:
        yield
    finally:
        _starting.discard(token)


def any_starting() -> bool:
    """Return whether a thread is between a fork and `started`: its process is not to be taken for an orphan."""
    return bool(_starting)


def started(pid: int) -> None:
    """Register a process that its starter will reap."""
    _started.add(pid)


def reaped(pid: int) -> None:
    """Unregister a process that its starter has reaped."""
    _started.discard(pid)
    _spared.discard(pid)


def spare(pid: int) -> None:
    """Never send SIGTERM to this process: a sandbox's monitor would end at once and kill the processes inside it."""
    _spared.add(pid)


class _Patience:
    """Decide when to terminate, kill and give up, and call `while_waiting` in between."""

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
        """Return how long to wait until the next action: `while_waiting`, or the end of the grace."""
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
    """Return every live process of the tree except this one."""
    own = os.getpid()
    seen = (entry for entry in process_table.entries() if entry.alive and not entry.kernel)
    living = {entry.pid: entry for entry in seen if entry.pid != own}
    found = {pid for pid, entry in living.items() if _belongs(entry, leader, marker)}
    children: dict[int, list[int]] = {}
    for entry in living.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    queue = (
        list(found) if leader is None else [*found, leader]
    )  # the children of a zombie leader have another parent already
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
    """Signal all found processes, then wait until they are gone or the round is over."""
    pinned: list[int] = []
    try:
        for entry in found:
            fd = _pin(entry) if len(pinned) < _PINNED_AT_ONCE else None
            if fd is not None:
                pinned.append(fd)
            elif not _still(entry):  # too many to pin, or no pidfds here: check right before the signal
                continue
            if patience.killing():
                _send(entry.pid, fd, _KILL)
            elif entry.pid not in _spared and (entry.pid, entry.start) not in termed:
                termed.add((entry.pid, entry.start))
                _send(entry.pid, fd, signal.SIGTERM)
                # A stopped process would not handle its SIGTERM before the SIGKILL.
                _send(entry.pid, fd, getattr(signal, "SIGCONT", signal.SIGTERM))
        _wait_for_all(pinned, patience)
    finally:
        for fd in pinned:
            os.close(fd)


def _pin(entry: ProcessEntry) -> int | None:
    """Return a pidfd of exactly this process, or None."""
    try:
        fd = os.pidfd_open(entry.pid)
    except (AttributeError, OSError):  # not this platform; or gone, or no descriptors left
        return None
    if _still(entry):
        return fd
    os.close(fd)
    return None


def _still(entry: ProcessEntry) -> bool:
    """Return whether the PID still belongs to this process: a PID may be reused, a PID with its start time is not."""
    now = process_table.entry(entry.pid)
    return now is not None and now.start == entry.start and now.alive


def _send(pid: int, fd: int | None, number: int) -> None:
    # Gone already, or another user's (a setuid program): the next round shows it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if fd is not None:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)


def _wait_for_all(pinned: Iterable[int], patience: _Patience) -> None:
    left = set(pinned)
    if not left:  # nothing to poll: a short pause, so that the caller does not spin
        with RESTING:
            time.sleep(min(0.02, patience.slice_s()))
        patience.turn()
        return
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    look_again_at = time.monotonic() + _LOOK_AGAIN_S
    was_killing = patience.killing()
    while left and time.monotonic() < look_again_at and patience.killing() == was_killing:
        timeout_ms = patience.slice_s() * 1000 + 1  # poll cuts to whole milliseconds: without the 1 it would spin
        with RESTING:
            ended = poll.poll(timeout_ms)
        for fd, _ in ended:
            poll.unregister(fd)
            left.discard(fd)
        patience.turn()
