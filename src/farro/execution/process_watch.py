"""Wait for the processes and functions that a plan started, and end them.

The only loop of the executor. It keeps four times (the caller's tick, each step's deadline, the grace of a stop, the
grace of an end) and sleeps in the kernel between them. A step whose time is over is ended on a separate thread: SIGTERM
and its grace may take ten seconds, in which other steps end and the caller needs its ticks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from farro.execution.functions import FunctionRun
from farro.execution.stop import Stop
from farro.host import process_tree, waiting
from farro.host.clock import Clock
from farro.host.processes import Process
from farro.host.thread_turns import RESTING
from farro.host.waiting import Flag
from farro.jobs.outcomes import ErrorInfo
from farro.plans.model import Step

if TYPE_CHECKING:
    from farro.execution.step import PipedInput

REST_GRACE_S = 2.0  # after the grace of a stop, and for leftover processes: a worker is gone within 10 s
_KILL_GRACE_S = 0.1  # for functions: an exception raised in a thread takes a moment to arrive
_LOOK_S = 0.02  # if a process has no descriptor to wait on
_HURRY_S = 0.1  # how soon a thread that ends a step notices that its grace was cut short

_watches: set[ProcessWatch] = set()  # plans that run in this process; set operations are atomic

Ending = Literal["by itself", "timed out", "stopped", "cut off"]


class RunningTry:
    """One try of a step, from its start to its end. `marker` is its own: every process of this try carries it.

    `piped`: its input, of a step that still runs.
    """

    def __init__(
        self,
        step: Step,
        attempt: int,
        started: Process | FunctionRun,
        *,
        marker: str,
        deadline_s: float,
        piped: PipedInput | None = None,
    ) -> None:
        self.step = step
        self.attempt = attempt
        self.started = started
        self.marker = marker
        self.deadline_s = deadline_s
        self.piped = piped
        self.ending: Ending = "by itself"
        self.trouble: ErrorInfo | None = None  # why it was ended, if it exceeded a limit
        self.ender: threading.Thread | None = None  # set: only that thread uses `started`
        self.ended = False  # the ender is done
        self.failure: BaseException | None = None  # of the ender

    @property
    def over(self) -> bool:
        return self.started.exit is not None if self.ender is None else self.ended

    def close(self) -> None:
        """Release it after it is over and was judged."""
        if isinstance(self.started, FunctionRun):
            self.started.close()
        if self.piped is not None:
            self.piped.leave()


class ProcessWatch:
    """Waits for the tries of one run of a plan. Timeouts use the monotonic clock: closing a laptop kills no step."""

    def __init__(
        self,
        *,
        marker: str,
        tick: Callable[[], None],
        tick_every_s: float,
        stop: Stop,
        clock: Clock,
        term_grace_s: float,
    ) -> None:
        self.left: set[int] = set()  # processes that even SIGKILL did not end
        self._marker = marker
        self._tick = tick
        self._tick_every_s = tick_every_s
        self._stop = stop
        self._clock = clock
        self._term_grace_s = term_grace_s
        self._ticked_s = clock.monotonic_s()
        self._ended: Flag | None = None  # a thread has ended a step
        self._hurry = False
        _watches.add(self)

    def until_one_is_over(self, running: Sequence[RunningTry], at_most_s: float = math.inf) -> list[RunningTry]:
        """Wait until at least one try has ended or was ended at its deadline, and return those that are over.

        Returns none after `at_most_s`; without any running, waits until then or until a stop is requested. When the
        grace of a stop is over, all are ended. What `tick` raises goes through: the caller then kills them.
        """
        look_at_s = self._clock.monotonic_s() + at_most_s
        while True:
            now_s = self.tick_if_due()
            stop_at_s = self._stop.deadline_s
            if stop_at_s is not None and (now_s >= stop_at_s or not running):
                return self._end_all(running)
            for one in running:
                # A try that has ended counts as in time, even if this check comes after its deadline.
                if one.ender is None and now_s >= one.deadline_s and one.started.wait(0) is None:
                    self._begin_end(one, "timed out")
            if over := [one for one in running if one.over]:
                for one in over:
                    self._take_from_ender(one)
                return over
            if now_s >= look_at_s:
                return []
            until_s = min(self._ticked_s + self._tick_every_s, look_at_s, *(_next_s(one) for one in running))
            until_s = until_s if stop_at_s is None else min(until_s, stop_at_s)
            # Once a stop is requested its descriptor stays readable: polling it again would spin.
            self._wait(running, until_s - now_s, self._stop.fd if stop_at_s is None else None)

    def kill(self, running: Sequence[RunningTry]) -> None:
        """End all of them without grace: the job was taken away, or cannot continue."""
        self._hurry = True
        until_s = self._ask_functions(running, _KILL_GRACE_S)
        for one in self._not_taken(running):
            one.started.end(self._marker, grace_s=self._grace_s(one, until_s, 0.0))
        for one in running:
            if one.ender is not None:
                one.ender.join()

    def end_rest(self, *, grace_s: float, look: bool) -> None:
        """End what steps left behind. `look` False: no Python tool ran, so only orphans can be left.

        If no other plan runs in this process, orphans without a marker are ended, too; not if they may belong to no
        job. [test_process_that_left_its_session_and_environment_ends_with_its_job,
        test_worker_that_inherited_children_ends_no_stray_process]
        """
        if not process_tree.childless() and (look or process_tree.any_left()):
            tick = self._tick_now if grace_s else None
            every_s = self._tick_every_s
            self.left.update(process_tree.end_marked(self._marker, grace_s, while_waiting=tick, every_s=every_s))
            # Checked for each: a plan may begin meanwhile, and its processes must be left alone.
            if process_tree.adopts_only_its_own():
                self.left.update(process_tree.end_adopted(self._alone))

    def _alone(self, pid: int) -> bool:
        """Return whether no other plan, and no runner, of this process may have started that one."""
        return _watches == {self} and not process_tree.any_starting()

    def tick_if_due(self) -> float:
        """Call the caller's tick if it is due; return the time before it."""
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s >= self._tick_every_s:
            self._tick_now()
        return now_s

    def close(self) -> None:
        """Close the descriptor; nothing may be running."""
        _watches.discard(self)
        if self._ended is not None:
            self._ended.close()

    def _tick_now(self) -> None:
        self._ticked_s = self._clock.monotonic_s()
        self._tick()

    def _wait(self, running: Sequence[RunningTry], timeout_s: float, stop_fd: int | None) -> None:
        """Wait until a try is over, the time has passed, or a stop is requested. May return early."""
        free = [one for one in running if one.ender is None]
        if len(running) == 1 == len(free):
            running[0].started.wait(timeout_s, stop_fd)  # the fastest way
            return
        poll = waiting.poller()
        for one in free:
            fd = one.started.fileno()
            if one.started.exit is not None:
                return
            if fd is None:
                timeout_s = min(timeout_s, _LOOK_S)
            else:
                poll.register(fd, waiting.READABLE)
        if len(free) < len(running):
            assert self._ended is not None
            poll.register(self._ended.fd, waiting.READABLE)
        if stop_fd is not None:
            poll.register(stop_fd, waiting.READABLE)
        with RESTING:
            ready = poll.poll(int(max(timeout_s, 0) * 1000) + 1)  # rounded up: one that returns early spins
        if self._ended is not None and any(fd == self._ended.fd for fd, _ in ready):
            self._ended.clear()
        for one in free:
            one.started.wait(0)

    def cut_off(self, one: RunningTry, grace_s: float | None = None) -> None:
        """Begin to end a try, because of another step or because it exceeds a limit."""
        if one.ender is None and one.started.wait(0) is None:
            self._begin_end(one, "cut off", grace_s)

    def _begin_end(self, one: RunningTry, ending: Ending, grace_s: float | None = None) -> None:
        grace_s = self._term_grace_s if grace_s is None else grace_s
        one.ending = ending
        self._ended = ended = self._ended or Flag()

        def end() -> None:
            try:
                left = one.started.end(one.marker, grace_s=grace_s, while_waiting=self._patience, every_s=_HURRY_S)
                self.left.update(left)
            except BaseException as failure:  # noqa: BLE001 - raised in the waiting thread
                one.failure = failure
            finally:
                one.ended = True  # before the flag: the woken thread reads this
                ended.set()

        one.ender = threading.Thread(target=end, name="ender")
        one.ender.start()

    def _patience(self) -> None:
        if self._hurry:
            raise _Hurried

    def _take_from_ender(self, one: RunningTry) -> None:
        if one.ender is not None:
            one.ender.join()
            if one.failure is not None and not isinstance(one.failure, _Hurried):
                raise one.failure

    def _end_all(self, running: Sequence[RunningTry]) -> list[RunningTry]:
        """End all when the grace of a stop is over, in parallel: in sequence, the graces would add up."""
        self._hurry = True
        for one in running:
            if one.ender is None and one.started.wait(0) is None:
                one.ending = "stopped"
        tick, every_s = self._tick_now, self._tick_every_s
        until_s = self._ask_functions(running, REST_GRACE_S)
        self.left.update(process_tree.end_marked(self._marker, REST_GRACE_S, while_waiting=tick, every_s=every_s))
        for one in self._not_taken(running):
            grace_s = self._grace_s(one, until_s, REST_GRACE_S)
            self.left.update(one.started.end(one.marker, grace_s=grace_s, while_waiting=tick, every_s=every_s))
        for one in running:
            self._take_from_ender(one)
        return list(running)

    def _ask_functions(self, running: Sequence[RunningTry], grace_s: float) -> float:
        """Ask all functions at once, so that those which cannot be ended share one grace; return when that is over."""
        for one in self._not_taken(running):
            if isinstance(one.started, FunctionRun):
                one.started.ask()
        return self._clock.monotonic_s() + grace_s

    def _grace_s(self, one: RunningTry, until_s: float, otherwise_s: float) -> float:
        return max(until_s - self._clock.monotonic_s(), 0.0) if isinstance(one.started, FunctionRun) else otherwise_s

    def _not_taken(self, running: Sequence[RunningTry]) -> Iterable[RunningTry]:
        return [one for one in running if one.ender is None and one.started.exit is None]


class _Hurried(Exception):
    """Report that the grace of a step that is being ended was cut short."""


def _next_s(one: RunningTry) -> float:
    return one.deadline_s if one.ender is None else float("inf")
