"""Waits for what a plan started, and ends it: the only loop of the room.

It keeps four times (the caller's tick, each step's deadline, the grace of a stop, the grace of an end) and sleeps in
the kernel between them. What to start and how to judge it lives in run.py.

A step whose time is over is ended on a thread of its own: SIGTERM and its grace may take ten seconds, in which other
steps end and the caller wants its ticks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from farro.execution.functions import FunctionRun
from farro.execution.stop import Stop
from farro.host import processes, waiting
from farro.host.clock import Clock
from farro.host.processes import Process
from farro.host.thread_turns import RESTING
from farro.host.waiting import Flag

REST_GRACE_S = 2.0  # after the grace of a stop, and for what a plan left behind: a daemon is gone within 10 s
_KILL_GRACE_S = 0.1  # for functions: what is raised in a thread takes a moment to arrive
_LOOK_S = 0.02  # where a process has no descriptor to wait on
_HURRY_S = 0.1  # how soon a thread that ends a step hears that there is no time for its grace

_watches: set[Watch] = set()  # of the plans that run in this process; its operations are atomic

Ending = Literal["by itself", "timed out", "stopped", "cut off"]


class Watched:
    """One try of a step, from its start to its end. `marker` is its own: every process of this try carries it."""

    def __init__(self, started: Process | FunctionRun, *, marker: str, deadline_s: float) -> None:
        self.started = started
        self.marker = marker
        self.deadline_s = deadline_s
        self.ending: Ending = "by itself"
        self.ender: threading.Thread | None = None  # set: `started` is that thread's
        self.ended = False  # the ender is done
        self.failure: BaseException | None = None  # of the ender

    @property
    def over(self) -> bool:
        return self.started.exit is not None if self.ender is None else self.ended

    def close(self) -> None:
        """It is over, and was looked at."""
        if isinstance(self.started, FunctionRun):
            self.started.close()


class Watch:
    """One for each run of a plan. Timeouts are on the monotonic clock: closing a laptop kills no step."""

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
        self.left: set[int] = set()  # what even SIGKILL did not end
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

    def until_one_is_over(self, running: Sequence[Watched], at_most_s: float = math.inf) -> list[Watched]:
        """Wait until at least one of them is over: by itself, or ended because its time was. Those that are; none when
        it has taken longer than `at_most_s`. With none at all, until then, or until somebody asks to stop.

        When the grace of a stop is over, all are ended. What `tick` raises goes through: the caller then kills them.
        """
        look_at_s = self._clock.monotonic_s() + at_most_s
        while True:
            now_s = self.tick_if_due()
            stop_at_s = self._stop.deadline_s
            if stop_at_s is not None and (now_s >= stop_at_s or not running):
                return self._end_all(running)
            for one in running:
                # One that has ended did so in its time, as far as anyone knows, however late we look.
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

    def kill(self, running: Sequence[Watched]) -> None:
        """End all of them without any grace: the job is not ours any more, or cannot go on."""
        self._hurry = True
        until_s = self._ask_functions(running, _KILL_GRACE_S)
        for one in self._not_taken(running):
            one.started.end(self._marker, grace_s=self._grace_s(one, until_s, 0.0))
        for one in running:
            if one.ender is not None:
                one.ender.join()

    def end_rest(self, *, grace_s: float, look: bool) -> None:
        """End what steps left behind. `look` False: no Python tool ran, so only orphans can be left. Where no other
        plan runs in this process these are ended too, though nothing tells whose they are; not where they may be no
        job's. [test_what_left_its_session_and_its_environment_ends_with_its_job,
        test_what_a_script_started_before_it_became_a_worker_is_nobodys_stray]"""
        if not processes.childless() and (look or processes.any_left()):
            tick = self._tick_now if grace_s else None
            every_s = self._tick_every_s
            self.left.update(processes.end_marked(self._marker, grace_s, while_waiting=tick, every_s=every_s))
            # Asked of each: a plan may begin meanwhile, and what it leaves running is its own.
            if processes.adopts_only_its_own():
                self.left.update(processes.end_adopted(lambda pid: _watches == {self}))

    def tick_if_due(self) -> float:
        """Give the caller its turn when it is time; the time before it."""
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s >= self._tick_every_s:
            self._tick_now()
        return now_s

    def close(self) -> None:
        """Give the descriptor back; nothing may be running."""
        _watches.discard(self)
        if self._ended is not None:
            self._ended.close()

    def _tick_now(self) -> None:
        self._ticked_s = self._clock.monotonic_s()
        self._tick()

    def _wait(self, running: Sequence[Watched], timeout_s: float, stop_fd: int | None) -> None:
        """Until one of them is over, the time is, or somebody asks to stop. May return early."""
        free = [one for one in running if one.ender is None]
        if len(running) == 1 == len(free):
            running[0].started.wait(timeout_s, stop_fd)  # the quickest way there is
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

    def cut_off(self, one: Watched, grace_s: float | None = None) -> None:
        """End it, because of another, or of what it does; it is over later."""
        if one.ender is None and one.started.wait(0) is None:
            self._begin_end(one, "cut off", grace_s)

    def _begin_end(self, one: Watched, ending: Ending, grace_s: float | None = None) -> None:
        grace_s = self._term_grace_s if grace_s is None else grace_s
        one.ending = ending
        self._ended = ended = self._ended or Flag()

        def end() -> None:
            try:
                left = one.started.end(one.marker, grace_s=grace_s, while_waiting=self._patience, every_s=_HURRY_S)
                self.left.update(left)
            except BaseException as failure:  # noqa: BLE001 - raised by whoever waits
                one.failure = failure
            finally:
                one.ended = True  # before the flag: whoever it wakes looks at this
                ended.set()

        one.ender = threading.Thread(target=end, name="ender")
        one.ender.start()

    def _patience(self) -> None:
        if self._hurry:
            raise _Hurried

    def _take_from_ender(self, one: Watched) -> None:
        if one.ender is not None:
            one.ender.join()
            if one.failure is not None and not isinstance(one.failure, _Hurried):
                raise one.failure

    def _end_all(self, running: Sequence[Watched]) -> list[Watched]:
        """The grace of a stop is over. All at once: one after the other would take each one's grace."""
        self._hurry = True
        for one in running:
            if one.ender is None and one.started.wait(0) is None:
                one.ending = "stopped"
        tick, every_s = self._tick_now, self._tick_every_s
        until_s = self._ask_functions(running, REST_GRACE_S)
        self.left.update(processes.end_marked(self._marker, REST_GRACE_S, while_waiting=tick, every_s=every_s))
        for one in self._not_taken(running):
            grace_s = self._grace_s(one, until_s, REST_GRACE_S)
            self.left.update(one.started.end(one.marker, grace_s=grace_s, while_waiting=tick, every_s=every_s))
        for one in running:
            self._take_from_ender(one)
        return list(running)

    def _ask_functions(self, running: Sequence[Watched], grace_s: float) -> float:
        """All of them at once, so that those which cannot be ended share one grace; when that is over."""
        for one in self._not_taken(running):
            if isinstance(one.started, FunctionRun):
                one.started.ask()
        return self._clock.monotonic_s() + grace_s

    def _grace_s(self, one: Watched, until_s: float, otherwise_s: float) -> float:
        return max(until_s - self._clock.monotonic_s(), 0.0) if isinstance(one.started, FunctionRun) else otherwise_s

    def _not_taken(self, running: Sequence[Watched]) -> Iterable[Watched]:
        return [one for one in running if one.ender is None and one.started.exit is None]


class _Hurried(Exception):
    """The grace of a step that is being ended is cut short."""


def _next_s(one: Watched) -> float:
    return one.deadline_s if one.ender is None else float("inf")
