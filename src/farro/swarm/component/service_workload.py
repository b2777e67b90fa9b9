"""The workload of a service: one function that runs while the component is enabled, and is run again when it fails.

- A plain function runs on its own thread and ends when a threading.Event is set; an async one uses an asyncio.Event.
- A function that ends early is run again: soon at first, later and later if it keeps ending. Until a new run has lasted
  a moment the component is not healthy. [test_a_failed_service_is_run_again_and_is_down_meanwhile]
- A thread cannot be ended from outside: one that ignores its event is left until the process ends, and the service is
  not started a second time beside it. [test_a_service_that_ignores_its_event_is_reported]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from farro.errors import FarroError, InputError
from farro.swarm.component.declare import Component
from farro.swarm.component.workload import WorkCounts

FIRST_PAUSE_S = 0.5  # before the run after a failed one; doubled after each further failure
LONGEST_PAUSE_S = 30.0
SETTLED_S = 1.0  # a run that lasted this long is healthy
READY_S = 20.0  # for a service with `says_ready`
STEADY_S = 60.0  # after this time earlier failures are forgotten


class ServiceWorkload:
    """Has the interface of Workload: `begin` and `end` may be called repeatedly. `changed` is called when its health
    changes."""

    def __init__(self, component: Component[Any], config: Callable[[], Any], changed: Callable[[], None]) -> None:
        assert component.declared is not None
        self._component = component
        self._declared = component.declared
        self._config = config
        self._changed = changed
        self.counts = WorkCounts()
        self.trouble: str | None = None
        self.exit: SystemExit | None = None  # raised by the function to end the process
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._stop: threading.Event | asyncio.Event | None = None
        self._started_or_failed = asyncio.Event()  # it is ready, or failed, or ended
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._ready)

        component.on_ready(wake)

    def stop_waiting(self) -> None:
        """Stop waiting for the service to be ready: the component ends."""
        self._started_or_failed.set()

    def _ready(self) -> None:
        self._started_or_failed.set()
        self._set_trouble(None)

    @property
    def running(self) -> bool:
        return self._task is not None

    async def begin(self) -> None:
        if self._task is not None:
            if self._ending.is_set():
                raise InputError(f"{self._component.role} was told to end and has not ended yet")
            return
        self._ending.clear()
        self._started_or_failed.clear()
        self._component.is_ready = False
        self._task = asyncio.create_task(self._keep_running())
        if self._declared.says_ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await self._started_or_failed.wait()

    async def end(self, grace_s: float) -> bool:
        """End the service. Return whether it ended in time."""
        task = self._task
        if task is None:
            return True
        self._ending.set()
        if self._stop is not None:
            self._stop.set()
        await asyncio.wait({task}, timeout=grace_s)
        if not task.done() and self._declared.is_async:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._finish()
            return False
        return task.done()

    def count(self) -> None:
        """Take over the items that the function counted."""
        new, now_s = self._component.counted - self.counts.done, time.monotonic()
        for _ in range(new):
            self.counts.count(now_s)

    def _finish(self) -> None:
        self._task, self._stop = None, None
        self._started_or_failed.set()
        self._set_trouble(None)

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._ending.is_set():
                began_s = time.monotonic()
                why = await self._run()
                if why is None:
                    return
                self.counts.failed += 1
                self.counts.last_error = why[:500]
                self._set_trouble(why)
                self._started_or_failed.set()
                _complain(f"{self._component.role}: {why}; running it again in {pause_s:g} s")
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ending.wait()
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        finally:
            self._finish()

    async def _run(self) -> str | None:
        """Run the function once. Return why it ended early, or None if its end was requested."""
        arguments = (self._config(),) if self._declared.takes_config else ()
        running: asyncio.Future[Any]
        if self._declared.is_async:
            self._stop = asyncio.Event()
            running = asyncio.ensure_future(_kept_inside(self._declared.function, self._stop, *arguments))
        else:
            self._stop = threading.Event()
            running = _on_thread(self._component.role, self._declared.function, self._stop, *arguments)
        if self._ending.is_set():
            self._stop.set()
        try:
            await asyncio.wait({running}, timeout=SETTLED_S)
            if not running.done() and not self._declared.says_ready:
                self._set_trouble(None)
            await running
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        except _ExitRequested as requested:
            self.exit = requested.exit
            self._set_trouble("wants to end")
            return None
        except Exception as error:  # noqa: BLE001 - any error is reported, and the function is run again
            if self._ending.is_set():
                return None
            if not isinstance(error, FarroError):  # an error in the function itself
                _complain("".join(traceback.format_exception(error)))
            return f"{type(error).__name__}: {error}"
        return None if self._ending.is_set() else "ended though it was not told to"

    def _set_trouble(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed()


class _ExitRequested(Exception):
    """The function raised SystemExit, which itself would end the event loop."""

    def __init__(self, system_exit: SystemExit) -> None:
        super().__init__(str(system_exit.code))
        self.exit = system_exit


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - into the component's log


async def _kept_inside(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        await function(*arguments)
    except SystemExit as system_exit:
        raise _ExitRequested(system_exit) from system_exit


def _on_thread(name: str, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Run the function on its own daemon thread: a process waits for pool threads at its end, and a service may not
    end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def deliver(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        failure: BaseException | None = None
        try:
            function(*arguments)
        except SystemExit as system_exit:
            failure = _ExitRequested(system_exit)
        except StopIteration as error:  # a future cannot hold it
            failure = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            failure = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed: no task waits any more
            loop.call_soon_threadsafe(deliver, failure)

    threading.Thread(target=work, name=name, daemon=True).start()
    return done
