"""Calling a component's function: a coroutine where it is, a plain function on a thread of its own, one call at a time.

What is called with, and what is done with the answer, lives in working.

A plain function may block, and the control plane goes on meanwhile: so it has a thread. Waking a loop from another
thread costs more than a small function does; answers that come while the loop is busy are told to it all at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class NotCalled(Exception):
    """The component is being stopped, and this call had not begun."""


class OwnThread:
    """Calls in the order in which they were asked for. It ends when it was told to, or with the process: a function
    that never returns keeps nobody from leaving."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False  # that there are answers
        self._ending = False
        threading.Thread(target=self._run, name="component", daemon=True).start()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._jobs.put((future, function, arguments))
        return future

    def end(self) -> None:
        """What has not begun is not begun any more."""
        self._ending = True
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            answer: Any = None
            error: BaseException | None = None
            if self._ending:
                error = NotCalled()
            else:
                try:
                    answer = function(*arguments)
                except BaseException as raised:  # noqa: BLE001 - whoever called shall get it, whatever it is
                    error = raised
            self._answers.append((future, answer, error))
            if not self._told:  # read after the answer was put: whoever set it has yet to look
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # the loop is over, and nobody waits

    def _tell(self) -> None:
        self._told = False
        while self._answers:
            future, answer, error = self._answers.popleft()
            if future.done():
                continue  # nobody waits any more
            if error is None:
                future.set_result(answer)
            elif isinstance(error, StopIteration):  # a future cannot hold it
                future.set_exception(RuntimeError("the function raised StopIteration"))
            else:
                future.set_exception(error)
