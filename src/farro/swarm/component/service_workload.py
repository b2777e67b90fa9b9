"""The workload of a service: one function that runs while the component is enabled, and is run again when it breaks.

Items and queues live in working; the control plane, which is always on, in running.

- A plain function has a thread of its own, and is told to end by a threading.Event; an async one by an asyncio.Event.
- One that ends though nobody told it to is run again: soon at first, later and later when it keeps ending. Until a
  new run has lasted a moment the component is not healthy.
  [test_a_service_that_breaks_is_run_again_and_is_down_meanwhile]
- A thread cannot be ended from outside: one that does not heed its event in time is left to its process's end, and the
  service is not begun anew beside it. [test_a_service_that_does_not_heed_its_event_is_told_of]
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
from farro.swarm.component.workload import Counts

FIRST_PAUSE_S = 0.5  # before a run after one that broke; twice as long after each further
LONGEST_PAUSE_S = 30.0
SETTLED_S = 1.0  # a run that has lasted so long is well
READY_S = 20.0  # one that shall say that it is ready has so long
STEADY_S = 60.0  # … and after so long what broke before is forgotten


class Serving:
    """As Workload: `begin` and `end` may be called again and again. `changed` is called when its health changes."""

    def __init__(self, component: Component[Any], config: Callable[[], Any], changed: Callable[[], None]) -> None:
        assert component.declared is not None
        self._component = component
        self._declared = component.declared
        self._config = config
        self._changed = changed
        self.counts = Counts()
        self.trouble: str | None = None
        self.exit: SystemExit | None = None  # what the function wants the process to end with
        self._keeping: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._stop: threading.Event | asyncio.Event | None = None
        self._settled = asyncio.Event()  # it said that it is ready, or broke, or ended
        loop = asyncio.get_running_loop()

        def heard() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is over
                loop.call_soon_threadsafe(self._ready)

        component.on_ready(heard)

    def hurry(self) -> None:
        """The component ends: nobody waits any longer for a service to be ready."""
        self._settled.set()

    def _ready(self) -> None:
        self._settled.set()
        self._said(None)

    @property
    def running(self) -> bool:
        return self._keeping is not None

    async def begin(self) -> None:
        if self._keeping is not None:
            if self._ending.is_set():
                raise InputError(f"{self._component.role} was told to end and has not yet")
            return
        self._ending.clear()
        self._settled.clear()
        self._component.is_ready = False
        self._keeping = asyncio.create_task(self._keep())
        if self._declared.says_ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await self._settled.wait()

    async def end(self, grace_s: float) -> bool:
        """Whether it ended in time."""
        keeping = self._keeping
        if keeping is None:
            return True
        self._ending.set()
        if self._stop is not None:
            self._stop.set()
        await asyncio.wait({keeping}, timeout=grace_s)
        if not keeping.done() and self._declared.is_async:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._over()
            return False
        return keeping.done()

    def count(self) -> None:
        """Take over what the function counted."""
        new, now_s = self._component.counted - self.counts.done, time.monotonic()
        for _ in range(new):
            self.counts.count(now_s)

    def _over(self) -> None:
        self._keeping, self._stop = None, None
        self._settled.set()
        self._said(None)

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._ending.is_set():
                began_s = time.monotonic()
                why = await self._run()
                if why is None:
                    return
                self.counts.failed += 1
                self.counts.last_error = why[:500]
                self._said(why)
                self._settled.set()
                _complain(f"{self._component.role}: {why}; it is run again in {pause_s:g} s")
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ending.wait()
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        finally:
            self._over()

    async def _run(self) -> str | None:
        """One run of the function; why it ended, None when it was told to."""
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
                self._said(None)
            await running
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        except _Left as left:
            self.exit = left.wish
            self._said("wants to end")
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is: it is told, and the function is run again
            if self._ending.is_set():
                return None
            if not isinstance(error, FarroError):  # a mistake in the function
                _complain("".join(traceback.format_exception(error)))
            return f"{type(error).__name__}: {error}"
        return None if self._ending.is_set() else "ended though nobody told it to"

    def _said(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed()


class _Left(Exception):
    """The function wants the process to end. Not SystemExit itself: that one would tear the loop down."""

    def __init__(self, wish: SystemExit) -> None:
        super().__init__(str(wish.code))
        self.wish = wish


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - into the component's log


async def _kept_inside(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        await function(*arguments)
    except SystemExit as wish:
        raise _Left(wish) from wish


def _on_thread(name: str, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Not of the pool: a process waits at its end for those, and a service may not end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        told: BaseException | None = None
        try:
            function(*arguments)
        except SystemExit as wish:
            told = _Left(wish)
        except StopIteration as error:  # which a future cannot hold
            told = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            told = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, told)

    threading.Thread(target=work, name=name, daemon=True).start()
    return done
